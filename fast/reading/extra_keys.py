"""HASH-2: a request's extra keys, laid out over its pages.

The index and the keys need the extra keys of a page as one byte string. Consecutive pages that the same extra keys
touch form a segment; a request without positioned items is one segment, without end.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kvproof.spec.declarations import (
    CacheSalt,
    ExtraKey,
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    WeightsVersion,
)

from .arguments import integer, listed, refusal

__all__ = ["ENDLESS", "PLAIN", "ExtraSegment", "encode_extra_keys", "extra_segments"]

ENDLESS = 1 << 62
"""The end of a last segment: a number of pages above that of any request."""

_KINDS = {CacheSalt: 1, LoraAdapter: 2, WeightsVersion: 3, MultimodalItem: 4, PromptEmbeddings: 5}


class ExtraSegment(NamedTuple):
    """Consecutive pages that the same extra keys touch, from the end of the segment before.

    Attributes:
        end: the position behind the last page.
        extra: the encoding of the extra keys; empty if there are none.
        extra_keys: the extra keys themselves; None if there are none.
    """

    end: int
    extra: bytes
    extra_keys: tuple[Any, ...] | None


PLAIN: tuple[ExtraSegment, ...] = (ExtraSegment(ENDLESS, b"", None),)
"""The segments of a request without extra keys."""


def extra_segments(extra_keys: object, page_size: int) -> Sequence[ExtraSegment]:
    """Reads a request's extra keys and lays them out over its pages (HASH-2, R1). O(keys log keys).

    Args:
        extra_keys: `ExtraKey`s in any order, or None.
        page_size: tokens in a page.

    Raises:
        TypeError: a key is not of a declared kind, or a field has the wrong type.
        ValueError: two salts, adapters or versions; an item that is listed twice, has no length or a negative offset.
    """
    if extra_keys is None or extra_keys == ():
        return PLAIN
    keys = _sorted_keys(extra_keys)
    if not keys:
        return PLAIN
    items = [key for key in keys if isinstance(key, MultimodalItem | PromptEmbeddings)]
    whole = tuple(key for key in keys if not isinstance(key, MultimodalItem | PromptEmbeddings))
    cuts = {item.offset // page_size for item in items}
    cuts |= {-(-(item.offset + item.length) // page_size) for item in items}
    segments: list[ExtraSegment] = []
    for start, end in zip([0, *sorted(cuts - {0})], [*sorted(cuts - {0}), ENDLESS], strict=True):
        # the items of a segment touch its first page: items begin and end with a cut
        touching = whole + tuple(
            item
            for item in items
            if item.offset < (start + 1) * page_size and start * page_size < item.offset + item.length
        )
        segments.append(ExtraSegment(end, encode_extra_keys(touching or None), touching or None))
    return segments


def _sorted_keys(extra_keys: object) -> list[ExtraKey]:
    keys = listed("request.extra_keys", extra_keys)
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
        _encode(key)
    kinds = [type(key) for key in keys if not isinstance(key, MultimodalItem | PromptEmbeddings)]
    if len(set(kinds)) < len(kinds) or len(set(keys)) < len(keys):
        raise refusal(ValueError, "HASH-2", "request.extra_keys names a kind or an item twice")
    return sorted(keys, key=_place)


def _place(key: ExtraKey) -> tuple[int, int, int, bytes]:
    if isinstance(key, MultimodalItem | PromptEmbeddings):
        return _KINDS[type(key)], key.offset, key.length, key.content
    return _KINDS[type(key)], 0, 0, b""


def encode_extra_keys(extra_keys: tuple[Any, ...] | None) -> bytes:
    """The encoding of a page's extra keys (HASH-1); empty for None, for which a key's message has the byte 00."""
    if extra_keys is None:
        return b""
    if not isinstance(extra_keys, tuple):
        raise refusal(TypeError, "HASH-2", f"extra_keys must be a tuple or None, not {type(extra_keys).__name__}")
    return b"\x01" + _encode(extra_keys)


def _encode(value: object) -> bytes:
    match value:
        case None:
            return b"n"
        case bool():
            raise refusal(TypeError, "HASH-2", f"extra_keys holds the bool {value}, which has no encoding")
        case bytes():
            return b"b" + len(value).to_bytes(8, "little") + value
        case str():
            try:
                text = value.encode()
            except UnicodeEncodeError:  # its message and its fields show the text, which may be a salt (SEC-2)
                raise refusal(ValueError, "HASH-2", "extra_keys hold a str that is no Unicode text") from None
            return b"s" + len(text).to_bytes(8, "little") + text
        case int() | np.integer() if -(2**63) <= value < 2**63:
            return b"i" + int(value).to_bytes(8, "little", signed=True)
        case tuple():
            return b"t" + len(value).to_bytes(8, "little") + b"".join(map(_encode, value))
        case CacheSalt() | LoraAdapter() | WeightsVersion() | MultimodalItem() | PromptEmbeddings():
            fields = b"".join(_encode(getattr(value, field.name)) for field in dataclasses.fields(value))
            return b"k" + bytes([_KINDS[type(value)]]) + fields
    raise refusal(TypeError, "HASH-2", f"extra_keys holds a {type(value).__name__}, which has no encoding")
