"""What an object shows, as a log has it: read off public names only, so that any backend's can be read."""

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

__all__ = ["FIELDS", "digest", "page_views", "read_state"]

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


def page_views(pool: Any) -> dict[int, Any]:
    """Views of a pool's pages by id: those that it shows, or those that are free if it shows none."""
    pages = getattr(pool, "pages", None)
    if pages is None:
        pages = [pool.null_page, *pool.free_page_queue.get_all_free_pages()]
    return {int(page.page_id): page for page in pages}


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
    held = {request_id: [list(map(int, group)) for group in thing.get_page_ids(request_id)] for request_id in live}
    return {**_pool(thing.page_pool, views), "pages of requests": dict(sorted(held.items()))}


def _pool(pool: Any, views: Mapping[int, Any]) -> dict[str, Any]:
    owned = [view for page_id, view in sorted(views.items()) if page_id]
    cached = sorted(
        [int(key.group_id), [int(page.page_id) for page in (pages.values() if isinstance(pages, Mapping) else pages)]]
        for key, pages in pool.cached_page_hash_to_page.items()
    )
    return {
        "free pages": [int(page.page_id) for page in pool.free_page_queue.get_all_free_pages()],
        "ref_cnt": {str(view.page_id): int(view.ref_cnt) for view in owned if view.ref_cnt},
        "hashed pages": [int(view.page_id) for view in owned if view.page_hash is not None],
        "cached map": [entry for entry in cached if entry[1]],
        "usage": round(float(pool.get_usage()), 9),
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
