"""All cache groups of a manager together: finding, allocating, publishing and freeing pages.

A decode call that crosses no page boundary reads and writes a handful of scalars a group and touches neither tokens
nor pages; one that crosses a boundary takes a page; one that fills a page publishes it by appending its tokens to
the run of the request's last page.
"""

from collections.abc import Callable, Mapping, Sequence
from math import lcm
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import (
    CacheGroupSpec,
    EngineRequest,
    ManagerOptions,
    PageCopy,
    PartCopy,
    pool_options,
    takes_options,
)
from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.json_kinds import group_to_json
from kvproof.spec.declarations.snapshots import firsts_of, with_retention, with_unit
from kvproof.spec.declarations.uncopied import Uncopied

from ..pool.letting_go import learn
from ..pool.page_pool import PagePool
from ..pool.pages import page_list
from ..reading.arguments import attribute, refusal
from ..reading.extra_keys import PLAIN, ExtraSegment, extra_segments
from ..reading.request_reading import never_slotted, too_long
from ..reading.tokens import TokenBytes
from .cache_group import CacheGroup
from .cache_pages import CachePages
from .group_rules import NEVER, read_unit, rule_of
from .live_check import check_live
from .live_requests import LiveRequests, Wanted
from .longest_hit import Hits, check_hits, longest_hit, none_hit
from .page_copies import QueuedCopy, check_copies, part_copies, read_copies, release_sources, undo_parts
from .part_hits import longest_amid, require_parts
from .publishing import Publisher
from .request_states import point_states, read_requests, request_states, restore_points, restore_requests
from .retention import Retention
from .swapped_requests import SwappedRequests

__all__ = ["CacheCoordinator", "NewPages"]

_NO_PAGES: NDArray[np.int64] = np.empty(0, np.int64)

NewPages = Sequence[tuple[int, ...] | NDArray[np.int64]]
"""The ids added to a request's lists, for each group, null pages included."""


class CacheCoordinator(Uncopied):
    """Carries out the manager's calls for all cache groups. It trusts its caller, which has read the arguments.

    Args:
        num_pages: pages of the pool, the null page included.
        kv_cache_groups: the cache groups.
        max_model_len: the most tokens that a request can have.
        use_eagle: whether hits of Eagle groups must be followed by a page of the same request (MAN-9).
        enable_caching: whether prefixes are cached and found.
        options: see `ManagerOptions`.

    Attributes:
        page_pool: the pool.
        kv_cache_groups: the groups as declared.
        groups: the state of each group.
        has_states: True if any group stores states.
        gives_back: True if any group frees pages while a request is live (MAN-8).
        publishing: the groups whose pages can be cached.
        keeps_all: True if pages are cached and every group keeps all of a request's pages.
        retention: the rules by which pages are kept (RET-1).
        live: the live requests.
        publisher: the publisher of their pages.
        swapped: the requests in host memory (SWAP-1).
        plain: for each group the segments of a request without extra keys.
        match_unit: the argument ``match_unit`` (MAN-17).
        hit_step: the number of tokens of which the length of a request's hit is a multiple.
        queued_copies: the copies that `take_page_copies` has not returned yet, with the ids of their requests (MAN-13,
            MAN-17).
        no_hits: the hits of a request without cached pages.
        nothing: an empty list of pages for each group.
        nothing_new: an empty tuple of ids for each group.
    """

    @takes_options
    def __init__(
        self,
        num_pages: int,
        kv_cache_groups: Sequence[CacheGroupSpec],
        max_model_len: int,
        use_eagle: bool,
        enable_caching: bool,
        **options: Unpack[ManagerOptions],
    ) -> None:
        self.kv_cache_groups = tuple(kv_cache_groups)
        self.max_model_len = max_model_len
        self.use_eagle = use_eagle
        self.enable_caching = enable_caching
        self.page_pool = PagePool(num_pages, enable_caching, **pool_options(options))
        flagged = any(spec.is_eagle_group for spec in kv_cache_groups)
        rules = [rule_of(spec.kv_cache_spec) for spec in kv_cache_groups]
        self.match_unit = read_unit(rules, options["match_unit"])
        self.groups = tuple(
            CacheGroup(
                number,
                rule,
                self.page_pool.index.tree(number, rule.page_size),
                use_eagle and not rule.has_states and (spec.is_eagle_group or not flagged),
                0 if rule.has_states else self.match_unit or 0,
            )
            for number, (spec, rule) in enumerate(zip(kv_cache_groups, rules, strict=True))
        )
        self.hit_step = lcm(*(group.unit for group in self.groups))
        self.publishing = tuple(group for group in self.groups if enable_caching and group.rule.publishes)
        self._giving_back = tuple(group for group in self.groups if group.rule.gives_back)
        self.has_states = any(rule.has_states for rule in rules)
        self.gives_back = len(self._giving_back) > 0
        self.keeps_all = enable_caching and not self.gives_back and not self.has_states
        self.live = LiveRequests(self.groups)
        self.retention = Retention(self.page_pool, self.groups, self.live, options["retention_interval"])
        self.publisher = Publisher(self.page_pool, self.groups, self.live)
        self.most_slots = min(max_model_len + 1, NEVER)
        self.swapped = SwappedRequests(options["num_host_pages"])
        self.queued_copies: list[QueuedCopy] = []
        self.plain = tuple(PLAIN for _ in self.groups)
        self.no_hits = none_hit(self.groups)
        self.nothing_new: NewPages = tuple(() for _ in self.groups)
        self.nothing = self.cache_pages_of(self.nothing_new)

    def cache_pages_of(self, ids: NewPages) -> CachePages:
        """Lists of pages from ids, one a group."""
        return CachePages(page_list(self.page_pool, own) for own in ids)

    # -- Reading a request ------------------------------------------------------------------------

    def segments_of(self, extra_keys: object) -> Sequence[Sequence[ExtraSegment]]:
        """A request's extra keys over its pages, for each group."""
        if extra_keys is None or extra_keys == ():
            return self.plain
        sizes = {group.rule.page_size for group in self.groups} or {1}  # extra keys are read even without a group
        segments = {size: extra_segments(extra_keys, size) for size in sizes}
        return [segments[group.rule.page_size] for group in self.groups]

    def require_step(self, slot: int, computed: int, promised: int) -> None:
        """Refuses computed tokens that a live request can't have, and more tokens than any can have (MAN-2, MAN-8)."""
        live = self.live
        if computed > live.num_slots[slot]:
            raise never_slotted(computed, live.num_slots[slot])
        if computed < live.num_computed[slot]:
            if computed < 0:  # an array of a batched step, which is not read number by number
                raise refusal(ValueError, "R1", f"num_computed_tokens={computed} must be at least 0")
            raise refusal(
                ValueError, "MAN-8", f"request.num_computed_tokens={computed} fell from {live.num_computed[slot]}"
            )
        if self.has_states and computed != live.num_promised[slot]:
            raise refusal(
                ValueError,
                "MAN-13",
                f"request.num_computed_tokens={computed}: the state held is the one after {live.num_promised[slot]}",
            )
        if promised > self.max_model_len:
            raise too_long(promised - computed, promised, self.max_model_len)

    # -- Finding ----------------------------------------------------------------------------------

    def find_longest_cache_hit(
        self,
        tokens: TokenBytes,
        segments: Sequence[Sequence[ExtraSegment]],
        max_cache_hit_length: int,
        *,
        eagle: bool = True,
    ) -> tuple[Hits, int]:
        """The longest cached prefix that every group can serve (MAN-1).

        Args:
            tokens: the request's token bytes.
            segments: its extra keys over its pages, for each group.
            max_cache_hit_length: the most tokens that may be hit.
            eagle: True if Eagle groups need the page after the hit as well (MAN-9).

        Returns:
            For each group its pages, and the number of their tokens. O(tokens compared).
        """
        index, most = self.page_pool.index, max_cache_hit_length
        if self.match_unit is not None and eagle:  # pins and priorities are of whole pages
            return longest_amid(index, self.groups, tokens, segments, most)[:2]
        hits, length, _ = longest_hit(index, self.groups, tokens, segments, most, eagle)
        return hits, length

    def find_junction(self, tokens: TokenBytes, segments: Sequence[Sequence[ExtraSegment]]) -> int:
        """The junction of a request, 0 if there is none (RET-2). O(tokens compared).

        Args:
            tokens: the request's token bytes.
            segments: its extra keys over its pages, for each group.
        """
        if not self.retention.finds_junctions:
            return 0
        index, most = self.page_pool.index, len(tokens) // 4 - 1
        if self.match_unit is None:
            _, length, reach = longest_hit(index, self.groups, tokens, segments, most, eagle=True)
        else:
            _, length, reach = longest_amid(index, self.groups, tokens, segments, most)
        return reach if reach > length else 0

    def check_hits(
        self, tokens: TokenBytes, segments: Sequence[Sequence[ExtraSegment]], hits: Hits, length: int
    ) -> list[int]:
        """Refuses pages that are not a request's prefix of ``length`` tokens (MAN-2). O(tokens compared).

        Returns:
            For each group the page from which the last of them are copied, 0 for none; nothing without a unit (MAN-17).
        """
        parts: list[int] = []
        if self.match_unit is not None:
            parts = require_parts(self.groups, tokens, segments, length)
        check_hits(self.page_pool.index, self.groups, tokens, segments, hits, length, any(parts))
        return parts

    # -- Allocating -------------------------------------------------------------------------------

    def admit(
        self,
        request: EngineRequest,
        request_id: str,
        tokens: TokenBytes,
        segments: Sequence[Sequence[ExtraSegment]],
        hits: Hits,
        found: int,
        parts: Sequence[int],
        promised: int,
        slots: int,
        delay: bool,
    ) -> NewPages | None:
        """Allocates the first pages of a request behind its hits, and publishes the full ones unless ``delay`` (MAN-2).

        Args:
            request: the request.
            request_id: its id.
            tokens: its token bytes.
            segments: its extra keys over its pages, for each group.
            hits: its cached pages, checked.
            found: the number of tokens that it hits.
            parts: the pages that hold the last of them, see `check_hits`.
            promised: the number of its hit and new tokens.
            slots: these and its look-ahead.
            delay: True to publish nothing yet.

        Returns:
            The ids added to each list, or None, with nothing changed, if too few pages are free.
        """
        pool, publisher, live = self.page_pool, self.publisher, self.live
        held = list(map(len, hits))
        wanted, total = self.get_num_pages_to_allocate(promised, slots, held)
        free = pool.free_order.num_free
        sources = np.array([page for page in parts if page], np.int64)
        total += pool.counts.num_free(sources) if len(sources) else 0
        if total + sum(held) > free and total + sum(pool.counts.num_free(own[own != 0]) for own in hits) > free:
            return None
        bound = min(promised, len(tokens) // 4) if self.enable_caching and not delay else 0
        publishings = []
        for group, own, pages, first in zip(self.groups, segments, hits, held, strict=True):
            end = bound // group.page_size
            if end > first and group.rule.publishes:
                places = first, int(pages[-1]) if first else 0, end
                publishings.append(publisher.read_group(group, own, request, tokens, places, (found, promised)))
        junction = self.find_junction(tokens, segments)
        slot = live.admit(request, request_id, segments, hits, wanted)
        if self.retention.judges or junction:
            live.points[slot] = self.retention.prompt_end(len(tokens) // 4), junction
        self.save_new_computed_pages(hits)
        if len(sources):
            pool.hold(sources)
        num_queued = len(self.queued_copies)
        new = self.allocate_new_pages(slot, wanted, found)
        if len(sources):
            copies = [*self.queued_copies[num_queued:], *part_copies(request_id, self.groups, new, parts, found)]
            self.queued_copies[num_queued:] = sorted(copies, key=lambda queued: queued[1].group_id)
        live.firsts[slot] = bound
        live.num_computed[slot] = found
        live.num_promised[slot] = promised
        live.num_slots[slot] = slots
        live.num_withdrawals[slot] = pool.num_withdrawals
        for publishing in publishings:
            publisher.publish_first(slot, publishing)
        return new

    def advance(self, slot: int, computed: int, promised: int, slots: int) -> NewPages | None:
        """Allocates pages for the next tokens of a live request (MAN-2, MAN-8); the caller publishes.

        Returns:
            The ids added to each list, or None if too few pages are free; pages no longer needed are freed first.
        """
        live = self.live
        live.num_computed[slot] = computed  # in every outcome, since the pages before it are freed
        if self._giving_back:
            self.remove_skipped_pages(slot, computed)
            for group in self._giving_back:
                group.save_memory()
        new = self.nothing_new
        held = [group.num_pages[slot] for group in self.groups]
        wanted, total = self.get_num_pages_to_allocate(promised, slots, held)
        if wanted:
            if total > self.page_pool.free_order.num_free:
                return None
            for group, end, count in wanted:  # before the first page is taken: a MemoryError may occur here
                if end > group.num_limits[slot]:
                    group.make_room(slot, end, count)
            new = self.allocate_new_pages(slot, wanted, computed)
        if promised > live.num_promised[slot]:
            live.num_promised[slot] = promised
        if slots > live.num_slots[slot]:
            live.num_slots[slot] = slots
        return new

    def set_bounds(self, slot: int) -> None:
        """Computes ``needs_at`` and ``due_at`` of a request (see `LiveRequests`)."""
        self.live.num_needs_at[slot] = self.needs_at(slot)
        self.live.num_due_at[slot] = self.due_at(slot)

    def needs_at(self, slot: int) -> int:
        """The number of slots below which a step of the request needs no page."""
        bound = self.most_slots
        for group in self.groups:
            full_at = group.rule.full_at(group.num_pages[slot])
            bound = full_at if full_at < bound else bound
        return bound

    def due_at(self, slot: int) -> int:
        """The number of promised tokens below which a step of the request fills no page and frees none."""
        bound = NEVER
        for group in self.publishing:
            bound = min(bound, (group.num_published[slot] + 1) * group.page_size)
        for group in self._giving_back:
            bound = min(bound, group.rule.gives_back_at(group.num_given_back[slot]))
        return bound

    def set_needs_at(self, slots: NDArray[np.int64]) -> None:
        """Computes ``needs_at`` of requests."""
        bound: NDArray[np.int64] | int = self.most_slots
        for group in self.groups:
            bound = np.minimum(group.rule.full_at(group.lengths[slots]), bound)
        self.live.needs_at[slots] = bound

    def set_due_at(self, slots: NDArray[np.int64]) -> None:
        """Computes ``due_at`` of requests."""
        bound: NDArray[np.int64] | int = NEVER
        for group in self.publishing:
            bound = np.minimum((group.published[slots] + 1) * group.page_size, bound)
        for group in self._giving_back:
            bound = np.minimum(group.rule.gives_back_at(group.given_back[slots]), bound)
        self.live.due_at[slots] = bound

    def takes_in_bulk(self) -> bool:
        """True if a step can take its pages together, if enough are free: none depends on what the step frees."""
        return not self.gives_back or self.retention.judges or self.page_pool.appends_only

    def remove_skipped_pages(self, slot: int, num_computed_tokens: int) -> None:
        """Frees the pages that the mask of position ``num_computed_tokens`` can't read (MAN-8)."""
        for group in self._giving_back:
            first = group.rule.first_place(num_computed_tokens)
            if first > group.num_given_back[slot]:
                if self.retention.judges:
                    self.retention.let_go_before(group, slot, first, num_computed_tokens)
                    continue
                pages = group.give_back(slot, first)
                if len(pages):
                    self.page_pool.release(pages)

    def get_num_pages_to_allocate(self, promised: int, slots: int, held: Sequence[int]) -> tuple[list[Wanted], int]:
        """The pages that a request needs from each group (groups without any left out), and their total.

        Args:
            promised: the number of its computed and new tokens.
            slots: these and its look-ahead.
            held: the length of its list in each group.
        """
        wanted: list[Wanted] = []
        total = 0
        for group, length in zip(self.groups, held, strict=True):
            end = group.rule.end(promised, slots)
            if end > length:
                count = 1 if group.rule.has_states else end - length
                wanted.append((group, end, count))
                total += count
        return wanted, total

    def save_new_computed_pages(self, hits: Hits) -> None:
        """Adds a reference to each hit page (MAN-2)."""
        for group, pages in zip(self.groups, hits, strict=True):
            if len(pages):
                self.page_pool.hold(pages[pages != 0] if group.rule.gives_back else pages)

    def allocate_new_pages(self, slot: int, wanted: Sequence[Wanted], computed: int) -> NewPages:
        """Allocates the pages needed, group by group, records state copies, and returns the ids added to each list."""
        new = list(self.nothing_new)
        for group, end, count in wanted:
            if group.rule.has_states:
                page = self.page_pool.take_one()
                new[group.group_id] = (0,) * (end - group.num_pages[slot] - 1) + (page,)
                self.note_copy(group, slot, computed, page)
                group.add_nulls(slot, end - 1)
                group.add_page(slot, page, end)
            elif count == 1:
                page = self.page_pool.take_one()
                new[group.group_id] = (page,)
                group.add_page(slot, page, end)
            else:
                pages = self.page_pool.take(count)
                new[group.group_id] = pages
                group.add_pages(slot, pages, end)
        return new

    def note_copy(self, group: CacheGroup, slot: int, computed: int, page: int) -> None:
        """Records that a state is to be copied to its request's new page before the step (MAN-13)."""
        if computed:
            source = group.page_at(slot, group.rule.first_place(computed))
            self.queued_copies.append((self.live.ids[slot], PageCopy(group.group_id, source, page)))

    def cache_pages(self, request: EngineRequest, slot: int, num_computed_tokens: int) -> None:
        """Publishes a live request's full pages up to ``num_computed_tokens`` tokens (MAN-3)."""
        computed, promised = self.live.num_computed[slot], self.live.num_promised[slot]
        for publishing in self.publisher.read(request, slot, computed, promised, num_computed_tokens):
            self.publisher.publish(slot, publishing)

    def take_page_copies(self) -> list[PageCopy | PartCopy]:
        """The copies recorded since the last call, in order (MAN-13); what they hold is released (MAN-17)."""
        queued, self.queued_copies = self.queued_copies, []
        copies = [copy for _, copy in queued]
        release_sources(self.page_pool, copies)
        return copies

    def _drop_copies(self, request_id: str) -> list[PageCopy | PartCopy]:
        """Removes a request's recorded copies, and returns them."""
        dropped = [copy for other, copy in self.queued_copies if other == request_id]
        self.queued_copies = [queued for queued in self.queued_copies if queued[0] != request_id]
        return dropped

    def undo_copies(self, slot: int) -> None:
        """Puts what a request was to copy amid a page into its list, in place of the page that waits (MAN-17)."""
        undo_parts(self.page_pool, self.groups, slot, self._drop_copies(self.live.ids[slot]))

    # -- Giving back ------------------------------------------------------------------------------

    def free(self, request: EngineRequest, slot: int, request_id: str, num_written: int | None) -> list[str]:
        """Frees a request's pages, withdraws unwritten ones; returns the ids of others with any (MAN-4, MAN-5)."""
        pool, live, held = self.page_pool, self.live, []
        amid: dict[int, int] = {}
        if self.match_unit is not None and num_written is None and self.enable_caching:
            for publishing, segment in self.publisher.read_last(request, slot):
                amid[publishing[0].group_id] = self.publisher.publish_last(slot, publishing, segment)
        for group in self.groups:
            held.append(group.last_first(slot))
        ending = self.retention.at_end(slot, num_written, amid) if self.retention.judges else {}
        told = None if pool.policy is None else self.retention.told(slot, held, ending)
        lost, holders = (
            (_NO_PAGES, None)
            if num_written is None
            else self.publisher.unwritten(slot, num_written, self.queued_copies)
        )
        live.dismiss(slot)
        dropped = self._drop_copies(request_id) if self.queued_copies else ()
        if len(lost):
            pool.forget_hashes(lost)
        release_sources(pool, dropped)
        if told is not None:
            learn(pool, *told)
        for number, pages in enumerate(held):
            if number in ending:
                self.retention.let_go(pages, *ending[number])
            else:
                pool.give_back(pages)
        return [] if holders is None else live.withdraw(holders) + self.swapped.withdraw(lost)

    # -- Looking ----------------------------------------------------------------------------------

    def get_pages(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of a request's pages, a list for each group; empty lists if it is not live."""
        slot = self.live.slot_of.get(request_id, -1)
        return tuple(group.pages(slot).tolist() if slot >= 0 else [] for group in self.groups)

    def get_num_common_prefix_pages(self, slot: int, num_requests: int, runs: Callable[[Any], bool]) -> list[int]:
        """The number of leading pages that all running requests share, for each group (MAN-10).

        Args:
            slot: the slot of a running request.
            num_requests: the number of requests that the engine is running.
            runs: returns True for a request that is running.
        """
        running = [other for other in self.live.slot_of.values() if runs(self.live.requests[other])]
        if num_requests != len(running):
            return [0 for _ in self.groups]
        return [group.common_pages(slot, running) for group in self.groups]

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    @property
    def held_counts(self) -> NDArray[np.int64]:
        """The number of references of live requests to each page, `i64[num_pages]`. O(pages)."""
        held = np.zeros(self.page_pool.num_pages, np.int64)
        for group in self.groups:
            for slot in self.live.slot_of.values():
                np.add.at(held, group.held(slot), 1)
        for _, copy in self.queued_copies:
            if isinstance(copy, PartCopy):
                held[copy.source] += 1
        held[0] = 0  # POOL-1
        return held

    @property
    def cached_sizes(self) -> list[int]:
        """Tokens in a page of each group; 0 for a group that caches none."""
        return [group.rule.page_size if group.rule.publishes else 0 for group in self.groups]

    def state(self, pinned: NDArray[np.int64]) -> dict[str, Any]:
        """What a snapshot has of groups and requests. O(pages).

        Args:
            pinned: the number of pinned prefixes that have each page, `i64[num_pages]`.

        Raises:
            ValueError: a request is swapped out or being swapped; a page is held or cached by calls on the pool, which
                are in no snapshot.
        """
        swapped, pool = self.swapped.state(), self.page_pool
        held = self.held_counts + pinned
        for page in range(pool.num_pages):
            if pool.ref_count(page) != held[page]:
                raise refusal(
                    ValueError,
                    "MAN-14",
                    f"page {page} is held {pool.ref_count(page)} times, by requests and pinned prefixes "
                    f"{held[page]} times",
                )
        trees = [group.tree for group in self.groups]
        for run, place, _ in pool.index.places():
            if run.tree not in trees:
                tree = f"group {run.tree.group_id} for pages of {run.tree.page_bytes // 4} tokens"
                raise refusal(ValueError, "MAN-14", f"page {run.pages[place]} is cached in {tree}")
        return {
            "max_model_len": self.max_model_len,
            "use_eagle": self.use_eagle,
            "groups": [group_to_json(group) for group in self.kv_cache_groups],
            "requests": request_states(self.live, self.groups),
            "copies": [[request_id, *copy] for request_id, copy in self.queued_copies],
            **with_unit(self.match_unit, [(name, self.live.firsts[slot]) for name, slot in self.live.slot_of.items()]),
            **with_retention(
                self.kv_cache_groups,
                self.retention.interval,
                {**self.retention.state(), **point_states(self.live, self.groups)},
            ),
            **swapped,
        }

    def restore(self, parts: Mapping[str, Part], objects: Mapping[str, EngineRequest]) -> None:
        """Makes the requests of a snapshot live, where none is, and records its state copies.

        Args:
            parts: the snapshot's.
            objects: the engine's requests, by id.

        Raises:
            ValueError: a part is damaged, or does not fit a request.
        """
        saved = read_requests(parts["requests"], objects, self.groups, self.page_pool, self.max_model_len)
        segments = [self.segments_of(attribute(own.request, "extra_keys")) for own in saved]
        restore_requests(self.live, self.groups, self.page_pool, saved, segments)
        self.retention.restore(parts)
        restore_points(self.live, self.groups, parts, self.page_pool.num_pages)
        for request_id, tokens in firsts_of(parts).items():
            if request_id in self.live.slot_of:
                self.live.firsts[self.live.slot_of[request_id]] = tokens
        self.swapped.next_id = parts["next_swap_id"].integer()
        self.queued_copies = read_copies(parts["copies"], self.groups, self.live, self.page_pool.num_pages)

    def check(self) -> None:
        """Verifies every redundancy of the state; O(pages and cached tokens).

        Raises:
            AssertionError: a check fails; the message shows the whole state.
        """
        for group in self.groups:
            group.check()  # first, as the pool's check moves tails into their runs
        self.page_pool.check()
        self.swapped.check()
        check_live(self.page_pool, self.groups, self.live, self.swapped, self.max_model_len)
        self.retention.check()
        check_copies(self.page_pool, self.groups, self.live, self.queued_copies, self.held_counts)
        for request_id, slot in self.live.slot_of.items():
            recorded = self.live.num_needs_at[slot], self.live.num_due_at[slot]
            bounds = self.needs_at(slot), self.due_at(slot)
            assert recorded[0] <= bounds[0] and recorded[1] <= bounds[1], (  # noqa: PT018 - they are shown together
                f"MAN-2: something to do at {recorded}, computed {bounds}: {self.live.state(request_id)}"
            )
