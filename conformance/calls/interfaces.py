"""Every table of the interface, in the order in which reports show them."""

from .arrays import ATTENTION, CACHE, SCHEDULER, VIEW
from .cache import CACHES
from .hash import HASHING
from .manager import MANAGER, PAGE_LISTS, SHARDS
from .method import Table
from .pool import POOL
from .queue import PAGE, QUEUE
from .table import TABLE, TABLES

__all__ = ["INTERFACES"]

INTERFACES: tuple[Table, ...] = (
    *(QUEUE, PAGE, POOL, TABLE, TABLES, MANAGER, SHARDS, PAGE_LISTS),
    *(CACHE, VIEW, ATTENTION, CACHES, HASHING, SCHEDULER),
)
"""The tables; `tests/conformance/test_calls.py` holds them against the names of the specification."""
