"""MAN-3: publishing the pages that a request fills, so that they can be found.

Publishing is two steps, `read` and `publish`: all that it needs, tokens and keys included, is read before a call
changes anything (R1).

Only the tokens of the pages published now are read. The engine guarantees that those of earlier pages are unchanged
(MAN-6): comparing them would cost a look-up of the request's whole prefix for each page filled, and could not cover the
tokens of a last, partly filled page, which are stored nowhere.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import EngineRequest, PartCopy

from ..index.parts import extra_at
from ..pool.page_pool import PagePool
from ..pool.pool_log import KeyStretch
from ..reading.extra_keys import ExtraSegment
from ..reading.request_reading import read_tokens
from ..reading.tokens import TokenBytes
from .cache_group import CacheGroup
from .live_requests import LiveRequests
from .page_copies import QueuedCopy

__all__ = ["Publisher", "Publishing"]

_NOBODY: frozenset[int] = frozenset()
_NO_PAGES: NDArray[np.int64] = np.empty(0, np.int64)

Publishing = tuple[CacheGroup, int, int, int, TokenBytes, KeyStretch | None]
"""Pages of one group about to be published, what was read of them before anything changed: the group; the place of
the first page that the tokens cover; the cached page before it, 0 if it is the request's first; the place behind
the last; their token bytes, none where there is nothing to publish up to there; their keys, if the pool keeps any.

A plain tuple: making a named one takes 0.2 us more, a tenth of what a page costs in a batched step.
"""


class Publisher:
    """Publishes pages of the cache groups of one manager. It trusts its caller.

    Args:
        pool: the pool of the pages.
        groups: the groups.
        live: the live requests.
    """

    def __init__(self, pool: PagePool, groups: Sequence[CacheGroup], live: LiveRequests) -> None:
        self._pool = pool
        self._groups = groups
        self._live = live

    def read(
        self,
        request: EngineRequest,
        slot: int,
        computed: int,
        promised: int,
        count: int,
    ) -> list[Publishing]:
        """Reads what is needed to publish a live request's pages up to ``count`` tokens; changes nothing (R1, MAN-3).

        Args:
            request: the request.
            slot: its slot.
            computed: the computed tokens of the call that publishes; pages wholly before them may be freed by it.
            promised: tokens up to which the request's pages are or will be written.
            count: tokens up to which pages are to be published.
        """
        bound = min(count, request.num_tokens)
        found: list[Publishing] = []
        for group in self._groups:
            first, end = group.num_published[slot], bound // group.page_size
            if end > first and group.rule.publishes and self._pool.enable_caching:
                places = first, self._anchor(group, slot, computed) if first else 0, end
                states = computed, promised
                found.append(self.read_group(group, group.segments[slot], request, None, places, states))
        return found

    def _anchor(self, group: CacheGroup, slot: int, computed: int) -> int:
        """The page published last, if it is sure to be cached still when the next one is published; else 0.

        It is not sure if the page may have lost its hash since, or is about to be freed.
        """
        last = group.num_published[slot] - 1
        if last < group.rule.first_place(computed) or self._live.num_withdrawals[slot] != self._pool.num_withdrawals:
            return 0
        return group.page_at(slot, last)

    def read_group(
        self,
        group: CacheGroup,
        segments: Sequence[ExtraSegment],
        request: EngineRequest,
        known: TokenBytes | None,
        places: tuple[int, int, int],
        states: tuple[int, int],
    ) -> Publishing:
        """`read` for one group: the index continues from ``after``, or starts from the first page.

        Args:
            group: the group.
            segments: the request's extra keys over its pages.
            request: the request.
            known: its token bytes if already read; None to read those needed.
            places: the first place to be published, the page before it (``after``), the place behind the last.
            states: the numbers of tokens before the states at the beginning and at the end of the step.
        """
        first, after, end = places
        size = group.page_size
        if group.rule.has_states and not any(first <= place < end for place in _frozen_places(size, *states)):
            return group, end, 0, end, b"", None
        pool = self._pool
        start = first if pool.index.run_cell[after] else 0
        after = after if start else 0
        tokens = (
            read_tokens(request, start * size, end * size)
            if known is None
            else known[4 * start * size : 4 * end * size]
        )
        keys = pool.keys.ahead(group.tree, tokens, segments, start, after)
        return group, start, after, end, tokens, keys

    def publish_first(self, slot: int, new: Publishing) -> None:
        """`publish` for a request that was just admitted, which gets a tail behind these pages."""
        self.publish(slot, new)
        self.begin_tail(new[0], slot)

    def begin_tail(self, group: CacheGroup, slot: int) -> None:
        """Starts a tail on the run that ends with a request's last published page, if it can have one."""
        # the pages of a tail are read from the request's list, which has them as long as none is freed
        if self._pool.keys.kept or group.rule.gives_back:
            return
        run = self._pool.index.run_behind(group.page_at(slot, group.num_published[slot] - 1))
        if run is not None:
            group.tails[slot].begin(run)

    def read_last(self, request: EngineRequest, slot: int) -> list[tuple[Publishing, ExtraSegment]]:
        """Reads the unfilled pages with which a request that is freed ends; changes nothing (R1, MAN-17).

        Each with its place as the first and as the last, and the segment of the request's extra keys that has it.
        """
        live = self._live
        found: list[tuple[Publishing, ExtraSegment]] = []
        known = min(max(live.num_computed[slot], live.firsts[slot]), request.num_tokens)
        for group in self._groups:
            size = group.page_size
            place, end = known // size, known // group.unit * group.unit
            if end == place * size or place != group.num_published[slot] or not group.page_at(slot, place):
                continue
            after = group.page_at(slot, place - 1) if place else 0
            if place and not self._pool.index.run_cell[after]:
                continue
            tokens = read_tokens(request, place * size, end)
            segments = group.segments[slot]
            keys = self._pool.keys.ahead(group.tree, tokens, segments, place, after)
            found.append(((group, place, after, place, tokens, keys), extra_at(segments, place)))
        return found

    def publish_last(self, slot: int, new: Publishing, segment: ExtraSegment) -> int:
        """Publishes what `read_last` read of one group (MAN-17); returns its number of tokens."""
        pool = self._pool
        group, place, after, _, tokens, keys = new
        page = group.page_at(slot, place)
        pool.index.publish_part(group.tree, tokens, segment, page, place, after)
        pool.note_keys((page,), keys)
        if pool.policy is not None:
            pool.policy.note_part(group.tree, page, after, place, bytes(tokens), segment.extra)
        return len(tokens) // 4

    def publish(self, slot: int, new: Publishing) -> None:
        """Publishes what was read of one group (MAN-3)."""
        pool, live = self._pool, self._live
        group, start, after, end, tokens, keys = new
        if group.num_tail_runs[slot]:
            group.tails[slot].leave()
        first = group.num_published[slot]
        group.num_published[slot] = end
        live.num_withdrawals[slot] = pool.num_withdrawals
        if not tokens:
            return
        segments = group.segments[slot]
        if end - start == 1 and after and start == first and len(segments) == 1:
            page = group.page_at(slot, start)
            if page and pool.index.publish_next(page, after, first, tokens, segments[0].extra):
                if keys is not None or not page % pool.counter_sampling:
                    pool.note_keys((page,), keys)
                if pool.policy is not None:
                    pool.policy.note_next(page, after, first, bytes(tokens), segments[0].extra)
                return
        pages = group.pages_between(slot, start, end)
        if start < first:
            pages[: first - start] = 0
        if group.rule.has_states:
            frozen = _frozen_places(group.rule.page_size, live.num_computed[slot], live.num_promised[slot])
            pages[[place not in frozen for place in range(start, end)]] = 0
        pool.index.publish(group.tree, tokens, segments, pages, start, after)
        pool.note_keys(pages, keys)
        if pool.policy is not None:
            pool.policy.note_pages(group.tree, pages, tokens, segments, start, after)

    def unwritten(
        self, slot: int, num_written: int, queued: Iterable[QueuedCopy]
    ) -> tuple[NDArray[np.int64], set[int] | None]:
        """The pages that a request published and will not write, and the slots of other requests that reference some.

        None in place of the slots if no other request and no copy references any, which the reference counts show. Most
        others hit one of the pages last. Where the counts show more (who hit further pages behind them, or was swapped
        in, restored or is being copied), all lists are searched, in array operations.
        """
        withdrawn, holders, is_shared, live = [_NO_PAGES], {slot}, False, self._live
        for group in self._groups:
            if group.rule.publishes:
                first = max(group.num_hits[slot], num_written // group.page_size)
                pages = group.pages_between(slot, first, max(first, group.num_published[slot]))
                withdrawn.append(pages[pages != 0])
                counts = self._pool.counts.of[pages] - self._pool.pins.of_each(pages)
                for place in (counts > 1).nonzero()[0].tolist()[::-1]:  # who hit a page has those before it, too
                    is_shared, page = True, pages.item(place)
                    likely = holders | group.hit_ends.get(page, _NOBODY)
                    known = [other for other in likely if group.holds(other, first + place, page)]
                    holders.update(
                        known if len(known) == counts[place] else group.holders(first + place, page).tolist()
                    )
        lost = np.concatenate(withdrawn)
        for request_id, copy in queued:
            if isinstance(copy, PartCopy) and copy.source in lost:
                holders.add(live.slot_of[request_id])
        return lost, holders - {slot} if is_shared else None


def _frozen_places(page_size: int, computed: int, promised: int) -> list[int]:
    """The places of states that stand at a page boundary: before the step, and after it (MAN-13)."""
    return [tokens // page_size - 1 for tokens in (computed, promised) if tokens and tokens % page_size == 0]
