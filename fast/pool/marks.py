"""EVICT-1: marks of contents, the numbers of `kvproof.spec.pool.marks`, for a whole prompt in array operations.

The mark of a page is the mark of the page before it plus what its own tokens and extra keys come to, so that the pages
that a request publishes behind a cached page need that page's mark and their own tokens only.
"""

import hashlib
from collections.abc import Sequence
from operator import mul

import numpy as np
from numpy.typing import NDArray

from ..reading.extra_keys import ExtraSegment
from ..reading.tokens import TokenBytes

__all__ = ["Marks"]

_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_WORD, _MARK = 2**64 - 1, 2**63 - 1
_SHIFT, _FIRST_WORD, _SECOND_WORD, _MARK_WORD = (np.uint64(number) for number in (33, _FIRST, _SECOND, _MARK))


def _mixed(number: int) -> int:
    number = ((number ^ number >> 33) * _FIRST) & _WORD
    number = ((number ^ number >> 33) * _SECOND) & _WORD
    return number ^ number >> 33


def _mix(numbers: NDArray[np.uint64]) -> None:
    """`_mixed` for each number, in place."""
    numbers ^= numbers >> _SHIFT
    numbers *= _FIRST_WORD
    numbers ^= numbers >> _SHIFT
    numbers *= _SECOND_WORD
    numbers ^= numbers >> _SHIFT


def _of_extra(extra: bytes) -> int:
    """What the extra keys of a page add to its sum."""
    return int.from_bytes(hashlib.sha256(extra).digest()[:8], "little") if extra else 0


class Marks:
    """Computes marks.

    Args:
        none_hash: the root of the keys (HASH-1).
    """

    __slots__ = ("_lists", "_seed", "_steps", "_weights")

    def __init__(self, none_hash: bytes) -> None:
        self._seed = int.from_bytes(none_hash[:8], "little")
        self._lists: dict[int, list[int]] = {}
        self._weights: dict[int, NDArray[np.int64]] = {}
        """The factors of the tokens of a page, by the number of tokens in it."""
        self._steps: NDArray[np.uint64] = np.empty(0, np.uint64)
        """What each place in a request adds to the sum of the page there."""

    def root(self, group_id: int) -> int:
        """What stands for the mark of a page before the first."""
        return _mixed(self._seed - 1 - group_id & _WORD) & _MARK

    def _weight_list(self, page_size: int) -> list[int]:
        found = self._lists.get(page_size)
        if found is None:
            found = self._lists[page_size] = [_mixed(self._seed + offset & _WORD) >> 34 for offset in range(page_size)]
            self._weights[page_size] = np.array(found, np.int64)
        return found

    def next(self, before: int, place: int, tokens: bytes, extra: bytes) -> int:
        """The mark of one page.

        Args:
            before: the mark of the page before, or `root`.
            place: its position in its request.
            tokens: its token bytes.
            extra: the encoding of the extra keys that touch it.
        """
        weights = self._lists.get(len(tokens) >> 2) or self._weight_list(len(tokens) >> 2)
        own: int = sum(map(mul, memoryview(tokens).cast("i"), weights), (place + 1) * _STEP)
        if extra:
            own += _of_extra(extra)
        own &= _WORD  # `_mixed`, without the call: this is most of what a decode step pays for a policy
        own = ((own ^ own >> 33) * _FIRST) & _WORD
        own = ((own ^ own >> 33) * _SECOND) & _WORD
        return (before + (own ^ own >> 33)) & _MARK

    def chain(
        self, before: int, page_size: int, tokens: TokenBytes, segments: Sequence[ExtraSegment], start: int
    ) -> NDArray[np.int64]:
        """The marks of consecutive pages of a request, `i64[n]`. O(tokens), in array operations.

        Args:
            before: the mark of the page before the first, or `root`.
            page_size: tokens in a page.
            tokens: their token bytes.
            segments: the request's extra keys over its pages.
            start: the position of the first of them in the request.
        """
        self._weight_list(page_size)
        rows = np.frombuffer(tokens, np.int32).reshape(-1, page_size)
        count = len(rows)
        if start + count > len(self._steps):
            self._steps = np.arange(1, 2 * (start + count) + 1, dtype=np.uint64) * np.uint64(_STEP)
        sums = (rows.astype(np.int64) @ self._weights[page_size]).view(np.uint64)
        sums += self._steps[start : start + count]
        first = 0
        for segment in segments:
            end = min(segment.end - start, count)
            if end > first:
                if segment.extra:
                    sums[first:end] += np.uint64(_of_extra(segment.extra))
                first = end
        _mix(sums)
        np.cumsum(sums, out=sums)
        sums += np.uint64(before)
        sums &= _MARK_WORD
        marks: NDArray[np.int64] = sums.view(np.int64)
        return marks
