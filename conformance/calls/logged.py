"""Results as plain values: as a log writes them and as they are compared. Pages by their ids, keys by numbers."""

import json
import zlib
from collections.abc import Iterable, Sequence, Set, ValuesView
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import CacheCounters

__all__ = [
    *("KeyNumbers", "ids_by_group", "is_listed", "new_pages", "page_ids", "plain", "refused_places", "result"),
    "same_value",
]


_WHOLE = 64
"""The number of entries up to which arrays stand in a log as they are; longer ones as their CRC-32."""

_DEEPEST = 8


def plain(value: Any, depth: int = 0) -> Any:
    """A number, a text, None, or a list of such things, as JSON has it; else ``{"type": name}``."""
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, np.bool_ | np.integer):
        return value.item()
    if isinstance(value, float | np.floating):
        return round(float(value), 9) if np.isfinite(value) else {"type": "float"}
    if isinstance(value, np.ndarray) and value.dtype.kind in "iub" and value.ndim:
        return value.tolist()
    if depth < _DEEPEST and isinstance(value, list | tuple):
        return [plain(entry, depth + 1) for entry in value]
    if depth < _DEEPEST and isinstance(value, dict):
        return {str(name): plain(entry, depth + 1) for name, entry in value.items()}
    if depth < _DEEPEST and is_listed(value):
        return [plain(entry, depth + 1) for entry in value]
    return {"type": type(value).__name__}


def is_listed(value: object) -> bool:
    """Whether a value is what a list may be given as, of another type: it can be read as often as one likes (R1)."""
    return isinstance(value, Sequence | Set | ValuesView) and not isinstance(
        value, str | bytes | bytearray | memoryview
    )


def page_ids(pages: Any) -> Any:
    """The ids of a list of pages; other objects stand as ``{"type": name}``."""
    ids = getattr(pages, "page_ids", None)
    if isinstance(ids, list):
        return ids
    if not isinstance(pages, Iterable) or isinstance(pages, str | bytes):
        return plain(pages) if pages is None else {"type": type(pages).__name__}
    found = []
    for page in pages:
        number = getattr(page, "page_id", None)
        found.append({"type": type(page).__name__} if number is None else int(number))
    return found


def ids_by_group(pages: Any) -> Any:
    """Pages by group as their ids: what tells its ids, has ``pages``, or is a list of lists of pages or of ids."""
    if pages is None:
        return None
    if hasattr(pages, "get_page_ids"):
        pages = pages.get_page_ids()
    if isinstance(pages, list | tuple):  # ids or pages
        return [[int(getattr(page, "page_id", page)) for page in group] for group in pages]
    return [page_ids(group) for group in pages.pages]


def same(column: list[int]) -> list[int] | int:
    """A list of numbers, or the one number that stands in all of its places."""
    return column[0] if column and column.count(column[0]) == len(column) else column


class KeyNumbers:
    """Keys of pages numbered as they come up: what two sides call alike is the same key on both (SEC-2)."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def of(self, key: Any) -> int | None:
        """The number of a digest; None for None."""
        return None if key is None else self._numbers.setdefault(key, len(self._numbers))

    def event(self, told: Any) -> list[Any]:
        """An event: its kind, group, page, the numbers of its key and, where it tells of one, of its parent's."""
        entry: list[Any] = [type(told).__name__]
        if hasattr(told, "page_id"):
            entry += [int(told.group_id), int(told.page_id), self.of(told.page_hash)]
        if hasattr(told, "parent_hash"):
            entry.append(self.of(told.parent_hash))
        return entry


def result(kind: str, value: Any, keys: KeyNumbers) -> Any:
    """A result as it is recorded and compared.

    Args:
        kind: see `kvproof.conformance.calls.method.Kind.log`.
        value: what the call returned.
        keys: the side's numbers of keys.
    """
    match kind:
        case "none":
            return plain(value)
        case "pages":
            return None if value is None else page_ids(value)
        case "groups":
            return ids_by_group(value)
        case "hit":
            return [ids_by_group(value[0]), plain(value[1])]
        case "pin":
            return None if value is None else [plain(value.pin_id), plain(value.num_tokens), ids_by_group(value.pages)]
        case "plan":
            if value is None:
                return None
            copies = [list(map(int, copy)) for copy in value.copies]
            return [plain(value.swap_id), plain(value.direction), plain(value.num_tokens), copies]
        case "ids":
            return [plain(request_id) for request_id in value or ()]
        case "copies":
            return [list(map(int, copy)) for copy in value]
        case "events":
            return [keys.event(told) for told in value]
        case "counters":
            counted = [field.name for field in fields(CacheCounters) if hasattr(value, field.name)]
            return {name: plain(getattr(value, name)) for name in counted}
        case "array":
            return _array(np.asarray(value))
        case "batch":
            return _batch(value)
        case _:
            return plain(value)


def _array(array: np.ndarray[Any, Any]) -> Any:
    if array.size <= _WHOLE:
        return [str(array.dtype), array.tolist()]
    return [str(array.dtype), list(array.shape), zlib.crc32(np.ascontiguousarray(array).tobytes())]


def _batch(batch: Any) -> list[Any]:
    """Who got no slots, and for each group who got how many pages, and which."""
    groups = [[places.tolist(), counts, pages.tolist()] for places, counts, pages in new_pages(batch)]
    return [refused_places(batch), groups]


def refused_places(batch: Any) -> list[int]:
    """The places in a batch of the requests that got no slots."""
    granted = np.asarray(batch.granted, bool)
    return (~granted).nonzero()[0].tolist() if b"\0" in granted.tobytes() else []


def new_pages(batch: Any) -> list[tuple[NDArray[np.int32], list[int] | int, NDArray[np.int32]]]:
    """For each group the places of the requests that got pages, how many each or the one number of all, and which."""
    groups: list[tuple[NDArray[np.int32], list[int] | int, NDArray[np.int32]]] = []
    offsets: Any = None
    for group, pages in enumerate(batch.page_ids):
        if not len(pages):
            groups.append((_NOBODY, [], _NOBODY))
            continue
        if hasattr(batch, "places"):  # which says at once what offsets tell
            places, counts = batch.places[group], batch.counts[group]
        else:
            offsets = batch.offsets if offsets is None else offsets
            counts = offsets[group][1:] - offsets[group][:-1]
            places = counts.nonzero()[0]
            counts = counts[places]
        each = 1 if len(places) == len(pages) else same(counts.tolist())
        groups.append((places.astype(np.int32), each, np.asarray(pages, np.int32)))
    return groups


_NOBODY = np.zeros(0, np.int32)


def same_value(expected: Any, observed: Any) -> bool:
    """Whether two values are the same as JSON has them; the last digits of a real number don't count."""
    if isinstance(expected, float) and isinstance(observed, int | float):
        return abs(expected - observed) < 1e-8
    return json.dumps(expected, sort_keys=True) == json.dumps(observed, sort_keys=True)
