"""MAN-12: the cached map of a manager, rebuilt from its events in another process, such as a router."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kvproof.spec.declarations import CacheCleared, CacheEvent, PageRemoved, PageStored
from kvproof.spec.declarations.events import read_stored
from kvproof.spec.declarations.keys import PageHash, PageHashWithGroupId, read_page_hash
from kvproof.spec.declarations.showing import ShownFollower

from ..reading.arguments import integer, listed, refusal

__all__ = ["CacheFollower"]


class CacheFollower(ShownFollower):
    """Applies one pool's events to a copy of its cached map: pages by key, duplicates in the order cached.

    It knows digests, tokens and extra keys, but no pool. A follower starts with the first event of the pool, or at a
    `CacheCleared`.

    Attributes:
        cached_page_hash_to_page: the cached map, live and read-only: the ids of the pages under each key, in the
            order in which they were cached (POOL-7).
    """

    def __init__(self) -> None:
        self._stored: dict[int, PageStored] = {}
        """The `PageStored` event of each cached page, in the order in which the pages were cached."""
        self._pages: dict[PageHashWithGroupId, OrderedDict[int, None]] = {}
        self.cached_page_hash_to_page: Mapping[PageHashWithGroupId, Sequence[int]] = _FollowedMap(self._pages)

    def apply(self, events: Iterable[CacheEvent]) -> None:
        """Applies events in order. O(events).

        Args:
            events: events that ``take_events`` of a pool or a manager returned.

        Raises:
            TypeError: an element is not an event, or a field of one has the wrong type.
            ValueError: an event contradicts those before it: a page is stored that is stored already, or one
                removed that is not there or is there under another hash. Nothing is applied then.
        """
        read = self._read(listed("events", events))
        for page, event in read:
            if page == 0:
                self._stored.clear()
                self._pages.clear()
            elif event is not None:
                self._stored[page] = event
                self._pages.setdefault(_key_of(event), OrderedDict())[page] = None
            else:
                gone = _key_of(self._stored.pop(page))
                del self._pages[gone][page]
                if not self._pages[gone]:
                    del self._pages[gone]

    def _read(self, events: Sequence[object]) -> list[tuple[int, PageStored | None]]:
        """Reads events as (page, the event or None if it is removed), page 0 if the cache is cleared (R1)."""
        read: list[tuple[int, PageStored | None]] = []
        changed: dict[int, PageStored | None] = {}  # the changes of earlier events, not applied yet
        cleared = False
        for event in events:
            if isinstance(event, CacheCleared):
                changed.clear()
                cleared = True
                read.append((0, None))
                continue
            if not isinstance(event, PageStored | PageRemoved):
                raise refusal(TypeError, "R1", f"events has {event!r}, which is no CacheEvent")
            page = integer("events page_id", event.page_id, minimum=1, clause="POOL-1")
            known = changed[page] if page in changed else None if cleared else self._stored.get(page)
            if isinstance(event, PageStored):
                read_stored(event)
                read_page_hash("events page_hash", (event.page_hash, event.token_ids, event.extra_keys))
                changed[page] = event
                if known is not None:
                    raise refusal(ValueError, "MAN-12", f"events: page {page} is stored, which is stored already")
            else:
                changed[page] = None
                if known is None:
                    raise refusal(ValueError, "MAN-12", f"events: page {page} is removed, which is not stored")
                if (known.group_id, known.page_hash) != (event.group_id, event.page_hash):
                    raise refusal(ValueError, "MAN-12", f"events: page {page} is removed under another hash")
            read.append((page, changed[page]))
        return read

    def events(self) -> list[CacheEvent]:
        """The events from which a follower in any state learns all that is cached now (MAN-12). O(cached pages).

        Returns:
            A `CacheCleared`, then the cached pages in the order in which they were cached.
        """
        return [CacheCleared(), *self._stored.values()]

    def num_cached_pages(self, page_hashes: Iterable[PageHash], kv_cache_group_ids: Iterable[int]) -> int:
        """The number of leading keys of a request that are cached in all of some groups (POOL-7).

        Args:
            page_hashes: the keys of the request's pages from its first on.
            kv_cache_group_ids: the groups. O(keys x groups).
        """
        keys = [read_page_hash("page_hashes", key) for key in listed("page_hashes", page_hashes)]
        groups = [integer("kv_cache_group_ids", group) for group in listed("kv_cache_group_ids", kv_cache_group_ids)]
        for count, key in enumerate(keys):
            if not all(PageHashWithGroupId(key, group) in self._pages for group in groups):
                return count
        return len(keys)

    def check(self) -> None:
        """Verifies that pages and keys agree; O(cached pages).

        Raises:
            AssertionError: they don't; the message shows both.
        """

        def state() -> str:
            return f"pages {self._pages}, stored {self._stored}"

        mapped = {page: key for key, pages in self._pages.items() for page in pages}
        assert mapped == {page: _key_of(event) for page, event in self._stored.items()}, f"POOL-7: {state()}"
        assert len(mapped) == sum(map(len, self._pages.values())), f"POOL-8: a page stands twice: {state()}"
        assert all(self._pages.values()), f"POOL-7: a key without a page: {state()}"
        assert min(self._stored, default=1) > 0, f"POOL-1: {state()}"
        assert all(key.group_id >= 0 for key in self._pages), f"POOL-7: {state()}"


class _FollowedMap(Mapping[PageHashWithGroupId, Sequence[int]]):
    """A follower's cached map, live and read-only. A reading is O(pages of the key)."""

    __slots__ = ("_pages",)

    def __init__(self, pages: Mapping[PageHashWithGroupId, Iterable[int]]) -> None:
        self._pages = pages

    def __getitem__(self, key: PageHashWithGroupId) -> tuple[int, ...]:
        return tuple(self._pages[key])

    def __iter__(self) -> Iterator[PageHashWithGroupId]:
        return iter(self._pages)

    def __len__(self) -> int:
        return len(self._pages)

    def __repr__(self) -> str:
        return f"CachedMap({dict(self)})"


def _key_of(event: PageStored) -> PageHashWithGroupId:
    """The key of a stored page, which has been read."""
    return PageHashWithGroupId(PageHash(event.page_hash, event.token_ids, event.extra_keys), event.group_id)
