"""Runs: the nodes of the index of cached pages."""

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Protocol, final

import numpy as np

from ..reading.tokens import TokenBytes

__all__ = ["Branches", "Run", "RunTree", "common_pages"]

Branches = dict[int, dict[bytes, "Run | int"]]
"""What branches off a run: by place in a request, then by key, a run or the id of a lone page."""

_FIRST_STRETCH = 256
"""Pages that are compared at first where two prefixes part; then eight times as many, and so on."""


class Tail(Protocol):
    """Pages that stand behind a run's last one and are not among its pages yet; see `GrowingTail`."""

    def settle(self) -> None:
        """Puts the pages into the run."""

    def leave(self) -> None:
        """Settles, and lets go of the run, which is going to be changed."""


@final
class Run:
    """Pages of consecutive places with their tokens, and the branches that leave it at any of its pages.

    Attributes:
        tree: the tree it belongs to.
        number: its place in the index's list of runs; a lone page, looked at as a run, has its id with a minus.
        parent: the run that it branches off; None for a root.
        key: what the parent finds it by: its extra keys' encoding and its first page's token bytes.
        extra: the encoding of the extra keys that touch each of its pages.
        extra_keys: those extra keys, or None.
        start: the place of its first page in a request.
        tokens: its pages' token bytes; those of a run of one page may be its key.
        pages: its pages' ids, 0 where one was evicted.
        children: the branches under the same extra keys; None: there are none. None of them is at the run's end:
            what follows there is part of the run.
        others: the branches under other extra keys; None: there are none.
        num_attached: how many branches and duplicates it has.
        holes: how many of ``pages`` are 0.
        duplicates: by place in a request, the further pages of the same content in the order cached.
        num_agreed: how many of its first pages agreed with the last request that parted from it.
        digests: the digests of its first pages, as far as they were asked for; None before.
        tail: pages that it lacks yet, and whose request alone may lengthen it; None: there are none. Who looks at the
            run has it settled first, who changes its pages or adds to it has it leave.
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
        """The place behind its last page; a tail's pages are not counted."""
        return self.start + len(self.pages)

    def page_tokens(self, place: int) -> bytes:
        """The token bytes of one page."""
        size = self.tree.page_bytes
        return bytes(self.tokens[place * size : (place + 1) * size])

    # -- Pages ------------------------------------------------------------------------------------

    def lengthen(self, tokens: TokenBytes | bytearray) -> None:
        """Adds tokens behind its own; the pages are the caller's."""
        if type(self.tokens) is bytes:
            self.tokens = bytearray(self.tokens)
        self.tokens += tokens

    def cut(self, count: int) -> None:
        """Cuts its last ``count`` pages, fewer than it has."""
        if not count:
            return
        tokens: Any = self.tokens  # a bytearray: a run of several pages has its tokens to itself
        del self.pages[-count:]
        del tokens[-count * self.tree.page_bytes :]
        if self.digests:
            del self.digests[len(self.pages) :]

    def num_dead(self) -> int:
        """How many holes there are at its end that nothing follows. O(their number)."""
        pages, start = self.pages, self.start
        children, others = self.children or (), self.others or ()
        end = len(pages)
        while end and not pages[end - 1] and start + end not in children and start + end not in others:
            end -= 1
        return len(pages) - end

    def is_plain_end(self, count: int) -> bool:
        """Whether the last ``count`` pages have neither holes nor duplicates nor branches among and behind them."""
        if self.holes or self.duplicates:
            return False
        places = range(self.end - count + 1, self.end + 1)
        return all(not branches or branches.keys().isdisjoint(places) for branches in (self.children, self.others))

    def parts_again(self, tokens: TokenBytes, offset: int, most: int) -> bool:
        """Whether ``tokens`` from byte ``offset`` on, of ``most`` pages, part from it where the last ones did.

        Mostly so: requests that share a system prompt part where it ends. It is known by comparing two times.
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
        """Adds a branch at a place in a request, or puts it in place of the one with this key."""
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
        """Takes a branch away."""
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
        """Takes away one of the branches under its own extra keys at a place; returns its key and itself. O(1)."""
        assert self.children is not None, "it has a branch there"
        siblings = self.children[place]
        self.num_attached -= 1
        newest = siblings.popitem()
        if not siblings:
            del self.children[place]
            self.children = self.children or None
        return newest

    def branches(self) -> Iterator[tuple[int, bytes, "Run | int"]]:
        """(place in a request, key, branch) of all of its branches."""
        for branches in (self.children, self.others):
            for place, siblings in (branches or {}).items():
                for key, child in siblings.items():
                    yield place, key, child

    def check(self) -> None:
        """Verifies what the run says twice.

        Raises:
            AssertionError: it disagrees with itself; the message shows it.
        """
        page_bytes = self.tree.page_bytes
        attached = sorted((place, key) for place, key, _ in self.branches())
        state = (
            f"run {self.number} at {self.start}, pages {self.pages.tolist()}, holes {self.holes}, "
            f"duplicates {self.duplicates}, {len(self.tokens)} token bytes, branches at {[p for p, _ in attached]}"
        )
        assert len(self.tokens) == len(self.pages) * page_bytes, state
        assert len(self.pages) < 2 or isinstance(self.tokens, bytearray), f"tokens that can't be cut: {state}"
        assert self.holes == self.pages.count(0), state
        assert len(self.digests or ()) <= len(self.pages), state
        for branches in (self.children, self.others):
            assert branches is None or (branches and all(branches.values())), f"an empty dict: {state}"
        for place, key, child in self.branches():
            is_same = place in (self.children or ()) and key in (self.children or {})[place]
            extra, start = (b"", place) if isinstance(child, int) else (child.extra, child.start)
            assert start == place, state
            assert (extra == self.extra) == is_same, f"a branch under other extra keys: {state}"
            assert place == 0 if self.parent is None else self.start < place <= self.end, state
            assert not (is_same and self.parent is not None and place == self.end), f"to be joined: {state}"
            own = self.extra + self.page_tokens(place - self.start)
            assert not is_same or place == self.end or key != own, f"a branch of the run's own content: {state}"
            if isinstance(child, int):
                assert len(key) == page_bytes, state
                continue
            assert child.parent is self, state
            assert child.key == key == child.extra + bytes(child.tokens[:page_bytes]), state
        if self.parent is not None:
            assert self.pages, state
            assert not self.num_dead(), f"a hole at the end that nothing follows: {state}"
            is_lone = len(self.pages) == 1 and not self.num_attached and not self.extra
            assert not is_lone or self.number < 0, f"a lone page with a run: {state}"
        for depth, pages in (self.duplicates or {}).items():
            assert pages, state
            assert self.pages[depth - self.start], f"a duplicate of a hole: {state}"
        assert self.duplicates is None or self.duplicates, state
        num_attached = len(attached) + sum(map(len, (self.duplicates or {}).values()))
        assert self.num_attached == num_attached, f"{self.num_attached} attached: {state}"
        assert self.tail is None or (self.parent is not None and len(self.pages) > 1), f"a tail of a page: {state}"


class RunTree:
    """The runs of one cache group's pages of one size, below an empty root.

    Args:
        group_id: the group.
        page_size: tokens in a page.
        number: that of the root.
    """

    __slots__ = ("group_id", "page_bytes", "root")

    def __init__(self, group_id: int, page_size: int, number: int) -> None:
        self.group_id = group_id
        self.page_bytes = 4 * page_size
        self.root = Run(self, number, None, b"", b"", None, 0, bytearray(), array("i"))


def common_pages(run: Run, inner: int, tokens: TokenBytes, offset: int, most: int) -> int:
    """How many pages of a run, from ``inner`` on, ``most`` at most, agree with ``tokens`` from byte ``offset`` on.

    O(pages that agree): however much lies behind the place where they part.
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
