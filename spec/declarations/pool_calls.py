"""POOL, PIN: how a page pool is made, what it shows, and the names of its contract, declared once.

The calls that move pages are written in ``pool/page_pool.py`` of each package. A pool also has parts and calls by page
ids, which the manager of its package uses: they are in no contract, and differ between the packages.
"""

from typing import Protocol, Unpack

from .events import CacheEvent
from .eviction import read_policy
from .extra_keys import HashFunction
from .options import PoolOptions, takes_options
from .reading import flag, index, integer
from .showing import ShownPool

__all__ = ["PoolCalls"]

_BEYOND = 2**63
"""What numbers are below that a snapshot holds (MAN-14)."""


class _KeyPart(Protocol):
    @property
    def hash_function(self) -> HashFunction: ...
    @property
    def none_hash(self) -> bytes: ...


class _FreePart(Protocol):
    @property
    def now(self) -> float | None: ...
    @property
    def num_free(self) -> int: ...
    def priority(self, page_id: int, /) -> int: ...


class _PinPart(Protocol):
    @property
    def num_pinned(self) -> int: ...
    def of(self, page_id: int, /) -> int: ...


class _LogPart(Protocol):
    def take_events(self) -> list[CacheEvent]: ...


class _Listed(type):
    """A class of pools, which `dir` and `help` list by the names of the contract, as they list a pool."""

    def __dir__(cls) -> list[str]:
        return sorted(name for name in type.__dir__(cls) if name.startswith("_") or name in _NAMES)


class PoolCalls(ShownPool, metaclass=_Listed):
    """What a pool is made with and shows; each package's `PagePool` has the pages.

    Attributes:
        num_pages: the number of pages, the null page included.
        enable_caching: whether full pages can be cached and found again.
        unhashed_first: see `PoolOptions`, as for the attributes below.
        enable_events: whether events are kept.
        counter_sampling: which pages the histograms of counters count.
        max_pinned_pages: the most pages that can be pinned at once.
        max_pinned_pages_per_salt: the most of them of one salt; None: no bound of its own.
        eviction: the name of the eviction policy (EVICT-1).
    """

    keys: _KeyPart
    free_order: _FreePart
    pins: _PinPart
    log: _LogPart

    @takes_options
    def __init__(self, num_pages: int, enable_caching: bool, **options: Unpack[PoolOptions]) -> None:
        self.num_pages = integer("num_pages", num_pages, minimum=2, clause="POOL-1", below=2**31)
        self.enable_caching = flag("enable_caching", enable_caching)
        self.unhashed_first = flag("unhashed_first", options["unhashed_first"])
        self.enable_events = flag("enable_events", options["enable_events"])
        self.counter_sampling = integer("counter_sampling", options["counter_sampling"], minimum=1, below=_BEYOND)
        self.max_pinned_pages = integer("max_pinned_pages", options["max_pinned_pages"], below=_BEYOND)
        per_salt = options["max_pinned_pages_per_salt"]
        self.max_pinned_pages_per_salt = (
            None if per_salt is None else integer("max_pinned_pages_per_salt", per_salt, below=_BEYOND)
        )
        self.eviction = read_policy(options["eviction"])
        self._make_parts(options["hash_seed"], options["hash_function"])

    def _make_parts(self, hash_seed: bytes | None, hash_function: HashFunction) -> None:
        """Sets the parts; what the pool shows of its options is set."""
        raise NotImplementedError

    def __dir__(self) -> list[str]:
        return sorted({*(name for name in object.__dir__(self) if name.startswith("_")), *_NAMES})

    def get_num_free_pages(self) -> int:
        """The number of pages that can be allocated. O(1)."""
        return self.free_order.num_free

    def get_usage(self) -> float:
        """The share of pages in use, from 0.0 to 1.0; the null page counts on neither side (POOL-10). O(1)."""
        return (self.num_pages - 1 - self.free_order.num_free) / (self.num_pages - 1)

    @property
    def hash_function(self) -> HashFunction:
        """The hash of the keys."""
        return self.keys.hash_function

    @property
    def none_hash(self) -> bytes:
        """The digest at the root of every chain of keys (HASH-1)."""
        return self.keys.none_hash

    def take_events(self) -> list[CacheEvent]:
        """The events emitted since the last call, in order; none where ``enable_events`` is off (MAN-12). O(events)."""
        return self.log.take_events()

    @property
    def now(self) -> float | None:
        """The time of the last `advance_time`; None before the first (PIN-2)."""
        return self.free_order.now

    def get_priority(self, page_id: int) -> int:
        """The priority of a page (PIN-2). O(1).

        Args:
            page_id: the page's id.

        Raises:
            IndexError: there is no such page.
        """
        return self.free_order.priority(index("page_id", page_id, self.num_pages))

    def pins_of(self, page_id: int) -> int:
        """The number of pins of a page; IndexError where there is no such page. O(1)."""
        return self.pins.of(index("page_id", page_id, self.num_pages))

    @property
    def num_pinned_pages(self) -> int:
        """The number of distinct pinned pages (PIN-1)."""
        return self.pins.num_pinned


_NAMES = (
    # what a pool was made with
    *("num_pages", "enable_caching", "unhashed_first", "enable_events", "counter_sampling", "eviction"),
    *("max_pinned_pages", "max_pinned_pages_per_salt", "hash_function", "none_hash"),
    # its pages
    *("pages", "null_page", "free_page_queue", "cached_page_hash_to_page", "get_cached_page"),
    *("get_num_free_pages", "get_usage", "counters", "eviction_counters", "take_events", "check"),
    # calls
    *("get_new_pages", "touch", "free_pages", "cache_full_pages", "evict_pages", "reset_prefix_cache"),
    *("pin", "unpin", "pins_of", "num_pinned_pages", "set_priority", "get_priority", "advance_time", "now"),
)
"""The names of the contract, which `dir` of a pool shows; beside them it has what its own package's manager uses."""
