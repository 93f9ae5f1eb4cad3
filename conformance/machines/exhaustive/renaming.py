"""Renaming: the two tokens of a world change places; what page holds which text, whatever its key's digest is."""

import functools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from kvproof.spec.declarations import CacheSalt, ExtraKey, HashFunction, Request
from kvproof.spec.pool.hashing import PageHash, hash_request_tokens

__all__ = ["SALTED", "Text", "extra_keys_of", "swapped", "texts_of_keys", "tokens_of"]

Text = tuple[int, ...]
"""Tokens from the first of a request to the last of a page: by them a page is known.

It ends in `SALTED` if the request has a salt.
"""

SALTED = -1
"""Stands behind the tokens of a request with a salt."""


def swapped(tokens: Iterable[int]) -> Text:
    """A text in which the tokens 0 and 1 have changed places."""
    return tuple(token if token == SALTED else 1 - token for token in tokens)


def tokens_of(text: Text) -> Text:
    """The tokens of a text."""
    return text[:-1] if text[-1:] == (SALTED,) else text


def extra_keys_of(text: Text) -> tuple[ExtraKey, ...]:
    """The extra keys of the request that has a text."""
    return (CacheSalt("a"),) if text[-1:] == (SALTED,) else ()


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
        request = Request("r", tokens_of(text), extra_keys_of(text))
        for place, key in enumerate(hash_request_tokens(hash_function, page_size, request, none_hash=root), 1):
            found[key] = text[: place * page_size] + ((SALTED,) if request.extra_keys else ())
    return MappingProxyType(found)
