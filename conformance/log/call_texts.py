"""What stands in a log as text: the results that engines get most are written without a general encoder."""

import json
from json.encoder import encode_basestring_ascii
from typing import Any

from .columns import listed
from .values import KeyNumbers, new_pages, page_ids, plain, refused_places, result

__all__ = ["encode", "groups_text", "outcome_text", "plain_text", "text_of"]

text_of = encode_basestring_ascii
"""A text as JSON."""


def encode(value: Any) -> str:
    """Anything as JSON; what JSON has not, as `plain` has it."""
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError):  # a key that is no text, or a number that is not finite
        return _ENCODER.encode(plain(value))


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=plain, allow_nan=False)


def plain_text(value: Any) -> str:
    """A number, a text or a list of such things as JSON."""
    return _whole_text(value) or encode(value)


def _whole_text(value: Any) -> str | None:
    """An integer or a list of them as JSON; None for all else."""
    if type(value) is int:
        return int.__repr__(value)
    if type(value) is list and set(map(type, value)) == {int}:
        return f"[{','.join(map(int.__repr__, value))}]"
    return None


def groups_text(pages: Any) -> str:
    """Pages by group, as page lists that tell their ids, or as lists of ids or views."""
    if pages is None:
        return "null"
    if hasattr(pages, "get_page_ids"):
        pages = pages.get_page_ids()
    elif not isinstance(pages, list | tuple):
        pages = [page_ids(group) for group in pages.pages]
    return f"[{','.join(map(listed, pages))}]"


def outcome_text(kind: str, value: Any, keys: KeyNumbers) -> str:
    """A result as JSON; see `result`."""
    if kind == "ids" and not value:
        return "[]"
    if value is None:
        return "null"
    if kind == "hit":
        return f"[{groups_text(value[0])},{plain_text(value[1])}]"
    if kind == "groups":
        return groups_text(value)
    if kind == "batch":
        return f"[{listed(refused_places(value))},[{','.join(map(_new_pages, new_pages(value)))}]]"
    return (kind == "plain" and _whole_text(value)) or encode(result(kind, value, keys))


def _new_pages(group: tuple[Any, Any, Any]) -> str:
    places, counts, pages = group
    return f"[{listed(places)},{listed(counts) if type(counts) is list else counts},{listed(pages)}]"
