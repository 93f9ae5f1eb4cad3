"""Faults of engines: who is scheduled, who gives way, and which table a layer reads."""

from types import ModuleType, SimpleNamespace
from typing import Any

from ..engine.scheduler import Scheduler
from .patching import backend_with, derived
from .registry import seeded

__all__: list[str] = []


def _with_scheduler(fast: ModuleType, **members: Any) -> SimpleNamespace:
    """A backend that offers a scheduler of its own: the suite's, some members replaced."""
    return backend_with(fast, Scheduler=derived(Scheduler, members))


@seeded(33, "ENG-1", "engine")
def one_table_for_all_layers(fast: ModuleType) -> SimpleNamespace:
    """Whatever group a layer is of, the first group's table is read: what others allocate is never used (EasyDeL)."""

    def first_table(self: Any, group: int) -> Any:
        del group
        return self.page_tables[0]

    tables = derived(fast.MultiGroupPageTable, {"__getitem__": first_table})
    return backend_with(fast, MultiGroupPageTable=tables)


@seeded(53, "ENG-2", "engine")
def too_large_waits_for_ever(fast: ModuleType) -> SimpleNamespace:
    """A request within the model's limit that needs more pages than the pool has is queued, and blocks it (vLLM 39734).

    Nobody behind it is served either.
    """

    def require_room(self: Any, served: Any) -> None:
        del self, served

    return _with_scheduler(fast, require_room=require_room)


@seeded(53, "ENG-2", "engine")
def reserve_holds_back_the_largest(fast: ModuleType) -> SimpleNamespace:
    """A request is admitted only while a page stays free beyond its whole prompt: one that needs them all never is."""

    def place(self: Any, served: Any, budget: int) -> int:
        sizes = [group.kv_cache_spec.page_size for group in self.limits.groups]
        prompt = max(-(-served.request.num_tokens // size) for size in sizes)
        if not served.is_running and self.manager.page_pool.get_num_free_pages() <= prompt + len(sizes):
            return 0
        return int(Scheduler._place(self, served, budget))

    return _with_scheduler(fast, _place=place)


@seeded(54, "ENG-2", "engine", also=("ENG-1",))
def scheduled_gives_way(fast: ModuleType) -> SimpleNamespace:
    """Who was admitted last gives way, though the step has it scheduled for its priority (EasyDeL, vLLM 23347)."""

    def victim(self: Any, served: Any) -> Any:
        running = [other for other in self.queue if other.is_running and other is not served]
        return max(running, key=lambda other: other.arrival, default=None)

    return _with_scheduler(fast, victim=victim)
