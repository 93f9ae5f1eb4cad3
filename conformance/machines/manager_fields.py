"""What a manager shows beside its pool and its page lists: what it told of its cache, and what is pinned."""

from collections.abc import Mapping
from typing import Any

from ..calls.manager import event
from .base import Field, Side

__all__ = ["TAKEN", "event_fields", "follow", "pin_fields"]

_LAST = 48
"""So many of the last events are shown; they are compared after every call, and no call tells of so many pages."""

TAKEN = ("events", "cached map of a follower")
"""The fields for which events are taken off a manager."""


def follow(side: Side) -> dict[str, Any]:
    """What a side is given so that its events are compared: what was told so far, and a follower of its own."""
    return {"told": [], "follower": side.names.get("CacheFollower")()}


def event_fields(counters: bool) -> tuple[Field, ...]:
    """Events, a follower of them, and counters (MAN-12). A side has what `follow` makes, beside its ``manager``.

    Args:
        counters: whether there are any.
    """
    counted = (
        Field.of("counters", "MAN-12", aside=True),
        Field.of("counters of the pool", "MAN-12", aside=True),
    )
    return (
        Field(TAKEN[0], "MAN-12", _events, aside=True),
        Field(TAKEN[1], "MAN-12", _followed, aside=True),
        *(counted if counters else ()),
    )


def _events(side: Any) -> tuple[int, list[Any]]:
    new = list(side.manager.take_events())
    side.told.extend(map(event, new))
    side.follower.apply(new)
    return len(side.told), side.told[-_LAST:]


def _followed(side: Any) -> tuple[Any, bool]:
    """What a follower knows, and whether it is what the pool that it follows has, keys and duplicates included."""
    found = {key: [int(page) for page in pages] for key, pages in side.follower.cached_page_hash_to_page.items()}
    side.follower.check()
    own = {
        key: [int(page.page_id) for page in (pages.values() if isinstance(pages, Mapping) else pages)]
        for key, pages in side.pool.cached_page_hash_to_page.items()
    }
    return sorted((int(key.group_id), pages) for key, pages in found.items()), found == own


def pin_fields() -> tuple[Field, ...]:
    """Pins and priorities. A side has its ``pool``, and its ``pages`` by id."""
    return Field.of("number of pinned pages", "PIN-1"), Field.of("priorities", "PIN-2")
