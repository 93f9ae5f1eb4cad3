"""MAN: fast's manager beside the specification's, with every kind of request an engine may bring."""

import copy
import random
from collections import Counter
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import fast, spec

from ..strategies import PlainRequest, few_extra_keys, page_sizes, short_token_lists, spelled
from .lockstep import both, pool_state

PACKAGES = pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])

EXTRAS: list[Any] = [
    *[()] * 10,
    (spec.CacheSalt("a"),),
    (spec.LoraAdapter("a"),),
    (spec.MultimodalItem(b"a", 1, 2),),
    (spec.MultimodalItem(b"a", 3, 4), spec.PromptEmbeddings(b"a", 0, 1)),
]


def _weak(message: bytes) -> bytes:
    return bytes([sum(message) % 3])


def _group(page_size: int) -> Any:
    return spec.CacheGroupSpec(spec.FullAttentionSpec(page_size, 1, 1, "float32"))


def _manager(
    package: ModuleType, num_pages: int = 8, page_size: int = 2, max_model_len: int = 40, **options: Any
) -> Any:
    return package.CacheManager(num_pages, [_group(page_size)], max_model_len, hash_seed=b"s", **options)


def _ids(pages: Any) -> Any:
    return None if pages is None else pages.get_page_ids()


@dataclass
class Side:
    """One package's manager and its requests, before and after they were admitted."""

    package: ModuleType
    manager: Any
    live: dict[str, PlainRequest] = field(default_factory=dict)
    waiting: dict[str, PlainRequest] = field(default_factory=dict)


class Lockstep:
    """Random calls on both managers.

    Args:
        seed: of the calls.
        keys: from which share of the steps on keys are read.
        options: of the managers.
    """

    def __init__(
        self, seed: int, keys: float, num_pages: int, page_size: int, max_model_len: int, options: Any
    ) -> None:
        self.source = random.Random(seed)
        self.keys = keys
        self.size = page_size
        self.reads_keys = False
        self.num_pages = num_pages
        self.sides = [
            Side(package, _manager(package, num_pages, page_size, max_model_len, **options)) for package in (spec, fast)
        ]
        self.written: dict[int, Any] = {}  # each page's ghost content: what the last step that wrote it wrote (R2)
        self.happened: Counter[str] = Counter()

    @property
    def live(self) -> dict[str, PlainRequest]:
        return self.sides[0].live

    def state(self, side: Side) -> Any:
        manager = side.manager
        state = {
            **pool_state(manager.page_pool, self.reads_keys),
            "held": {name: manager.get_page_ids(name) for name in sorted(side.live)},
            "usage of manager": manager.usage,
        }
        if self.reads_keys:
            state["keys"] = {name: [*map(tuple, keys)] for name, keys in manager.req_to_page_hashes.items()}
        return state

    def call(self, name: str, call: Any) -> tuple[bool, Any]:
        served, value = both(self.sides, call, self.state)
        self.happened[name if served else f"refused {name} {value[1]}"] += 1
        return served, value

    def run(self, steps: int) -> None:
        moves = [*[self.admit] * 4, *[self.grow] * 3, self.finish, self.publish, self.disturb]
        for step in range(steps):
            self.reads_keys = step >= self.keys * steps
            self.source.choice(moves)()
            for side in self.sides:
                side.manager.check()
        for side in self.sides:
            for request in list(side.live.values()):
                side.manager.free(request)
                side.live.pop(request.request_id)
        self.reads_keys = True
        assert self.state(self.sides[0]) == self.state(self.sides[1])

    # -- Steps ------------------------------------------------------------------------------------

    def request(self) -> PlainRequest:
        values = [self.source.randrange(2) for _ in range(self.source.randrange(1, 16))]
        if self.source.random() < 0.6:
            values[: len(values) * 3 // 4] = [0] * (len(values) * 3 // 4)
        spelling = self.source.choice([list, tuple, np.int32, np.int64, "numpy ints"])
        logprobs = spec.SamplingParams(1) if self.source.random() < 0.05 else None
        name = f"r{self.source.randrange(16)}"
        return PlainRequest(name, spelled(values, spelling), self.source.choice(EXTRAS), logprobs)

    def admit(self) -> None:
        drawn = self.request()
        name = drawn.request_id
        if name in self.live:
            self.call("second object", lambda side: _ids(side.manager.allocate_slots(copy.copy(drawn), 1)))
            return
        for side in self.sides:
            side.waiting[name] = copy.deepcopy(drawn)
        hits: dict[int, Any] = {}

        def look(side: Side) -> Any:
            pages, count = side.manager.get_computed_pages(side.waiting[name])
            hits[id(side)] = pages
            return pages.get_page_ids(), count

        _, (found, count) = self.call("look-up", look)
        self._is_prefix(found[0], drawn)
        self.happened["hit"] += count > 0
        if self.source.random() < 0.15 and found[0]:  # what was found is gone, or published anew
            self.call("evict found", lambda side: side.manager.page_pool.evict_pages(found[0][-1:]))
        used = count if self.source.random() < 0.9 else 0
        lookahead = self.source.choice([0, 0, 0, 1, 5])
        delay = self.source.random() < 0.2
        new = self.source.randrange(1, drawn.num_tokens - used + 2)

        def allocate(side: Side) -> Any:
            given = hits[id(side)] if used else None
            return _ids(side.manager.allocate_slots(side.waiting[name], new, used, given, lookahead, delay))

        served, pages = self.call("admission", allocate)
        if served and pages is not None:
            for side in self.sides:
                side.live[name] = side.waiting[name]
            self._computed(name, used + new)
            self.happened["admitted behind hits"] += used > 0
        elif served:
            self.happened["no room"] += 1

    def grow(self) -> None:
        if not self.live:
            return
        name = self.source.choice(sorted(self.live))
        request = self.live[name]
        if request.num_computed_tokens >= request.num_tokens:
            more = [self.source.randrange(2) for _ in range(self.source.randrange(1, 3))]
            for side in self.sides:
                side.live[name].grow(more)
        new = self.source.randrange(1, 4)
        lookahead = self.source.choice([0, 0, 2])
        delay = self.source.random() < 0.2
        served, pages = self.call(
            "decode",
            lambda side: _ids(side.manager.allocate_slots(side.live[name], new, 0, None, lookahead, delay)),
        )
        if served and pages is not None:
            self._computed(name, request.num_computed_tokens + new)

    def _computed(self, name: str, count: int) -> None:
        for side in self.sides:
            request = side.live[name]
            request.num_computed_tokens = min(count, request.num_tokens)
        request = self.live[name]
        for place, page in enumerate(self.sides[0].manager.get_page_ids(name)[0]):
            end = (place + 1) * self.size
            if end <= request.num_computed_tokens:
                self.written[page] = self._content(request, end)

    def _content(self, request: PlainRequest, end: int) -> Any:
        """What decides the K/V of a page that ends at a token: all tokens and extra keys up to there (R2)."""
        touching = {key for key in request.extra_keys or () if getattr(key, "offset", 0) < end}
        return [int(token) for token in request.all_token_ids[:end]], touching

    def _is_prefix(self, pages: list[int], request: PlainRequest) -> None:
        """R2: a hit returns only pages whose ghost content is the request's own prefix."""
        for place, page in enumerate(pages):
            assert self.written.get(page) == self._content(request, (place + 1) * self.size), "R2"

    def publish(self) -> None:
        if self.live:
            name = self.source.choice(sorted(self.live))
            held = self.live[name].num_computed_tokens
            count = self.source.choice([held, self.source.randrange(held + 1), held + self.source.randrange(6)])
            self.call("cache_pages", lambda side: side.manager.cache_pages(side.live[name], count))

    def finish(self) -> None:
        if not self.live:
            return
        name = self.source.choice(sorted(self.live))
        written = self.source.choice([None, None, 0, self.source.randrange(16)])
        requests = {id(side): side.live.pop(name) for side in self.sides}
        served, holders = self.call("free", lambda side: side.manager.free(requests[id(side)], written))
        self.happened["holders of withdrawn pages"] += bool(served and holders)
        self.happened["freed again"] += self.call("free again", lambda side: side.manager.free(requests[id(side)]))[0]
        if self.source.random() < 0.5:
            self.call("free_page_hashes", lambda side: side.manager.free_page_hashes(requests[id(side)]))

    def disturb(self) -> None:
        """Calls of an operator, and of an engine that is wrong."""
        choice = self.source.randrange(6)
        if choice == 0:
            ids = self.source.sample(range(self.num_pages), 2)
            self.call("evict", lambda side: side.manager.page_pool.evict_pages(ids))
        elif choice == 1:
            self.call("reset", lambda side: side.manager.reset_prefix_cache())
        elif choice == 2 and self.live:
            name = self.source.choice(sorted(self.live))
            running = self.source.choice([len(self.live), len(self.live), 1])
            self.call(
                "common prefix",
                lambda side: side.manager.get_num_common_prefix_pages(side.live[name], running),
            )
        elif choice == 3 and self.live:
            name = self.source.choice(sorted(self.live))
            bad = self.source.choice([(0,), (-1,), (1, 2), (1000,), (1, 0, None, -1), (True,), (1.0,)])
            self.call("bad allocation", lambda side: _ids(side.manager.allocate_slots(side.live[name], *bad)))
        elif choice == 4:
            self.call("stranger", lambda side: side.manager.cache_pages(PlainRequest("nobody", [1]), 1))
        elif choice == 5 and self.live:
            name = self.source.choice(sorted(self.live))
            request = self.live[name]
            count = self.source.choice([request.num_computed_tokens + 50, request.num_computed_tokens - 1])

            def call(side: Side) -> Any:
                mine = side.live[name]
                kept, mine.num_computed_tokens = mine.num_computed_tokens, count
                try:
                    return _ids(side.manager.allocate_slots(mine, 1))
                finally:
                    mine.num_computed_tokens = kept

            served, _ = self.call("wrong count", call)
            if served:  # fell behind what was promised last, and not behind what was said to be computed
                self._computed(name, request.num_computed_tokens)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    keys=st.sampled_from([0.0, 0.5, 1.0]),
    num_pages=st.sampled_from([3, 6, 12, 40]),
    page_size=page_sizes,
    max_model_len=st.sampled_from([1, 5, 18, 60]),
    unhashed_first=st.booleans(),
    enable_caching=st.sampled_from([True, True, True, False]),
    weak=st.booleans(),
)
def test_man_fast_and_specification_in_lockstep(
    seed: int,
    keys: float,
    num_pages: int,
    page_size: int,
    max_model_len: int,
    unhashed_first: bool,
    enable_caching: bool,
    weak: bool,
) -> None:
    options: dict[str, Any] = {"unhashed_first": unhashed_first, "enable_caching": enable_caching}
    if weak:
        options["hash_function"] = _weak
    Lockstep(seed, keys, num_pages, page_size, max_model_len, options).run(40)


@pytest.mark.parametrize("weak", [False, True], ids=["sha256", "weak hash"])
def test_man_long_lives(weak: bool) -> None:
    """The same steps, many of them: hits, hits that went, withdrawals and refusals all happen."""
    happened: Counter[str] = Counter()
    for seed in range(4):
        lockstep = Lockstep(
            seed, 0.7, [24, 40, 60, 80][seed], 1 + seed % 2, 40, {"hash_function": _weak} if weak else {}
        )
        lockstep.run(220)
        happened += lockstep.happened
    wanted = ["hit", "admitted behind hits", "no room", "freed again", "holders of withdrawn pages", "common prefix"]
    wanted += ["refused admission MAN-2", "refused second object MAN-6", "refused wrong count MAN-8"]
    wanted += ["refused cache_pages MAN-3", "refused bad allocation R1", "refused stranger R1"]
    assert [name for name in wanted if happened[name] < 3] == [], happened


# -- Without keys, groups or caching --------------------------------------------------------------


@PACKAGES
@given(first=short_token_lists, second=short_token_lists, extra=few_extra_keys, page_size=page_sizes)
def test_man_1_a_hit_is_the_longest_full_prefix_short_of_the_last_token(
    package: ModuleType, first: list[int], second: list[int], extra: Any, page_size: int
) -> None:
    manager = _manager(package, 40, page_size)
    request = PlainRequest("first", first, extra)
    assert manager.allocate_slots(request, len(first)) is not None
    before = pool_state(manager.page_pool, True)
    common = 0
    while common < min(len(first), len(second)) and first[common] == second[common]:
        common += 1
    pages, hit = manager.get_computed_pages(PlainRequest("second", second, extra))
    assert hit == min(common, len(second) - 1) // page_size * page_size
    assert pages.get_page_ids()[0] == manager.get_page_ids("first")[0][: hit // page_size]
    assert pool_state(manager.page_pool, True) == before
    logprobs = PlainRequest("third", second, extra, spec.SamplingParams(0))
    assert manager.get_computed_pages(logprobs) == (manager.create_empty_page_list(), 0)


@PACKAGES
@given(values=short_token_lists, lookahead=st.integers(0, 50))
def test_man_2_without_a_group_nothing_needs_a_page(package: ModuleType, values: list[int], lookahead: int) -> None:
    manager = package.CacheManager(3, [], 14)
    assert (manager.enable_caching, manager.page_size, manager.num_kv_cache_groups) == (False, None, 0)
    request = PlainRequest("r", values)
    assert manager.get_computed_pages(request) == (package.CachePages([]), 0)
    given_slots = manager.allocate_slots(request, len(values), 0, manager.create_empty_page_list(), lookahead)
    assert given_slots == package.CachePages([])
    assert manager.get_page_ids("r") == ()
    assert manager.get_num_common_prefix_pages(request, 1) == []
    manager.cache_pages(request, len(values))
    assert manager.req_to_page_hashes == {}
    assert manager.usage == 0.0
    assert manager.free(request, 0) == []
    manager.check()


@PACKAGES
@given(values=short_token_lists, page_size=page_sizes)
def test_man_1_with_caching_off_nothing_is_published_and_nothing_hit(
    package: ModuleType, values: list[int], page_size: int
) -> None:
    manager = _manager(package, 40, page_size, enable_caching=False)
    request = PlainRequest("r", values)
    assert manager.allocate_slots(request, len(values)) is not None
    manager.cache_pages(request, len(values))
    assert manager.get_computed_pages(PlainRequest("s", values))[1] == 0
    assert not manager.page_pool.cached_page_hash_to_page
    assert (manager.page_size, dict(manager.req_to_page_hashes)) == (None, {})
    assert manager.free(request, 0) == []
    manager.check()


@PACKAGES
@given(values=short_token_lists, lookahead=st.integers(0, 60), page_size=page_sizes)
def test_man_2_lookahead_is_cut_at_max_model_len(
    package: ModuleType, values: list[int], lookahead: int, page_size: int
) -> None:
    manager = _manager(package, 40, page_size, max_model_len=len(values) + 3)
    request = PlainRequest("r", values)
    pages = manager.allocate_slots(request, len(values), num_lookahead_tokens=lookahead)
    assert len(pages.pages[0]) == -(-min(len(values) + lookahead, len(values) + 3) // page_size)
    request.num_computed_tokens = len(values)
    with pytest.raises(ValueError, match=rf"num_new_tokens=4: .* \+ new={len(values) + 4} .*\[MAN-2\]"):
        manager.allocate_slots(request, 4)
    assert manager.allocate_slots(request, 3) is not None
    manager.check()


@PACKAGES
@given(values=short_token_lists, extra=few_extra_keys, page_size=page_sizes)
def test_hash_3_the_managers_keys_are_those_of_the_request_until_dropped(
    package: ModuleType, values: list[int], extra: Any, page_size: int
) -> None:
    manager = _manager(package, 40, page_size)
    request = PlainRequest("r", [*values], extra)
    manager.get_computed_pages(request)
    for _ in range(2):
        root = manager.page_pool.none_hash
        own = package.hash_request_tokens(package.sha256, page_size, request, none_hash=root)
        assert list(manager.req_to_page_hashes["r"]) == list(own)
        if page_size <= len(values):
            assert manager.allocate_slots(request, 1) is not None
            request.num_computed_tokens = 1
        request.grow([1] * page_size)
    manager.free(request)
    assert set(manager.req_to_page_hashes) == {"r"}
    manager.free_page_hashes(request)
    assert set(manager.req_to_page_hashes) == set()


# -- A page published by hand ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "group"),
    [([1, 2], 5), ([7, 7], 0)],
    ids=["the same content for another group", "other content"],
)
def test_r2_a_requests_pages_are_published_under_its_own_prefix(other: list[int], group: int) -> None:
    """Even if the page before was evicted and cached by hand, for another group or with other tokens."""
    shown = []
    for package in (spec, fast):
        manager = _manager(package)
        request = PlainRequest("r", [1, 2, 3, 4, 5])
        manager.allocate_slots(request, 2)
        page = manager.page_pool.pages[manager.get_page_ids("r")[0][0]]
        manager.page_pool.evict_pages([page.page_id])
        manager.page_pool.cache_full_pages(PlainRequest("other", other), [page], [], 0, 1, 2, group)
        request.num_computed_tokens = 2
        manager.allocate_slots(request, 2)
        manager.check()
        shown.append(pool_state(manager.page_pool, True))
    assert shown[0] == shown[1]
