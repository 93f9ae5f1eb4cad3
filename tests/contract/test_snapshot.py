"""MAN-14: snapshots of managers, and managers of either package that go on from them.

That a manager goes on after a restore as if without, and by way of the other package, the machine `snapshots` draws;
what the format is, `test_golden_documents` holds.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kvproof import fast, spec
from kvproof.conformance.machines.document_damage import ODD
from kvproof.spec import FullAttentionSpec, MambaSpec

from ..cache_groups import chunked, full, states, weak, window
from ..strategies import PlainRequest

PACKAGES: Any = {"spec": spec.CacheManager, "fast": fast.CacheManager}


def _objects(manager: Any) -> list[Any]:
    """The engine's objects of the requests that a manager knows."""
    live = manager.coordinator.live
    if isinstance(manager, spec.CacheManager):
        requests = [own.request for own in live.by_id.values()]
    else:
        requests = [own for own in live.requests if own is not None]
    requests += manager.prefixes.known.values()
    return list({request.request_id: request for request in requests}.values())


def _restored(manager: Any, package: str = "", **options: Any) -> Any:
    """A manager of a package, by default of the same one, from a snapshot that went through JSON."""
    snapshot = json.loads(json.dumps(manager.snapshot()))
    return PACKAGES.get(package, type(manager)).restore(snapshot, _objects(manager), **options)


# -- One state, in every part -------------------------------------------------------------------------

SALT = "a salt that nobody may read"


def _busy(package: ModuleType, **options: Any) -> Any:
    """Request a is live with a state amid its third page, b was preempted and its prefix pinned, c shares a's pages."""
    manager = package.CacheManager(
        16,
        [full(2, is_eagle=True), states(2)],
        12,
        use_eagle=True,
        hash_seed=b"s",
        enable_events=True,
        counter_sampling=1,
        max_pinned_pages=2,
        **({"retention_interval": None} | options),
    )
    extra_keys = (spec.CacheSalt(SALT), spec.MultimodalItem(b"\x07", 1, 2))
    salted, plain = PlainRequest("a", [1, 2, 3, 4, 5], extra_keys), PlainRequest("b", [1, 2, 3])
    manager.allocate_slots(salted, 2)
    salted.num_computed_tokens = 2
    manager.allocate_slots(salted, 3)
    manager.take_events()
    manager.allocate_slots(plain, 2)
    manager.free(plain)
    manager.pin_prefix(plain)
    manager.set_prefix_priority(salted, 5, None, 7)
    manager.advance_time(3)
    twin = PlainRequest("c", [1, 2, 3, 4, 9], extra_keys)
    pages, hit = manager.get_computed_pages(twin)
    assert manager.allocate_slots(twin, 3, hit, pages) is not None
    assert hit == 2
    return manager


def test_the_two_packages_tell_the_same() -> None:
    """MAN-14."""
    ours, theirs = _busy(fast).snapshot(), _busy(spec).snapshot()
    assert ours == theirs
    assert _restored(_busy(spec)).snapshot() == ours == _restored(_busy(fast), "spec").snapshot()
    assert {name for name, part in ours.items() if part in ([], None)} == {"freed_at", "max_pinned_pages_per_salt"}


@pytest.mark.parametrize("interval", [None, 0, 2])
def test_a_live_request_keeps_its_junction(package: ModuleType, interval: int | None) -> None:
    """RET-2, MAN-14: by an interval of None, by which no page is judged, as by any other."""
    groups = [full(2), states(2)]
    manager = package.CacheManager(20, groups, 12, hash_seed=b"s", retention_interval=interval)
    first, second = PlainRequest("a", list(range(9))), PlainRequest("b", [0, 1, 2, 3, 7, 7, 7, 7])
    manager.allocate_slots(first, 9)
    manager.allocate_slots(second, 8)
    assert manager.get_junction(second) == 4
    for route in (["fast"], ["spec"], ["spec", "fast"]):
        again = manager
        for to in route:
            again = _restored(again, to)
            again.check()
        assert again.get_junction(second) == 4


@pytest.mark.parametrize(
    ("groups", "options"),
    [
        ([full(2)], {}),
        ([window(2, 3)], {"enable_caching": False}),
        ([full(2), chunked(2, 4)], {"retention_interval": None}),
    ],
    ids=["full attention", "without caching", "an interval of None"],
)
def test_pages_of_second_class_are_refused_where_none_is_judged(
    package: ModuleType, groups: list[Any], options: dict[str, Any]
) -> None:
    """RET-3, MAN-14: no manager made the document. Only one package refused it."""
    manager = package.CacheManager(9, groups, 12, hash_seed=b"s", **options)
    snapshot = manager.snapshot() | {"version": 3}
    kept: dict[str, Any] = {"interval": None, "second": [], "kept": [], "points": [], "passed": []}
    for name in ("second", "kept"):
        with pytest.raises(ValueError, match=rf"snapshot: retention\.{name} .*\[MAN-14\]$"):
            package.CacheManager.restore(snapshot | {"retention": kept | {name: snapshot["free"][:1]}}, [])


def test_no_salt_is_in_a_snapshot_or_in_what_refuses_one(package: ModuleType) -> None:
    """SEC-2."""
    manager = _busy(package)
    assert SALT not in json.dumps(manager.snapshot())
    for container, key in _places(manager.snapshot()):
        fingerprint = spec.CacheSalt(SALT).fingerprint.hex()
        if container[key] == fingerprint:
            snapshot = json.loads(json.dumps(manager.snapshot()).replace(fingerprint, fingerprint[:-1]))
            with pytest.raises(ValueError, match=r"\[MAN-14\]$") as refused:
                package.CacheManager.restore(snapshot, _objects(manager))
            assert fingerprint[:-1] not in str(refused.value)
            return
    raise AssertionError("a salt's fingerprint is in the snapshot")


def test_what_was_to_be_handed_out_is_handed_out_by_the_restored_one(package: ModuleType) -> None:
    """MAN-12, MAN-13, PIN-1: copies, events and pins outlive the process; a preemption is counted after it."""
    manager = _busy(package)
    restored = _restored(manager)
    assert restored.take_page_copies() == manager.take_page_copies() != []
    assert restored.take_events() == manager.take_events() != []
    assert restored.take_events() == []
    restored.unpin_prefix(0)
    assert restored.allocate_slots(manager.prefixes.known["b"], 1) is not None
    assert restored.counters.preempted_tokens == 2
    restored.check()


def test_groups_come_back_with_all_their_fields(package: ModuleType) -> None:
    """MAN-7, MAN-14: dtypes by name, numpy's and narrow ones, layer names, padding."""
    groups = [
        spec.CacheGroupSpec(FullAttentionSpec(np.int64(2), 1, 3, ml_dtypes.bfloat16, 5), ("a", "b")),  # type: ignore[arg-type]
        spec.CacheGroupSpec(FullAttentionSpec(2, 1, 3, np.dtype(ml_dtypes.float8_e4m3fn)), ["c"]),
        spec.CacheGroupSpec(MambaSpec(4, ((2,), ()), (np.float32, "int8"), "none", 16), ["d"]),
        window(2, 3),
        chunked(2, 3),
    ]
    manager = package.CacheManager(4, groups, 8)
    restored = _restored(manager)
    dtypes = [group["dtype"] for group in restored.snapshot()["groups"][:2]]
    assert dtypes == ["bfloat16", "float8_e4m3fn"]
    for before, after in zip(groups, restored.kv_cache_groups, strict=True):
        assert type(after.kv_cache_spec) is type(before.kv_cache_spec)
        assert after.kv_cache_spec.page_size_bytes == before.kv_cache_spec.page_size_bytes
        assert list(after.layer_names or ()) == list(before.layer_names or ())
    assert restored.snapshot() == manager.snapshot() == _restored(manager, "spec").snapshot()


@pytest.mark.parametrize("to", PACKAGES)
def test_another_hash_function_is_given_again(package: ModuleType, to: str) -> None:
    """HASH-1, R2, POOL-7: also one under which different contents have one key, their pages in their order."""
    manager = package.CacheManager(20, [full(1)], 12, hash_seed=b"s", hash_function=weak)
    for name, tokens in (("a", [5, 1, 9]), ("b", [1, 5, 9]), ("c", [9, 9]), ("d", [5, 1])):
        manager.allocate_slots(PlainRequest(name, tokens), len(tokens))
    restored = _restored(manager, to, hash_function=weak)
    for tokens in ([1, 5, 9, 0], [5, 1, 9, 0], [9, 9, 1], [9, 1]):
        pages, found = manager.get_computed_pages(PlainRequest("e", tokens))
        again, refound = restored.get_computed_pages(PlainRequest("e", tokens))
        assert (again.get_page_ids(), refound) == (pages.get_page_ids(), found)
        assert found == (1 if tokens == [9, 1] else len(tokens) - 1)
    cached = [
        {tuple(key.page_hash): [page.page_id for page in pages] for key, pages in each.items()}
        for each in (own.page_pool.cached_page_hash_to_page for own in (manager, restored))
    ]
    assert cached[0] == cached[1]
    assert restored.snapshot() == manager.snapshot()


def test_keys_that_somebody_asked_for_change_no_snapshot(package: ModuleType) -> None:
    """POOL-7: a pool that keeps keys from some time on is told of as one that keeps none."""
    manager = package.CacheManager(20, [full(1)], 12, hash_seed=b"s")
    for name, tokens in (("a", [1, 5, 9]), ("b", [5, 1, 9]), ("c", [1, 5]), ("d", [5])):
        manager.allocate_slots(PlainRequest(name, tokens), len(tokens))
    before = manager.snapshot()
    key = next(iter(manager.page_pool.cached_page_hash_to_page))
    assert manager.page_pool.get_cached_page(key.page_hash, [0]) is not None
    assert manager.snapshot() == before


def test_contents_that_nothing_is_cached_of_stand_before_those_that_need_them(package: ModuleType) -> None:
    """HASH-3: prefixes go on behind pages that were evicted, in one group and in several."""
    manager = package.CacheManager(60, [window(2, 3), full(2)], 30, hash_seed=b"s")
    stem = list(range(8))
    for name, tail in (("a", [1, 1, 1]), ("b", [2, 2, 2]), ("c", [1, 1, 2, 2])):
        request = PlainRequest(name, [*stem, *tail])
        assert manager.allocate_slots(request, request.num_tokens) is not None
    lost = [pages[1] for pages in manager.get_page_ids("a")] + [pages[1] for pages in manager.get_page_ids("b")]
    manager.evict_pages([*lost, manager.get_page_ids("c")[0][1]])
    if package is fast:
        assert sum(run.holes for run in manager.page_pool.index._runs) == 1
    restored = _restored(manager)
    restored.check()
    assert restored.snapshot() == manager.snapshot() == _restored(manager, "spec").snapshot()


def test_what_was_done_by_hand_is_in_no_snapshot(package: ModuleType) -> None:
    """MAN-14: nobody could tell a restored manager who holds the pages, or of which group they are."""
    manager = _busy(package)
    page = manager.page_pool.get_new_pages(1)
    with pytest.raises(ValueError, match=r"is held 1 times, .* 0 times.*\[MAN-14\]$"):
        manager.snapshot()
    manager.page_pool.cache_full_pages(PlainRequest("d", [7]), page, [], 0, 1, 1, 5)
    manager.page_pool.free_pages(page)
    if package is fast:  # the specification writes it down, and refuses it when it is read
        with pytest.raises(ValueError, match=r"is cached in group 5 for pages of 1 tokens \[MAN-14\]$"):
            manager.snapshot()
    else:
        with pytest.raises(ValueError, match=r"\[MAN-14\]$"):
            _restored(manager)
    manager.evict_pages(page.page_ids)
    assert page.page_ids[0] in manager.snapshot()["free"]


def test_an_empty_manager_comes_back_empty(package: ModuleType) -> None:
    """MAN-14: without groups, and with caching off; a request that comes again is known all the same."""
    for manager in (package.CacheManager(4, [], 8), package.CacheManager(4, [window(2, 3)], 8, enable_caching=False)):
        request = PlainRequest("r", [1, 2, 3])
        manager.allocate_slots(request, 3)
        restored = _restored(manager)
        assert restored.snapshot() == manager.snapshot()
        restored.free(request)
        assert restored.usage == 0
        assert _restored(restored).allocate_slots(request, 3) is not None


# -- What does not fit (MAN-14) -----------------------------------------------------------------------

MISFITS: dict[str, tuple[Callable[[list[Any]], list[Any]], str]] = {
    "a live request is missing": (lambda objects: [o for o in objects if o.request_id != "a"], "'a', a request that"),
    "a known request is missing": (lambda objects: [o for o in objects if o.request_id != "b"], "'b', a request that"),
    "another request of its id": (
        lambda objects: [PlainRequest("a", [9, 9, 9, 9, 9]), *objects[1:]],
        "which is cached with other tokens|page 1, which holds other tokens",
    ),
    "a request that lost tokens": (
        lambda objects: [PlainRequest("a", [1]), *objects[1:]],
        "2 published pages, the request has 1 tokens|page 1, which holds other tokens",
    ),
    "a request that lost its salt": (
        lambda objects: [PlainRequest("a", objects[0].all_token_ids), *objects[1:]],
        "which is cached with other tokens|page 1, which holds other tokens",
    ),
    "two objects of one id": (lambda objects: [*objects, PlainRequest("b", [1])], "two objects of the id 'b'"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_requests_that_do_not_fit_are_refused(package: ModuleType, misfit: str) -> None:
    """MAN-14, MAN-6."""
    manager = _busy(package)
    choosing, message = MISFITS[misfit]
    with pytest.raises(ValueError, match=rf"({message}).*\[MAN-14\]$"):
        package.CacheManager.restore(manager.snapshot(), choosing(_objects(manager)))


def test_man_14_a_policy_of_an_earlier_version_is_refused_by_name(package: ModuleType) -> None:
    """Version 3 did not tell how often pages were hit, version 4 not which were let go before."""
    snapshot = package.CacheManager(8, [full(2)], 16, eviction="reuse").snapshot()
    assert snapshot["version"] == 5
    for version in (3, 4):
        with pytest.raises(ValueError, match=r"snapshot: version must be 5 .*\[SEC-3\]$"):
            package.CacheManager.restore({**snapshot, "version": version})


DAMAGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "no header": (lambda s: s.pop("kvproof"), "kvproof must be 'manager snapshot'"),
    "another header": (lambda s: s.update(kvproof="trace"), "kvproof must be 'manager snapshot'"),
    "a later version": (lambda s: s.update(version=3), "version must be 2"),
    "a version that equals": (lambda s: s.update(version=2.0), "version must be 2"),
    "a part too few": (lambda s: s.pop("copies"), "an object with the keys"),
    "a part too many": (lambda s: s.update(more=1), "an object with the keys"),
    "pages without number": (
        lambda s: s.update(num_pages=10**12),
        "num_pages is 1000000000000, more than are free or held",
    ),
    "a page fewer": (lambda s: s.update(num_pages=15), r"must have integers in \[|free\[4\] must be in"),
    "a page more": (lambda s: s.update(num_pages=17), "free must name once each page that nobody holds|POOL-2"),
    "a group that contradicts itself": (lambda s: s["groups"][0].update(layer_names=[]), r"is refused: .*\[MAN-7\]"),
    "a group of no kind": (lambda s: s["groups"][0].update(kind="str"), r"groups\[0\] must be of a kind in"),
    "a dtype that is none": (lambda s: s["groups"][0].update(dtype="f4,f4"), "dtype must be the name of a dtype"),
    "a dtype that was none": (lambda s: s["groups"][0].update(dtype="float33"), "dtype must be the name of a dtype"),
    "caching without groups": (
        lambda s: _hold_nothing(s) or s.update(groups=[]),
        "enable_caching is true without a group",
    ),
    "no digest": (lambda s: s.update(none_hash="x"), "none_hash must be bytes as lower-case hexadecimal digits"),
    "a page free and held": (lambda s: s["free"].append(1), "free must name once each page that nobody holds|POOL-2"),
    "a page free twice": (
        lambda s: s["free"].append(s["free"][0]),
        "free must name once each page|free names a page twice",
    ),
    "the null page free": (
        lambda s: s["free"].append(0),
        r"free must have integers in \[1, 16\) only|free\[5\] must be in",
    ),
    "a page in a wrong place": (
        lambda s: s.update(priorities=[[s["free"][0], 1, None]]),
        "pages of a low priority|free is not what a manager",
    ),
    "a content before its parent": (lambda s: s["contents"][0].__setitem__(0, 1), r"contents\[0\]\[0\] must be in"),
    "a content before the root": (lambda s: s["contents"][0].__setitem__(0, -2), r"contents\[0\]\[0\] must be in"),
    "contents of two sizes": (
        lambda s: s["contents"][1].__setitem__(1, [3]),
        "as many tokens as the content before|another number of tokens",
    ),
    "a content of another size": (
        lambda s: s["contents"][2].__setitem__(1, [3]),
        "as long as a page of a group|what group 0 can't cache",
    ),
    "a content twice": (
        lambda s: s["contents"].append(s["contents"][0]),
        "stands in the list already|contents is not what a manager",
    ),
    "a content that nobody needs": (
        lambda s: s["contents"].append([-1, [8, 8], None]),
        "is in no cached prefix|contents is not what a manager",
    ),
    "a token that no int32 holds": (
        lambda s: s["contents"][0].__setitem__(1, [3, 2**31]),
        r"must have integers in|contents\[0\]\[1\]\[1\] must be in",
    ),
    "a token that is none": (
        lambda s: s["contents"][0].__setitem__(1, [3, 1.0]),
        "must have integers only|must be an integer",
    ),
    "an extra key of no kind": (lambda s: s["contents"][1][2].append({"kind": "int"}), "must be of a kind in"),
    "extra keys that touch no such page": (
        lambda s: s["contents"][1][2].reverse(),
        "that touch the page, in order|that no request has at its place",
    ),
    "a text that is none": (
        lambda s: s["contents"][2].__setitem__(2, [{"kind": "LoraAdapter", "name": "\ud800"}]),
        "must be Unicode text",
    ),
    "a page cached twice": (
        lambda s: s["cached"].append(s["cached"][0]),
        "must name each page once|names page 1 twice",
    ),
    "a page cached that is written": (
        lambda s: (s["cached"].append([0, 4, 1]), s["stored_at"].insert(3, [4, 5])),
        "MAN-3",
    ),
    "a page that holds another's tokens": (
        lambda s: s["cached"][0].__setitem__(2, 2),
        "page 1, which is cached with other tokens|page 1, which holds other tokens",
    ),
    "cached pages with caching off": (
        lambda s: s.update(enable_caching=False),
        "must be empty with caching off|with caching off",
    ),
    "a request twice": (
        lambda s: s["requests"].append(s["requests"][0]),
        "must have different ids|the second one of the id 'a'",
    ),
    "a slot twice": (
        lambda s: s["requests"][1].update(slot=0),
        "must have different slots|MAN-11: two requests in one slot",
    ),
    "a slot beyond all": (lambda s: s["requests"][1].update(slot=2**40), "slot must be in"),
    "fewer slots than promised": (
        lambda s: s["requests"][0].update(num_slots=4),
        "num_promised must be in|MAN-2: slots",
    ),
    "more slots than a model has": (
        lambda s: s["requests"][0].update(num_slots=13),
        "num_slots must be in|MAN-2: slots",
    ),
    "more slots than pages": (
        lambda s: s["requests"][0].update(num_slots=7),
        "pages must be 4|MAN-2: a list of another length",
    ),
    "computed beyond the state": (
        lambda s: s["requests"][0].update(num_slots=6, num_computed=6),
        "num_computed must be in|MAN-13: computed tokens",
    ),
    "hits of two lengths": (
        lambda s: s["requests"][1]["groups"][0].update(num_hits=2),
        "one number of tokens in every group|MAN-1: hits that are not computed",
    ),
    "a null page where one is read": (
        lambda s: s["requests"][1]["groups"][0]["pages"].__setitem__(0, 0),
        "null pages where the request's counts say so|MAN-8: page 0 at place 0",
    ),
    "a state that is elsewhere": (lambda s: s["requests"][0]["groups"][1].update(states=[[0, 2], [2, 4]]), "states"),
    "lists of another group": (lambda s: s["requests"][0]["groups"].append({"pages": []}), "must be a list of 2"),
    "a page written and shared": (lambda s: _share(s, 0), "R2"),
    "a state written and shared": (lambda s: _share(s, 1), "R2"),
    "a pin beyond the bound": (lambda s: s.update(max_pinned_pages=1), "PIN-1"),
    "a pin of the future": (lambda s: s.update(next_pin_id=0), r"id must be in \[0, 0\)"),
    "a pin twice": (lambda s: s["pins"].append(s["pins"][0]), "is the id of another pin"),
    "a pin's tokens": (
        lambda s: s["pins"][0].update(num_tokens=4),
        "must be the pages that 4 tokens need|PIN-1: tokens and pages",
    ),
    "a time that is none": (lambda s: s.update(now=float("nan")), "now must be a finite number"),
    "a time beyond all": (lambda s: s.update(now=10**5000), "now must be a finite number"),
    "a priority that has ended": (lambda s: s.update(now=8), "has passed|PIN-2: .* has ended"),
    "a priority that all have": (lambda s: s["priorities"][0].__setitem__(1, 0), "must not be 0|PIN-2: page 1"),
    "a known id twice": (lambda s: s["known"].append("b"), "'b', which is named twice"),
    "given back and unknown": (lambda s: s["known"].remove("b"), "MAN-12"),
    "given back twice": (
        lambda s: s["given_back"].append(["b", 1]),
        "'b', which is named twice|given_back is not what a manager",
    ),
    "a copy of nobody": (lambda s: s["copies"][0].__setitem__(0, "b"), "'b', which is not live"),
    "a copy of attention": (lambda s: s["copies"][0].__setitem__(1, 0), "0, a group whose states are not copied"),
    "an event of no kind": (lambda s: s["events"].append({"kind": "PageMoved"}), "must be of a kind in"),
    "an event of no page": (lambda s: s["events"][0].update(page_id=16), "a group or a page that does not exist"),
    "an event of half a page": (lambda s: s["events"][0].update(token_ids=[1]), "must have 2 tokens"),
    "events that nobody asked for": (lambda s: s.update(enable_events=False), "events are off|MAN-12: events are kept"),
    "a bucket too few": (lambda s: s["counters"]["reuse_gaps"].pop(), "reuse_gaps must be a list of 48"),
    "a counter that is no number": (lambda s: s["counters"].update(requests=True), "requests must be an integer"),
    "a clock behind": (lambda s: s.update(clock=6), r"stored_at must have integers in|MAN-12: a time ahead"),
    "a time of a page that is not cached": (
        lambda s: s["stored_at"].append([15, 1]),
        "must name the sampled pages|MAN-12: times stored",
    ),
    "a time of no sampled page": (
        lambda s: s.update(counter_sampling=2),
        "must name the sampled pages|MAN-12: times stored",
    ),
    "a time of no page": (
        lambda s: s["stored_at"].insert(0, [0, 1]),
        r"must name the sampled pages|stored_at\[0\]\[0\] must be in",
    ),
}


def _hold_nothing(snapshot: Any) -> bool:
    """All pages are free and empty."""
    for name in ("requests", "pins", "cached", "contents"):
        snapshot[name].clear()
    snapshot["free"] = list(range(1, 16))
    return False


def _share(snapshot: Any, group: int) -> None:
    """Request c holds the last page of request a in place of its own, which becomes free."""
    shared, own = (request["groups"][group]["pages"] for request in snapshot["requests"])
    snapshot["free"].append(own[-1])
    own[-1] = shared[-1]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_snapshot_is_refused(package: ModuleType, damage: str) -> None:
    """MAN-14, SEC-3: what is wrong is named."""
    manager = _busy(package)
    snapshot = manager.snapshot()
    damaging, message = DAMAGES[damage]
    damaging(snapshot)
    with pytest.raises(ValueError, match=rf"(?s)^snapshot.*({message}).*\[(MAN-14|SEC-3)\]$"):
        package.CacheManager.restore(snapshot, _objects(manager))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in JSON."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


OPTIONED: list[tuple[list[Any], dict[str, Any]]] = [
    ([full(2)], {"match_unit": 1, "eviction": "adaptive", "enable_events": True, "num_host_pages": 4}),
    (
        [full(2), window(2, 4)],
        {"match_unit": 2, "retention_interval": 4, "max_pinned_pages": 3, "unhashed_first": True},
    ),
]
_LEFT_OUT = object()


def _taken(restore: Callable[..., Any], snapshot: Any, request: PlainRequest) -> object:
    """What a manager of a snapshot writes, or the label of what it is refused by."""
    try:
        restored = restore(snapshot, [request])
    except ValueError as error:
        return str(error)[str(error).rindex("[") :]
    return restored.snapshot()


@pytest.mark.parametrize(("groups", "options"), OPTIONED, ids=["adaptive", "window"])
def test_a_part_that_seldom_stands_there_is_taken_or_refused_alike(groups: list[Any], options: dict[str, Any]) -> None:
    """MAN-14: every part but the later entries of lists, left out or changed; one that is written for nothing, too."""
    manager = spec.CacheManager(12, groups, 32, hash_seed=b"k", **options)
    request = PlainRequest("r", [1, 2, 3, 4, 5])
    assert manager.allocate_slots(request, 5) is not None
    request.num_computed_tokens = 5
    manager.free(request)
    snapshot = json.loads(json.dumps(manager.snapshot()))
    kinds = set()
    for container, key in list(_places(snapshot)):
        if isinstance(container, list) and key:
            continue
        was = container[key]
        for odd in (_LEFT_OUT, *ODD):
            if odd is _LEFT_OUT:
                del container[key]
            else:
                container[key] = odd
            taken = [_taken(package.restore, snapshot, request) for package in PACKAGES.values()]
            assert taken[0] == taken[1], (key, odd)
            kinds.add(taken[0] if isinstance(taken[0], str) else "")
            if isinstance(container, list):
                container[key : key + (odd is not _LEFT_OUT)] = [was]
            else:
                container[key] = was
    assert kinds >= {"", "[MAN-14]"}
    assert snapshot == json.loads(json.dumps(manager.snapshot())), "what is restored from stays as it is"


def test_a_few_bytes_ask_for_no_more_memory_than_they_tell_of(package: ModuleType) -> None:
    """SEC-3: there are no more slots than pages, and a list of null pages makes no room for pages that nobody holds."""
    most = 2**15
    manager = package.CacheManager(most, [states(1)], 2**40, hash_seed=b"s")
    for name, length in (("a", 1), ("b", 1_000)):
        assert manager.allocate_slots(PlainRequest(name, [1] * length), length) is not None
    snapshot = manager.snapshot()
    snapshot["requests"][0]["slot"] = most
    with pytest.raises(ValueError, match=r"slot must be in \[0, 32768\) \[MAN-14\]$"):
        package.CacheManager.restore(snapshot, _objects(manager))
    snapshot["requests"][0]["slot"] = most - 1
    restored = package.CacheManager.restore(snapshot, _objects(manager))
    assert restored.slot_of("a") == most - 1
    assert restored.get_page_ids("b") == ([*[0] * 999, 2],)
    if package is fast:
        assert restored.coordinator.groups[0].cells.nbytes < 2**10 + 32 * most, "eight cells a slot at most"


@pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])
def test_sec_3_no_snapshot_is_taken_unverified(package: ModuleType) -> None:
    """Where Python leaves assertions out, `check` finds nothing."""
    name = package.__name__
    code = f"import {name} as package; package.CacheManager.restore(package.CacheManager(4, [], 8).snapshot())"
    taken, refused = (
        subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)
        for options in ([], ["-O"])
    )
    assert taken.returncode == 0, taken.stderr
    assert "RuntimeError: python -O leaves out" in refused.stderr


def test_slots_are_given_as_before(package: ModuleType) -> None:
    """MAN-11: each request has its slot, the lowest free ones are given first, also between others."""
    manager = package.CacheManager(80, [full(1)], 4, hash_seed=b"s")
    requests = [PlainRequest(str(number), [number]) for number in range(40)]
    for request in requests:
        manager.allocate_slots(request, 1)
    for number in (20, 3, 39):
        manager.free(requests[number])
    restored = _restored(manager)
    for each, name in itertools.product((manager, restored), "abcd"):
        each.allocate_slots(PlainRequest(name, [1]), 1)
    slots = [[each.slot_of(name) for name in ("0", "38", *"abcd")] for each in (manager, restored)]
    assert slots == [[0, 38, 3, 20, 39, 40]] * 2
