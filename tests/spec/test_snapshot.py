"""MAN-14: snapshots of managers, and managers that go on from them."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from kvproof import spec
from kvproof.spec import FullAttentionSpec, MambaSpec

from ..strategies import PlainRequest
from .driven_managers import DrivenManagers, full, states, weak, window


def _objects(manager: spec.CacheManager) -> list[Any]:
    """The engine's objects of the requests that a manager knows."""
    return [*manager.prefixes.known.values(), *(live.request for live in manager.coordinator.live.by_id.values())]


def _restored(manager: spec.CacheManager, **options: Any) -> spec.CacheManager:
    """A manager that went through JSON."""
    return spec.CacheManager.restore(json.loads(json.dumps(manager.snapshot())), _objects(manager), **options)


# -- Any calls --------------------------------------------------------------------------------------


class RestoredGoesOn(DrivenManagers):
    """One manager is restored again and again, the other one never: they answer alike, and so do their snapshots."""

    num_managers = 2

    @rule()
    def restore(self) -> None:
        self.managers[1] = _restored(self.managers[1], hash_function=self.manager.page_pool.hash_function)
        self.managers[1].check()
        assert self.managers[1].snapshot() == self.managers[0].snapshot()
        self.call(_shown)


def _shown(manager: spec.CacheManager) -> object:
    """What a manager and its pool show."""
    pool = manager.page_pool
    return (
        [(page.ref_cnt, page.page_hash) for page in pool.pages],
        [(pool.get_priority(page.page_id), pool.pins_of(page.page_id)) for page in pool.pages],
        [page.page_id for page in pool.free_page_queue.get_all_free_pages()],
        {key: [page.page_id for page in pages] for key, pages in pool.cached_page_hash_to_page.items()},
        manager.req_to_page_hashes,
        manager.counters,
        manager.usage,
        (pool.now, pool.num_pinned_pages),
    )


RestoredGoesOnTest = RestoredGoesOn.TestCase
RestoredGoesOnTest.settings = settings(max_examples=100)


# -- One state, in every part -------------------------------------------------------------------------

SALT = "a salt that nobody may read"


def _busy() -> spec.CacheManager:
    """Request a is live with a state in the middle of its third page, b was preempted and its prefix is pinned."""
    manager = spec.CacheManager(
        9,
        [full(2, is_eagle=True), states(2)],
        12,
        use_eagle=True,
        hash_seed=b"s",
        enable_events=True,
        counter_sampling=1,
        max_pinned_pages=2,
        retention_interval=None,
    )
    salted = PlainRequest("a", [1, 2, 3, 4, 5], [spec.CacheSalt(SALT), spec.MultimodalItem(b"\x07", 1, 2)])
    plain = PlainRequest("b", [1, 2, 3])
    manager.allocate_slots(salted, 2)
    salted.num_computed_tokens = 2
    manager.allocate_slots(salted, 3)
    manager.take_events()
    manager.allocate_slots(plain, 2)
    manager.free(plain)
    manager.pin_prefix(plain)
    manager.set_prefix_priority(salted, 5, None, 7)
    manager.advance_time(3)
    return manager


def test_the_format_is_the_one_that_is_written_down() -> None:
    """MAN-14: every part of it, in a state that has something in each."""
    extra_keys = [
        {"kind": "CacheSalt", "fingerprint": hashlib.sha256(SALT.encode()).hexdigest()},
        {"kind": "MultimodalItem", "content": "07", "offset": 1, "length": 2},
    ]
    root = spec.init_none_hash(b"s")
    digest = spec.hash_page_tokens(spec.sha256, None, [1, 2], none_hash=root).hash_value.hex()
    stored = {"kind": "PageStored", "page_hash": digest, "parent_hash": None, "token_ids": [1, 2], "extra_keys": None}
    assert _busy().snapshot() == {
        "kvproof": "manager snapshot",
        "version": 2,
        "num_pages": 9,
        "max_model_len": 12,
        "enable_caching": True,
        "use_eagle": True,
        "unhashed_first": False,
        "enable_events": True,
        "counter_sampling": 1,
        "max_pinned_pages": 2,
        "max_pinned_pages_per_salt": None,
        "num_host_pages": 0,
        "none_hash": root.hex(),
        "groups": [
            {
                "kind": "FullAttentionSpec",
                "page_size": 2,
                "num_kv_heads": 1,
                "head_size": 1,
                "dtype": "float32",
                "head_size_v": None,
                "layer_names": None,
                "is_eagle_group": True,
            },
            {
                "kind": "MambaSpec",
                "page_size": 2,
                "shapes": [[2, 3], [4]],
                "dtypes": ["float32", "float16"],
                "mamba_cache_mode": "align",
                "page_size_padded": None,
                "layer_names": None,
                "is_eagle_group": False,
            },
        ],
        "now": 3.0,
        "free": [8],
        "priorities": [[1, 5, 7.0], [2, 5, 7.0]],
        "contents": [[-1, [1, 2], extra_keys], [0, [3, 4], extra_keys], [-1, [1, 2], None]],
        "cached": [[0, 1, 0], [1, 2, 0], [0, 3, 1], [0, 6, 2], [1, 7, 2]],
        "requests": [
            {
                "id": "a",
                "slot": 0,
                "num_promised": 5,
                "num_slots": 5,
                "num_computed": 2,
                "groups": [
                    {"pages": [1, 3, 4], "num_hits": 0, "num_published": 2, "states": []},
                    {"pages": [2, 0, 5], "num_hits": 0, "num_published": 2, "states": [[0, 2], [2, 5]]},
                ],
            }
        ],
        "known": ["a", "b"],
        "given_back": [["b", 2]],
        "pins": [{"id": 0, "num_tokens": 2, "pages": [[6], [7]]}],
        "next_pin_id": 1,
        "next_swap_id": 0,
        "copies": [["a", 1, 2, 5]],
        "events": [stored | {"group_id": 0, "page_id": 6}, stored | {"group_id": 1, "page_id": 7}],
        "counters": {
            "requests": 2,
            "queried_tokens": 8,
            "hit_tokens": 0,
            "evictions": 0,
            "preemptions": 0,
            "preempted_tokens": 0,
            "page_lifetimes": [0] * 48,
            "reuse_gaps": [2] + [0] * 47,
        },
        "clock": 7,
        "stored_at": [[1, 2], [2, 2], [3, 5], [6, 7], [7, 7]],
        "freed_at": [],
    }


def test_no_salt_is_in_a_snapshot_or_in_what_refuses_one() -> None:
    """SEC-2."""
    manager = _busy()
    snapshot = manager.snapshot()
    assert SALT not in json.dumps(snapshot)
    snapshot["cached"].pop()
    with pytest.raises(ValueError, match=r"\[MAN-14\]$") as refused:
        spec.CacheManager.restore(snapshot, _objects(manager))
    assert SALT not in str(refused.value)


def test_what_was_to_be_handed_out_is_handed_out_by_the_restored_one() -> None:
    """MAN-12, MAN-13, PIN-1: copies, events and pins outlive the process; a preemption is counted after it."""
    manager = _busy()
    restored = _restored(manager)
    assert restored.take_page_copies() == manager.take_page_copies() != []
    assert restored.take_events() == manager.take_events() != []
    restored.unpin_prefix(0)
    known = manager.prefixes.known["b"]
    pages, found = restored.get_computed_pages(known)
    assert (pages.get_page_ids(), found) == (([], []), 0), "with Eagle the page after it would have to be cached"
    assert restored.allocate_slots(known, 1) is not None
    assert restored.counters.preempted_tokens == 2
    restored.check()


def test_groups_come_back_with_all_their_fields() -> None:
    """MAN-7, MAN-14: dtypes by name, numpy's and ml_dtypes', layer names, padding."""
    groups = [
        spec.CacheGroupSpec(FullAttentionSpec(np.int64(2), 1, 3, ml_dtypes.bfloat16, 5), ("a", "b")),  # type: ignore[arg-type]
        spec.CacheGroupSpec(FullAttentionSpec(2, 1, 3, np.dtype(ml_dtypes.float8_e4m3fn)), ["c"]),
        spec.CacheGroupSpec(MambaSpec(4, ((2,), ()), (np.float32, "int8"), "none", 16), ["d"]),
    ]
    restored = _restored(spec.CacheManager(4, groups, 8))
    dtypes = [group["dtype"] for group in restored.snapshot()["groups"][:2]]
    assert dtypes == ["bfloat16", "float8_e4m3fn"]
    for before, after in zip(groups, restored.kv_cache_groups, strict=True):
        assert after.kv_cache_spec.page_size_bytes == before.kv_cache_spec.page_size_bytes
        assert list(after.layer_names or ()) == list(before.layer_names or ())
        assert type(after.kv_cache_spec) is type(before.kv_cache_spec)


def test_another_hash_function_is_given_again() -> None:
    """HASH-1, R2: also one under which different contents have one key."""
    manager = spec.CacheManager(20, [full(1)], 12, hash_seed=b"s", hash_function=weak)
    for name, tokens in (("a", [1, 5, 9]), ("b", [5, 1, 9]), ("c", [9, 9])):
        manager.allocate_slots(PlainRequest(name, tokens), len(tokens))
    restored = _restored(manager, hash_function=weak)
    for tokens in ([1, 5, 9, 0], [5, 1, 9, 0], [9, 9, 1], [9, 1]):
        pages, found = manager.get_computed_pages(PlainRequest("d", tokens))
        again, refound = restored.get_computed_pages(PlainRequest("d", tokens))
        assert (again.get_page_ids(), refound) == (pages.get_page_ids(), found)
        assert found == (1 if tokens == [9, 1] else len(tokens) - 1)
    assert _shown(restored) == _shown(manager)


def test_pages_that_are_held_by_hand_are_in_no_snapshot() -> None:
    """MAN-14: nobody could tell a restored manager who holds them."""
    manager = _busy()
    page = manager.page_pool.get_new_pages(1)
    with pytest.raises(ValueError, match=r"page 8 is held 1 times, .* 0 times.*\[MAN-14\]$"):
        manager.snapshot()
    manager.page_pool.free_pages(page)
    assert manager.snapshot()["free"] == [8]


# -- What does not fit (MAN-14) -----------------------------------------------------------------------

MISFITS: dict[str, tuple[Callable[[list[Any]], list[Any]], str]] = {
    "a live request is missing": (lambda objects: [o for o in objects if o.request_id != "a"], "'a', a request that"),
    "a known request is missing": (lambda objects: [o for o in objects if o.request_id != "b"], "'b', a request that"),
    "another request of its id": (
        lambda objects: [PlainRequest("a", [9, 9, 9, 9, 9]), *objects[1:2]],
        "page 1, which holds other tokens",
    ),
    "a request that lost tokens": (lambda objects: [PlainRequest("a", [1]), *objects[1:2]], "holds other tokens"),
    "two objects of one id": (lambda objects: [*objects, PlainRequest("b", [1])], "two objects of the id 'b'"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_requests_that_do_not_fit_are_refused(misfit: str) -> None:
    """MAN-14, MAN-6."""
    manager = _busy()
    choosing, message = MISFITS[misfit]
    with pytest.raises(ValueError, match=rf"{message}.*\[MAN-14\]$"):
        spec.CacheManager.restore(manager.snapshot(), choosing(_objects(manager)))


def test_what_is_no_argument_is_refused() -> None:
    """R1."""
    manager = _busy()
    with pytest.raises(TypeError, match=r"snapshot must be a mapping, not list \[R1\]$"):
        spec.CacheManager.restore([])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"request has no .*\[R1\]$"):
        spec.CacheManager.restore(manager.snapshot(), ["a"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"hash_function=5 must be callable \[R1\]$"):
        spec.CacheManager.restore(manager.snapshot(), _objects(manager), hash_function=5)  # type: ignore[arg-type]


DAMAGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no header": (lambda s: s.pop("kvproof"), "kvproof must be 'manager snapshot'"),
    "another header": (lambda s: s.update(kvproof="trace"), "kvproof must be"),
    "a later version": (lambda s: s.update(version=3), "version must be 2"),
    "a part too few": (lambda s: s.pop("copies"), "an object with the keys"),
    "a part too many": (lambda s: s.update(more=1), "an object with the keys"),
    "more pages than there are": (lambda s: s.update(num_pages=10**12), "num_pages is 1000000000000, more than"),
    "a page fewer": (lambda s: s.update(num_pages=8), r"free\[0\] must be in \[1, 8\)"),
    "a page more": (lambda s: s.update(num_pages=10), "POOL-2"),
    "a group that contradicts itself": (lambda s: s["groups"][0].update(head_size=0), r"is refused: .*\[MAN-7\]"),
    "a group of no kind": (lambda s: s["groups"][0].update(kind="str"), r"groups\[0\] must be of a kind in"),
    "caching without groups": (lambda s: s.update(groups=[]), "enable_caching is true without a group"),
    "no digest": (lambda s: s.update(none_hash="x"), "none_hash must be bytes as lower-case hexadecimal digits"),
    "a page free and held": (lambda s: s.update(free=[1, 8]), "POOL-2"),
    "a page free twice": (lambda s: s.update(free=[8, 8]), "free names a page twice"),
    "the null page free": (lambda s: s.update(free=[8, 0]), r"free\[1\] must be in \[1, 9\)"),
    "a content before its parent": (lambda s: s["contents"][0].__setitem__(0, 1), r"contents\[0\]\[0\] must be in"),
    "a content before the root": (lambda s: s["contents"][0].__setitem__(0, -2), r"contents\[0\]\[0\] must be in"),
    "contents of two sizes": (lambda s: s["contents"][1].__setitem__(1, [3]), "another number of tokens"),
    "a content of another size": (lambda s: s["contents"][2].__setitem__(1, [3]), "what group 0 can't cache"),
    "a token that no int32 holds": (
        lambda s: s["contents"][2].__setitem__(1, [3, 2**31]),
        r"contents\[2\]\[1\]\[1\]",
    ),
    "an extra key of no kind": (lambda s: s["contents"][0][2].append({"kind": "int"}), "must be of a kind in"),
    "a text that is none": (
        lambda s: s["contents"][2].__setitem__(2, [{"kind": "LoraAdapter", "name": "\ud800"}]),
        "must be Unicode text",
    ),
    "a page cached twice": (lambda s: s["cached"].append([0, 1, 0]), "names page 1 twice"),
    "a page cached that is written": (
        lambda s: (s["cached"].append([0, 4, 1]), s["stored_at"].insert(3, [4, 5])),
        "MAN-3",
    ),
    "a page that holds another's tokens": (
        lambda s: s["cached"][0].__setitem__(2, 1),
        "page 1, which holds other tokens",
    ),
    "cached pages with caching off": (lambda s: s.update(enable_caching=False), "with caching off"),
    "a request twice": (lambda s: s["requests"].append(s["requests"][0]), "the second one of the id 'a'"),
    "fewer slots than promised": (lambda s: s["requests"][0].update(num_slots=4), "MAN-2"),
    "a state that is elsewhere": (lambda s: s["requests"][0]["groups"][1].update(states=[[0, 2], [2, 4]]), "MAN-13"),
    "lists of another group": (lambda s: s["requests"][0]["groups"].append({"pages": []}), "must be a list of 2"),
    "a pin beyond the bound": (lambda s: s.update(max_pinned_pages=1), "PIN-1"),
    "a pin of the future": (lambda s: s.update(next_pin_id=0), r"id must be in \[0, 0\)"),
    "a pin's tokens": (lambda s: s["pins"][0].update(num_tokens=4), "PIN-1"),
    "a time that is none": (lambda s: s.update(now=float("nan")), "now must be a finite number"),
    "a time beyond all": (lambda s: s.update(now=10**400), "now must be a finite number"),
    "a priority that has ended": (lambda s: s.update(now=8), "PIN-2"),
    "a known id twice": (lambda s: s.update(known=["a", "b", "b"]), "'b', which is named twice"),
    "given back and unknown": (lambda s: s.update(known=["a"]), "MAN-12"),
    "a copy of nobody": (lambda s: s["copies"][0].__setitem__(0, "b"), "'b', which is not live"),
    "an event of no kind": (lambda s: s["events"].append({"kind": "PageMoved"}), "must be of a kind in"),
    "events that nobody asked for": (lambda s: s.update(enable_events=False), "MAN-12"),
    "a bucket too few": (lambda s: s["counters"]["reuse_gaps"].pop(), "reuse_gaps must be a list of 48"),
    "a counter that is no number": (lambda s: s["counters"].update(requests=True), "requests must be an integer"),
    "a clock behind": (lambda s: s.update(clock=6), "MAN-12"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_snapshot_is_refused(damage: str) -> None:
    """MAN-14, SEC-3: what is wrong is named."""
    manager = _busy()
    snapshot = manager.snapshot()
    damaging, message = DAMAGES[damage]
    damaging(snapshot)
    with pytest.raises(ValueError, match=rf"(?s)^snapshot: .*{message}.*\[(MAN-14|SEC-3)\]$"):
        spec.CacheManager.restore(snapshot, _objects(manager))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in JSON."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


_ANYTHING = st.sampled_from([None, -1, 0, 1, 2, 3, 9, 2**40, True, "", "a", "b", 1.5, [], [0], [[0, 0]], {}, {"a": 1}])


@given(data=st.data())
@settings(max_examples=300)
def test_whatever_was_changed_it_is_refused_or_holds_together(data: st.DataObject) -> None:
    """MAN-14, SEC-3: no other error, and no manager that fails its check or can't be restored again."""
    manager = _busy()
    snapshot = copy.deepcopy(manager.snapshot())
    container, key = data.draw(st.sampled_from(list(_places(snapshot))))
    match data.draw(st.sampled_from(["replace", "replace", "remove", "repeat"])):
        case "remove":
            del container[key]
        case "repeat" if isinstance(container, list):
            container.insert(key, container[key])
        case _:
            container[key] = data.draw(_ANYTHING)
    try:
        restored = spec.CacheManager.restore(snapshot, _objects(manager))
    except ValueError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert refused.endswith(("[MAN-14]", "[SEC-3]"))
        return
    restored.check()
    assert _restored(restored).snapshot() == restored.snapshot()


def test_an_empty_manager_comes_back_empty() -> None:
    """MAN-14: without groups, and with caching off."""
    for manager in (spec.CacheManager(4, [], 8), spec.CacheManager(4, [window(2, 3)], 8, enable_caching=False)):
        request = PlainRequest("r", [1, 2, 3])
        manager.allocate_slots(request, 3)
        restored = _restored(manager)
        assert restored.snapshot() == manager.snapshot()
        restored.free(request)
        assert restored.usage == 0
