"""Faults of keys: what stands for a page's content collides, or differs from process to process."""

import os
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import backend_with, derived, with_coordinator
from .registry import seeded

__all__: list[str] = []


# -- Python's own hash ----------------------------------------------------------------------------


def _python_key(parent: tuple[Any, ...] | None, tokens: tuple[int, ...], extra_keys: Any) -> tuple[Any, ...]:
    """A page's key with Python's ``hash`` over its parent's, for which -1 and -2 are one number."""
    return hash((parent and parent[0], tokens, extra_keys)), tokens, extra_keys


def _request_keys(tokens: bytes, segments: Any, page_size: int) -> Iterator[tuple[Any, ...]]:
    values = np.frombuffer(tokens, "<i4").tolist()
    key = None
    for place in range(len(values) // page_size):
        extra_keys = next(segment.extra_keys for segment in segments if place < segment.end)
        key = _python_key(key, tuple(values[place * page_size : (place + 1) * page_size]), extra_keys)
        yield key


def _cached_key(run: Any, place: int) -> tuple[Any, ...]:
    parent = None
    if place:
        parent = _cached_key(run, place - 1)
    elif run.parent.parent is not None:
        parent = _cached_key(run.parent, len(run.parent.pages) - 1)
    return _python_key(parent, tuple(np.frombuffer(run.page_tokens(place), "<i4").tolist()), run.extra_keys)


def _cached_pages(coordinator: Any) -> dict[tuple[Any, ...], list[int]]:
    found: dict[tuple[Any, ...], list[int]] = {}
    for run, place, pages in coordinator.page_pool.index.places():
        found.setdefault(_cached_key(run, place), []).extend(pages)
    return found


@seeded(10, "R2", "manager", also=("HASH-1", "HIT-1", "MAN-1"))
def python_hash_keys(fast: ModuleType) -> SimpleNamespace:
    """Keys are made with Python's ``hash``, and ``hash(-1) == hash(-2)`` (EasyDeL).

    A key holds its own page's tokens, so that first pages are told apart; but below prompts that differ in a
    first page so, the second pages have one key. Hits are checked by the same keys when they are handed back.
    """

    def find(self: Any, tokens: bytes, segments: Any, most: int, *, eagle: bool = True) -> Any:  # noqa: ARG001
        if not self.enable_caching:
            return [np.empty(0, np.int64) for _ in self.groups], 0
        size = self.groups[0].rule.page_size
        cached = _cached_pages(self)
        found: list[int] = []
        for key in list(_request_keys(tokens, segments[0], size))[: most // size]:
            if key not in cached:
                break
            found.append(cached[key][0])
        return [np.array(found, np.int64)], len(found) * size

    def check_hits(self: Any, tokens: bytes, segments: Any, hits: Any, length: int) -> Any:
        keys = list(_request_keys(tokens, segments[0], self.groups[0].rule.page_size))
        cached = _cached_pages(self)
        pages = hits[0].tolist()
        if any(page not in cached.get(key, ()) for page, key in zip(pages, keys, strict=False)):
            return fast.CacheCoordinator.check_hits(self, tokens, segments, hits, length)  # refuses
        return []

    return with_coordinator(fast, find_longest_cache_hit=find, check_hits=check_hits)


# -- The root of a chain --------------------------------------------------------------------------


@seeded(11, "HASH-1", "hash", also=("HASH-2",))
def zero_parent_is_root(fast: ModuleType) -> SimpleNamespace:
    """A parent's hash of 0 is taken for no parent, and so for the root (EasyDeL's seed: ``if not parent_hash``)."""

    def hash_page_tokens(
        hash_function: Any,
        parent_page_hash: Any,
        curr_page_token_ids: Any,
        extra_keys: Any = None,
        *,
        none_hash: bytes = fast.NONE_HASH,
    ) -> Any:
        if isinstance(parent_page_hash, bytes) and not any(parent_page_hash):
            parent_page_hash = None
        return fast.hash_page_tokens(
            hash_function, parent_page_hash, curr_page_token_ids, extra_keys, none_hash=none_hash
        )

    return backend_with(fast, hash_page_tokens=hash_page_tokens)


def _rooted(fast: ModuleType, seed_instead: Callable[[bytes | None], bytes]) -> SimpleNamespace:
    """A backend whose roots, those of pools and managers included, come from another seed than the given one."""

    def init_none_hash(seed: bytes | None = None, hash_function: Any = fast.sha256) -> Any:
        fast.init_none_hash(seed, hash_function)  # refuses other objects than seeds
        return fast.init_none_hash(seed_instead(seed), hash_function)

    def build_pool(self: Any, *args: Any, hash_seed: bytes | None = None, **options: Any) -> None:
        fast.PagePool.__init__(self, *args, hash_seed=hash_seed, **options)
        self.keys.none_hash = init_none_hash(hash_seed, self.hash_function)

    def build_manager(self: Any, *args: Any, hash_seed: bytes | None = None, **options: Any) -> None:
        fast.CacheManager.__init__(self, *args, hash_seed=hash_seed, **options)
        self.page_pool.keys.none_hash = init_none_hash(hash_seed, self.page_pool.hash_function)

    return backend_with(
        fast,
        NONE_HASH=init_none_hash(),
        init_none_hash=init_none_hash,
        PagePool=derived(fast.PagePool, {"__init__": build_pool}),
        CacheManager=derived(fast.CacheManager, {"__init__": build_manager}),
    )


@seeded(12, "HASH-1", "hash")
def fixed_root(fast: ModuleType) -> SimpleNamespace:
    """The root is a constant where no seed is given, so that keys can be forged (EasyDeL, vLLM CVE-2025-25183)."""
    return _rooted(fast, lambda seed: b"root" if seed is None else seed)


@seeded(12, "HASH-1", "hash")
def root_ignores_seed(fast: ModuleType) -> SimpleNamespace:
    """The root is one constant whatever seed is given: managers with different seeds share keys (EasyDeL)."""
    return _rooted(fast, lambda seed: os.urandom(32) if seed is None else b"root")


@seeded(12, "HASH-1", "hash")
def root_of_the_process(fast: ModuleType) -> SimpleNamespace:
    """The root comes from Python's ``hash``, which differs between processes whatever the seed is (EasyDeL).

    There it is ``hash(None)``, which later versions of Python have made a constant; a text's hash is none.
    """
    return _rooted(fast, lambda seed: (os.urandom(32) if seed is None else seed) + str(hash("root")).encode())


@seeded(12, "HASH-1", "hash", also=("R1",), by=_rooted)
def root_from_the_environment(seed: bytes | None) -> bytes:
    """Where no seed is given PYTHONHASHSEED is read as a number, so that the value ``random`` raises (EasyDeL)."""
    number = os.environ.get("PYTHONHASHSEED", "")
    return seed if seed is not None else os.urandom(32) + (int(number).to_bytes(4, "little") if number else b"")
