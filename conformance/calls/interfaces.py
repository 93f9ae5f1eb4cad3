"""Every table of the interface, in the order in which reports show them; and the one of requests, no backend's."""

from .arrays import ATTENTION, CACHE, SCHEDULER, SIZES, VIEW
from .cache import CACHES
from .follower import FOLLOWER
from .hash import HASHING
from .kinds import NONE, PLAIN
from .manager import MANAGER, PAGE_LISTS, SHARDS
from .method import Method, Table
from .pool import POOL
from .queue import PAGE, QUEUE
from .table import TABLE, TABLES

__all__ = ["INTERFACES", "REQUEST", "plain_row"]


def plain_row(name: str, arguments: tuple[str, ...] = (), form: str = "call") -> Method:
    """A row of which nothing is compared."""
    return Method(name, dict.fromkeys(arguments, PLAIN), NONE, "R1", form=form, logged=False)


REQUEST = Table(
    "request",
    "Request",
    (
        plain_row("Request", ("prompt",), "build"),
        plain_row("append", ("token_id",)),
        plain_row("num_tokens", ("value",), "set"),
        plain_row("num_computed_tokens", ("value",), "set"),
        plain_row("status", ("value",), "set"),
        plain_row("extra_keys", ("value",), "set"),
    ),
)
"""What an engine does with a request of its own. The request is one object, which both sides are given."""


INTERFACES: tuple[Table, ...] = (
    *(QUEUE, PAGE, POOL, TABLE, TABLES, MANAGER, SHARDS, PAGE_LISTS, FOLLOWER),
    *(CACHE, VIEW, ATTENTION, SIZES, CACHES, HASHING, SCHEDULER),
)
"""The tables; `tests/conformance/test_calls.py` holds them against the names of the specification."""
