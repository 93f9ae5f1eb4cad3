"""What an object shows, as a log has it: read off public names only, so that any backend's can be read."""

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..calls.readings import cached_pages, free_pages, hashed_pages, pages_of_requests, ref_counts, usage

__all__ = ["FIELDS", "digest", "read_state"]

FIELDS = {
    "free pages": "POOL-3",
    "ref_cnt": "POOL-5",
    "hashed pages": "POOL-7",
    "cached map": "POOL-7",
    "usage": "POOL-10",
    "pages of requests": "MAN-2",
    "pages in a row": "TAB-1",
    "host rows": "TAB-1",
    "device rows": "TAB-4",
}
"""What a state shows, each with the label that its differences are charged to unless a call says otherwise."""

_LONGEST = 2_000
"""Characters of a field that stands as it is; what is longer is given by its CRC-32."""


def read_state(name: str, thing: Any, views: Mapping[int, Any], live: Iterable[str], device: bool) -> dict[str, Any]:
    """What an object shows now, by field. O(pages), or O(entries) of a table.

    Args:
        name: its class.
        thing: the object.
        views: of a manager or a pool: views of its pages.
        live: of a manager: the ids of requests whose pages are to be shown.
        device: whether tables show the device's rows, for which they wait for the device.
    """
    if name == "PageTable":
        return _tables([thing], device)
    if name == "MultiGroupPageTable":
        return _tables(list(thing.page_tables), device)
    if name == "PagePool":
        return _pool(thing, views)
    held = pages_of_requests(thing, sorted(live))
    return {**_pool(thing.page_pool, views), "pages of requests": held}


def _pool(pool: Any, views: Mapping[int, Any]) -> dict[str, Any]:
    return {
        "free pages": free_pages(pool),
        "ref_cnt": {str(page_id): count for page_id, count in ref_counts(views).items() if count},
        "hashed pages": hashed_pages(views),
        "cached map": list(map(list, cached_pages(pool))),
        "usage": usage(pool),
    }


def _tables(tables: list[Any], device: bool) -> dict[str, Any]:
    shown = {
        "pages in a row": [np.asarray(table.num_pages_per_row).tolist() for table in tables],
        "host rows": [np.asarray(table.get_cpu_tensor()).tolist() for table in tables],
    }
    if device:
        # a copy: an array that caches its value would keep a buffer alive that the next commit wants to reuse
        shown["device rows"] = [np.array(table.get_device_tensor()).tolist() for table in tables]
    return shown


def digest(value: Any) -> Any:
    """A field's value as a log has it: itself, or ``{"crc32": c}`` where it is long."""
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return value if len(text) <= _LONGEST else {"crc32": zlib.crc32(text.encode())}
