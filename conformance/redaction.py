"""SEC-2: names and token ids made unreadable by a keyed map that keeps equality, so that what is redacted behaves alike."""

import hashlib
import secrets
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Redaction"]

_ROUNDS = 4
_HALF = 1 << 16
_INT32 = 1 << 31


class Redaction:
    """A keyed map: equal things stay equal, different ones different, and nobody without the key can map back.

    Token ids go through a permutation of the int32s, a Feistel network of four rounds whose round functions are
    tables drawn from the key; negative ids stay negative. Texts and digests become keyed hashes.

    Args:
        key: the key; None draws one, which is kept nowhere else.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else hashlib.sha256(key).digest()

    @cached_property
    def _tables(self) -> NDArray[np.uint16]:
        drawn = hashlib.shake_256(b"tokens" + self._key).digest(_ROUNDS * _HALF * 2)
        return np.frombuffer(drawn, "<u2").reshape(_ROUNDS, _HALF)

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
        given = np.asarray(tokens, np.int32).view(np.uint32)
        mapped = self._permuted(given)
        while (strayed := (mapped ^ given) >= _INT32).any():  # until the sign is that of the token
            mapped[strayed] = self._permuted(mapped[strayed])
        return mapped.view(np.int32)

    def _permuted(self, words: NDArray[np.uint32]) -> NDArray[np.uint32]:
        left, right = (words >> np.uint32(16)).astype(np.uint16), words.astype(np.uint16)
        for table in self._tables:
            left, right = right, left ^ table[right]
        return left.astype(np.uint32) << np.uint32(16) | right

    def text(self, text: str) -> str:
        """What stands for a text: 16 hexadecimal digits."""
        return self._hashed(b"text", text.encode("utf-8", "surrogatepass")).hex()[:16]

    def digest(self, digest: bytes) -> bytes:
        """What stands for a digest or a fingerprint: 32 bytes."""
        return self._hashed(b"digest", digest)

    def _hashed(self, kind: bytes, message: bytes) -> bytes:
        return hashlib.blake2b(message, key=self._key, person=kind, digest_size=32).digest()
