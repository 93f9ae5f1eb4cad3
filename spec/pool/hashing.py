"""HASH: the keys of full pages, a chain of digests over each request's tokens and extra keys.

The encoding (HASH-1). ``H`` is SHA-256 unless another function is given; integers are little-endian::

    root          = H("kvproof page key 2" + seed)
    key of a page = H(parent's digest + extra keys + token ids)

    token ids   = 4 bytes each, two's complement, to the end of the message
    extra keys  = 00                                     none (None)
                | 01 + value                             a tuple of extra keys, perhaps empty
    value       = "n"                                    None
                | "i" + 8 bytes, two's complement        an int
                | "b" + length (8 bytes) + bytes         bytes
                | "s" + length (8 bytes) + UTF-8         a str
                | "t" + count (8 bytes) + values         a tuple
                | "k" + kind (1 byte) + its fields       an extra key of a declared kind, each field a value
    kind        = 1 CacheSalt (its fingerprint), 2 LoraAdapter, 3 WeightsVersion, 4 MultimodalItem, 5 PromptEmbeddings

The parent's digest has the same length in every message, and the encoding of extra keys shows where they end. So
different (parent, extra keys, tokens) always have different messages (HASH-2): a salt and an adapter of the same name
differ in their kind, None differs from ``()`` and from ``CacheSalt("")``.
"""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..declarations import (
    CacheSalt,
    EngineRequest,
    ExtraKey,
    HashFunction,
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    WeightsVersion,
    sha256,
)
from ..declarations.keys import PageHash, PageHashWithGroupId, digest_of
from ..reading.arguments import attribute, integer, listed, refusal, token_list

__all__ = [
    "NONE_HASH",
    "PageHash",
    "PageHashWithGroupId",
    "hash_page_tokens",
    "hash_request_tokens",
    "init_none_hash",
    "page_extra_keys",
    "request_extra_keys",
    "root_of",
    "sha256",
]

_KINDS = {CacheSalt: 1, LoraAdapter: 2, WeightsVersion: 3, MultimodalItem: 4, PromptEmbeddings: 5}


def init_none_hash(seed: bytes | None = None, hash_function: HashFunction = sha256) -> bytes:
    """The root of a chain of keys: the digest that takes the place of a first page's parent (HASH-1).

    Args:
        seed: any bytes; the same seed gives the same root in every process. None draws 32 random bytes, so
            that this pool's keys can't be computed in advance.
        hash_function: the hash of the chain.

    Returns:
        The root's digest.
    """
    return root_of("seed", seed, hash_function)


def root_of(name: str, seed: bytes | None, hash_function: HashFunction) -> bytes:
    """`init_none_hash` of an argument that has a name of its own, which a refusal tells (R1)."""
    if seed is None:
        seed = os.urandom(32)
    if not isinstance(seed, bytes):
        raise refusal(TypeError, "R1", f"{name} must be bytes or None, not {type(seed).__name__}")
    return digest_of(hash_function, b"kvproof page key 2" + seed)


NONE_HASH: bytes = init_none_hash()
"""The default root of this module's functions, random in each process."""


def hash_page_tokens(
    hash_function: HashFunction,
    parent_page_hash: bytes | None,
    curr_page_token_ids: Sequence[int] | NDArray[np.int32],
    extra_keys: tuple[Any, ...] | None = None,
    *,
    none_hash: bytes = NONE_HASH,
) -> PageHash:
    """The key of one full page (HASH-1, HASH-2). O(tokens).

    Args:
        hash_function: bytes in, bytes out.
        parent_page_hash: the digest of the page before; None, and nothing else, for a first page.
        curr_page_token_ids: the page's tokens, `i32[page_size]` or a sequence of ints.
        extra_keys: the extra keys that touch the page; None if there are none.
        none_hash: the root of the chain, see `init_none_hash`.

    Raises:
        TypeError: a digest is not bytes, tokens are not ints, an extra key has no encoding.
    """
    _require_root(none_hash)
    parent = none_hash if parent_page_hash is None else parent_page_hash
    if not isinstance(parent, bytes):
        raise refusal(TypeError, "HASH-1", f"parent_page_hash={parent!r} must be bytes or None")
    tokens = token_list("curr_page_token_ids", curr_page_token_ids)
    message = parent + encode_extra_keys(extra_keys) + np.array(tokens, "<i4").tobytes()
    return PageHash(digest_of(hash_function, message), tuple(tokens), extra_keys)


def hash_request_tokens(
    hash_function: HashFunction,
    page_size: int,
    request: EngineRequest,
    *,
    none_hash: bytes = NONE_HASH,
) -> Sequence[PageHash]:
    """The keys of a request's full pages, in order (HASH-3). O(tokens).

    Args:
        hash_function: bytes in, bytes out.
        page_size: tokens in a page.
        request: the request; its prompt and output tokens are read.
        none_hash: the root of the chain, see `init_none_hash`.
    """
    page_size = integer("page_size", page_size, minimum=1)
    _require_root(none_hash)
    tokens = token_list("request.all_token_ids", attribute(request, "all_token_ids"))
    extra_keys = request_extra_keys(request)
    keys: list[PageHash] = []
    parent: bytes | None = None
    for start in range(0, len(tokens) - page_size + 1, page_size):
        end = start + page_size
        key = hash_page_tokens(
            hash_function,
            parent,
            tokens[start:end],
            page_extra_keys(extra_keys, start, end),
            none_hash=none_hash,
        )
        keys.append(key)
        parent = key.hash_value
    return keys


def _require_root(none_hash: object) -> None:
    if not isinstance(none_hash, bytes):
        raise refusal(TypeError, "HASH-1", f"none_hash={none_hash!r} must be bytes")


def request_extra_keys(request: EngineRequest) -> tuple[ExtraKey, ...]:
    """Reads a request's extra keys: kinds in the order of their tags, items by position (HASH-2).

    Sorted, since order is part of the encoding: requests that list the same keys in another order share pages.

    Raises:
        TypeError: a key is of no declared kind, or a field has the wrong type.
        ValueError: two salts, adapters or versions; an item listed twice, without length or at a negative offset.
    """
    extra_keys = attribute(request, "extra_keys")
    keys = [] if extra_keys is None else listed("request.extra_keys", extra_keys)
    for key in keys:
        if type(key) not in _KINDS:
            raise refusal(
                TypeError, "HASH-2", f"request.extra_keys has a key of no declared kind: {type(key).__name__}"
            )
        if isinstance(key, MultimodalItem | PromptEmbeddings):
            integer("request.extra_keys offset", key.offset, minimum=0, clause="HASH-2")
            integer("request.extra_keys length", key.length, minimum=1, clause="HASH-2")
        wanted = bytes if isinstance(key, CacheSalt | MultimodalItem | PromptEmbeddings) else str
        content = getattr(key, dataclasses.fields(key)[0].name)
        if not isinstance(content, wanted):
            raise refusal(TypeError, "HASH-2", f"request.extra_keys: a {type(key).__name__} holds no {wanted.__name__}")
        encode_value(key)
    kinds = [type(key) for key in keys if not isinstance(key, MultimodalItem | PromptEmbeddings)]
    if len(set(kinds)) < len(kinds) or len(set(keys)) < len(keys):
        raise refusal(ValueError, "HASH-2", "request.extra_keys names a kind or an item twice")
    return tuple(sorted(keys, key=_place))


def _place(key: ExtraKey) -> tuple[int, int, int, bytes]:
    """The sort key of an extra key: kind, position, length, content."""
    if isinstance(key, MultimodalItem | PromptEmbeddings):
        return _KINDS[type(key)], key.offset, key.length, key.content
    return _KINDS[type(key)], 0, 0, b""


def page_extra_keys(extra_keys: Iterable[ExtraKey], start: int, end: int) -> tuple[ExtraKey, ...] | None:
    """The extra keys that touch the tokens ``[start, end)`` (HASH-2).

    Salt, adapter and weights version touch every token; an item touches the tokens that it stands for.

    Returns:
        The keys, in their order in ``extra_keys``; None if there are none.
    """
    touching = tuple(
        key
        for key in extra_keys
        if not isinstance(key, MultimodalItem | PromptEmbeddings)
        or (key.offset < end and start < key.offset + key.length)
    )
    return touching or None


def encode_extra_keys(extra_keys: tuple[Any, ...] | None) -> bytes:
    """The encoding of a page's extra keys, see the module's docstring (HASH-2)."""
    if extra_keys is None:
        return b"\x00"
    if not isinstance(extra_keys, tuple):
        raise refusal(TypeError, "HASH-2", f"extra_keys must be a tuple or None, not {type(extra_keys).__name__}")
    return b"\x01" + encode_value(extra_keys)


def encode_value(value: object) -> bytes:
    """The encoding of one value, see the module's docstring (HASH-2)."""
    if value is None:
        return b"n"
    if isinstance(value, bytes):
        return b"b" + len(value).to_bytes(8, "little") + value
    if isinstance(value, str):
        try:
            text = value.encode()
        except UnicodeEncodeError:  # its message and its fields show the text, which may be a salt (SEC-2)
            raise refusal(ValueError, "HASH-2", "extra_keys hold a str that is no Unicode text") from None
        return b"s" + len(text).to_bytes(8, "little") + text
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return b"i" + int(value).to_bytes(8, "little", signed=True)
    if isinstance(value, tuple):
        return b"t" + len(value).to_bytes(8, "little") + b"".join(map(encode_value, value))
    if isinstance(value, CacheSalt | LoraAdapter | WeightsVersion | MultimodalItem | PromptEmbeddings):
        fields = b"".join(encode_value(getattr(value, field.name)) for field in dataclasses.fields(value))
        return b"k" + bytes([_KINDS[type(value)]]) + fields
    raise refusal(TypeError, "HASH-2", f"extra_keys holds a {type(value).__name__}, which has no encoding")
