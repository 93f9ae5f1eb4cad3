"""MAN: the pages of each request, from its first look-up to its end.

Every call reads and validates its arguments here (R1); the coordinator then changes the groups' pages. Calls about
prefixes rather than requests are in `prefixes`, those about host memory in `swaps`.
"""

from kvproof.spec.declarations import EngineRequest, PageCopy

from ..groups.cache_pages import CachePages
from ..groups.longest_hit import Hits
from ..reading.arguments import attribute, flag, integer, refusal
from ..reading.request_reading import (
    another,
    is_running,
    never_slotted,
    read_id,
    read_prompt,
    read_request_id,
    too_long,
)
from ..step.batched_step import allocate_batch
from ..step.slot_batch import SlotBatch
from ..table.multi_group_table import MultiGroupPageTable
from ..table.table_rows import Ids
from .prefixes import PinnedPrefix
from .swaps import SwapManager

__all__ = ["CacheManager", "CachePages", "PinnedPrefix"]


class CacheManager(SwapManager):
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
        page_size: tokens in a page of the first group; None with caching off.
        coordinator: the state of all cache groups.
    """

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
        if type(num_new_tokens) is not int or num_new_tokens < 1:
            num_new_tokens = integer("num_new_tokens", num_new_tokens, minimum=1)
        if type(num_new_computed_tokens) is not int or not 0 <= num_new_computed_tokens < 2**63:
            num_new_computed_tokens = integer("num_new_computed_tokens", num_new_computed_tokens)
        if type(num_lookahead_tokens) is not int or not 0 <= num_lookahead_tokens < 2**63:
            num_lookahead_tokens = integer("num_lookahead_tokens", num_lookahead_tokens)
        delay: object = delay_cache_pages
        if type(delay) is not bool:
            delay = flag("delay_cache_pages", delay)
        try:
            request_id, computed = request.request_id, request.num_computed_tokens
        except AttributeError:
            request_id, computed = read_request_id(request), attribute(request, "num_computed_tokens")
        if type(request_id) is not str:
            request_id = read_id(request_id, "request.request_id")
        live = self._live
        slot = live.slot_of.get(request_id, -1)
        if type(computed) is not int or computed < 0:
            computed = integer("request.num_computed_tokens", computed)
        if slot < 0:
            return self._admit(
                request,
                computed,
                num_new_tokens,
                new_computed_pages,
                num_new_computed_tokens,
                num_lookahead_tokens,
                bool(delay),
            )
        if live.requests[slot] is not request:
            raise another(request)
        if new_computed_pages is not None or num_new_computed_tokens:
            self._refuse_hits(new_computed_pages, num_new_computed_tokens, request)
        promised = computed + num_new_tokens
        slots = promised + num_lookahead_tokens
        if (
            computed > live.num_slots[slot]
            or computed < live.num_computed[slot]
            or promised > self.max_model_len
            or self.coordinator.has_states
        ):
            self.coordinator.require_step(slot, computed, promised)
        if slots < live.num_needs_at[slot] and promised < live.num_due_at[slot]:
            live.num_computed[slot] = computed
            if promised > live.num_promised[slot]:
                live.num_promised[slot] = promised
            if slots > live.num_slots[slot]:
                live.num_slots[slot] = slots
            return self.coordinator.nothing
        return self._advance(request, slot, computed, promised, min(slots, self.max_model_len), bool(delay))

    def _advance(
        self, request: EngineRequest, slot: int, computed: int, promised: int, slots: int, delay: bool
    ) -> CachePages | None:
        """`allocate_slots` for a live request whose arguments have been read."""
        coordinator = self.coordinator
        publishings = () if delay else coordinator.publisher.read(request, slot, computed, promised, promised)
        new = coordinator.advance(slot, computed, promised, slots)
        if new is not None:
            for publishing in publishings:
                coordinator.publisher.publish(slot, publishing)
            coordinator.note_next(slot)
            return coordinator.cache_pages_of(new) if new is not coordinator.nothing_new else coordinator.nothing
        return None

    def _admit(
        self,
        request: EngineRequest,
        computed: int,
        new: int,
        given: CachePages | None,
        found: int,
        lookahead: int,
        delay: bool,
    ) -> CachePages | None:
        """`allocate_slots` for a request that is not live and whose counts have been read."""
        coordinator = self.coordinator
        request_id, tokens, extra_keys, _ = read_prompt(request)
        segments = coordinator.plain if extra_keys is None else coordinator.segments_of(extra_keys)
        if coordinator.swapped.by_id:
            coordinator.swapped.require_none(request)
        hits = self._hit_ids(given, found)
        if not hasattr(request, "status"):
            attribute(request, "status")  # refuses
        num_tokens = len(tokens) // 4
        if found:
            if not self.enable_caching:
                raise refusal(ValueError, "MAN-2", f"num_new_computed_tokens={found} with caching off")
            if found > num_tokens:
                raise refusal(
                    ValueError, "MAN-2", f"new_computed_pages hold {found} tokens, the request has {num_tokens}"
                )
            coordinator.check_hits(tokens, segments, hits, found)
        if computed:
            raise never_slotted(computed, 0)
        promised = found + new
        if promised > self.max_model_len:
            raise too_long(new, promised, self.max_model_len)
        slots = min(promised + lookahead, self.max_model_len)
        pages = coordinator.admit(request, request_id, tokens, segments, hits, promised, slots, delay)
        if pages is None:
            return None
        if self._known.get(request_id) is not request:
            self._remember(request, request_id)
        if self.enable_caching:
            self._num_requests += 1
            self._queried_tokens += num_tokens
            self._hit_tokens += found
        if self._given_back:
            self._count_resumption(request_id)
        return coordinator.cache_pages_of(pages)

    def _count_resumption(self, request_id: str) -> None:
        promised = self._given_back.pop(request_id, 0)
        if promised:
            self._num_preemptions += 1
            self._preempted_tokens += promised

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
        delay = flag("delay_cache_pages", delay_cache_pages)
        return allocate_batch(
            self.coordinator, slots, num_computed_tokens, num_new_tokens, num_lookahead_tokens, delay, tables, rows
        )

    def slot_of(self, request_id: str) -> int:
        """A live request's slot: the lowest number that was free when it was admitted (MAN-11). O(1)."""
        slot = self._live.slot_of.get(read_id(request_id), -1)
        if slot < 0:
            raise refusal(ValueError, "R1", f"request_id={request_id!r} is not live")
        return slot

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages up to ``num_computed_tokens`` tokens (MAN-3). O(pages published).

        Args:
            request: a live request.
            num_computed_tokens: tokens whose K/V have been written; at most the computed + new tokens of
                `allocate_slots`.

        Raises:
            ValueError: the request is not live, or the count exceeds its computed + new tokens.
        """
        count = integer("num_computed_tokens", num_computed_tokens)
        slot = self._require_live(request)
        promised = self._live.num_promised[slot]
        if count > promised:
            raise refusal(
                ValueError, "MAN-3", f"num_computed_tokens={count}: the request was given slots for {promised}"
            )
        self.coordinator.cache_pages(request, slot, count)

    def take_page_copies(self) -> list[PageCopy]:
        """The state copies recorded since the last call, to be run in order before the step (MAN-13)."""
        noted, self.coordinator.copies = self.coordinator.copies, []
        return [copy for _, copy in noted]

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
            reschedule them. Empty if ``num_written`` is None. O(pages); if another request has a withdrawn page, also
            O(live requests) in array operations.
        """
        written = None if num_written is None else integer("num_written", num_written)
        live, request_id = self._live, read_request_id(request)
        slot = live.slot_of.get(request_id, -1)
        if slot < 0 or live.requests[slot] is not request:
            self._abandon(request, request_id)
            return []
        if request_id in self._known:
            self._given_back[request_id] = live.num_promised[slot]
        return self.coordinator.free(slot, request_id, written)

    def free_page_hashes(self, request: EngineRequest) -> None:
        """Drops the records kept of a request. Call it when the request is finished, not when it is preempted."""
        request_id = read_request_id(request)
        self._known.pop(request_id, None)
        self._given_back.pop(request_id, None)

    # -- Looking ----------------------------------------------------------------------------------

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
        count = integer("num_scheduled_requests", num_scheduled_requests)
        slot = self._require_live(request)
        if not is_running(request):
            raise refusal(
                ValueError, "MAN-10", f"request {request.request_id!r} has status {request.status}, not RUNNING"
            )
        return self.coordinator.get_num_common_prefix_pages(slot, count, is_running)

    # -- Reading arguments (R1) -------------------------------------------------------------------

    def _hit_ids(self, given: CachePages | None, found: int) -> Hits:
        """The ids of the pages just found; refused if their number is not that of ``found`` tokens (MAN-2)."""
        coordinator = self.coordinator
        groups = coordinator.groups
        hits, is_right = coordinator.no_hits, found == 0
        if given is not None:
            if not isinstance(given, CachePages):
                raise refusal(TypeError, "R1", f"new_computed_pages={given!r} must be CachePages")
            if len(given.pages) != len(groups):
                raise refusal(
                    ValueError, "MAN-2", f"new_computed_pages has {len(given.pages)} groups, the manager {len(groups)}"
                )
            hits, is_right = [], found == 0 or len(groups) > 0
            for group, pages in zip(groups, given.pages, strict=True):
                ids = self.page_pool.read_pages("new_computed_pages", pages)
                hits.append(ids)
                if len(ids) * group.page_size != found:
                    is_right = False
        if not is_right:
            held = [len(pages) * group.page_size for group, pages in zip(groups, hits, strict=True)]
            raise refusal(
                ValueError, "MAN-2", f"num_new_computed_tokens={found}, but new_computed_pages hold {held or [0]}"
            )
        return hits

    def _refuse_hits(self, given: CachePages | None, found: int, request: EngineRequest) -> None:
        if any(len(pages) for pages in self._hit_ids(given, found)):
            raise refusal(
                ValueError, "MAN-2", f"new_computed_pages for {request.request_id!r}, which holds pages already"
            )
