"""POOL-7: two runs become one where one of them is all that follows at the other's end.

Pages are evicted from the ends of runs mostly, so that a run is cut down to a place where another branches off; what
follows there is part of the run from then on, as if it had been published so. Of the two the smaller is gone through,
its pages, branches and duplicates; the larger takes them over, whichever comes first. So each page is gone through a
logarithmic number of times at most; tokens and ids of the larger one are moved in memory where it comes second.
"""

from array import array
from typing import TypeVar

import numpy as np

from .runs import Run

__all__ = ["join"]

_T = TypeVar("_T")


def join(head: Run, child: Run, run_cell: "array[int]") -> tuple[Run, Run]:
    """Joins a run and what branched off at its end under the same extra keys, which it no longer has as a branch.

    Args:
        head: the run.
        child: the other one.
        run_cell: the number of the run in which each page stands, or below which it stands alone; it is kept up.

    Returns:
        The run that holds both, and the one that is no more.
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
    _renumber(gone, kept, run_cell)
    return kept, gone


def _put_before(run: Run, head: Run) -> None:
    """Puts tokens and pages before those of a run, which stands in the place of ``head`` from now on."""
    parent = head.parent
    assert parent is not None, "nothing is joined to a root"
    parent.attach(head.start, head.extra, head.key, run)
    run.parent, run.key, run.start = parent, head.key, head.start
    if isinstance(run.tokens, bytes):
        run.tokens = bytearray(run.tokens)
    run.tokens[0:0] = head.tokens
    run.pages[0:0] = head.pages
    run.num_agreed = head.num_agreed


def _take_over(run: Run, other: Run) -> None:
    """Has a run hold what is attached to another one as well; both say at which places."""
    run.holes += other.holes
    run.num_attached += other.num_attached
    run.children = _united(run.children, other.children)
    run.others = _united(run.others, other.others)
    run.duplicates = _united(run.duplicates, other.duplicates)


def _united(own: dict[int, _T] | None, others: dict[int, _T] | None) -> dict[int, _T] | None:
    """Two dicts of different places, in the one that has more."""
    if not own or not others:
        return own or others
    if len(own) < len(others):
        own, others = others, own
    own.update(others)
    return own


def _renumber(gone: Run, kept: Run, run_cell: "array[int]") -> None:
    """Notes that what stood in or below one run stands in or below another."""
    pages = np.frombuffer(gone.pages, np.int32)
    np.frombuffer(run_cell, np.uint32)[pages[pages != 0]] = kept.number
    for same in (gone.duplicates or {}).values():
        for page in same:
            run_cell[page] = kept.number
    for _, _, branch in gone.branches():
        if isinstance(branch, Run):
            branch.parent = kept
        else:
            run_cell[branch] = kept.number
