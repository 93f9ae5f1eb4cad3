"""EVICT-1: marks of contents: numbers that look random and by which content is known again after its eviction.

The mark of a page stands for its tokens and extra keys, all before them, and its group. Two contents with one mark cost
a wrong guess about reuse, never a wrong hit. Keys would serve as well, but a digest takes too long for each page that
is published; this sum is computed for a whole prompt at once::

    seed          = the first 8 bytes of the root of the keys (HASH-1)
    pair i        = token at offset 2 * i of a page + 2**32 * (token at offset 2 * i + 1, 0 behind the last)
    sum of a page = sum of (pair i) * mixed(seed + i) + (place of the page + 1) * STEP + extra
    extra         = 0, or the first 8 bytes of SHA-256 of the encoding of the extra keys that touch the page (HASH-2)
    mark          = mixed(seed - 1 - group) + sum of mixed(sum of a page) over the page and all before it, mod 2**63

Tokens are taken modulo 2**32, all other numbers modulo 2**64; bytes are little-endian.
"""

from ..declarations import sha256
from .hashing import encode_extra_keys
from .page_keys import PageKeys

__all__ = ["Marks", "mixed"]

STEP = 0x9E3779B97F4A7C15
_FACTORS = (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)


def mixed(number: int) -> int:
    """A number of 64 bits, each of which depends on all of the number given (the end of MurmurHash3)."""
    number %= 2**64
    for factor in _FACTORS:
        number = (number ^ number >> 33) * factor % 2**64
    return number ^ number >> 33


class Marks:
    """Computes marks of contents.

    Args:
        keys: the contents, and the root of the keys.
    """

    def __init__(self, keys: PageKeys) -> None:
        self._keys = keys
        self._sums: dict[int, tuple[int, int]] = {}
        """Of a content id, the place of its page in a request, and the sum up to it."""

    @property
    def _seed(self) -> int:
        return int.from_bytes(self._keys.none_hash[:8], "little")

    def of(self, content_id: int, group_id: int) -> int:
        """The mark of a content in a group."""
        return (mixed(self._seed - 1 - group_id) + self._sum(content_id)[1]) % 2**63

    def _sum(self, content_id: int) -> tuple[int, int]:
        path: list[int] = []
        before: int | None = content_id
        while before is not None and before not in self._sums:
            path.append(before)
            before = self._keys.content_of_id[before][0]
        place, total = (-1, 0) if before is None else self._sums[before]
        for step in reversed(path):
            _, tokens, extra_keys = self._keys.content_of_id[step]
            place += 1
            own = (place + 1) * STEP
            for offset, token in enumerate(tokens):
                own += (token % 2**32 << 32 * (offset % 2)) * mixed(self._seed + offset // 2)
            if extra_keys is not None:
                own += int.from_bytes(sha256(encode_extra_keys(extra_keys))[:8], "little")
            total += mixed(own)
            self._sums[step] = place, total
        return place, total
