"""MAN-1, PIN, MAN-12: cached prefixes: how they are found, pinned, ranked and counted."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..declarations import CacheCounters, EngineRequest
from ..declarations.codec import Part
from ..declarations.json_kinds import counters_of, counters_to_json
from ..declarations.snapshots import known_of
from ..groups.cache_pages import CachePages
from ..groups.coordinator import CacheCoordinator
from ..groups.live_requests import read_tokens, request_id_of
from ..groups.request_keys import Chains, RequestKeys
from ..pool.hashing import PageHash, hash_request_tokens, request_extra_keys
from ..pool.pages import CachePage
from ..reading.arguments import integer, refusal

__all__ = ["PinnedPrefix", "Prefixes"]


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


class Prefixes:
    """The cached prefixes of a manager: finds and pins them, and counts what requests look up and hit.

    Args:
        coordinator: the manager's groups and requests.

    Attributes:
        known: the requests that were looked up or admitted and whose keys were not dropped, by id.
        tokens_when_freed: tokens with slots when a known request was freed, by id: preempted, if it returns (MAN-12).
        pinned: the pinned prefixes, by their ids.
        next_pin_id: the id of the next pin.
        counted: the counters of requests; the pool keeps those of pages.
    """

    def __init__(self, coordinator: CacheCoordinator) -> None:
        self._coordinator = coordinator
        self._pool = coordinator.page_pool
        self._keys = RequestKeys(self._pool, [rules.page_size for rules in coordinator.rules])
        self.known: dict[str, EngineRequest] = {}
        self.tokens_when_freed: dict[str, int] = {}
        self.pinned: dict[int, PinnedPrefix] = {}
        self.next_pin_id = 0
        self.counted = CacheCounters()

    # -- Finding ----------------------------------------------------------------------------------

    def find(self, request: EngineRequest) -> tuple[CachePages, int]:
        """The longest cached prefix of a request to be admitted; see `CacheManager.get_computed_pages`."""
        found = self.look_up(request)
        if self._can_hit(request):
            self.remember(request, request_id_of(request))
        return found

    def _can_hit(self, request: EngineRequest) -> bool:
        """Whether a look-up finds anything (MAN-1)."""
        params = request.sampling_params
        return self._pool.enable_caching and (params is None or params.prompt_logprobs is None)

    def look_up(self, request: EngineRequest) -> tuple[CachePages, int]:
        """What `find` finds. Changes nothing: the request is not remembered."""
        tokens = read_tokens(request)
        chains = self.chains(request, tokens)
        if not self._can_hit(request):
            return self.no_pages, 0
        pages, found = self._coordinator.find_longest_cache_hit(chains, len(tokens) - 1)
        return CachePages(pages), found

    def num_hit_tokens(self, request: EngineRequest) -> int:
        """How many tokens `find` would find; see `CacheManager.get_num_hit_tokens`."""
        return self.look_up(request)[1]

    def junction(self, request: EngineRequest) -> int:
        """The junction of a request, that of its admission if it is live; see `CacheManager.get_junction`."""
        tokens = read_tokens(request)
        chains = self.chains(request, tokens)
        live = self._coordinator.live.find(request, request_id_of(request))
        if live is not None:
            return live.junction
        return self._coordinator.find_junction(chains, len(tokens))

    def chains(self, request: EngineRequest, tokens: list[int]) -> Chains:
        """The chains of a request's full pages, by page size; empty with caching off (R1, HASH-3, MAN-6)."""
        extra_keys = request_extra_keys(request)
        request_id = request_id_of(request)
        live = self._coordinator.live.by_id.get(request_id)
        swapped = self._coordinator.swapped.by_id.get(request_id)
        if any(known is not None and known.request is not request for known in (live, swapped)):
            raise refusal(ValueError, "MAN-6", f"request_id={request.request_id!r} is live for another request")
        if not self._pool.enable_caching:
            return Chains(tokens, extra_keys)
        return self._keys.chains(request_id, tokens, extra_keys, live is not None)

    def _find_all(self, request: EngineRequest, num_tokens: int | None) -> tuple[list[list[CachePage]], int]:
        """The longest cached prefix to pin or rank: it may have all tokens, and needs no Eagle page after it."""
        most = None if num_tokens is None else integer("num_tokens", num_tokens)
        tokens = read_tokens(request)
        chains = self.chains(request, tokens)
        longest = len(tokens) if most is None else min(most, len(tokens))
        return self._coordinator.find_longest_cache_hit(chains, longest, to_admit=False)

    @property
    def no_pages(self) -> CachePages:
        """An empty page list for each group."""
        return CachePages([] for _ in self._coordinator.rules)

    def reset(self) -> bool:
        """Drops all hashes if no page is in use and no request swapped out; see `CacheManager` (POOL-9)."""
        return self._coordinator.swapped.is_idle and self._pool.reset_prefix_cache()

    # -- Pins and priorities ----------------------------------------------------------------------

    def pin(self, request: EngineRequest, num_tokens: int | None) -> PinnedPrefix | None:
        """Pins the longest cached prefix of a request; see `CacheManager.pin_prefix`."""
        pages, found = self._find_all(request, num_tokens)
        if found == 0:
            return None
        self._pool.pin(pages)
        pinned = self.pinned[self.next_pin_id] = PinnedPrefix(self.next_pin_id, found, CachePages(pages))
        self.next_pin_id += 1
        return pinned

    def unpin(self, pin_id: int) -> None:
        """Ends a pin and frees its pages; see `CacheManager.unpin_prefix`."""
        number = integer("pin_id", pin_id, minimum=None)
        if number not in self.pinned:
            raise refusal(ValueError, "PIN-1", f"pin_id={number} is no pin")
        self._pool.unpin([pages[::-1] for pages in self.pinned[number].pages.pages])
        del self.pinned[number]

    def set_priority(
        self, request: EngineRequest, priority: int, num_tokens: int | None, expires_at: float | None
    ) -> int:
        """Ranks the pages of the longest cached prefix of a request; see `CacheManager.set_prefix_priority`."""
        pages, found = self._find_all(request, num_tokens)
        self._pool.set_priority([page for group in pages for page in reversed(group)], priority, expires_at)
        return found

    # -- Known requests and counters --------------------------------------------------------------

    def remember(self, request: EngineRequest, request_id: str) -> None:
        """Makes a request known, in place of any other request of its id (MAN-6)."""
        if self.known.get(request_id) is not request:
            self.tokens_when_freed.pop(request_id, None)
        self.known[request_id] = request

    def admitted(
        self, request: EngineRequest, request_id: str, num_tokens: int, found: int, ends: Sequence[CachePage]
    ) -> None:
        """Makes a request known that becomes live, and counts it, also as preempted if it was live (MAN-12).

        Args:
            request: the request.
            request_id: its id.
            num_tokens: number of its tokens.
            found: how many of them it hit.
            ends: the pages that hold the last of these, one of each group that has any.
        """
        self.remember(request, request_id)
        if self._pool.enable_caching:
            self.counted = replace(
                self.counted,
                requests=self.counted.requests + 1,
                queried_tokens=self.counted.queried_tokens + num_tokens,
                hit_tokens=self.counted.hit_tokens + found,
            )
        if request_id in self.tokens_when_freed:
            self.counted = replace(
                self.counted,
                preemptions=self.counted.preemptions + 1,
                preempted_tokens=self.counted.preempted_tokens + self.tokens_when_freed.pop(request_id),
                resumed_hit_tokens=self.counted.resumed_hit_tokens + found,
            )
        elif any(page.page_id in self._pool.lasting for page in ends):
            self.counted = replace(self.counted, junction_hit_tokens=self.counted.junction_hit_tokens + found)

    def freed(self, request_id: str, num_tokens: int) -> None:
        """Records how many tokens of a request had slots until now, if the request is known (MAN-12)."""
        if request_id in self.known:
            self.tokens_when_freed[request_id] = num_tokens

    def forget(self, request: EngineRequest) -> None:
        """Drops the keys of a request's id, and all that is known of it; see `CacheManager.free_page_hashes`."""
        request_id = request_id_of(request)
        self.known.pop(request_id, None)
        self.tokens_when_freed.pop(request_id, None)
        self._keys.drop(request_id)

    @property
    def counters(self) -> CacheCounters:
        """The counters of requests and of pages together (MAN-12)."""
        pool = self._pool.counters
        return replace(
            self.counted,
            evictions=pool.evictions,
            page_lifetimes=pool.page_lifetimes,
            reuse_gaps=pool.reuse_gaps,
        )

    @property
    def known_keys(self) -> defaultdict[str, Sequence[PageHash]]:
        """The keys of each known request's full pages; see `CacheManager.req_to_page_hashes`."""
        pool = self._pool
        keys: defaultdict[str, Sequence[PageHash]] = defaultdict(list)
        if pool.enable_caching:
            size = self._coordinator.rules[0].page_size
            for request_id, request in self.known.items():
                keys[request_id] = hash_request_tokens(pool.hash_function, size, request, none_hash=pool.none_hash)
        return keys

    # -- Snapshots (MAN-14) -----------------------------------------------------------------------

    @property
    def pinned_pages(self) -> list[CachePage]:
        """The pages of pinned prefixes, once for each pin, null pages among them."""
        return [page for prefix in self.pinned.values() for pages in prefix.pages.pages for page in pages]

    def state(self) -> dict[str, Any]:
        """What a snapshot has of known requests, pinned prefixes and counters."""
        return {
            "known": list(self.known),
            "given_back": [list(entry) for entry in self.tokens_when_freed.items()],
            "pins": [
                {"id": prefix.pin_id, "num_tokens": prefix.num_tokens, "pages": list(prefix.pages.get_page_ids())}
                for prefix in self.pinned.values()
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
        pages, num_groups = self._pool.pages, len(self._coordinator.rules)
        self.next_pin_id = parts["next_pin_id"].integer()
        for part in parts["pins"].items():
            members = part.members(("id", "num_tokens", "pages"))
            pin_id = members["id"].integer(below=self.next_pin_id)
            if pin_id in self.pinned:
                raise members["id"].damaged("is the id of another pin")
            ids = [
                [page.integer(below=len(pages)) for page in own.items()] for own in members["pages"].items(num_groups)
            ]
            lists = CachePages([pages[page] for page in own] for own in ids)
            self.pinned[pin_id] = PinnedPrefix(pin_id, members["num_tokens"].integer(minimum=1), lists)
        self.counted = counters_of(parts["counters"])  # those of pages are shown as the pool has them

    def check(self) -> None:
        """Verifies that each pinned prefix pins its pages, and that requests that were freed are known and not in use.

        Raises:
            AssertionError: one does not hold.
        """
        for prefix in self.pinned.values():  # PIN-1: direct calls on the pool may pin others
            for rules, pages in zip(self._coordinator.rules, prefix.pages.pages, strict=True):
                assert len(pages) * rules.page_size == prefix.num_tokens > 0, f"PIN-1: tokens and pages of {prefix}"
                first = rules.first_place(prefix.num_tokens)
                is_null = [page.is_null for page in pages]
                assert is_null == [place < first for place in range(len(pages))], f"PIN-1: null pages of {prefix}"
            assert any(not page.is_null for pages in prefix.pages.pages for page in pages), (
                f"PIN-1: no page in {prefix}"
            )
        pins = Counter(page.page_id for page in self.pinned_pages if not page.is_null)
        for page_id, count in pins.items():
            assert count <= self._pool.pins_of(page_id), f"PIN-1: page {page_id} is pinned by {count} prefixes"
        in_use = self._coordinator.live.by_id.keys() | self._coordinator.swapped.out
        assert self.tokens_when_freed.keys() <= self.known.keys() - in_use, (
            f"MAN-12: given back {list(self.tokens_when_freed)}, known {list(self.known)}, in use {sorted(in_use)}"
        )
