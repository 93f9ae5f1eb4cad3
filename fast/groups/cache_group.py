"""A cache group's state: its tree of cached prefixes, and each live request's pages."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..index.runs import RunTree
from ..reading.extra_keys import PLAIN, ExtraSegment
from .group_rules import GroupRule
from .growing_tails import GrowingTail
from .page_lists import PageLists

__all__ = ["CacheGroup"]


class CacheGroup(PageLists):
    """The page lists of one group, by the requests' slots, and how far each is published. It trusts its caller.

    Args:
        group_id: the group's number.
        rule: which pages the group needs (MAN-7).
        tree: the tree of its cached prefixes.
        is_eagle: True if a hit must be followed by a page of the same request (MAN-9).

    Attributes:
        published: the number of leading places that are published, `i64[capacity]` (MAN-3).
        given_back: the number of leading places whose pages were freed or never allocated, `i64[capacity]` (MAN-8).
        tail_runs: the number of the run that has the request's tail; 0 if none has, `i64[capacity]`.
        num_published: ``published``, for scalar access.
        num_given_back: ``given_back``, for scalar access.
        num_tail_runs: ``tail_runs``, for scalar access.
        num_hits: the number of leading places that were found in the cache, of each request.
        tails: each request's tail, the published pages that its run does not store yet.
        segments: each request's extra keys over its pages.
        is_plain: True if no request has had extra keys so far.
        page_size: tokens in a page.
    """

    __slots__ = (
        "_columns",
        "given_back",
        "group_id",
        "is_eagle",
        "is_plain",
        "num_given_back",
        "num_hits",
        "num_published",
        "num_tail_runs",
        "page_size",
        "published",
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
        self._columns: NDArray[np.int64] = np.zeros((4, 0), np.int64)
        super().__init__()

    def resize(self, capacity: int) -> None:
        """Makes room for ``capacity`` requests. After a MemoryError it can be called again."""
        self.tails += [GrowingTail(self, slot) for slot in range(len(self.tails), capacity)]
        self.segments += [PLAIN] * (capacity - len(self.segments))
        super().resize(capacity)
        columns = np.zeros((4, capacity), np.int64)
        columns[:, : self._columns.shape[1]] = self._columns
        self._columns = columns
        self.published, self.given_back, hits, self.tail_runs = columns
        self.num_published, self.num_given_back = self.published.data, self.given_back.data
        self.num_hits, self.num_tail_runs = hits.data, self.tail_runs.data

    def admit(self, slot: int, segments: Sequence[ExtraSegment], pages: NDArray[np.int64]) -> None:
        """Puts cached pages into an empty list, all of them hit and published. After a MemoryError it is empty."""
        count, first = len(pages), 0
        if count:
            if self.rule.gives_back and not pages[0]:
                held = pages.nonzero()[0]
                first = held.item(0) if held.size else count
            self.open_list(slot, pages, first)
        self.num_published[slot] = self.num_hits[slot] = count
        self.num_given_back[slot] = first
        self.segments[slot] = segments
        if segments is not PLAIN:
            self.is_plain = False

    def held(self, slot: int) -> NDArray[np.int64]:
        """The pages of a request's list without null pages, in order."""
        pages = self.with_cells(slot).astype(np.int64)
        return pages[pages != 0] if self.rule.gives_back else pages

    def last_first(self, slot: int) -> NDArray[np.int64]:
        """`held` reversed, as a contiguous array: scattering by it costs a third less than by a view."""
        cells = self.cells[self.num_begins[slot] : self.num_origins[slot] + self.num_pages[slot]]
        pages = cells[::-1].astype(np.int64)
        return pages[pages != 0] if self.rule.gives_back else pages

    def give_back(self, slot: int, first: int, *, keep_room: bool = False) -> NDArray[np.int64]:
        """`leave_behind`, noted in ``given_back``."""
        if first > self.num_given_back[slot]:
            self.num_given_back[slot] = first
        return self.leave_behind(slot, first, keep_room=keep_room)

    def common_pages(self, slot: int, others: Sequence[int]) -> int:
        """The number of leading pages that a request shares with all requests in ``others`` (MAN-10)."""
        if not self.rule.shares_prefixes:
            return 0
        own = self.with_cells(slot)
        for other in others:
            theirs = self.with_cells(other)[: len(own)]
            own = own[: len(theirs)]
            differs = (own != theirs).nonzero()[0]
            if differs.size:
                own = own[: differs[0]]
        return len(own)

    def check(self) -> None:
        """Verifies every redundancy of lists and tails. O(capacity).

        Raises:
            AssertionError: a check fails; the message shows the list.
        """
        self.check_lists()
        for tail in self.tails:
            tail.check()

    def state(self, slot: int) -> str:
        """One request's row as text, for the message of a failing check."""
        return f"group {self.group_id} {self._columns[:, slot].tolist()}, {self.pages(slot).tolist()}"
