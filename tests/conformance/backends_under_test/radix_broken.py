"""Faults of a radix tree, one a backend: level safe must catch each by the clause that it breaks."""

from collections.abc import Hashable, Sequence
from dataclasses import astuple
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

from kvproof.conformance.backends.loading import Backend

from . import radix
from .radix import CacheManager, CachePages, Live
from .radix_tree import Node, RadixTree

__all__ = ["BROKEN"]


class EvictsLocked(RadixTree):
    """A leaf goes though a request holds it."""

    def may_go(self, node: Node) -> bool:
        return not node.children


class SplitsWrongly(RadixTree):
    """The run behind keeps a page of the run before."""

    def split(self, node: Node, length: int) -> Node:
        before = super().split(node, length)
        node.pages = [before.pages[-1], *node.pages[1:]]
        return before


class SplitUnlocks(RadixTree):
    """The run before a split is locked by nobody."""

    def split(self, node: Node, length: int) -> Node:
        before = super().split(node, length)
        before.locks = 0
        return before


class EvictsTwice(RadixTree):
    """The pages of a leaf are given back one time too many."""

    def evict(self, num_pages: int) -> list[int]:
        freed = super().evict(num_pages)
        return [*freed, *freed[-1:]]


class KeepsEvicted(RadixTree):
    """What was evicted is found once more."""

    def evict(self, num_pages: int) -> list[int]:
        kept = [(node, node.key[0], node.parent) for node in self.nodes()]
        freed = super().evict(num_pages)
        for node, first, parent in kept[:1]:
            if parent is not None and first not in parent.children and node.pages[0] in freed:
                parent.children[first] = node
        return freed


class ForgetsExtraKeys(CacheManager):
    """Salts and adapters are left out of what a page holds."""

    def extra_keys(self, request: Any, start: int, end: int) -> Hashable:
        return None


class LeavesKindsOut(CacheManager):
    """Extra keys are told by their text, whatever their kind."""

    def extra_keys(self, request: Any, start: int, end: int) -> Hashable:
        keys: Any = super().extra_keys(request, start, end)
        texts = [astuple(key)[0] for key in keys]
        return frozenset(sha256(text.encode()).digest() if isinstance(text, str) else text for text in texts)


class LeavesPlacesOut(CacheManager):
    """Items are told by their content, wherever they stand."""

    def extra_keys(self, request: Any, start: int, end: int) -> Hashable:
        keys: Any = super().extra_keys(request, start, end)
        return frozenset((type(key), astuple(key)[0]) for key in keys)


class OnePageShort(CacheManager):
    """The last page of a hit is left out."""

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        found = super().get_computed_pages(request)[0]
        pages = found.pages[0][: max(len(found.pages[0]) - 1, 1)]
        return CachePages([pages]), len(pages) * self.page_size


class HitsEverything(CacheManager):
    """The last token is served from the tree as well."""

    def get_computed_pages(self, request: Any) -> tuple[CachePages, int]:
        found, length = super().get_computed_pages(request)
        if not self.enable_caching or request.sampling_params.prompt_logprobs is not None:
            return found, length
        pages = self.tree.match(self.key(request, request.num_tokens // self.page_size))
        return CachePages([pages]), len(pages) * self.page_size


class LeaksOnAbort(CacheManager):
    """What an aborted request did not write is not given back."""

    def free(self, request: Any, num_written: int | None = None) -> list[str]:
        before = list(self.free_ids)
        live = self.live.get(request.request_id)
        freed = super().free(request, num_written)
        if live is not None and num_written is not None and request.request_id not in self.live:
            self.free_ids = [page for page in self.free_ids if page in before or page in self.tree_pages()]
        return freed

    def tree_pages(self) -> set[int]:
        return set(self.resident_page_ids())


class FreesTheTwin(CacheManager):
    """Of two pages of equal content the one in the tree is given back, which others hold."""

    def enter(self, live: Live, num_tokens: int) -> None:
        before, own = list(self.free_ids), list(live.pages)
        super().enter(live, num_tokens)
        twins = {page: there for page, there in zip(own, live.pages, strict=True) if page != there}
        self.free_ids = [page if page in before else twins.get(page, page) for page in self.free_ids]


class SwapsDuplicates(CacheManager):
    """Pages of equal content that are in the tree replace those of a live request, which no page table is told of."""

    def publish(self, live: Live, num_tokens: int) -> None:
        self.enter(live, num_tokens)


class SwapsAndHandsOut(CacheManager):
    """As `SwapsDuplicates`; the page that gave way is among those that the same call hands out, so nobody shares it."""

    def take(self, request: Any, count: int, hits: list[int]) -> list[int] | None:
        live = self.live.get(request.request_id)
        if live is not None:
            self.enter(live, request.num_computed_tokens)
        return super().take(request, count, hits)


class FreesTwice(CacheManager):
    """The pages of a request go back though the tree has them."""

    def give_back(self, live: Live) -> None:
        self.free_ids += live.pages[max(live.num_shared - 1, 0) :]


class TakesItsOwnHits(CacheManager):
    """The hits are not locked while others are evicted for the new pages."""

    def take(self, request: Any, count: int, hits: list[int]) -> list[int] | None:
        return super().take(request, count, [])

    def admit(self, request: Any, hits: list[int]) -> Live:
        node, pages = self.tree.walk(self.key(request, len(hits)))
        self.tree.lock(node, +1)
        live = self.live[request.request_id] = Live(request, node, list(hits), len(pages))
        return live


class GivesUpEarly(CacheManager):
    """Evicting is not tried: what is in the tree counts as used."""

    def take(self, request: Any, count: int, hits: list[int]) -> list[int] | None:
        return None if count > len(self.free_ids) else super().take(request, count, hits)


class PublishesUnwritten(CacheManager):
    """What comes in a later step is in the tree at once."""

    def allocate_slots(self, request: Any, *arguments: Any, **named: Any) -> CachePages | None:
        pages = super().allocate_slots(request, *arguments, **named)
        if pages is not None and named.get("delay_cache_pages"):
            live = self.live[request.request_id]
            self.publish(live, live.num_promised)
        return pages


class TrustsStaleHits(CacheManager):
    """Pages handed back as hits are not looked at again."""

    def read_hits(self, request: Any, live: Live | None, found: int, given: CachePages | None) -> list[int]:
        try:
            return super().read_hits(request, live, found, given)
        except ValueError as error:
            if "other pages" not in str(error) or given is None:
                raise
            return list(given.pages[0])


class CountsTheNullPage(CacheManager):
    """The share of pages in use has the null page in it."""

    @property
    def usage(self) -> float:
        return (self.num_pages - self.num_free()) / self.num_pages


class ResetsAnyTime(CacheManager):
    """What live requests hold is forgotten as well."""

    def reset_prefix_cache(self) -> bool:
        if self.usage:
            self.tree.root.children = {}
            return True
        return super().reset_prefix_cache()


class HalfRefused(CacheManager):
    """A number of tokens that is none is found out when pages were taken."""

    def allocate_slots(self, request: Any, *arguments: Any, **named: Any) -> CachePages | None:
        try:
            return super().allocate_slots(request, *arguments, **named)
        except (TypeError, ValueError):
            self.free_ids = self.free_ids[:-1]
            raise


def _with_tree(tree: type[RadixTree]) -> type[CacheManager]:
    def build(self: CacheManager, num_pages: int, groups: Any, max_model_len: int, caching: bool = True) -> None:
        CacheManager.__init__(self, num_pages, groups, max_model_len, caching)
        self.tree = tree()

    return type(tree.__name__, (CacheManager,), {"__init__": build})


def _backend(manager: type[CacheManager]) -> Backend:
    names = SimpleNamespace(CacheManager=manager, CachePages=CachePages, kvproof_lacks=radix.kvproof_lacks)
    return Backend(manager.__name__, names)


_TREES: Sequence[tuple[type[RadixTree], set[str]]] = (
    (EvictsLocked, {"R2", "POOL-10"}),
    (SplitsWrongly, {"R2", "POOL-10", "MAN-2"}),
    (SplitUnlocks, {"POOL-10", "R2", "MAN-2"}),
    (EvictsTwice, {"R2", "POOL-10"}),
    (KeepsEvicted, {"POOL-3", "R2", "MAN-3", "POOL-10"}),
)
_MANAGERS: Sequence[tuple[type[CacheManager], set[str]]] = (
    (ForgetsExtraKeys, {"HASH-2", "MAN-6"}),
    (LeavesKindsOut, {"HASH-2", "MAN-6"}),
    (LeavesPlacesOut, {"HASH-2", "MAN-6"}),
    (OnePageShort, {"MAN-1", "HIT-1"}),
    (HitsEverything, {"MAN-1"}),
    (LeaksOnAbort, {"POOL-10", "MAN-2"}),
    (FreesTheTwin, {"R2", "POOL-3", "POOL-10"}),
    (SwapsDuplicates, {"MAN-2"}),
    (SwapsAndHandsOut, {"MAN-2"}),
    (FreesTwice, {"R2", "POOL-10"}),
    (TakesItsOwnHits, {"R2", "MAN-2", "POOL-10"}),
    (GivesUpEarly, {"MAN-2"}),
    (PublishesUnwritten, {"R2", "POOL-3", "MAN-2", "MAN-3"}),
    (TrustsStaleHits, {"MAN-2"}),
    (CountsTheNullPage, {"POOL-10"}),
    (ResetsAnyTime, {"POOL-9"}),
    (HalfRefused, {"R1"}),
)

BROKEN: list[tuple[Backend, set[str]]] = [
    *((_backend(_with_tree(tree)), clauses) for tree, clauses in _TREES),
    *((_backend(manager), clauses) for manager, clauses in _MANAGERS),
]
"""(broken backend, the clauses by one of which it must be caught)."""
