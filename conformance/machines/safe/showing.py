"""What a backend of any design shows of its pages, read off public names; what it does not show is None."""

from collections.abc import Mapping
from typing import Any

from ...calls.readings import page_views

__all__ = [
    "cached_in_map",
    "counts",
    "free_in_queue",
    "ids_of",
    "known_views",
    "null_page",
    "num_free",
    "resident",
    "usage",
    "with_count",
    "with_hash",
]

Lists = list[list[int]]
"""The ids of some pages, a list for each cache group."""


def ids_of(pages: Any) -> Lists:
    """The ids of pages that a manager returned: what tells its ids, or lists of pages."""
    groups = pages.get_page_ids() if hasattr(pages, "get_page_ids") else pages
    return [[int(getattr(page, "page_id", page)) for page in group] for group in groups]


def known_views(pool: Any, queue: bool) -> dict[int, Any]:
    """Views of a fresh pool's pages by id, the null page's first; none where it cannot tell them.

    Args:
        pool: the pool; None for a manager that shows none.
        queue: whether it shows its free queue.
    """
    names = ("null_page", "free_page_queue") if queue else ("null_page", "get_new_pages", "get_num_free_pages")
    return page_views(pool, queue) if all(hasattr(pool, name) for name in names) else {}


def num_free(pool: Any) -> int | None:
    """How many pages a pool says are free."""
    return int(pool.get_num_free_pages()) if hasattr(pool, "get_num_free_pages") else None


def usage(pool: Any) -> float | None:
    """The part of a pool's pages that is in use."""
    return round(float(pool.get_usage()), 9) if hasattr(pool, "get_usage") else None


def null_page(pool: Any) -> int | None:
    """The id of a pool's null page."""
    return int(pool.null_page.page_id) if hasattr(pool, "null_page") else None


def free_in_queue(pool: Any) -> list[int] | None:
    """The pages that a pool shows as free, in the order of their ids."""
    if not hasattr(pool, "free_page_queue"):
        return None
    return sorted(int(page.page_id) for page in pool.free_page_queue.get_all_free_pages())


def cached_in_map(pool: Any) -> list[int] | None:
    """The pages in a pool's cached map: under each key one page, several of them, or a mapping to them."""
    found = getattr(pool, "cached_page_hash_to_page", None)
    if found is None:
        return None
    listed: list[int] = []
    for pages in found.values():
        several = pages.values() if isinstance(pages, Mapping) else [pages] if hasattr(pages, "page_id") else pages
        listed += [int(page.page_id) for page in several]
    return sorted(listed)


def with_count(views: Mapping[int, Any]) -> list[int] | None:
    """The pages whose views have a count of 1 or more, the null page left out."""
    found = counts(views)
    return None if found is None else [page for page, count in found.items() if count > 0]


def counts(views: Mapping[int, Any]) -> dict[int, int] | None:
    """How often each page but the null page is held."""
    if not views or not hasattr(views[0], "ref_cnt"):
        return None
    return {page: int(view.ref_cnt) for page, view in views.items() if page}


def with_hash(views: Mapping[int, Any]) -> list[int] | None:
    """The pages whose views have a hash."""
    if not views or not hasattr(views[0], "page_hash"):
        return None
    return sorted(page for page, view in views.items() if view.page_hash is not None)


def resident(manager: Any, pool: Any, views: Mapping[int, Any]) -> list[int] | None:
    """The pages that a backend shows to be cached, each once, in the order of their ids.

    Its cached map tells; else the hashes of its page views; else the manager's ``resident_page_ids()``, which is for
    designs that have neither.
    """
    for found in (cached_in_map(pool), with_hash(views)):
        if found is not None:
            return sorted(set(found))
    if hasattr(manager, "resident_page_ids"):
        return sorted({int(page) for page in manager.resident_page_ids()})
    return None
