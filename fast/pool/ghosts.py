"""EVICT-1: which contents were evicted lately, as tags in an array of slots; a later content takes a slot over."""

import sys
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.eviction import num_ghost_slots

__all__ = ["Ghosts"]

_LOW = _NO_TAG = 2**32 - 1
_UPPER = int(sys.byteorder == "little")
"""The place of the upper half of an int64 in its two halves."""


class Ghosts:
    """The contents that a pool evicted lately, by their marks.

    Args:
        num_pages: pages of the pool, the null page not counted.

    Attributes:
        any: False while there is none.
    """

    __slots__ = ("_cell", "_num_slots", "_tags", "any")

    def __init__(self, num_pages: int) -> None:
        self._num_slots = num_ghost_slots(num_pages)
        self._tags: NDArray[np.uint32] = np.full(self._num_slots, _NO_TAG, np.uint32)
        """The upper bits of the mark in each slot, `_NO_TAG` where there is none."""
        self._cell = self._tags.data
        self.any = False

    def _places(self, marks: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """The slots of marks, and their tags, in the memory of the marks."""
        slots = marks & _LOW
        slots *= self._num_slots
        slots >>= 32
        return slots, marks.view(np.uint32)[_UPPER::2]

    def add(self, marks: NDArray[np.int64]) -> None:
        """Contents were evicted, in this order. O(marks)."""
        slots, tags = self._places(marks)
        self._tags[slots] = tags
        self.any = True

    def add_one(self, mark: int) -> None:
        """`add` for one content. O(1)."""
        self._cell[(mark & _LOW) * self._num_slots >> 32] = mark >> 32
        self.any = True

    def contain(self, marks: NDArray[np.int64]) -> NDArray[np.bool_]:
        """True for each content that was evicted lately. O(marks)."""
        slots, tags = self._places(marks)
        known: NDArray[np.bool_] = self._tags[slots] == tags
        return known

    def state(self) -> list[tuple[int, int]]:
        """What a snapshot has: slots in use, each with one more than its tag. O(slots)."""
        slots = (self._tags != _NO_TAG).nonzero()[0]
        return [(slot, tag + 1) for slot, tag in zip(slots.tolist(), self._tags[slots].tolist(), strict=True)]

    def restore(self, ghosts: Iterable[tuple[int, int]]) -> None:
        """Adds those of `state`."""
        for slot, tag in ghosts:
            self._cell[slot] = tag - 1
            self.any = True
