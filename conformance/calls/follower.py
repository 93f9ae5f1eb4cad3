"""The table of who follows a cache by its events: what it is told, and what it is asked."""

from typing import Any

from kvproof.spec.declarations import PageRemoved, PageStored

from .kinds import PLAIN, wrong
from .method import Given, Kind, Method, Table
from .source import Source
from .values import NO_INTS, NO_LISTS

__all__ = ["FOLLOWER"]

_NO_FIELDS: dict[str, list[Any]] = {
    "group_id": [-1],
    "page_id": [0, True],
    "page_hash": ["3"],
    "parent_hash": [5, "3"],
    "token_ids": [[0]],
    "extra_keys": [[1]],
}
"""What no field of an event that a page is stored may be."""


def _told_badly(source: Source, known: Any, _: Given) -> Any:
    """Events of which the last one can't come next, or is no event; or a value that is no list."""
    cached = [told[1:] for told in known.spec.told if told[0] == "PageStored" and known.is_cached(told[2])]
    group, page, digest = cached[-1][:3] if cached else (0, 1, b"1")
    new, other = (PageStored(0, known.world.num_pages + more, b"2", None, (0,), None) for more in (7, 8))
    often = [
        PageRemoved(0, other.page_id, b"1"),
        PageRemoved(group, page, b"another"),
        PageRemoved(group + 1, page, digest),
        *([PageStored(group, page, b"3", None, (0,), None)] if cached else []),
        new,
    ]
    odd = [other._replace(**{name: value}) for name, values in _NO_FIELDS.items() for value in values]
    seldom = [[new, event] for event in (*odd, None, "event")]
    return source.likely([[new, event] for event in often], [*seldom, *NO_LISTS])


_GROUPS = wrong([-1], None, 1, *([number] for number in NO_INTS))

FOLLOWER = Table(
    "follower",
    "CacheFollower",
    (
        Method(
            *("apply", {"events": Kind(fault=_told_badly)}, PLAIN, "MAN-12"),
            capability="events",
            spoils=1,
            logged=False,
        ),
        Method(
            "num_cached_pages",
            {"page_hashes": wrong(["key"], None, 1), "kv_cache_group_ids": _GROUPS},
            PLAIN,
            "MAN-12",
            reads=True,
            capability="events",
            spoils=1,
            draw=lambda *_: {"page_hashes": [], "kv_cache_group_ids": [0]},
            logged=False,
        ),
    ),
    {
        "CacheFollower": "made with every manager that tells events",
        "events": "told to another follower, all of it",
        "check": "what a backend says of itself; run with every state",
    },
)
