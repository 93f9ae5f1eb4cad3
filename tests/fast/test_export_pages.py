"""SWAP-2: pages that leave the device and come back, in every layout, on one device and on a mesh."""

from typing import Any

import jax
import numpy as np
import pytest

from kvproof import fast, spec
from kvproof.fast.cache import cache_programs
from kvproof.kernels import ScaledPages

LAYOUTS = [
    ("v2", "f32", False),
    ("v3", "f32", False),
    ("v2", "bf16", False),
    ("v3", "bf16", False),
    ("v3", "int8", True),
    ("v2", "f8_e4m3", True),
    ("seq_on_lane", "bf16", False),
    ("seq_on_lane", "int8", True),
]
PAGES, PAGE, LAYERS = 6, 4, 2


def metadata_of(names: Any, version: str, dtype: str, scaled: bool, heads: int = 1, pages: int = 1) -> Any:
    return names.RaggedPagesCacheMetaData(
        num_hidden_layers=LAYERS,
        max_model_length=16,
        num_kv_heads=4,
        k_headdim=24,
        v_headdim=24,
        page_size=PAGE,
        num_pages=PAGES,
        version=version,
        _kvdtype_str=dtype,
        slot_scales=scaled,
        num_head_shards=heads,
        num_page_shards=pages,
    )


def bits(array: Any) -> Any:
    made = np.ascontiguousarray(np.asarray(array))
    return made.view(f"u{made.dtype.itemsize}")


def parts(pages: Any) -> list[Any]:
    return list(pages) if isinstance(pages, tuple) else [pages]


def poisoned(cache: Any, seed: int) -> tuple[Any, list[list[Any]]]:
    """A cache whose every bit is random, NaN among its numbers, and these bits for each layer."""
    rng = np.random.default_rng(seed)
    views, noise = [], []
    for view in cache.views:
        drawn = []
        for part in parts(view.kv_pages):
            word = np.asarray(part).dtype
            raw = rng.integers(0, 256, (*part.shape, word.itemsize), np.uint8)
            made = raw.view(f"u{word.itemsize}").reshape(part.shape).view(word)
            drawn.append(jax.device_put(made, part.sharding) if isinstance(part, jax.Array) else made)
        noise.append([bits(part).copy() for part in drawn])
        pages = type(view.kv_pages)(*drawn) if isinstance(view.kv_pages, tuple) else drawn[0]
        views.append(view.replace(kv_pages=pages))
    return cache.replace(views=views), noise


def caches(layout: tuple[str, str, bool], seed: int = 0) -> tuple[Any, Any, list[list[Any]]]:
    """The same poison in a cache of each package."""
    ours, noise = poisoned(fast.RaggedPagesCache.init_cache(None, metadata_of(fast, *layout), fast.AxisRules()), seed)
    theirs = spec.RaggedPagesCache.init_cache(None, metadata_of(spec, *layout), spec.AxisRules())
    views = []
    for view, drawn in zip(theirs.views, noise, strict=True):
        own = [part.view(np.asarray(mine).dtype) for part, mine in zip(drawn, parts(view.kv_pages), strict=True)]
        views.append(view.replace(kv_pages=spec.ScaledPages(*own) if layout[2] else own[0]))
    return ours, theirs.replace(views=views), noise


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(map(str, layout)))
def test_live_slots_come_back_bit_for_bit_and_dead_ones_are_zero(layout: tuple[str, str, bool]) -> None:
    ours, theirs, noise = caches(layout)
    block, wanted = (cache.export_pages([4, 2, 5], [4, 1, 0]) for cache in (ours, theirs))
    for own, other, drawn in zip(block, wanted, noise, strict=True):
        for part, right, before in zip(parts(own), parts(other), drawn, strict=True):
            seen = bits(part)
            if layout[0] == "seq_on_lane":
                seen, before, right = (np.moveaxis(pages, -1, 1) for pages in (seen, before, np.asarray(right)))
            assert (seen[0] == before[4]).all()
            assert (seen[1, :1] == before[2, :1]).all()
            assert not seen[1, 1:].any()
            assert not seen[2:].any()  # nothing live, and padding
            assert (seen[:3] == bits(right)).all()
    on_host = jax.device_get(block)
    trimmed = [ScaledPages(*(part[:3] for part in own)) if layout[2] else own[:3] for own in on_host]
    ours, theirs = (cache.import_pages([1, 3, -1], given) for cache, given in ((ours, trimmed), (theirs, wanted)))
    for view, other, drawn, own in zip(ours.views, theirs.views, noise, on_host, strict=True):
        for part, right, before, moved in zip(
            parts(view.kv_pages), parts(other.kv_pages), drawn, parts(own), strict=True
        ):
            after = before.copy()
            after[[1, 3]] = bits(moved)[:2]
            assert (bits(part) == after).all()
            assert (bits(right) == after).all()


@pytest.mark.parametrize("layout", LAYOUTS[:1] + LAYOUTS[4:5], ids=str)
def test_ids_on_the_device_are_taken_by_both_packages(layout: tuple[str, str, bool]) -> None:
    """SWAP-2: who has them there need not fetch them; -1 names no page there either."""
    for cache in caches(layout)[:2]:
        ids, slots = [4, -1, 1], [PAGE, 2, 3]
        given = [jax.numpy.asarray(numbers, np.int32) for numbers in (ids, slots)]
        for listed, there in zip(cache.export_pages(ids, slots), cache.export_pages(*given), strict=True):
            for own, other in zip(parts(listed), parts(there), strict=True):
                np.testing.assert_array_equal(bits(own)[: len(ids)], bits(other)[: len(ids)])


def test_on_a_mesh_as_on_one_device() -> None:
    """CACHE-5, POOL-12: ids are a shard's own, heads lie on two devices."""
    mesh = jax.make_mesh((2, 2), ("dp", "tp"))
    metadata = metadata_of(fast, "v3", "f32", False, heads=2, pages=2)
    cache, noise = poisoned(fast.RaggedPagesCache.init_cache(mesh, metadata, fast.AxisRules()), 1)
    block = cache.export_pages([[1, 2], [5, -1]], [[4, 2], [3, 4]])
    for own, (before,) in zip(block, noise, strict=True):
        rows = bits(own).reshape(2, -1, *before.shape[1:])
        assert (rows[0, 0] == before[1]).all()
        assert (rows[0, 1, :2] == before[2, :2]).all()
        assert not rows[0, 1, 2:].any()
        assert (rows[1, 0, :3] == before[PAGES + 5, :3]).all()
        assert not rows[1, 1:].any()
    host = [np.asarray(own).reshape(2, -1, *own.shape[1:])[:, :2].reshape(4, *own.shape[1:]) for own in block]
    cache = cache.import_pages([[3, -1], [-1, 0]], host)
    for view, (before,), own in zip(cache.views, noise, host, strict=True):
        after = before.copy()
        after[3], after[PAGES] = bits(own)[0], bits(own)[3]
        assert (bits(view.kv_pages) == after).all()


def test_one_program_for_each_padded_size() -> None:
    programs: Any = cache_programs  # what JAX tells of compiled programs has no type
    ours, _, _ = caches(("v3", "f32", False))
    sizes = [getattr(programs, name)._cache_size() for name in ("exported", "imported")]
    for count in (1, 2, 5):
        block = ours.export_pages(range(count), [PAGE] * count)
        ours = ours.import_pages(range(count), [np.asarray(own)[:count] for own in block])
    assert programs.exported._cache_size() <= sizes[0] + 1
    assert programs.imported._cache_size() <= sizes[1] + 1


def test_what_does_not_fit_is_refused_and_nothing_written() -> None:
    """R1, SWAP-2."""
    ours, theirs, noise = caches(("v3", "f32", False))
    scaled, _, _ = caches(("v3", "int8", True))
    good = [np.asarray(own) for own in theirs.export_pages([1], [PAGE])]
    for cache in (ours, theirs):
        for block, kind in (
            (good[:1], ValueError),
            ([own[:, :2] for own in good], ValueError),
            ([own[:0] for own in good], ValueError),
            ([own.view(np.int32) for own in good], TypeError),
            ([(own, own) for own in good], (TypeError, ValueError)),
            (1, TypeError),
        ):
            with pytest.raises(kind, match=r"\[[A-Z]+-?\d+\]$"):
                cache.import_pages([1], block)
        with pytest.raises(ValueError, match=r"\[R1\]$"):
            cache.export_pages([1, 2], [1])
        with pytest.raises(TypeError, match=r"\[R1\]$"):
            cache.export_pages([True], [1])
        assert all((bits(view.kv_pages) == before[0]).all() for view, before in zip(cache.views, noise, strict=True))
    with pytest.raises(TypeError, match=r"\[SWAP-2\]$"):
        scaled.import_pages([1], good)
