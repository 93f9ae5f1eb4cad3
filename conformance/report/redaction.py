"""SEC-2: token ids, names and digests made unreadable by a keyed map that keeps equality."""

import hashlib
import secrets
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Redaction"]

_ROUNDS = 4
_HALF = 1 << 16
_INT32 = 1 << 31
_COMMON = 1 << 18
"""Token ids below this, which vocabularies have, are mapped by one look-up."""


class Redaction:
    """A keyed map: equal things stay equal, different ones different, and nobody without the key can map back.

    Token ids go through a permutation of the int32s, a Feistel network of four rounds over their lower 31 bits
    whose round functions are tables drawn from the key; the sign stays. Texts and digests become keyed hashes.

    Args:
        key: the key; None draws one, which is kept nowhere else.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else hashlib.sha256(key).digest()

    @cached_property
    def _tables(self) -> NDArray[np.uint16]:
        drawn = hashlib.shake_256(b"tokens" + self._key).digest(_ROUNDS * _HALF * 2)
        return np.frombuffer(drawn, "<u2").reshape(_ROUNDS, _HALF)

    @cached_property
    def _common(self) -> NDArray[np.int32]:
        return self._permuted(np.arange(_COMMON, dtype=np.int32))

    def token(self, token: int) -> int:
        """What stands for a token id, an int32 like it.

        Raises:
            ValueError: it is no int32.
        """
        if not -_INT32 <= token < _INT32:
            raise ValueError("a token id must fit an int32")
        return int(self.tokens(np.array([token], np.int32))[0])

    def tokens(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """What stands for each of some token ids, `i32[n]`. O(n)."""
        given = np.asarray(tokens, np.int32)
        if not given.size or 0 <= int(given.min()) <= int(given.max()) < _COMMON:
            return self._common[given]
        return self._permuted(given)

    def _permuted(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        words = tokens.view(np.uint32)
        upper = (words >> np.uint32(16)).astype(np.uint16)
        sign, upper, lower = upper & np.uint16(0x8000), upper & np.uint16(0x7FFF), words.astype(np.uint16)
        for even, odd in zip(self._tables[::2], self._tables[1::2], strict=True):
            upper = upper ^ even[lower] & np.uint16(0x7FFF)
            lower = lower ^ odd[upper]
        mapped = (upper | sign).astype(np.uint32) << np.uint32(16) | lower
        return mapped.view(np.int32)

    def text(self, text: str) -> str:
        """What stands for a text: 16 hexadecimal digits."""
        return self._hashed(b"text", text.encode("utf-8", "surrogatepass")).hex()[:16]

    def digest(self, digest: bytes) -> bytes:
        """What stands for a digest or a fingerprint: 32 bytes."""
        return self._hashed(b"digest", digest)

    def _hashed(self, kind: bytes, message: bytes) -> bytes:
        return hashlib.blake2b(message, key=self._key, person=kind, digest_size=32).digest()
