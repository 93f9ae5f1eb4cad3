"""SEC-3, MAN-14: damaged documents: both packages take the same ones, refuse the others, and believe no size."""

import json
import random
import tracemalloc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.conformance.machines.document_damage import damaged
from kvproof.spec.clauses import clause_of_message
from kvproof.spec.declarations import (
    CacheGroupSpec,
    CacheSalt,
    FullAttentionSpec,
    MambaSpec,
    MultimodalItem,
    Request,
    SlidingWindowSpec,
)

REQUESTS = [
    Request("a", list(range(9)), [CacheSalt("salt"), MultimodalItem(b"c", 1, 3)]),
    Request("b", [*range(6), 9, 9, 9]),
    Request("c", list(range(9))),
]
GROUPS = [
    CacheGroupSpec(FullAttentionSpec(2, 1, 1, "float32"), ["x", "y"]),
    CacheGroupSpec(SlidingWindowSpec(2, 1, 1, "bfloat16", 3)),
    CacheGroupSpec(FullAttentionSpec(2, 1, 2, "float32")),
    CacheGroupSpec(MambaSpec(4, ((3,), (2, 2)), ("float32", "float16"), "align")),
]


def used_manager() -> Any:
    """A manager with live requests that share, what was freed, pins, priorities, copies and events."""
    options: dict[str, Any] = {"enable_events": True, "counter_sampling": 1, "max_pinned_pages": 20}
    manager = fast.CacheManager(80, GROUPS, 32, hash_seed=b"s", num_host_pages=20, **options)
    for request in REQUESTS:
        pages, found = manager.get_computed_pages(request)
        assert manager.allocate_slots(request, 8 - found, found, pages) is not None
        request.num_computed_tokens = 8
        assert manager.allocate_slots(request, 1) is not None
    manager.advance_time(1)
    manager.pin_prefix(REQUESTS[2])
    manager.set_prefix_priority(REQUESTS[1], 2, None, 9)
    manager.free(REQUESTS[1], 4)
    REQUESTS[2].num_computed_tokens = 9
    for swap in (manager.swap_out, manager.swap_in):
        plan = swap(REQUESTS[2])
        assert plan is not None
        manager.swap_done(plan.swap_id)
    manager.check()
    return manager


def _step() -> Any:
    return fast.RaggedPagesMetadata.create_empty(4, 3, 2, 8).replace(num_slices_per_kv_cache_update_page=4)


def _caches() -> list[Any]:
    sizes: dict[str, Any] = {"page_size": 2, "num_pages": 3}
    kinds = [fast.RaggedPagesCacheMetaData(2, 32, 1, 8, 8, _kvdtype_str=kind, **sizes) for kind in ("bf16", "int8")]
    return [fast.RaggedPagesCache.init_cache(None, kind, fast.AxisRules()) for kind in kinds]


MANAGER = used_manager()
CACHES = _caches()
TEXTS: dict[str, list[str]] = {
    "snapshot": [json.dumps(MANAGER.snapshot())],
    "events": [fast.events_to_json(MANAGER.take_events())],
    "RaggedPagesMetadata": [_step().to_json()],
    "RaggedPagesCacheMetaData": [cache.metadata.to_json() for cache in CACHES],
    "RaggedPagesCacheView": [cache.views[0].to_json() for cache in CACHES],
    "RaggedPagesCache": [cache.to_json() for cache in CACHES],
}


def again(package: ModuleType, kind: str, text: str) -> str:
    """Reads a document and writes it again."""
    if kind == "snapshot":
        restored = package.CacheManager.restore(json.loads(text), REQUESTS)
        restored.check()
        return json.dumps(restored.snapshot())
    if kind == "events":
        return str(package.events_to_json(package.events_from_json(text)))
    return str(getattr(package, kind).from_json(text).to_json())


def outcome(package: ModuleType, kind: str, text: str) -> Any:
    """What comes of a document: the document again, or None where it is refused, which must be by a clause's label."""
    tracemalloc.start()
    try:
        found, message = json.loads(again(package, kind, text)), "[SEC-3]"
    except (ValueError, TypeError, IndexError) as error:
        found, message = None, str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert clause_of_message(message) in message, message
    assert peak < (2 << 20) + 100 * len(text), f"{peak} bytes for a document of {len(text)}"
    return found


@pytest.mark.parametrize("kind", TEXTS)
def test_the_documents_are_taken_as_they_are(kind: str) -> None:
    for text in TEXTS[kind]:
        assert outcome(spec, kind, text) == outcome(fast, kind, text) == json.loads(text)


@pytest.mark.parametrize("kind", TEXTS)
@settings(max_examples=40, deadline=None)  # machine snapshots damages snapshots, too
@given(number=st.integers(0, 2**32 - 1))
def test_both_take_the_same_damaged_documents(kind: str, number: int) -> None:
    """SEC-3, MAN-14: what one refuses the other refuses; what both take is the same then."""
    drawn = random.Random(number)
    document, what = damaged(json.loads(drawn.choice(TEXTS[kind])), drawn.randrange)
    text = json.dumps(document)
    assert outcome(spec, kind, text) == outcome(fast, kind, text), what


def _with(kind: str, change: Callable[[Any], object]) -> str:
    document = json.loads(TEXTS[kind][0])
    change(document)
    return json.dumps(document)


def _tables(**fields: Any) -> Callable[[Any], object]:
    return lambda document: document["pages_tables"].update(fields)


CLAIMS: dict[str, tuple[str, str]] = {
    "pages of a manager": ("snapshot", _with("snapshot", lambda shot: shot.update(num_pages=2**40))),
    "pages, one more": ("snapshot", _with("snapshot", lambda shot: shot.update(num_pages=shot["num_pages"] + 1))),
    "a slot": ("snapshot", _with("snapshot", lambda shot: shot["requests"][0].update(slot=2**40))),
    "a page": ("snapshot", _with("snapshot", lambda shot: shot["free"].append(2**31))),
    "float tables": ("RaggedPagesMetadata", _with("RaggedPagesMetadata", _tables(dtype="float32"))),
    "a large table": ("RaggedPagesMetadata", _with("RaggedPagesMetadata", _tables(shape=[2**20, 2**20]))),
    "an empty table": ("RaggedPagesMetadata", _with("RaggedPagesMetadata", _tables(shape=[0, 2**39, 2**39], data=""))),
    "letters beyond ASCII": ("RaggedPagesMetadata", _with("RaggedPagesMetadata", _tables(data="\u00e4AAA"))),
    "format 1.0": ("events", _with("events", lambda document: document.update(format=1.0))),
    "nested deeply": ("events", "[" * 100_000),
    "a long number": ("events", '{"format": ' + "9" * 5_000 + "}"),
    "scales that are integers": (
        "RaggedPagesCacheView",
        json.dumps(
            {
                **(view := json.loads(TEXTS["RaggedPagesCacheView"][1])),
                "kv_pages": view["kv_pages"] | {"scales": view["kv_pages"]["scales"] | {"dtype": "int32"}},
            }
        ),
    ),
}


@pytest.mark.parametrize("what", CLAIMS)
def test_claims_are_refused(what: str) -> None:
    """SEC-3: what a document claims and doesn't hold, and arrays of another type than they must be."""
    kind, text = CLAIMS[what]
    assert outcome(spec, kind, text) is None
    assert outcome(fast, kind, text) is None
