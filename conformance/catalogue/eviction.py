"""Seeded bugs of the policies by which free pages are evicted (EVICT-1)."""

from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import with_part, with_policy
from .registry import FORESEEN, seeded

__all__: list[str] = []


@seeded(FORESEEN, "EVICT-1", "pool")
def parent_goes_before_child(fast: ModuleType) -> SimpleNamespace:
    """A page that was hit is protected, those before it in its prompt, which it needs to be hit, are not."""
    order = fast.pool.eviction.ReuseOrder

    def released(self: Any, pages: Any) -> None:
        before = self._uses[pages].copy()
        order.released(self, pages)
        after = self._uses[pages]
        self._uses[pages] = (before + 1).clip(max=after) if before.any() else after.clip(max=2)

    return with_policy(fast, released=released)


@seeded(FORESEEN, "EVICT-1", "pool", also=("POOL-13",))
def first_use_counts_as_hit(fast: ModuleType) -> SimpleNamespace:
    """A page counts as hit when it is let go for the first time: what nobody asked for again is protected as well."""
    order = fast.pool.eviction.ReuseOrder

    def released(self: Any, pages: Any) -> None:
        order.released(self, pages)
        own = self._uses[pages]
        self._uses[pages] = own + (own == 1)

    return with_policy(fast, released=released)


@seeded(FORESEEN, "EVICT-1", "pool", also=("POOL-13",))
def hits_count_once(fast: ModuleType) -> SimpleNamespace:
    """A page that was hit again and again is taken as early as one that was hit once."""
    order = fast.pool.eviction.ReuseOrder

    def released(self: Any, pages: Any) -> None:
        order.released(self, pages)
        self._uses[pages] = self._uses[pages].clip(max=2)

    return with_policy(fast, released=released)


@seeded(FORESEEN, "EVICT-1", "pool", also=("POOL-2", "POOL-13"))
def protection_outlives_the_hash(fast: ModuleType) -> SimpleNamespace:
    """A page that lost its hash is still protected when it holds something else, which nobody has hit.

    Its own check sees it as well (POOL-2), and a call that frees pages without a hash shows it first (POOL-13).
    """
    order = fast.pool.eviction.ReuseOrder

    def forgotten(self: Any, pages: Any) -> None:
        before = self._uses[pages].copy()
        order.forgotten(self, pages)
        self._uses[pages] = before

    return with_policy(fast, forgotten=forgotten)


@seeded(FORESEEN, "EVICT-1", "snapshots", also=("MAN-14", "MAN-5", "MAN-8", "POOL-3"))
def pages_taken_alone_leave_no_ghosts(fast: ModuleType) -> SimpleNamespace:
    """Only what is evicted many pages at a time is known again when it is published next."""

    def evicted_one(self: Any, page: int) -> None:
        if self._run_cell[page]:
            self._uses_cell[page] = 0
            self.clock += 1

    return with_policy(fast, evicted_one=evicted_one)


@seeded(FORESEEN, "EVICT-1", "snapshots", also=("MAN-14", "MAN-5", "MAN-8", "POOL-3"))
def groups_are_learned_of_in_turn(fast: ModuleType) -> SimpleNamespace:
    """Pages come in the order of the groups: a window's count as hit as often as the first page of the prefix."""
    retention = fast.groups.retention.Retention

    def told(self: Any, slot: int, held: Any, ending: Any) -> tuple[Any, Any, None]:
        pages, worth, _ = retention.told(self, slot, held, ending)
        return pages, worth, None

    return with_part(fast, "coordinator.retention", told=told)


@seeded(FORESEEN, "EVICT-1", "soak", also=("MAN-14", "MAN-5", "MAN-8", "POOL-3"))
def marks_are_computed_too_late(fast: ModuleType) -> SimpleNamespace:
    """What a page holds is noted, and looked up by the page before it, which holds something else by then.

    So it was in `kvproof.fast`, where pages of second class were let go (RET-3).
    """
    order = fast.pool.eviction.ReuseOrder
    not_yet = -1

    def settled(method: Any) -> Any:
        def settle_first(self: Any, pages: Any) -> None:
            order.settle(self)
            method(self, pages)

        return settle_first

    def mark_behind(self: Any, tree: Any, page: int) -> Any:
        if page and self.mark_cell[page] == not_yet:
            order.settle(self)
        return order._mark_behind(self, tree, page)

    first = {"released": settled(order.released), "forgotten": settled(order.forgotten), "_mark_behind": mark_behind}
    return with_policy(fast, settle=lambda _: None, noted_pages=lambda _: [], **first)
