"""Faults of the batched step: its result is not what the single calls would have made."""

from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import with_manager
from .registry import seeded

__all__: list[str] = []


def _listed(values: Any) -> Any:
    """Values that can be read twice, if they can be read once."""
    try:
        return values if values is None else list(values)
    except TypeError:
        return values


@seeded(33, "MAN-11", "batch", also=("MAN-7",))
def one_table_for_all_groups(fast: ModuleType) -> SimpleNamespace:
    """The first group's pages are written into every group's table, so that the others' are never read (EasyDeL)."""

    def allocate_slots_batch(self: Any, slots: Any, *args: Any, rows: Any = None, **options: Any) -> Any:
        slots, rows = _listed(slots), _listed(rows)
        batch = fast.CacheManager.allocate_slots_batch(self, slots, *args, rows=rows, **options)
        for place in batch.granted.nonzero()[0].tolist() if rows is not None else ():
            pages = self.coordinator.groups[0].pages(slots[place])
            for table in options["tables"].page_tables[1:]:
                table.add_row(pages[: table.max_num_pages_per_req], rows[place])
        return batch

    return with_manager(fast, allocate_slots_batch=allocate_slots_batch)
