"""The page lists of one group: that they are lists, what memory they take, and what is left where memory ends."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast
from kvproof.fast.groups.page_lists import PageLists

ENTRY, SLOT, SPARE = 8, 80, 1 << 16
"""The most bytes for each page held, for each slot, and in all: twice what four bytes a page take."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["open", "add", "add", "add", "one", "one", "step", "nulls", "leave", "close", "resize"]),
        st.integers(0, 40),
        st.one_of(st.integers(0, 9), st.integers(0, 20_000)),
    ),
    max_size=60,
)


class Model:
    """Page lists, and what they are to be: plain lists, null pages as 0."""

    def __init__(self) -> None:
        self.lists = PageLists()
        self.lists.resize(2)
        self.model: list[list[int]] = [[], []]
        self.next = 0

    def new(self, count: int) -> list[int]:
        self.next += count
        return list(range(self.next - count + 1, self.next + 1))

    def take(self, what: str, number: int, count: int) -> None:
        slot = number % len(self.model)
        own, lists = self.model[slot], self.lists
        if what == "open" and not own:
            first, pages = number % 7, self.new(count % 500)
            own += [0] * first + pages
            lists.open_list(slot, np.array(own, np.int64), first)
        elif what == "add":
            pages = self.new(count)
            lists.make_room(slot, len(own) + count, count)
            own += pages
            lists.add_pages(slot, np.array(pages, np.int64), len(own))
        elif what == "one":
            lists.make_room_for(np.array([slot]), np.array([len(own) + 1]))
            own += self.new(1)
            lists.add_page(slot, own[-1], len(own))
        elif what == "step":
            self.take_step(number, count)
        elif what == "nulls":  # as where a state group goes on many tokens later
            end = len(own) + count % 1_000
            lists.make_room(slot, end + 1, 1)
            lists.add_nulls(slot, end)
            own += [0] * (end - len(own)) + self.new(1)
            lists.add_page(slot, own[-1], end + 1)
        elif what == "leave":
            left = lists.leave_behind(slot, count)
            lists.save_memory()
            assert left.tolist() == [page for page in own[:count][::-1] if page]
            own[:count] = [0] * len(own[:count])
        elif what == "close":
            lists.close_list(slot)
            own.clear()
        elif what == "resize" and len(self.model) < 40:
            self.model += [[] for _ in self.model]
            lists.resize(len(self.model))

    def take_step(self, number: int, count: int) -> None:
        """As a batched step: room for many lists, then pages given back, then each list's new pages, past null pages.

        Each list that has a page in its last place grows; every other one of them gives back half of its own first.
        """
        lists = self.lists
        slots = np.array([slot for slot, own in enumerate(self.model) if own and own[-1]], np.int64)
        ends = lists.lengths[slots] + 1 + (count + number * np.arange(len(slots))) % 700
        lists.make_room_for(slots, ends)
        for slot in slots[::2].tolist():
            half = len(self.model[slot]) // 2
            lists.leave_behind(slot, half)
            self.model[slot][:half] = [0] * half
        for slot, end in zip(slots.tolist(), ends.tolist(), strict=True):
            own = self.model[slot]
            own += [0] * (end - len(own) - 1) + self.new(1)
            lists.add_nulls(slot, end - 1)
            lists.add_page(slot, own[-1], end)
        lists.save_memory()

    @property
    def num_held(self) -> int:
        """Places from each list's first page on."""
        return sum(len(own) - next((place for place, page in enumerate(own) if page), len(own)) for own in self.model)


def num_bytes(lists: PageLists) -> int:
    """What page lists take."""
    return int(lists.cells.nbytes + lists._places.nbytes)


@given(STEPS)
def test_page_lists_are_lists_and_take_memory_by_what_they_hold(steps: list[tuple[str, int, int]]) -> None:
    """MAN-2: whichever of them grow, lose their first pages or come and go, in whatever order."""
    both = Model()
    for step in steps:
        both.take(*step)
        both.lists.check_lists()
        assert [both.lists.pages(slot).tolist() for slot in range(len(both.model))] == both.model
        assert num_bytes(both.lists) <= ENTRY * both.num_held + SLOT * len(both.model) + SPARE
    for slot, own in enumerate(both.model):
        places = sorted({0, len(own) // 2, len(own)})
        assert [both.lists.page_at(slot, place) for place in places[:-1]] == [own[place] for place in places[:-1]]
        for start in places:
            for stop in places[places.index(start) :]:
                assert both.lists.pages_between(slot, start, stop).tolist() == own[start:stop]


# -- In a manager ---------------------------------------------------------------------------------


def manager_of(num_pages: int, *kinds: Any, page_size: int = 16) -> fast.CacheManager:
    groups = [fast.CacheGroupSpec(kind) for kind in kinds or [fast.FullAttentionSpec(page_size, 1, 8, "float32")]]
    return fast.CacheManager(num_pages, groups, max_model_len=1 << 21)


def prompt(name: str, length: int) -> fast.Request:
    return fast.Request(name, np.full(length, len(name), np.int32))


def test_one_long_prompt_makes_no_other_list_long() -> None:
    """MAN-2: 4,000 live requests of a page and one of a million tokens, and what is left when it goes."""
    manager = manager_of(75_000)
    for number in range(4_000):
        request = fast.Request(str(number), np.arange(16, dtype=np.int32) + number)
        assert manager.allocate_slots(request, 16) is not None
    long = prompt("long", 1_000_000)
    assert manager.allocate_slots(long, 1_000_000) is not None
    group, most_live = manager.coordinator.groups[0], 4_096
    assert group.cells.nbytes <= ENTRY * (4_000 + 62_500)
    for num_pages in (4_000 + 62_500, 4_000):
        assert num_bytes(group) <= ENTRY * num_pages + SLOT * most_live + SPARE
        manager.free(long)
    manager.check()


def test_a_window_takes_memory_for_what_it_holds() -> None:
    """MAN-8: a list as long as its context, of whose pages 1,000 at a time are still held; after a restore, too."""
    manager = manager_of(4_000, fast.SlidingWindowSpec(1, 1, 8, "float32", sliding_window=1_000))
    request = prompt("window", 100_000)
    for computed in range(0, 100_000, 2_000):
        request.num_computed_tokens = computed
        assert manager.allocate_slots(request, 2_000) is not None
    restored = fast.CacheManager.restore(manager.snapshot(), [request])
    for each in (manager, restored):
        assert len(each.get_page_ids("window")[0]) == 100_000
        assert num_bytes(each.coordinator.groups[0]) <= ENTRY * 3_000 + SLOT * 16 + SPARE


@pytest.mark.parametrize("window", [None, 20])
def test_pages_of_a_step_stay_in_their_own_lists(window: int | None) -> None:
    """MAN-11: requests that all outgrow their lists in one batched step hold pages of their own, as single calls do."""
    kind: Any = fast.FullAttentionSpec(1, 1, 8, "float32")
    if window is not None:
        kind = fast.SlidingWindowSpec(1, 1, 8, "float32", sliding_window=window)
    batched, single = manager_of(20_000, kind), manager_of(20_000, kind)
    requests = [prompt("x" * (1 + number), 4_000) for number in range(8)]
    for computed, more in [(0, 40), (40, 100), (140, 700), (840, 30), (870, 900)]:
        for request in requests:
            request.num_computed_tokens = computed
            assert single.allocate_slots(request, more) is not None
            if not computed:
                assert batched.allocate_slots(request, more) is not None
        if computed:
            slots = np.array([batched.slot_of(request.request_id) for request in requests])
            assert batched.allocate_slots_batch(slots, np.full(8, computed), more).granted.all()
        batched.check()
        for request in requests:
            assert batched.get_page_ids(request.request_id) == single.get_page_ids(request.request_id)


def test_a_list_with_room_keeps_it_where_others_have_none() -> None:
    """R2: in one step a list grows into the room that an earlier request left it, and others have to be copied."""
    lists = PageLists()
    lists.resize(4)
    lists.open_list(0, np.arange(1, 101), 0)
    lists.close_list(0)
    for slot in range(4):
        lists.open_list(slot, np.array([101 + slot]), 0)
    slots, ends = np.arange(4), np.array([100, 90, 80, 70])
    lists.make_room_for(slots, ends)
    held = []
    for slot, end in zip(slots.tolist(), ends.tolist(), strict=True):
        held.append([101 + slot, *range(1_000 * slot + 1_000, 1_000 * slot + 999 + end)])
        lists.add_pages(slot, np.array(held[-1][1:]), end)
    lists.check_lists()
    assert [lists.pages(slot).tolist() for slot in range(4)] == held


@pytest.mark.parametrize("length", [8, 12, 16])
def test_a_list_keeps_its_room_when_all_are_copied_for_others(length: int) -> None:
    """MAN-11, R2: a window that has left pages behind, and so holds fewer than it has room for."""
    kind = fast.SlidingWindowSpec(1, 1, 8, "float32", sliding_window=5)
    requests = [prompt("x" * (1 + number), 400) for number in range(16)]
    for new in range(1, 30):
        batched, single = manager_of(5_000, kind), manager_of(5_000, kind)
        for manager in (batched, single):
            for request, tokens in zip(requests, [length, *[1] * 15], strict=True):
                request.num_computed_tokens = 0
                assert manager.allocate_slots(request, tokens) is not None
            requests[0].num_computed_tokens = length
            assert manager.allocate_slots(requests[0], 1) is not None
        computed = [length + 1, *[1] * 15]
        assert batched.allocate_slots_batch(list(range(16)), computed, new).granted.all()
        for request, done in zip(requests, computed, strict=True):
            request.num_computed_tokens = done
            assert single.allocate_slots(request, new) is not None
        batched.check()
        for request in requests:
            assert batched.get_page_ids(request.request_id) == single.get_page_ids(request.request_id)


# -- Where memory ends ----------------------------------------------------------------------------


def grown(manager: fast.CacheManager, names: str, length: int) -> list[fast.Request]:
    requests = [
        fast.Request(name, np.arange(4_096, dtype=np.int32) + 5_000 * place) for place, name in enumerate(names)
    ]
    for request in requests:
        assert manager.allocate_slots(request, length) is not None
        request.num_computed_tokens = length
    return requests


def admission(manager: fast.CacheManager, _: list[fast.Request]) -> object:
    return manager.allocate_slots(prompt("new", 4_000), 4_000)


def step(manager: fast.CacheManager, requests: list[fast.Request]) -> object:
    return manager.allocate_slots(requests[0], 3_000)


def batch(new: int) -> Callable[[fast.CacheManager, list[fast.Request]], object]:
    def act(manager: fast.CacheManager, requests: list[fast.Request]) -> object:
        slots = [manager.slot_of(request.request_id) for request in requests]
        return manager.allocate_slots_batch(slots, [request.num_computed_tokens for request in requests], new)

    return act


@pytest.mark.parametrize("act", [admission, step, batch(1), batch(1_000)], ids=["admit", "step", "few", "many"])
def test_where_memory_ends_no_page_is_lost(act: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """MAN-2: room for a list is taken before its first page is, so that the call can be made again."""
    manager = manager_of(2_000, page_size=4)
    requests = grown(manager, "abcdefgh", 8)
    while not all(group.num_pages[0] == group.num_limits[0] for group in manager.coordinator.groups):
        batch(4)(manager, requests)  # until the lists are full, one of them without room for another page
        for request in requests:
            request.num_computed_tokens += 4
    names = [*"abcdefgh", "new"]
    before = [manager.get_page_ids(name) for name in names], manager.page_pool.get_num_free_pages()

    def out_of_memory(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(PageLists, "_move", out_of_memory)
        with pytest.raises(MemoryError):
            act(manager, requests)
    manager.check()
    assert ([manager.get_page_ids(name) for name in names], manager.page_pool.get_num_free_pages()) == before
    assert act(manager, requests) is not None
    manager.check()
