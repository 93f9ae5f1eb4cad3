"""MAN-12: rebuilds a cached map from events, for another program, such as a router of requests."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ..declarations import CacheCleared, CacheEvent, PageRemoved, PageStored
from ..declarations.events import read_stored
from ..declarations.keys import PageHash, PageHashWithGroupId, read_page_hash
from ..reading.arguments import integer, listed, refusal

__all__ = ["CacheFollower"]


class CacheFollower:
    """Rebuilds the cached map of a pool from its events, duplicates included (MAN-12).

    It must get every event of one pool, from the first on, once and in order.
    """

    def __init__(self) -> None:
        self._key_of: dict[int, PageHashWithGroupId] = {}
        """The key of each cached page, in the order in which the pages were cached."""

    def apply(self, events: Iterable[CacheEvent]) -> None:
        """Applies events, all of them or, if one is refused, none (MAN-12). O(cached pages + events).

        Args:
            events: the events, in the order in which `take_events` returned them.

        Raises:
            TypeError: an element is no event.
            ValueError: a stored page is cached already (POOL-8); a removed page is not cached, or under another hash.
        """
        key_of = dict(self._key_of)
        for event in listed("events", events):
            match event:
                case PageStored():
                    page_id, key = _stored(event)
                    if page_id in key_of:
                        raise refusal(ValueError, "MAN-12", f"events: page {page_id} is stored and was so already")
                    key_of[page_id] = key
                case PageRemoved():
                    page_id = integer("events page_id", event.page_id, minimum=1, clause="POOL-1")
                    known = key_of.get(page_id)
                    if known is None:
                        raise refusal(ValueError, "MAN-12", f"events: page {page_id} is removed and was not stored")
                    if (known.group_id, known.get_hash_value()) != (event.group_id, event.page_hash):
                        raise refusal(ValueError, "MAN-12", f"events: page {page_id} is removed under another hash")
                    del key_of[page_id]
                case CacheCleared():
                    key_of.clear()
                case _:
                    raise refusal(TypeError, "R1", f"events has {event!r}, which is no CacheEvent")
        self._key_of = key_of

    @property
    def cached_page_hash_to_page(self) -> Mapping[PageHashWithGroupId, Sequence[int]]:
        """The cached map: key to page ids, in the order in which they were cached (POOL-7). Read-only."""
        pages: dict[PageHashWithGroupId, list[int]] = {}
        for page_id, key in self._key_of.items():
            pages.setdefault(key, []).append(page_id)
        return MappingProxyType({key: tuple(page_ids) for key, page_ids in pages.items()})

    def num_cached_pages(self, page_hashes: Iterable[PageHash], kv_cache_group_ids: Iterable[int]) -> int:
        """How many leading pages of a request are cached in all of some groups (POOL-7). O(cached pages).

        Args:
            page_hashes: the keys of the request's pages, from the first on.
            kv_cache_group_ids: the groups.
        """
        keys = [read_page_hash("page_hashes", key) for key in listed("page_hashes", page_hashes)]
        groups = [integer("kv_cache_group_ids", group) for group in listed("kv_cache_group_ids", kv_cache_group_ids)]
        cached = set(self._key_of.values())
        for place, key in enumerate(keys):
            if not all(PageHashWithGroupId(key, group) in cached for group in groups):
                return place
        return len(keys)

    def check(self) -> None:
        """Verifies that every cached page is one that a pool can cache; nothing is redundant. O(cached pages).

        Raises:
            AssertionError: a page is not; the message has the whole state.
        """
        for page_id, key in self._key_of.items():
            assert page_id > 0, f"POOL-1: page {page_id} is cached\n{self._key_of}"
            assert key.group_id >= 0, f"POOL-7: page {page_id} is cached for no group\n{self._key_of}"


def _stored(event: PageStored) -> tuple[int, PageHashWithGroupId]:
    """Reads the page of an event and its key (R1)."""
    page_id, group_id = read_stored(event)
    key = read_page_hash("events page_hash", (event.page_hash, event.token_ids, event.extra_keys))
    return page_id, PageHashWithGroupId(key, group_id)
