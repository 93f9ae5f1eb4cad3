"""Every table of the interface, in the order in which reports show them; and the one of requests, no backend's."""

from collections.abc import Mapping

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

__all__ = ["BUILDS", "FUNCTIONS", "INTERFACES", "REQUEST", "TABLES_BY_OWNER", "plain_row"]


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

TABLES_BY_OWNER: Mapping[str, Table] = {table.owner: table for table in (*INTERFACES, REQUEST) if table.owner}

BUILDS: Mapping[str, Method] = {
    **{owner: table[owner] for owner, table in TABLES_BY_OWNER.items() if owner in table.by_name},
    PAGE.owner: plain_row(PAGE.owner, ("page_id",), "build"),
    QUEUE.owner: plain_row(QUEUE.owner, ("pages",), "build"),
    FOLLOWER.owner: plain_row(FOLLOWER.owner, (), "build"),
}
"""How each class is constructed."""

FUNCTIONS: Mapping[str, Method] = {row.name: row for table in INTERFACES if not table.owner for row in table}
"""The functions of the interface."""
