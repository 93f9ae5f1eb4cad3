"""MAN-1, PIN, MAN-12: cached prefixes: how they are found, pinned, ranked, dropped and counted."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

from ..declarations import (
    CacheCounters,
    CacheEvent,
    CacheGroupSpec,
    EngineRequest,
    ManagerOptions,
    pool_options,
    takes_options,
)
from ..groups.cache_pages import CachePages
from ..groups.coordinator import Chains, get_kv_cache_coordinator
from ..groups.live_requests import Live, read_tokens, request_id_of
from ..groups.request_keys import RequestKeys
from ..groups.swapped_requests import SwappedRequests
from ..pool.hashing import PageHash, hash_request_tokens, request_extra_keys
from ..pool.pages import CachePage
from ..reading.arguments import flag, integer, refusal
from ..reading.uncopied import Uncopied

__all__ = ["PinnedPrefix", "PrefixManager"]


@dataclass(frozen=True)
class PinnedPrefix:
    """A prefix whose pages are pinned (PIN-1).

    Attributes:
        pin_id: the number that `CacheManager.unpin_prefix` takes.
        num_tokens: tokens of the prefix.
        pages: pages of the prefix, null pages where a group needs none.
    """

    pin_id: int
    num_tokens: int
    pages: CachePages


class PrefixManager(Uncopied):
    """The part of `CacheManager` that deals with prefixes: finds, pins, ranks and drops them, and reports on them.

    Args:
        num_pages: see `CacheManager`, as for all others.
        kv_cache_groups: the cache groups.
        max_model_len: the most tokens that a request can have.
        enable_caching: whether prefixes are cached and found.
        use_eagle: whether an Eagle draft model runs.
        options: see `ManagerOptions`.
    """

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
            **pool_options(options),
        )
        self.page_pool = self.coordinator.page_pool
        self.enable_caching = self.page_pool.enable_caching
        self.num_pages = self.page_pool.num_pages
        self.kv_cache_groups = self.coordinator.kv_cache_groups
        self.num_kv_cache_groups = len(self.kv_cache_groups)
        sizes = [rules.page_size for rules in self.coordinator.rules]
        self.page_size: int | None = sizes[0] if self.enable_caching else None
        self._live: dict[str, Live] = {}
        self._known: dict[str, EngineRequest] = {}
        """The requests that were looked up or admitted and whose keys were not dropped, by id."""
        self._given_back: dict[str, int] = {}
        """Tokens that had slots when a known request was freed, by request id: preempted, if it returns (MAN-12)."""
        self._keys = RequestKeys(self.page_pool, sizes)
        self._pinned: dict[int, PinnedPrefix] = {}
        self._next_pin_id = 0
        self._swapped = SwappedRequests(options["num_host_pages"])
        self._counted = CacheCounters()
        """The counters that the manager keeps; the pool keeps the others."""

    @property
    def usage(self) -> float:
        """The share of pages in use, from 0.0 to 1.0 (POOL-10)."""
        return self.page_pool.get_usage()

    @property
    def req_to_page_hashes(self) -> defaultdict[str, list[PageHash]]:
        """The keys of each known request's full pages, by request id; ``[]`` for any other id.

        A request is known from its first look-up or admission until `free_page_hashes`. With several page sizes the
        keys are those of the first group's; with caching off the mapping is empty. It is a copy.
        """
        pool, size = self.page_pool, self.page_size
        keys: defaultdict[str, list[PageHash]] = defaultdict(list)
        if size is not None:
            for request_id, request in self._known.items():
                keys[request_id] = list(
                    hash_request_tokens(pool.hash_function, size, request, none_hash=pool.none_hash)
                )
        return keys

    def create_empty_page_list(self) -> CachePages:
        """An empty page list for each cache group."""
        return CachePages([] for _ in self.kv_cache_groups)

    # -- Finding ----------------------------------------------------------------------------------

    def get_computed_pages(self, request: EngineRequest) -> tuple[CachePages, int]:
        """The longest cached prefix of a request that every group can serve (MAN-1). Changes nothing in the pool.

        At least the last token is left to compute, since its logits are needed. An Eagle group must also hold the
        page after the prefix, from which the draft model's hidden state is computed (MAN-9).

        Args:
            request: a request to be admitted.

        Returns:
            The cached pages, null pages where a group needs none, and the number of tokens of the prefix.
        """
        tokens = read_tokens(request)
        chains = self._chains(request, tokens)
        wants_logprobs = request.sampling_params is not None and request.sampling_params.prompt_logprobs is not None
        if not self.enable_caching or wants_logprobs:
            return self.create_empty_page_list(), 0
        self._remember(request, request_id_of(request))
        pages, found = self.coordinator.find_longest_cache_hit(chains, len(tokens) - 1)
        return CachePages(pages), found

    def _chains(self, request: EngineRequest, tokens: list[int]) -> Chains:
        """The chains of a request's full pages, by page size; empty with caching off (R1, HASH-3, MAN-6)."""
        extra_keys = request_extra_keys(request)
        request_id = request_id_of(request)
        live = self._live.get(request_id)
        swapped = self._swapped.by_id.get(request_id)
        if any(known is not None and known.request is not request for known in (live, swapped)):
            raise refusal(ValueError, "MAN-6", f"request_id={request.request_id!r} is live for another request")
        if not self.enable_caching:
            return {}
        return self._keys.chains(request_id, tokens, extra_keys, live is not None)

    def _remember(self, request: EngineRequest, request_id: str) -> None:
        """Makes a request known, in place of any other request of its id (MAN-6)."""
        if self._known.get(request_id) is not request:
            self._given_back.pop(request_id, None)
        self._known[request_id] = request

    def _find_prefix(self, request: EngineRequest, num_tokens: int | None) -> tuple[list[list[CachePage]], int]:
        """The longest cached prefix to pin or rank: it may have all tokens, and needs no Eagle page after it."""
        most = None if num_tokens is None else integer("num_tokens", num_tokens)
        tokens = read_tokens(request)
        chains = self._chains(request, tokens)
        longest = len(tokens) if most is None else min(most, len(tokens))
        return self.coordinator.find_longest_cache_hit(chains, longest, with_eagle=False)

    # -- Pins and priorities ----------------------------------------------------------------------

    def pin_prefix(self, request: EngineRequest, num_tokens: int | None = None) -> PinnedPrefix | None:
        """Pins the longest cached prefix of a request: its pages stay cached until `unpin_prefix` (PIN-1).

        Args:
            request: the request whose tokens and extra keys are read, live or not.
            num_tokens: the most tokens to pin; None: all tokens of the request.

        Returns:
            The pinned prefix; None if nothing is cached.

        Raises:
            ValueError: more pages would be pinned than the bounds allow.
        """
        pages, found = self._find_prefix(request, num_tokens)
        if found == 0:
            return None
        self.page_pool.pin(pages)
        pinned = self._pinned[self._next_pin_id] = PinnedPrefix(self._next_pin_id, found, CachePages(pages))
        self._next_pin_id += 1
        return pinned

    def unpin_prefix(self, pin_id: int) -> None:
        """Ends a pin and frees its pages, group by group, tail first (PIN-1).

        Args:
            pin_id: the pin's number, see `PinnedPrefix`.

        Raises:
            ValueError: there is no such pin.
        """
        number = integer("pin_id", pin_id, minimum=None)
        if number not in self._pinned:
            raise refusal(ValueError, "PIN-1", f"pin_id={number} is no pin")
        self.page_pool.unpin([pages[::-1] for pages in self._pinned[number].pages.pages])
        del self._pinned[number]

    def set_prefix_priority(
        self, request: EngineRequest, priority: int, num_tokens: int | None = None, expires_at: float | None = None
    ) -> int:
        """Sets the priority of the pages of a request's longest cached prefix (PIN-2).

        Group by group and tail first, so that among free pages the tail is evicted before the prefix it needs (MAN-5).

        Args:
            request: the request whose tokens and extra keys are read, live or not.
            priority: see `PagePool.set_priority`.
            num_tokens: the most tokens of the prefix; None: all tokens of the request.
            expires_at: see `PagePool.set_priority`.

        Returns:
            The number of tokens of the prefix; 0 if nothing is cached.
        """
        pages, found = self._find_prefix(request, num_tokens)
        self.page_pool.set_priority([page for group in pages for page in reversed(group)], priority, expires_at)
        return found

    def advance_time(self, now: float) -> None:
        """Sets the time and ends the priorities that expire by it; see `PagePool.advance_time` (PIN-2)."""
        self.page_pool.advance_time(now)

    # -- Dropping ---------------------------------------------------------------------------------

    def evict_pages(self, page_ids: Iterable[int]) -> None:
        """Drops the hashes of pages; see `PagePool.evict_pages` (POOL-11)."""
        self.page_pool.evict_pages(page_ids)

    def reset_prefix_cache(self) -> bool:
        """Drops all hashes if no page is in use (POOL-9). Returns whether it did."""
        return self.page_pool.reset_prefix_cache()

    # -- Events and counters ----------------------------------------------------------------------

    def take_events(self) -> list[CacheEvent]:
        """The events emitted since the last call, in order; none where ``enable_events`` is off (MAN-12)."""
        return self.page_pool.take_events()

    @property
    def counters(self) -> CacheCounters:
        """The counters since the manager was made (MAN-12)."""
        pool = self.page_pool.counters
        return replace(
            self._counted,
            evictions=pool.evictions,
            page_lifetimes=pool.page_lifetimes,
            reuse_gaps=pool.reuse_gaps,
        )

    def _count_admission(self, request_id: str, num_tokens: int, found: int) -> None:
        """Counts a request that was just admitted, and whether it had been preempted (MAN-12)."""
        counted = self._counted
        if self.enable_caching:
            counted = replace(
                counted,
                requests=counted.requests + 1,
                queried_tokens=counted.queried_tokens + num_tokens,
                hit_tokens=counted.hit_tokens + found,
            )
        if request_id in self._given_back:
            counted = replace(
                counted,
                preemptions=counted.preemptions + 1,
                preempted_tokens=counted.preempted_tokens + self._given_back.pop(request_id),
            )
        self._counted = counted
