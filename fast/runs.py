"""Runs: the nodes of the index of cached pages."""

from array import array
from typing import Any, Protocol, final

import numpy as np

from .tokens import TokenBytes

__all__ = ["Run", "RunTree", "common_pages"]


class Tail(Protocol):
    """Pages that stand behind a leaf's last one and are not among its pages yet; see `GrowingTail`."""

    def settle(self) -> None:
        """Puts the pages into the run."""

    def leave(self) -> None:
        """Settles, and lets go of the run, which is going to be changed."""


@final
class Run:
    """Pages of consecutive places with their tokens, below the run that ends where it begins.

    Attributes:
        tree: the tree it belongs to.
        number: its place in the index's list of runs; a lone page, looked at as a run, has its id with a minus.
        parent: the run before; None for a root.
        key: what the parent finds it by: its extra keys' encoding and its first page's token bytes.
        extra: the encoding of the extra keys that touch each of its pages.
        extra_keys: those extra keys, or None.
        start: the place of its first page in a request.
        tokens: its pages' token bytes; those of a run of one page may be its key.
        pages: its pages' ids, 0 where one was evicted.
        children: what comes after it, by key, a run or the id of a lone page; None if there is nothing.
        holes: how many of ``pages`` are 0.
        duplicates: by place in a request, the further pages of the same content in the order cached.
        digests: the digests of its first pages, as far as they were asked for; None before.
        tail: pages that it lacks yet, and whose request alone may lengthen it as it is; None: there are none. Only a
            leaf has one; who looks at the run has it settled first, who changes it has it leave.
    """

    __slots__ = (
        "children",
        "digests",
        "duplicates",
        "extra",
        "extra_keys",
        "holes",
        "key",
        "number",
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
        self.children: dict[bytes, Run | int] | None = None
        self.holes = 0
        self.duplicates: dict[int, list[int]] | None = None
        self.digests: list[bytes] | None = None
        self.tail: Tail | None = None

    def page_tokens(self, place: int) -> bytes:
        """The token bytes of one page."""
        size = self.tree.page_bytes
        return bytes(self.tokens[place * size : (place + 1) * size])

    def lengthen(self, tokens: TokenBytes | bytearray) -> None:
        """Adds tokens behind its own; the pages are the caller's."""
        if type(self.tokens) is bytes:
            self.tokens = bytearray(self.tokens)
        self.tokens += tokens

    def cut(self, count: int) -> None:
        """Cuts its last ``count`` pages, fewer than it has."""
        tokens: Any = self.tokens  # a bytearray: a run of several pages has its tokens to itself
        del self.pages[-count:]
        del tokens[-count * self.tree.page_bytes :]
        if self.digests:
            del self.digests[len(self.pages) :]

    def keep(self, first: int, end: int) -> None:
        """Cuts tokens, pages and digests but those of the pages ``[first, end)``."""
        size = self.tree.page_bytes
        self.tokens = self.tokens[first * size : end * size]
        self.pages = self.pages[first:end]
        self.digests = self.digests and self.digests[first:end]

    def check(self) -> None:
        """Verifies what the run says twice.

        Raises:
            AssertionError: it disagrees with itself; the message shows it.
        """
        page_bytes = self.tree.page_bytes
        state = (
            f"run {self.number} at {self.start}, pages {self.pages.tolist()}, holes {self.holes}, "
            f"duplicates {self.duplicates}, {len(self.tokens)} token bytes"
        )
        assert len(self.tokens) == len(self.pages) * page_bytes, state
        assert len(self.pages) < 2 or isinstance(self.tokens, bytearray), f"tokens that can't be cut: {state}"
        assert self.holes == self.pages.count(0), state
        assert len(self.digests or ()) <= len(self.pages), state
        assert self.children is None or self.children, state
        for key, child in (self.children or {}).items():
            if isinstance(child, int):
                assert len(key) == page_bytes, state
                continue
            assert child.parent is self, state
            assert child.key == key == child.extra + bytes(child.tokens[:page_bytes]), state
            assert child.start == self.start + len(self.pages), state
        if self.parent is not None:
            assert self.pages, state
            assert self.children or self.pages[-1], f"a hole at the end of a leaf: {state}"
        for depth, pages in (self.duplicates or {}).items():
            assert pages, state
            assert self.pages[depth - self.start], f"a duplicate of a hole: {state}"
        assert self.duplicates is None or self.duplicates, state
        assert self.tail is None or (self.children is None and self.parent is not None), f"a tail of no leaf: {state}"


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
    """How many pages of a run, from ``inner`` on, ``most`` at most, agree with ``tokens`` from byte ``offset`` on."""
    page_bytes = run.tree.page_bytes
    words = most * page_bytes // 4
    mine = np.frombuffer(run.tokens, np.int32, words, inner * page_bytes)
    theirs = np.frombuffer(tokens, np.int32, words, offset)
    differs = mine != theirs
    first = int(differs.argmax())
    return 4 * first // page_bytes if differs[first] else most
