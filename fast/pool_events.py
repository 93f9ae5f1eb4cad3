"""MAN-12: what became of cached pages, told in order.

A call notes what it did in one entry, whatever the number of pages; the events are made of it when they are taken.
What can't be known later is worked out at once: the digests, which the pool has anyway when it comes here.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvproof.spec.declarations import CacheCleared, CacheEvent, PageRemoved, PageStored

from .hashing import token_tuples
from .page_keys import KeyStretch

__all__ = ["EventLog"]


class _Stored(NamedTuple):
    """Pages were cached: those of ``pages`` that are no null pages, under the keys at the same places."""

    pages: list[int]
    keys: KeyStretch


_Removed = list[tuple[int, tuple[int, bytes]]]
"""Pages lost their hashes: each with its group and its digest."""


class EventLog:
    """The events since they were last taken. It trusts its caller.

    Attributes:
        key_of: the group and the digest of each cached page.
    """

    __slots__ = ("_entries", "key_of")

    def __init__(self) -> None:
        self.key_of: dict[int, tuple[int, bytes]] = {}
        self._entries: list[_Stored | _Removed | CacheCleared] = []

    def stored(self, pages: list[int], keys: KeyStretch) -> None:
        """Notes that pages were cached, null pages among them passed over. O(pages)."""
        group = keys.group_id
        for page, digest in zip(pages, keys.digests, strict=True):
            if page:
                self.key_of[page] = group, digest
        self._entries.append(_Stored(pages, keys))

    def removed(self, pages: Iterable[int]) -> None:
        """Notes that pages lost their hashes, those of them that had one, in order. O(pages)."""
        pop = self.key_of.pop
        gone = [(page, key) for page in pages if (key := pop(page, None)) is not None]
        if gone:
            self._entries.append(gone)

    def cleared(self) -> None:
        """Notes that every page lost its hash."""
        self.key_of.clear()
        self._entries.append(CacheCleared())

    def take(self) -> list[CacheEvent]:
        """The events since the last call, in order. O(events)."""
        entries, self._entries = self._entries, []
        return [event for entry in entries for event in _events(entry)]


def _events(entry: _Stored | _Removed | CacheCleared) -> Iterable[CacheEvent]:
    if isinstance(entry, _Stored):
        return _stored_events(*entry)
    if isinstance(entry, CacheCleared):
        return (entry,)
    return [PageRemoved(group, page, digest) for page, (group, digest) in entry]


def _stored_events(pages: list[int], keys: KeyStretch) -> Iterator[PageStored]:
    group, parent = keys.group_id, keys.before
    tokens = token_tuples(keys.tokens, len(pages))
    for page, digest, token_ids, extra_keys in zip(pages, keys.digests, tokens, keys.extra_keys(), strict=True):
        if page:
            yield PageStored(group, page, digest, parent, token_ids, extra_keys)
        parent = digest
