"""Faults of the page table: rows that hold what they should not, and a device table that differs from the host's."""

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import derived, whole, with_table
from .registry import FORESEEN, seeded

__all__: list[str] = []


@seeded(35, "TAB-2", "table", by="PageTable.append_row")
def page_lost_but_counted(fast: ModuleType, self: Any, page_ids: Any, row_idx: Any) -> None:
    """One page appended to a full row is lost, and is counted (EasyDeL, vLLM, vllm-ascend 11466).

    The row's rest is an empty slice, into which one value broadcasts without an error.
    """
    pages, row = self.read_row(page_ids, row_idx)
    if len(pages) == 1 and self._counts[row] == self.max_num_pages_per_req:
        self._counts[row] += 1
        self.cpu_version += 1
    else:
        fast.PageTable.append_row(self, pages, row)


@seeded(35, "R1", "table", also=("TAB-2",), by="PageTable.append_row")
def counted_before_raising(fast: ModuleType, self: Any, page_ids: Any, row_idx: Any) -> None:
    """Pages that don't fit are counted before the assignment of them raises (EasyDeL, vLLM)."""
    pages = list(page_ids)
    try:
        fast.PageTable.append_row(self, pages, row_idx)
    except ValueError:  # they don't fit; any other fault raises another error
        if len(pages) > 1:
            self._counts[row_idx] += len(pages)
        raise


@seeded(36, "TAB-2", "table")
def negative_rows_wrap(fast: ModuleType) -> SimpleNamespace:
    """A negative row counts from the last one, as in numpy: another request's row is written (EasyDeL)."""

    def wrapped(self: Any, row: Any) -> Any:
        return row + self.max_num_reqs if whole(row) and -self.max_num_reqs <= row < 0 else row

    def append_row(self: Any, page_ids: Any, row_idx: Any) -> None:
        fast.PageTable.append_row(self, page_ids, wrapped(self, row_idx))

    def add_row(self: Any, page_ids: Any, row_idx: Any) -> None:
        fast.PageTable.add_row(self, page_ids, wrapped(self, row_idx))

    def clear_row(self: Any, row_idx: Any) -> None:
        fast.PageTable.clear_row(self, wrapped(self, row_idx))

    def move_row(self: Any, src: Any, tgt: Any) -> None:
        fast.PageTable.move_row(self, wrapped(self, src), wrapped(self, tgt))

    def swap_row(self: Any, src: Any, tgt: Any) -> None:
        fast.PageTable.swap_row(self, wrapped(self, src), wrapped(self, tgt))

    return with_table(
        fast, append_row=append_row, add_row=add_row, clear_row=clear_row, move_row=move_row, swap_row=swap_row
    )


@seeded(36, "TAB-2", "table", by="PageTable.commit")
def commit_of_minus_one(fast: ModuleType, self: Any, num_reqs: Any) -> None:
    """Committing -1 rows commits all but the last (EasyDeL)."""
    fast.PageTable.commit(self, self.max_num_reqs - 1 if whole(num_reqs) and num_reqs == -1 else num_reqs)


@seeded(36, "TAB-2", "table", also=("R1", "TAB-8"), by="PageTable.append_rows_batch")
def batch_half_applied(fast: ModuleType, self: Any, page_ids: Any, req_indices: Any) -> None:
    """A batch is appended row by row until one is refused; what came before it stays (EasyDeL)."""
    lists, rows = list(page_ids), list(req_indices)
    if len(lists) != len(rows):
        fast.PageTable.append_rows_batch(self, lists, rows)  # refuses
    for pages, row in zip(lists, rows, strict=True):
        self.append_row(pages, row)


@seeded(37, "TAB-1", "table", by="PageTable.add_row")
def stale_ids_after_add(fast: ModuleType, self: Any, page_ids: Any, row_idx: Any) -> None:
    """A row replaced by a shorter list keeps old ids behind its count (EasyDeL's seed, vLLM 39589, 37728)."""
    before = self._host.copy()
    fast.PageTable.add_row(self, page_ids, row_idx)
    behind = self._counts[row_idx]
    self._host[row_idx, behind:] = before[row_idx, behind:]


@seeded(37, "TAB-1", "table", by="PageTable.move_row")
def stale_ids_after_move(fast: ModuleType, self: Any, src: Any, tgt: Any) -> None:
    """A row that a shorter one is moved over keeps old ids behind its count (EasyDeL's seed, vLLM 49757, 42273)."""
    before = self._host.copy()
    fast.PageTable.move_row(self, src, tgt)
    behind = self._counts[tgt]
    self._host[tgt, behind:] = before[tgt, behind:]


@seeded(38, "TAB-4", "table")
def host_change_leaks_into_commit(fast: ModuleType) -> SimpleNamespace:
    """The device reads the host's memory after ``commit`` has returned (EasyDeL, TensorRT-LLM 15546).

    What the host changes right after the call is on the device when somebody looks. Here the copy runs when the
    device table is first read, which is as late as it can be.
    """
    commit_now = fast.PageTable.commit

    def land(self: Any) -> Any:
        late, self.late = self.late, 0
        if late:
            commit_now(self, late)
        return self._device

    def commit(self: Any, num_reqs: Any) -> None:
        land(self)
        commit_now(self, num_reqs)
        self.late = num_reqs

    def clear(self: Any) -> None:
        self.late = 0
        fast.PageTable.clear(self)

    return with_table(fast, late=0, commit=commit, clear=clear, get_device_tensor=land, page_table=property(land))


@seeded(39, "TAB-5", "programs")
def program_for_each_count(fast: ModuleType) -> SimpleNamespace:
    """A commit's number of rows is part of its program, which is compiled again for each (EasyDeL, 63 ms)."""
    import jax

    write_rows = jax.jit(lambda table, rows: table.at[: rows.shape[0]].set(rows))

    def commit(self: Any, num_reqs: Any) -> None:
        fast.PageTable.commit(self, num_reqs)
        self._device = write_rows(self._device, np.array(self._host[:num_reqs]))

    return with_table(fast, commit=commit)


@seeded(FORESEEN, "R1", "table", by="PageTable.slot_mapping")
def positions_of_any_shape(fast: ModuleType, self: Any, rows: Any, positions: Any, page_size: Any) -> Any:
    """Positions in an array of two dimensions are read as those of a flat one, where they can only be a mistake."""
    flat = np.ravel(positions) if isinstance(positions, np.ndarray) and positions.ndim > 1 else positions
    return fast.PageTable.slot_mapping(self, rows, flat, page_size)


@seeded(FORESEEN, "TAB-4", "table")
def long_rows_are_sent_from_their_first_column(fast: ModuleType) -> SimpleNamespace:
    """What a row has got since the last commit is copied by itself where it is long, from the row's first column on."""
    lag_class = fast.table.table_lag.DeviceLag

    def cells(self: Any, rows: Any, columns: Any, lengths: Any) -> Any:
        sent = lag_class._cells(self, rows, columns, lengths)
        for row, length in zip(rows.tolist(), lengths.tolist(), strict=True):
            if length > 128:
                sent[2][sent[0] == row] = self._host[row, :length]
        return sent

    def commit(self: Any, num_reqs: Any) -> None:
        self._lag.__class__ = derived(lag_class, {"_cells": cells})
        fast.PageTable.commit(self, num_reqs)

    return with_table(fast, commit=commit)


@seeded(FORESEEN, "R1", "multi_table", also=("TAB-2", "TAB-4", "TAB-7"), by="MultiGroupMetadataBuilder.build")
def groups_are_committed_in_turn(_: ModuleType, self: Any, tables: Any, computed: Any, scheduled: Any) -> Any:
    """A step that a later group has no pages for is refused when the tables of the groups before it were committed."""
    own = self.read_tables(tables)
    return [builder.build(table, computed, scheduled) for builder, table in zip(self.builders, own, strict=True)]
