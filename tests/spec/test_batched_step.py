"""MAN-11, MAN-12: a batched step is the single calls in order, whoever does not fit."""

from typing import Any

import numpy as np
from hypothesis import settings

from kvproof import spec

from .driven_managers import MAX_MODEL_LEN, DrivenManagers


class BatchesAreSingles(DrivenManagers):
    """The first manager makes batched steps, the second the single calls: nothing that they show differs."""

    num_managers = 2

    def begin(self) -> None:
        sizes = [group.kv_cache_spec.page_size for group in self.groups]
        self.tables = spec.MultiGroupPageTable(4, MAX_MODEL_LEN + 4, 64, sizes)
        for manager in self.managers:
            manager.take_events()

    def step_many(self, names: list[str], steps: list[tuple[int, int, int]], late: bool) -> list[bool]:
        batching, single = self.managers
        events = [manager.take_events() for manager in self.managers]
        assert events[0] == events[1]
        self.tables.clear()
        rows = [3 - batching.slot_of(name) for name in names]
        self.tables.append_rows_batch([batching.get_page_ids(name) for name in names], rows)
        before = [_rows(self.tables, row) for row in rows]

        computed, new, ahead = (np.array(column) for column in zip(*steps, strict=True))
        batch = batching.allocate_slots_batch(
            [batching.slot_of(name) for name in names],
            computed,
            new,
            ahead,
            delay_cache_pages=late,
            tables=self.tables,
            rows=rows,
        )
        granted = []
        for place, name in enumerate(names):
            self.requests[name].num_computed_tokens = steps[place][0]
            given = single.allocate_slots(
                self.requests[name], steps[place][1], num_lookahead_tokens=steps[place][2], delay_cache_pages=late
            )
            pages = [[] for _ in self.groups] if given is None else given.get_page_ids()
            assert batch.get_page_ids(place) == tuple(pages)
            assert _rows(self.tables, rows[place]) == [
                old + more for old, more in zip(before[place], pages, strict=True)
            ]
            granted.append(given is not None)
        assert batch.granted.tolist() == granted
        assert batch.num_granted == sum(granted)
        self.judge_events(*(manager.take_events() for manager in self.managers))
        self.call(_shown)
        return granted

    def judge_events(self, batched: list[Any], single: list[Any]) -> None:
        """The same ones; in the batched step removals come first, in their order, then stores in theirs."""
        removals = [event for event in single if isinstance(event, spec.PageRemoved)]
        assert batched == removals + [event for event in single if not isinstance(event, spec.PageRemoved)]


def _rows(tables: spec.MultiGroupPageTable, row: int) -> list[list[int]]:
    return [table.page_table_cpu[row, : table.num_pages_per_row[row]].tolist() for table in tables.page_tables]


def _shown(manager: spec.CacheManager) -> Any:
    """The whole state, but for the ages of pages: in a batched step they count from the step's end (MAN-12)."""
    state = manager.snapshot()
    del state["stored_at"], state["counters"]["page_lifetimes"]
    return state


BatchesAreSinglesTest = BatchesAreSingles.TestCase
BatchesAreSinglesTest.settings = settings(max_examples=100)
