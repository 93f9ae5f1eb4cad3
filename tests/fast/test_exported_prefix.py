"""SWAP-2, SEC-3: a prefix that one manager computed is hit on another one, content, keys and order as they were."""

import io
import json
import zipfile
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest

from kvproof import fast, spec
from kvproof.spec.declarations import (
    CacheGroupSpec,
    CacheSalt,
    FullAttentionSpec,
    MambaSpec,
    Request,
    SlidingWindowSpec,
)

from .test_export_pages import bits, parts, poisoned

PACKAGES = {"spec": spec, "fast": fast}
SIZES: dict[str, Any] = {"page_size": 4, "num_kv_heads": 4, "head_size": 24}
STATES = MambaSpec(4, ((3,), (2, 2)), ("bfloat16", "float32"), "align")
PAGES = 20


class Side:
    """A manager of full attention, a window and states, and the pages of two layers of each, full of noise."""

    def __init__(self, names: ModuleType, dtype: str = "bf16", seed: int = 0, **options: Any) -> None:
        self.names = names
        kind = {"bf16": "bfloat16", "int8": "int8"}[dtype]
        window = SlidingWindowSpec(**SIZES, dtype=kind, sliding_window=6)
        groups = [CacheGroupSpec(own) for own in (FullAttentionSpec(**SIZES, dtype=kind), window, STATES)]
        options = {"hash_seed": b"seed", "enable_events": True, **options}
        self.manager = names.CacheManager(options.pop("num_pages", PAGES), groups, 32, **options)
        metadata = names.RaggedPagesCacheMetaData(2, 32, 4, 24, 24, page_size=4, num_pages=PAGES, _kvdtype_str=dtype)
        make = names.RaggedPagesCache.init_cache
        self.caches: list[Any] = [
            poisoned(make(None, metadata, names.AxisRules()), seed + place)[0] for place in range(2)
        ]
        rng = np.random.default_rng(seed)
        states = []
        for _ in range(2):
            room = names.StatePages.init(None, STATES, PAGES)
            drawn = [rng.normal(size=(PAGES, *own)) for own in STATES.shapes]
            given = [own.astype(np.dtype(kind)) for own, kind in zip(drawn, STATES.dtypes, strict=True)]
            states.append(room.write(np.arange(PAGES, dtype=np.int32), given))
        self.caches.append(states)

    def compute(self, name: str, length: int) -> Request:
        """A live request whose prompt was computed."""
        request = Request(name, list(range(length)))
        assert self.manager.allocate_slots(request, length) is not None
        request.num_computed_tokens = length
        return request

    def content(self, request: Request) -> tuple[int, list[Any]]:
        """How many tokens of a request are hit, and the bits of the pages that hold them."""
        pages, found = self.manager.get_computed_pages(request)
        held = []
        for cache, group in zip(self.caches, pages.get_page_ids(), strict=True):
            ids = [page for page in group if page]
            if isinstance(cache, list):
                held += [bits(part).tolist() for own in cache for part in own.read(np.array(ids, np.int32))]
            else:
                held += [bits(part)[ids].tolist() for view in cache.views for part in parts(view.kv_pages)]
        return found, held


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize(("leaves", "enters"), [("fast", "fast"), ("fast", "spec"), ("spec", "fast")])
def test_a_prefix_is_hit_where_it_was_imported(leaves: str, enters: str, dtype: str) -> None:
    source, target = Side(PACKAGES[leaves], dtype, 1), Side(PACKAGES[enters], dtype, 2)
    computed = source.compute("a", 12)
    asked = Request("b", list(range(13)))
    wanted = source.content(asked)
    assert wanted[0] == 12
    exported = source.names.export_prefix(source.manager, asked, source.caches, "model")
    source.manager.free(computed)
    data = exported.to_bytes()
    read = target.names.ExportedPrefix.from_bytes(data)
    after = target.names.import_prefix(target.manager, asked, target.caches, "model", read)
    target.caches = after
    assert target.content(asked) == wanted
    assert target.manager.usage == 0.0
    target.manager.check()
    follower = target.names.CacheFollower()
    follower.apply(target.manager.take_events())
    # three pages, the two that a window of 6 reads from, and the state at the end
    assert len(follower.cached_page_hash_to_page) == len(target.manager.page_pool.cached_page_hash_to_page) == 6
    again = target.names.import_prefix(target.manager, asked, target.caches, "model", read)
    target.caches = again  # all of it is cached: nothing is copied
    assert target.content(asked) == wanted
    assert target.manager.allocate_slots(asked, 1, *target.manager.get_computed_pages(asked)[::-1]) is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_pages_of_something_else_are_refused_and_nothing_changes(package: str) -> None:
    """SWAP-2: another model, seed, page size, layout, dtype, or other tokens or extra keys."""
    source = Side(PACKAGES[package])
    source.compute("a", 12)
    asked = Request("b", list(range(13)))
    exported = source.names.export_prefix(source.manager, asked, source.caches, "model")

    def refused(side: Side, request: Request, model: str = "model", given: Any = exported) -> None:
        before = side.manager.snapshot()
        with pytest.raises(ValueError, match=r"exported.*\[SWAP-2\]$"):
            side.names.import_prefix(side.manager, request, side.caches, model, given)
        assert side.manager.snapshot() == before

    good = PACKAGES[package]
    refused(Side(good), asked, model="another")
    refused(Side(good, hash_seed=b"another"), asked)
    refused(Side(good, dtype="int8"), asked)
    refused(Side(good), Request("b", [7, *range(1, 13)]))
    refused(Side(good), Request("b", list(range(13)), [CacheSalt("salt")]))
    refused(Side(good), Request("b", list(range(11))))
    fewer = type(exported)(exported.header, dict(list(exported.arrays.items())[1:]))
    refused(Side(good), asked, given=fewer)
    more = type(exported)(exported.header, exported.arrays | {"9.0.0": np.zeros(1, np.uint8)})
    refused(Side(good), asked, given=more)
    narrow = {name: array[:, :1] for name, array in exported.arrays.items()}
    refused(Side(good), asked, given=type(exported)(exported.header, narrow))
    full = Side(good, num_pages=6)
    assert full.names.import_prefix(full.manager, asked, full.caches, "model", exported) is None
    nothing = Side(good)
    assert nothing.names.export_prefix(nothing.manager, asked, nothing.caches, "model") is None


@pytest.mark.parametrize("package", PACKAGES)
def test_files_are_read_with_suspicion(package: str) -> None:
    """SEC-3, SEC-2: nothing is unpickled, nothing larger than it says; neither tokens nor salts are in it."""
    side = Side(PACKAGES[package])
    request = Request("a", [7_654_321] * 12, [CacheSalt("very secret")])
    side.manager.allocate_slots(request, 12)
    request.append(1)  # the first token after the prompt: a hit leaves one to compute
    data = side.names.export_prefix(side.manager, request, side.caches, "model").to_bytes()
    header = zipfile.ZipFile(io.BytesIO(data)).read("header.npy")
    assert b"very secret" not in data
    assert b"7654321" not in header

    def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
        with np.load(io.BytesIO(data)) as file:
            arrays = dict(file)
        told = json.loads(arrays["header"].tobytes())
        change(told)
        arrays["header"] = np.frombuffer(json.dumps(told).encode(), np.uint8)
        out = io.BytesIO()
        np.savez(out, allow_pickle=False, **arrays)
        return out.getvalue()

    long_sizes = side.names.ExportedPrefix.from_bytes(changed(dict))  # the form that earlier versions wrote
    assert long_sizes.to_bytes() == data
    pickled = io.BytesIO()
    np.savez(pickled, allow_pickle=True, header=np.array([{}], object))
    lying = bytearray(data)
    place = data.index(b"'shape': (") + len(b"'shape': (")
    lying[place : place + 1] = b"9"
    for wrong in (
        b"",
        data[:-30],
        bytes(lying),
        pickled.getvalue(),
        changed(lambda told: told.update(version=2)),
        changed(lambda told: told.update(kvproof="another")),
        changed(lambda told: told.update(more=1)),
        changed(lambda told: told.pop("keys")),
    ):
        with pytest.raises(ValueError, match=r"^data.*\[SEC-3\]$"):
            side.names.ExportedPrefix.from_bytes(wrong)
    with pytest.raises(ValueError, match=r"max_bytes=100"):
        side.names.ExportedPrefix.from_bytes(data, max_bytes=100)
    with pytest.raises(TypeError, match="data"):
        side.names.ExportedPrefix.from_bytes("text")


def test_both_packages_write_the_same() -> None:
    files = []
    for names in PACKAGES.values():
        side = Side(names)
        side.compute("a", 12)
        files.append(names.export_prefix(side.manager, Request("b", list(range(13))), side.caches, "model"))
    assert files[0].header == files[1].header
    assert files[0].num_tokens == files[1].num_tokens == 12
    ours, theirs = ({name: (own.dtype, own.shape) for name, own in file.arrays.items()} for file in files)
    assert ours == theirs
    assert jax.tree.all(jax.tree.map(lambda one, other: bool((one == other).all()), files[0].arrays, files[1].arrays))
