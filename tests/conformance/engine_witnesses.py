"""Witnesses, as in `catalogue_witnesses`, of the seeded bugs that are about engines: no model is needed."""

from collections.abc import Callable
from typing import Any

from kvproof.conformance.engine.plans import Limits, Served
from kvproof.conformance.engine.sampler import GREEDY
from kvproof.conformance.engine.scheduler import Scheduler
from kvproof.conformance.replay.groups import read_groups
from kvproof.spec.declarations import Request

from .catalogue_witnesses import SEED, tried

__all__ = ["ENGINE_WITNESSES"]


def scheduler_of(names: Any, num_pages: int) -> Any:
    limits = Limits(read_groups("full:2", 2), num_pages, 32, 4, 16)
    manager = names.CacheManager(num_pages, list(limits.groups), 32, hash_seed=SEED)
    return getattr(names, "Scheduler", Scheduler)(manager, names.MultiGroupPageTable(4, 32, 16, [2]), limits)


def served(name: str, length: int, priority: int, arrival: int) -> Served:
    return Served(Request(name, [arrival] * length), length, 1, GREEDY, priority, arrival)


def scheduled(scheduler: Any) -> object:
    plan = scheduler.schedule()
    scheduler.note_computed(plan)
    for chunk in plan.chunks:
        chunk.served.request.append(0)
    chosen = [(chunk.served.request.request_id, chunk.start, chunk.count) for chunk in plan.chunks]
    return chosen, [waiting.request.request_id for waiting in plan.preempted]


def one_table_for_all_layers(names: Any) -> object:
    tables = names.MultiGroupPageTable(1, 8, 8, [2, 2])
    tables.add_row([[1], [2]], 0)
    return [tables[group].get_cpu_tensor().tolist() for group in range(2)]


def too_large_waits_for_ever(names: Any) -> object:
    return tried(lambda: scheduler_of(names, 4).add(served("a", 7, 0, 0)))


def reserve_holds_back_the_largest(names: Any) -> object:
    scheduler = scheduler_of(names, 4)
    scheduler.add(served("a", 6, 0, 0))
    return scheduled(scheduler)


def scheduled_gives_way(names: Any) -> object:
    scheduler = scheduler_of(names, 6)
    scheduler.add(served("low", 6, 0, 0))
    first = scheduled(scheduler)
    scheduler.add(served("high", 3, 1, 1))
    return first, scheduled(scheduler)


ENGINE_WITNESSES: dict[str, Callable[[Any], object]] = {
    witness.__name__: witness
    for witness in (
        one_table_for_all_layers,
        too_large_waits_for_ever,
        reserve_holds_back_the_largest,
        scheduled_gives_way,
    )
}
