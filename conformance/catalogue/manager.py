"""Faults of the cache manager: what it remembers of a request, and what it gives back."""

from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import whole, with_manager, with_pool
from .registry import seeded

__all__: list[str] = []


def _new_dict(_: Any) -> dict[str, Any]:
    return {}


@seeded(9, "MAN-5", "manager", also=("POOL-3",))
def deferred_free_reversed(fast: ModuleType) -> SimpleNamespace:
    """Pages whose freeing was put off come back in another order than they would have at once (vLLM 48532).

    There the pages of all groups are put in one list, which is reversed as a whole; with one group what is left
    of it is a list that was reversed when it was made and is reversed again.
    """

    def give_back(self: Any, pages: Any) -> None:
        fast.PagePool.give_back(self, pages[::-1])

    return with_pool(fast, give_back=give_back)


class _StandIn:
    """A request seen through the tokens that its id was first noted with, as far as they go."""

    def __init__(self, request: Any, noted: dict[str, list[int]], page_size: int) -> None:
        self._request, self._noted, self._page_size = request, noted, page_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    @property
    def all_token_ids(self) -> list[int]:
        """The request's tokens, those of full pages as noted under its id."""
        tokens = [int(token) for token in self._request.all_token_ids]
        noted = self._noted.get(self._request.request_id, [])
        tokens = [*noted[: len(tokens)], *tokens[len(noted) :]]
        full = len(tokens) - len(tokens) % self._page_size
        if full > len(noted):
            self._noted[self._request.request_id] = tokens[:full]
        return tokens


@seeded(16, "MAN-6", "manager", also=("R2", "HASH-3", "MAN-1", "MAN-3"))
def reused_id_keeps_keys(fast: ModuleType) -> SimpleNamespace:
    """Keys are kept by request id, so that a reused id has the old prompt's (EasyDeL, vLLM 10583, 15041).

    It hits the old prompt's pages, misses its own, and publishes those under the old keys.
    """
    manager = fast.CacheManager

    def stand_in(self: Any, request: Any) -> Any:
        if not isinstance(getattr(request, "request_id", None), str):
            return request
        known = self.stand_ins.get(id(request))
        if known is None:
            known = self.stand_ins[id(request)] = _StandIn(request, self.noted, self.page_size or 1)
        return known

    def through(name: str) -> Any:
        def call(self: Any, request: Any, *args: Any, **options: Any) -> Any:
            return getattr(manager, name)(self, stand_in(self, request), *args, **options)

        return call

    def free_page_hashes(self: Any, request: Any) -> None:
        manager.free_page_hashes(self, request)
        self.noted.pop(request.request_id, None)

    names = ("get_computed_pages", "allocate_slots", "cache_pages", "get_num_common_prefix_pages", "free")
    return with_manager(
        fast,
        noted=cached_property(_new_dict),
        stand_ins=cached_property(_new_dict),
        free_page_hashes=free_page_hashes,
        **{name: through(name) for name in names},
    )


@seeded(16, "MAN-6", "manager", also=("R1", "MAN-2"))
def second_request_of_a_live_id(fast: ModuleType) -> SimpleNamespace:
    """Another request under a live id is taken for the one that lives, and gets its pages (vLLM 10583, 15041)."""

    def allocate_slots(self: Any, request: Any, *args: Any, **options: Any) -> Any:
        live = self.coordinator.live
        slot = live.slot_of.get(getattr(request, "request_id", None), -1)
        known = live.requests[slot] if slot >= 0 else request
        return fast.CacheManager.allocate_slots(self, known, *args, **options)

    return with_manager(fast, allocate_slots=allocate_slots)


@seeded(22, "MAN-3", "manager")
def smaller_count_raises(fast: ModuleType) -> SimpleNamespace:
    """Publishing with a smaller count than before, as after rejected drafts, raises (EasyDeL)."""

    def cache_pages(self: Any, request: Any, num_computed_tokens: Any) -> None:
        fast.CacheManager.cache_pages(self, request, num_computed_tokens)
        slot = self.slot_of(request.request_id)
        for group in self.coordinator.groups:
            published = group.num_published[slot]
            if num_computed_tokens // group.rule.page_size < published:
                raise RuntimeError(f"{published} pages are cached, num_computed_tokens={num_computed_tokens} has fewer")

    return with_manager(fast, cache_pages=cache_pages)


@seeded(22, "MAN-3", "manager")
def missing_pages_counted_as_cached(fast: ModuleType) -> SimpleNamespace:
    """A count beyond the request's slots is not refused: 3 pages count as cached where 2 are (EasyDeL).

    What is then written on the third page is never published.
    """

    def cache_pages(self: Any, request: Any, num_computed_tokens: Any) -> None:
        live = self.coordinator.live
        slot = live.require(request)
        given = live.num_promised[slot]
        beyond = whole(num_computed_tokens) and num_computed_tokens > given
        fast.CacheManager.cache_pages(self, request, given if beyond else num_computed_tokens)
        if beyond and self.enable_caching:
            for group in self.coordinator.groups:
                group.num_published[slot] = int(num_computed_tokens) // group.rule.page_size
            self.page_pool.num_withdrawals += 1  # the page before the next is not cached: no place to go on from

    return with_manager(fast, cache_pages=cache_pages)
