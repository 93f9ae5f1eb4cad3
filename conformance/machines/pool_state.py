"""What the observable state of a page pool shows, read off public names only."""

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ..calls.readings import page_ids
from .base import SPEC, Field
from .sides import once

__all__ = ["order_clause", "pool_fields", "pool_options", "refines"]

Groups = list[tuple[int, list[int]]]
"""The cached map with its keys forgotten: (group id, page ids in the order they were cached), sorted."""


def order_clause(options: Mapping[str, Any]) -> str:
    """The clause that says in which order free pages are taken by pools with some options."""
    return "POOL-3" if options.get("eviction", "lru") == "lru" else "EVICT-1"


def pool_fields(seeded: bool, weak: bool, lacks: Collection[str] = (), order: str = "POOL-3") -> tuple[Field, ...]:
    """What a pool shows. A side has its ``pool`` and the ``pages`` of it by id.

    Args:
        seeded: whether both pools were given the same seed, so that their keys are the same.
        weak: whether the hash function may collide. Then a backend that tells more keys apart is right too.
        lacks: the capabilities that the backend lacks: it need not show its queue, nor what keys are made of.
        order: the clause that says in which order free pages are taken, see `order_clause`.
    """
    queue = (
        Field("not in the queue exactly while at 0", "POOL-2", _misplaced),
        Field("free pages", order, lambda side: page_ids(side.pool.free_page_queue.get_all_free_pages())),
        Field("numbers of free pages", "POOL-2", _numbers),
    )
    number = Field("number of free pages", "POOL-2", lambda side: int(side.pool.get_num_free_pages()))
    keys = (
        Field("cached under another key than its own", "POOL-8", _misfiled),
        Field("keys", "HASH-1", _keys(seeded), blame=_blame_key, also=("HASH-2", "HASH-3"), aside=True),
    )
    return (
        Field("ref_cnt", "POOL-5", _counts),
        Field("null page", "POOL-1", _null_page, aside=True),
        *((number,) if "queue" in lacks else queue),
        Field("hashed pages", "POOL-7", _hashed),
        Field("cached map", "POOL-7", _cached_map, refines if weak else operator.eq),
        *(() if "keys" in lacks else keys),
        Field("usage", "POOL-10", lambda side: round(float(side.pool.get_usage()), 9), aside=True),
        Field("check()", "POOL-2", _check, aside=True, inner=True),
    )


def _check(side: Any) -> None:
    """The own check of what was built, a manager's covers its pool; the specification's is not run."""
    whole = getattr(side, "manager", side.pool)
    if side.names is not SPEC and hasattr(whole, "check"):
        whole.check()


def pool_options(side_names: Iterable[Any], class_name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those constructor options that all sides accept.

    Args:
        side_names: each side's backend.
        class_name: the class to be constructed.
        options: what one would like to pass.
    """
    return {
        name: value for name, value in options.items() if all(names.accepts(class_name, name) for names in side_names)
    }


def _owned(side: Any) -> list[Any]:
    """All pages but the null page, in the order of their ids, in which `page_views` lists them."""
    return list(side.pages.values())[1:]


def _counts(side: Any) -> dict[int, int]:
    return {page.page_id: int(page.ref_cnt) for page in _owned(side)}


def _null_page(side: Any) -> tuple[Any, ...]:
    null = side.pool.null_page
    others = [page.page_id for page in _owned(side) if page.is_null]
    return (null.page_id, null.ref_cnt, bool(null.is_null), null.page_hash, others)


def _misplaced(side: Any) -> list[int]:
    queue = page_ids(side.pool.free_page_queue.get_all_free_pages())
    listed = Counter(queue)
    wrong = [page.page_id for page in _owned(side) if listed[page.page_id] != (page.ref_cnt == 0)]
    return wrong + [page_id for page_id in queue if page_id not in side.pages]


def _numbers(side: Any) -> tuple[int, int]:
    return (int(side.pool.get_num_free_pages()), int(side.pool.free_page_queue.num_free_pages))


@once
def _hashes(side: Any) -> dict[int, Any]:
    """The hash of every page that has one."""
    found = {page.page_id: page.page_hash for page in _owned(side)}
    return {page_id: key for page_id, key in found.items() if key is not None}


def _hashed(side: Any) -> list[int]:
    return list(_hashes(side))


@once
def _entries(side: Any) -> list[tuple[Any, list[Any]]]:
    """The cached map's keys, each with its pages: a sequence of them, or a mapping to them."""
    found = []
    for key, pages in side.pool.cached_page_hash_to_page.items():
        listed = list(pages.values()) if isinstance(pages, Mapping) else list(pages)
        if listed:
            found.append((key, listed))
    return found


def _cached_map(side: Any) -> Groups:
    return sorted((int(key.group_id), page_ids(pages)) for key, pages in _entries(side))


def refines(expected: Groups, observed: Groups) -> bool:
    """Whether one cached map tells at least the keys apart that another does, in the same order."""
    place = {page: (entry, rank) for entry, (_, pages) in enumerate(expected) for rank, page in enumerate(pages)}
    cached = [page for _, pages in observed for page in pages]
    if sorted(cached) != sorted(place):
        return False
    for group, pages in observed:
        entries = {place[page][0] for page in pages}
        ranks = [place[page][1] for page in pages]
        if len(entries) != 1 or ranks != sorted(ranks) or expected[entries.pop()][0] != group:
            return False
    return True


def _misfiled(side: Any) -> list[int]:
    """Pages that are cached under a key which is not their own hash, or under two keys."""
    entries, own = _entries(side), _hashes(side)
    cached = Counter(page.page_id for _, pages in entries for page in pages)
    return sorted(
        {page.page_id for key, pages in entries for page in pages if own.get(page.page_id) != key}
        | {page_id for page_id, times in cached.items() if times > 1}
    )


def _keys(seeded: bool) -> Callable[[Any], dict[int, Any]]:
    def read(side: Any) -> dict[int, Any]:
        keys = {page_id: key.page_hash for page_id, key in _hashes(side).items()}
        return {
            page_id: (key.hash_value if seeded else None, tuple(key.token_ids), key.extra_keys)
            for page_id, key in keys.items()
        }

    return read


def _blame_key(expected: Mapping[int, Any], observed: Mapping[int, Any]) -> str:
    """The clause of a wrong key: its tokens (HASH-3), its extra keys (HASH-2), or its digest (HASH-1)."""
    for page_id, (digest, tokens, extra_keys) in expected.items():
        found = observed.get(page_id)
        if found is None or found[1] != tokens:
            return "HASH-3"
        if found[2] != extra_keys:
            return "HASH-2"
        if found[0] != digest:
            return "HASH-1" if extra_keys is None else "HASH-2"
    return "HASH-1"
