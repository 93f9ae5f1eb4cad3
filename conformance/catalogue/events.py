"""Faults of events: what they say of the cache is not what happened to it."""

from types import ModuleType, SimpleNamespace
from typing import Any

from kvproof.spec.declarations import CacheCleared, PageRemoved, PageStored

from .patching import backend_with, derived, fresh, with_manager
from .registry import FORESEEN, seeded

__all__: list[str] = []


@seeded(55, "MAN-12", "events")
def removed_while_a_duplicate_survives(fast: ModuleType) -> SimpleNamespace:
    """When one page of a key is evicted, the key is announced as removed, though others have it (vLLM 55092, 48933)."""

    def take_events(self: Any) -> list[Any]:
        told = []
        for event in fast.CacheManager.take_events(self):
            key = (getattr(event, "group_id", -1), getattr(event, "page_hash", b""))
            if isinstance(event, PageStored):
                self.pages_of.setdefault(key, []).append(event.page_id)
            elif isinstance(event, PageRemoved):
                gone = self.pages_of.pop(key, [event.page_id])
                told += [PageRemoved(event.group_id, page, event.page_hash) for page in gone if page != event.page_id]
            elif isinstance(event, CacheCleared):
                self.pages_of.clear()
            told.append(event)
        return told

    return with_manager(fast, pages_of=fresh(dict), take_events=take_events)


@seeded(55, "MAN-12", "events")
def parent_never_announced(fast: ModuleType) -> SimpleNamespace:
    """The parent of a page is the key of what it holds but for its last token, which nobody was told (vLLM 58119)."""

    def take_events(self: Any) -> list[Any]:
        return [_behind_its_own_part(self, event) for event in fast.CacheManager.take_events(self)]

    def _behind_its_own_part(manager: Any, event: Any) -> Any:
        if not isinstance(event, PageStored) or len(event.token_ids) < 2:
            return event
        pool = manager.page_pool
        parent = fast.hash_page_tokens(
            pool.hash_function, event.parent_hash, event.token_ids[:-1], event.extra_keys, none_hash=pool.none_hash
        ).hash_value
        return PageStored(event.group_id, event.page_id, event.page_hash, parent, event.token_ids, event.extra_keys)

    return with_manager(fast, take_events=take_events)


@seeded(FORESEEN, "MAN-12", "events", by="CacheFollower.apply")
def cleared_amid_a_batch_in_vain(fast: ModuleType, self: Any, events: Any) -> None:
    """A follower holds what comes behind a clear against what it knew before, where both come in one batch."""
    if isinstance(events, list) and any(isinstance(event, CacheCleared) for event in events):
        known = {page for pages in self.cached_page_hash_to_page.values() for page in pages}
        again = [event for event in events if isinstance(event, PageStored) and event.page_id in known]
        if again:
            raise ValueError(f"stored already: {again[0]}")
    fast.CacheFollower.apply(self, events)


@seeded(FORESEEN, "MAN-12", "events", also=("R1", "R2"))
def stored_twice_is_followed(fast: ModuleType) -> SimpleNamespace:
    """A follower that missed the removal of a page takes the next that is stored on it, in place of saying so."""

    def apply(self: Any, events: Any) -> None:
        fast.CacheFollower.apply(self, _with_removals(self, events) if isinstance(events, list) else events)

    def _with_removals(follower: Any, events: list[Any]) -> list[Any]:
        key_of = {page: key for key, pages in follower.cached_page_hash_to_page.items() for page in pages}
        told: list[Any] = []
        for event in events:
            key = key_of.pop(getattr(event, "page_id", -1), None)
            if isinstance(event, PageStored) and key is not None:
                told.append(PageRemoved(key.group_id, event.page_id, key.get_hash_value()))
            elif isinstance(event, CacheCleared):
                key_of.clear()
            told.append(event)
        return told

    return backend_with(fast, CacheFollower=derived(fast.CacheFollower, {"apply": apply}))


@seeded(FORESEEN, "R1", "events", also=("MAN-12", "R2"), by="CacheFollower.apply")
def any_parent_is_followed(fast: ModuleType, self: Any, events: Any) -> None:
    """A follower does not look at the parent of a page: an event that was damaged on the wire is taken."""
    if isinstance(events, list):
        events = [event._replace(parent_hash=None) if isinstance(event, PageStored) else event for event in events]
    fast.CacheFollower.apply(self, events)


@seeded(FORESEEN, "MAN-12", "index", also=("R2",), by="CacheFollower.apply")
def orphans_are_dropped(fast: ModuleType, self: Any, events: Any) -> None:
    """An index that is a tree takes no page of an unknown parent: a parent that is cached again has no children."""
    for event in events if isinstance(events, list) else [events]:
        known = {key.get_hash_value() for key in self.cached_page_hash_to_page}
        pages = {page for found in self.cached_page_hash_to_page.values() for page in found}
        is_orphan = isinstance(event, PageStored) and event.parent_hash is not None and event.parent_hash not in known
        if not is_orphan and not (isinstance(event, PageRemoved) and event.page_id not in pages):
            fast.CacheFollower.apply(self, [event])


@seeded(FORESEEN, "MAN-12", "index", by="CacheFollower.events")
def told_anew_once_a_key(fast: ModuleType, self: Any) -> list[Any]:
    """Who comes late is told one page of each key: when that one is evicted, the prefix is gone for it."""
    cleared, *stored = fast.CacheFollower.events(self)
    return [cleared, *{(event.group_id, event.page_hash): event for event in stored}.values()]


@seeded(FORESEEN, "MAN-12", "index", by="CacheFollower.events")
def told_anew_behind_what_was_known(fast: ModuleType, self: Any) -> list[Any]:
    """A full list of what is cached doesn't begin with a clear: who comes late keeps what it knew."""
    told: list[Any] = fast.CacheFollower.events(self)[1:]
    return told


@seeded(FORESEEN, "MAN-12", "index")
def twins_go_together(fast: ModuleType) -> SimpleNamespace:
    """An index keeps one entry a key: when one of two pages with the key is evicted, the prefix is gone for it."""

    def apply(self: Any, events: Any) -> None:
        fast.CacheFollower.apply(self, events)
        for event in events if isinstance(events, list) else [events]:
            gone = vars(self).setdefault("gone", set())
            if isinstance(event, PageRemoved):
                gone.add((event.group_id, event.page_hash))
            elif isinstance(event, PageStored):
                gone.discard((event.group_id, event.page_hash))

    def num_cached_pages(self: Any, page_hashes: Any, kv_cache_group_ids: Any) -> int:
        keys, groups = list(page_hashes), list(kv_cache_group_ids)
        gone = vars(self).get("gone", set())
        left = next((n for n, key in enumerate(keys) if any((g, key.hash_value) in gone for g in groups)), len(keys))
        return int(fast.CacheFollower.num_cached_pages(self, keys[:left], groups))

    members = {"apply": apply, "num_cached_pages": num_cached_pages}
    return backend_with(fast, CacheFollower=derived(fast.CacheFollower, members))


@seeded(FORESEEN, "MAN-12", "events", by="prefixes.admitted")
def every_reason_of_a_hit_counts(fast: ModuleType, self: Any, request: Any, request_id: str, *more: Any) -> None:
    """A hit has two reasons: a preempted request finds what a junction kept, and is counted with the others as well."""
    admitted, freed = fast.manager.prefixes.Prefixes.admitted, self.tokens_when_freed.pop(request_id, None)
    admitted(self, request, request_id, *more)
    if freed is not None:
        _, found, *_ = more
        self._num_preemptions += 1
        self._preempted_tokens += freed
        self._resumed_hit_tokens += found
