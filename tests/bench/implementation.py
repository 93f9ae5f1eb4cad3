"""What the rows are run on: pools, managers and tables of any package, as bundles of its own functions.

A row's loops call the packages' own functions, taken as bound methods under common names, so that nothing of ours runs
in between. Where shapes differ (blocks and pages, a key made when a token is appended, at the first look-up, or never),
one short function says so. Peers are given lists of tokens, kvproof int32 arrays: what each reads fastest.
"""

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .workloads import PAGE_SIZE

__all__ = ["Batch", "Implementation", "Manager", "OneByOne", "Pool", "Table", "Tokens", "append_output", "peer_module"]

Tokens = NDArray[np.int32]


class Pool(NamedTuple):
    """A pool's own functions.

    Attributes:
        get: takes so many pages.
        free: gives pages back.
        ids: the ids of pages, as a list.
        id_array: the same in the cheapest form that the package has.
        publish: caches the first so many pages of a request.
        reset: forgets every prefix.
    """

    get: Callable[[int], Any]
    free: Callable[[Any], Any]
    ids: Callable[[Any], Sequence[int]]
    id_array: Callable[[Any], Any]
    publish: Callable[[Any, Any, int], Any]
    reset: Callable[[], Any]


class Batch(Protocol):
    """Requests that decode together."""

    def add(self, request: Any) -> None:
        """A request whose prompt has its slots joins them."""

    def remove(self, request: Any) -> None:
        """A request leaves them."""

    def grow(self) -> None:
        """Every request has one token more; those before it are computed."""

    def step(self) -> Any:
        """A slot for that token of every request, full pages published."""


class Manager(NamedTuple):
    """A manager's own functions.

    Attributes:
        look_up: of a request: (pages, how many tokens they hold, perhaps more).
        allocate: slots for so many new tokens of a request, after so many found, on these pages; None if none.
        free: gives back a request's pages.
        finish: what else is to be called once a request is done for good, or None.
        know_keys: has a request's keys computed, if the package keeps them, so that no later call does it.
        renew_keys: has them computed once more, now or by the next look-up; None where look-ups take none.
        take_events: the events since the last call, or None.
        batch: a batch of none.
    """

    look_up: Callable[[Any], Any]
    allocate: Callable[[Any, int, int, Any], Any]
    free: Callable[[Any], Any]
    finish: Callable[[Any], Any] | None
    know_keys: Callable[[Any], Any]
    renew_keys: Callable[[Any], Any] | None
    take_events: Callable[[], Any] | None
    batch: Callable[[], Batch]


class Table(NamedTuple):
    """A page table's own functions: add a page to each of its rows, and let the device follow.

    Attributes:
        append: of lists of pages, one list a row.
        append_array: of an array `[rows, 1]`; None where it takes none.
        commit: all rows.
        wait: until the device has them.
        clear: empties the rows.
    """

    append: Callable[[list[list[int]]], Any]
    append_array: Callable[[NDArray[np.int64]], Any] | None
    commit: Callable[[], Any]
    wait: Callable[[], Any]
    clear: Callable[[], Any]


class Implementation(Protocol):
    """A package to be measured.

    Attributes:
        name: what tables call it.
        appending_makes_keys: whether appending a token, or making a request, computes the keys of the pages filled.
    """

    name: str
    appending_makes_keys: bool

    def missing(self) -> str | None:
        """Why it cannot be run here; None if it can."""

    def no_events(self) -> str | None:
        """Why there are no events; None if there are."""

    def pool(self, num_pages: int) -> Pool:
        """A pool with caching on."""

    def request(self, request_id: str, tokens: Tokens | list[int], page_size: int = PAGE_SIZE) -> Any:
        """A request of its own, its keys computed if the package does so at once."""

    def tokens(self, tokens: Tokens) -> Tokens | list[int]:
        """Tokens in the form that it takes."""

    def keys(self, request: Any, page_size: int) -> Callable[[], Any]:
        """What computes all keys of a request anew."""

    def manager(self, num_pages: int, max_len: int, events: bool = False) -> Manager:
        """A manager of one group of full attention, pages of `PAGE_SIZE` tokens."""

    def table(self, num_rows: int, width: int) -> Table:
        """A page table."""


class OneByOne:
    """A batch of a manager that serves a request a call.

    Args:
        allocate: the call.
        append: adds a token to a request.
        new_step: what is called when a step begins, or None.
    """

    def __init__(
        self, allocate: Callable[..., Any], append: Callable[[Any, int], Any], new_step: Callable[[], Any] | None
    ) -> None:
        self._allocate, self._append, self._new_step = allocate, append, new_step
        self._requests: dict[str, Any] = {}

    def add(self, request: Any) -> None:
        self._requests[request.request_id] = request

    def remove(self, request: Any) -> None:
        del self._requests[request.request_id]

    def grow(self) -> None:
        append = self._append
        for request in self._requests.values():
            request.num_computed_tokens = request.num_tokens
            append(request, 7)

    def step(self) -> None:
        if self._new_step is not None:
            self._new_step()
        allocate = self._allocate
        for request in self._requests.values():
            assert allocate(request, 1) is not None, "the pool is too small for this row"


def peer_module(name: str) -> Any:
    """A module of a peer; what others warn of while they are imported is not ours to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)


def append_output(request: Any, token_id: int) -> None:
    """Adds a token to a peer's request; both name it alike."""
    request.append_output_token_ids(token_id)
