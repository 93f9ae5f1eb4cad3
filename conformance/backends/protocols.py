"""What a class must have to be held at a level, as types: a checker tells what is missing before anything runs.

A class that says ``pool: type[SafePool] = MyPool`` in a typed file is held to the names and the arguments; what they
must do, the clauses say. What else the specification's classes have (events, pins, batches, swaps, ...) is asked only
of a backend that has it. What is given to every class:

* Page 0 is the null page: never handed out, counted or cached; it stands where a page was given back.
* Tokens come as lists of ints, tuples or numpy integer arrays; groups and lists of pages may be empty.
* A request has ``request_id``, ``all_token_ids``, ``num_tokens``, ``num_computed_tokens`` and ``extra_keys``; see
  `kvproof.spec.EngineRequest`.

Levels ``safe`` and ``sound`` ask for the first of each pair, ``exact`` for the second. How classes are made is no part
of these types, as a constructor may take more: ``PagePool(num_pages, enable_caching)``, ``CacheManager(num_pages,
kv_cache_groups, max_model_len)``, ``PageTable(max_num_reqs, max_num_pages_per_req, max_num_batched_tokens)`` must do.
A manager that takes a fourth argument by position is told by it whether to cache, and by a fifth whether there is an
Eagle model; one that takes neither caches.
"""

from collections.abc import Sequence
from typing import Any, Protocol

__all__ = ["ExactManager", "ExactPool", "SafeManager", "SafePool", "TableRows"]


class SafePool(Protocol):
    """A page pool at levels safe and sound.

    Of a page ``page_id`` is read, and where pages have them ``ref_cnt``, ``is_null`` and ``page_hash``, whose
    ``page_hash`` is what `ExactPool.get_cached_page` finds it by. Where the pool has ``pages``, ``null_page``,
    ``free_page_queue`` or ``cached_page_hash_to_page``, these are read, too.
    """

    def get_num_free_pages(self) -> int:
        """How many pages are held by nobody (POOL-2)."""

    def get_new_pages(self, num_pages: int, /) -> Sequence[Any]:
        """Hands out free pages, each held once; refuses more than there are (POOL-4)."""

    def free_pages(self, ordered_pages: Any, /) -> None:
        """Gives pages back, one hold for each mention; the iterable is read once (POOL-5)."""


class ExactPool(SafePool, Protocol):
    """A page pool at level exact: also the order in which pages are evicted, and which page is found.

    Its ``null_page`` and ``cached_page_hash_to_page`` are read as well, ``ref_cnt``, ``is_null`` and ``page_hash`` of
    each page, and ``free_page_queue`` unless ``kvproof_lacks`` names ``queue``.
    """

    def get_usage(self) -> float:
        """The part of the pages that is held, the null page left out (POOL-10)."""

    def touch(self, pages: Any, /) -> None:
        """Holds pages of several groups once more, each mention for itself; free ones leave the queue (POOL-6)."""

    def cache_full_pages(
        self,
        request: Any,
        pages: Sequence[Any],
        page_hashes: Sequence[Any],
        num_cached_pages: int,
        num_full_pages: int,
        page_size: int,
        kv_cache_group_id: int,
        /,
    ) -> None:
        """Makes ``pages[num_cached_pages:num_full_pages]`` of a request found by what they hold (POOL-7)."""

    def get_cached_page(self, page_hash: Any, kv_cache_group_ids: Sequence[int], /) -> Sequence[Any] | None:
        """A page of each group under a key; None if a group has none (POOL-7)."""

    def reset_prefix_cache(self) -> bool:
        """Forgets all that is cached if no page is held; whether it did (POOL-9)."""


class SafeManager(Protocol):
    """A cache manager at levels safe and sound: who owns which page, and what is on it.

    Pages by group are given as a list or tuple, for each group one of page ids or of pages that have a ``page_id``; or
    as an object whose ``get_page_ids()`` returns such lists. What a look-up gave is handed back as it is. Where the
    manager has a ``page_pool``, it is read as `SafePool` says.
    """

    def get_computed_pages(self, request: Any, /) -> tuple[Any, int]:
        """The cached pages of the longest prefix, by group, and its length in tokens (MAN-1)."""

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_pages: Any = None,
        num_lookahead_tokens: int = 0,
        /,
    ) -> Any | None:
        """The pages that are new for more tokens of a request; None, and nothing changed, if they don't fit (MAN-2)."""

    def free(self, request: Any, /) -> Any:
        """Gives all pages of a request back, the last first (MAN-5)."""

    def get_page_ids(self, request_id: str, /) -> Sequence[Sequence[int]]:
        """The page ids of a live request, by group."""


class ExactManager(SafeManager, Protocol):
    """A cache manager at level exact: also which pages are handed out, and in which order they are evicted."""

    def cache_pages(self, request: Any, num_computed_tokens: int, /) -> None:
        """Publishes the full pages of the tokens that are computed, for a step whose publishing was put off (MAN-3)."""

    def free_page_hashes(self, request: Any, /) -> None:
        """Forgets the keys of a request that was freed (MAN-6)."""

    def reset_prefix_cache(self) -> bool:
        """Forgets all that is cached if no page is held; whether it did (POOL-9)."""

    def create_empty_page_list(self) -> Any:
        """Pages of no group: what a request without a hit is given."""

    @property
    def usage(self) -> float:
        """The part of the pages that is held."""


class TableRows(Protocol):
    """A page table, at every level: a row of page ids for each running request, and what the device has of it."""

    def append_row(self, page_ids: Sequence[int], row_idx: int, /) -> None:
        """Appends pages to a row (TAB-2)."""

    def add_row(self, page_ids: Sequence[int], row_idx: int, /) -> None:
        """Replaces the pages of a row (TAB-2)."""

    def move_row(self, src: int, tgt: int, /) -> None:
        """Copies a row over another one (TAB-3)."""

    def swap_row(self, src: int, tgt: int, /) -> None:
        """Exchanges two rows (TAB-3)."""

    def clear(self) -> None:
        """Empties all rows."""

    def commit(self, num_reqs: int, /) -> None:
        """Hands the first rows to the device, for one step (TAB-4)."""

    def get_device_tensor(self) -> Any:
        """What was committed last: i32[max_num_reqs, max_num_pages_per_req]."""
