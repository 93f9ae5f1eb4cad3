"""Correct managers with everything that ours have, each with a policy of its own: for the soak of level safe."""

import random
from types import SimpleNamespace
from typing import Any

import kvproof.fast
import kvproof.spec
from kvproof.conformance.backends.loading import Backend
from kvproof.spec.pool.free_order import FreeOrder

from .backends_under_test import ordered, radix

__all__ = ["CORRECT"]


class LastFirst(FreeOrder):
    """Takes the page that was freed last."""

    def take(self, count: int) -> list[int]:
        self.wanted = self.order()[::-1]
        taken = super().take(count)
        self.wanted = []
        return taken


class AnyFirst(FreeOrder):
    """Takes any page, by numbers that follow from how many there are."""

    def take(self, count: int) -> list[int]:
        self.wanted = self.order()
        random.Random(f"{self.num_free}/{count}").shuffle(self.wanted)
        taken = super().take(count)
        self.wanted = []
        return taken


def evicting(order: type[FreeOrder]) -> Backend:
    """The specification with another order of eviction."""

    class Manager(kvproof.spec.CacheManager):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self.page_pool.free_order.__class__ = order

    return Backend(order.__name__, SimpleNamespace(**{**vars(kvproof.spec), "CacheManager": Manager}))


def fast_with(name: str, manager: type) -> Backend:
    return Backend(name, SimpleNamespace(**{**vars(kvproof.fast), "CacheManager": manager}))


def preferring(**chosen: Any) -> Backend:
    """The fast backend with options of its own choice."""

    class Manager(kvproof.fast.CacheManager):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **(options | chosen))

    return fast_with(str(chosen), Manager)


class Forgetful(kvproof.fast.CacheManager):
    """Forgets every second page of a request that goes, as far as nobody holds it."""

    def free(self, request: Any, num_written: int | None = None) -> list[str]:
        lists = self.get_page_ids(request.request_id)
        losers = super().free(request, num_written)
        second = {page for pages in lists for page in pages[::2]}
        self.evict_pages([page.page_id for page in self.page_pool.pages if page.page_id in second and not page.ref_cnt])
        return losers


class Sooner(kvproof.fast.CacheManager):
    """Publishes what a request has computed with its next call, also where that gets no slots."""

    def allocate_slots(self, request: Any, *more: Any, **options: Any) -> Any:
        if self.get_page_ids(request.request_id)[0] and request.num_computed_tokens:
            self.cache_pages(request, request.num_computed_tokens)
        return super().allocate_slots(request, *more, **options)


CORRECT = [
    Backend("spec", kvproof.spec),
    Backend("fast", kvproof.fast),
    Backend("ordered", ordered),
    Backend("radix", radix),
    evicting(LastFirst),
    evicting(AnyFirst),
    preferring(retention_interval=None, eviction="reuse"),
    preferring(eviction="adaptive"),
    preferring(unhashed_first=True),
    fast_with("sooner", Sooner),
    fast_with("forgetful", Forgetful),
]
"""Designs whose order of eviction, or whose time of publishing, is another than the specification's."""
