"""MAN-7: the coordinator of a manager's cache groups: the pool, and each request's pages in every group.

A coordinator does not check its arguments: its caller, the manager, has read and checked all of them (R1).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import lcm
from typing import Any, Unpack

from ..declarations import (
    CacheGroupSpec,
    EngineRequest,
    ManagerOptions,
    PageCopy,
    PartCopy,
    pool_options,
    takes_options,
)
from ..declarations.codec import Part
from ..declarations.json_kinds import group_to_json
from ..declarations.snapshots import firsts_of, retention_of, with_retention, with_unit
from ..declarations.uncopied import Uncopied
from ..pool.hashing import PageHash, page_extra_keys
from ..pool.letting_go import Judged, Worth, is_second, learn, let_go, put_first
from ..pool.page_pool import PagePool
from ..pool.pages import CachePage
from ..reading.arguments import refusal
from .group_rules import GroupRules, read_groups, read_unit, rules_of
from .live_check import check_copies, check_live, check_points
from .live_requests import GroupPages, Live, LiveRequests
from .part_hits import find_part
from .request_keys import Chains
from .request_states import point_states, request_states, restore_points, restore_requests
from .retention import Retention
from .swapped_requests import SwappedRequests

__all__ = [
    "CacheCoordinator",
    "CacheCoordinatorNoPrefixCache",
    "HybridCacheCoordinator",
    "UnitaryCacheCoordinator",
    "get_kv_cache_coordinator",
]


class CacheCoordinator(Uncopied):
    """Finds, allocates, publishes and frees the pages of a request, in all groups at once.

    Args:
        num_pages: pages of the pool, the null page included.
        kv_cache_groups: the cache groups.
        max_model_len: the most tokens that a request can have.
        use_eagle: whether an Eagle draft model runs (MAN-9).
        enable_caching: whether prefixes are cached and found.
        options: see `ManagerOptions`.

    Attributes:
        page_pool: the pool that all groups share.
        rules: each group's rules.
        retention: the rules by which pages are kept (RET-1).
        live: the live requests.
        swapped: the requests that are swapped out or being swapped (SWAP-1).
        held: each live request's pages in every group, by request id.
        queued_copies: queued copies of pages, each with its request's id, until `take_page_copies` (MAN-13, MAN-17).
        match_unit: the argument ``match_unit`` (MAN-17).
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
        self.kv_cache_groups = read_groups(kv_cache_groups)
        self.max_model_len = max_model_len
        self.use_eagle = use_eagle
        self.match_unit = read_unit(self.kv_cache_groups, options["match_unit"])
        self.rules = rules_of(self.kv_cache_groups, use_eagle, self.match_unit)
        self.retention = Retention(self.rules, options["retention_interval"], enable_caching)
        self.page_pool = PagePool(num_pages, enable_caching, **pool_options(options))
        self.page_pool.free_order.queue.serves_parts = any(rules.needs_part for rules in self.rules)
        self.live = LiveRequests()
        self.swapped = SwappedRequests(options["num_host_pages"])
        self.held: dict[str, list[GroupPages]] = {}
        self.queued_copies: list[tuple[str, PageCopy | PartCopy]] = []

    # -- Finding ----------------------------------------------------------------------------------

    def find_longest_cache_hit(
        self, chains: Chains, max_cache_hit_length: int, to_admit: bool = True
    ) -> tuple[list[list[CachePage]], int]:
        """The longest prefix that every group can serve from its cached pages (MAN-1, MAN-9, MAN-17).

        Args:
            chains: the chains of the request's full pages.
            max_cache_hit_length: the most tokens of a hit.
            to_admit: whether a request is to be admitted with it: then it may end amid a page, and an Eagle group must
                hold the unit after it as well.

        Returns:
            The prefix's full pages in each group, and its number of tokens; empty lists and 0 if there is none.
        """
        cached = self._cached_places(chains)
        step = self.hit_step if to_admit else lcm(*(rules.page_size for rules in self.rules))
        for length in range(max_cache_hit_length // step * step, 0, -step):
            if all(self._is_served(rules, length, chains, cached[rules.group_id], to_admit) for rules in self.rules):
                pages = [self._prefix(rules, length, own) for rules, own in zip(self.rules, cached, strict=True)]
                parts = any(self.find_parts(chains, length)) if to_admit else False
                if parts or any(not page.is_null for group in pages for page in group):
                    return pages, length
        return [[] for _ in self.rules], 0

    @property
    def hit_step(self) -> int:
        """The number of tokens of which the length of a request's hit is a multiple."""
        return lcm(*(rules.unit for rules in self.rules))

    def _is_served(
        self, rules: GroupRules, length: int, chains: Chains, cached: Sequence[CachePage | None], with_eagle: bool
    ) -> bool:
        """Whether a group can serve a prefix of a request; see `GroupRules.is_served`."""
        return rules.is_served(length, cached, with_eagle, lambda end: find_part(self.page_pool, rules, chains, end))

    def find_parts(self, chains: Chains, length: int) -> list[CachePage | None]:
        """For each group the page from which the last tokens of a hit are copied; None for none (MAN-17)."""
        pool = self.page_pool
        return [find_part(pool, rules, chains, length) if length % rules.page_size else None for rules in self.rules]

    def find_junction(self, chains: Chains, num_tokens: int) -> int:
        """The length up to which the groups that keep everything would hit, if all together hit less; else 0 (RET-2).

        Args:
            chains: the chains of the request's full pages.
            num_tokens: number of its tokens.
        """
        if not self.retention.finds_junctions:
            return 0
        cached = self._cached_places(chains)
        step = self.hit_step
        keeping = [rules for rules in self.rules if rules.keeps_prefix]
        longest = next(
            (
                length
                for length in range((num_tokens - 1) // step * step, 0, -step)
                if all(self._is_served(rules, length, chains, cached[rules.group_id], True) for rules in keeping)
            ),
            0,
        )
        _, hit = self.find_longest_cache_hit(chains, num_tokens - 1)
        return longest if longest > hit else 0

    def _cached_places(self, chains: Chains) -> list[list[CachePage | None]]:
        """For each group the cached page at each place that known tokens fill; None where none is cached."""
        return [
            [self.cached_page(key, content, rules.group_id) for key, content in chains[rules.page_size]]
            for rules in self.rules
        ]

    def cached_page(self, key: PageHash, content: int, group_id: int) -> CachePage | None:
        """The first page that is cached in a group under a key and has a content.

        Content is compared as well, since a weak hash function may give the same key to other content (R2).
        """
        candidates = self.page_pool.cached_under(key, group_id)
        return next((page for page in candidates if self.page_pool.content_of(page) == content), None)

    def _prefix(self, rules: GroupRules, length: int, cached: Sequence[CachePage | None]) -> list[CachePage]:
        """A group's page list for a prefix that it can serve, null pages where it needs none."""
        first = rules.first_place(length)
        needed = [page for page in cached[first : length // rules.page_size] if page is not None]
        return [self.page_pool.null_page] * first + needed

    def holds(self, page: CachePage, content: int, group_id: int) -> bool:
        """Whether a page is cached in a group and has a content (R2)."""
        return (
            page.page_hash is not None
            and page.page_hash.group_id == group_id
            and self.page_pool.content_of(page) == content
        )

    # -- Allocating -------------------------------------------------------------------------------

    def get_num_new_places(
        self, request_id: str, promised: int, slots: int, hits: Sequence[Sequence[CachePage]]
    ) -> list[int]:
        """How many places a request's list lacks in each group (MAN-2).

        Args:
            request_id: the request, live or not.
            promised: its computed and new tokens.
            slots: its computed, new and look-ahead tokens.
            hits: pages that will be appended first, a list for each group.
        """
        held = self.get_pages(request_id)
        return [
            max(rules.num_places(promised, slots) - len(held[rules.group_id]) - len(hits[rules.group_id]), 0)
            for rules in self.rules
        ]

    def get_num_pages_to_allocate(
        self,
        request_id: str,
        promised: int,
        slots: int,
        hits: Sequence[Sequence[CachePage]],
        parts: Iterable[CachePage | None],
    ) -> int:
        """How many free pages a request uses up, free hits and sources of copies included (MAN-2, MAN-17)."""
        places = self.get_num_new_places(request_id, promised, slots, hits)
        new = sum(rules.num_pages(places[rules.group_id]) for rules in self.rules)
        found = [page for group in hits for page in group if not page.is_null]
        return new + sum(page.ref_cnt == 0 for page in (*found, *parts) if page is not None)

    def save_new_computed_pages(
        self, request_id: str, hits: Sequence[Sequence[CachePage]], parts: Iterable[CachePage | None]
    ) -> None:
        """Makes the page lists of a new request from its hits, and raises their counts and those of their sources."""
        self.page_pool.touch([*hits, [page for page in parts if page is not None]])
        self.held[request_id] = [
            GroupPages(list(pages), len(pages), len(pages), self._states_of_hits(rules, pages))
            for rules, pages in zip(self.rules, hits, strict=True)
        ]

    def _states_of_hits(self, rules: GroupRules, hits: Sequence[CachePage]) -> dict[int, int]:
        """The number of tokens that each hit state covers, by place; see `GroupPages`."""
        if not rules.copies_states:
            return {}
        return {place: (place + 1) * rules.page_size for place, page in enumerate(hits) if not page.is_null}

    def allocate_new_pages(
        self, request_id: str, reached: int, promised: int, slots: int, parts: Sequence[CachePage | None]
    ) -> list[list[CachePage]]:
        """Appends new pages to a request's lists, group by group (MAN-2), and queues the copies (MAN-13, MAN-17).

        Args:
            request_id: a live request.
            reached: its computed tokens, those just found included.
            promised: its computed and new tokens.
            slots: its computed, new and look-ahead tokens.
            parts: for each group the page that holds the last of the tokens just found, if these end amid a page.

        Returns:
            The pages appended to the list of each group, null pages included.
        """
        places = self.get_num_new_places(request_id, promised, slots, [[] for _ in self.rules])
        added: list[list[CachePage]] = []
        for rules, held, lacking, part in zip(self.rules, self.held[request_id], places, parts, strict=True):
            taken = self.page_pool.get_new_pages(rules.num_pages(lacking))
            added.append([self.page_pool.null_page] * (lacking - len(taken)) + taken)
            held.pages += added[-1]
            if part is not None:
                amid = PartCopy(rules.group_id, part.page_id, taken[0].page_id, reached % rules.page_size)
                self.queued_copies.append((request_id, amid))
            if rules.copies_states:
                if taken and reached > 0:
                    source = held.pages[rules.first_place(reached)]
                    copy = PageCopy(rules.group_id, source.page_id, taken[0].page_id)
                    self.queued_copies.append((request_id, copy))
                held.states[len(held.pages) - 1] = promised
        return added

    def take_page_copies(self) -> list[PageCopy | PartCopy]:
        """The copies queued since the last call, in order, to run before the step (MAN-13, MAN-17)."""
        copies = [copy for _, copy in self.queued_copies]
        self.queued_copies.clear()
        self._release_sources(copies)
        return copies

    def _release_sources(self, copies: Iterable[PageCopy | PartCopy]) -> None:
        """Frees the pages that were held for copies, in order."""
        for copy in copies:
            if isinstance(copy, PartCopy):
                self.page_pool.free_pages([self.page_pool.pages[copy.source]])

    def sources_of(self, request_id: str) -> list[CachePage]:
        """The pages that are held for a request's queued copies (MAN-17)."""
        return [
            self.page_pool.pages[copy.source]
            for other, copy in self.queued_copies
            if other == request_id and isinstance(copy, PartCopy)
        ]

    def undo_copies(self, request_id: str) -> None:
        """Puts what a request was to copy amid a page into its list, in place of the page that waits (MAN-17)."""
        for other, copy in self.queued_copies:
            if other == request_id and isinstance(copy, PartCopy):
                held, source = self.held[request_id][copy.group_id], self.page_pool.pages[copy.source]
                given = held.pages[held.num_hits]
                if given.page_id == copy.destination:
                    held.pages[held.num_hits] = source
                self.page_pool.free_pages([given if given.page_id == copy.destination else source])
        self.queued_copies = [
            (other, copy) for other, copy in self.queued_copies if other != request_id or isinstance(copy, PageCopy)
        ]

    def cache_pages(self, request_id: str, chains: Chains, num_tokens: int) -> None:
        """Publishes a live request's full pages up to ``num_tokens`` tokens, group by group (MAN-3).

        Null pages are skipped, and so are states that do not lie at the end of their place (MAN-13).
        """
        for rules, held in zip(self.rules, self.held[request_id], strict=True):
            first, end = held.num_published, rules.num_publishable(num_tokens)
            if end > first:
                pages = [
                    held.pages[place] if rules.is_publishable(place, held.states) else self.page_pool.null_page
                    for place in range(first, end)
                ]
                chain = chains[rules.page_size]
                parent = chain[first - 1][0].hash_value if first else None
                self.page_pool.publish(pages, chain[first:end], rules.group_id, parent)
                held.num_published = end

    def cache_last_pages(self, request_id: str, chains: Chains) -> None:
        """Publishes the unfilled pages with which a request that is freed ends, group by group (MAN-17).

        Nobody writes to them any more. Each gets a key of its first tokens, a multiple of the unit: those computed at
        the last call, or published at the admission if they are more. One whose page before is not cached gets none.
        """
        live = self.live.by_id[request_id]
        known = min(max(live.num_computed, live.num_first), len(chains.tokens))
        for rules, held in zip(self.rules, self.held[request_id], strict=True):
            size, chain = rules.page_size, chains[rules.page_size]
            place = known // size
            end = known // rules.unit * rules.unit
            if end == place * size or place != held.num_published or held.pages[place].is_null:
                continue
            before = chain[place - 1] if place else None
            if before is not None and not self.holds(held.pages[place - 1], before[1], rules.group_id):
                continue
            touching = page_extra_keys(chains.extra_keys, place * size, (place + 1) * size)
            key = self.page_pool.keys.following(before, chains.tokens[place * size : end], touching)
            parent = None if before is None else before[0].hash_value
            self.page_pool.publish([held.pages[place]], [key], rules.group_id, parent)

    # -- Freeing ----------------------------------------------------------------------------------

    def remove_skipped_pages(self, request_id: str, num_computed: int) -> None:
        """Frees the pages that no step after ``num_computed`` computed tokens can read (MAN-8).

        Group by group, the last page of each group first; null pages take their places.
        """
        live = self.live.by_id[request_id]
        for rules, held in zip(self.rules, self.held[request_id], strict=True):
            skipped = held.pages[: rules.first_place(num_computed)]
            judged = self.retention.judged(rules, skipped, live, num_computed, is_over=False)
            learn(self.page_pool, [(rules.page_size, judged)])
            self._let_go(rules, judged)
            released = {place: page for place, page in enumerate(skipped) if not page.is_null}
            if released and self.retention.judges and rules.needs_part:
                needed = rules.needed(self.retention.resume_point(num_computed, num_computed))
                held.passed = {
                    place: page
                    for place, page in (held.passed | released).items()
                    if place in needed and is_second(self.page_pool, page)
                }
            held.pages[: len(skipped)] = [self.page_pool.null_page] * len(skipped)
            held.states = {place: tokens for place, tokens in held.states.items() if place >= len(skipped)}

    def withdraw(self, request_id: str, num_written: int) -> list[CachePage]:
        """Drops the hashes of the pages that a live request published and that are not fully written (MAN-4).

        Args:
            request_id: the request.
            num_written: leading tokens that are written; pages of these tokens only keep their hashes.

        Returns:
            The pages that lost their hashes.
        """
        withdrawn: list[CachePage] = []
        for rules, held in zip(self.rules, self.held[request_id], strict=True):
            first = max(held.num_hits, num_written // rules.page_size)
            withdrawn += [page for page in held.pages[first : held.num_published] if not page.is_null]
        self.page_pool.withdraw(withdrawn)
        return withdrawn

    def _let_go(self, rules: GroupRules, judged: dict[int, Judged]) -> None:
        """Frees pages of a request by their places in a group, the last one first (RET-3), after `learn`."""
        if self.retention.judges and rules.needs_part:
            let_go(self.page_pool, reversed(judged.values()))
        else:
            self.page_pool.give_back(page.page_id for page, _ in reversed(judged.values()) if not page.is_null)

    def free(self, request_id: str, live: Live, num_written: int | None) -> None:
        """Frees a request's pages, group by group, the last page of each group first (MAN-5, RET-3).

        Args:
            request_id: the request, which is no longer among the live ones.
            live: its record.
            num_written: see `withdraw`; None: all is written.
        """
        groups = self.forget(request_id)
        published = min(
            (self._num_kept(rules, held, num_written) for rules, held in zip(self.rules, groups, strict=True)),
            default=0,
        )
        end = self.retention.resume_point(published, published)
        ends = []
        for rules, held in zip(self.rules, groups, strict=True):
            judged = self.retention.judged(rules, held.pages, live, published, is_over=True)
            passed = {place: page for place, page in sorted(held.passed.items()) if place in rules.needed(end)}
            first = {place: (page, Worth.FIRST) for place, page in passed.items() if is_second(self.page_pool, page)}
            ends.append((rules, judged, first))
        learn(self.page_pool, ((rules.page_size, judged | first) for rules, judged, first in ends))
        for rules, judged, first in ends:
            self._let_go(rules, judged)
            put_first(self.page_pool, (page for page, _ in reversed(first.values())))

    def _num_kept(self, rules: GroupRules, held: GroupPages, num_written: int | None) -> int:
        """How many leading tokens of a request have pages in a group that are published and not withdrawn."""
        places = held.num_published
        if num_written is not None:
            places = min(places, max(held.num_hits, num_written // rules.page_size))
        last = held.pages[places].page_hash if places < len(held.pages) and num_written is None else None
        return places * rules.page_size + (0 if last is None else len(last.page_hash.token_ids))

    def forget(self, request_id: str) -> list[GroupPages]:
        """Removes the page lists of a live request and returns them; the pages stay allocated.

        The request's queued copies are dropped, as no step will use them, and what was held for them is freed.
        """
        dropped = [copy for other, copy in self.queued_copies if other == request_id]
        self.queued_copies = [(other, copy) for other, copy in self.queued_copies if other != request_id]
        self._release_sources(dropped)
        return self.held.pop(request_id)

    # -- Looking ----------------------------------------------------------------------------------

    def get_pages(self, request_id: str) -> list[list[CachePage]]:
        """A request's page list in each group; empty lists if it is not live."""
        if request_id not in self.held:
            return [[] for _ in self.rules]
        return [list(held.pages) for held in self.held[request_id]]

    def get_num_common_prefix_pages(self, request_id: str, running: Iterable[str]) -> list[int]:
        """How many leading pages a live request shares with all that run, for each group (MAN-10).

        They are the same pages at the same places, no null pages; 0 where a group gives pages back or holds states.
        """
        others = [self.get_pages(other) for other in running]
        counts = []
        for rules, own in zip(self.rules, self.get_pages(request_id), strict=True):
            count = 0
            for page, *same in zip(own, *(pages[rules.group_id] for pages in others), strict=False):
                if not rules.keeps_prefix or page.is_null or any(other is not page for other in same):
                    break
                count += 1
            counts.append(count)
        return counts

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    @property
    def held_pages(self) -> list[CachePage]:
        """The pages that live requests hold, in lists and for copies, once for each reference; also null pages."""
        lists = [page for groups in self.held.values() for own in groups for page in own.pages]
        return lists + [page for request_id in self.held for page in self.sources_of(request_id)]

    @property
    def cached_sizes(self) -> list[int]:
        """Tokens in a page of each group; 0 for a group that caches none."""
        return [rules.page_size if rules.num_publishable(rules.page_size) else 0 for rules in self.rules]

    def state(self, pinned: Iterable[CachePage]) -> dict[str, Any]:
        """What a snapshot has of groups and requests.

        Args:
            pinned: the pages that pinned prefixes hold, once for each pin.

        Raises:
            ValueError: a request is swapped out or being swapped; a page is held otherwise than by requests and pinned
                prefixes, so that no restored manager would free it.
        """
        swapped = self.swapped.state()
        holders = Counter(page.page_id for page in (*self.held_pages, *pinned))
        for page in self.page_pool.pages[1:]:
            if page.ref_cnt != holders[page.page_id]:
                raise refusal(
                    ValueError,
                    "MAN-14",
                    f"page {page.page_id} is held {page.ref_cnt} times, by requests and pinned prefixes "
                    f"{holders[page.page_id]} times: what calls on the pool hold is in no snapshot",
                )
        return {
            "max_model_len": self.max_model_len,
            "use_eagle": self.use_eagle,
            "groups": [group_to_json(group) for group in self.kv_cache_groups],
            "requests": request_states(self.live, self.held),
            **with_retention(
                self.kv_cache_groups,
                self.retention.interval,
                {
                    "second": self.page_pool.free_order.second,
                    "kept": sorted(self.page_pool.lasting),
                    **point_states(self.live, self.held),
                },
            ),
            "copies": [[request_id, *copy] for request_id, copy in self.queued_copies],
            **with_unit(self.match_unit, [(name, live.num_first) for name, live in self.live.by_id.items()]),
            **swapped,
        }

    def restore(self, parts: Mapping[str, Part], objects: Mapping[str, EngineRequest]) -> None:
        """Makes the requests of a snapshot live, where none is, and queues its copies of states.

        Args:
            parts: the snapshot's.
            objects: the engine's requests, by id.

        Raises:
            ValueError: a part is damaged, or does not fit a request.
        """
        restore_requests(self.live, self.held, self.page_pool, self.rules, parts["requests"], objects)
        restore_points(self.live, self.held, self.page_pool, parts)
        retained = retention_of(parts)
        for part in (retained["second"], retained["kept"]):
            if part.items() and not self.retention.judges:
                raise part.damaged("must name no page where no group needs only part of a prefix")
        for request_id, tokens in firsts_of(parts).items():
            if request_id in self.live.by_id:
                self.live.by_id[
                    request_id
                ].num_first = tokens  # what is another's is found by the comparison at the end
        self.swapped.next_swap_id = parts["next_swap_id"].integer()
        for part in parts["copies"].items():
            entries = part.items()
            if len(entries) not in (4, 5):
                raise part.damaged("is no copy of a state or of part of a page")
            id_part, group_part, source_part, destination_part, *amid = entries
            if id_part.text() not in self.held:
                raise id_part.damaged(f"is {id_part.value!r}, which is not live")
            group = group_part.integer(below=len(self.rules))
            rules, pages = self.rules[group], self.page_pool.num_pages
            source, destination = source_part.integer(1, pages), destination_part.integer(1, pages)
            if not amid and not rules.copies_states:
                raise group_part.damaged(f"is {group}, a group whose states are not copied")
            if not amid:
                self.queued_copies.append((id_part.text(), PageCopy(group, source, destination)))
                continue
            count = amid[0].integer(1, rules.page_size)
            if count % rules.unit:
                raise amid[0].damaged(f"must be a multiple of {rules.unit}")
            self.queued_copies.append((id_part.text(), PartCopy(group, source, destination, count)))

    def check(self) -> None:
        """Verifies every redundancy of the pool and of the requests' pages; O(pages).

        Raises:
            AssertionError: one does not hold; the message has the whole state.
        """
        self.page_pool.check()
        check_live(self.page_pool, self.rules, self.live, self.held, self.swapped, self.max_model_len)
        check_copies(self.page_pool, self.rules, self.live, self.held, self.queued_copies, self.held_pages)
        check_points(self.retention, self.rules, self.live, self.held)


class CacheCoordinatorNoPrefixCache(CacheCoordinator):
    """The coordinator with caching off, or without groups: caches nothing and finds nothing."""

    def find_longest_cache_hit(
        self,
        chains: Chains,  # noqa: ARG002 - see the class
        max_cache_hit_length: int,  # noqa: ARG002
        to_admit: bool = True,  # noqa: ARG002
    ) -> tuple[list[list[CachePage]], int]:
        """No pages and 0; see `CacheCoordinator`."""
        return [[] for _ in self.rules], 0

    def cache_pages(self, request_id: str, chains: Chains, num_tokens: int) -> None:
        """Does nothing; see `CacheCoordinator`."""


class UnitaryCacheCoordinator(CacheCoordinator):
    """The coordinator of a single group."""


class HybridCacheCoordinator(CacheCoordinator):
    """The coordinator of several groups, of any kinds and page sizes (MAN-7)."""


def get_kv_cache_coordinator(
    num_pages: int,
    kv_cache_groups: Sequence[CacheGroupSpec],
    max_model_len: int,
    use_eagle: bool,
    enable_caching: bool,
    **options: Unpack[ManagerOptions],
) -> CacheCoordinator:
    """The coordinator that a manager of these groups needs; see `CacheCoordinator` for the arguments."""
    groups = read_groups(kv_cache_groups)
    if not enable_caching or not groups:
        kind: type[CacheCoordinator] = CacheCoordinatorNoPrefixCache
        enable_caching = False
    else:
        kind = UnitaryCacheCoordinator if len(groups) == 1 else HybridCacheCoordinator
    return kind(num_pages, groups, max_model_len, use_eagle, enable_caching, **options)
