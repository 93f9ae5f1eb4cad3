"""MAN-17: cached pages whose first tokens are a request's next ones: full pages, and those that were left unfilled.

A page that is not full stands in the tree as a run of its own, among the branches of the run that holds the page before
it. Its extra keys begin with `PART` there, so that no look-up of a full page meets it, nothing is published behind it
and it is joined to nothing.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ..reading.extra_keys import ExtraSegment
from ..reading.tokens import TokenBytes
from .runs import Run, RunTree, common_pages

__all__ = ["PART", "extra_at", "find_part", "longest_part"]

PART = b"\xff"
"""What the extra keys of a page that is not full begin with in the tree; no encoding of extra keys does (HASH-1)."""


def extra_at(segments: Sequence[ExtraSegment], place: int) -> ExtraSegment:
    """The segment of a request's extra keys that has the page at a place."""
    return next(segment for segment in segments if place < segment.end)


def longest_part(
    tree: RunTree, tokens: TokenBytes, segments: Sequence[ExtraSegment], place: int, most: int, unit: int
) -> int:
    """How many of a request's tokens from the page at a place on are the first ones of a cached page there.

    O(tokens before, compared in memory, and branches that leave there).

    Args:
        tree: the tree to search.
        tokens: the request's token bytes.
        segments: its extra keys over its pages.
        place: the place.
        most: the most tokens to compare, at most those of a page.
        unit: the result is a multiple of this.
    """
    start, best = place * tree.page_bytes, 0
    wanted = bytes(tokens[start : start + 4 * (most // unit * unit)])
    for text, _ in _pages_behind(tree, tokens, segments, place):
        if len(wanted) > best and text.startswith(wanted[: best + 4 * unit]):
            words = min(len(text), len(wanted)) // 4
            differs = np.frombuffer(text, np.int32, words) != np.frombuffer(wanted, np.int32, words)
            agreed = int(differs.argmax()) if differs.any() else words
            best = 4 * (agreed // unit * unit)
    return best // 4


def find_part(tree: RunTree, tokens: TokenBytes, segments: Sequence[ExtraSegment], place: int, count: int) -> int:
    """The cached page that holds ``count`` tokens of a request from a place on, 0 if there is none.

    Of several the one whose tokens come first, compared by their bytes. Costs and arguments as for `longest_part`.
    """
    start = place * tree.page_bytes
    wanted = bytes(tokens[start : start + 4 * count])
    found = [own for own in _pages_behind(tree, tokens, segments, place) if own[0].startswith(wanted)]
    return min(found)[1] if found else 0


def _pages_behind(
    tree: RunTree, tokens: TokenBytes, segments: Sequence[ExtraSegment], place: int
) -> Iterator[tuple[bytes, int]]:
    """Token bytes and first page of each content that is cached at a place behind a request's pages before it."""
    run = _run_before(tree, tokens, segments, place)
    if run is None:
        return
    extra, inner = extra_at(segments, place).extra, place - run.start
    if run.parent is not None and extra == run.extra and inner < len(run.pages) and run.pages[inner]:
        yield run.page_tokens(inner), run.pages[inner]
    for own in (extra, PART + extra):
        branches = run.children if own == run.extra else run.others
        for key, child in (branches or {}).get(place, {}).items():
            page, touching = (child.pages[0], child.extra) if isinstance(child, Run) else (child, b"")
            if page and touching == own:
                yield key[len(own) :], page


def _run_before(tree: RunTree, tokens: TokenBytes, segments: Sequence[ExtraSegment], place: int) -> Run | None:
    """The run that has a request's page before a place, cached or not, the root for the first; None: no run has it."""
    run, depth, size = tree.root, 0, tree.page_bytes
    for last, extra, _ in segments:
        end = min(last, place)
        while depth < end:
            branches = run.children if extra == run.extra else run.others
            child = (branches or {}).get(depth, {}).get(extra + tokens[depth * size : (depth + 1) * size])
            if not isinstance(child, Run):
                return None  # nothing is cached behind a lone page
            run = child
            if run.tail is not None:
                run.tail.settle()
            count = min(len(run.pages), end - depth)
            if not run.tokens.startswith(tokens[depth * size : (depth + count) * size]):
                count = common_pages(run, 0, tokens, depth * size, count)  # another run may branch off there
            depth += count
    return run
