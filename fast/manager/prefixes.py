"""MAN-1, PIN: the calls of a manager about cached prefixes, in use by a live request or not.

Every call reads and validates its arguments here (R1); the coordinator then changes the groups' pages.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, Unpack

import numpy as np

from kvproof.spec.declarations import (
    CacheCounters,
    CacheEvent,
    CacheGroupSpec,
    EngineRequest,
    HashFunction,
    ManagerOptions,
    takes_options,
)
from kvproof.spec.declarations.uncopied import Uncopied

from ..groups.cache_pages import CachePages
from ..groups.coordinator_kinds import get_kv_cache_coordinator
from ..groups.longest_hit import Hits
from ..pool.hashing import PageHash, hash_request_tokens, sha256
from ..reading.arguments import attribute, flag, integer, refusal
from ..reading.request_reading import another, read_prompt, read_request_id, read_tokens
from .restore import restored
from .snapshot import snapshot_of

__all__ = ["PinnedPrefix", "PrefixManager"]


class PinnedPrefix(NamedTuple):
    """A prefix that is pinned (PIN-1).

    Attributes:
        pin_id: the id for `unpin_prefix`.
        num_tokens: the number of tokens of the prefix.
        pages: the pages of the prefix.
    """

    pin_id: int
    num_tokens: int
    pages: CachePages


class PrefixManager(Uncopied):
    """The part of a manager that finds, pins, prioritises and forgets prefixes; see `CacheManager`."""

    @takes_options
    def __init__(
        self,
        num_pages: int,
        kv_cache_groups: Sequence[CacheGroupSpec],
        max_model_len: int,
        enable_caching: bool = True,
        use_eagle: bool = False,
        **options: Unpack[ManagerOptions],
    ) -> None:
        self.max_model_len = integer("max_model_len", max_model_len, minimum=1, below=2**63)
        self.use_eagle = flag("use_eagle", use_eagle)
        self.coordinator = get_kv_cache_coordinator(
            num_pages,
            kv_cache_groups,
            self.max_model_len,
            self.use_eagle,
            flag("enable_caching", enable_caching),
            **options,
        )
        self.kv_cache_groups = self.coordinator.kv_cache_groups
        self.num_kv_cache_groups = len(self.kv_cache_groups)
        self.enable_caching = self.coordinator.enable_caching
        self.page_pool = self.coordinator.page_pool
        self.num_pages = self.page_pool.num_pages
        self.page_size: int | None = self.coordinator.groups[0].rule.page_size if self.enable_caching else None
        self._live = self.coordinator.live
        self._known: dict[str, EngineRequest] = {}
        self._given_back: dict[str, int] = {}
        """The number of promised tokens of known requests when they were freed."""
        self._num_requests = self._queried_tokens = self._hit_tokens = 0
        self._num_preemptions = self._preempted_tokens = 0
        self._pins: dict[int, tuple[int, Hits]] = {}
        self._next_pin = 0

    @property
    def usage(self) -> float:
        """The share of pages in use, from 0.0 to 1.0 (POOL-10)."""
        return self.page_pool.get_usage()

    @property
    def req_to_page_hashes(self) -> defaultdict[str, Sequence[PageHash]]:
        """The keys of the full pages of each request looked up or admitted, until `free_page_hashes`; else ``[]``.

        They are for the first group's page size; none with caching off. The manager does not use them: they are
        computed when this is read, and changes to the result have no effect.
        """
        pool, size = self.page_pool, self.page_size
        keys: defaultdict[str, Sequence[PageHash]] = defaultdict(list)
        if size is not None:
            for request_id, request in self._known.items():
                keys[request_id] = hash_request_tokens(pool.hash_function, size, request, none_hash=pool.none_hash)
        return keys

    @property
    def counters(self) -> CacheCounters:
        """The counters since the manager was made (MAN-12)."""
        return dataclasses.replace(
            self.page_pool.counters,
            requests=self._num_requests,
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_tokens,
            preemptions=self._num_preemptions,
            preempted_tokens=self._preempted_tokens,
        )

    def create_empty_page_list(self) -> CachePages:
        """An empty list for each group of the manager."""
        return self.coordinator.nothing

    # -- Finding ----------------------------------------------------------------------------------

    def get_computed_pages(self, request: EngineRequest) -> tuple[CachePages, int]:
        """The longest cached prefix of a request that every group can serve (MAN-1). Changes nothing in the pool.

        The last token is never part of it, since its logits have to be computed.

        Args:
            request: a request that is to be admitted.

        Returns:
            Its cached pages, null pages where a group needs none, and the number of their tokens. O(tokens
            compared), as one memory comparison for each run of pages that were cached together, and O(pages) in
            array operations for several groups.
        """
        coordinator = self.coordinator
        request_id, tokens, extra_keys, params = read_prompt(request)
        segments = coordinator.plain if extra_keys is None else coordinator.segments_of(extra_keys)
        slot = self._live.slot_of.get(request_id, -1)
        if slot >= 0:
            if self._live.requests[slot] is not request:
                raise another(request)
        elif coordinator.swapped.by_id and coordinator.swapped.is_another(request):
            raise another(request)
        if not self.enable_caching or (params is not None and params.prompt_logprobs is not None):
            return coordinator.nothing, 0
        if self._known.get(request_id) is not request:
            self._remember(request, request_id)
        most = len(tokens) // 4 - 1
        hits, length = coordinator.find_longest_cache_hit(tokens, segments, most if most > 0 else 0)
        return coordinator.cache_pages_of(hits), length

    def _remember(self, request: EngineRequest, request_id: str) -> None:
        """Records a request that is not known; the records of another object of its id are dropped (MAN-6)."""
        self._given_back.pop(request_id, None)
        self._known[request_id] = request

    # -- Forgetting -------------------------------------------------------------------------------

    def reset_prefix_cache(self) -> bool:
        """Forgets every cached prefix, if no page is in use (POOL-9). Returns True if it did."""
        return self.page_pool.reset_prefix_cache()

    def evict_pages(self, page_ids: Iterable[int]) -> None:
        """Drops the hashes of pages; see `PagePool.evict_pages` (POOL-11)."""
        self.page_pool.evict_pages(page_ids)

    # -- Pins and priorities ----------------------------------------------------------------------

    def pin_prefix(self, request: EngineRequest, num_tokens: int | None = None) -> PinnedPrefix | None:
        """Pins the cached pages of a request's longest cached prefix: they stay cached until unpinned (PIN-1).

        Args:
            request: any request with the prefix's tokens and extra keys, live or not.
            num_tokens: the most tokens to pin; None: as many as the request has.

        Returns:
            The pinned prefix; None if nothing is cached. Pins are counted: a prefix pinned twice must be unpinned
            twice. O(pages).

        Raises:
            ValueError: more pages would be pinned than the manager allows.
        """
        hits, length = self._cached_prefix(request, num_tokens)
        if not length:
            return None
        pages = self.coordinator.cache_pages_of(hits)
        self.page_pool.pin(pages.pages)
        self._pins[self._next_pin] = length, hits
        self._next_pin += 1
        return PinnedPrefix(self._next_pin - 1, length, pages)

    def unpin_prefix(self, pin_id: int) -> None:
        """Ends a pin; pages without other references become free, group by group, last page first (PIN-1).

        Raises:
            ValueError: there is no such pin.
        """
        number = integer("pin_id", pin_id, minimum=None)
        if number not in self._pins:
            raise refusal(ValueError, "PIN-1", f"pin_id={number} is no pin")
        _, hits = self._pins.pop(number)
        self.page_pool.unpin(self.coordinator.cache_pages_of([own[::-1] for own in hits]).pages)

    def set_prefix_priority(
        self, request: EngineRequest, priority: int, num_tokens: int | None = None, expires_at: float | None = None
    ) -> int:
        """Sets the priority of the cached pages of a request's longest cached prefix (PIN-2).

        Args:
            request: any request with the prefix's tokens and extra keys, live or not.
            priority: an int32; pages of low priority are evicted first; the default of pages is 0.
            num_tokens: the most tokens of the prefix; None: as many as the request has.
            expires_at: the time at which the priority ends; None: never.

        Returns:
            The number of tokens of the prefix. Its free pages are put behind those of the new priority group by group,
            last page first.
        """
        hits, length = self._cached_prefix(request, num_tokens)
        pages = self.coordinator.cache_pages_of([own[::-1] for own in hits])
        self.page_pool.set_priority((page for own in pages.pages for page in own), priority, expires_at)
        return length

    def advance_time(self, now: float) -> None:
        """Sets the time: priorities that expire by then end (PIN-2).

        Raises:
            ValueError: the time is earlier than the last one.
        """
        self.page_pool.advance_time(now)

    def _cached_prefix(self, request: EngineRequest, num_tokens: int | None) -> tuple[Hits, int]:
        """The longest cached prefix that every group can serve, the whole request included."""
        most = None if num_tokens is None else integer("num_tokens", num_tokens)
        self._require_own_id(request)
        coordinator = self.coordinator
        tokens = read_tokens(request)
        segments = coordinator.segments_of(attribute(request, "extra_keys"))
        known = len(tokens) // 4
        return coordinator.find_longest_cache_hit(
            tokens, segments, known if most is None else min(most, known), eagle=False
        )

    # -- Telling ----------------------------------------------------------------------------------

    def take_events(self) -> list[CacheEvent]:
        """The events since the last call, in order (MAN-12); empty if events are disabled."""
        return self.page_pool.take_events()

    # -- Snapshots --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON has it (MAN-14); `restore` of either package goes on from it.

        It has token ids and no salts (SEC-2). The requests' objects are the engine's to keep.

        Returns:
            What stands in the format of the module `snapshot`. O(pages and cached tokens).

        Raises:
            ValueError: a page is held or cached by calls on the pool, of which no snapshot tells; a request is in
                host memory, or on its way (SWAP-1).
        """
        return snapshot_of(self)

    @classmethod
    def restore(
        cls,
        snapshot: Mapping[str, Any],
        requests: Iterable[EngineRequest] = (),
        *,
        hash_function: HashFunction = sha256,
    ) -> Self:
        """A manager that goes on from a snapshot and behaves alike in every later call (MAN-14, SEC-3).

        Args:
            snapshot: what `snapshot` of this or the other package returned; it may have gone through JSON.
            requests: the engine's objects of the requests that were live or known, one for each id; others are
                passed over.
            hash_function: the one that the manager had.

        Returns:
            The manager. O(pages and cached tokens).

        Raises:
            TypeError: ``snapshot`` is no mapping, or ``requests`` has something else than requests.
            ValueError: the snapshot is damaged, or does not fit the requests.
        """
        return restored(cls, snapshot, requests, hash_function)

    def _require_own_id(self, request: EngineRequest) -> None:
        slot = self._live.slot_of.get(read_request_id(request), -1)
        if (slot >= 0 and self._live.requests[slot] is not request) or self.coordinator.swapped.is_another(request):
            raise another(request)

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages and cached tokens).

        Raises:
            AssertionError: a check fails; the message shows the whole state.
        """
        self.coordinator.check()
        away = {request_id for request_id, swapped in self.coordinator.swapped.by_id.items() if not swapped.is_received}
        assert self._given_back.keys() <= self._known.keys() - self._live.slot_of.keys() - away, (
            f"MAN-12: given back {list(self._given_back)}, known {list(self._known)}, live {list(self._live.slot_of)}"
        )
        pinned = np.zeros(self.num_pages, np.int64)
        for _, hits in self._pins.values():
            for pages in hits:
                np.add.at(pinned, pages[pages != 0], 1)
        counts = self.page_pool.pin_counts()
        assert (pinned <= counts).all(), f"PIN-1: pins {pinned.tolist()}, the pool has {counts.tolist()}"
