"""Faults of the cache manager: what it remembers of a request, what it gives back, what it restores."""

import importlib
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from .patching import fresh, whole, with_manager, with_requests, with_snapshots
from .registry import FORESEEN, seeded

__all__: list[str] = []


@seeded(9, "MAN-5", "manager", also=("POOL-3",), by="PagePool.give_back")
def deferred_free_reversed(fast: ModuleType, self: Any, pages: Any) -> None:
    """Pages whose freeing was put off come back in another order than they would have at once (vLLM 48532).

    There the pages of all groups are put in one list, which is reversed as a whole; with one group what is left
    of it is a list that was reversed when it was made and is reversed again.
    """
    fast.PagePool.give_back(self, pages[::-1])


@seeded(16, "MAN-6", "manager", also=("R2", "HASH-3", "MAN-1", "MAN-3"))
def reused_id_keeps_keys(fast: ModuleType) -> SimpleNamespace:
    """Keys are kept by request id, so that a reused id has the old prompt's (EasyDeL, vLLM 10583, 15041).

    It hits the old prompt's pages, misses its own, and publishes those under the old keys.
    """

    def read(manager: Any, request: Any) -> list[int]:
        """The request's tokens, those of full pages as noted under its id."""
        tokens = [int(token) for token in request.all_token_ids]
        noted = manager.noted.get(request.request_id, [])
        tokens = [*noted[: len(tokens)], *tokens[len(noted) :]]
        full = len(tokens) - len(tokens) % (manager.page_size or 1)
        if full > len(noted):
            manager.noted[request.request_id] = tokens[:full]
        return tokens

    def free_page_hashes(self: Any, request: Any) -> None:
        fast.CacheManager.free_page_hashes(self, request)
        self.noted.pop(request.request_id, None)

    return with_requests(fast, read, noted=fresh(dict), free_page_hashes=free_page_hashes)


@seeded(16, "MAN-6", "manager", also=("R1", "MAN-2"), by="CacheManager.allocate_slots")
def second_request_of_a_live_id(fast: ModuleType, self: Any, request: Any, *args: Any, **options: Any) -> Any:
    """Another request under a live id is taken for the one that lives, and gets its pages (vLLM 10583, 15041)."""
    live = self.coordinator.live
    slot = live.slot_of.get(getattr(request, "request_id", None), -1)
    known = live.requests[slot] if slot >= 0 else request
    return fast.CacheManager.allocate_slots(self, known, *args, **options)


@seeded(22, "MAN-3", "manager", by="CacheManager.cache_pages")
def smaller_count_raises(fast: ModuleType, self: Any, request: Any, num_computed_tokens: Any) -> None:
    """Publishing with a smaller count than before, as after rejected drafts, raises (EasyDeL)."""
    fast.CacheManager.cache_pages(self, request, num_computed_tokens)
    slot = self.slot_of(request.request_id)
    for group in self.coordinator.groups:
        published = group.num_published[slot]
        if num_computed_tokens // group.rule.page_size < published:
            raise RuntimeError(f"{published} pages are cached, num_computed_tokens={num_computed_tokens} has fewer")


@seeded(22, "MAN-3", "manager", by="CacheManager.cache_pages")
def missing_pages_counted_as_cached(fast: ModuleType, self: Any, request: Any, num_computed_tokens: Any) -> None:
    """A count beyond the request's slots is not refused: 3 pages count as cached where 2 are (EasyDeL).

    What is then written on the third page is never published.
    """
    live = self.coordinator.live
    slot = live.require(request)
    given = live.num_promised[slot]
    beyond = whole(num_computed_tokens) and num_computed_tokens > given
    fast.CacheManager.cache_pages(self, request, given if beyond else num_computed_tokens)
    if beyond and self.enable_caching:
        for group in self.coordinator.groups:
            group.num_published[slot] = int(num_computed_tokens) // group.rule.page_size
        self.page_pool.num_withdrawals += 1  # the page before the next is not cached: no place to go on from


# -- What is read back: a damaged document is taken for a sound one ----------------------------------------------------


@seeded(FORESEEN, "MAN-14", "snapshots", also=("SEC-3",))
def restored_under_anothers_prefix(fast: ModuleType) -> SimpleNamespace:
    """A snapshot's requests are taken to hold what they say: a page that is cached with other tokens is theirs, too."""
    reading = importlib.import_module(f"{fast.__name__}.groups.request_states")

    def restore(cls: type[Any], /, snapshot: Any, requests: Any = (), **options: Any) -> Any:
        with mock.patch.object(reading, "_require_own_content", return_value=None):
            return super(manager, cls).restore(snapshot, requests, **options)

    backend = with_manager(fast, restore=classmethod(restore))
    manager = backend.CacheManager
    return backend


@seeded(FORESEEN, "MAN-14", "snapshots", also=("SEC-3",))
def restore_mends_lists(fast: ModuleType) -> SimpleNamespace:
    """Lists of a snapshot that are out of order or name something twice are put right, and the rest is believed."""

    def mended(entries: Any) -> Any:
        if not isinstance(entries, list) or not all(isinstance(entry, list) and entry for entry in entries):
            return entries
        if not all(type(entry[0]) is int for entry in entries):
            return entries
        return [entry for _, entry in sorted({entry[0]: entry for entry in entries}.items())]

    def change(snapshot: Mapping[str, Any]) -> dict[str, Any]:
        sorted_ones = ("priorities", "stored_at", "freed_at")
        return {name: mended(own) if name in sorted_ones else own for name, own in snapshot.items()}

    return with_snapshots(fast, change)


@seeded(FORESEEN, "MAN-14", "snapshots", also=("MAN-12",), by="page_pool.log.ages.restore")
def times_of_other_pages_are_restored(fast: ModuleType, self: Any, stored: Any, freed: Any) -> None:
    """Where the times of some pages are counted, they are restored as if they were those of all pages."""
    fast.pool.sampling.Sampling.restore(self, stored[:0], freed)
    known = stored[stored[:, 0] < len(self._stored_at)]
    self._stored_at[known[:, 0]] = known[:, 1]


@seeded(FORESEEN, "R1", "manager", also=("MAN-3", "MAN-10"), by="coordinator.live.require")
def live_requests_are_known_by_id(fast: ModuleType, live: Any, request: Any) -> int:
    """Another object under a live id is taken for the request that is live: its pages are published, counted, moved."""
    slot = live.slot_of.get(getattr(request, "request_id", None))
    return int(fast.groups.live_requests.LiveRequests.require(live, request) if slot is None else slot)


@seeded(FORESEEN, "MAN-6", "manager", also=("MAN-1", "RET-2"), by="prefixes._require_own_id")
def others_are_answered(_: ModuleType, __: Any, request: Any) -> None:
    """What is asked about a prompt is answered for another object under a live id as well."""
    del request
