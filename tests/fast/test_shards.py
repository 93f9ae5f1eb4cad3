"""POOL-12: fast's sharded manager beside the specification's, and what it adds to the managers of its shards."""

import random
from collections import Counter
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.spec.declarations.placement import ShardLoad

from ..strategies import PlainRequest, group_mixes
from .lockstep import both, pool_state

PACKAGES = pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])

FULL = spec.CacheGroupSpec(spec.FullAttentionSpec(2, 1, 1, "float32"))
WINDOW = spec.CacheGroupSpec(spec.SlidingWindowSpec(2, 1, 1, "float32", 9))


def _sharded(package: ModuleType, num_shards: int = 2, num_pages: int = 8, **options: Any) -> Any:
    groups = options.pop("groups", [FULL])
    return package.ShardedCacheManager(num_shards, num_pages, groups, 12, **{"hash_seed": b"s"} | options)


def _fullest(shards: Sequence[ShardLoad]) -> int:
    """A placement of an engine's own: the shard with the fewest free pages, of several the last."""
    free = [shard.num_free_pages for shard in shards]
    return len(free) - 1 - free[::-1].index(min(free))


# -- Beside the specification -----------------------------------------------------------------------


class Side:
    """One package's sharded manager and its requests by id."""

    def __init__(self, package: ModuleType, num_shards: int, num_pages: int, **options: Any) -> None:
        self.package = package
        self.manager = _sharded(package, num_shards, num_pages, **options)
        self.requests: dict[str, PlainRequest] = {}
        self.hits: Any = None

    def look(self, name: str) -> Any:
        pages, found = self.manager.get_computed_pages(self.requests[name])
        self.hits = pages, found
        return pages.get_page_ids(), found

    def allocate(self, name: str, *arguments: Any) -> Any:
        pages = self.manager.allocate_slots(self.requests[name], *arguments)
        return pages and pages.get_page_ids()

    def state(self) -> Any:
        manager = self.manager
        return (
            [pool_state(shard.page_pool, True) for shard in manager.shards],
            [(shard.counters, shard.num_free_host_pages) for shard in manager.shards],
            [manager.get_host_page_ids(name) for name in "abcdef"],
            [(name, manager.shard_of(name), manager.get_page_ids(name)) for name in "abcdef"],
            manager.usage,
        )


class Lockstep:
    """Random calls on both, as an engine makes them."""

    def __init__(self, seed: int, num_shards: int, num_pages: int, groups: Any, placement: Any = "cost") -> None:
        self.source = random.Random(seed)
        self.num_shards = num_shards
        self.sides = [
            Side(
                package,
                num_shards,
                num_pages,
                groups=groups,
                placement=placement,
                enable_events=True,
                num_host_pages=8,
            )
            for package in (spec, fast)
        ]
        self.promised: dict[str, int] = {}
        self.away: dict[str, int] = {}
        self.plans: dict[int, tuple[str, str]] = {}
        self.happened: Counter[str] = Counter()

    def call(self, name: str, call: Any) -> Any:
        served, value = both(self.sides, call, Side.state)
        self.happened[name if served else f"refused {name}"] += 1
        return value if served else None

    def run(self, steps: int) -> None:
        moves = [*[self.come] * 4, *[self.go_on] * 2, self.end, self.publish, self.look_around, self.forget]
        moves += [*[self.swap] * 3, *[self.end_copies] * 3]
        for _ in range(steps):
            self.source.choice(moves)()
            for side in self.sides:
                side.manager.check()
        is_idle = not self.promised and not self.away and not self.plans
        assert [side.manager.reset_prefix_cache() for side in self.sides] == [is_idle] * 2
        told = [[shard.take_events() for shard in side.manager.shards] for side in self.sides]
        assert told[0] == told[1]

    def come(self) -> None:
        name = self.source.choice("abcdef")
        if name in self.promised or name in self.away:
            self.call("look-up of a live request", lambda side: side.look(name))
            return
        values = [self.source.randrange(2) for _ in range(self.source.randrange(1, 11))]
        for side in self.sides:
            side.requests[name] = PlainRequest(name, list(values))
        _, found = self.call("look-up", lambda side: side.look(name))
        new = self.source.randrange(1, 13 - found)
        delay = self.source.random() < 0.2
        given = self.call("admission", lambda side: side.allocate(name, new, found, side.hits[0], 1, delay))
        self.happened["hits on a later shard"] += bool(found and self.sides[0].manager.shard_of(name))
        if given is not None:
            self.promised[name] = found + new

    def go_on(self) -> None:
        name = self.source.choice(list(self.promised) or [""])
        if name and self.promised[name] < 12:
            for side in self.sides:
                side.requests[name].num_computed_tokens = self.promised[name]
                side.requests[name].grow([1])
            if self.call("next token", lambda side: side.allocate(name, 1)) is not None:
                self.promised[name] += 1

    def end(self) -> None:
        name = self.source.choice("abcdef")
        written = self.source.choice([None, None, 0, 3])
        if name in self.sides[0].requests:
            self.call("end", lambda side: side.manager.free(side.requests[name], written))
            self.promised.pop(name, None)
            self.away.pop(name, None)
        if name in self.sides[0].requests and self.source.random() < 0.5:
            self.call("end of keys", lambda side: side.manager.free_page_hashes(side.requests[name]))

    def swap(self) -> None:
        """A request goes to host memory or comes back, is on its way already, or there is none."""
        name = self.source.choice("abcdef")
        if name not in self.sides[0].requests:
            return
        if name in self.promised:
            tokens = min(self.promised[name], len(self.sides[0].requests[name].all_token_ids))
            for side in self.sides:
                side.requests[name].num_computed_tokens = tokens
            plan = self.call("swap out", lambda side: side.manager.swap_out(side.requests[name]))
            if plan is not None:
                self.away[name] = self.promised.pop(name)
        else:
            plan = self.call("swap in", lambda side: side.manager.swap_in(side.requests[name]))
        if plan is not None:
            self.plans[plan.swap_id] = name, plan.direction
            self.happened["plan of a later shard"] += bool(self.sides[0].manager.shard_of(name))

    def end_copies(self) -> None:
        number = self.source.choice([*self.plans, 100, -1])
        self.call("end of copies", lambda side: side.manager.swap_done(number))
        name, direction = self.plans.pop(number, ("", ""))
        if direction == "in" and name in self.away:
            self.promised[name] = self.away.pop(name)

    def publish(self) -> None:
        name = self.source.choice("abcdef")
        if name in self.sides[0].requests:
            count = self.source.randrange(self.promised.get(name, 1) + 1)
            self.call("publishing", lambda side: side.manager.cache_pages(side.requests[name], count))

    def look_around(self) -> None:
        """Common prefixes, copies, and what a shard does by itself."""
        name = self.source.choice(list(self.promised) or [""])
        if name:
            shard_of = self.sides[0].manager.shard_of
            running = sum(shard_of(other) == shard_of(name) for other in self.promised)
            self.call(
                "common prefix",
                lambda side: side.manager.get_num_common_prefix_pages(side.requests[name], running),
            )
        shard = self.source.randrange(self.num_shards + 1)
        self.call("copies", lambda side: list(map(tuple, side.manager.take_page_copies(shard))))

    def forget(self) -> None:
        shard = self.source.randrange(self.num_shards)
        pages = self.source.sample(range(4), 2)
        self.call("eviction on a shard", lambda side: side.manager.shards[shard].evict_pages(pages))
        self.call("reset", lambda side: side.manager.reset_prefix_cache())


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    num_shards=st.integers(1, 3),
    num_pages=st.integers(3, 16),
    groups=group_mixes,
    placement=st.sampled_from(["cost", "prefix", _fullest]),
)
def test_pool_12_fast_and_specification_in_lockstep(
    seed: int, num_shards: int, num_pages: int, groups: Any, placement: Any
) -> None:
    Lockstep(seed, num_shards, num_pages, groups, placement).run(25)


@PACKAGES
def test_pool_12_streams_are_spread(package: ModuleType) -> None:
    """Two prompts, eight streams of each at once, four shards: four streams on each, of one prompt."""
    manager = package.ShardedCacheManager(4, 200, [FULL], 60, hash_seed=b"s")
    hits: Counter[tuple[int, int]] = Counter()
    for number in range(16):
        request = PlainRequest(f"r{number}", [number % 2] * 40)
        pages, found = manager.get_computed_pages(request)
        assert manager.allocate_slots(request, min(20, 40 - found), found, pages) is not None
        shard = manager.shard_of(request.request_id)
        hits[shard, number % 2] += 1
        assert (found > 0) == (hits[shard, number % 2] > 1), "all but a shard's first"
    assert sorted(hits.values()) == [4, 4, 4, 4]


@PACKAGES
def test_ret_2_a_junction_that_is_asked_for_changes_nothing(package: ModuleType) -> None:
    manager = _sharded(package, groups=[FULL, WINDOW])
    before = [shard.snapshot() for shard in manager.shards]
    assert manager.get_junction(PlainRequest("r", [1, 2, 3])) == 0
    assert [shard.snapshot() for shard in manager.shards] == before


@PACKAGES
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (2, IndexError, r"the shard of placement=2 must be in \[0, 2\) \[POOL-12\]"),
        (-1, IndexError, r"the shard of placement=-1 "),
        (None, TypeError, r"the shard of placement=None "),
        (True, TypeError, r"the shard of placement=True "),
    ],
)
def test_pool_12_a_placement_that_returns_no_shard_is_refused(
    package: ModuleType, given: Any, error: Any, message: str
) -> None:
    manager = _sharded(package, placement=lambda _: given)
    before = [shard.snapshot() for shard in manager.shards]
    request = PlainRequest("r", [1, 2, 3])
    for call in (manager.get_computed_pages, manager.get_junction, lambda own: manager.allocate_slots(own, 1)):
        with pytest.raises(error, match=message):
            call(request)
        assert [shard.snapshot() for shard in manager.shards] == before


def test_pool_12_all_of_it_happens() -> None:
    happened: Counter[str] = Counter()
    for seed in range(4):
        lockstep = Lockstep(seed, 3, 12, [FULL, WINDOW])
        lockstep.run(100)
        happened += lockstep.happened
    wanted = ["look-up", "look-up of a live request", "admission", "next token", "end", "end of keys", "publishing"]
    wanted += ["refused publishing", "common prefix", "copies", "refused copies", "hits on a later shard"]
    wanted += ["swap out", "swap in", "end of copies", "plan of a later shard"]
    wanted += ["refused swap out", "refused swap in", "refused end of copies"]
    assert [name for name in wanted if not happened[name]] == [], happened


# -- Shards -----------------------------------------------------------------------------------------


@PACKAGES
def test_hash_1_one_seed_is_drawn_for_all_shards(package: ModuleType) -> None:
    managers = [_sharded(package, 3, hash_seed=None) for _ in range(2)]
    roots = [{shard.page_pool.none_hash for shard in manager.shards} for manager in managers]
    assert [len(found) for found in roots] == [1, 1]
    assert roots[0] != roots[1]


@PACKAGES
def test_pool_12_options_are_those_of_every_shard(package: ModuleType) -> None:
    options = {"unhashed_first": True, "enable_events": True, "counter_sampling": 3}
    options |= {"max_pinned_pages": 5, "max_pinned_pages_per_salt": 2}
    manager = _sharded(package, 2, **options, hash_function=lambda message: message[:4])
    assert [shard.num_host_pages for shard in _sharded(package, 2, num_host_pages=6).shards] == [6, 6]
    for shard in manager.shards:
        pool = shard.page_pool
        assert {name: getattr(pool, name) for name in options} == options
        assert len(pool.none_hash) == 4
    assert [shard.enable_caching for shard in package.ShardedCacheManager(2, 8, [FULL], 12, False).shards] == [
        False
    ] * 2
    assert [shard.use_eagle for shard in package.ShardedCacheManager(2, 8, [FULL], 12, True, True).shards] == [True] * 2


@PACKAGES
def test_pool_12_a_shards_own_calls_are_seen(package: ModuleType) -> None:
    """A batched step or an admission on the shard itself: nothing is noted beside the shards that could be stale."""
    manager = _sharded(package)
    request = PlainRequest("r", [1, 2, 3])
    assert manager.shards[1].allocate_slots(request, 3) is not None
    assert manager.shard_of("r") == 1
    manager.shards[1].allocate_slots_batch([manager.shards[1].slot_of("r")], [3], 2)
    assert manager.get_page_ids("r") == ([1, 2, 3],)
    manager.shards[1].free(request)
    assert manager.shard_of("r") is None
    manager.check()


@PACKAGES
def test_pool_12_a_request_swaps_on_its_shard(package: ModuleType) -> None:
    """There and back by plans whose ids no other shard's plan has; its host pages come free at its end."""
    manager = _sharded(package, 3, num_host_pages=4)
    requests = [PlainRequest(name, [shard, 2, 3]) for shard, name in enumerate("abc")]
    for request in requests:
        manager.allocate_slots(request, 3)
        request.num_computed_tokens = 3
    out = [manager.swap_out(request) for request in requests]
    assert [plan.swap_id for plan in out] == [0, 1, 2]
    assert [manager.shard_of(request.request_id) for request in requests] == [0, 1, 2]
    for plan in out:
        manager.swap_done(plan.swap_id)
    assert manager.usage == 0.0
    assert not manager.reset_prefix_cache()
    with pytest.raises(ValueError, match=r"'c'.*\[SWAP-1\]$"):
        manager.allocate_slots(requests[2], 1)
    with pytest.raises(ValueError, match=r"'c'.*\[MAN-6\]$"):
        manager.get_computed_pages(PlainRequest("c", [2]))
    back = manager.swap_in(requests[1])
    assert (back.swap_id, manager.get_host_page_ids("b")) == (4, ([0, 1],))
    with pytest.raises(ValueError, match=r"swap_id=5 .*\[SWAP-1\]$"):
        manager.swap_done(5)
    manager.swap_done(4)
    assert (manager.shard_of("b"), manager.get_page_ids("b")) == (1, ([1, 3],))  # page 1 was hit
    assert manager.shards[1].num_free_host_pages == 4
    manager.free(requests[2])
    assert [shard.num_free_host_pages for shard in manager.shards] == [2, 4, 4]
    manager.check()


# -- Refusals (R1) ----------------------------------------------------------------------------------


class Used:
    """Two shards, each with a cached prefix of its own; request `r` is not live, `live` is on shard 0."""

    def __init__(self, package: ModuleType) -> None:
        self.package = package
        self.manager = _sharded(package, groups=[FULL, WINDOW])
        self.pages = []
        for shard in self.manager.shards:
            before = PlainRequest("before", [1, 2, 3])
            shard.allocate_slots(before, 2)
            shard.free(before)
            self.pages.append(shard.get_computed_pages(before)[0].pages)
        self.stranger = package.PagePool(3, True).get_new_pages(1)
        self.request = PlainRequest("r", [1, 2, 3])
        self.manager.allocate_slots(PlainRequest("live", [7]), 1)

    def admit(self, *lists: Any) -> Any:
        return self.manager.allocate_slots(self.request, 1, 2, self.package.CachePages(lists))


def _shown(used: Used) -> Any:
    pools = [pool_state(shard.page_pool, True) for shard in used.manager.shards]
    return pools, [used.manager.get_page_ids(name) for name in ("r", "live")], used.manager.usage


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "pages of two shards": (lambda at: at.admit(at.pages[0][0], at.pages[1][1]), ValueError, "POOL-12"),
    "a list of two shards": (
        lambda at: at.admit([*at.pages[0][0], *at.pages[1][1]], at.pages[0][0]),
        ValueError,
        "POOL-12",
    ),
    "pages of no shard": (lambda at: at.admit(at.stranger, at.stranger), ValueError, "POOL-12"),
    "pages of a shard and of none": (lambda at: at.admit(at.pages[0][0], at.stranger), ValueError, "POOL-12"),
    "pages of one's own": (lambda at: at.admit([at.package.CachePage(1)], at.pages[0][1]), ValueError, "POOL-12"),
    "pages of one group": (lambda at: at.admit(at.pages[1][0]), ValueError, "MAN-2"),
    "no pages": (lambda at: at.manager.allocate_slots(at.request, 1, 2, [[], []]), TypeError, "R1"),
    "tokens without pages": (lambda at: at.manager.allocate_slots(at.request, 1, 2), ValueError, "MAN-2"),
    "no request": (lambda at: at.manager.allocate_slots(None, 1), TypeError, "R1"),
    "an id that is none": (lambda at: at.manager.get_computed_pages(PlainRequest(1, [1])), TypeError, "R1"),  # type: ignore[arg-type]
    "another's id": (lambda at: at.manager.allocate_slots(PlainRequest("live", [7]), 1), ValueError, "MAN-6"),
    "another's look-up": (lambda at: at.manager.get_computed_pages(PlainRequest("live", [7])), ValueError, "MAN-6"),
    "published while not live": (lambda at: at.manager.cache_pages(at.request, 0), ValueError, "R1"),
    "a prefix while not live": (lambda at: at.manager.get_num_common_prefix_pages(at.request, 0), ValueError, "R1"),
    "copies of shard 2": (lambda at: at.manager.take_page_copies(2), IndexError, "POOL-12"),
    "copies of shard -1": (lambda at: at.manager.take_page_copies(-1), IndexError, "POOL-12"),
    "copies of True": (lambda at: at.manager.take_page_copies(True), TypeError, "R1"),
    "the shard of 1": (lambda at: at.manager.shard_of(1), TypeError, "R1"),
    "the pages of None": (lambda at: at.manager.get_page_ids(None), TypeError, "R1"),
    "an end that is none": (lambda at: at.manager.free(at.request, -1), ValueError, "R1"),
    "the keys of None": (lambda at: at.manager.free_page_hashes(None), TypeError, "R1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_r1_a_refused_call_changes_nothing(name: str) -> None:
    call, error, clause = REFUSED[name]
    assert both([Used(spec), Used(fast)], call, _shown) == (False, (error, clause))


@PACKAGES
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 8, [FULL], 12), ValueError, r"num_shards=0.*\[POOL-12\]"),
        ((True, 8, [FULL], 12), TypeError, r"num_shards=True.*\[R1\]"),
        ((2, 1, [FULL], 12), ValueError, r"num_pages=1.*\[POOL-1\]"),
        ((2, 8, 5, 12), TypeError, r"kv_cache_groups=5.*\[R1\]"),
        ((2, 8, [FULL], 0), ValueError, r"max_model_len=0.*\[R1\]"),
        ((2, 8, [FULL], 12, True, False, "least"), ValueError, r"placement='least' must be one of .*\[POOL-12\]"),
        ((2, 8, [FULL], 12, True, False, 1), TypeError, r"placement=1 must be a str or callable \[POOL-12\]"),
    ],
)
def test_r1_what_makes_no_shards_is_refused(package: ModuleType, arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        package.ShardedCacheManager(*arguments)


@PACKAGES
def test_groups_are_read_once(package: ModuleType) -> None:
    manager = package.ShardedCacheManager(3, 8, iter([FULL, WINDOW]), 12)
    assert [len(shard.kv_cache_groups) for shard in manager.shards] == [2, 2, 2]


# -- check() ----------------------------------------------------------------------------------------


def test_check_sees_a_request_on_two_shards() -> None:
    manager = _sharded(fast)
    request = PlainRequest("r", [1])
    for shard in manager.shards:
        shard.allocate_slots(request, 1)
    with pytest.raises(AssertionError, match="POOL-12: a request lives on two shards"):
        manager.check()


def test_check_sees_another_root() -> None:
    manager = _sharded(fast)
    manager.shards[1].page_pool.keys.none_hash = b"other"
    with pytest.raises(AssertionError, match="POOL-12: 2 roots"):
        manager.check()


def test_check_sees_what_is_wrong_on_a_shard() -> None:
    manager = _sharded(fast)
    manager.shards[1].page_pool.counts.cell[3] = 1
    with pytest.raises(AssertionError, match="POOL-2"):
        manager.check()
