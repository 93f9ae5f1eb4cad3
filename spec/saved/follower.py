"""MAN-12: rebuilds a cached map from events, for another program, such as a router of requests."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ..declarations import CacheCleared, CacheEvent, PageRemoved, PageStored
from ..declarations.events import read_stored
from ..declarations.keys import PageHash, PageHashWithGroupId, read_page_hash
from ..declarations.showing import ShownFollower
from ..reading.arguments import integer, listed, refusal

__all__ = ["CacheFollower"]


class CacheFollower(ShownFollower):
    """Rebuilds the cached map of a pool from its events, duplicates included (MAN-12).

    It must get every event of one pool, from the first on, once and in order.
    """

    def __init__(self) -> None:
        self._stored: dict[int, PageStored] = {}
        """The `PageStored` event of each cached page, in the order in which the pages were cached."""

    def apply(self, events: Iterable[CacheEvent]) -> None:
        """Applies events, all of them or, if one is refused, none (MAN-12). O(cached pages + events).

        Args:
            events: the events, in the order in which `take_events` returned them.

        Raises:
            TypeError: an element is no event.
            ValueError: a stored page is cached already (POOL-8); a removed page is not cached, or under another hash.
        """
        stored = dict(self._stored)
        for event in listed("events", events):
            match event:
                case PageStored():
                    page_id, _ = _stored(event)
                    if page_id in stored:
                        raise refusal(ValueError, "MAN-12", f"events: page {page_id} is stored and was so already")
                    stored[page_id] = event
                case PageRemoved():
                    page_id = integer("events page_id", event.page_id, minimum=1, clause="POOL-1")
                    if page_id not in stored:
                        raise refusal(ValueError, "MAN-12", f"events: page {page_id} is removed and was not stored")
                    known = stored[page_id]
                    if (known.group_id, known.page_hash) != (event.group_id, event.page_hash):
                        raise refusal(ValueError, "MAN-12", f"events: page {page_id} is removed under another hash")
                    del stored[page_id]
                case CacheCleared():
                    stored.clear()
                case _:
                    raise refusal(TypeError, "R1", f"events has {event!r}, which is no CacheEvent")
        self._stored = stored

    @property
    def cached_page_hash_to_page(self) -> Mapping[PageHashWithGroupId, Sequence[int]]:
        """The cached map: key to page ids, in the order in which they were cached (POOL-7). Read-only."""
        pages: dict[PageHashWithGroupId, list[int]] = {}
        for page_id, event in self._stored.items():
            pages.setdefault(_stored(event)[1], []).append(page_id)
        return MappingProxyType({key: tuple(page_ids) for key, page_ids in pages.items()})

    def events(self) -> list[CacheEvent]:
        """The events from which a follower in any state learns all that is cached now (MAN-12). O(cached pages).

        Returns:
            A `CacheCleared`, then the cached pages in the order in which they were cached.
        """
        return [CacheCleared(), *self._stored.values()]

    def num_cached_pages(self, page_hashes: Iterable[PageHash], kv_cache_group_ids: Iterable[int]) -> int:
        """How many leading pages of a request are cached in all of some groups (POOL-7). O(cached pages).

        Args:
            page_hashes: the keys of the request's pages, from the first on.
            kv_cache_group_ids: the groups.
        """
        keys = [read_page_hash("page_hashes", key) for key in listed("page_hashes", page_hashes)]
        groups = [integer("kv_cache_group_ids", group) for group in listed("kv_cache_group_ids", kv_cache_group_ids)]
        cached = {_stored(event)[1] for event in self._stored.values()}
        for place, key in enumerate(keys):
            if not all(PageHashWithGroupId(key, group) in cached for group in groups):
                return place
        return len(keys)

    def check(self) -> None:
        """Verifies that every cached page is one that a pool can cache; nothing is redundant. O(cached pages).

        Raises:
            AssertionError: a page is not; the message has the whole state.
        """
        for page_id, event in self._stored.items():
            assert page_id > 0, f"POOL-1: page {page_id} is cached\n{self._stored}"
            assert event.group_id >= 0, f"POOL-7: page {page_id} is cached for no group\n{self._stored}"


def _stored(event: PageStored) -> tuple[int, PageHashWithGroupId]:
    """Reads the page of an event and its key (R1)."""
    page_id, group_id = read_stored(event)
    key = read_page_hash("events page_hash", (event.page_hash, event.token_ids, event.extra_keys))
    return page_id, PageHashWithGroupId(key, group_id)
