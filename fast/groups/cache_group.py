"""A cache group's state: its tree of cached prefixes, each live request's pages, and what it published last.

A request that decodes fills page after page, and each lengthens the same run: the one that holds its page before. Where
a request's last published page ends a run, the request has a *tail* on that run until another call changes the run. A
batched step then enters the pages in the index's columns, for all requests at once, and appends their tokens to the
tails. A tail is moved into its run when a look-up reaches the run, when another call changes it, or when the request is
freed. So the index's columns are always up to date; only the run's own buffers lag. Where keys are kept no request has
a tail, since a key is computed when its page is published.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..index.runs import Run, RunTree
from ..reading.extra_keys import PLAIN, ExtraSegment
from .group_rules import GroupRule
from .page_lists import PageLists

__all__ = ["CacheGroup", "GrowingTail"]

_NOTHING: dict[int, int] = {}
"""What most requests have passed: nothing. It is never changed."""


class CacheGroup(PageLists):
    """The page lists of one group, by the requests' slots, and how far each is published. It trusts its caller.

    Args:
        group_id: the group's number.
        rule: which pages the group needs (MAN-7).
        tree: the tree of its cached prefixes.
        is_eagle: True if a hit must be followed by a unit of the same request (MAN-9).
        unit: the number of tokens of which the length of a hit is a multiple in this group (MAN-17); 0: a page's.

    Attributes:
        published: the number of leading places that are published, `i64[capacity]` (MAN-3).
        given_back: the number of leading places whose pages were freed or never allocated, `i64[capacity]` (MAN-8).
        tail_runs: the number of the run that has the request's tail; 0 if none has, `i64[capacity]`.
        num_published: ``published``, for scalar access.
        num_given_back: ``given_back``, for scalar access.
        num_tail_runs: ``tail_runs``, for scalar access.
        num_hits: the number of leading places that were found in the cache, of each request.
        hit_ends: the slots of live requests by the last page that they hit when they were admitted.
        passed: the pages that each request let go of although a hit of all that it had computed by then needs them, by
            place (RET-3).
        tails: each request's tail, the published pages that its run does not store yet.
        segments: each request's extra keys over its pages.
        is_plain: True if no request has had extra keys so far.
        page_size: tokens in a page.
    """

    __slots__ = (
        "_columns",
        "_last_hits",
        "given_back",
        "group_id",
        "hit_ends",
        "is_eagle",
        "is_plain",
        "num_given_back",
        "num_hits",
        "num_published",
        "num_tail_runs",
        "page_size",
        "passed",
        "published",
        "rule",
        "segments",
        "tail_runs",
        "tails",
        "tree",
        "unit",
    )

    def __init__(self, group_id: int, rule: GroupRule, tree: RunTree, is_eagle: bool, unit: int = 0) -> None:
        self.group_id = group_id
        self.unit = unit or rule.page_size
        self.rule = rule
        self.page_size = rule.page_size
        self.tree = tree
        self.is_eagle = is_eagle
        self.segments: list[Sequence[ExtraSegment]] = []
        self.is_plain = True
        self.tails: list[GrowingTail] = []
        self.hit_ends: dict[int, set[int]] = {}
        self.passed: list[dict[int, int]] = []
        self._last_hits: list[int] = []
        """The last page that each live request hit when it was admitted, by slot; 0 if it hit none."""
        self._columns: NDArray[np.int64] = np.zeros((4, 0), np.int64)
        super().__init__()

    def resize(self, capacity: int) -> None:
        """Makes room for ``capacity`` requests. After a MemoryError it can be called again."""
        self.tails += [GrowingTail(self, slot) for slot in range(len(self.tails), capacity)]
        self.segments += [PLAIN] * (capacity - len(self.segments))
        self._last_hits += [0] * (capacity - len(self._last_hits))
        self.passed += [_NOTHING] * (capacity - len(self.passed))
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
            if first < count:  # else a window of one token, which needs no page of a hit
                page = self._last_hits[slot] = self.cell[self.num_origins[slot] + count - 1]
                if page in self.hit_ends:
                    self.hit_ends[page].add(slot)
                else:
                    self.hit_ends[page] = {slot}
        self.num_published[slot] = self.num_hits[slot] = count
        self.num_given_back[slot] = first
        self.segments[slot] = segments
        if segments is not PLAIN:
            self.is_plain = False

    def dismiss(self, slot: int) -> None:
        """Empties the list of a request that leaves, and forgets its tail, its hit and what it passed."""
        self.passed[slot] = _NOTHING
        if self.num_tail_runs[slot]:
            self.tails[slot].leave()
        page = self._last_hits[slot]
        if page:
            self._last_hits[slot] = 0
            if self.hit_ends[page] == {slot}:
                del self.hit_ends[page]
            else:
                self.hit_ends[page].remove(slot)
        self.close_list(slot)

    def held(self, slot: int) -> NDArray[np.int64]:
        """The pages of a request's list without null pages, in order."""
        pages = self.with_cells(slot).astype(np.int64)
        return pages[pages != 0] if self.rule.gives_back else pages

    def last_first(self, slot: int) -> NDArray[np.int64]:
        """`held` reversed, as a contiguous array: scattering by it costs a third less than by a view."""
        cells = self.cells[self.num_begins[slot] : self.num_origins[slot] + self.num_pages[slot]]
        pages = cells[::-1].astype(np.int64)
        return pages[pages != 0] if self.rule.gives_back else pages

    def places(self, slot: int, stop: int) -> tuple[range, NDArray[np.bool_] | slice]:
        """The places below ``stop`` that have cells, and which of them have a page: an index for arrays of them."""
        begin, origin = self.num_begins[slot], self.num_origins[slot]
        end = max(min(stop, self.num_pages[slot]), begin - origin)
        is_held = self.cells[begin : origin + end] != 0 if self.rule.has_states else slice(None)
        return range(begin - origin, end), is_held

    def give_back(self, slot: int, first: int) -> NDArray[np.int64]:
        """`leave_behind`, noted in ``given_back``."""
        if first > self.num_given_back[slot]:
            self.num_given_back[slot] = first
        return self.leave_behind(slot, first)

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
        """Verifies every redundancy of lists, hits and tails. O(capacity).

        Raises:
            AssertionError: a check fails; the message shows the list.
        """
        self.check_lists()
        hits = sorted((slot, page) for page, slots in self.hit_ends.items() for slot in slots)
        noted = [(slot, page) for slot, page in enumerate(self._last_hits) if page]
        assert hits == noted, f"MAN-4: slots by last hits {self.hit_ends}, last hits by slots {self._last_hits}"
        assert all(self.hit_ends.values()), f"MAN-4: nobody's last hit: {self.hit_ends}"
        for tail in self.tails:
            tail.check()

    def state(self, slot: int) -> str:
        """One request's row as text, for the message of a failing check."""
        return f"group {self.group_id} {self._columns[:, slot].tolist()}, {self.pages(slot).tolist()}"


class GrowingTail:
    """The tail of one request in one group: its last published pages, whose tokens are ``tokens``.

    Args:
        group: the group.
        slot: the request's slot.

    Attributes:
        tokens: the token bytes of the pages that the run does not store yet.
        run: the run behind whose end the pages stand; None if the request has no tail.
    """

    __slots__ = ("_group", "_slot", "run", "tokens")

    def __init__(self, group: CacheGroup, slot: int) -> None:
        self._group = group
        self._slot = slot
        self.tokens = bytearray()
        self.run: Run | None = None

    def begin(self, run: Run) -> None:
        """Starts a tail on a run whose last page is the one that the request published last."""
        run.tail = self
        self.run = run
        self._group.num_tail_runs[self._slot] = run.number

    def settle(self) -> None:
        """Moves the pages into the run. O(pages)."""
        tokens, run = self.tokens, self.run
        if tokens and run is not None:
            pages = self._pages(run)
            run.lengthen(tokens)
            run.pages.frombytes(pages.tobytes())
            tokens.clear()

    def _pages(self, run: Run) -> NDArray[np.int32]:
        group, slot = self._group, self._slot
        end = group.num_origins[slot] + group.num_published[slot]
        return group.cells[end - len(self.tokens) // run.tree.page_bytes : end]

    def leave(self) -> None:
        """Settles, and detaches the tail from the run."""
        self.settle()
        if self.run is not None:
            self.run.tail = None
            self.run = None
            self._group.num_tail_runs[self._slot] = 0

    def check(self) -> None:
        """Verifies that tail, run and columns agree.

        Raises:
            AssertionError: they don't; the message shows them.
        """
        group, slot, run = self._group, self._slot, self.run
        number = group.num_tail_runs[slot]

        def state() -> str:
            stored = [] if run is None else run.pages.tolist()
            return f"{group.state(slot)}: {len(self.tokens)} bytes of a tail of run {number}, which has {stored}"

        if run is None:
            assert not number, f"POOL-7: a run without a tail: {state()}"
            assert not self.tokens, f"POOL-7: a tail without a run: {state()}"
            return
        assert run.tail is self, f"POOL-7: another's run: {state()}"
        assert run.number == number, f"POOL-7: number {run.number}: {state()}"
        assert len(self.tokens) % run.tree.page_bytes == 0, f"POOL-7: part of a page: {state()}"
        first = group.num_published[slot] - len(self.tokens) // run.tree.page_bytes
        assert run.pages[-1] == group.page_at(slot, first - 1), f"POOL-7: not behind the run: {state()}"
        assert self._pages(run).all(), f"POOL-1: null pages: {state()}"
