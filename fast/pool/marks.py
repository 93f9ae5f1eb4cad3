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

__all__ = ["MARK", "Marks"]

_STEP = 0x9E3779B97F4A7C15
_FIRST, _SECOND = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_WORD, MARK = 2**64 - 1, 2**63 - 1
_ONE, _STEP_WORD, _MARK_WORD = np.uint64(1), np.uint64(_STEP), np.uint64(MARK)
_SHIFT, _FIRST_WORD, _SECOND_WORD = np.uint64(33), np.uint64(_FIRST), np.uint64(_SECOND)


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

    __slots__ = ("_places", "_seed", "_weight_arrays", "_weights")

    def __init__(self, none_hash: bytes) -> None:
        self._seed = int.from_bytes(none_hash[:8], "little")
        self._weights: dict[int, list[int]] = {}
        """By the number of tokens in a page, the factors of its pairs of tokens; of its tokens where it is odd."""
        self._weight_arrays: dict[int, NDArray[np.uint64]] = {}
        self._places: NDArray[np.uint64] = np.empty(0, np.uint64)
        """What each place in a request adds to the sum of the page there."""

    def root(self, group_id: int) -> int:
        """What stands for the mark of a page before the first."""
        return _mixed(self._seed - 1 - group_id & _WORD) & MARK

    def _weigh(self, num_tokens: int) -> list[int]:
        """The factors of a page, made where they are missing."""
        found = self._weights.get(num_tokens)
        if found is None:
            found = [_mixed(self._seed + pair & _WORD) for pair in range(num_tokens + 1 >> 1)]
            if num_tokens & 1:
                found = [found[offset >> 1] << 32 * (offset & 1) & _WORD for offset in range(num_tokens)]
            self._weights[num_tokens] = found
            self._weight_arrays[num_tokens] = np.array(found, np.uint64)
        return found

    def next(self, before: int, place: int, tokens: bytes, extra: bytes) -> int:
        """The mark of one page.

        Args:
            before: the mark of the page before, or `root`.
            place: its position in its request.
            tokens: its token bytes.
            extra: the encoding of the extra keys that touch it.
        """
        words = memoryview(tokens).cast("I" if len(tokens) & 4 else "Q")
        own = sum(map(mul, words, self._weigh(len(tokens) >> 2)), (place + 1) * _STEP) + _of_extra(extra)
        return (before + _mixed(own & _WORD)) & MARK

    def steps(self, places: Sequence[int], texts: Sequence[bytes], extras: Sequence[bytes]) -> list[int]:
        """What the mark of each of some pages is more than that of the page before it, modulo 2**64. O(tokens).

        Args:
            places: their positions in their requests.
            texts: their token bytes.
            extras: the encodings of the extra keys that touch them.
        """
        lengths = set(map(len, texts))
        if len(lengths) > 1:
            return [self.next(0, *page) for page in zip(places, texts, extras, strict=True)]
        sums = self._sums(b"".join(texts), lengths.pop() >> 2)
        sums += (np.array(places, np.uint64) + _ONE) * _STEP_WORD
        if any(extras):
            sums += np.array([_of_extra(extra) for extra in extras], np.uint64)
        _mix(sums)
        steps: list[int] = sums.tolist()
        return steps

    def _sums(self, tokens: TokenBytes, page_size: int) -> NDArray[np.uint64]:
        """The sums of pages without what place and extra keys add, `u64[n]`."""
        self._weigh(page_size)
        if page_size & 1:  # no pages of whole pairs
            words = np.frombuffer(tokens, np.uint32).astype(np.uint64).reshape(-1, page_size)
        else:
            words = np.frombuffer(tokens, np.uint64).reshape(-1, page_size >> 1)
        sums: NDArray[np.uint64] = words @ self._weight_arrays[page_size]
        return sums

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
        sums = self._sums(tokens, page_size)
        count = len(sums)
        if start + count > len(self._places):
            self._places = np.arange(1, 2 * (start + count) + 1, dtype=np.uint64) * _STEP_WORD
        sums += self._places[start : start + count]
        first = 0
        for segment in segments:
            end = min(segment.end - start, count)
            if end > first:
                if segment.extra:
                    sums[first:end] += np.uint64(_of_extra(segment.extra))
                first = end
        _mix(sums)
        np.add.accumulate(sums, out=sums)
        sums += np.uint64(before)
        sums &= _MARK_WORD
        marks: NDArray[np.int64] = sums.view(np.int64)
        return marks
