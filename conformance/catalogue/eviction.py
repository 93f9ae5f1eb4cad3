"""Seeded bugs of the policies by which free pages are evicted (EVICT-1)."""

from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import with_policy
from .registry import FORESEEN, seeded

__all__: list[str] = []


@seeded(FORESEEN, "EVICT-1", "pool")
def parent_goes_before_child(fast: ModuleType) -> SimpleNamespace:
    """A page that was hit is protected, those before it in its prompt, which it needs to be hit, are not."""
    order = fast.pool.eviction.ReuseOrder

    def released(self: Any, pages: Any, freed: Any) -> None:
        before = self._hits[pages].copy()
        order.released(self, pages, freed)
        self._hits[pages] = before

    return with_policy(fast, released=released)


@seeded(FORESEEN, "EVICT-1", "pool", also=("POOL-13",))
def hits_of_free_pages_do_not_count(fast: ModuleType) -> SimpleNamespace:
    """Only pages that are in use count as hit: a prefix that nobody else holds is never protected."""
    order = fast.pool.eviction.ReuseOrder

    def hit(self: Any, pages: Any, counts: Any, are_distinct: bool) -> None:
        free = pages[counts[pages] == 0]
        before = self._hits[free].copy()
        order.hit(self, pages, counts, are_distinct)
        self._hits[free] = before

    return with_policy(fast, hit=hit)


@seeded(FORESEEN, "EVICT-1", "pool", also=("POOL-13",))
def hits_count_once(fast: ModuleType) -> SimpleNamespace:
    """A page that was hit again and again is taken as early as one that was hit once."""
    order = fast.pool.eviction.ReuseOrder

    def hit(self: Any, pages: Any, counts: Any, are_distinct: bool) -> None:
        order.hit(self, pages, counts, are_distinct)
        self._hits[pages] = self._hits[pages].clip(max=1)

    return with_policy(fast, hit=hit)


@seeded(FORESEEN, "EVICT-1", "pool", also=("POOL-2", "POOL-13"))
def protection_outlives_the_hash(fast: ModuleType) -> SimpleNamespace:
    """A page that lost its hash is still protected when it holds something else, which nobody has hit.

    Its own check sees it as well (POOL-2), and a call that frees pages without a hash shows it first (POOL-13).
    """
    order = fast.pool.eviction.ReuseOrder

    def forgotten(self: Any, pages: Any, counts: Any) -> None:
        before = self._hits[pages].copy()
        order.forgotten(self, pages, counts)
        self._hits[pages] = before

    def published(self: Any, pages: Any, marks: Any) -> None:
        before = self._hits[pages].copy()
        order.published(self, pages, marks)
        self._hits[pages] = self._hits[pages] | before

    return with_policy(fast, forgotten=forgotten, published=published)


@seeded(FORESEEN, "EVICT-1", "snapshots", also=("MAN-14", "MAN-5", "MAN-8", "POOL-3"))
def pages_taken_alone_leave_no_ghosts(fast: ModuleType) -> SimpleNamespace:
    """Only what is evicted many pages at a time is known again when it is published next."""

    def evicted_one(self: Any, page: int) -> None:
        if self._run_cell[page]:
            self._hits_cell[page] = 0
            self.clock += 1

    return with_policy(fast, evicted_one=evicted_one)
