"""Managers of several groups that are the specification but for one fault each; see `broken`."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from kvproof.spec import (
    CacheCounters,
    CacheEvent,
    CacheManager,
    CachePage,
    CachePages,
    PageCopy,
    PagePool,
    PageRemoved,
    PartCopy,
    PinnedPrefix,
    SlotBatch,
)
from kvproof.spec.groups.group_rules import AlignedStates, ChunkedLocal, GroupRules, OneState, SlidingWindow
from kvproof.spec.manager.steps import Steps
from kvproof.spec.pool.free_order import FreeOrder

__all__ = ["GROUPS", "POOLS"]


class Altered(CacheManager):
    """A manager whose groups' rules can be altered before anything happens."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for rules in self.coordinator.rules:
            self.alter(rules)

    def alter(self, rules: GroupRules) -> None:
        """Alters one group's rules."""


# -- Look-ups -----------------------------------------------------------------------------------------


class ForgetsEagle(CacheManager):
    """The page after the hit is not asked for."""

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        eagle = [rules for rules in self.coordinator.rules if rules.is_eagle]
        for rules in eagle:
            rules.is_eagle = False
        try:
            return super().get_computed_pages(request)
        finally:
            for rules in eagle:
                rules.is_eagle = True


class NarrowLookUp(Altered):
    """A window is one token shorter when prefixes are looked up: one of its pages may be missing."""

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        windows = [rules for rules in self.coordinator.rules if isinstance(rules, SlidingWindow) and rules.window > 1]
        for rules in windows:
            rules.window -= 1
        try:
            return super().get_computed_pages(request)
        finally:
            for rules in windows:
                rules.window += 1


class HitsNulls(CacheManager):
    """Null pages alone are a hit: a chunk that begins at the hit needs nothing."""

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        pages, found = super().get_computed_pages(request)
        rules = self.coordinator.rules
        if found == 0 and self.enable_caching and len(rules) == 1 and isinstance(rules[0], ChunkedLocal):
            length = (request.num_tokens - 1) // rules[0].page_size * rules[0].page_size
            if length and length % rules[0].chunk == 0 and request.sampling_params.prompt_logprobs is None:
                return CachePages([[self.page_pool.null_page] * (length // rules[0].page_size)]), length
        return pages, found


class HitsAnyState(CacheManager):
    """A state that lies before the hit's end will do."""

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        def is_served(rules: Any, length: int, cached: Sequence[Any], with_eagle: bool, part_of: Any) -> bool:
            del with_eagle, part_of
            return any(cached[: length // rules.page_size])

        def prefix(coordinator: Any, rules: GroupRules, length: int, cached: Sequence[Any]) -> list[CachePage]:
            del coordinator
            end = length // rules.page_size
            last = max(place for place in range(end) if cached[place])
            return [self.page_pool.null_page] * (end - 1) + [cached[last]]

        if any(not isinstance(rules, AlignedStates) for rules in self.coordinator.rules):
            return super().get_computed_pages(request)
        with (
            patch.object(AlignedStates, "is_served", is_served),
            patch.object(type(self.coordinator), "_prefix", prefix),
        ):
            return super().get_computed_pages(request)


class SharesAcrossGroups(CacheManager):
    """A page that holds the right tokens for another group's layers is hit."""

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        under = type(self.page_pool).cached_under

        def anywhere(pool: Any, key: Any, group_id: int) -> Any:
            del group_id
            groups = range(self.num_kv_cache_groups)
            return next((found for group in groups if (found := under(pool, key, group))), [])

        with patch.object(PagePool, "cached_under", anywhere):
            return super().get_computed_pages(request)


# -- Slots --------------------------------------------------------------------------------------------


class NeverGivesBack(CacheManager):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.coordinator.remove_skipped_pages = lambda *_: None  # type: ignore[method-assign]


class GivesBackHeadFirst(CacheManager):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        right = self.coordinator.remove_skipped_pages

        def remove(request_id: str, num_computed: int) -> None:
            with patch("kvproof.spec.groups.coordinator.reversed", list, create=True):
                right(request_id, num_computed)

        self.coordinator.remove_skipped_pages = remove  # type: ignore[method-assign]


class KeepsOnNoneSteps(Steps):
    """Where there is no room, what was given back is taken back."""

    def meet(self, demand: Any) -> Any:
        if demand.live is not None:
            request_id = demand.request.request_id
            skipped = [
                page
                for rules, held in zip(self._coordinator.rules, self._coordinator.held[request_id], strict=True)
                for page in held.pages[: rules.first_place(demand.computed)]
                if not page.is_null
            ]
            coordinator = self._coordinator
            wanted = coordinator.get_num_pages_to_allocate(
                request_id, demand.promised, demand.slots, demand.hits, demand.parts
            )
            if wanted > coordinator.page_pool.get_num_free_pages() + len(skipped):
                demand.live.num_computed = demand.computed
                return None
        return super().meet(demand)


class KeepsOnNone(CacheManager):
    """See `KeepsOnNoneSteps`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.steps.__class__ = KeepsOnNoneSteps


class PublishesMidway(CacheManager):
    """A state is published whether or not a step ended at its boundary."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for rules in self.coordinator.rules:
            if isinstance(rules, AlignedStates):
                rules.is_publishable = lambda *_: True  # type: ignore[method-assign]


class NotesNoCopies(CacheManager):
    def take_page_copies(self) -> list[PageCopy | PartCopy]:
        super().take_page_copies()
        return []


class KeepsCopies(CacheManager):
    """The copies of a request that was freed are handed out all the same."""

    def free(self, request: Any, num_written: int | None = None) -> list[str]:
        noted = list(self.coordinator.queued_copies)
        held = super().free(request, num_written)
        self.coordinator.queued_copies = noted
        return held


class RollsBackStatesSteps(Steps):
    """Computed tokens of a request with states may lie below what was promised."""

    def read(self, request: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return super().read(request, *arguments, **named)
        except ValueError as error:
            if "[MAN-13]" not in str(error):
                raise
            states = (AlignedStates, OneState)
            with patch.multiple(states[0], holds_states=False), patch.multiple(states[1], holds_states=False):
                return super().read(request, *arguments, **named)


class RollsBackStates(CacheManager):
    """See `RollsBackStatesSteps`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.steps.__class__ = RollsBackStatesSteps


class CommonInWindows(CacheManager):
    """Common pages are counted in groups that give pages back."""

    def get_num_common_prefix_pages(self, request: Any, num_scheduled_requests: int) -> list[int]:
        parts = [rules for rules in self.coordinator.rules if not rules.keeps_prefix]
        for rules in parts:
            rules.keeps_prefix = True
        try:
            return super().get_num_common_prefix_pages(request, num_scheduled_requests)
        finally:
            for rules in parts:
                rules.keeps_prefix = False


class OneGranularity(CacheManager):
    """Free withdraws by the first group's page size in every group."""

    def free(self, request: Any, num_written: int | None = None) -> list[str]:
        sizes = {rules.page_size for rules in self.coordinator.rules}
        if isinstance(num_written, int) and not isinstance(num_written, bool) and len(sizes) > 1:
            return super().free(request, num_written // max(sizes) * max(sizes) if num_written >= 0 else num_written)
        return super().free(request, num_written)


# -- The batched step ---------------------------------------------------------------------------------


class StopsAtFirst(CacheManager):
    """Once a request does not fit, the later ones are not tried."""

    def allocate_slots_batch(self, *arguments: Any, **named: Any) -> SlotBatch:
        stopped: list[bool] = []
        meet = Steps.meet

        def first_only(steps: Any, demand: Any) -> Any:
            if stopped:
                return None
            pages = meet(steps, demand)
            if pages is None:
                stopped.append(True)
            return pages

        with patch.object(Steps, "meet", first_only):
            return super().allocate_slots_batch(*arguments, **named)


class WideIds(CacheManager):
    def allocate_slots_batch(self, *arguments: Any, **named: Any) -> SlotBatch:
        batch = super().allocate_slots_batch(*arguments, **named)
        return replace(batch, page_ids=tuple(ids.astype(np.int64) for ids in batch.page_ids))


class LeavesRows(CacheManager):
    """The table rows of the last request of a step are forgotten."""

    def allocate_slots_batch(self, slots: Any, *arguments: Any, **named: Any) -> SlotBatch:
        tables, rows = named.get("tables"), named.get("rows")
        given = list(rows) if rows is not None and not isinstance(rows, str | int) else rows
        batch = super().allocate_slots_batch(slots, *arguments, **named | ({} if rows is None else {"rows": given}))
        if tables is not None and isinstance(given, list) and len(given) > 1:
            row = given[-1]
            lists = [
                table.get_cpu_tensor()[row, : table.num_pages_per_row[row]].tolist() for table in tables.page_tables
            ]
            ids = batch.get_page_ids(len(given) - 1)
            tables.add_row([own[: len(own) - len(new)] for own, new in zip(lists, ids, strict=True)], row)
        return batch


class TellsInTurn(CacheManager):
    """A batched step tells what each request stored before what the next one removed."""

    def allocate_slots_batch(self, *arguments: Any, **named: Any) -> SlotBatch:
        meet, publish = Steps.meet, Steps.publish
        late = named.get("delay_cache_pages")

        def at_once(steps: Any, demand: Any) -> Any:
            pages = meet(steps, demand)
            if pages is not None and not late:
                publish(steps, demand)
            return pages

        with patch.object(Steps, "meet", at_once), patch.object(Steps, "publish", lambda *_: None):
            return super().allocate_slots_batch(*arguments, **named)


# -- Events, pins, shards, snapshots --------------------------------------------------------------------


class RemovesOnce(CacheManager):
    """A removal is told only when no duplicate is left."""

    def take_events(self) -> list[CacheEvent]:
        cached = {key.get_hash_value() for key in self.page_pool.cached_page_hash_to_page}
        return [
            event
            for event in super().take_events()
            if not isinstance(event, PageRemoved) or event.page_hash not in cached
        ]


class CountsRefusals(CacheManager):
    """A look-up counts as a query, whether or not the request is admitted."""

    looked_up = 0

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        found = super().get_computed_pages(request)
        self.looked_up += 1
        return found

    @property
    def counters(self) -> CacheCounters:
        return replace(super().counters, requests=self.looked_up)


class PinsForOthers(PagePool):
    """The bound of one tenant is not kept."""

    def __init__(self, num_pages: int, enable_caching: bool, **options: Any) -> None:
        super().__init__(num_pages, enable_caching, **options)
        self.pins._max_per_salt = None


class FreesPins(PagePool):
    """A pin's reference can be freed like any other."""

    def free_pages(self, ordered_pages: Iterable[CachePage]) -> None:
        pages = list(ordered_pages)
        with patch.object(self.pins, "of", lambda _: 0):
            super().free_pages(pages)


class _Unranked(FreeOrder):
    def put(self, pages: Iterable[int]) -> None:
        self.queue.put(pages)

    def remove(self, page: int) -> None:
        self.queue.remove(page)

    def set_priority(self, page: int, priority: int, end: float | None) -> None:
        self._priority[page] = (priority, end)

    def check(self, counts: Sequence[int]) -> None:
        pass


class IgnoresPriority(PagePool):
    """Priorities are noted and do not order the queue."""

    def __init__(self, num_pages: int, enable_caching: bool, **options: Any) -> None:
        super().__init__(num_pages, enable_caching, **options)
        self.free_order.__class__ = _Unranked


class LastsTooLong(PagePool):
    """A priority lasts beyond its end."""

    def set_priority(self, pages: Any, priority: int, expires_at: float | None = None) -> None:
        given = list(pages)
        super().set_priority(given, priority, expires_at)
        if expires_at is not None:
            for page in given:
                if self.get_priority(page.page_id):
                    self.free_order.set_priority(page.page_id, priority, expires_at + 0.25)


class UnpinsHeadFirst(CacheManager):
    def unpin_prefix(self, pin_id: int) -> None:
        pin = self.prefixes.pinned.get(pin_id) if type(pin_id) is int else None
        if pin is not None:
            turned = CachePages([list(group)[::-1] for group in pin.pages.pages])
            self.prefixes.pinned[pin_id] = PinnedPrefix(pin.pin_id, pin.num_tokens, turned)
        super().unpin_prefix(pin_id)


class PinsWithoutEagle(CacheManager):
    """What is pinned is what a look-up would hit: the last page is left out."""

    def pin_prefix(self, request: Any, num_tokens: int | None = None) -> PinnedPrefix | None:
        coordinator = self.coordinator
        find = coordinator.find_longest_cache_hit

        def shorter(*arguments: Any, **named: Any) -> Any:
            pages, found = find(*arguments, **named)
            return ([[] for _ in pages], 0) if found == request.num_tokens else (pages, found)

        with patch.object(coordinator, "find_longest_cache_hit", shorter):
            return super().pin_prefix(request, num_tokens)


class ForgetsOrder(CacheManager):
    """A snapshot has the free pages, not their order."""

    def snapshot(self) -> dict[str, Any]:
        shot = super().snapshot()
        return shot | {"free": sorted(shot["free"])}


class ForgetsHits(CacheManager):
    """A restored request does not know which of its pages it found."""

    @classmethod
    def restore(cls, snapshot: Any, requests: Any = (), **named: Any) -> Any:
        manager = super().restore(snapshot, requests, **named)
        for groups in manager.coordinator.held.values():
            for held in groups:
                held.num_hits = 0
        return manager


POOLS: list[tuple[str, type[PagePool], str]] = [
    ("pool_pins", PinsForOthers, "PIN-1"),
    ("pool_pins", FreesPins, "POOL-5"),
    ("pool_pins", IgnoresPriority, "PIN-2"),
    ("pool_pins", LastsTooLong, "PIN-2"),
]
"""(machine, broken pool, the clause that it breaks)."""

GROUPS: list[tuple[str, dict[str, Any], str]] = [
    ("hybrid", {"CacheManager": ForgetsEagle}, "MAN-9"),
    ("window", {"CacheManager": NarrowLookUp}, "MAN-7"),
    ("chunk", {"CacheManager": HitsNulls}, "MAN-1"),
    ("state", {"CacheManager": HitsAnyState}, "MAN-13"),
    ("hybrid", {"CacheManager": SharesAcrossGroups}, "MAN-7"),
    ("window", {"CacheManager": NeverGivesBack}, "MAN-8"),
    ("chunk", {"CacheManager": GivesBackHeadFirst}, "MAN-8"),
    ("hybrid", {"CacheManager": KeepsOnNone}, "MAN-8"),
    ("state", {"CacheManager": PublishesMidway}, "MAN-13"),
    ("state", {"CacheManager": NotesNoCopies}, "MAN-13"),
    ("state", {"CacheManager": KeepsCopies}, "MAN-13"),
    ("state", {"CacheManager": RollsBackStates}, "MAN-13"),
    ("hybrid", {"CacheManager": CommonInWindows}, "MAN-10"),
    ("hybrid", {"CacheManager": OneGranularity}, "MAN-4"),
    ("batch", {"CacheManager": StopsAtFirst}, "MAN-11"),
    ("batch", {"CacheManager": WideIds}, "MAN-11"),
    ("batch", {"CacheManager": LeavesRows}, "MAN-11"),
    ("batch", {"CacheManager": TellsInTurn}, "MAN-12"),
    ("events", {"CacheManager": RemovesOnce}, "MAN-12"),
    ("events", {"CacheManager": CountsRefusals}, "MAN-12"),
    ("pins", {"CacheManager": UnpinsHeadFirst}, "PIN-1"),
    ("pins", {"CacheManager": PinsWithoutEagle}, "PIN-1"),
    ("snapshots", {"CacheManager": ForgetsOrder}, "MAN-14"),
    ("snapshots", {"CacheManager": ForgetsHits}, "MAN-14"),
]
"""(machine, broken names, the clause that they break)."""
