"""The index of cached pages: a tree of runs, compared token by token on contiguous memory.

A node is a *run*: pages that follow each other, their tokens in one buffer, their ids in one array. A look-up
walks from run to run by the first page's bytes and compares each run with the request in one memory comparison;
no digest is computed, so that a false hit is impossible by construction (R2). Splitting a run where two prefixes
part, cutting its tail when its last pages are evicted, and appending to a leaf are cheap; a page evicted from the
middle leaves a hole (id 0), which the same content fills again. Pages of equal content beyond the first stand
aside, in the order in which they were cached, and move up when the first goes (POOL-7).

Pages that different extra keys touch lie in different runs (HASH-2): a run carries the encoding of its extra
keys, and the key by which a parent finds it begins with that encoding.

A *lone page*, a leaf of one page without extra keys, has no run of its own: its id stands among the children of the
run above it, under its tokens, which are the only object that it costs (beside a run of one page a quarter of the
time to forget, and half of the bytes). It gets a run when a page comes behind it or beside it.

Costs: a look-up takes one dict step and one comparison a run, publishing on a leaf O(pages), evicting a run's
tail O(pages), anything else O(pages of the run).
"""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .extra_keys import ExtraSegment
from .runs import Run, RunTree, common_pages
from .tokens import TokenBytes

__all__ = ["PrefixIndex"]

_NOWHERE: NDArray[np.uint32] = np.zeros((), np.uint32)
"""The number of no run; an array, since numpy takes a third of a microsecond longer for the Python number."""

_GONE = RunTree(-1, 1, 0).root
"""What stands in the list of runs under a number that no run has."""


class PrefixIndex:
    """Which page holds which prefix, for several groups of pages of one pool.

    It trusts its caller: a published page is held and has no place in the index yet.

    Args:
        num_pages: pages of the pool.

    Attributes:
        run_cell: the number of the run in which each page stands, or below which it stands alone; 0 if it is not
            cached; scalar access.
    """

    def __init__(self, num_pages: int) -> None:
        self.run_cell = array("I", bytes(4 * num_pages))
        self._run_of: NDArray[np.uint32] = np.frombuffer(self.run_cell, np.uint32)
        self._depth_cell = array("I", bytes(4 * num_pages))
        self._depth_of: NDArray[np.uint32] = np.frombuffer(self._depth_cell, np.uint32)
        self._lone: dict[int, bytes] = {}
        """What each lone page is found by."""
        self._runs: list[Run] = [_GONE]
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
        """Whether each of ``pages`` holds the request's page at its place in the list, `bool[len(pages)]` (MAN-2)."""
        found = self.first_pages(tree, tokens, segments, len(pages))
        count = len(found)
        given, good = pages[:count], np.zeros(len(pages), bool)
        # its own page, or a duplicate of it, which stands in the same run at the same place
        is_in_place = self._depth_of[given] == np.arange(count)
        good[:count] = (found != 0) & (self._run_of[given] == self._run_of[found]) & is_in_place
        if count and int(found[-1]) in self._lone:  # beside it others may stand alone, below the same run
            good[count - 1] = given[-1] == found[-1]
        return good

    def walk(
        self, tree: RunTree, tokens: TokenBytes, segments: Sequence[ExtraSegment], limit: int
    ) -> tuple[bytearray, bool]:
        """The page cached for each place of a request, 0 where there is none, as far as the tree knows its tokens.

        Args:
            tree: where to look.
            tokens: the request's token bytes.
            segments: its extra keys over its pages.
            limit: the most pages wanted; the tokens cover as many.

        Returns:
            The pages' ids as the bytes of int32, ``limit`` of them at most: from there on nothing is cached. And
            whether the runs that were walked have no holes.
        """
        found, is_whole = bytearray(), True
        size = tree.page_bytes
        children = tree.root.children
        depth = 0
        for last, extra, _ in segments:
            end = last if last < limit else limit
            while depth < end:
                if children is None:
                    return found, is_whole
                offset = depth * size
                child = children.get(extra + tokens[offset : offset + size])
                if type(child) is not Run:
                    if child:
                        found += array("i", (child,))
                    return found, is_whole
                if child.tail is not None:
                    child.tail.settle()
                pages = child.pages
                depth += len(pages)
                if child.holes:
                    is_whole = False
                if depth > end or not child.tokens.startswith(tokens[offset : depth * size]):
                    count = common_pages(child, 0, tokens, offset, len(pages) - max(depth - end, 0))
                    if count < len(pages):
                        found += pages[:count]
                        return found, is_whole
                found += pages
                children = child.children
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
        """Enters pages under the request's tokens (POOL-7). A page 0 among them enters nothing.

        Args:
            tree: where to enter them.
            tokens: the request's token bytes from page ``start`` on.
            segments: its extra keys over its pages, from its first on.
            pages: the pages that hold these tokens.
            start: the place of the first of them in the request.
            after: the cached page that holds the request's page ``start - 1``; 0 where ``start`` is 0.
        """
        if not after:
            run = tree.root
        else:
            run = self._run_at(after) if after in self._lone else self._runs[self.run_cell[after]]
        size = tree.page_bytes
        depth = start
        end = start + len(pages)
        is_whole = np.count_nonzero(pages) == len(pages)
        while not is_whole and end > start and not pages[end - 1 - start]:
            end -= 1
        place = 0
        while depth < end:
            if run.tail is not None:
                run.tail.leave()
            last, extra, extra_keys = segments[place]
            if last <= depth:
                place += 1
                continue
            offset = (depth - start) * size
            stop = last if last < end else end
            run_end = run.start + len(run.pages)
            if depth < run_end:
                inner = depth - run.start
                count = 0
                if run.extra == extra:
                    count = common_pages(run, inner, tokens, offset, min(run_end, stop) - depth)
                if count:
                    self._occupy(run, inner, pages[depth - start : depth - start + count])
                    depth += count
                if depth < end and depth < run_end:
                    run = self._split(run, depth - run.start)
                continue
            is_leaf = run.children is None and run.parent is not None and run.extra == extra
            if not is_leaf:
                key = extra + tokens[offset : offset + size]
                child = run.children.get(key) if run.children else None
                if child is not None:
                    run = child if isinstance(child, Run) else self._run_at(child)
                    continue
                if depth + 1 == end and not extra:
                    self._add_lone(run, int(pages[depth - start]), key)
                    return
            own, text = pages[depth - start : stop - start], tokens[offset : (stop - start) * size]
            ids = array("i", own.astype(np.int32).tobytes())
            if is_leaf:
                run.lengthen(text)
                run.pages += ids
            else:
                kept = bytes(text) if len(ids) == 1 else bytearray(text)
                run = Run(tree, 0, run, key, extra, extra_keys, depth, kept, ids)
                self._number(run)
            places = np.arange(depth, stop, dtype=np.uint32)
            if not is_whole:
                held = own.nonzero()[0]
                run.holes += len(own) - len(held)
                own, places = own[held], places[held]
            self._run_of[own] = run.number
            self._depth_of[own] = places
            depth = stop

    def _add_lone(self, parent: Run, page: int, key: bytes) -> None:
        if parent.children is None:
            parent.children = {}
        parent.children[key] = page
        self._lone[page] = key
        self.run_cell[page] = parent.number
        self._depth_cell[page] = parent.start + len(parent.pages)

    def _lone_run(self, page: int) -> Run:
        """A lone page as a run that stands nowhere, for those who look or are about to put it there."""
        parent, key = self._runs[self.run_cell[page]], self._lone[page]
        return Run(parent.tree, -page, parent, key, b"", None, self._depth_cell[page], key, array("i", (page,)))

    def _run_at(self, page: int) -> Run:
        """The run in which a cached page stands; a lone one gets its own."""
        if page not in self._lone:
            return self._runs[self.run_cell[page]]
        run = self._lone_run(page)
        del self._lone[page]
        self._number(run)
        self.run_cell[page] = run.number
        return run

    def publish_next(self, page: int, after: int, depth: int, tokens: TokenBytes, extra: bytes) -> bool:
        """The usual case of `publish`: one page behind the last page of a leaf, in O(1).

        Args:
            page: the page.
            after: the cached page that holds the request's page before it.
            depth: its place in the request.
            tokens: its token bytes.
            extra: the encoding of the extra keys that touch it.

        Returns:
            Whether this was the case; if not, nothing has changed.
        """
        number = self.run_cell[after]
        run = self._runs[number]
        if run.tail is not None:
            run.tail.leave()
        pages = run.pages
        if run.children is not None or pages[-1] != after or run.extra != extra:
            return False
        run.lengthen(tokens)
        pages.append(page)
        self.run_cell[page] = number
        self._depth_cell[page] = depth
        return True

    def leaf_behind(self, page: int) -> Run | None:
        """The run whose last page is ``page``, if it is a leaf that is nobody's to lengthen; else None."""
        number = self.run_cell[page]
        run = self._runs[number]
        is_free = number and run.children is None and run.tail is None and run.pages[-1] == page
        return run if is_free else None

    def leave_tails(self) -> None:
        """Puts tails and runs together, and leaves no run to any request. O(runs and pages of tails)."""
        for run in self._runs:
            if run.tail is not None:
                run.tail.leave()

    def lengthen(self, numbers: NDArray[np.int64], pages: NDArray[np.int64], places: NDArray[np.int64]) -> None:
        """Notes that pages stand in tails of runs. O(pages).

        Args:
            numbers: the runs' numbers, `i64[m]`.
            pages: the pages, `i64[m]`.
            places: their places in the requests, `i64[m]`.
        """
        self._run_of[pages] = numbers
        self._depth_of[pages] = places

    def lengthen_one(self, number: int, page: int, place: int) -> None:
        """`lengthen` for one page."""
        self.run_cell[page] = number
        self._depth_cell[page] = place

    def _occupy(self, run: Run, inner: int, pages: NDArray[np.int64]) -> None:
        """Enters pages where the run has this content already: in holes, or aside as duplicates."""
        for place, page in enumerate(pages.tolist(), inner):
            if not page:
                continue
            if run.pages[place] == 0:
                run.pages[place] = page
                run.holes -= 1
            else:
                if run.duplicates is None:
                    run.duplicates = {}
                run.duplicates.setdefault(run.start + place, []).append(page)
            self.run_cell[page] = run.number
            self._depth_cell[page] = run.start + place

    def _number(self, run: Run) -> None:
        """Puts a run into the list of runs, and among the children of its parent."""
        if self._spare:
            run.number = self._spare.pop()
            self._runs[run.number] = run
        else:
            run.number = len(self._runs)
            self._runs.append(run)
        parent = run.parent
        assert parent is not None
        if parent.children is None:
            parent.children = {}
        parent.children[run.key] = run

    def _split(self, run: Run, inner: int) -> Run:
        """Cuts a run before its page ``inner``, which is not its first: the pages before go to a new run above it."""
        parent = run.parent
        assert parent is not None
        size = run.tree.page_bytes
        tokens, first = run.tokens[: inner * size], run.pages[:inner]
        head = Run(run.tree, 0, parent, run.key, run.extra, run.extra_keys, run.start, tokens, first)
        self._number(head)
        head.digests = run.digests and run.digests[:inner]
        run.keep(inner, len(run.pages))
        run.parent = head
        run.key = run.extra + bytes(run.tokens[:size])
        run.start += inner
        head.children = {run.key: run}
        moved = np.frombuffer(head.pages, np.int32)
        if run.holes:
            head.holes = head.pages.count(0)
            run.holes -= head.holes
            moved = moved[moved != 0]
        self._run_of[moved] = head.number
        if run.duplicates:
            above = {depth: pages for depth, pages in run.duplicates.items() if depth < run.start}
            below = {depth: pages for depth, pages in run.duplicates.items() if depth >= run.start}
            head.duplicates, run.duplicates = above or None, below or None
            for pages in above.values():
                for page in pages:
                    self.run_cell[page] = head.number
        return head

    # -- Evicting ---------------------------------------------------------------------------------

    def evict_one(self, page: int) -> None:
        """Takes a cached page out. O(1) at the end of a leaf."""
        cell = self.run_cell
        run = self._runs[cell[page]]
        cell[page] = 0
        key = self._lone.pop(page, None) if self._lone else None
        if key is not None:
            self._remove_child(run, key)
            return
        if run.tail is not None:
            run.tail.leave()
        pages = run.pages
        if run.children is not None or run.duplicates is not None or run.holes or pages[-1] != page:
            self._evict_page(run, page)
        elif len(pages) == 1:
            self._remove_leaf(run)
        else:  # `Run.cut` of one page: without its call a twelfth of what taking an evicting page costs is saved
            tokens: Any = run.tokens
            pages.pop()
            del tokens[-run.tree.page_bytes :]
            if run.digests:
                del run.digests[len(pages) :]

    def evict(self, pages: NDArray[np.int64]) -> int:
        """Takes the cached ones of distinct pages out; returns how many. O(pages) for the tails of leaves.

        Pages of one run that stand together, in whatever order, go together.
        """
        numbers = self._run_of[pages]
        num_cached = int(np.count_nonzero(numbers))
        if not num_cached:
            return 0
        self._run_of[pages] = _NOWHERE
        number_of, page_of = numbers.data, pages.data
        backwards = pages[::-1].astype(np.int32).tobytes()
        runs, lone, end = self._runs, self._lone, len(pages)
        start = 0
        while start < end:
            number = number_of[start]
            if not number:
                start += 1
                continue
            run = runs[number]
            if lone:
                key = lone.pop(page_of[start], None)
                if key is not None:
                    self._remove_child(run, key)
                    start += 1
                    continue
            if run.tail is not None:
                run.tail.leave()
            length, left = len(run.pages), end - start
            count = length if length < left else left
            is_whole = run.children is None and run.duplicates is None and not run.holes
            # mostly the whole run, or as much of its end as there are pages, the last one first
            if is_whole and backwards[4 * (left - count) : 4 * left] == run.pages[-count:].tobytes():
                if count < length:
                    run.cut(count)
                else:
                    self._remove_leaf(run)
                start += count
                continue
            own = numbers[start : start + count] == number
            if np.count_nonzero(own) < count:
                count = int(own.argmin())
            some = pages[start : start + count]
            # as many distinct pages as there are places from the lowest on: exactly the run's tail, in any order
            if is_whole and int(self._depth_of[some].min()) == run.start + length - count:
                self._cut_tail(run, count)
            else:
                for page in some.tolist():
                    self._evict_page(run, page)
            start += count
        return num_cached

    def _evict_page(self, run: Run, page: int) -> None:
        key = self._lone.pop(page, None)
        if key is not None:  # below pages of the run that go as well
            self._remove_child(run, key)
            return
        depth = self._depth_cell[page]
        place = depth - run.start
        if run.duplicates and depth in run.duplicates:
            others = run.duplicates[depth]
            if run.pages[place] == page:
                run.pages[place] = others.pop(0)
            else:
                others.remove(page)
            if not others:
                del run.duplicates[depth]
                run.duplicates = run.duplicates or None
            return
        run.pages[place] = 0
        run.holes += 1
        self._trim(run)

    def _trim(self, run: Run) -> None:
        """Cuts the holes at the end of a run, if it is a leaf."""
        if run.children is None and run.parent is not None and run.pages[-1] == 0:
            count = 1
            while count < len(run.pages) and run.pages[-1 - count] == 0:
                count += 1
            run.holes -= count
            self._cut_tail(run, count)

    def _cut_tail(self, run: Run, count: int) -> None:
        """Cuts the last pages of a leaf; where none is left the run goes, and the holes laid bare above it."""
        if count < len(run.pages):
            run.cut(count)
        else:
            self._remove_leaf(run)

    def _remove_leaf(self, run: Run) -> None:
        parent = run.parent
        assert parent is not None
        self._runs[run.number] = _GONE
        self._spare.append(run.number)
        self._remove_child(parent, run.key)

    def _remove_child(self, parent: Run, key: bytes) -> None:
        children = parent.children
        assert children is not None
        del children[key]
        if not children:
            parent.children = None
            if parent.holes:
                self._trim(parent)

    def reset(self) -> None:
        """Forgets every page. O(pages), in one fill, and O(runs and lone pages): none is left to the collector."""
        self.leave_tails()
        self._run_of.fill(0)
        self._lone.clear()
        for run in self._runs:
            run.children = None  # a run and those below it name each other
        self._spare = []
        self._runs = [_GONE, *(tree.root for tree in self._trees.values())]
        for number, run in enumerate(self._runs):
            run.number = number

    # -- Looking ----------------------------------------------------------------------------------

    def cached(self, pages: NDArray[np.int64] | NDArray[np.int32]) -> NDArray[np.bool_]:
        """Whether each of ``pages`` is cached, `bool[len(pages)]`."""
        flags: NDArray[np.bool_] = self._run_of[pages] != 0
        return flags

    def num_cached(self, pages: NDArray[np.int64] | NDArray[np.int32]) -> int:
        """How many of ``pages`` are cached: half the price of `cached`."""
        return int(np.count_nonzero(self._run_of[pages]))

    def place(self, page: int) -> tuple[Run, int] | None:
        """The run in which a page stands, and its place there; None if it is not cached."""
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
        """Every content that is cached: its run, its place there, and its pages in order (POOL-7)."""
        for tree in self._trees.values():
            waiting = [tree.root]
            while waiting:
                run = waiting.pop()
                if run.tail is not None:
                    run.tail.settle()
                for place, page in enumerate(run.pages):
                    if page:
                        yield run, place, [page, *(run.duplicates or {}).get(run.start + place, ())]
                for child in (run.children or {}).values():
                    if isinstance(child, Run):
                        waiting.append(child)
                    else:
                        yield self._lone_run(child), 0, [child]

    def check(self) -> None:
        """Verifies that runs, pages and places agree; O(pages and tokens).

        Raises:
            AssertionError: they don't; the message shows the tree.
        """
        seen: dict[int, tuple[int, int]] = {}
        numbers: list[int] = []
        lone: dict[int, bytes] = {}
        for tree in self._trees.values():
            waiting = [tree.root]
            while waiting:
                run = waiting.pop()
                run.check()
                numbers.append(run.number)
                assert self._runs[run.number] is run, f"POOL-7: number of {run}"
                for key, child in (run.children or {}).items():
                    if isinstance(child, Run):
                        waiting.append(child)
                        continue
                    assert child not in seen, f"POOL-8: page {child} stands twice"
                    lone[child] = key
                    seen[child] = (run.number, run.start + len(run.pages))
        noted = sorted(self._lone)
        assert lone == self._lone, f"POOL-7: lone pages {sorted(lone)}, noted {noted}, or their keys differ"
        for run, place, pages in self.places():
            for page in pages:
                if page not in lone:
                    assert page not in seen, f"POOL-8: page {page} stands twice"
                    seen[page] = (run.number, run.start + place)
        assert len(self._runs) == 1 + len(numbers) + len(self._spare), f"runs {len(self._runs)}, spare {self._spare}"
        for page in range(len(self.run_cell)):
            number = self.run_cell[page]
            expected = (number, self._depth_cell[page]) if number else None
            assert seen.get(page) == expected, f"POOL-7: page {page} stands at {seen.get(page)}, noted {expected}"
