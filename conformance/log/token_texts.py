"""Token ids as texts: those of an engine stand in a log under other names, at the price of one look-up each (SEC-2)."""

import base64
import binascii
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..report.redaction import Redaction

__all__ = ["TokenTexts", "tokens_of"]

_COMMON = 1 << 18
"""Token ids below this, which vocabularies have, are spelt in four digits of base 64."""

_DIGITS = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)


class TokenTexts:
    """Spells token ids, as they are or mapped one to one by what is drawn for this object and kept nowhere else.

    Common ids are mapped by a permutation drawn at random, so that nothing but equality can be told from them; all
    others keep their sign and are never mapped to a common one.

    Args:
        shown: whether they stand as they are.
    """

    def __init__(self, *, shown: bool) -> None:
        self._ids = np.arange(_COMMON, dtype=np.int32)
        self._others = None if shown else Redaction()
        if not shown:
            self._ids = np.frombuffer(os.urandom(8 * _COMMON), np.uint64).argsort().astype(np.int32)
        shifts = np.array([18, 12, 6, 0], np.int32)
        self._spelt: NDArray[np.uint32] = _DIGITS[self._ids[:, None] >> shifts & 63].view(np.uint32)[:, 0]

    def entry(self, tokens: NDArray[np.int32]) -> str | dict[str, str]:
        """How token ids stand in a log: four digits each, or ``{"i32": text}`` where one is not common.

        Args:
            tokens: `i32[n]`, contiguous.
        """
        try:
            words = self._spelt.take(tokens.view(np.uint32))
        except IndexError:
            return {"i32": base64.b64encode(self._mapped(tokens).astype("<i4", copy=False).tobytes()).decode()}
        return str(words.tobytes(), "ascii")

    def text(self, tokens: NDArray[np.int32]) -> str:
        """The same as JSON."""
        entry = self.entry(tokens)
        return f'"{entry}"' if type(entry) is str else '{"i32":"' + entry["i32"] + '"}'  # type: ignore[index]

    def _mapped(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        common = (tokens >= 0) & (tokens < _COMMON)
        mapped = tokens.copy()
        mapped[common] = self._ids[tokens[common]]
        away = ~common
        while self._others is not None and away.any():  # those that fall among the common ones go on
            mapped[away] = self._others.tokens(mapped[away])
            away &= (mapped >= 0) & (mapped < _COMMON)
        return mapped


def tokens_of(entry: Any) -> NDArray[np.int32]:
    """Reads token ids, `i32[n]`.

    Args:
        entry: what `TokenTexts.entry` gave, hostile until read.

    Raises:
        ValueError: it is none.
    """
    text, wide = (entry.get("i32"), 4) if isinstance(entry, dict) else (entry, 3)
    if not isinstance(text, str):
        raise ValueError("token ids must be a text in base 64")
    try:
        given = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("token ids must be a text in base 64") from None
    if len(given) % wide:
        raise ValueError(f"token ids of {wide} bytes each, and {len(given)} bytes")
    if wide == 4:
        return np.frombuffer(given, "<i4").astype(np.int32)
    digits = np.frombuffer(given, np.uint8).reshape(-1, 3).astype(np.int32)
    return digits[:, 0] << 16 | digits[:, 1] << 8 | digits[:, 2]
