"""The keys of pages of the ordered backend: messages packed by `struct`."""

import hashlib
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any, NamedTuple

from kvproof.spec.declarations import CacheSalt, LoraAdapter, MultimodalItem, PromptEmbeddings, WeightsVersion

from .ordered_reading import number, token_ids

__all__ = [
    "Hasher",
    "PageHash",
    "PageHashWithGroupId",
    "hash_page_tokens",
    "hash_request_tokens",
    "init_none_hash",
    "keys_of_pages",
    "sha256",
]

Hasher = Callable[[bytes], bytes]

_TAGS = (CacheSalt, LoraAdapter, WeightsVersion, MultimodalItem, PromptEmbeddings)
_SPANS = (MultimodalItem, PromptEmbeddings)


class PageHash(NamedTuple):
    """A page's digest, its tokens and the extra keys that touch it."""

    hash_value: bytes
    token_ids: tuple[int, ...]
    extra_keys: Any = None


class PageHashWithGroupId(NamedTuple):
    """A key and the group that it is for."""

    page_hash: PageHash
    group_id: int

    def get_hash_value(self) -> bytes:
        """The digest."""
        return self.page_hash.hash_value


def sha256(message: bytes) -> bytes:
    """SHA-256."""
    return hashlib.new("sha256", message).digest()


def _digest(hasher: Hasher, message: bytes) -> bytes:
    if not callable(hasher):
        raise TypeError(f"{hasher!r} is no function")
    digest = hasher(message)
    if type(digest) is not bytes:
        raise TypeError(f"a digest of type {type(digest).__name__}")
    return digest


def init_none_hash(seed: bytes | None = None, hash_function: Hasher = sha256) -> bytes:
    """The digest that stands before a first page's."""
    if seed is not None and not isinstance(seed, bytes):
        raise TypeError(f"a seed of type {type(seed).__name__}")
    return _digest(hash_function, b"".join((b"kvproof page key 2", os.urandom(32) if seed is None else seed)))


_ROOT = init_none_hash()


def _packed(value: Any) -> bytes:
    """A value in the documented encoding."""
    match value:
        case None:
            return b"n"
        case bytes():
            return struct.pack("<cQ", b"b", len(value)) + value
        case str():
            text = value.encode()
            return struct.pack("<cQ", b"s", len(text)) + text
        case tuple():
            return struct.pack("<cQ", b"t", len(value)) + b"".join(_packed(part) for part in value)
        case CacheSalt() | LoraAdapter() | WeightsVersion() | MultimodalItem() | PromptEmbeddings():
            return struct.pack("<cB", b"k", _TAGS.index(type(value)) + 1) + b"".join(map(_packed, astuple(value)))
        case _:
            try:
                return struct.pack("<cq", b"i", number(value, least=None))
            except struct.error:
                raise TypeError("an extra key that is no int of 8 bytes") from None


def hash_page_tokens(
    hash_function: Hasher,
    parent_page_hash: bytes | None,
    curr_page_token_ids: Any,
    extra_keys: Any = None,
    *,
    none_hash: bytes = _ROOT,
) -> PageHash:
    """The key of one page."""
    parent = none_hash if parent_page_hash is None else parent_page_hash
    if not isinstance(parent, bytes) or not isinstance(none_hash, bytes):
        raise TypeError("a digest that is no bytes")
    if extra_keys is not None and not isinstance(extra_keys, tuple):
        raise TypeError("extra keys that are no tuple")
    tokens = token_ids(curr_page_token_ids)
    extra = b"\0" if extra_keys is None else b"\1" + _packed(extra_keys)
    return PageHash(
        _digest(hash_function, parent + extra + struct.pack(f"<{len(tokens)}i", *tokens)), tokens, extra_keys
    )


def _ordered_extra_keys(request: Any) -> list[Any]:
    given = getattr(request, "extra_keys", None)
    keys = [] if given is None else list(given)
    for key in keys:
        if type(key) not in _TAGS:
            raise TypeError(f"an extra key of type {type(key).__name__}")
        if isinstance(key, _SPANS):
            number(key.offset)
            number(key.length, least=1)
        _packed(key)
    whole = [type(key) for key in keys if not isinstance(key, _SPANS)]
    if len(whole) > len(set(whole)) or len(keys) > len(set(keys)):
        raise ValueError("an extra key that is given twice")
    spans = sorted(
        (key for key in keys if isinstance(key, _SPANS)), key=lambda key: (key.offset, key.length, key.content)
    )
    return sorted((key for key in keys if key not in spans), key=lambda key: _TAGS.index(type(key))) + sorted(
        spans, key=lambda key: _TAGS.index(type(key))
    )


def keys_of_pages(hasher: Hasher, page_size: int, request: Any, root: bytes) -> Iterator[PageHash]:
    """The keys of a request's full pages, one after the other."""
    tokens, extra = token_ids(request.all_token_ids), _ordered_extra_keys(request)
    parent = None
    for end in range(page_size, len(tokens) + 1, page_size):
        start = end - page_size
        touching = tuple(
            key
            for key in extra
            if not isinstance(key, _SPANS) or max(start, key.offset) < min(end, key.offset + key.length)
        )
        key = hash_page_tokens(hasher, parent, tokens[start:end], touching or None, none_hash=root)
        parent = key.hash_value
        yield key


def hash_request_tokens(
    hash_function: Hasher, page_size: int, request: Any, *, none_hash: bytes = _ROOT
) -> list[PageHash]:
    """The keys of a request's full pages."""
    return list(keys_of_pages(hash_function, number(page_size, least=1), request, none_hash))
