"""The calls of a cache manager, declared once: arguments, results, errors, and the part that carries out each.

A manager consists of parts over one pool. This class says what an engine calls and hands each call on; the parts read
all arguments before they change anything (R1), and are written in each package: ``manager/prefixes.py``,
``manager/steps.py`` and ``manager/swaps.py``. Complexities are those of `kvproof.fast`.
"""

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, Unpack

from .codec import Part
from .events import CacheCounters, CacheEvent, PageCopy, PartCopy
from .extra_keys import HashFunction, sha256
from .groups import CacheGroupSpec
from .keys import PageHash, digest_of
from .manager_parts import CoordinatorPart, PoolPart, PrefixPart, StepPart, SwapPart
from .options import ManagerOptions, takes_options
from .reading import Ids, flag, integer, refusal
from .requests import EngineRequest
from .showing import ShownManager
from .snapshots import made_of, objects_of, parts_of, require_same, snapshot_with
from .swaps import SwapPlan

__all__ = ["ManagerCalls"]

Pages = TypeVar("Pages")
Pinned = TypeVar("Pinned")
Tables = TypeVar("Tables")
Batch = TypeVar("Batch")


class ManagerCalls(ShownManager, Generic[Pages, Pinned, Tables, Batch]):
    """What an engine calls of a cache manager; each package's `CacheManager` has the parts that do it.

    Attributes:
        page_pool: the pool that all groups share.
        coordinator: the cache groups, and each request's pages in them.
        prefixes: looking up, pinning and counting cached prefixes.
        swaps: swapping requests to host memory and back.
        steps: allocating, publishing and freeing the pages of requests.
        page_size: tokens in a page of the first group; None with caching off.
    """

    page_pool: PoolPart
    coordinator: CoordinatorPart
    prefixes: PrefixPart[Pages, Pinned]
    swaps: SwapPart
    steps: StepPart[Pages, Tables, Batch]

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
        self._make_parts(num_pages, kv_cache_groups, flag("enable_caching", enable_caching), options)
        self.num_pages = self.page_pool.num_pages
        self.enable_caching = self.page_pool.enable_caching
        self.kv_cache_groups = self.coordinator.kv_cache_groups
        self.num_kv_cache_groups = len(self.kv_cache_groups)
        self.page_size = self.kv_cache_groups[0].kv_cache_spec.page_size if self.enable_caching else None

    def _make_parts(
        self, num_pages: int, groups: Sequence[CacheGroupSpec], enable_caching: bool, options: ManagerOptions
    ) -> None:
        """Sets the five parts; ``max_model_len`` and ``use_eagle`` are set."""
        raise NotImplementedError

    def _state(self) -> dict[str, Any]:
        """What a snapshot has beside its header, of all parts."""
        raise NotImplementedError

    @staticmethod
    def _read_id(request: EngineRequest) -> str:
        """Reads the id of a request (R1)."""
        raise NotImplementedError

    def _restore(self, parts: Mapping[str, Part], objects: Mapping[str, EngineRequest]) -> None:
        """Sets the state of all parts from a snapshot's."""
        raise NotImplementedError

    # -- Prefixes ---------------------------------------------------------------------------------

    def get_computed_pages(self, request: EngineRequest) -> tuple[Pages, int]:
        """The longest cached prefix of a request that every group can serve (MAN-1). Changes nothing in the pool.

        At least the last token is left to compute, since its logits are needed. An Eagle group must also hold the
        page after the prefix, from which the draft model's hidden state is computed (MAN-9).

        Args:
            request: a request to be admitted.

        Returns:
            The cached pages, null pages where a group needs none, and the number of tokens of the prefix. O(tokens
            compared), as one memory comparison for each run of pages that were cached together; with several groups
            also O(pages) in array operations.
        """
        return self.prefixes.find(request)

    def get_num_hit_tokens(self, request: EngineRequest) -> int:
        """How many tokens `get_computed_pages` would find now (MAN-1).

        It is for schedulers and routers that order waiting requests by what is cached of them. Changes nothing: the
        request is not remembered, so that none is counted that is not to be admitted.

        Args:
            request: any request.

        Returns:
            The number of tokens. O(tokens compared), as for `get_computed_pages`.
        """
        return self.prefixes.num_hit_tokens(request)

    def get_junction(self, request: EngineRequest) -> int:
        """The length up to which the groups that keep everything have a request cached, where all together hit less.

        Other requests began alike up to there, and no window or state was kept for a hit of that length; the request
        that computes past it keeps them (RET-2). A state exists only where a step ends: engines with state groups end
        a step there. Changes nothing.

        Args:
            request: a request to be admitted, or a live one, whose junction is that of its admission.

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
        """Tokens between the lengths at which hits can end anyway; 0: there are none; None: all lengths (RET-1)."""
        interval: int | None = self.coordinator.retention.interval
        return interval

    def create_empty_page_list(self) -> Pages:
        """An empty page list for each cache group."""
        return self.prefixes.no_pages

    def pin_prefix(self, request: EngineRequest, num_tokens: int | None = None) -> Pinned | None:
        """Pins the longest cached prefix of a request: its pages stay cached until `unpin_prefix` (PIN-1).

        Args:
            request: the request whose tokens and extra keys are read, live or not.
            num_tokens: the most tokens to pin; None: all tokens of the request.

        Returns:
            The pinned prefix; None if nothing is cached. Pins are counted: a prefix that is pinned twice has to be
            unpinned twice. O(pages).

        Raises:
            ValueError: more pages would be pinned than the bounds allow.
        """
        return self.prefixes.pin(request, num_tokens)

    def unpin_prefix(self, pin_id: int) -> None:
        """Ends a pin and frees its pages, group by group, tail first (PIN-1).

        Args:
            pin_id: the pin's number, see `PinnedPrefix`.

        Raises:
            ValueError: there is no such pin.
        """
        self.prefixes.unpin(pin_id)

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
        return self.prefixes.set_priority(request, priority, num_tokens, expires_at)

    def advance_time(self, now: float) -> None:
        """Sets the time and ends the priorities that expire by it; see `PagePool.advance_time` (PIN-2)."""
        self.page_pool.advance_time(now)

    def evict_pages(self, page_ids: Iterable[int]) -> None:
        """Drops the hashes of pages; see `PagePool.evict_pages` (POOL-11)."""
        self.page_pool.evict_pages(page_ids)

    def reset_prefix_cache(self) -> bool:
        """Drops all hashes if no page is in use and no request swapped out (POOL-9). Returns whether it did."""
        return self.prefixes.reset()

    # -- Allocating -------------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: EngineRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_pages: Pages | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_pages: bool = False,
    ) -> Pages | None:
        """Allocates slots for a request's new tokens (MAN-2) and publishes the pages that they fill (MAN-3).

        ::

            | computed | new computed | new | look-ahead |
            |<---------------- slots ------------------->|
            |<-------- published ------->|                 full pages, as far as the tokens are known

        First each group's pages that no later step reads are freed (MAN-8). A state group has no slots for look-ahead;
        where its state goes on in a new page, a copy is queued for `take_page_copies` (MAN-13).

        Args:
            request: the request; its ``num_computed_tokens`` are in the cache already.
            num_new_tokens: tokens that need slots, at least 1: to be computed, or received from elsewhere.
            num_new_computed_tokens: tokens just found in the cache; only at admission.
            new_computed_pages: the pages that hold them, as `get_computed_pages` returned them.
            num_lookahead_tokens: speculative tokens to allocate for; never published.
            delay_cache_pages: whether publishing is left to `cache_pages` or to a later call, for pages whose
                content arrives in a later step.

        Returns:
            The pages appended to the request's page list in each group: its new pages, in a state group with null
            pages before them. None if too few pages are free: then nothing changed but for the pages freed first.

        Raises:
            ValueError: a count is impossible; the id is live for another request (MAN-6); computed tokens have no
                slots, fell (MAN-8) or are not those of a state (MAN-13); a computed page does not hold the request's
                prefix (MAN-2).
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
        tables: Tables | None = None,
        rows: Ids | None = None,
    ) -> Batch:
        """`allocate_slots` for n live requests, in order; where one does not fit, the later ones go on (MAN-11).

        All arguments are read before anything changes: one faulty request refuses the whole call. Pages are published
        after all are allocated, so that the step's removal events come first, and a page's lifetime counts from there
        (MAN-12).

        Args:
            slots: the requests' slots, each once, `i64[n]`; see `slot_of`.
            num_computed_tokens: computed tokens of each request, `i64[n]`; the requests' own numbers are not read.
            num_new_tokens: tokens that need slots, at least 1, `i64[n]` or one number for all.
            num_lookahead_tokens: speculative tokens to allocate for, `i64[n]` or one number for all.
            delay_cache_pages: see `allocate_slots`.
            tables: page tables, one for each group, to whose rows the new pages are appended; None: to no table.
            rows: the requests' rows, each once, `i64[n]`. A row must have the length of its request's page lists, and
                room for the pages that the request asks for, even where they are not granted.

        Returns:
            Which requests got slots, and the new pages of each group. O(n) in array operations, and O(pages freed,
            taken or published).

        Raises:
            IndexError: no live request has a slot, or there is no such row (TAB-2).
            ValueError: a slot or row is named twice, lengths differ, tables and rows don't go together or with the
                requests, a row has no room (TAB-2), or what `allocate_slots` refuses.
        """
        return self.steps.allocate_batch(
            slots, num_computed_tokens, num_new_tokens, num_lookahead_tokens, delay_cache_pages, tables, rows
        )

    def slot_of(self, request_id: str) -> int:
        """A live request's slot: the lowest number that was free at its admission (MAN-11). O(1).

        Raises:
            ValueError: the request is not live.
        """
        return self.steps.slot_of(request_id)

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages up to ``num_computed_tokens`` tokens (MAN-3). O(pages published).

        Args:
            request: a live request.
            num_computed_tokens: leading tokens whose K/V are written; at most those that `allocate_slots` promised.

        Raises:
            ValueError: the request is not live, or the count exceeds its computed + new tokens.
        """
        self.steps.cache_pages(request, num_computed_tokens)

    def take_page_copies(self) -> list[PageCopy | PartCopy]:
        """The copies of pages queued since the last call, in order, to run before the step (MAN-13, MAN-17).

        A `PageCopy` is of a whole state, a `PartCopy` of the first tokens of a page. With ``match_unit`` it is called
        once a step: the pages that are copied from are held until then.
        """
        return self.coordinator.take_page_copies()

    # -- Host memory ------------------------------------------------------------------------------

    def swap_out(self, request: EngineRequest) -> SwapPlan | None:
        """Plans how the computed tokens of a live request are copied to the host; the request is no longer live.

        In each group the pages are copied that a step after these tokens could read (MAN-8): not null pages, not
        pages before a window, not pages for tokens that were not computed. All that the request published counts as
        written.

        Args:
            request: a live request; its ``num_computed_tokens`` are known tokens, at least 1.

        Returns:
            The plan; the request's pages stay allocated until `swap_done`, which frees them (MAN-5). None if too few
            host pages are free: then nothing has changed.

        Raises:
            ValueError: the request is not live; it has no computed token, or more than known tokens, or a number of
                them that `allocate_slots` would refuse (MAN-8, MAN-13); more were computed than it hit, and
                `take_page_copies` has not returned the copies of its hits (MAN-17).
        """
        return self.swaps.swap_out(request)

    def swap_in(self, request: EngineRequest) -> SwapPlan | None:
        """Plans how a swapped-out request comes back: its pages that are still cached are hit, the rest is copied.

        Each full page is looked up by itself: it can be hit where the page before it is not, since its key covers all
        tokens from the first on. The request's ``num_computed_tokens`` are not read.

        Args:
            request: a request that is swapped out, its copies to the host ended.

        Returns:
            The plan; at `swap_done` the request is live with the computed tokens it had, and `allocate_slots`
            continues it. None if too few pages are free: then nothing has changed.

        Raises:
            ValueError: the request is not swapped out, or its copies have not ended; its tokens or extra keys changed
                (MAN-6).
        """
        return self.swaps.swap_in(request)

    def receive_pages(self, request: EngineRequest, num_tokens: int) -> SwapPlan | None:
        """Plans how pages from elsewhere, such as another manager's cache, enter this cache (SWAP-2).

        The pages come as one block: group by group, those that a hit of ``num_tokens`` tokens needs. In the plan a
        copy's ``host_page`` is the place of its page in the block. Pages that are cached already are not copied.
        `swap_done` publishes the pages and frees them, tail first, so that from then on any request can hit them.
        Until then the request's id is in use, and `free` aborts the transfer.

        Args:
            request: the request whose tokens and extra keys the pages hold; it is not live.
            num_tokens: tokens that the pages hold, at least 1; a multiple of every group's page size.

        Returns:
            The plan; None if too few pages are free: then nothing has changed.

        Raises:
            ValueError: the request is live or swapped out; it has fewer tokens, or they are no multiple of a page
                size; or some group never caches pages.
        """
        return self.swaps.receive_pages(request, num_tokens)

    def swap_done(self, swap_id: int) -> None:
        """The fence: the copies of a plan have ended, or nothing dispatched from now on can overtake them.

        On the way out it frees the device's pages (MAN-5). On the way back it frees the host's pages, makes the
        request live in the lowest free slot, and publishes its full pages (MAN-3). If the request was freed
        meanwhile, the pages on both sides are freed.

        Args:
            swap_id: the plan's id.

        Raises:
            ValueError: there is no such plan, or its copies have ended already.
        """
        self.swaps.swap_done(swap_id)

    @property
    def num_host_pages(self) -> int:
        """How many pages host memory has room for."""
        return self.swaps.num_host_pages

    @property
    def num_free_host_pages(self) -> int:
        """How many host pages are free; pages that are being copied are not (SWAP-1)."""
        return self.swaps.num_free_host_pages

    def get_host_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The host pages of a request that is swapped out or being swapped, a list for each group; else empty lists."""
        return self.swaps.get_host_page_ids(request_id)

    # -- Freeing ----------------------------------------------------------------------------------

    def free(self, request: EngineRequest, num_written: int | None = None) -> list[str]:
        """Frees a request's pages, the last one first, so that the tail is evicted before the prefix it needs (MAN-5).

        The pages keep their hashes until they are allocated again, so that the same prompt hits them (HIT-1).

        Args:
            request: the request. A swapped-out one is forgotten (SWAP-1); any other that is not live is skipped.
            num_written: tokens whose K/V are written or will be, for a request freed before its last step was
                dispatched; None: all of them. Pages published beyond are withdrawn: they lose their hashes (MAN-4).

        Returns:
            The ids of the other requests that hold a withdrawn page: live ones in the order of their admission, then
            those being swapped, in the order of their plans. What they computed from the page is void: free them and
            schedule them again. Empty if ``num_written`` is None. O(pages); also O(live requests) in array operations
            if others may hold a withdrawn page.
        """
        return self.steps.free(request, num_written)

    def free_page_hashes(self, request: EngineRequest) -> None:
        """Drops the keys computed for a request; call it when the request is finished, not when it is preempted."""
        self.prefixes.forget(request)

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
        """The keys of each known request's full pages, by request id; ``[]`` for any other id.

        A request is known from its first look-up or admission until `free_page_hashes`. With several page sizes the
        keys are those of the first group's; with caching off the mapping is empty. It is a copy.
        """
        return self.prefixes.known_keys

    def take_events(self) -> list[CacheEvent]:
        """The events emitted since the last call, in order; none where ``enable_events`` is off (MAN-12)."""
        return self.page_pool.take_events()

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of the pages that a request holds, a list for each group; empty lists if it is not live."""
        return self.steps.get_page_ids(request_id)

    def get_num_common_prefix_pages(self, request: EngineRequest, num_scheduled_requests: int) -> list[int]:
        """How many leading pages all running requests share, for each group (MAN-10).

        Args:
            request: a live request whose status is ``RUNNING``.
            num_scheduled_requests: how many requests the engine runs. If the manager has another number of live
                requests with that status, the result is 0 for every group.
        """
        return self.steps.get_num_common_prefix_pages(request, num_scheduled_requests)

    # -- Snapshots --------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The whole state as a document for JSON; `declarations.snapshots` describes its format (MAN-14).

        It has token ids and no salts (SEC-2). The engine keeps the requests' objects. O(pages and cached tokens).

        Raises:
            ValueError: a page is held by direct calls on the pool, and by no request or pinned prefix; a request is
                swapped out or being swapped (SWAP-1).
        """
        return snapshot_with(self._state())

    @classmethod
    def restore(
        cls,
        snapshot: Mapping[str, Any],
        requests: Iterable[EngineRequest] = (),
        *,
        hash_function: HashFunction = sha256,
    ) -> Self:
        """A manager with the state of a snapshot, which behaves the same in every later call (MAN-14, SEC-3).

        Args:
            snapshot: the result of `snapshot`, by this package or another backend.
            requests: the engine's objects; at least those of the requests that were live, or known by their keys.
            hash_function: the hash function of the manager that was saved.

        Raises:
            TypeError: ``snapshot`` is no mapping, or ``requests`` are none.
            ValueError: the snapshot is damaged, or does not fit the requests.
            RuntimeError: Python runs with ``-O``, which leaves out the assertions that find a damage.
        """
        if not __debug__:
            raise refusal(RuntimeError, "MAN-14", "python -O leaves out the assertions that verify a snapshot")
        digest_of(hash_function, b"")  # refuses anything but a hash function
        parts = parts_of(snapshot)
        objects = objects_of(requests, cls._read_id)
        manager = made_of(parts, functools.partial(cls, hash_seed=b"", hash_function=hash_function))
        cls._restore(manager, parts, objects)
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
            AssertionError: one does not hold; the message has the whole state.
        """
        self.coordinator.check()
        self.prefixes.check()
