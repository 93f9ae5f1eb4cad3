"""Faults of the cache manager: what it remembers of a request, and what it gives back."""

from functools import cached_property
from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import whole, with_manager, with_pool
from .registry import seeded

__all__: list[str] = []


def _new_dict(_: Any) -> dict[str, bytes]:
    return {}


@seeded(9, "MAN-5", "manager", also=("POOL-3",))
def deferred_free_reversed(fast: ModuleType) -> SimpleNamespace:
    """Pages whose freeing was put off come back in another order than they would have at once (vLLM 48532).

    There the pages of all groups are put in one list, which is reversed as a whole; with one group what is left
    of it is a list that was reversed when it was made and is reversed again.
    """

    def release(self: Any, pages: Any) -> None:
        fast.PagePool.release(self, pages[::-1])

    return with_pool(fast, release=release)


@seeded(16, "MAN-6", "manager", also=("R2", "HASH-3", "MAN-1", "MAN-3"))
def reused_id_keeps_keys(fast: ModuleType) -> SimpleNamespace:
    """Keys are kept by request id, so that a reused id has the old prompt's (EasyDeL, vLLM 10583, 15041).

    It hits the old prompt's pages, misses its own, and publishes those under the old keys.
    """
    manager = fast.CacheManager

    def read_tokens(self: Any, request: Any, start: int = 0, stop: int | None = None) -> bytes:
        tokens: bytes = manager._read_tokens(self, request)
        noted = self.noted.get(request.request_id, b"")
        tokens = noted[: len(tokens)] + tokens[len(noted) :]
        full = len(tokens) - len(tokens) % (4 * self._size)
        if full > len(noted):
            self.noted[request.request_id] = tokens[:full]
        return tokens[4 * start : None if stop is None else 4 * stop]

    def free_page_hashes(self: Any, request: Any) -> None:
        manager.free_page_hashes(self, request)
        self.noted.pop(request.request_id, None)

    return with_manager(
        fast, noted=cached_property(_new_dict), _read_tokens=read_tokens, free_page_hashes=free_page_hashes
    )


@seeded(22, "MAN-3", "manager")
def smaller_count_raises(fast: ModuleType) -> SimpleNamespace:
    """Publishing with a smaller count than before, as after rejected drafts, raises (EasyDeL)."""

    def cache_pages(self: Any, request: Any, num_computed_tokens: Any) -> None:
        fast.CacheManager.cache_pages(self, request, num_computed_tokens)
        published = self._live.num_published[self._require_live(request)]
        if num_computed_tokens // self._size < published:
            raise RuntimeError(f"{published} pages are cached, num_computed_tokens={num_computed_tokens} has fewer")

    return with_manager(fast, cache_pages=cache_pages)


@seeded(22, "MAN-3", "manager")
def missing_pages_counted_as_cached(fast: ModuleType) -> SimpleNamespace:
    """A count beyond the request's slots is not refused: 3 pages count as cached where 2 are (EasyDeL).

    What is then written on the third page is never published.
    """

    def cache_pages(self: Any, request: Any, num_computed_tokens: Any) -> None:
        live = self._live
        slot = self._require_live(request)
        given = live.num_promised[slot]
        beyond = whole(num_computed_tokens) and num_computed_tokens > given
        fast.CacheManager.cache_pages(self, request, given if beyond else num_computed_tokens)
        if beyond and self.enable_caching:
            live.num_published[slot] = int(num_computed_tokens) // self._size
            self.page_pool.num_withdrawals += 1  # the page before the next is not cached: no place to go on from

    return with_manager(fast, cache_pages=cache_pages)
