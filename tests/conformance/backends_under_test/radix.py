"""A cache manager over a radix tree, as some engines have it: another policy than the specification's throughout.

What a request has computed enters the tree with its next call, or when it is freed. From the first page on whose
content is there already it keeps its own pages to itself until it is freed, as no page of a live request's list may
give way to another (MAN-2); then they are given up for those in the tree. Of free pages the one given back last is
taken first, and where none is free the least recently used leaves go, each as a whole.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvproof.spec.declarations import CacheGroupSpec, FullAttentionSpec, MultimodalItem, PromptEmbeddings

from .radix_tree import Node, RadixTree

__all__ = ["CacheManager", "CachePages", "kvproof_lacks"]

kvproof_lacks = ("groups", "events", "counters", "batch", "pins", "snapshots", "shards", "tables", "caches", "kernels")
"""What this backend does not have."""


class CachePages:
    """Pages of one request, in one group, by their ids.

    Args:
        pages: one list of ids a group.
    """

    def __init__(self, pages: Iterable[Iterable[int]]) -> None:
        self.pages = tuple(tuple(group) for group in pages)

    def get_page_ids(self) -> tuple[list[int], ...]:
        """The ids, a list for each group."""
        return tuple(list(group) for group in self.pages)


@dataclass
class Live:
    """A live request.

    Attributes:
        request: the engine's object.
        node: the run at whose end its part of the tree ends; it is locked.
        pages: its pages, those of the tree first.
        num_shared: how many of them are the tree's.
        num_computed: its computed tokens at the last call.
        num_promised: these and the new ones.
        num_slots: these and look-ahead.
    """

    request: Any
    node: Node
    pages: list[int] = field(default_factory=list)
    num_shared: int = 0
    num_computed: int = 0
    num_promised: int = 0
    num_slots: int = 0


def number(name: str, value: object, least: int = 0) -> int:
    """Reads an int."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} is a {type(value).__name__} and no int")
    if value < least:
        raise ValueError(f"{name}={value!r} is below {least}")
    return int(value)


class CacheManager:
    """Gives requests their slots, in one group of full attention.

    Args:
        num_pages: pages, the null page included.
        kv_cache_groups: the one group.
        max_model_len: the most tokens of a request.
        enable_caching: whether prefixes are cached and found.
    """

    def __init__(
        self, num_pages: int, kv_cache_groups: Sequence[CacheGroupSpec], max_model_len: int, enable_caching: bool = True
    ) -> None:
        self.num_pages = number("num_pages", num_pages, 2)
        self.max_model_len = number("max_model_len", max_model_len, 1)
        specs = [group.kv_cache_spec for group in kv_cache_groups]
        if len(specs) != 1 or not isinstance(specs[0], FullAttentionSpec):
            raise ValueError(f"kv_cache_groups={kv_cache_groups!r}: there is one group, of full attention")
        self.page_size = number("page_size", specs[0].page_size, 1)
        self.enable_caching = enable_caching
        self.tree = RadixTree()
        self.free_ids = list(range(1, self.num_pages))
        self.live: dict[str, Live] = {}

    # -- Looking --------------------------------------------------------------------------------------

    @property
    def usage(self) -> float:
        """The share of pages that live requests hold."""
        return (self.num_pages - 1 - self.num_free()) / (self.num_pages - 1)

    def num_free(self) -> int:
        """How many pages can be taken: free ones, and those of runs that nobody locks."""
        return len(self.free_ids) + self.tree.num_evictable()

    def resident_page_ids(self) -> list[int]:
        """The pages in the tree."""
        return [page for node in self.tree.nodes() for page in node.pages]

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The pages of a request; an empty list if it is not live."""
        if not isinstance(request_id, str):
            raise TypeError(f"request_id={request_id!r} is no str")
        known = self.live.get(request_id)
        return (list(known.pages) if known else [],)

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        """The longest prefix of a request that is in the tree, at least one token left out."""
        self.known(request)
        if not self.enable_caching or request.sampling_params.prompt_logprobs is not None:
            return CachePages([[]]), 0
        pages = self.tree.match(self.key(request, (request.num_tokens - 1) // self.page_size))
        return CachePages([pages]), len(pages) * self.page_size

    def key(self, request: Any, num_pages: int) -> list[Hashable]:
        """What the first pages of a request hold, each with the extra keys that touch it."""
        tokens, size = [int(token) for token in request.all_token_ids], self.page_size
        return [
            (tuple(tokens[start : start + size]), self.extra_keys(request, start, start + size))
            for start in range(0, num_pages * size, size)
        ]

    def extra_keys(self, request: Any, start: int, end: int) -> Hashable:
        """The extra keys of a request that touch the tokens ``[start, end)``; their order says nothing."""
        return frozenset(
            key
            for key in request.extra_keys or ()
            if not isinstance(key, MultimodalItem | PromptEmbeddings)
            or (key.offset < end and start < key.offset + key.length)
        )

    def known(self, request: Any) -> Live | None:
        """A request's state, if it is live; another object of its id is refused."""
        found = self.live.get(request.request_id)
        if found is not None and found.request is not request:
            raise ValueError(f"request_id={request.request_id!r} is live for another request")
        return found

    # -- Taking ---------------------------------------------------------------------------------------

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_pages: CachePages | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_pages: bool = False,
    ) -> CachePages | None:
        """Gives a request slots for new tokens; None if there are not so many pages."""
        live = self.known(request)
        new = number("num_new_tokens", num_new_tokens, 1)
        found = number("num_new_computed_tokens", num_new_computed_tokens)
        ahead = number("num_lookahead_tokens", num_lookahead_tokens)
        computed = number("num_computed_tokens", request.num_computed_tokens, live.num_computed if live else 0)
        if not isinstance(delay_cache_pages, bool):
            raise TypeError(f"delay_cache_pages={delay_cache_pages!r} is no bool")
        promised = computed + found + new
        if computed > (live.num_slots if live else 0) or promised > self.max_model_len:
            raise ValueError(f"num_computed_tokens={computed} or {promised} tokens are too many")
        slots = min(promised + ahead, self.max_model_len)
        hits = self.read_hits(request, live, found, new_computed_pages)
        held = len(live.pages) if live else len(hits)
        pages = self.take(request, max(-(-slots // self.page_size) - held, 0), hits)
        if pages is None:
            return None
        if live is None:
            live = self.admit(request, hits)
        live.pages += pages
        live.num_computed = computed + found
        live.num_promised, live.num_slots = max(live.num_promised, promised), max(live.num_slots, slots)
        if not delay_cache_pages:
            self.publish(live, live.num_computed)
        return CachePages([pages])

    def read_hits(self, request: Any, live: Live | None, found: int, given: CachePages | None) -> list[int]:
        """Reads pages that are said to be hits, and holds them against the tree."""
        hits = [int(page) for group in (given.pages if given is not None else ()) for page in group]
        if found != len(hits) * self.page_size or (given is not None and len(given.pages) != 1):
            raise ValueError(f"num_new_computed_tokens={found}, but there are {len(hits)} pages")
        if hits and (live is not None or found > request.num_tokens or not self.enable_caching):
            raise ValueError(f"request {request.request_id!r} can have no hits")
        if hits != self.tree.match(self.key(request, len(hits))):
            raise ValueError(f"new_computed_pages={hits}: the tree has other pages for this prefix")
        return hits

    def take(self, request: Any, count: int, hits: list[int]) -> list[int] | None:
        """Takes pages, evicting what nobody locks but the hits; None if that does not suffice."""
        node, _ = self.tree.walk(self.key(request, len(hits)))
        self.tree.lock(node, +1)
        pages = None
        if count <= self.num_free():
            if count > len(self.free_ids):
                self.free_ids += self.tree.evict(count - len(self.free_ids))
            pages = [self.free_ids.pop() for _ in range(count)]
        self.tree.lock(node, -1)
        return pages

    def admit(self, request: Any, hits: list[int]) -> Live:
        """Makes a request live, with its hits."""
        node, pages = self.tree.walk(self.key(request, len(hits)))
        self.tree.lock(node, +1)
        live = self.live[request.request_id] = Live(request, node, pages, len(pages))
        return live

    def publish(self, live: Live, num_tokens: int) -> None:
        """Puts the full pages of a live request in the tree, unless others of equal content are there already."""
        end = min(num_tokens, live.request.num_tokens) // self.page_size
        there = self.tree.match(self.key(live.request, end))
        if there == live.pages[: len(there)]:
            self.enter(live, num_tokens)

    def enter(self, live: Live, num_tokens: int) -> None:
        """Puts the full pages of a request in the tree; those that are there already replace its own."""
        end = min(num_tokens, live.request.num_tokens) // self.page_size
        if not self.enable_caching or end <= live.num_shared:
            return
        node, pages = self.tree.insert(self.key(live.request, end), live.pages)
        self.tree.lock(node, +1)
        self.tree.lock(live.node, -1)
        own = live.pages[live.num_shared : end]
        self.free_ids += [page for page, there in zip(own, pages[live.num_shared :], strict=True) if page != there]
        live.node, live.num_shared = node, end
        live.pages[:end] = pages

    def cache_pages(self, request: Any, num_computed_tokens: int) -> None:
        """Puts the pages of a live request in the tree whose content has come."""
        live = self.known(request)
        count = number("num_computed_tokens", num_computed_tokens)
        if live is None or count > live.num_promised:
            raise ValueError(f"num_computed_tokens={count}: the request is not live, or has not so many slots")
        if count // self.page_size <= live.num_computed // self.page_size:
            self.publish(live, count)  # pages that the next step writes stay the request's own

    # -- Giving back ----------------------------------------------------------------------------------

    def free(self, request: Any, num_written: int | None = None) -> list[str]:
        """Frees a request; what it wrote stays in the tree."""
        live = self.live.get(request.request_id)
        if num_written is not None:
            number("num_written", num_written)
        if live is None or live.request is not request:
            return []
        written = live.num_promised if num_written is None else min(num_written, live.num_promised)
        self.enter(live, written)
        del self.live[request.request_id]
        self.tree.lock(live.node, -1)
        self.give_back(live)
        return []

    def give_back(self, live: Live) -> None:
        """Frees the pages of a request that are not in the tree."""
        self.free_ids += live.pages[live.num_shared :]

    def reset_prefix_cache(self) -> bool:
        """Forgets all prefixes, if no page is held."""
        if self.usage:
            return False
        self.free_ids += self.resident_page_ids()
        self.tree = RadixTree()
        return True
