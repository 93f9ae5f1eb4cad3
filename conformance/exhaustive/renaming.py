"""Renaming: the two tokens of a world change places; what page holds which text, whatever its key's digest is."""

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from kvproof.spec.declarations import HashFunction, Request
from kvproof.spec.hashing import PageHash, hash_request_tokens

__all__ = ["Text", "swapped", "texts_of_keys"]

Text = tuple[int, ...]
"""Tokens from the first of a request to the last of a page: by them a page is known."""


def swapped(tokens: Iterable[int]) -> Text:
    """A text in which the tokens 0 and 1 have changed places."""
    return tuple(1 - token for token in tokens)


def texts_of_keys(pool: Any, texts: tuple[Text, ...], page_size: int) -> Mapping[PageHash, Text]:
    """The text that each key stands for in a pool of the specification.

    Args:
        pool: the pool, whose hash function and root make the keys.
        texts: the texts that requests have.
        page_size: tokens in a page.
    """
    return _texts_of_keys(pool.hash_function, pool.none_hash, texts, page_size)


@functools.lru_cache(maxsize=64)
def _texts_of_keys(
    hash_function: HashFunction, root: bytes, texts: tuple[Text, ...], page_size: int
) -> Mapping[PageHash, Text]:
    found: dict[PageHash, Text] = {}
    for text in texts:
        keys = hash_request_tokens(hash_function, page_size, Request("r", text), none_hash=root)
        for place, key in enumerate(keys, 1):
            found[key] = text[: place * page_size]
    return MappingProxyType(found)
