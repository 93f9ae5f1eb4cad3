"""MAN: the cache manager: the pages of each request, from its first look-up to its end.

The manager's calls are documented here and carried out by its parts, which read all arguments of a call before they
change anything (R1).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

from kvproof.spec.declarations import (
    CacheCounters,
    CacheEvent,
    CacheGroupSpec,
    EngineRequest,
    HashFunction,
    ManagerOptions,
    PageCopy,
    PartCopy,
    SwapPlan,
    takes_options,
)
from kvproof.spec.declarations.showing import ShownManager
from kvproof.spec.declarations.snapshots import arguments_of, parts_of, require_same, snapshot_with

from ..groups.cache_pages import CachePages
from ..groups.coordinator_kinds import get_kv_cache_coordinator
from ..pool.hashing import PageHash, init_none_hash, sha256
from ..reading.arguments import flag, integer, listed, refusal
from ..reading.request_reading import read_id, read_request_id
from ..step.slot_batch import SlotBatch
from ..table.multi_group_table import MultiGroupPageTable
from ..table.page_table import Ids
from .prefixes import PinnedPrefix, Prefixes
from .steps import Steps
from .swaps import Swaps

__all__ = ["CacheManager", "CachePages", "PinnedPrefix"]


class CacheManager(ShownManager):
    """Allocates cache slots to requests: finds cached prefixes, allocates, publishes full pages, frees.

    Not thread-safe: calls come from one thread at a time.

    Args:
        num_pages: pages of the pool, the null page included.
        kv_cache_groups: the cache groups, of any kinds and page sizes (MAN-7); none turns caching off.
        max_model_len: the most tokens that a request can have.
        enable_caching: whether prefixes are cached and found.
        use_eagle: whether an Eagle draft model is served (MAN-9): by the groups that are flagged as its own, or
            by every attention group where none is.
        options: see `ManagerOptions`.

    Attributes:
        page_pool: the pool.
        coordinator: the state of all cache groups and of the requests in them.
        prefixes: looking up, pinning and counting cached prefixes.
        swaps: swapping requests to host memory and back.
        steps: allocating, publishing and freeing the pages of requests.
        page_size: tokens in a page of the first group; None with caching off.
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
            **options,
        )
        self.page_pool = self.coordinator.page_pool
        self.prefixes = Prefixes(self.coordinator)
        self.swaps = Swaps(self.coordinator, self.prefixes)
        self.steps = Steps(self.coordinator, self.prefixes, self.swaps)
        self.num_pages = self.page_pool.num_pages
        self.enable_caching = self.coordinator.enable_caching
        self.kv_cache_groups = self.coordinator.kv_cache_groups
        self.num_kv_cache_groups = len(self.kv_cache_groups)
        self.page_size = self.coordinator.groups[0].rule.page_size if self.enable_caching else None

    # -- Prefixes ---------------------------------------------------------------------------------

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
        return self.prefixes.find(request)

    def get_junction(self, request: EngineRequest) -> int:
        """The length up to which the groups that keep everything have a request cached, where all together hit less.

        A request that computes past it keeps its windows and states there, so that later ones with this prefix hit
        (RET-2). States exist only where a step ends: an engine with state groups ends a step there. Changes nothing.

        Args:
            request: a request that is to be admitted, or a live one, whose junction is that of its admission.

        Returns:
            The number of tokens, a multiple of every page size; 0 if there is no junction. O(tokens compared).
        """
        return self.prefixes.junction(request)

    @property
    def match_unit(self) -> int | None:
        """Tokens of which the lengths of a request's hits are multiples; None: whole pages (MAN-17)."""
        return self.coordinator.match_unit

    @property
    def retention_interval(self) -> int | None:
        """The tokens between the lengths at which hits can end anyway; 0: there are none; None: all lengths (RET-1)."""
        return self.coordinator.retention.interval

    def create_empty_page_list(self) -> CachePages:
        """An empty list for each group of the manager."""
        return self.coordinator.nothing

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
        return self.prefixes.pin(request, num_tokens)

    def unpin_prefix(self, pin_id: int) -> None:
        """Ends a pin; pages without other references become free, group by group, last page first (PIN-1).

        Raises:
            ValueError: there is no such pin.
        """
        self.prefixes.unpin(pin_id)

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
        return self.prefixes.set_priority(request, priority, num_tokens, expires_at)

    def advance_time(self, now: float) -> None:
        """Sets the time: priorities that expire by then end (PIN-2).

        Raises:
            ValueError: the time is earlier than the last one.
        """
        self.page_pool.advance_time(now)

    def evict_pages(self, page_ids: Iterable[int]) -> None:
        """Drops the hashes of pages; see `PagePool.evict_pages` (POOL-11)."""
        self.page_pool.evict_pages(page_ids)

    def reset_prefix_cache(self) -> bool:
        """Forgets every cached prefix, if no page is in use and nothing swapped out (POOL-9). Returns True if so."""
        return self.coordinator.swapped.is_idle and self.page_pool.reset_prefix_cache()

    # -- Allocating -------------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: EngineRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_pages: CachePages | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_pages: bool = False,
    ) -> CachePages | None:
        """Allocates slots for new tokens of a request (MAN-2) and publishes the pages that they fill (MAN-3).

        ::

            | computed | new computed | new | look-ahead |
            |<---------------- slots ------------------->|
            |<-------- published ------->|                 full pages, as far as the tokens are known

        Args:
            request: the request; its ``num_computed_tokens`` are in the cache already.
            num_new_tokens: tokens to be computed, at least 1, tokens that come from elsewhere included.
            num_new_computed_tokens: tokens just found in the cache; only at admission.
            new_computed_pages: the pages that hold them, as `get_computed_pages` returned them.
            num_lookahead_tokens: speculative tokens to allocate for; never published.
            delay_cache_pages: True to leave publishing to `cache_pages` or a later call, for pages whose content
                arrives in a later step.

        Returns:
            The new pages, for state groups with the null pages before them (MAN-13); None if too few pages are free, in
            which case only pages that a group no longer needs have been freed (MAN-8).

        Raises:
            ValueError: a count is impossible, the id is live for another request (MAN-6), computed tokens never had
                slots or went down (MAN-8) or are not those of the stored state (MAN-13), a computed page is not the
                request's prefix (MAN-2).
        """
        return self.steps.allocate(
            request,
            num_new_tokens,
            num_new_computed_tokens,
            new_computed_pages,
            num_lookahead_tokens,
            delay_cache_pages,
        )

    def allocate_slots_batch(
        self,
        slots: Ids,
        num_computed_tokens: Ids,
        num_new_tokens: Ids | int,
        num_lookahead_tokens: Ids | int = 0,
        *,
        delay_cache_pages: bool = False,
        tables: MultiGroupPageTable | None = None,
        rows: Ids | None = None,
    ) -> SlotBatch:
        """Allocates slots for new tokens of many live requests: the single calls in order, on arrays (MAN-11).

        Requests that don't fit are reported; the others get the pages of single calls in this order. Only the tokens of
        pages that are filled are read from the request objects.

        Args:
            slots: the requests' slots, each once, see `slot_of`, `[n]`.
            num_computed_tokens: their computed tokens, `[n]`, used in place of the requests' attributes.
            num_new_tokens: tokens to be computed, at least 1: `[n]`, or one number for all.
            num_lookahead_tokens: speculative tokens to allocate for: `[n]`, or one number for all.
            delay_cache_pages: see `allocate_slots`.
            tables: page tables to which the new pages are appended, in the same pass; None: none.
            rows: the requests' rows in the tables, each once, `[n]`. A row has the pages of its request's lists.

        Returns:
            The requests that were granted slots, and the new pages. O(n) in array operations, and O(pages freed, taken
            or published).

        Raises:
            TypeError: a number or a table is of another type.
            IndexError: a slot without a live request (MAN-11), a row that does not exist (TAB-2).
            ValueError: `allocate_slots` would refuse one of the requests; a slot or row named twice, lengths
                that differ, tables without rows, a row that is not its request's (MAN-11) or too short (TAB-2).
        """
        return self.steps.allocate_batch(
            slots, num_computed_tokens, num_new_tokens, num_lookahead_tokens, delay_cache_pages, tables, rows
        )

    def slot_of(self, request_id: str) -> int:
        """A live request's slot: the lowest number that was free when it was admitted (MAN-11). O(1)."""
        return self.steps.slot_of(request_id)

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages up to ``num_computed_tokens`` tokens (MAN-3). O(pages published).

        Args:
            request: a live request.
            num_computed_tokens: tokens whose K/V have been written; at most the computed + new tokens of
                `allocate_slots`.

        Raises:
            ValueError: the request is not live, or the count exceeds its computed + new tokens.
        """
        self.steps.cache_pages(request, num_computed_tokens)

    def take_page_copies(self) -> list[PageCopy | PartCopy]:
        """The copies recorded since the last call, to be run in order before the step (MAN-13, MAN-17).

        `PageCopy` for whole states, `PartCopy` for the first tokens of a page; what is copied from is held until then.
        """
        return self.coordinator.take_page_copies()

    # -- Host memory ------------------------------------------------------------------------------

    def swap_out(self, request: EngineRequest) -> SwapPlan | None:
        """Plans the copies of a live request's computed tokens to host memory; the request is no longer live.

        Args:
            request: a live request; its ``num_computed_tokens`` are at least 1 and at most its tokens. All pages that
                it published have been written.

        Returns:
            The copies of all pages that a step after these tokens could read; null pages, pages before a window and
            pages past the computed tokens are not copied. The device pages stay referenced until `swap_done` and are
            then freed, last page first (MAN-5). None, with nothing changed, if too few host pages are free. O(tokens).

        Raises:
            ValueError: the request is not live, or its computed tokens are none, unknown, or impossible (MAN-8,
                MAN-13).
        """
        return self.swaps.swap_out(request)

    def swap_in(self, request: EngineRequest) -> SwapPlan | None:
        """Plans the copies of a request back to the device: pages that are still cached are hit, the rest is copied.

        Args:
            request: a request that is swapped out, its copies ended; its ``num_computed_tokens`` are not read.

        Returns:
            The copies, after which `swap_done` makes the request live with the computed tokens that it had. None, with
            nothing changed, if too few pages are free. A cached page is hit even if a page before it is not cached.
            O(tokens).

        Raises:
            ValueError: the request is not swapped out, or is being copied; its tokens or extra keys changed (MAN-6).
        """
        return self.swaps.swap_in(request)

    def receive_pages(self, request: EngineRequest, num_tokens: int) -> SwapPlan | None:
        """Plans the copies of pages of another process into the cache, where any request can hit them (SWAP-2).

        The pages are those that a hit of ``num_tokens`` tokens needs, group by group; a copy's ``host_page`` is its
        page's index among them. Pages that are cached already are not copied. `swap_done` publishes the pages and frees
        them, last page first; until then the request's id is in use, and `free` cancels the plan.

        Args:
            request: a request with the tokens and extra keys of the pages; not live.
            num_tokens: the number of tokens, at least 1 and a multiple of every page size.

        Returns:
            The copies; None, with nothing changed, if too few pages are free. O(tokens).

        Raises:
            ValueError: the request is live or swapped out, it has fewer tokens, or pages of these groups are never
                cached.
        """
        return self.swaps.receive_pages(request, num_tokens)

    def swap_done(self, swap_id: int) -> None:
        """Declares a plan's copies ended, or that nothing dispatched from now on can overtake them.

        After copies to the host the device pages are freed (MAN-5). After copies to the device the host pages are
        freed, and the request is live in the lowest free slot with its full pages published (MAN-3). The pages of a
        request that was freed meanwhile are freed on both sides.

        Args:
            swap_id: the plan's id. O(pages), for copies to the device O(tokens).

        Raises:
            ValueError: the plan does not exist, or its copies have ended already.
        """
        self.swaps.swap_done(swap_id)

    @property
    def num_host_pages(self) -> int:
        """The number of pages that host memory has room for."""
        return self.coordinator.swapped.host.num_pages

    @property
    def num_free_host_pages(self) -> int:
        """The number of host pages that are neither in use nor being copied (SWAP-1). O(1)."""
        return self.coordinator.swapped.host.num_free

    def get_host_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The host pages of a request that is swapped out or being copied, a list for each group; else empty lists."""
        swapped = self.coordinator.swapped.by_id.get(read_id(request_id))
        if swapped is None or swapped.is_received:
            return tuple([] for _ in self.kv_cache_groups)
        return tuple(pages.tolist() for pages in swapped.host_pages)

    # -- Giving back ------------------------------------------------------------------------------

    def free(self, request: EngineRequest, num_written: int | None = None) -> list[str]:
        """Frees a request's pages, group by group, the last page first, so that prefixes are evicted last.

        Args:
            request: the request. One that is swapped out loses its host pages (SWAP-1); one that is neither live nor
                swapped out is ignored (MAN-5).
            num_written: the number of tokens whose K/V have been or will be written, if the request is freed before its
                last step was dispatched; None if all are. Pages published beyond it are withdrawn (MAN-4).

        Returns:
            The ids of the other live requests that have a withdrawn page, in the order of their admission, then of
            those being copied to or from host memory with one. What they computed from it is invalid: free and
            reschedule them. Empty if ``num_written`` is None. O(pages); also O(live requests) in array operations, if a
            request has a withdrawn page that hit others behind it, or that was swapped in or restored.
        """
        return self.steps.free(request, num_written)

    def free_page_hashes(self, request: EngineRequest) -> None:
        """Drops the records kept of a request. Call it when the request is finished, not when it is preempted."""
        self.prefixes.forget(read_request_id(request))

    # -- Looking ----------------------------------------------------------------------------------

    @property
    def usage(self) -> float:
        """The share of pages in use, from 0.0 to 1.0 (POOL-10)."""
        return self.page_pool.get_usage()

    @property
    def counters(self) -> CacheCounters:
        """The counters since the manager was made (MAN-12)."""
        return self.prefixes.counters

    @property
    def req_to_page_hashes(self) -> defaultdict[str, Sequence[PageHash]]:
        """The keys of the full pages of each request looked up or admitted, until `free_page_hashes`; else ``[]``.

        They are for the first group's page size; none with caching off. The manager does not use them: they are
        computed when this is read, and changes to the result have no effect.
        """
        return self.prefixes.known_keys

    def take_events(self) -> list[CacheEvent]:
        """The events since the last call, in order (MAN-12); empty if events are disabled."""
        return self.page_pool.take_events()

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of a request's pages, a list for each group; empty lists if it is not live."""
        return self.coordinator.get_pages(read_id(request_id))

    def get_num_common_prefix_pages(self, request: EngineRequest, num_scheduled_requests: int) -> list[int]:
        """The number of leading pages that all running requests share, for each group (MAN-10).

        Args:
            request: a live request whose status is ``RUNNING``.
            num_scheduled_requests: the number of running requests. If the number of live requests with that status is
                another, the engine's count and the manager's differ and the answer is 0.
        """
        return self.steps.get_num_common_prefix_pages(request, num_scheduled_requests)

    # -- Snapshots --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON has it (MAN-14); `restore` of either package goes on from it.

        It has token ids and no salts (SEC-2). The requests' objects are the engine's to keep.

        Returns:
            What stands in the format of `declarations.snapshots`. O(pages and cached tokens).

        Raises:
            ValueError: a page is held or cached by calls on the pool, of which no snapshot tells; a request is in
                host memory, or on its way (SWAP-1).
        """
        coordinator = self.coordinator.state(self.prefixes.pinned_counts)
        return snapshot_with({**self.page_pool.state(), **coordinator, **self.prefixes.state()})

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
        init_none_hash(b"", hash_function)  # refuses what is no hash function
        parts = parts_of(snapshot)
        objects: dict[str, EngineRequest] = {}
        for request in listed("requests", requests):
            if objects.setdefault(read_request_id(request), request) is not request:
                raise refusal(ValueError, "MAN-14", f"requests has two objects of the id {request.request_id!r}")
        arguments = arguments_of(parts)
        try:
            manager = cls(**arguments, hash_seed=b"", hash_function=hash_function)
        except (TypeError, ValueError) as error:
            raise refusal(
                ValueError, "MAN-14", f"snapshot: what the manager was made with is refused: {error}"
            ) from None
        if manager.enable_caching != arguments["enable_caching"]:
            raise parts["enable_caching"].damaged("is true without a group")
        pool, coordinator, prefixes = manager.page_pool, manager.coordinator, manager.prefixes
        pool.restore_cached(parts, coordinator.cached_sizes)
        coordinator.restore(parts, objects)
        prefixes.restore(parts, objects)
        pool.restore_held(parts, coordinator.held_counts, prefixes.pinned_counts)
        pool.restore_log(parts, coordinator.cached_sizes)
        try:
            manager.check()  # a number that contradicts another is found here, and no contradiction is mended
        except AssertionError as error:
            problem = str(error).splitlines()[0]
            raise refusal(ValueError, "MAN-14", f"snapshot: the whole does not hold together: {problem}") from None
        require_same(parts, manager.snapshot())  # finds what is written in another order, twice, or for nothing
        return manager

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages and cached tokens).

        Raises:
            AssertionError: a check fails; the message shows the whole state.
        """
        self.coordinator.check()
        self.prefixes.check()
