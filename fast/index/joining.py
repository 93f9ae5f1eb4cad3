"""POOL-7: joining a run with a branch that leaves it at its end, and parting a run in two.

Pages are evicted from the ends of runs mostly, so that a run is cut down to a place where another branches off. That
branch is then made a part of the run, as if it had been published there. The pages, branches and duplicates of the
smaller of the two are moved to the larger, no matter which comes first. So each page is moved a logarithmic number of
times at most; where the larger run comes second, its tokens and ids are also shifted in memory.

A run is parted so that a longer branch can be joined to its first part (`PrefixIndex` says when).
"""

from typing import Any, TypeVar

import numpy as np

from .runs import Run

__all__ = ["join", "part", "renumber", "weighs_less"]

_T = TypeVar("_T")


def join(head: Run, child: Run, run_cell: "memoryview[int]") -> tuple[Run, Run]:
    """Joins a run and a branch of the same extra keys that left it at its end, already detached from it.

    Args:
        head: the run that comes first.
        child: the former branch.
        run_cell: see `PrefixIndex`; it is updated.

    Returns:
        The run that has the content of both, and the one that is to be dropped.
    """
    if child.tail is not None:
        child.tail.leave()
    digests = head.digests
    if digests and len(digests) == len(head.pages):
        digests += child.digests or []
    if len(head.pages) + head.num_attached < len(child.pages) + child.num_attached:
        kept, gone = child, head
        _put_before(kept, head)
    else:
        kept, gone = head, child
        kept.lengthen(child.tokens)
        kept.pages += child.pages
    kept.digests = digests
    _take_over(kept, gone)
    renumber(gone, kept, run_cell)
    return kept, gone


def _put_before(run: Run, head: Run) -> None:
    """Puts the tokens and pages of ``head`` before those of ``run``, which replaces it below its parent."""
    parent = head.parent
    assert parent is not None, "nothing is joined to a root"
    parent.attach(head.start, head.extra, head.key, run)
    run.parent, run.key, run.start = parent, head.key, head.start
    run.num_agreed = head.num_agreed
    run.tokens = bytearray(head.tokens) + run.tokens  # another object, of which nobody has a view
    run.pages[0:0] = head.pages


def _take_over(run: Run, other: Run) -> None:
    """Moves the branches and duplicates of another run to this one; their places are positions in a request."""
    run.holes += other.holes
    run.num_attached += other.num_attached
    run.children = _united(run.children, other.children)
    run.others = _united(run.others, other.others)
    run.duplicates = _united(run.duplicates, other.duplicates)


def _united(own: dict[int, _T] | None, others: dict[int, _T] | None) -> dict[int, _T] | None:
    """The union of two dicts without a common key, built in the larger one."""
    if not own or not others:
        return own or others
    if len(own) < len(others):
        own, others = others, own
    own.update(others)
    return own


def renumber(gone: Run, kept: Run, run_cell: "memoryview[int]") -> None:
    """Makes the pages and branches of one run refer to another."""
    pages = np.array(gone.pages, np.int32)  # a copy: who keeps a view of an array keeps it from growing
    np.frombuffer(run_cell, np.uint32)[pages[pages != 0]] = kept.number
    for same in (gone.duplicates or {}).values():
        for page in same:
            run_cell[page] = kept.number
    for _, _, branch in gone.branches():
        if isinstance(branch, Run):
            branch.parent = kept
        else:
            run_cell[branch] = kept.number


def weighs_less(run: Run, inner: int, count: int) -> bool:
    """True if a run has fewer than ``count`` pages, branches and duplicates from page ``inner`` on. O(count)."""
    left = count - (len(run.pages) - inner)
    if left <= 0 or not run.num_attached:
        return left > 0
    depth, end = run.start + inner, run.end
    behind: list[dict[int, Any]] = [run.children or {}, run.others or {}, run.duplicates or {}]
    for first, of_place in zip((depth + 1, depth + 1, depth), behind, strict=True):
        left -= sum(len(of_place[place]) for place in range(first, end + 1) if place in of_place)
    return left > 0


def part(run: Run, inner: int) -> Run:
    """Takes the pages from ``inner`` on out of a run, with the branches and duplicates behind them. O(what is taken).

    Args:
        run: the run.
        inner: the first page to be taken, at least 1.

    Returns:
        The pages as a run that can branch off there; it has no number yet, to which `renumber` then refers them.
    """
    size, depth, end = run.tree.page_bytes, run.start + inner, run.end
    tokens, pages = run.tokens[inner * size :], run.pages[inner:]
    rest = Run(run.tree, 0, run, run.extra + tokens[:size], run.extra, run.extra_keys, depth, tokens, pages)
    if run.digests:
        rest.digests = run.digests[inner:] or None
    rest.holes = pages.count(0)
    run.holes -= rest.holes
    run.num_agreed = min(run.num_agreed, inner)
    run.cut(len(pages))
    rest.children = _taken(run.children, depth + 1, end)
    rest.others = _taken(run.others, depth + 1, end)
    rest.duplicates = _taken(run.duplicates, depth, end)
    run.children, run.others, run.duplicates = run.children or None, run.others or None, run.duplicates or None
    taken: list[dict[int, Any]] = [rest.children or {}, rest.others or {}, rest.duplicates or {}]
    rest.num_attached = sum(len(attached) for of_place in taken for attached in of_place.values())
    run.num_attached -= rest.num_attached
    return rest


def _taken(of_place: dict[int, _T] | None, first: int, last: int) -> dict[int, _T] | None:
    """Takes the entries of the places ``first`` to ``last`` out of a dict; None if there are none."""
    if not of_place:
        return None
    return {place: of_place.pop(place) for place in range(first, last + 1) if place in of_place} or None
