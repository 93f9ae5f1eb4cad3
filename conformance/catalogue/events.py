"""Faults of events: what is told of the cache is not what became of it."""

from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any

from kvproof.spec.declarations import CacheCleared, PageRemoved, PageStored

from .patching import with_manager
from .registry import seeded

__all__: list[str] = []


def _new_dict(_: Any) -> dict[tuple[int, bytes], list[int]]:
    return {}


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

    return with_manager(fast, pages_of=cached_property(_new_dict), take_events=take_events)


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
