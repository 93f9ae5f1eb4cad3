"""Seeded bugs of the policies by which free pages are evicted (EVICT-1)."""

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import with_policy
from .registry import FORESEEN, seeded

__all__: list[str] = []


@seeded(FORESEEN, "EVICT-1", "pool", by="policy.released")
def parent_goes_before_child(fast: ModuleType, self: Any, pages: Any) -> None:
    """A page that was hit is protected, those before it in its prompt, which it needs to be hit, are not."""
    before = self._uses[pages].copy()
    fast.pool.eviction.ReuseOrder.released(self, pages)
    after = self._uses[pages]
    self._uses[pages] = (before + 1).clip(max=after) if (before > 1).any() else after.clip(max=3)


@seeded(FORESEEN, "EVICT-1", "pool", also=("POOL-13",), by="policy.released")
def first_use_counts_as_hit(fast: ModuleType, self: Any, pages: Any) -> None:
    """A page counts as hit when it is let go for the first time: what nobody asked for again is protected as well."""
    fast.pool.eviction.ReuseOrder.released(self, pages)
    own = self._uses[pages]
    self._uses[pages] = own + (own == 2)


@seeded(FORESEEN, "EVICT-1", "pins", also=("POOL-13",), by="policy.released")
def hits_count_once(fast: ModuleType, self: Any, pages: Any) -> None:
    """A page that was hit again and again is taken as early as one that was hit once."""
    fast.pool.eviction.ReuseOrder.released(self, pages)
    self._uses[pages] = self._uses[pages].clip(max=3)


@seeded(FORESEEN, "EVICT-1", "pool", also=("POOL-2", "POOL-13"), by="policy.forgotten")
def protection_outlives_the_hash(fast: ModuleType, self: Any, pages: Any) -> None:
    """A page that lost its hash waits among those that hold something, by the hits that its content had.

    Its own check sees it as well (POOL-2), and a call that frees pages without a hash shows it first (POOL-13).
    """
    before = self._uses[pages].copy()
    fast.pool.eviction.ReuseOrder.forgotten(self, pages)
    self._uses[pages] = before


@seeded(FORESEEN, "EVICT-1", "snapshots", also=("MAN-14",), by="policy._evicted_few")
def pages_taken_alone_leave_no_ghosts(_: ModuleType, self: Any, pages: Sequence[int]) -> None:
    """Only what is evicted many pages at a time is known again when it is published next."""
    for page in pages:
        if self._uses_cell[page]:
            self._uses_cell[page] = 0
            self.clock += 1


@seeded(FORESEEN, "EVICT-1", "soak", also=("MAN-14",), by="policy.note_next")
def next_pages_are_marked_without_extra_keys(
    fast: ModuleType, self: Any, page: int, after: int, place: int, tokens: bytes, extra: bytes
) -> None:
    """A page that is published right behind another is known again by its tokens alone, whoever's it was."""
    del extra
    fast.pool.eviction.ReuseOrder.note_next(self, page, after, place, tokens, b"")


@seeded(FORESEEN, "EVICT-1", "snapshots", also=("MAN-14",), by="coordinator.retention.told")
def groups_are_learned_of_in_turn(
    fast: ModuleType, self: Any, slot: int, held: Any, ending: Any
) -> tuple[Any, Any, None]:
    """Pages come in the order of the groups: a window's count as hit as often as the first page of the prefix."""
    pages, worth, _ = fast.groups.retention.Retention.told(self, slot, held, ending)
    return pages, worth, None


@seeded(FORESEEN, "EVICT-1", "soak", also=("MAN-11", "MAN-14", "MAN-5", "MAN-8", "POOL-3"))
def marks_are_computed_too_late(fast: ModuleType) -> SimpleNamespace:
    """What a page holds is noted, and looked up by the page before it, which holds something else by then.

    So it was in `kvproof.fast`, where pages of second class were let go (RET-3).
    """
    order = fast.pool.eviction.ReuseOrder

    def settled(method: Any) -> Any:
        def settle_first(self: Any, *arguments: Any) -> Any:
            order.settle(self)
            return method(self, *arguments)

        return settle_first

    def note_next(self: Any, page: int, *rest: Any) -> None:
        before = self.mark_cell[page]
        order.note_next(self, page, *rest)
        self.mark_cell[page] = before

    first = {name: settled(getattr(order, name)) for name in ("released", "forgotten", "_mark_behind")}
    return with_policy(fast, note_next=note_next, settle=lambda _: None, noted_pages=lambda _: [], **first)
