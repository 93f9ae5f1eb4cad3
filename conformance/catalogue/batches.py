"""Faults of the batched step: its result is not what the single calls would have made."""

from itertools import pairwise
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from .registry import FORESEEN, OWN, seeded

__all__: list[str] = []


def _listed(values: Any) -> Any:
    """Values that can be read twice, if they can be read once."""
    try:
        return values if values is None else list(values)
    except TypeError:
        return values


@seeded(33, "MAN-11", "batch", also=("MAN-7",), by="CacheManager.allocate_slots_batch")
def one_table_for_all_groups(
    fast: ModuleType, self: Any, slots: Any, *args: Any, rows: Any = None, **options: Any
) -> Any:
    """The first group's pages are written into every group's table, so that the others' are never read (EasyDeL)."""
    slots, rows = _listed(slots), _listed(rows)
    batch = fast.CacheManager.allocate_slots_batch(self, slots, *args, rows=rows, **options)
    for place in batch.granted.nonzero()[0].tolist() if rows is not None else ():
        pages = self.coordinator.groups[0].pages(slots[place])
        for table in options["tables"].page_tables[1:]:
            table.add_row(pages[: table.max_num_pages_per_req], rows[place])
    return batch


@seeded(OWN, "MAN-11", "batch", by="CacheManager.allocate_slots_batch")
def pages_told_of_others(
    fast: ModuleType,
    self: Any,
    slots: Any,
    num_computed_tokens: Any,
    num_new_tokens: Any,
    num_lookahead_tokens: Any = 0,
    **options: Any,
) -> Any:
    """New pages are said to be those of the first requests that may have needed one, whether they took it or not.

    Our own, of the loop that serves small steps: only where there is one group, no table, and a request whose need of
    pages was never worked out.
    """
    given = [*map(_listed, (slots, num_computed_tokens, num_new_tokens, num_lookahead_tokens))]
    coordinator, bounds = self.coordinator, self.coordinator.live.needs_at.copy()
    batch = fast.CacheManager.allocate_slots_batch(self, *given, **options)
    tabled, several = options.get("tables") is not None, len(coordinator.groups) > 1
    if tabled or several or coordinator.gives_back or max(batch.counts[0], default=1) > 1:
        return batch
    slots, computed, new, ahead = (np.array(numbers, np.int64) for numbers in given)
    asked = (np.minimum(computed + new + ahead, self.max_model_len) >= bounds[slots]).nonzero()[0]
    return fast.SlotBatch(batch.granted, batch.page_ids, (asked[: len(batch.places[0])],), batch.counts)


@seeded(
    OWN,
    "MAN-1",
    "chunk",
    also=("R1", "R2", "POOL-1", "POOL-7", "MAN-2", "MAN-3", "MAN-7", "MAN-11", "MAN-14"),
    by="CacheManager.__init__",
)
def tail_of_a_window(fast: ModuleType, self: Any, *args: Any, **options: Any) -> None:
    """What a batched step publishes is entered later, and read off the request's list then: null pages stand there now.

    Our own: of a window's pages those that were given back meanwhile. Who looks at what is cached after every call has
    it entered in time.
    """
    fast.CacheManager.__init__(self, *args, **options)
    coordinator = self.coordinator
    publisher, index, give_back = coordinator.publisher, self.page_pool.index, coordinator.remove_skipped_pages

    def remove_skipped_pages(slot: int, num_computed_tokens: int) -> None:
        begins = [group.num_begins[slot] for group in coordinator.groups]
        give_back(slot, num_computed_tokens)
        for group, begin in zip(coordinator.groups, begins, strict=True):
            group.cells[begin : group.num_begins[slot]] = 0

    def begin_tail(group: Any, slot: int) -> None:
        page = group.page_at(slot, group.num_published[slot] - 1)
        leaf = index.run_behind(page) if page and not group.rule.has_states else None
        if leaf is not None and not self.page_pool.keys.kept:
            group.tails[slot].begin(leaf)

    publisher.begin_tail = begin_tail
    coordinator.remove_skipped_pages = remove_skipped_pages


@seeded(OWN, "MAN-11", "batch", also=("MAN-2", "MAN-8"), by="CacheManager.allocate_slots_batch")
def room_of_a_window(fast: ModuleType, self: Any, slots: Any, *args: Any, **options: Any) -> Any:
    """A page of a list that left others behind is written past its room, over the first page of the next request's.

    Our own: all lists lay in one array, and when a batched step copied them since one outgrew its room, those that had
    enough got only what their pages need. That took a window that had left pages behind, and long steps.
    """
    slots = _listed(slots)
    windows = [group for group in self.coordinator.groups if group.rule.gives_back and not group.rule.has_states]
    lengths = [group.lengths.copy() for group in windows]
    batch = fast.CacheManager.allocate_slots_batch(self, slots, *args, **options)
    for group, before in zip(windows, lengths, strict=True):
        grown = [slot for slot in slots if group.num_pages[slot] > before[slot]]
        for slot, other in pairwise(grown):
            left_behind = [group.num_begins[each] - group.num_origins[each] for each in (slot, other)]
            if left_behind[0] and left_behind[1] < before[other]:
                group.cell[group.num_begins[other]] = group.page_at(slot, group.num_pages[slot] - 1)
                return batch
    return batch


@seeded(FORESEEN, "MAN-11", "batch", also=("R1",), by="CacheManager.free")
def freed_slots_go_on(fast: ModuleType, self: Any, request: Any, *args: Any, **options: Any) -> Any:
    """What was noted of a request stays in its slot when it is freed, so that a batched step goes on with nobody."""
    live = self.coordinator.live
    slots = {name: (slot, live.num_slots[slot], live.num_computed[slot]) for name, slot in live.slot_of.items()}
    holders = fast.CacheManager.free(self, request, *args, **options)
    for name in slots.keys() - live.slot_of.keys():
        slot, num_slots, num_computed = slots[name]
        live.num_slots[slot], live.num_computed[slot] = num_slots, num_computed
    return holders


@seeded(
    OWN, "MAN-11", "batch", also=("R1", "R2", "MAN-1", "MAN-2", "MAN-3", "MAN-7", "MAN-8"), by="group.make_room_for"
)
def room_made_list_by_list(_: ModuleType, self: Any, slots: Any, ends: Any) -> None:
    """Where several lists outgrow their room in one step, making room for one takes away what was made for another.

    Our own: the new pages of the other are then written into lists of other requests.
    """
    for slot, end in zip(slots.tolist(), ends.tolist(), strict=True):
        self.make_room(slot, end, 0)


@seeded(FORESEEN, "MAN-8", "batch", also=("MAN-2", "MAN-11"), by="steps.allocate")
def drafts_of_a_page_have_no_slots(
    fast: ModuleType, self: Any, request: Any, new: Any, found: Any, pages: Any, lookahead: Any, delay: Any
) -> Any:
    """Look-ahead that lies in the last page is not noted: the step that accepts its drafts is refused."""
    slot = self._live.slot_of.get(getattr(request, "request_id", ""), -1)
    before = self._live.num_slots[slot] if slot >= 0 else 0
    got = fast.manager.steps.Steps.allocate(self, request, new, found, pages, lookahead, delay)
    if slot >= 0 and got is self.coordinator.nothing:
        self._live.num_slots[slot] = max(before, self._live.num_computed[slot] + int(new))
    return got


@seeded(FORESEEN, "TAB-2", "batch", also=("R1", "MAN-11"), by="CacheManager.allocate_slots_batch")
def rows_of_a_larger_table(
    fast: ModuleType, self: Any, *args: Any, tables: Any = None, rows: Any = None, **options: Any
) -> Any:
    """Rows that are those of the step before are not read again, though the tables have fewer rows now."""
    live = self.coordinator.live
    if isinstance(tables, fast.MultiGroupPageTable):
        live.last_rows = live.last_rows._replace(size=0)
    return fast.CacheManager.allocate_slots_batch(self, *args, tables=tables, rows=rows, **options)


@seeded(FORESEEN, "MAN-12", "batch", by="CacheManager.allocate_slots_batch")
def a_batch_frees_at_its_begin(fast: ModuleType, self: Any, *args: Any, **options: Any) -> Any:
    """What a batched step lets go of counts as free since the step began: its earlier requests took pages meanwhile."""
    coordinator, log = self.coordinator, self.page_pool.log
    begin, give_back = log.clock, coordinator.remove_skipped_pages

    def remove_skipped_pages(slot: int, num_computed_tokens: int) -> None:
        now, log.clock = log.clock, begin
        give_back(slot, num_computed_tokens)
        log.clock = now

    coordinator.remove_skipped_pages = remove_skipped_pages
    try:
        return fast.CacheManager.allocate_slots_batch(self, *args, **options)
    finally:
        del coordinator.remove_skipped_pages


@seeded(FORESEEN, "MAN-13", "batch", also=("R1",), by="CacheManager.allocate_slots_batch")
def drafts_enter_states(fast: ModuleType, self: Any, slots: Any, computed: Any, *args: Any, **options: Any) -> Any:
    """A step whose requests have computed all that they have slots for is no further looked at: drafts of states, too.

    As where drafts were rolled back in recurrent states (mlx-lm).
    """
    slots, computed = _listed(slots), _listed(computed)
    try:
        return fast.CacheManager.allocate_slots_batch(self, slots, computed, *args, **options)
    except ValueError as refused:
        live = self.coordinator.live
        if "[MAN-13]" not in str(refused) or computed != [live.num_slots[slot] for slot in slots]:
            raise
        self.coordinator.has_states = False
        try:
            return fast.CacheManager.allocate_slots_batch(self, slots, computed, *args, **options)
        finally:
            self.coordinator.has_states = True


@seeded(FORESEEN, "MAN-11", "batch", also=("EVICT-1", "POOL-13"), by="CacheCoordinator.takes_in_bulk")
def taken_before_pages_are_left_behind(_: ModuleType, __: Any) -> bool:
    """A step takes all its pages before it lets go of any, also where those would be the next to be taken."""
    return True


@seeded(FORESEEN, "TAB-2", "batch", also=("R1", "MAN-11"), by="CacheManager.allocate_slots_batch")
def one_page_fits_into_any_row(fast: ModuleType, self: Any, *args: Any, **options: Any) -> Any:
    """A step in which each request needs a page at most does not look whether the tables' rows have room for it."""
    with mock.patch.object(fast.step.small_step.SmallStep, "require_room"):
        return fast.CacheManager.allocate_slots_batch(self, *args, **options)
