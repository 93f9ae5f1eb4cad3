"""Seeded bugs of the rules by which pages of windows, chunks and states are kept (RET-1 to RET-4)."""

from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import with_part, with_snapshots
from .registry import FORESEEN, seeded

__all__: list[str] = []

_LET_GO = ("EVICT-1",)
"""What a wrong order breaks beside RET-3 where a policy ranks free pages."""


@seeded(FORESEEN, "RET-2", "hybrid", also=("RET-3", *_LET_GO), by="CacheCoordinator.find_junction")
def junctions_are_found_in_the_longest_group(fast: ModuleType, self: Any, tokens: Any, segments: Any) -> int:
    """What full attention alone would hit is a junction, even where all groups together hit as far."""
    if not self.retention.finds_junctions:
        return 0
    most = len(tokens) // 4 - 1
    *_, reach = fast.groups.coordinator.longest_hit(
        self.page_pool.index, self.groups, tokens, segments, most, eagle=True
    )
    return int(reach)


@seeded(FORESEEN, "RET-2", "snapshots", also=("MAN-14", "RET-3", *_LET_GO), by=with_snapshots)
def junctions_end_with_a_restart(snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
    """A restored request doesn't know where its prompt parted from another: what the next one needs is let go."""
    if not isinstance(snapshot.get("retention"), Mapping):
        return snapshot
    return {**snapshot, "retention": {**snapshot["retention"], "points": []}}


@seeded(FORESEEN, "RET-3", "hybrid", also=_LET_GO)
def a_junction_is_kept_once(fast: ModuleType) -> SimpleNamespace:
    """The request that parted keeps the pages of the junction, the one that hits them there lets them go."""
    return _worth_as_an_end(fast, fast.groups.retention.KEPT)


@seeded(FORESEEN, "RET-3", "window", also=_LET_GO)
def the_end_of_a_prompt_outlives_others(fast: ModuleType) -> SimpleNamespace:
    """What only a turn's own prompt needs stays as long as what the next turn needs."""
    return _worth_as_an_end(fast, fast.groups.retention.SECOND)


@seeded(FORESEEN, "RET-3", "window", also=_LET_GO, by="coordinator.retention._on_interval")
def an_interval_keeps_its_last_multiple(fast: ModuleType, self: Any, group: Any, places: Any, computed: int) -> Any:
    """Of the multiples that a request passes at once only what the last one needs is kept."""
    after = -(-(places + 1) * group.page_size // self.interval) * self.interval
    return fast.groups.retention.Retention._on_interval(self, group, places, computed) & (
        after + self.interval > computed
    )


def _worth_as_an_end(fast: ModuleType, worth: int) -> SimpleNamespace:
    """A backend in which pages of some worth go to the back of the queue, as those that a request's end needs."""
    retention = fast.groups.retention

    def worth_between(self: Any, *args: Any) -> Any:
        found = retention.Retention.worth_between(self, *args)
        return [(low, high, retention.FIRST if value == worth else value) for low, high, value in found]

    return with_part(fast, "coordinator.retention", worth_between=worth_between)


@seeded(FORESEEN, "RET-3", "window", also=("MAN-14", "POOL-3", "EVICT-1", *_LET_GO))
def shared_pages_are_not_kept(fast: ModuleType) -> SimpleNamespace:
    """A page that another request still holds is not noted as one to be kept: whoever lets go of it last decides."""
    retention = fast.groups.retention.Retention

    def as_before(self: Any, let_go: Any, *about: Any) -> None:
        pool = self._pool
        kept = pool.lasting.copy()
        let_go(self, *about)
        is_held = pool.counts.of > 0
        pool.lasting[is_held] &= kept[is_held]

    def let_go(self: Any, pages: Any, worth: Any, passed: Any) -> None:
        as_before(self, retention.let_go, pages, worth, passed)

    def let_go_before(self: Any, group: Any, slot: int, first: int, computed: int) -> None:
        as_before(self, retention.let_go_before, group, slot, first, computed)

    return with_part(fast, "coordinator.retention", let_go=let_go, let_go_before=let_go_before)
