"""One cache group at work: its tree of cached prefixes, and each live request's pages as a row of one table."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .extra_keys import PLAIN, ExtraSegment
from .group_rules import GroupRule
from .growing_tails import GrowingTail
from .runs import RunTree

__all__ = ["CacheGroup"]

_FIRST_WIDTH = 16


class CacheGroup:
    """The pages of one group, by the requests' slots. It trusts its caller.

    Scalars are read and written through memoryviews of the columns (half of numpy's price); the arrays serve calls
    about many requests.

    Args:
        group_id: the group's number.
        rule: what the group needs.
        tree: where its cached prefixes stand.
        is_eagle: whether a hit must be followed by a page of the same request (MAN-9).

    Attributes:
        rows: each request's pages, `i32[capacity, width]`, 0 past its list's end and for null pages.
        row_cell: ``rows``, for scalar access.
        lengths: how long each list is, `i64[capacity]`.
        published: leading places that are published, `i64[capacity]` (MAN-3).
        given_back: leading places whose pages were given back or never had, `i64[capacity]` (MAN-8).
        tail_runs: the number of the run that is the request's to lengthen; 0: there is none, `i64[capacity]`.
        num_pages: ``lengths``, for scalar access; likewise:
        num_published: ``published``.
        num_given_back: ``given_back``.
        num_tail_runs: ``tail_runs``.
        num_hits: leading places that were found in the cache.
        tails: each request's pages that this run lacks.
        segments: each request's extra keys over its pages.
        is_plain: whether no request had extra keys yet.
        page_size: tokens in a page, as ``rule`` has it.
    """

    __slots__ = (
        "_columns",
        "_width",
        "given_back",
        "group_id",
        "is_eagle",
        "is_plain",
        "lengths",
        "num_given_back",
        "num_hits",
        "num_pages",
        "num_published",
        "num_tail_runs",
        "page_size",
        "published",
        "row_cell",
        "rows",
        "rule",
        "segments",
        "tail_runs",
        "tails",
        "tree",
    )

    def __init__(self, group_id: int, rule: GroupRule, tree: RunTree, is_eagle: bool) -> None:
        self.group_id = group_id
        self.rule = rule
        self.page_size = rule.page_size
        self.tree = tree
        self.is_eagle = is_eagle
        self.segments: list[Sequence[ExtraSegment]] = []
        self.is_plain = True
        self.tails: list[GrowingTail] = []
        self._width = _FIRST_WIDTH
        self._columns: NDArray[np.int64] = np.zeros((5, 0), np.int64)
        self.rows: NDArray[np.int32] = np.zeros((0, _FIRST_WIDTH), np.int32)
        self.resize(0)

    def resize(self, capacity: int) -> None:
        """Makes room for as many requests."""
        old = self._columns.shape[1]
        columns = np.zeros((5, capacity), np.int64)
        columns[:, :old] = self._columns
        rows = np.zeros((capacity, self._width), np.int32)
        rows[:old, : self.rows.shape[1]] = self.rows
        self._columns, self.rows, self.row_cell = columns, rows, rows.data
        self.lengths, self.published, self.given_back, hits, self.tail_runs = columns
        self.num_pages, self.num_published, self.num_given_back = (
            self.lengths.data,
            self.published.data,
            self.given_back.data,
        )
        self.num_hits, self.num_tail_runs = hits.data, self.tail_runs.data
        self.tails += [GrowingTail(self, slot) for slot in range(old, capacity)]
        self.segments += [PLAIN] * (capacity - old)

    def widen(self, width: int) -> None:
        """Makes the rows wide enough for lists of ``width`` pages. O(1) amortised."""
        if width > self._width:
            self._width = max(2 * self._width, width)
            self.resize(self._columns.shape[1])

    def admit(self, slot: int, segments: Sequence[ExtraSegment], pages: NDArray[np.int64]) -> None:
        """Gives a slot a list of cached pages, all of which count as hit and published."""
        count, before = len(pages), self.num_pages[slot]
        if count > self._width:
            self.widen(count)
        row = self.rows[slot]
        row[:count] = pages
        if before > count:
            row[count:before] = 0
        self.num_pages[slot] = self.num_published[slot] = self.num_hits[slot] = count
        self.num_given_back[slot] = 0
        self.segments[slot] = segments
        if segments is not PLAIN:
            self.is_plain = False

    def pages(self, slot: int) -> NDArray[np.int64]:
        """A request's list, `i64[num_pages]`, null pages as 0; its own copy."""
        return self.rows[slot, : self.num_pages[slot]].astype(np.int64)

    def held(self, slot: int) -> NDArray[np.int64]:
        """The pages in a request's list that are no null pages, in its order."""
        pages = self.pages(slot)
        return pages[pages != 0] if self.rule.gives_back else pages

    def last_first(self, slot: int) -> NDArray[np.int64]:
        """`held` backwards, in one piece: what scatters by it costs a third less than by a view."""
        pages = self.rows[slot, : self.num_pages[slot]][::-1].astype(np.int64)
        return pages[pages != 0] if self.rule.gives_back else pages

    def add_pages(self, slot: int, pages: NDArray[np.int64], end: int) -> None:
        """Puts pages at the end of a list that is to be ``end`` long; null pages fill what is between."""
        if end > self._width:
            self.widen(end)
        self.rows[slot, end - len(pages) : end] = pages
        self.num_pages[slot] = end

    def add_page(self, slot: int, page: int, end: int) -> None:
        """`add_pages` for one page."""
        if end > self._width:
            self.widen(end)
        self.row_cell[slot, end - 1] = page
        self.num_pages[slot] = end

    def give_back(self, slot: int, first: int) -> NDArray[np.int64]:
        """Puts null pages at the places below ``first``; returns the pages that stood there, the last one first."""
        start, stop = self.num_given_back[slot], min(first, self.num_pages[slot])
        self.num_given_back[slot] = max(start, first)
        if start >= stop:
            return self.rows[slot, :0].astype(np.int64)
        window = self.rows[slot, start:stop]
        pages: NDArray[np.int64] = window[window != 0][::-1].astype(np.int64)
        window[:] = 0
        return pages

    def common_pages(self, slot: int, others: Sequence[int]) -> int:
        """How many leading pages a request and the ones in ``others`` all hold at the same place (MAN-10)."""
        if not self.rule.shares_prefixes:
            return 0
        count = min(self.num_pages[other] for other in others)
        same = (self.rows[list(others), :count] == self.rows[slot, :count]).all(axis=0)
        return count if same.all() else int(same.argmin())

    def check(self) -> None:
        """Verifies what the tails say twice. O(capacity).

        Raises:
            AssertionError: one is wrong; the message shows it.
        """
        for tail in self.tails:
            tail.check()

    def state(self, slot: int) -> str:
        """One request's row, as a failing check shows it."""
        return f"group {self.group_id} {self._columns[:, slot].tolist()}, {self.pages(slot).tolist()}"
