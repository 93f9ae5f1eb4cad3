"""MAN-2 to MAN-5: slots for the steps of requests: allocated, published, and freed at the end.

Every call reads and validates its arguments here (R1); the coordinator then changes the groups' pages.
"""

from collections.abc import Sequence

from kvproof.spec.declarations import EngineRequest
from kvproof.spec.declarations.reading import Ids

from ..groups.cache_pages import CachePages
from ..groups.coordinator import CacheCoordinator
from ..groups.longest_hit import Hits
from ..pool.pages import read_pages
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
from .prefixes import Prefixes
from .swaps import Swaps

__all__ = ["Steps"]


class Steps:
    """Allocates a manager's slots to requests, step by step, publishes the pages that they fill, and frees them.

    Args:
        coordinator: the manager's groups and requests.
        prefixes: the manager's prefixes, which count admissions.
        swaps: the manager's swaps, which forget a swapped-out request that is freed.
    """

    def __init__(self, coordinator: CacheCoordinator, prefixes: Prefixes, swaps: Swaps) -> None:
        self.coordinator = coordinator
        self._prefixes = prefixes
        self._swaps = swaps
        self._live = coordinator.live

    # -- Allocating -------------------------------------------------------------------------------

    def allocate(
        self,
        request: EngineRequest,
        new: int,
        found: int,
        found_pages: CachePages | None,
        lookahead: int,
        delay: object,
    ) -> CachePages | None:
        """Allocates slots for one request, then publishes; see `CacheManager.allocate_slots`."""
        if type(new) is not int or new < 1:
            new = integer("num_new_tokens", new, minimum=1)
        if type(found) is not int or found < 0 or found >= 2**63:
            found = integer("num_new_computed_tokens", found)
        if type(lookahead) is not int or lookahead < 0 or lookahead >= 2**63:
            lookahead = integer("num_lookahead_tokens", lookahead)
        if type(delay) is not bool:
            delay = flag("delay_cache_pages", delay)
        try:
            request_id = request.request_id
            computed = request.num_computed_tokens
        except AttributeError:
            request_id, computed = read_request_id(request), attribute(request, "num_computed_tokens")
        if type(request_id) is not str:
            request_id = read_id(request_id, "request.request_id")
        if type(computed) is not int or computed < 0:
            computed = integer("request.num_computed_tokens", computed)
        live = self._live
        coordinator = self.coordinator
        if request_id not in live.slot_of:
            return self._admit(request, computed, new, found_pages, found, lookahead, delay)
        slot = live.slot_of[request_id]
        if live.requests[slot] is not request:
            raise another(request)
        if found_pages is not None or found:
            self._refuse_hits(found_pages, found, request)
        promised = computed + new
        slots = promised + lookahead
        if (
            computed > live.num_slots[slot]
            or computed < live.num_computed[slot]
            or promised > coordinator.max_model_len
            or coordinator.has_states
        ):
            coordinator.require_step(slot, computed, promised)
        if slots < live.num_needs_at[slot] and promised < live.num_due_at[slot]:
            live.num_computed[slot] = computed
            if promised > live.num_promised[slot]:
                live.num_promised[slot] = promised
            if slots > live.num_slots[slot]:
                live.num_slots[slot] = slots
            return coordinator.nothing
        return self._advance(request, slot, computed, promised, min(slots, coordinator.max_model_len), delay)

    def _advance(
        self, request: EngineRequest, slot: int, computed: int, promised: int, slots: int, delay: bool
    ) -> CachePages | None:
        """`allocate` for a live request whose arguments have been read."""
        coordinator = self.coordinator
        publishings = () if delay else coordinator.publisher.read(request, slot, computed, promised, promised)
        new = coordinator.advance(slot, computed, promised, slots)
        if new is not None:
            for publishing in publishings:
                coordinator.publisher.publish(slot, publishing)
            coordinator.set_bounds(slot)
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
        """`allocate` for a request that is not live and whose counts have been read."""
        coordinator = self.coordinator
        request_id, tokens, extra_keys, _ = read_prompt(request)
        segments = coordinator.plain if extra_keys is None else coordinator.segments_of(extra_keys)
        if coordinator.swapped.by_id:
            coordinator.swapped.require_none(request)
        hits = self._hit_ids(given, found)
        if not hasattr(request, "status"):
            attribute(request, "status")  # refuses
        num_tokens = len(tokens) // 4
        parts: Sequence[int] = ()
        if found:
            if not coordinator.enable_caching:
                raise refusal(ValueError, "MAN-2", f"num_new_computed_tokens={found} with caching off")
            if found > num_tokens:
                raise refusal(
                    ValueError, "MAN-2", f"new_computed_pages hold {found} tokens, the request has {num_tokens}"
                )
            parts = coordinator.check_hits(tokens, segments, hits, found)
        if computed:
            raise never_slotted(computed, 0)
        promised = found + new
        if promised > coordinator.max_model_len:
            raise too_long(new, promised, coordinator.max_model_len)
        slots = min(promised + lookahead, coordinator.max_model_len)
        pages = coordinator.admit(request, request_id, tokens, segments, hits, found, parts, promised, slots, delay)
        if pages is None:
            return None
        self._prefixes.admitted(request, request_id, num_tokens, found, hits, parts)
        return coordinator.cache_pages_of(pages)

    def allocate_batch(
        self,
        slots: Ids,
        computed: Ids,
        new: Ids | int,
        lookahead: Ids | int,
        delay: bool,
        tables: MultiGroupPageTable | None,
        rows: Ids | None,
    ) -> SlotBatch:
        """Allocates slots for many live requests, then publishes; see `CacheManager.allocate_slots_batch`."""
        delay = flag("delay_cache_pages", delay)
        return allocate_batch(self.coordinator, slots, computed, new, lookahead, delay, tables, rows)

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages that are written; see `CacheManager.cache_pages`."""
        count = integer("num_computed_tokens", num_computed_tokens)
        slot = self._live.require(request)
        promised = self._live.num_promised[slot]
        if count > promised:
            raise refusal(
                ValueError, "MAN-3", f"num_computed_tokens={count}: the request was given slots for {promised}"
            )
        self.coordinator.cache_pages(request, slot, count)

    # -- Freeing ----------------------------------------------------------------------------------

    def free(self, request: EngineRequest, num_written: int | None) -> list[str]:
        """Frees a request's pages, withdraws the unwritten ones and names their other holders; see `CacheManager`."""
        written = None if num_written is None else integer("num_written", num_written)
        live, request_id = self._live, read_request_id(request)
        if request_id not in live.slot_of or live.requests[live.slot_of[request_id]] is not request:
            self._swaps.abandon(request, request_id)
            return []
        slot = live.slot_of[request_id]
        self._prefixes.freed(request_id, live.num_promised[slot])
        return self.coordinator.free(request, slot, request_id, written)

    # -- Looking ----------------------------------------------------------------------------------

    def slot_of(self, request_id: str) -> int:
        """The slot of a live request; see `CacheManager.slot_of`."""
        slot = self._live.slot_of.get(read_id(request_id), -1)
        if slot < 0:
            raise refusal(ValueError, "R1", f"request_id={request_id!r} is not live")
        return slot

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of a request's pages in each group; see `CacheManager.get_page_ids`."""
        return self.coordinator.get_pages(read_id(request_id))

    def get_num_common_prefix_pages(self, request: EngineRequest, num_running: int) -> list[int]:
        """The number of leading pages that all running requests share; see `CacheManager`."""
        count = integer("num_scheduled_requests", num_running)
        slot = self._live.require(request)
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
        amid = coordinator.match_unit is not None and len(groups) > 0 and found % coordinator.hit_step == 0
        if amid and given is None:
            is_right = found < min(group.page_size for group in groups)
        if given is not None:
            if not isinstance(given, CachePages):
                raise refusal(TypeError, "R1", f"new_computed_pages={given!r} must be CachePages")
            if len(given.pages) != len(groups):
                raise refusal(
                    ValueError, "MAN-2", f"new_computed_pages has {len(given.pages)} groups, the manager {len(groups)}"
                )
            hits, is_right = [], found == 0 or len(groups) > 0
            for group, pages in zip(groups, given.pages, strict=True):
                ids = read_pages("new_computed_pages", pages, coordinator.page_pool)
                hits.append(ids)
                if len(ids) * group.page_size != found and not (amid and len(ids) == found // group.page_size):
                    is_right = False
        if not is_right:
            held = [len(pages) * group.page_size for group, pages in zip(groups, hits, strict=True)]
            raise refusal(
                ValueError, "MAN-2", f"num_new_computed_tokens={found}, but new_computed_pages hold {held or [0]}"
            )
        return hits

    def _refuse_hits(self, given: CachePages | None, found: int, request: EngineRequest) -> None:
        """Refuses pages found in the cache for a request that is live already (MAN-2)."""
        if any(len(pages) for pages in self._hit_ids(given, found)):
            raise refusal(
                ValueError, "MAN-2", f"new_computed_pages for {request.request_id!r}, which holds pages already"
            )
