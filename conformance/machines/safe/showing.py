"""What a backend of any design shows of its pages, read off public names; what it does not show is None."""

from collections.abc import Mapping
from typing import Any

from ...calls.logged import ids_by_group
from ...calls.readings import page_views
from ..sides import Side

__all__ = [
    "Lists",
    "cached_in_map",
    "count_of_null",
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
    ids: Lists = ids_by_group(pages)
    return ids


def known_views(pool: Any, queue: bool) -> dict[int, Any]:
    """Views of a fresh pool's pages by id, the null page's first if it shows one; none where it cannot tell them.

    Args:
        pool: the pool; None for a manager that shows none.
        queue: whether it shows its free queue.
    """
    names = ("free_page_queue",) if queue else ("get_new_pages", "get_num_free_pages")
    return page_views(pool, queue) if all(hasattr(pool, name) for name in names) else {}


def num_free(side: Side) -> int | None:
    """How many pages a pool says are free."""
    return int(side.pool.get_num_free_pages()) if hasattr(side.pool, "get_num_free_pages") else None


def usage(side: Side) -> float | None:
    """The part of the pages that is in use, as a manager says, or a pool without one."""
    whole = getattr(side, "manager", side.pool)
    said = whole.get_usage() if hasattr(whole, "get_usage") else getattr(whole, "usage", None)
    return None if said is None else round(float(said), 9)


def null_page(side: Side) -> int | None:
    """The id of a pool's null page."""
    return int(side.pool.null_page.page_id) if hasattr(side.pool, "null_page") else None


def count_of_null(side: Side) -> int:
    """The count of a pool's null page; 0 where it shows none."""
    return int(getattr(side.pages.get(0), "ref_cnt", 0))


def free_in_queue(side: Side) -> list[int] | None:
    """The pages that a pool shows as free, in the order of their ids."""
    if not hasattr(side.pool, "free_page_queue"):
        return None
    return sorted(int(page.page_id) for page in side.pool.free_page_queue.get_all_free_pages())


def cached_in_map(side: Side) -> list[int] | None:
    """The pages in a pool's cached map: under each key one page, several of them, or a mapping to them."""
    found = getattr(side.pool, "cached_page_hash_to_page", None)
    if found is None:
        return None
    listed: list[int] = []
    for pages in found.values():
        several = pages.values() if isinstance(pages, Mapping) else [pages] if hasattr(pages, "page_id") else pages
        listed += [int(page.page_id) for page in several]
    return sorted(listed)


def with_count(side: Side) -> list[int] | None:
    """The pages whose views have a count of 1 or more, the null page left out."""
    found = counts(side)
    return None if found is None else [page for page, count in found.items() if count > 0]


def counts(side: Side) -> dict[int, int] | None:
    """How often each page but the null page is held."""
    views = side.pages
    if not _have(views, "ref_cnt"):
        return None
    return {page: int(view.ref_cnt) for page, view in views.items() if page}


def with_hash(side: Side) -> list[int] | None:
    """The pages whose views have a hash."""
    views = side.pages
    if not _have(views, "page_hash"):
        return None
    return sorted(page for page, view in views.items() if view.page_hash is not None)


def resident(side: Side) -> list[int] | None:
    """The pages that a backend shows to be cached, each once, in the order of their ids.

    Its cached map tells; else the hashes of its page views; else the manager's ``resident_page_ids()``, which is for
    designs that have neither.
    """
    for found in (cached_in_map(side), with_hash(side)):
        if found is not None:
            return sorted(set(found))
    whole = getattr(side, "manager", side.pool)
    return sorted({int(page) for page in whole.resident_page_ids()}) if hasattr(whole, "resident_page_ids") else None


def _have(views: Mapping[int, Any], attribute: str) -> bool:
    """Whether views of pages have an attribute."""
    return bool(views) and hasattr(next(iter(views.values())), attribute)
