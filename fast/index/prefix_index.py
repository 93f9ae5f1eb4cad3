"""The index of cached pages: a tree of runs, compared token by token on contiguous memory.

A node is a *run*: pages that follow each other, their tokens in one buffer, their ids in one array. A look-up
compares each run with the request in one memory comparison; no digest is computed, so that a false hit is impossible
by construction (R2). Where prefixes part, one of them continues in the run and the others *branch off*: a run keeps its
branches by the place at which they leave it, and there by their first page's bytes. So a look-up takes a step for each
branch that it follows, not for those that it passes. Cutting a run's tail when its last
pages are evicted, and appending to it, are cheap; a page evicted from the middle leaves a hole (id 0), which the same
content fills again. Further pages of the same content are kept beside the first as *duplicates*, in the order in which
they were cached, and the next one takes the place of the first when that is evicted (POOL-7).

Where a run has been cut down to a place where others branch off, the newest of these is *joined* to it, so that no
branch of the same extra keys leaves a run at its end. And where a request publishes behind a branch that it hits, and
is longer there than the run that was left, the two are *exchanged*: the branch goes on in the run, and what followed in
the run becomes a branch. So the number of runs depends on what is cached now, not on what was cached before, and a
prefix that several requests have made longer is one run, but perhaps for its last pages.

Pages that different extra keys touch lie in different runs (HASH-2): a run carries the encoding of its extra
keys, and the key by which a parent finds it begins with that encoding.

A *lone page*, a branch of one page without extra keys, has no run of its own: its id stands among the branches of the
run above it, with its tokens as the key, which are its only object (a quarter of the time to evict and half of the
bytes of a run of one page). It gets a run when a page is published behind it or as its duplicate.

Costs: a look-up takes one dict step and one comparison for each branch that it follows; publishing and evicting are
    O(pages); joining is O(log pages) amortised for each page that is published or hit, since of two runs the smaller is
    moved, and an exchange takes no more out of a run than its request has pages.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..reading.extra_keys import ExtraSegment
from ..reading.tokens import TokenBytes
from .index_check import check_index
from .joining import join, part, renumber, weighs_less
from .parts import PART
from .runs import GONE, Run, RunTree, common_pages

__all__ = ["PrefixIndex"]

_NOWHERE: NDArray[np.uint32] = np.zeros((), np.uint32)
"""The run number of pages that are not cached; an array, since numpy takes a third of a microsecond longer for the
Python number."""


class PrefixIndex:
    """Finds cached pages by the tokens of their prefixes, for several cache groups of one pool.

    It trusts its caller: a page to be published is in use and not in the index yet.

    Args:
        num_pages: pages of the pool.

    Attributes:
        run_cell: the number of each page's run, for a lone page that of the run it branches off; 0 for pages that are
            not cached. For scalar access.
    """

    def __init__(self, num_pages: int) -> None:
        self._run_of: NDArray[np.uint32] = np.zeros(num_pages, np.uint32)
        self.run_cell = self._run_of.data
        self._depth_of: NDArray[np.uint32] = np.zeros(num_pages, np.uint32)
        self._depth_cell = self._depth_of.data
        self._lone: dict[int, bytes] = {}
        """The key of each lone page."""
        self._runs: list[Run] = [GONE]
        self._spare: list[int] = []
        self._trees: dict[tuple[int, int], RunTree] = {}

    def tree(self, group_id: int, page_size: int) -> RunTree:
        """The tree of one group's pages of one size."""
        tree = self._trees.get((group_id, page_size))
        if tree is None:
            tree = self._trees[group_id, page_size] = RunTree(group_id, page_size, len(self._runs))
            self._runs.append(tree.root)
        return tree

    # -- Finding ----------------------------------------------------------------------------------

    def match(
        self, tree: RunTree, tokens: TokenBytes, segments: Sequence[ExtraSegment], limit: int
    ) -> NDArray[np.int64]:
        """The longest cached prefix: the pages that hold it, `i64[hits]` (MAN-1). Arguments as for `walk`."""
        found, is_whole = self.walk(tree, tokens, segments, limit)
        pages = np.frombuffer(found, np.int32).astype(np.int64)
        return pages if is_whole or pages.all() else pages[: pages.argmin()]

    def first_pages(
        self, tree: RunTree, tokens: TokenBytes, segments: Sequence[ExtraSegment], limit: int
    ) -> NDArray[np.int64]:
        """The pages of `walk`, `i64[n]`."""
        return np.frombuffer(self.walk(tree, tokens, segments, limit)[0], np.int32).astype(np.int64)

    def holds(
        self, tree: RunTree, tokens: TokenBytes, segments: Sequence[ExtraSegment], pages: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """True for each of ``pages`` whose content is that of the request's page there, `bool[len(pages)]` (MAN-2)."""
        found = self.first_pages(tree, tokens, segments, len(pages))
        count = len(found)
        given, good = pages[:count], np.zeros(len(pages), bool)
        # the page found, or a duplicate of it, which has the same run and place
        is_in_place = self._depth_of[given] == np.arange(count)
        good[:count] = (found != 0) & (self._run_of[given] == self._run_of[found]) & is_in_place
        if self._lone:  # a lone page has the same run and place as pages of other content
            for place in (good[:count] & (given != found)).nonzero()[0].tolist():
                good[place] = int(given[place]) not in self._lone and int(found[place]) not in self._lone
        return good

    def walk(
        self, tree: RunTree, tokens: TokenBytes, segments: Sequence[ExtraSegment], limit: int
    ) -> tuple[bytearray, bool]:
        """The page cached for each place of a request, 0 where there is none, until its tokens leave the tree.

        Args:
            tree: the tree to search.
            tokens: the request's token bytes.
            segments: its extra keys over its pages.
            limit: the most pages to find; the tokens cover at least as many.

        Returns:
            The pages' ids as the bytes of int32, at most ``limit`` of them; nothing is cached behind them. And True if
            the runs that were walked have no holes.
        """
        found, is_whole = bytearray(), True
        size = tree.page_bytes
        run, depth = tree.root, 0
        for last, extra, _ in segments:
            end = last if last < limit else limit
            while depth < end:
                branches = run.children if extra == run.extra else run.others
                siblings = None if branches is None else branches.get(depth)
                if siblings is None:
                    return found, is_whole
                offset = depth * size
                child = siblings.get(extra + tokens[offset : offset + size])
                if type(child) is not Run:
                    if child:
                        found += array("i", (child,))
                    return found, is_whole
                run = child
                if run.tail is not None:
                    run.tail.settle()
                if run.holes:
                    is_whole = False
                pages = run.pages
                count = length = len(pages)
                if depth + count > end:
                    count = end - depth
                if run.num_agreed and run.parts_again(tokens, offset, count):
                    count = run.num_agreed
                elif not run.tokens.startswith(tokens[offset : offset + count * size]):
                    count = run.num_agreed = common_pages(run, 0, tokens, offset, count)
                found += pages if count == length else pages[:count]
                depth += count
        return found, is_whole

    # -- Publishing -------------------------------------------------------------------------------

    def publish(
        self,
        tree: RunTree,
        tokens: TokenBytes,
        segments: Sequence[ExtraSegment],
        pages: NDArray[np.int64],
        start: int = 0,
        after: int = 0,
    ) -> None:
        """Adds pages under the request's tokens (POOL-7). Null pages are skipped.

        Args:
            tree: the tree to add them to.
            tokens: the request's token bytes from page ``start`` on.
            segments: its extra keys over its pages, from its first on.
            pages: the pages that hold these tokens.
            start: the place of the first of them in the request.
            after: the cached page that holds the request's page ``start - 1``; 0 where ``start`` is 0.
        """
        size = tree.page_bytes
        end = start + len(pages)
        is_whole = np.count_nonzero(pages) == len(pages)
        while not is_whole and end > start and not pages[end - 1 - start]:
            end -= 1
        if end == start:
            return
        run = tree.root
        if after:
            self._straighten(self._run_at(after), end)
            run = self._runs[self.run_cell[after]]
        depth, place = start, 0
        while depth < end:
            if run.tail is not None:
                run.tail.leave()
            last, extra, extra_keys = segments[place]
            if last <= depth:
                place += 1
                continue
            stop = last if last < end else end
            text = tokens[(depth - start) * size : (stop - start) * size]
            first = text[:size]
            is_alike = run.extra == extra
            goes_on = is_alike and run.parent is not None
            inner, length = depth - run.start, len(run.pages)
            if goes_on and inner < length:
                goes_on = run.tokens.startswith(first, inner * size)
                if goes_on:
                    count = common_pages(run, inner, text, 0, min(length - inner, stop - depth))
                    self._occupy(run, inner, pages[depth - start : depth - start + count])
                    depth += count
                    continue
            if not goes_on:
                key = extra + first
                branches = run.children if is_alike else run.others
                child = branches[depth].get(key) if branches and depth in branches else None
                if child is not None:
                    run = child if isinstance(child, Run) else self._run_at(child)
                    continue
                if depth + 1 == end and not extra:
                    self._add_lone(run, depth, key, int(pages[depth - start]))
                    return
            own = pages[depth - start : stop - start]
            ids = array("i", own.astype(np.int32).tobytes())
            if goes_on:
                run.lengthen(text)
                run.pages += ids
            else:
                kept = bytes(text) if len(ids) == 1 else bytearray(text)
                run = self._add_run(Run(tree, 0, run, key, extra, extra_keys, depth, kept, ids))
            places = np.arange(depth, stop, dtype=np.uint32)
            if not is_whole:
                held = own.nonzero()[0]
                run.holes += len(own) - len(held)
                own, places = own[held], places[held]
            self._run_of[own] = run.number
            self._depth_of[own] = places
            depth = stop

    def publish_part(
        self, tree: RunTree, tokens: TokenBytes, segment: ExtraSegment, page: int, place: int, after: int
    ) -> None:
        """Adds a page that is not full, and that nobody writes any more (MAN-17). O(its tokens).

        Args:
            tree: its tree.
            tokens: its token bytes, fewer than a page has.
            segment: the segment of the request's extra keys that has it.
            page: its id.
            place: its position in the request.
            after: the cached page before it, 0 for none; ``page`` itself, published there, if that is gone (MAN-14).
        """
        run = self._run_at(after) if after else tree.root
        if run.tail is not None:
            run.tail.leave()
        if after == page:
            run.pages[place - 1 - run.start] = 0
            run.holes += 1
        extra = PART + segment.extra
        key = extra + tokens
        child = (run.others or {}).get(place, {}).get(key)
        if isinstance(child, Run):
            self._occupy(child, 0, np.array([page]))
            return
        own = Run(tree, 0, run, key, extra, segment.extra_keys, place, bytes(tokens), array("i", (page,)))
        self.run_cell[page], self._depth_cell[page] = self._add_run(own).number, place

    def _straighten(self, run: Run, end: int) -> None:
        """Exchanges branches on a request's way with what follows in the runs above, where that is less. O(end).

        A branch that no second request has hit is never exchanged: else requests that leave a known prefix page by page
        could put each page of it into a run of its own.

        Args:
            run: the run of the last page that the request hits.
            end: the number of its pages, those about to be published included.
        """
        above = run.parent
        while above is not None and above.parent is not None:
            is_less = run.extra == above.extra and weighs_less(above, run.start - above.start, end - run.start)
            run = self._exchange(above, run) if is_less else above
            above = run.parent

    def _exchange(self, head: Run, child: Run) -> Run:
        """Makes a branch of a run its continuation, and what followed in the run a branch; returns the run."""
        for run in (head, child):
            if run.tail is not None:
                run.tail.leave()
        rest = part(head, child.start - head.start)
        head.detach(child.start, child.extra, child.key)
        run = self._join(head, child.key, child)
        if len(rest.pages) == 1 and not rest.num_attached and not rest.extra:
            self._add_lone(run, rest.start, rest.key, rest.pages[0])
        else:
            rest.parent = run
            self._add_run(rest)
            renumber(rest, rest, self.run_cell)
        return run

    def _add_lone(self, parent: Run, place: int, key: bytes, page: int) -> None:
        """Adds a lone page as a branch of a run at a place, replacing the branch of this key, if any."""
        parent.attach(place, b"", key, page)
        self._lone[page] = key
        self.run_cell[page] = parent.number
        self._depth_cell[page] = place

    def _lone_run(self, page: int) -> Run:
        """A new run of one lone page, not in the tree: to be read, or to be put there by the caller."""
        parent, key = self._runs[self.run_cell[page]], self._lone[page]
        return Run(parent.tree, -page, parent, key, b"", None, self._depth_cell[page], key, array("i", (page,)))

    def _run_at(self, page: int) -> Run:
        """The run of a cached page; a lone page is given one, to which the caller adds a page."""
        if page not in self._lone:
            return self._runs[self.run_cell[page]]
        run = self._add_run(self._lone_run(page))
        del self._lone[page]
        self.run_cell[page] = run.number
        return run

    def publish_next(self, page: int, after: int, depth: int, tokens: TokenBytes, extra: bytes) -> bool:
        """Publishes one page behind the last page of a run, the most frequent case of `publish`. O(1).

        Args:
            page: the page.
            after: the cached page that holds the request's page before it.
            depth: the position of ``page`` in the request.
            tokens: its token bytes.
            extra: the encoding of the extra keys that touch it.

        Returns:
            True if the page was published; False, with nothing changed, if this is another case of `publish`.
        """
        number = self.run_cell[after]
        run = self._runs[number]
        if run.tail is not None:
            run.tail.leave()
        pages = run.pages
        if run.parent is None or pages[-1] != after or run.extra != extra:
            return False
        run.lengthen(tokens)
        pages.append(page)
        self.run_cell[page] = number
        self._depth_cell[page] = depth
        return True

    def run_behind(self, page: int) -> Run | None:
        """The run whose last page is ``page``, if it has several pages and no tail; else None."""
        run = self._runs[self.run_cell[page]]
        is_free = len(run.pages) > 1 and run.tail is None and run.pages[-1] == page
        return run if is_free else None

    def leave_tails(self) -> None:
        """Moves all tails into their runs and detaches them. O(runs and pages of tails)."""
        for run in self._runs:
            if run.tail is not None:
                run.tail.leave()

    def lengthen(self, numbers: Any, pages: Any, places: Any) -> None:
        """Records that pages were added to the tails of runs, or one page to one. O(pages).

        Args:
            numbers: the runs' numbers, `i64[m]` or an int.
            pages: the pages, `i64[m]` or an int.
            places: their places in the requests, `i64[m]` or an int.
        """
        self._run_of[pages] = numbers
        self._depth_of[pages] = places

    def _occupy(self, run: Run, inner: int, pages: NDArray[np.int64]) -> None:
        """Adds pages at places where the run has their content already: into holes, or as duplicates."""
        for place, page in enumerate(pages.tolist(), inner):
            if not page:
                continue
            if run.pages[place] == 0:
                run.pages[place] = page
                run.holes -= 1
            else:
                run.duplicates = run.duplicates or {}
                run.duplicates.setdefault(run.start + place, OrderedDict())[page] = None
                run.num_attached += 1
            self.run_cell[page] = run.number
            self._depth_cell[page] = run.start + place

    def _add_run(self, run: Run) -> Run:
        """Adds a run to the list of runs and to the branches of its parent."""
        if self._spare:
            run.number = self._spare.pop()
            self._runs[run.number] = run
        else:
            run.number = len(self._runs)
            self._runs.append(run)
        assert run.parent is not None
        run.parent.attach(run.start, run.extra, run.key, run)
        return run

    # -- Evicting ---------------------------------------------------------------------------------

    def evict_one(self, page: int) -> None:
        """Removes a cached page. O(1), and the cost of joining."""
        run = self._runs[self.run_cell[page]]
        self.run_cell[page] = 0
        if run.tail is not None and page not in self._lone:
            run.tail.leave()
        if not run.num_attached and not run.holes and len(run.pages) > 2 and run.pages[-1] == page:
            run.cut(1)
            return
        self._evict_page(run, page)
        self._tidy(run)

    def evict(self, pages: NDArray[np.int64]) -> int:
        """Removes the cached ones of distinct pages; returns how many there were. O(pages), and the cost of joining.

        Pages that are the end of a run, the last one first, are removed together where the run has no branches, holes
        or duplicates; others one by one.
        """
        numbers = self._run_of[pages]
        num_cached = int(np.count_nonzero(numbers))
        if not num_cached:
            return 0
        self._run_of[pages] = _NOWHERE
        number_of, page_of = numbers.data, pages.data
        backwards = pages[::-1].astype(np.int32).tobytes()
        runs, lone, end = self._runs, self._lone, len(pages)
        changed: dict[Run, None] = {}  # tidied when all pages are out: until then ``numbers`` stays valid
        start = 0
        while start < end:
            number = number_of[start]
            if not number:
                start += 1
                continue
            run = runs[number]
            if lone and page_of[start] in lone:
                self._evict_page(run, page_of[start])
                if run.holes or len(run.pages) == 1:
                    changed[run] = None
                start += 1
                continue
            if run.tail is not None:
                run.tail.leave()
            length, left = len(run.pages), end - start
            count = length if length < left else left
            is_whole = not run.num_attached and not run.holes
            # mostly the whole run, or as much of its end as there are pages, the last one first
            if is_whole and backwards[4 * (left - count) : 4 * left] == run.pages[-count:].tobytes():
                if count < length:
                    run.cut(count)
                else:
                    run = self._remove(run)
                if run.holes or len(run.pages) == 1:
                    changed[run] = None
                start += count
                continue
            own = numbers[start : start + count] == number
            if np.count_nonzero(own) < count:
                count = int(own.argmin())
            for page in pages[start : start + count].tolist():
                self._evict_page(run, page)
            changed[run] = None
            start += count
        for run in changed:
            self._tidy(run)
        return num_cached

    def _evict_page(self, run: Run, page: int) -> None:
        """Removes a page of a run, or a lone page that branches off it; the caller tidies the run."""
        depth = self._depth_cell[page]
        key = self._lone.pop(page, None) if self._lone else None
        if key is not None:
            run.detach(depth, b"", key)
            return
        place = depth - run.start
        if run.duplicates and depth in run.duplicates:
            others = run.duplicates[depth]
            if run.pages[place] == page:
                run.pages[place], _ = others.popitem(last=False)
            else:
                del others[page]
            run.num_attached -= 1
            if not others:
                del run.duplicates[depth]
                run.duplicates = run.duplicates or None
            return
        run.pages[place] = 0
        run.holes += 1

    def _remove(self, run: Run) -> Run:
        """Removes a run without branches; returns its parent."""
        parent = run.parent
        assert parent is not None
        self._runs[run.number] = GONE
        self._spare.append(run.number)
        parent.detach(run.start, run.extra, run.key)
        return parent

    def _tidy(self, run: Run) -> None:
        """Cuts holes at the end of a run that lost pages or branches, and joins a branch that leaves it there.

        Holes at its end are cut unless a branch leaves behind them. An empty run is removed and its parent tidied. A
        run of one page without branches, duplicates and extra keys becomes a lone page.
        """
        if self._runs[run.number] is not run:
            return  # the run was removed or joined since
        while run.parent is not None:
            dead = run.num_dead()
            if dead == len(run.pages):
                run = self._remove(run)
                continue
            run.holes -= dead
            run.cut(dead)
            if run.children is None or run.end not in run.children:
                break
            run = self._join(run, *run.take_newest(run.end))  # which may end in holes of its own
        if run.parent is None:
            return
        if len(run.pages) == 1 and not run.num_attached and not run.extra:
            self._add_lone(self._remove(run), run.start, run.key, run.pages[0])

    def _join(self, head: Run, key: bytes, child: Run | int) -> Run:
        """Joins a branch at a run's end to the run; returns the run that has both."""
        if isinstance(child, int):
            del self._lone[child]
            head.lengthen(key)  # the page's tokens: a lone page has no extra keys, and so the run has none
            head.pages.append(child)
            return head
        kept, gone = join(head, child, self.run_cell)
        self._runs[gone.number] = GONE
        self._spare.append(gone.number)
        return kept

    def reset(self) -> None:
        """Removes every page. O(pages), in one fill, and O(runs and lone pages): no cycle is left for the collector."""
        self.leave_tails()
        self._run_of.fill(0)
        self._lone.clear()
        for run in self._runs:
            run.children = run.others = None  # a run and its branches refer to each other
            run.num_attached = 0
        self._spare = []
        self._runs = [GONE, *(tree.root for tree in self._trees.values())]
        for number, run in enumerate(self._runs):
            run.number = number

    # -- Looking ----------------------------------------------------------------------------------

    @property
    def num_runs(self) -> int:
        """The number of runs without the roots; a lone page has none."""
        return len(self._runs) - 1 - len(self._spare) - len(self._trees)

    def cached(self, pages: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.bool_]:
        """True for each of ``pages`` that is cached, `bool[len(pages)]`."""
        flags: NDArray[np.bool_] = self._run_of[pages] != 0
        return flags

    def num_cached(self, pages: NDArray[np.int64] | NDArray[np.int32]) -> int:
        """The number of ``pages`` that are cached; takes half the time of `cached`."""
        return int(np.count_nonzero(self._run_of[pages]))

    def place(self, page: int) -> tuple[Run, int] | None:
        """The run of a page, and its place in it; None if it is not cached."""
        number = self.run_cell[page]
        if not number:
            return None
        run = self._runs[number]
        if page in self._lone:
            return self._lone_run(page), 0
        if run.tail is not None:
            run.tail.settle()
        return run, self._depth_cell[page] - run.start

    def places(self) -> Iterator[tuple[Run, int, list[int]]]:
        """(run, place in it, pages in the order cached) of every cached content (POOL-7)."""
        for tree in self._trees.values():
            waiting = [tree.root]
            while waiting:
                run = waiting.pop()
                if run.tail is not None:
                    run.tail.settle()
                for place, page in enumerate(run.pages):
                    if page:
                        yield run, place, [page, *(run.duplicates or {}).get(run.start + place, ())]
                for _, _, child in run.branches():
                    if isinstance(child, Run):
                        waiting.append(child)
                    else:
                        yield self._lone_run(child), 0, [child]

    def check(self) -> None:
        """Verifies that runs, pages and places agree; O(pages and tokens).

        Raises:
            AssertionError: they don't; the message shows the tree.
        """
        check_index(
            self._trees.values(), self._runs, self._spare, self._lone, self.run_cell, self._depth_cell, self.places()
        )
