"""A log as a sequence of pictures of the pool: what `kvproof show` draws."""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Frame"]


@dataclass(frozen=True)
class Frame:
    """What an operation left behind.

    Attributes:
        number: the operation's number in the log, from 1 on.
        step: the engine's step that it belongs to, from 0 on, as commits and batched calls tell.
        call: the call on one line, token ids hidden unless they were asked for.
        owners: for each page in use the ids of the requests that hold it: several where it is shared, none where
            calls on the pool hold it.
        cached: the pages that have a hash.
        free: the free pages in eviction order.
        evicted: the pages that lost their hash in this operation.
        rows: the host rows of the tables, group after group and row after row, without padding; empty without tables.
        fault: what deviates at this operation, on one line; None if nothing does.
    """

    number: int
    step: int
    call: str
    owners: Mapping[int, tuple[str, ...]]
    cached: frozenset[int]
    free: tuple[int, ...]
    evicted: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    fault: str | None
