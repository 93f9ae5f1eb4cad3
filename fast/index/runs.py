"""Runs: the nodes of the index of cached pages."""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Protocol, final

import numpy as np

from ..reading.tokens import TokenBytes

__all__ = ["GONE", "Branches", "Run", "RunTree", "common_pages"]

Branches = dict[int, dict[bytes, "Run | int"]]
"""The branches of a run, by place in a request, then by key: runs, or ids of lone pages."""

_FIRST_STRETCH = 256
"""The number of pages compared first to find where two prefixes part; each further comparison has eight times as
many."""


class Tail(Protocol):
    """Pages published behind a run's last one that are not stored in the run yet; see `GrowingTail`."""

    def settle(self) -> None:
        """Moves the pages into the run."""

    def leave(self) -> None:
        """Settles and detaches the tail from the run, which is about to change."""


@final
class Run:
    """Pages of consecutive places with their tokens, and the branches that leave it at any of its pages.

    Attributes:
        tree: the tree of the run.
        number: the run's place in the index's list of runs; minus the page's id for a lone page shown as a run.
        parent: the run that this one branches off; None for a root.
        key: the run's key among the parent's branches: ``extra`` and the first page's token bytes.
        extra: the encoding of the extra keys that touch each page of the run.
        extra_keys: the extra keys that touch each page of the run, or None.
        start: the position of the first page in a request.
        tokens: the pages' token bytes; of a run of one page perhaps the same object as ``key``.
        pages: the pages' ids, 0 where one was evicted.
        children: the branches under the same extra keys; None if there are none. No such branch leaves the run at its
            end: it would be joined to the run.
        others: the branches under other extra keys; None if there are none.
        num_attached: the number of branches and duplicates.
        holes: the number of zeros in ``pages``.
        duplicates: by position in a request, the further pages of the same content, in the order cached; None if there
            are none.
        num_agreed: the number of leading pages that agreed with the last look-up that left the run amid it; 0 before.
        digests: the digests of leading pages, as far as they were computed; None if none was.
        tail: pages published behind the run by one live request and not stored in it yet; None if there are none. A
            reader of the run settles the tail first; a writer detaches it (`Tail.leave`).
    """

    __slots__ = (
        "children",
        "digests",
        "duplicates",
        "extra",
        "extra_keys",
        "holes",
        "key",
        "num_agreed",
        "num_attached",
        "number",
        "others",
        "pages",
        "parent",
        "start",
        "tail",
        "tokens",
        "tree",
    )

    def __init__(
        self,
        tree: "RunTree",
        number: int,
        parent: "Run | None",
        key: bytes,
        extra: bytes,
        extra_keys: tuple[Any, ...] | None,
        start: int,
        tokens: bytes | bytearray,
        pages: "array[int]",
    ) -> None:
        self.tree = tree
        self.number = number
        self.parent = parent
        self.key = key
        self.extra = extra
        self.extra_keys = extra_keys
        self.start = start
        self.tokens = tokens
        self.pages = pages
        self.children: Branches | None = None
        self.others: Branches | None = None
        self.num_attached = 0
        self.num_agreed = 0
        self.holes = 0
        self.duplicates: dict[int, OrderedDict[int, None]] | None = None
        self.digests: list[bytes] | None = None
        self.tail: Tail | None = None

    @property
    def end(self) -> int:
        """The position behind the last page; a tail's pages are not counted."""
        return self.start + len(self.pages)

    def page_tokens(self, place: int) -> bytes:
        """The token bytes of one page."""
        size = self.tree.page_bytes
        return bytes(self.tokens[place * size : (place + 1) * size])

    # -- Pages ------------------------------------------------------------------------------------

    def lengthen(self, tokens: TokenBytes | bytearray) -> None:
        """Appends tokens; the caller appends the pages."""
        if type(self.tokens) is bytes:
            self.tokens = bytearray(self.tokens)
        try:
            self.tokens += tokens
        except BufferError:  # a look-up's view of them is alive: a profiler, a debugger or an error keeps its frame
            self.tokens = self.tokens + tokens

    def cut(self, count: int) -> None:
        """Removes the last ``count`` pages, fewer than there are."""
        if not count:
            return
        tokens: Any = self.tokens  # a bytearray: only a run of one page may share its tokens with its key
        del self.pages[-count:]
        end = -count * self.tree.page_bytes
        try:
            del tokens[end:]
        except BufferError:  # see `lengthen`
            self.tokens = tokens[:end]
        if self.digests:
            del self.digests[len(self.pages) :]

    def num_dead(self) -> int:
        """The number of holes at the end that no branch follows. O(their number)."""
        pages, start = self.pages, self.start
        children, others = self.children or (), self.others or ()
        end = len(pages)
        while end and not pages[end - 1] and start + end not in children and start + end not in others:
            end -= 1
        return len(pages) - end

    def parts_again(self, tokens: TokenBytes, offset: int, most: int) -> bool:
        """True if ``most`` pages of ``tokens`` from byte ``offset`` on leave the run where the last look-up did.

        The usual case, since requests that share a system prompt part where it ends. Costs two comparisons.
        """
        size, agreed = self.tree.page_bytes, self.num_agreed
        after = offset + agreed * size
        return (
            agreed < most
            and not self.tokens.startswith(tokens[after : after + size], agreed * size)
            and self.tokens.startswith(tokens[offset:after])
        )

    # -- Branches ---------------------------------------------------------------------------------

    def attach(self, place: int, extra: bytes, key: bytes, child: "Run | int") -> None:
        """Adds a branch at a position in a request, replacing the one with this key, if any."""
        if extra == self.extra:
            branches = self.children = {} if self.children is None else self.children
        else:
            branches = self.others = {} if self.others is None else self.others
        siblings = branches.get(place)
        if siblings is None:
            siblings = branches[place] = {}
        self.num_attached += key not in siblings
        siblings[key] = child

    def detach(self, place: int, extra: bytes, key: bytes) -> None:
        """Removes a branch."""
        branches = self.children if extra == self.extra else self.others
        assert branches is not None, "it has this branch"
        siblings = branches[place]
        del siblings[key]
        self.num_attached -= 1
        if not siblings:
            del branches[place]
            if not branches and extra == self.extra:
                self.children = None
            elif not branches:
                self.others = None

    def take_newest(self, place: int) -> tuple[bytes, "Run | int"]:
        """Removes the newest branch under the same extra keys at a place; returns its key and the branch. O(1)."""
        assert self.children is not None, "it has a branch there"
        siblings = self.children[place]
        self.num_attached -= 1
        newest = siblings.popitem()
        if not siblings:
            del self.children[place]
            self.children = self.children or None
        return newest

    def branches(self) -> Iterator[tuple[int, bytes, "Run | int"]]:
        """(position in a request, key, branch) of all branches."""
        for branches in (self.children, self.others):
            for place, siblings in (branches or {}).items():
                for key, child in siblings.items():
                    yield place, key, child

    def check(self) -> None:
        """Verifies every redundancy of the run.

        Raises:
            AssertionError: a check fails; the message shows the run.
        """
        page_bytes = self.tree.page_bytes
        attached = sorted((place, key) for place, key, _ in self.branches())

        def state() -> str:
            return (
                f"POOL-7: run {self.number} at {self.start}, pages {self.pages.tolist()}, holes {self.holes}, "
                f"duplicates {self.duplicates}, {len(self.tokens)} token bytes, branches at {[p for p, _ in attached]}"
            )

        is_part = self.extra.startswith(b"\xff")  # see `parts.PART`
        if is_part:
            assert len(self.pages) == 1, f"MAN-17: pages behind one that is not full: {state()}"
            assert 0 < len(self.tokens) < page_bytes, state()
            assert not attached, f"MAN-17: branches behind a page that is not full: {state()}"
        else:
            assert len(self.tokens) == len(self.pages) * page_bytes, state()
        assert len(self.pages) < 2 or isinstance(self.tokens, bytearray), f"tokens that can't be cut: {state()}"
        assert self.holes == self.pages.count(0), state()
        assert len(self.digests or ()) <= len(self.pages), state()
        for branches in (self.children, self.others):
            assert branches is None or (branches and all(branches.values())), f"an empty dict: {state()}"
        for place, key, child in self.branches():
            is_same = place in (self.children or ()) and key in (self.children or {})[place]
            extra, start = (b"", place) if isinstance(child, int) else (child.extra, child.start)
            assert start == place, state()
            assert (extra == self.extra) == is_same, f"a branch under other extra keys: {state()}"
            assert place == 0 if self.parent is None else self.start < place <= self.end, state()
            assert not (is_same and self.parent is not None and place == self.end), f"to be joined: {state()}"
            own = self.extra + self.page_tokens(place - self.start)
            assert not is_same or place == self.end or key != own, f"a branch of the run's own content: {state()}"
            if isinstance(child, int):
                assert len(key) == page_bytes, state()
                continue
            assert child.parent is self, state()
            assert child.key == key == child.extra + bytes(child.tokens[:page_bytes]), state()
        if self.parent is not None:
            assert self.pages, state()
            assert not self.num_dead(), f"a hole at the end that nothing follows: {state()}"
            is_lone = len(self.pages) == 1 and not self.num_attached and not self.extra
            assert not is_lone or self.number < 0, f"a lone page with a run: {state()}"
        for depth, pages in (self.duplicates or {}).items():
            assert pages, state()
            assert self.pages[depth - self.start], f"a duplicate of a hole: {state()}"
        assert self.duplicates is None or self.duplicates, state()
        num_attached = len(attached) + sum(map(len, (self.duplicates or {}).values()))
        assert self.num_attached == num_attached, f"{self.num_attached} attached: {state()}"
        assert self.tail is None or (self.parent is not None and len(self.pages) > 1), f"a tail of a page: {state()}"


class RunTree:
    """The runs of one cache group's pages of one size, below an empty root.

    Args:
        group_id: the group.
        page_size: tokens in a page.
        number: the number of the root.
    """

    __slots__ = ("group_id", "page_bytes", "root")

    def __init__(self, group_id: int, page_size: int, number: int) -> None:
        self.group_id = group_id
        self.page_bytes = 4 * page_size
        self.root = Run(self, number, None, b"", b"", None, 0, bytearray(), array("i"))


GONE = RunTree(-1, 1, 0).root
"""The placeholder in an index's list of runs at a number that no run has."""


def common_pages(run: Run, inner: int, tokens: TokenBytes, offset: int, most: int) -> int:
    """The number of pages of a run from ``inner`` on, at most ``most``, that equal ``tokens`` from ``offset`` on.

    ``offset`` is in bytes. O(pages that agree), however many pages follow.
    """
    page_bytes = run.tree.page_bytes
    done, stretch = 0, _FIRST_STRETCH
    while done < most:
        count = min(stretch, most - done)
        words = count * page_bytes // 4
        mine = np.frombuffer(run.tokens, np.int32, words, (inner + done) * page_bytes)
        theirs = np.frombuffer(tokens, np.int32, words, offset + done * page_bytes)
        differs = mine != theirs
        first = int(differs.argmax())
        if differs[first]:
            return done + 4 * first // page_bytes
        done += count
        stretch *= 8
    return most
