"""MAN-11: the batched step is the single calls in order, over any groups, with pages enough or not."""

import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.fast.step import batched_step, small_step

from ..spec.driven_managers import full, window
from ..strategies import PlainRequest, group_mixes

MAX_LEN = 20

ROWS = 32
"""The most requests that live at once: a test of 30 calls admits no more."""


class ReadOnly(Sequence[int]):
    """A list that can't be changed; slices of it are lists of their own, as vLLM has them."""

    def __init__(self, values: list[int]) -> None:
        self._values = values

    def __getitem__(self, place: Any) -> Any:
        return self._values[place]

    def __len__(self) -> int:
        return len(self._values)

    def __add__(self, others: "ReadOnly") -> "ReadOnly":
        return ReadOnly([*self, *others])


class Twins:
    """Two managers that live alike: one takes its steps in one call, the other request by request.

    Args:
        seed: of the calls.
        mix: the cache groups.
        num_pages: of each pool.
        options: of the managers.
        longest: the most tokens of a request.
    """

    def __init__(
        self, seed: int, mix: list[Any], num_pages: int, options: dict[str, Any], longest: int = MAX_LEN
    ) -> None:
        self.longest = longest
        self.source = random.Random(seed)
        self.mix = mix
        self.states = any(isinstance(group.kv_cache_spec, spec.MambaSpec) for group in mix)
        self.batched, self.single = (
            fast.CacheManager(num_pages, mix, longest, hash_seed=b"s", **options) for _ in range(2)
        )
        sizes = [group.kv_cache_spec.page_size for group in mix]
        self.follower = fast.CacheFollower() if options.get("enable_events") else None
        self.tables = fast.MultiGroupPageTable(ROWS, longest, 64, sizes)
        self.live: dict[str, fast.Request | PlainRequest] = {}
        self.given: dict[str, int] = {}
        self.num_requests = 0
        self.happened: Counter[str] = Counter()

    def admit(self) -> None:
        """A request comes, often with the beginning of another."""
        source = self.source
        known = list(source.choice(list(self.live.values())).all_token_ids) if self.live else []
        tokens = [
            *known[: source.randint(0, self.longest)],
            *(source.randint(0, 1) for _ in range(source.randint(1, 9))),
        ]
        self.num_requests += 1
        image = spec.MultimodalItem(b"image", source.randrange(self.longest), source.randint(1, 4))
        extra: tuple[spec.ExtraKey, ...] = source.choice([(), (), (), (spec.CacheSalt("a"),), (image,)])
        name, tokens = f"r{self.num_requests}", tokens[: self.longest]
        keep: Any = source.choice([None, None, list, ReadOnly, tuple])
        request = PlainRequest(name, keep(tokens), extra) if keep else fast.Request(name, tokens, extra)
        outcomes = []
        new, delay = source.randint(1, self.longest), source.random() < 0.2
        for manager in (self.batched, self.single):
            pages, hit = manager.get_computed_pages(request)
            count = min(new, request.num_tokens - hit)
            outcomes.append(manager.allocate_slots(request, count, hit, pages, 0, delay) is not None)
        assert outcomes[0] == outcomes[1]
        self.happened["hit"] += hit > 0
        if outcomes[0]:
            self.live[request.request_id] = request
            self.given[request.request_id] = hit + count

    def step(self) -> None:
        """Some requests go on, in any order."""
        source = self.source
        going = [request for request in self.live.values() if source.random() < 0.8]
        source.shuffle(going)
        asked = []
        for request in going:
            most = self.given[request.request_id]
            least = most if self.states else max(request.num_computed_tokens, most - 1)
            computed = source.randint(least, most)
            if computed < self.longest:
                while request.num_tokens <= computed:
                    request.append(source.randint(0, 1))
                new = source.randint(1, max(min(request.num_tokens, self.longest) - computed, 1))
                asked.append((request, computed, new, source.choice([0, 0, 2])))
        delay = source.random() < 0.2
        self.tables.clear()
        for row, (request, *_) in enumerate(asked):
            self.tables.add_row(self.batched.get_page_ids(request.request_id), row)
        slots = [self.batched.slot_of(request.request_id) for request, *_ in asked]
        _, computed_counts, new_counts, ahead = zip(*asked, strict=True) if asked else ((), (), (), ())
        tabled = source.random() < 0.5
        batch = self.batched.allocate_slots_batch(
            slots,
            list(computed_counts),
            np.array(new_counts, np.int64),
            list(ahead),
            delay_cache_pages=delay,
            tables=self.tables if tabled else None,
            rows=np.arange(len(asked)) if tabled else None,
        )
        for place, (request, computed, new, lookahead) in enumerate(asked):
            request.num_computed_tokens = computed
            pages = self.single.allocate_slots(request, new, 0, None, lookahead, delay)
            assert bool(batch.granted[place]) == (pages is not None)
            none: tuple[list[int], ...] = tuple([] for _ in self.mix)
            assert batch.get_page_ids(place) == (none if pages is None else pages.get_page_ids())
            if pages is not None:
                self.given[request.request_id] = computed + new
        for group, table in enumerate(self.tables.page_tables):
            for row, (request, *_) in enumerate(asked if tabled else ()):
                named = table.page_table_cpu[row, : table.num_pages_per_row[row]].tolist()
                assert len(named) == len(held := self.batched.get_page_ids(request.request_id)[group])
                assert all(own in (0, page) for page, own in zip(named, held, strict=True)), "but for pages given back"
        assert batch.num_granted == int(batch.granted.sum())
        self.happened["some did not fit"] += batch.num_granted < len(asked)
        self.happened["all fit"] += batch.num_granted == len(asked) > 1

    def leave(self) -> None:
        """A request goes, perhaps before its last step was dispatched."""
        if self.live:
            request = self.live.pop(self.source.choice(list(self.live)))
            written = self.source.choice([None, self.source.randint(0, self.given[request.request_id])])
            assert self.batched.free(request, written) == self.single.free(request, written)

    def withdraw(self) -> None:
        """Now and then hashes are dropped, of pages in use as well."""
        if self.source.random() < 0.2:
            pages = self.source.sample(range(self.batched.page_pool.num_pages), 2)
            for manager in (self.batched, self.single):
                manager.evict_pages(pages)

    def ask(self) -> None:
        """Now and then a page is asked for by its key, and from then on keys are kept."""
        pools = self.batched.page_pool, self.single.page_pool
        keys = list(pools[1].cached_page_hash_to_page)
        if keys and self.source.random() < 0.1:
            key = self.source.choice(keys)
            found = [pool.get_cached_page(fast.PageHash(*key[0]), [key[1]]) for pool in pools]
            assert found[0] is not None
            assert found[1] is not None
            assert found[0].page_ids == found[1].page_ids

    def compare(self) -> None:
        """Everything that the two show is the same."""
        assert self.batched.take_page_copies() == self.single.take_page_copies()
        for request_id in self.live:
            assert self.batched.get_page_ids(request_id) == self.single.get_page_ids(request_id)
        states = [
            (
                manager.page_pool.free_order.order().tolist(),
                {
                    key: [page.page_id for page in pages]
                    for key, pages in manager.page_pool.cached_page_hash_to_page.items()
                },
            )
            for manager in (self.batched, self.single)
        ]
        assert states[0] == states[1]
        if self.follower is not None:
            told, singly = self.batched.take_events(), self.single.take_events()
            for kind in (fast.PageStored, fast.PageRemoved):
                own = [event for event in told if isinstance(event, kind)]
                assert own == [event for event in singly if isinstance(event, kind)], "MAN-12"
                self.happened[kind.__name__] += len(own) > 1
            self.follower.apply(told)
            followed = self.follower.cached_page_hash_to_page
            assert {key: list(pages) for key, pages in followed.items()} == states[0][1], "MAN-12"
        self.batched.check()


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    mix=group_mixes,
    num_pages=st.integers(4, 30),
    eagle=st.booleans(),
    unhashed_first=st.sampled_from([False, False, True]),
    few=st.sampled_from([small_step.FEW, 0]),
    events=st.booleans(),
    looked_at=st.sampled_from([1, 4, 30]),
)
def test_man_11_a_batch_is_the_single_calls_in_order(
    seed: int, mix: list[Any], num_pages: int, eagle: bool, unhashed_first: bool, few: int, events: bool, looked_at: int
) -> None:
    """Whether the pages of a step are few, and served in a loop, or many, and served as arrays; told of or not.

    The stores of a step are told in the order of the single calls, and so are its removals, which come first (MAN-12).
    All that is cached is looked at after each call, or seldom: looking settles what lags behind (`GrowingTail`).
    """
    options = {"use_eagle": eagle, "unhashed_first": unhashed_first, "enable_events": events}
    twins = Twins(seed, mix, num_pages, options)
    with mock.patch.object(batched_step, "FEW", few):
        for _ in range(30):
            twins.source.choice([twins.admit, twins.step, twins.step, twins.leave, twins.withdraw])()
            if not twins.source.randrange(looked_at):
                twins.compare()
        twins.compare()


@pytest.mark.parametrize(
    "mix",
    [[full(1)], [full(3)], [full(4), full(2)], [full(2), window(2, 5)], [window(1, 3)]],
    ids=["pages of 1", "pages of 3", "two sizes", "and a window", "a window"],
)
def test_pool_7_long_decodes_leave_tails_that_nobody_looks_at(mix: list[Any]) -> None:
    """MAN-11: of several pages, when a look-up, a prefix that parts there, a withdrawal or the end comes by."""
    for seed in range(12):
        options = {"unhashed_first": seed % 4 == 0, "use_eagle": seed % 3 == 0}
        twins = Twins(seed, mix, 20 + 3 * seed, options, longest=60)
        with mock.patch.object(batched_step, "FEW", (small_step.FEW, 0, 4)[seed % 3]):
            for _ in range(80):
                if len(twins.live) > 6:
                    twins.leave()
                twins.source.choice([twins.admit, *[twins.step] * 6, twins.leave, twins.withdraw, twins.ask])()
                twins.batched.coordinator.groups[0].check()
                if not twins.source.randrange(20):
                    twins.compare()
            twins.compare()


def test_the_twins_meet_what_matters() -> None:
    happened: Counter[str] = Counter()
    for seed in range(20):
        twins = Twins(seed, [full(2)], 12, {"enable_events": True})
        for _ in range(30):
            twins.source.choice([twins.admit, twins.step, twins.step, twins.leave])()
            twins.compare()
        happened += twins.happened
    assert all(happened[what] > 10 for what in ("hit", "some did not fit", "all fit", "PageStored", "PageRemoved"))


@pytest.mark.parametrize("tabled", [False, True])
def test_man_11_a_page_is_told_of_who_took_it(tabled: bool) -> None:
    """Right after admission it is not worked out yet who needs one: here it is the second request."""
    manager, tables = fast.CacheManager(10, [full(4)], 16), fast.MultiGroupPageTable(2, 16, 8, [4])
    for row, length in enumerate((5, 4)):
        manager.allocate_slots(fast.Request(f"r{row}", list(range(length))), length)
        tables.add_row(manager.get_page_ids(f"r{row}"), row)
    options: dict[str, Any] = {"tables": tables, "rows": [0, 1]} if tabled else {}
    batch = manager.allocate_slots_batch([0, 1], [5, 4], 1, **options)
    assert [batch.get_page_ids(place) for place in (0, 1)] == [([],), ([4],)]
    assert [offsets.tolist() for offsets in batch.offsets] == [[0, 0, 1]]


# -- Refusals (R1) --------------------------------------------------------------------------------


class Ready:
    """Two live requests of 4 and 3 tokens, pages of 2, with their rows."""

    def __init__(self) -> None:
        self.manager = fast.CacheManager(10, [full(2)], 8)
        self.tables = fast.MultiGroupPageTable(3, 8, 8, [2])
        for row, tokens in enumerate(([1, 2, 3, 4], [1, 2, 9])):
            request = spec.Request("ab"[row], tokens)
            self.manager.allocate_slots(request, len(tokens))
            self.tables.add_row(self.manager.get_page_ids(request.request_id), row)


@pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])
@pytest.mark.parametrize("few", [small_step.FEW, 0])
@pytest.mark.parametrize(
    ("token", "kind"),
    [
        (True, TypeError),
        (1.5, TypeError),
        ("x", TypeError),
        (None, TypeError),
        (2**31, ValueError),
        (-(2**31) - 1, ValueError),
    ],
)
def test_r1_a_page_with_a_token_that_is_none(package: Any, few: int, token: Any, kind: type[Exception]) -> None:
    """In the second of two requests that list their tokens and fill a page; the first gets nothing either."""
    manager = package.CacheManager(10, [full(2)], 8)
    requests = [PlainRequest(name, [1, 2, 3]) for name in "ab"]
    for request in requests:
        manager.allocate_slots(request, 3)
        request.grow([4])
    requests[1].all_token_ids[3] = token

    def seen() -> Any:
        pool = manager.page_pool
        return [manager.get_page_ids(name) for name in "ab"], list(pool.cached_page_hash_to_page), manager.usage

    before = seen()
    with mock.patch.object(batched_step, "FEW", few):
        with pytest.raises(kind, match=r"all_token_ids.*\[R1\]"):
            manager.allocate_slots_batch([0, 1], [3, 3], 1)
        assert seen() == before
        manager.check()
        requests[1].all_token_ids[3] = np.int64(4)
        assert manager.allocate_slots_batch([0, 1], [3, 3], 1).num_granted == 2
    assert manager.get_computed_pages(PlainRequest("c", [1, 2, 3, 4, 5], status=None))[1] == 4


def test_man_11_rows_named_again_are_rows_of_these_tables() -> None:
    at = Ready()
    few = fast.MultiGroupPageTable(1, 8, 8, [2])
    for computed in ([4, 3], [5, 4]):
        at.manager.allocate_slots_batch([0, 1], computed, 1, tables=at.tables, rows=[0, 1])
    with pytest.raises(IndexError, match=r"TAB-2"):
        at.manager.allocate_slots_batch([0, 1], [6, 5], 1, tables=few, rows=[0, 1])
    at.manager.allocate_slots_batch([0, 1], [6, 5], 1, tables=at.tables, rows=[0, 1])
    with pytest.raises(ValueError, match=r"rows=\[0, 1\] must be 1 different rows \[MAN-11\]"):
        at.manager.allocate_slots_batch([0], [7], 1, tables=at.tables, rows=[0, 1])


def test_man_11_slots_named_again_are_read_again() -> None:
    """What is known of the slots of the step before is that they exist and differ, not that they are live."""
    at = Ready()
    slots = np.array([0, 1])
    for computed in ([4, 3], [5, 4]):
        at.manager.allocate_slots_batch(slots, computed, 1)
    slots[1] = 0  # the same array
    with pytest.raises(ValueError, match=r"slots=\[0, 0\] names a slot twice \[MAN-11\]"):
        at.manager.allocate_slots_batch(slots, [6, 6], 1)
    live, slots = at.manager.coordinator.live, np.array([0, 1])
    request = live.requests[1]
    assert request is not None
    at.manager.free(request)
    with pytest.raises(IndexError, match=r"slot 1 \[MAN-11\]"):
        at.manager.allocate_slots_batch([0, 1], [6, 5], 1)
    for count in (-1, live.num_slots[1], live.num_computed[1]):  # nor that it has what a slot without a request has
        with pytest.raises(IndexError, match=r"slot 1 \[MAN-11\]"):
            at.manager.allocate_slots_batch(slots, np.array([6, count]), 1)
    at.manager.allocate_slots(fast.Request("c", [1]), 1)
    assert at.manager.allocate_slots_batch([0, 1], [6, 1], 1).num_granted == 2
    at.manager.check()


# -- Cost (MAN-11) --------------------------------------------------------------------------------


def _calls(act: Callable[[], object]) -> int:
    """How many Python and C functions are called meanwhile."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("mix", [["full"], ["full", "window"]], ids=["full", "full and window"])
def test_man_11_a_step_costs_what_crosses_a_boundary(mix: list[str]) -> None:
    """Counted in calls: not the requests, nor their contexts, but those that need or fill a page."""
    kinds = {"full": full(16), "window": window(16, 64)}

    def step_calls(num_requests: int, context: int, num_crossing: int) -> int:
        manager = fast.CacheManager(num_requests * (context // 8 + 8), [kinds[kind] for kind in mix], 1 << 16)
        for number in range(num_requests):
            tokens = np.arange(context + (15 if number < num_crossing else 5), dtype=np.int32) + number
            manager.allocate_slots(fast.Request(str(number), tokens), len(tokens))
        computed = np.array([manager.coordinator.live.num_promised[slot] for slot in range(num_requests)])
        slots = np.arange(num_requests)
        live = [request for request in manager.coordinator.live.requests if isinstance(request, fast.Request)]
        manager.allocate_slots_batch(slots, computed - 1, 1)  # the columns are worked out
        for request in live:
            request.append(7)
        return _calls(lambda: manager.allocate_slots_batch(slots, computed, 1))

    quiet = step_calls(16, 64, 0)
    assert step_calls(256, 64, 0) == step_calls(16, 1024, 0) == quiet
    some, many = step_calls(256, 64, 8), step_calls(256, 64, 64)
    assert quiet < some < many < some + 56 * 40 * len(mix)
