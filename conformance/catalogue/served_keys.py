"""Faults by which pages are found under wrong keys, or by those who may not find them, at the boundary of an engine.

As in `served`: each is modelled on a fault that was reported of a real engine and showed in what it answered.
"""

from collections.abc import Callable, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import CacheSalt, LoraAdapter, Request

from ..engine.scheduler import Scheduler
from .patching import backend_with, derived, scheduled, with_requests, with_scheduler
from .registry import FORESEEN, served

__all__: list[str] = []


# -- Salts and adapters ---------------------------------------------------------------------------------------------


def _with_keys(fast: ModuleType, change: Callable[[Sequence[Any]], list[Any]]) -> SimpleNamespace:
    """A backend whose scheduler gives requests other extra keys."""

    def add(self: Any, served: Any) -> None:
        request = served.request
        served.request = Request(request.request_id, request.all_token_ids, change(request.extra_keys))
        Scheduler.add(self, served)

    return with_scheduler(fast, add=add)


@served(13, "ENG-12", "keys")
def salts_left_out(fast: ModuleType) -> SimpleNamespace:
    """The cache salt never reaches the manager: every tenant hits what others computed (EasyDeL, CVE-2025-46570)."""
    return _with_keys(fast, lambda keys: [key for key in keys if not isinstance(key, CacheSalt)])


@served(15, "ENG-12", "keys")
def adapters_left_out(fast: ModuleType) -> SimpleNamespace:
    """The adapter never reaches the manager: pages computed with other weights are hit (EasyDeL)."""
    return _with_keys(fast, lambda keys: [key for key in keys if not isinstance(key, LoraAdapter)])


@served(14, "ENG-12", "keys")
def adapters_as_salts(fast: ModuleType) -> SimpleNamespace:
    """Extra keys carry no kind: an adapter's name equal to another request's salt shares its pages (vLLM 44701)."""
    return _with_keys(fast, lambda keys: [CacheSalt(key.name) if isinstance(key, LoraAdapter) else key for key in keys])


@served(14, "ENG-12", "keys", by=_with_keys)
def salts_of_few_bits(keys: Sequence[Any]) -> list[Any]:
    """Salts are told apart by a bit of their digest: some tenants share pages."""
    return [CacheSalt(str(key.fingerprint[0] & 1)) if isinstance(key, CacheSalt) else key for key in keys]


@served(15, "ENG-12", "keys", by=scheduled("add"))
def generated_pages_without_adapters(self: Any, served: Any) -> None:
    """Pages that generated tokens fill are keyed without the adapter: the model itself hits them (EasyDeL)."""
    request = served.request
    if request.num_tokens < self.limits.groups[0].kv_cache_spec.page_size:
        keys = [key for key in request.extra_keys if not isinstance(key, LoraAdapter)]
        served.request = Request(request.request_id, request.all_token_ids, keys)
    Scheduler.add(self, served)


def _copies_without(fast: ModuleType, kind: type[CacheSalt | LoraAdapter]) -> SimpleNamespace:
    """A backend whose scheduler takes an extra key from all answers to a request but the first."""

    def add(self: Any, served: Any) -> None:
        request = served.request
        tokens = request.all_token_ids.tolist()
        if any(other.request.all_token_ids[: other.num_prompt].tolist() == tokens for other in self.queue):
            keys = [key for key in request.extra_keys if not isinstance(key, kind)]
            served.request = Request(request.request_id, request.all_token_ids, keys)
        Scheduler.add(self, served)

    return with_scheduler(fast, add=add)


@served(13, "ENG-12", "copies")
def copies_without_salts(fast: ModuleType) -> SimpleNamespace:
    """Of several answers to a request only the first keeps its salt: others hit what the next ones compute."""
    return _copies_without(fast, CacheSalt)


@served(15, "ENG-11", "copies")
def copies_without_adapters(fast: ModuleType) -> SimpleNamespace:
    """Of several answers to a request only the first is cached under its adapter: the model itself hits the others."""
    return _copies_without(fast, LoraAdapter)


# -- Keys of pages --------------------------------------------------------------------------------------------------


def _with_tokens(fast: ModuleType, change: Callable[[NDArray[np.int32]], NDArray[np.int32]]) -> SimpleNamespace:
    """A backend whose manager sees other tokens than are computed, by which it finds pages of other texts."""
    return with_requests(fast, lambda _, request: change(np.array(request.all_token_ids, np.int32)))


@served(14, "ENG-4", "prefix")
def keys_of_few_bits(fast: ModuleType) -> SimpleNamespace:
    """Pages are found by a digest that drops bits, and texts that differ in a token share pages (LMCache 3301)."""
    return _with_tokens(fast, lambda tokens: tokens & ~np.int32(1))


@served(10, "ENG-4", "prefix", by=_with_tokens)
def first_page_not_in_keys(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Texts that differ in their first page alone have the same keys (EasyDeL: ``hash(-1) == hash(-2)``)."""
    tokens[:4] = 0
    return tokens


@served(14, "ENG-4", "prefix")
def keys_without_high_bits(fast: ModuleType) -> SimpleNamespace:
    """Token ids are cut on their way into keys, and texts that differ above share pages (LMCache 3301, of images)."""
    return _with_tokens(fast, lambda tokens: tokens & np.int32(15))


@served(FORESEEN, "ENG-4", "prefix", by=_with_tokens)
def keys_without_order(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """A page's key is a sum over its tokens: texts whose tokens change places within a page share it."""
    whole = len(tokens) // 4 * 4
    tokens[:whole] = np.sort(tokens[:whole].reshape(-1, 4), axis=1).reshape(-1)
    return tokens


# -- Resets ---------------------------------------------------------------------------------------------------------


@served(25, "ENG-9", "reset")
def reset_forgets_nothing(fast: ModuleType) -> SimpleNamespace:
    """After a reset one tier still serves hits (vLLM 57727)."""
    manager = derived(fast.CacheManager, {"reset_prefix_cache": lambda _: True})
    return backend_with(fast, CacheManager=manager)


@served(25, "ENG-9", "reset")
def salted_pages_survive_a_reset(fast: ModuleType) -> SimpleNamespace:
    """A reset goes through the pages of those without a salt alone (vLLM 57727: of one tier alone)."""

    def get_computed_pages(self: Any, request: Any) -> Any:
        self.salted = any(isinstance(key, CacheSalt) for key in request.extra_keys)
        return fast.CacheManager.get_computed_pages(self, request)

    def reset(self: Any) -> bool:
        return True if self.__dict__.get("salted") else bool(fast.CacheManager.reset_prefix_cache(self))

    members = {"get_computed_pages": get_computed_pages, "reset_prefix_cache": reset}
    return backend_with(fast, CacheManager=derived(fast.CacheManager, members))


@served(60, "ENG-9", "reset")
def aborted_comes_back_after_a_reset(fast: ModuleType) -> SimpleNamespace:
    """The last step of a request that was taken back publishes its pages after a reset (vLLM 45357)."""

    def remove(self: Any, served: Any) -> None:
        if served.request.num_tokens - served.num_prompt < served.max_tokens:
            self.manager.gone = served.request.all_token_ids.tolist()
        Scheduler.remove(self, served)

    def reset(self: Any) -> bool:
        done = bool(fast.CacheManager.reset_prefix_cache(self))
        gone = self.__dict__.pop("gone", ())
        if gone:
            request = Request("gone", gone)
            self.allocate_slots(request, len(gone))
            self.free(request)
            self.free_page_hashes(request)
        return done

    manager = derived(fast.CacheManager, {"reset_prefix_cache": reset})
    return backend_with(fast, CacheManager=manager, Scheduler=derived(Scheduler, {"remove": remove}))
