"""MAN, R1: what the managers of both packages refuse, and the lists of pages that they hand over."""

import operator
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec.declarations.eviction import POLICIES

from ..pool_state import pool_state
from ..strategies import PlainRequest


def _group(page_size: Any = 2) -> Any:
    return spec.CacheGroupSpec(spec.FullAttentionSpec(page_size, 1, 1, "float32"))


class Scene(NamedTuple):
    """A manager in use, with its requests.

    ``live`` holds pages 1 to 3, the first two of them published, and 6 slots. ``found`` is what ``new``, which
    was not admitted, found: page 1.
    """

    manager: Any
    package: ModuleType
    live: PlainRequest
    new: PlainRequest
    found: Any


def _scene(package: ModuleType, **options: Any) -> Scene:
    manager = package.CacheManager(8, [_group()], 12, hash_seed=b"s", **options)
    live, new = PlainRequest("live", [1, 2, 3, 4, 5]), PlainRequest("new", [1, 2, 9, 9])
    assert manager.allocate_slots(live, 5, num_lookahead_tokens=1).get_page_ids() == ([1, 2, 3],)
    found, hit = manager.get_computed_pages(new)
    assert hit == 2
    return Scene(manager, package, live, new, found)


def _shown(at: Scene) -> Any:
    return (
        pool_state(at.manager.page_pool),
        {name: at.manager.get_page_ids(name) for name in ("live", "new")},
        {name: list(keys) for name, keys in at.manager.req_to_page_hashes.items()},
    )


def _without(request: PlainRequest, name: str) -> Any:
    names = [
        "request_id",
        "all_token_ids",
        "num_tokens",
        "num_computed_tokens",
        "status",
        "extra_keys",
        "sampling_params",
    ]
    return SimpleNamespace(**{other: getattr(request, other) for other in names if other != name})


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "computed before admission": (
        lambda at: at.manager.allocate_slots(PlainRequest("new", [1, 2, 3], num_computed_tokens=1), 1),
        ValueError,
        r"request\.num_computed_tokens=1.*\[MAN-8\]",
    ),
    "tokens that are none": (
        lambda at: at.manager.get_computed_pages(PlainRequest("new", [1, 2.0])),
        TypeError,
        r"request\.all_token_ids\[1\] must be an int, not a float \[R1\]",
    ),
    "tokens beyond int32": (
        lambda at: at.manager.allocate_slots(PlainRequest("new", np.array([1, 2**31])), 1),
        ValueError,
        r"request\.all_token_ids.*2147483648.*\[R1\]",
    ),
    "another number of tokens": (
        lambda at: at.manager.get_computed_pages(
            SimpleNamespace(**{**vars(_without(at.new, "")), "num_tokens": 3}),
        ),
        ValueError,
        r"request\.num_tokens=3.*\[R1\]",
    ),
    **{
        f"{call} of a request without {name}": (
            lambda at, call=call, name=name: getattr(at.manager, call)(
                _without(PlainRequest("new", [1, 2, 3]), name), *([1] if call == "allocate_slots" else [])
            ),
            TypeError,
            rf"request has no {name}.*\[R1\]",
        )
        for call in ("get_computed_pages", "allocate_slots")
        for name in ("request_id", "all_token_ids", "num_tokens", "extra_keys", "sampling_params")
    },
    "allocate_slots of a request without num_computed_tokens": (
        lambda at: at.manager.allocate_slots(_without(at.new, "num_computed_tokens"), 1),
        TypeError,
        r"request has no num_computed_tokens.*\[R1\]",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_r1_a_refused_call_names_its_argument_and_changes_nothing(package: ModuleType, name: str) -> None:
    call, kind, message = REFUSED[name]
    at = _scene(package)
    before = _shown(at)
    with pytest.raises(kind, match=message):
        call(at)
    assert _shown(at) == before
    at.manager.check()


def test_man_10_only_a_running_request_is_asked_about(package: ModuleType) -> None:
    at = _scene(package)
    at.live.status = spec.EngineRequestStatus.PREEMPTED
    with pytest.raises(ValueError, match=r"'live' has status .*PREEMPTED.*\[MAN-10\]"):
        at.manager.get_num_common_prefix_pages(at.live, 0)


def test_r1_a_look_up_under_a_live_id_that_is_refused_changes_nothing(package: ModuleType) -> None:
    """MAN-6: another object under a live id is refused, or finds only what is its own; the live one's keys stay."""
    at = _scene(package)
    twin = PlainRequest("live", [9, 9, 9, 9])
    before = _shown(at)
    try:
        pages, hit = at.manager.get_computed_pages(twin)
    except ValueError:
        assert _shown(at) == before
    else:
        assert (pages.get_page_ids(), hit) == (([],), 0)
    at.manager.check()


@pytest.mark.parametrize("events", [False, True])
def test_man_6_the_buffer_of_a_freed_request_is_the_engines_again(package: ModuleType, events: bool) -> None:
    """R2: what is cached, and what waits to be told, is a copy of the tokens: another request may overwrite them."""
    manager = package.CacheManager(16, [_group()], 20, hash_seed=b"s", enable_events=events, num_host_pages=8)
    buffers = [np.arange(start, start + 9, dtype=np.int32) for start in (10, 30)]
    freed, swapped = (_in_a_buffer(f"r{start}", buffer) for start, buffer in enumerate(buffers))
    for request in (freed, swapped):
        assert manager.allocate_slots(request, 5) is not None
        request.num_computed_tokens = 5
        assert manager.allocate_slots(request, 4) is not None
        request.num_computed_tokens = 9
    manager.free(freed)
    plan = manager.swap_out(swapped)
    manager.swap_done(plan.swap_id)
    for buffer in buffers:
        buffer[:] = -1
    for start in (10, 30):
        again = spec.Request(f"again {start}", np.arange(start, start + 9, dtype=np.int32))
        assert manager.get_computed_pages(again)[1] == 8
    told = [event.token_ids for event in manager.take_events() if isinstance(event, spec.PageStored)]
    assert told == ([(start, start + 1) for start in (10, 12, 14, 16, 30, 32, 34, 36)] if events else [])
    with pytest.raises(ValueError, match=r"tokens or extra keys.*\[MAN-6\]"):
        manager.swap_in(swapped)
    manager.check()


def _in_a_buffer(request_id: str, buffer: Any) -> Any:
    """An engine's request whose tokens lie in a buffer of the engine's."""
    return SimpleNamespace(
        request_id=request_id, all_token_ids=buffer, num_tokens=len(buffer), num_computed_tokens=0,
        status=spec.EngineRequestStatus.RUNNING, extra_keys=(), sampling_params=None,
    )  # fmt: skip


def test_r1_a_hash_function_that_fails_changes_nothing(package: ModuleType) -> None:
    """HASH-1: it gives bytes for the root, then something else; the request that met it was not admitted."""
    digests: list[Any] = ["text", "text", "text", b"root"]

    def failing(_: bytes) -> bytes:
        digest: bytes = digests.pop()
        return digest

    manager = package.CacheManager(8, [_group()], 12, hash_seed=b"s", hash_function=failing)
    request = PlainRequest("r", [1, 2, 3])
    with pytest.raises(TypeError, match=r"hash_function=.* returned str.*\[HASH-1\]"):
        manager.allocate_slots(request, 3)
    assert manager.get_page_ids("r") == ([],)
    assert manager.page_pool.get_num_free_pages() == 7
    manager.check()


# -- CachePages -----------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 5), max_size=3), st.lists(st.integers(0, 5), max_size=3)), max_size=3)
)
def test_pages_of_several_groups_add_group_by_group(
    package: ModuleType, groups: list[tuple[list[int], list[int]]]
) -> None:
    pool = package.PagePool(6, True)
    mine, theirs = (package.CachePages([[pool.pages[i] for i in group[k]] for group in groups]) for k in (0, 1))
    total = mine + theirs
    assert total.get_page_ids() == tuple(one + other for one, other in groups)
    assert mine.get_page_ids() == tuple(one for one, _ in groups)
    assert (mine == theirs) == all(one == other for one, other in groups)
    assert mine.new_empty() == package.CachePages([[] for _ in groups])
    assert mine + mine.new_empty() == mine.new_empty() + mine == mine


@pytest.mark.parametrize("pages", [None, 3, "ab", [None], [3], [["x"]], {1: 2}])
def test_r1_what_is_no_list_of_pages_for_each_group_is_refused_by_name(package: ModuleType, pages: Any) -> None:
    with pytest.raises(TypeError, match=r"^pages.*\[R1\]"):
        package.CachePages(pages)


def test_r1_pages_of_unlike_groups_do_not_add(package: ModuleType) -> None:
    """A real system dropped the groups that only one side had."""
    with pytest.raises(ValueError, match=r"other has 2 groups.*have 1 \[R1\]"):
        operator.add(package.CachePages([[]]), package.CachePages([[], []]))
    with pytest.raises(TypeError):
        operator.add(package.CachePages([[]]), [[]])
    assert package.CachePages([[]]) != ([],)


def test_pool_1_unhashed_pages_are_those_of_one_group_without_null_pages(package: ModuleType) -> None:
    at = _scene(package)
    pages = package.CachePages([at.manager.page_pool.pages[:5]])
    assert pages.get_unhashed_page_ids() == [3, 4]
    assert pages.new_empty().get_unhashed_page_ids() == []
    unlike: list[list[Any]] = [[], [[], []]]
    for groups in unlike:
        with pytest.raises(ValueError, match=rf"have {len(groups)} \[R1\]"):
            package.CachePages(groups).get_unhashed_page_ids()


def test_a_list_to_which_pages_are_added_stays_a_list(package: ModuleType) -> None:
    """Python asks the page list for ``+=`` before it asks the list."""
    pages = package.PagePool(4, True).get_new_pages(2)
    kept: list[Any] = []
    kept += pages
    assert type(kept) is list
    kept.append(None)
    assert kept == [*pages, None]


def test_pool_2_check_holds_when_pages_are_taken_from_the_managers_pool(package: ModuleType) -> None:
    """Who holds those is not known to the manager; a page of a request's that the pool counts as free is a fault."""
    manager = package.CacheManager(12, [_group()], 16)
    request = PlainRequest("r", [1, 2, 3, 4])
    manager.allocate_slots(request, 4)
    pages = manager.page_pool.get_new_pages(3)
    manager.page_pool.touch([manager.get_computed_pages(PlainRequest("s", [1, 2, 3]))[0].pages[0]])
    manager.check()
    manager.page_pool.free_pages(pages)
    manager.page_pool.free_pages([manager.page_pool.pages[page] for page in (1, 2, 1)])
    with pytest.raises(AssertionError, match="POOL-2"):
        manager.check()


def test_hash_3_the_keys_of_nobody_are_none(package: ModuleType) -> None:
    """As with the seed's ``defaultdict(list)`` a reading never raises; and nobody is known by being asked for."""
    for manager in (package.CacheManager(12, [_group()], 16), package.CacheManager(12, [], 16)):
        assert manager.req_to_page_hashes["nobody"] == []
        assert dict(manager.req_to_page_hashes) == {}


@pytest.mark.parametrize("policy", POLICIES)
def test_evict_1_a_manager_without_groups_takes_any_policy(package: ModuleType, policy: str) -> None:
    manager = package.CacheManager(6, [], 16, hash_seed=b"s", eviction=policy)
    request = PlainRequest("one", [1, 2, 3])
    found, hit = manager.get_computed_pages(request)
    assert manager.allocate_slots(request, 3, hit, found).get_page_ids() == ()
    manager.free(request)
    manager.check()
    assert manager.page_pool.get_num_free_pages() == 5


@settings(max_examples=20)
@given(seed=st.integers(0, 999), policy=st.sampled_from(POLICIES[1:]))
def test_evict_1_what_pages_held_is_known_when_they_hold_something_else(
    package: ModuleType, seed: int, policy: str
) -> None:
    """Pages that a window let go are evicted while what was published behind them is only noted."""
    rng = np.random.default_rng(seed)
    window = spec.CacheGroupSpec(spec.SlidingWindowSpec(2, 1, 1, "float32", 3))
    both = [made.CacheManager(14, [_group(), window], 16, hash_seed=b"s", eviction=policy) for made in (spec, package)]
    live: dict[str, PlainRequest] = {}
    for _ in range(60):
        name = str(rng.integers(3))
        shown = []
        if name in live and rng.random() < 0.6:
            request = live.pop(name)
            for manager in both:
                manager.free(request)
        elif name in live:
            request = live[name]
            request.num_computed_tokens = request.num_tokens
            request.append(int(rng.integers(2)))
            shown = [manager.allocate_slots(request, 1) for manager in both]
            if shown[0] is None or request.num_tokens == 16:
                for manager in both:
                    manager.free(request)
                del live[name]
        else:
            request = PlainRequest(name, rng.integers(0, 2, rng.integers(2, 9)).tolist())
            for manager in both:
                found, hit = manager.get_computed_pages(request)
                shown.append(manager.allocate_slots(request, request.num_tokens - hit, hit, found))
            if shown[0] is not None:
                live[name] = request
        assert len({str(pages and pages.get_page_ids()) for pages in shown}) <= 1
        for manager in both:
            manager.check()
    assert both[0].snapshot() == both[1].snapshot()
