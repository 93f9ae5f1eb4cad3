"""SEC-3, MAN-14, MAN-12, SWAP-2: documents as both packages write them today, kept byte for byte in ``tests/golden``.

The format stands once, in the declarations; so the packages can't disagree about it, and these files are what a change
to it is held against. A file that is refused or written differently after a change needs a new version of the format.
"""

import base64
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kvproof import fast, spec
from kvproof.spec.declarations import (
    CacheCleared,
    CacheGroupSpec,
    CacheSalt,
    ChunkedLocalAttentionSpec,
    ExtraKey,
    FullAttentionSpec,
    LoraAdapter,
    MambaSpec,
    MLAAttentionSpec,
    MultimodalItem,
    PromptEmbeddings,
    Request,
    SlidingWindowSpec,
    WeightsVersion,
)

GOLDEN = Path(__file__).parent / "golden"
PACKAGES = {"spec": spec, "fast": fast}
KEY = bytes(range(16))
GROUPS = [
    CacheGroupSpec(FullAttentionSpec(2, 1, 8, "bfloat16", 4), ["a", "b"], True),
    CacheGroupSpec(SlidingWindowSpec(2, 1, 8, "float32", 3)),
    CacheGroupSpec(ChunkedLocalAttentionSpec(2, 1, 8, "float16", 4)),
    CacheGroupSpec(MLAAttentionSpec(2, 1, 8, "float8_e4m3fn")),
    CacheGroupSpec(MambaSpec(4, ((3,), (2, 2)), ("float32", "float16"), "align")),
]
EXTRA_KEYS: list[ExtraKey] = [
    CacheSalt("salt"),
    LoraAdapter("lora"),
    WeightsVersion("v1"),
    MultimodalItem(b"picture", 1, 3),
    PromptEmbeddings(b"prompt", 4, 1),
]


def requests() -> list[Request]:
    """A request with extra keys of every kind, and two that share their first tokens."""
    return [Request("a", [*range(5)], EXTRA_KEYS), Request("b", [0, 1, 2, 9, 9]), Request("c", [*range(5)])]


def used_manager(package: ModuleType, own: list[Request], interval: int | None = None) -> Any:
    """A manager with every kind of group, live requests, a freed one, a pin, priorities, copies, events, counts."""
    options: dict[str, Any] = {"enable_events": True, "counter_sampling": 1, "max_pinned_pages": 20}
    options["retention_interval"] = interval
    manager = package.CacheManager(
        34, GROUPS, 16, hash_seed=b"s", num_host_pages=4, max_pinned_pages_per_salt=18, **options
    )
    for request in own:
        pages, found = manager.get_computed_pages(request)
        assert manager.allocate_slots(request, 4 - found, found, pages) is not None
        request.num_computed_tokens = 4
        assert manager.allocate_slots(request, 1) is not None
    manager.advance_time(1.5)
    assert manager.pin_prefix(own[2]) is not None
    assert manager.set_prefix_priority(own[1], 2, None, 9)
    manager.free(own[1], 4)
    manager.check()
    return manager


def prompts() -> list[Request]:
    """Two that go on from the first amid its pages."""
    return [Request("first", range(5)), Request("on", [*range(5), 7, 8]), Request("away", [0, 1, 2, 9])]


def copying_manager(package: ModuleType, own: list[Request]) -> Any:
    """A manager that left an unfilled page and queues copies of its tokens and of a full page's (MAN-17)."""
    manager = package.CacheManager(24, GROUPS[:2], 16, hash_seed=b"s", match_unit=1)
    for request in own:
        pages, found = manager.get_computed_pages(request)
        assert manager.allocate_slots(request, request.num_tokens - found, found, pages) is not None
        if request is own[0]:
            manager.free(request)
    manager.check()
    return manager


def exported(package: ModuleType) -> bytes:
    """A signed file of a prefix, of one group with two kinds of arrays."""
    header = {
        "kvproof": "exported prefix",
        "version": 1,
        "model": "a model",
        "root": "00" * 32,
        "groups": [],
        "caches": [],
        "num_tokens": 8,
        "keys": [["11" * 32] * 2],
    }
    arrays = {"0.0.0": np.arange(24, dtype=np.uint16).reshape(2, 4, 3), "0.0.1": np.arange(2, dtype=np.uint32)}
    data: bytes = package.ExportedPrefix(header, arrays).to_bytes(KEY)
    return data


def step(package: ModuleType) -> str:
    """The arrays of an empty step."""
    metadata = package.RaggedPagesMetadata.create_empty(4, 3, 2, 8).replace(num_slices_per_kv_cache_update_page=4)
    return str(metadata.to_json())


def cache(package: ModuleType, dtype: str) -> str:
    """A cache, its metadata and its layers in it."""
    sizes: dict[str, Any] = {"page_size": 1, "num_pages": 2}
    metadata = package.RaggedPagesCacheMetaData(1, 4, 1, 8, 8, _kvdtype_str=dtype, **sizes)
    return str(package.RaggedPagesCache.init_cache(None, metadata, package.AxisRules(pages="data")).to_json())


def written(package: ModuleType, name: str) -> str:
    """A document, written by a package that made what is in it."""
    match name:
        case "snapshot":
            return json.dumps(used_manager(package, requests()).snapshot())
        case "snapshot_retention":
            return json.dumps(used_manager(package, requests(), 0).snapshot())
        case "snapshot_unit":
            return json.dumps(copying_manager(package, prompts()).snapshot())
        case "events":
            return str(package.events_to_json([*used_manager(package, requests()).take_events()[-8:], CacheCleared()]))
        case "step":
            return step(package)
        case "cache_bf16" | "cache_int8":
            return cache(package, name.removeprefix("cache_"))
    return json.dumps({"file": base64.b64encode(exported(package)).decode()})


def again(package: ModuleType, name: str, text: str) -> str:
    """A document, read by a package and written again."""
    document = json.loads(text)
    match name:
        case "snapshot" | "snapshot_retention" | "snapshot_unit":
            restored = package.CacheManager.restore(document, prompts() if name == "snapshot_unit" else requests())
            restored.check()
            return json.dumps(restored.snapshot())
        case "events":
            return str(package.events_to_json(package.events_from_json(text)))
        case "prefix":
            prefix = package.ExportedPrefix.from_bytes(base64.b64decode(document["file"]), key=KEY)
            return json.dumps({"file": base64.b64encode(prefix.to_bytes(KEY)).decode()})
    return str(getattr(package, document["kind"]).from_json(text).to_json())


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(
    "name", ["snapshot", "snapshot_retention", "snapshot_unit", "events", "step", "cache_bf16", "cache_int8", "prefix"]
)
def test_documents_are_what_they_were(name: str, package: str) -> None:
    """SEC-3: what was written by an earlier version is read, and what is written is the same, byte for byte."""
    text = (GOLDEN / f"{name}.json").read_text().rstrip("\n")
    assert written(PACKAGES[package], name) == text
    assert again(PACKAGES[package], name, text) == text


def test_every_golden_document_is_looked_at() -> None:
    names = {"snapshot", "snapshot_retention", "snapshot_unit", "events", "step", "cache_bf16", "cache_int8", "prefix"}
    assert {path.stem for path in GOLDEN.iterdir()} == names
