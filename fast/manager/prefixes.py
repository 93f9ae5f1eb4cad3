"""MAN-1, PIN, MAN-12: cached prefixes: how they are found, pinned, ranked and counted.

Every call reads and validates its arguments here (R1); coordinator and pool then find or change the pages.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import CacheCounters, EngineRequest
from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.json_kinds import counters_of, counters_to_json
from kvproof.spec.declarations.snapshots import known_of

from ..groups.cache_pages import CachePages
from ..groups.coordinator import CacheCoordinator
from ..groups.longest_hit import Hits
from ..groups.retention import ends_on_kept_page
from ..pool.hashing import PageHash, hash_request_tokens
from ..reading.arguments import attribute, integer, refusal
from ..reading.request_reading import another, read_prompt, read_request_id, read_tokens

__all__ = ["PinnedPrefix", "Prefixes"]


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


class Prefixes:
    """The cached prefixes of a manager: finds and pins them, and counts what requests look up and hit.

    Args:
        coordinator: the manager's groups and requests.

    Attributes:
        known: the requests that were looked up or admitted and not dropped since, by id.
        tokens_when_freed: the number of promised tokens of known requests when they were freed, by id.
        pinned: the number of tokens and the pages of each pinned prefix, by its id.
        next_pin_id: the id of the next pin.
    """

    def __init__(self, coordinator: CacheCoordinator) -> None:
        self.coordinator = coordinator
        self._pool = coordinator.page_pool
        self._live = coordinator.live
        self.known: dict[str, EngineRequest] = {}
        self.tokens_when_freed: dict[str, int] = {}
        self.pinned: dict[int, tuple[int, Hits]] = {}
        self.next_pin_id = 0
        self._num_requests = self._queried_tokens = self._hit_tokens = 0
        self._num_preemptions = self._preempted_tokens = 0
        self._resumed_hit_tokens = self._junction_hit_tokens = 0

    # -- Finding ----------------------------------------------------------------------------------

    def find(self, request: EngineRequest) -> tuple[CachePages, int]:
        """The longest cached prefix of a request to be admitted; see `CacheManager.get_computed_pages`."""
        coordinator = self.coordinator
        request_id, tokens, extra_keys, params = read_prompt(request)
        segments = coordinator.plain if extra_keys is None else coordinator.segments_of(extra_keys)
        live = self._live
        if request_id in live.slot_of:
            if live.requests[live.slot_of[request_id]] is not request:
                raise another(request)
        elif coordinator.swapped.by_id and coordinator.swapped.is_another(request):
            raise another(request)
        if not coordinator.enable_caching or (params is not None and params.prompt_logprobs is not None):
            return coordinator.nothing, 0
        if request_id not in self.known or self.known[request_id] is not request:
            self._remember(request, request_id)
        most = len(tokens) // 4 - 1
        hits, length = coordinator.find_longest_cache_hit(tokens, segments, most if most > 0 else 0)
        return coordinator.cache_pages_of(hits), length

    def num_hit_tokens(self, request: EngineRequest) -> int:
        """How many tokens `find` would find; see `CacheManager.get_num_hit_tokens`."""
        coordinator = self.coordinator
        _, tokens, extra_keys, params = read_prompt(request)
        self._require_own_id(request)
        if not coordinator.enable_caching or (params is not None and params.prompt_logprobs is not None):
            return 0
        segments = coordinator.segments_of(extra_keys)
        return coordinator.find_longest_cache_hit(tokens, segments, max(len(tokens) // 4 - 1, 0))[1]

    def junction(self, request: EngineRequest) -> int:
        """The junction of a request, that of its admission if it is live; see `CacheManager.get_junction`."""
        coordinator = self.coordinator
        request_id, tokens, extra_keys, _ = read_prompt(request)
        self._require_own_id(request)
        slot = self._live.slot_of.get(request_id, -1)
        if slot >= 0:
            return self._live.points[slot][1]
        return coordinator.find_junction(tokens, coordinator.segments_of(extra_keys))

    def _find_all(self, request: EngineRequest, num_tokens: int | None) -> tuple[Hits, int]:
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

    def _require_own_id(self, request: EngineRequest) -> None:
        """Refuses a request whose id is live, or swapped out, for another one (MAN-6)."""
        slot = self._live.slot_of.get(read_request_id(request), -1)
        if (slot >= 0 and self._live.requests[slot] is not request) or self.coordinator.swapped.is_another(request):
            raise another(request)

    @property
    def no_pages(self) -> CachePages:
        """An empty page list for each group."""
        return self.coordinator.nothing

    def reset(self) -> bool:
        """Drops all hashes if no page is in use and no request swapped out; see `CacheManager` (POOL-9)."""
        return self.coordinator.swapped.is_idle and self._pool.reset_prefix_cache()

    # -- Pins and priorities ----------------------------------------------------------------------

    def pin(self, request: EngineRequest, num_tokens: int | None) -> PinnedPrefix | None:
        """Pins the longest cached prefix of a request; see `CacheManager.pin_prefix`."""
        hits, length = self._find_all(request, num_tokens)
        if not length:
            return None
        pages = self.coordinator.cache_pages_of(hits)
        self._pool.pin(pages.pages)
        self.pinned[self.next_pin_id] = length, hits
        self.next_pin_id += 1
        return PinnedPrefix(self.next_pin_id - 1, length, pages)

    def unpin(self, pin_id: int) -> None:
        """Ends a pin and frees its pages; see `CacheManager.unpin_prefix`."""
        number = integer("pin_id", pin_id, minimum=None)
        if number not in self.pinned:
            raise refusal(ValueError, "PIN-1", f"pin_id={number} is no pin")
        _, hits = self.pinned.pop(number)
        self._pool.unpin(self.coordinator.cache_pages_of([own[::-1] for own in hits]).pages)

    def set_priority(
        self, request: EngineRequest, priority: int, num_tokens: int | None, expires_at: float | None
    ) -> int:
        """Ranks the pages of the longest cached prefix of a request; see `CacheManager.set_prefix_priority`."""
        hits, length = self._find_all(request, num_tokens)
        pages = self.coordinator.cache_pages_of([own[::-1] for own in hits])
        self._pool.set_priority((page for own in pages.pages for page in own), priority, expires_at)
        return length

    # -- Known requests and counters --------------------------------------------------------------

    def _remember(self, request: EngineRequest, request_id: str) -> None:
        """Records a request that is not known; the records of another object of its id are dropped (MAN-6)."""
        self.tokens_when_freed.pop(request_id, None)
        self.known[request_id] = request

    def admitted(
        self, request: EngineRequest, request_id: str, num_tokens: int, found: int, hits: Hits, parts: Sequence[int]
    ) -> None:
        """Makes a request known that became live, and counts it, also as preempted if it was live (MAN-12).

        Args:
            request: the request.
            request_id: its id.
            num_tokens: the number of its tokens.
            found: the number of tokens that it hit.
            hits: the full pages of these, for each group.
            parts: the pages that hold the last of them where they end amid a page, see `CacheCoordinator.check_hits`.
        """
        if request_id not in self.known or self.known[request_id] is not request:
            self._remember(request, request_id)
        if self.coordinator.enable_caching:
            self._num_requests += 1
            self._queried_tokens += num_tokens
            self._hit_tokens += found
        if request_id in self.tokens_when_freed:
            self._num_preemptions += 1
            self._preempted_tokens += self.tokens_when_freed.pop(request_id)
            self._resumed_hit_tokens += found
        elif found and self._pool.lasting is not None and ends_on_kept_page(self._pool.lasting, hits, parts):
            self._junction_hit_tokens += found

    def freed(self, request_id: str, num_tokens: int) -> None:
        """Records how many tokens of a request had slots until now, if the request is known (MAN-12)."""
        if request_id in self.known:
            self.tokens_when_freed[request_id] = num_tokens

    def forget(self, request: EngineRequest) -> None:
        """Drops what is known of a request's id; see `CacheManager.free_page_hashes`."""
        request_id = read_request_id(request)
        self.known.pop(request_id, None)
        self.tokens_when_freed.pop(request_id, None)

    @property
    def counters(self) -> CacheCounters:
        """The counters of requests and of pages together (MAN-12)."""
        return dataclasses.replace(
            self._pool.counters,
            requests=self._num_requests,
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_tokens,
            preemptions=self._num_preemptions,
            preempted_tokens=self._preempted_tokens,
            resumed_hit_tokens=self._resumed_hit_tokens,
            junction_hit_tokens=self._junction_hit_tokens,
        )

    @property
    def known_keys(self) -> defaultdict[str, Sequence[PageHash]]:
        """The keys of each known request's full pages; see `CacheManager.req_to_page_hashes`."""
        pool = self._pool
        keys: defaultdict[str, Sequence[PageHash]] = defaultdict(list)
        if self.coordinator.enable_caching:
            size = self.coordinator.groups[0].rule.page_size
            for request_id, request in self.known.items():
                keys[request_id] = hash_request_tokens(pool.hash_function, size, request, none_hash=pool.none_hash)
        return keys

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    @property
    def pinned_counts(self) -> NDArray[np.int64]:
        """The number of pinned prefixes that have each page, `i64[num_pages]`. O(pages)."""
        counts = np.zeros(self._pool.num_pages, np.int64)
        for _, hits in self.pinned.values():
            for pages in hits:
                np.add.at(counts, pages, 1)
        counts[0] = 0  # POOL-1
        return counts

    def state(self) -> dict[str, Any]:
        """What a snapshot has of known requests, pinned prefixes and counters."""
        return {
            "known": list(self.known),
            "given_back": [list(entry) for entry in self.tokens_when_freed.items()],
            "pins": [
                {"id": pin_id, "num_tokens": num_tokens, "pages": [pages.tolist() for pages in hits]}
                for pin_id, (num_tokens, hits) in self.pinned.items()
            ],
            "next_pin_id": self.next_pin_id,
            "counters": counters_to_json(self.counters),
        }

    def restore(self, parts: Mapping[str, Part], objects: Mapping[str, EngineRequest]) -> None:
        """Sets what a snapshot has of known requests, pinned prefixes, whose pages no count shows yet, and counters.

        Args:
            parts: the snapshot's.
            objects: the engine's requests, by id.

        Raises:
            ValueError: a part is damaged.
        """
        self.known, self.tokens_when_freed = known_of(parts, objects)
        self.next_pin_id = parts["next_pin_id"].integer()
        for part in parts["pins"].items():
            members = part.members(("id", "num_tokens", "pages"))
            pin_id, num_tokens = members["id"].integer(below=self.next_pin_id), members["num_tokens"].integer(minimum=1)
            if pin_id in self.pinned:
                raise members["id"].damaged("is the id of another pin")
            self.pinned[pin_id] = num_tokens, self._read_hits(members["pages"], num_tokens)
        counters = counters_of(parts["counters"])
        self._num_requests, self._queried_tokens = counters.requests, counters.queried_tokens
        self._hit_tokens = counters.hit_tokens
        self._num_preemptions, self._preempted_tokens = counters.preemptions, counters.preempted_tokens
        self._resumed_hit_tokens, self._junction_hit_tokens = counters.resumed_hit_tokens, counters.junction_hit_tokens

    def _read_hits(self, part: Part, num_tokens: int) -> Hits:
        """Reads the pages of a pinned prefix of ``num_tokens`` tokens, for each group."""
        groups, hits = self.coordinator.groups, []
        for group, pages_part in zip(groups, part.items(len(groups)), strict=True):
            pages, first = pages_part.integers(below=self._pool.num_pages), group.rule.first_place(num_tokens)
            if len(pages) * group.rule.page_size != num_tokens or pages[:first].any() or not pages[first:].all():
                raise pages_part.damaged(f"must be the pages that {num_tokens} tokens need")
            hits.append(pages)
        if not any(pages.any() for pages in hits):
            raise part.damaged("must have a page")
        return hits

    def check(self) -> None:
        """Verifies that each pinned prefix pins its pages, and that requests that were freed are known and not in use.

        Raises:
            AssertionError: one does not hold.
        """
        pinned, counts = self.pinned_counts, self._pool.pins.counts()
        assert (pinned <= counts).all(), f"PIN-1: pins {pinned.tolist()}, the pool has {counts.tolist()}"
        in_use = self._live.slot_of.keys() | self.coordinator.swapped.out
        assert self.tokens_when_freed.keys() <= self.known.keys() - in_use, (
            f"MAN-12: given back {list(self.tokens_when_freed)}, known {list(self.known)}, in use {sorted(in_use)}"
        )
