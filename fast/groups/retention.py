"""RET-1, RET-3: which pages of windows, chunks and states are worth keeping when a request lets go of them.

The places that a hit of some length needs in a group lie between two bounds. So the pages that a request lets go of in
one call are judged by a few slices, however many they are.
"""

from collections.abc import Mapping, Sequence
from math import lcm

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.snapshots import retention_of

from ..pool.letting_go import FIRST, KEPT, SECOND, learn, let_go, let_go_one, retain
from ..pool.page_pool import PagePool
from ..reading.arguments import integer, refusal
from .cache_group import CacheGroup
from .live_requests import LiveRequests
from .longest_hit import Hits

__all__ = ["Retention", "ends_on_kept_page"]

Bounds = tuple[int, int]
"""The first of some places, and the one behind the last."""

Ending = tuple[NDArray[np.int8], dict[int, int]]
"""What a freed request's pages are worth in a group, last one first; what it passed that its end needs, by place."""

Told = tuple[NDArray[np.int64], NDArray[np.int8] | None, NDArray[np.int64] | None]
"""The arguments of `learn` behind the pool."""


_NO_PAGES: NDArray[np.int64] = np.empty(0, np.int64)


class Retention:
    """The rules by which a manager judges the pages that a request lets go of.

    Args:
        pool: the pool; if it caches no pages, none is judged.
        groups: the cache groups.
        live: the live requests.
        interval: the argument ``retention_interval``.

    Attributes:
        interval: the tokens between the lengths at which hits can end anyway; 0: there are none; None: all lengths.
        judges: True if pages are judged at all: some group needs only part of a prefix, and not every length counts.
        finds_junctions: True if there can be junctions (RET-2).

    Raises:
        ValueError: ``interval`` is no multiple of a group's page size (RET-1).
    """

    def __init__(self, pool: PagePool, groups: Sequence[CacheGroup], live: LiveRequests, interval: object) -> None:
        self._pool = pool
        self._groups = groups
        self._live = live
        self._eagle_units = [group.unit for group in groups if group.is_eagle]
        self._unit = lcm(*(group.unit for group in groups))
        self._serves_hits = pool.enable_caching and all(group.rule.publishes for group in groups)
        self.interval = (
            None if interval is None else integer("retention_interval", interval, clause="RET-1", below=2**63)
        )
        for group in groups:
            if self.interval is not None and self.interval % group.page_size:
                raise refusal(
                    ValueError,
                    "RET-1",
                    f"retention_interval={self.interval} must be a multiple of the {group.page_size} tokens in a page "
                    f"of group {group.group_id}",
                )
        needs_part = any(group.rule.gives_back for group in groups)
        self.judges = pool.enable_caching and needs_part and self.interval is not None
        if self.judges:
            retain(pool)
        if pool.policy is not None:
            pool.policy.serves_parts = needs_part
        keeps_all = any(group.rule.shares_prefixes for group in groups)
        self.finds_junctions = self._serves_hits and needs_part and keeps_all

    def resume_point(self, num_cached: int, most: int) -> int:
        """The longest length that a hit can have which needs nothing behind the first tokens. O(Eagle groups).

        Args:
            num_cached: how many tokens come first.
            most: the most tokens of the hit.
        """
        if not self._serves_hits:
            return 0
        if num_cached < most:
            most = num_cached
        for unit in self._eagle_units:
            before = (num_cached // unit - 1) * unit
            if before < most:
                most = before
        return most // self._unit * self._unit if most > 0 else 0

    def prompt_end(self, num_tokens: int) -> int:
        """The longest length of a hit below the end of a prompt; 0 where no page is judged. O(Eagle groups)."""
        return self.resume_point(num_tokens, num_tokens - 1) if self.judges else 0

    def needed(self, group: CacheGroup, length: int) -> Bounds:
        """The bounds of the places whose pages a hit of ``length`` tokens needs in a group."""
        if not length:
            return 0, 0
        return group.rule.first_place(length), -(-(length + group.unit * group.is_eagle) // group.page_size)

    def worth_between(
        self, group: CacheGroup, points: tuple[int, int], computed: int, end: Bounds, is_over: bool
    ) -> list[tuple[int, int, int]]:
        """What a request's pages are worth between which bounds of places: (low, high, worth), the least worth first.

        The interval is left out.

        Args:
            group: the group.
            points: the end of its prompt and its junction; 0: none.
            computed: the tokens that it computed; at its end those that it published.
            end: the bounds of what a hit of all these needs.
            is_over: True if the request is freed.
        """
        prompt_end, junction = points
        found = [(*end, FIRST if is_over else SECOND)]
        if prompt_end <= computed:
            found.insert(0, (*self.needed(group, prompt_end), SECOND))
        if junction and junction <= computed:
            found.append((*self.needed(group, junction), KEPT))
        return found

    def worth(
        self, group: CacheGroup, places: range, between: Sequence[tuple[int, int, int]], computed: int
    ) -> NDArray[np.int8]:
        """What a request's pages at consecutive places are worth when it lets go of them, `i8[len(places)]`.

        Args:
            group: the group.
            places: the places, ascending.
            between: the result of `worth_between`.
            computed: as for it.
        """
        worth = np.zeros(len(places), np.int8)
        for low, high, value in between:
            if high > places.start and low < high:
                worth[max(low - places.start, 0) : high - places.start] = value
        if self.interval:
            worth[self._on_interval(group, np.arange(places.start, places.stop), computed)] = KEPT
        return worth

    def _on_interval(self, group: CacheGroup, places: NDArray[np.int64], computed: int) -> NDArray[np.bool_]:
        """True for each place that a hit of a multiple of the interval needs, of at most ``computed`` tokens."""
        size, step = group.page_size, self.interval or 1
        after = -(-(places + 1) * size // step) * step  # no later multiple needs what the next one doesn't
        needed: NDArray[np.bool_] = (after <= computed) & (group.rule.first_place(after) <= places)
        if group.is_eagle:  # the page behind the multiple at which it begins
            before = places * size
            needed |= (before % step == 0) & (before > 0) & (before <= computed)
        return needed

    # -- Letting go (RET-3) -----------------------------------------------------------------------

    def let_go_before(self, group: CacheGroup, slot: int, first: int, computed: int) -> None:
        """Lets go of a live request's pages before a place, after ``computed`` computed tokens (MAN-8)."""
        places, is_held = group.places(slot, first)
        pages = group.give_back(slot, first)
        if not pages.size:
            return
        low, high = end = self.needed(group, self.resume_point(computed, computed))
        between = self.worth_between(group, self._live.points[slot], computed, end, False)
        if len(places) == 1 and not self.interval:
            held = [places.start]
            worth = 0
            for start, stop, value in between:
                if start <= places.start < stop:
                    worth = value
            let_go_one(self._pool, pages.item(0), worth)
        else:
            held = np.arange(places.start, places.stop)[is_held][::-1].tolist()
            own = self.worth(group, places, between, computed)[is_held][::-1]
            learn(self._pool, pages, own)
            let_go(self._pool, pages, own)
        passed = group.passed[slot]
        if passed or (high > held[-1] and low <= held[0]):
            passed = passed | dict(zip(held, pages.tolist(), strict=True))
            is_second = self._pool.free_order.is_second
            group.passed[slot] = {
                place: page for place, page in passed.items() if low <= place < high and is_second(page)
            }

    def at_end(self, slot: int, num_written: int | None, amid: Mapping[int, int]) -> dict[int, Ending]:
        """What is to be known when a request is freed, for each group that needs only part of a prefix, by its number.

        Args:
            slot: the request's slot.
            num_written: leading tokens that are written; None: all.
            amid: the tokens of the unfilled page with which the request ends, by group, where it is cached (MAN-17).
        """
        ends = []
        for group in self._groups:
            places = group.num_published[slot]
            if num_written is not None:
                places = min(places, max(group.num_hits[slot], num_written // group.page_size))
            ends.append(places * group.page_size + amid.get(group.group_id, 0))
        published = min(ends)
        point, points, found = self.resume_point(published, published), self._live.points[slot], {}
        for group in self._groups:
            if group.rule.gives_back:
                held, is_held = group.places(slot, group.num_pages[slot])
                low, high = bounds = self.needed(group, point)
                between = self.worth_between(group, points, published, bounds, True)
                worth = self.worth(group, held, between, published)[is_held][::-1]
                passed = sorted(group.passed[slot].items(), reverse=True)
                is_second = self._pool.free_order.is_second
                found[group.group_id] = (
                    worth,
                    {place: page for place, page in passed if low <= place < high and is_second(page)},
                )
        return found

    def told(self, slot: int, held: Sequence[NDArray[np.int64]], ending: Mapping[int, Ending]) -> Told:
        """The arguments of `learn` when a request is freed.

        Args:
            slot: the request's slot.
            held: its pages in each group, the last one first.
            ending: the result of `at_end`; empty where no page is judged.
        """
        if len(held) == 1 and not ending:
            return held[0], None, None
        every, worths, starts = [_NO_PAGES], [np.empty(0, np.int8)], [_NO_PAGES]
        for group, pages in zip(self._groups, held, strict=True):
            places, is_held = group.places(slot, group.num_pages[slot])
            worth, passed = ending.get(group.group_id, (np.full(len(pages), FIRST, np.int8), {}))
            every += [pages, np.array(list(passed.values()), np.int64)]
            worths += [worth, np.full(len(passed), FIRST, np.int8)]
            starts += [np.arange(places.start, places.stop)[is_held][::-1] * group.page_size]
            starts += [np.array(list(passed), np.int64) * group.page_size]
        return np.concatenate(every), np.concatenate(worths), np.concatenate(starts)

    def let_go(self, pages: NDArray[np.int64], worth: NDArray[np.int8], passed: Mapping[int, int]) -> None:
        """Lets go of a freed request's pages in a group, the last one first; the rest is what `at_end` returned."""
        let_go(self._pool, pages, worth)
        self._pool.free_order.put_first(np.array(list(passed.values()), np.int64))

    def state(self) -> dict[str, list[int]]:
        """What a snapshot has of the pages that are kept and of second class. O(pages)."""
        kept = self._pool.lasting
        return {
            "second": self._pool.free_order.second.tolist(),
            "kept": [] if kept is None else kept.nonzero()[0].tolist(),
        }

    def restore(self, parts: Mapping[str, Part]) -> None:
        """Notes the kept pages of a snapshot, which are cached already.

        Raises:
            ValueError: something else is named (MAN-14).
        """
        pool, part = self._pool, retention_of(parts)["kept"]
        pages = part.integers(1, pool.num_pages)
        if len(pages) and (pool.lasting is None or not pool.index.cached(pages).all()):
            raise part.damaged("must name cached pages, where a group needs only part of a prefix")
        if pool.lasting is not None:
            pool.lasting[pages] = True

    def check(self) -> None:
        """Verifies that kept pages are cached, that points are lengths of hits, and that what was passed lies behind.

        Raises:
            AssertionError: they don't; the message shows the request's columns and rows.
        """
        pool, live = self._pool, self._live
        assert pool.lasting is None or pool.index.cached(pool.lasting.nonzero()[0]).all(), "RET-3: kept without a hash"
        most = max((group.page_size for group in self._groups), default=0)
        for request_id, slot in live.slot_of.items():
            for point in live.points[slot]:
                assert self.resume_point(point + 2 * most, point) == point, (
                    f"RET-1: no hit has {point} tokens: {self._state(request_id)}"
                )
            assert not live.points[slot][1] or self.finds_junctions, f"RET-2: {self._state(request_id)}"
            for group in self._groups:
                passed = group.passed[slot]
                assert not passed or (self.judges and group.rule.gives_back), (
                    f"RET-3: passed {passed}: {self._state(request_id)}"
                )
                first = group.rule.first_place(live.num_computed[slot])
                assert all(place < first for place in passed), f"RET-3: passed {passed}: {self._state(request_id)}"

    def _state(self, request_id: str) -> str:
        """A request's resume points, columns and rows as text, for the message of a failing check."""
        return f"{self._live.points[self._live.slot_of[request_id]]}, {self._live.state(request_id)}"


def ends_on_kept_page(kept: NDArray[np.bool_], hits: Hits, parts: Sequence[int]) -> bool:
    """True if, in some group, a hit's last token lies in a page that is kept whoever lets go of it. O(groups).

    Args:
        kept: True for each page that is kept, `bool[num_pages]`.
        hits: the hit's full pages in each group.
        parts: where it ends amid a page, that page for each group, 0 for none; empty if it ends amid none.
    """
    ends = [int(own[-1]) if len(own) else 0 for own in hits]
    return any(kept[part or end] for part, end in zip(parts or [0] * len(ends), ends, strict=True))
