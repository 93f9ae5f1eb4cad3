"""The hit share that eviction policies can reach on a workload: bounds by simulation, and what a backend's reach.

A request is a *chain* of page numbers: equal numbers stand for equal prefixes, so that a page is a hit only where
all pages before it are hits. A pool holds a number of pages; when a request arrives its leading resident pages are
hits, and then all of its pages are in the pool, of which the policy keeps as many as fit.

`optimum_hits` is an upper bound of what any policy reaches in a pool of that size: it knows all later requests, needs
no room for requests that run at the same time, and makes room for a request only once it was served. Under these
freedoms it is the best choice: it keeps the pages that are needed soonest. The page before a page is needed no later
than that page, so that among equals the page nearer to the request's beginning is kept, and what is kept always begins
with a request's first page.
"""

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.eviction import POLICIES

from ..backends.loading import Backend
from .engine import DeviationError, Engine, Sizes
from .groups import read_groups
from .traces import TraceRequest, prompt_tokens

__all__ = ["Chain", "Limit", "chain_numbers", "limits_of", "lru_hits", "optimum_hits", "policies_of", "policy_share"]


Chain = Sequence[int]
"""The page numbers of a request's full pages, first page first."""

_NEVER = 1 << 60
_HALVINGS = 6


class Limit(NamedTuple):
    """What can be hit in a pool of a size, as shares of all prompt tokens.

    Attributes:
        num_pages: pages of the pool, the null page included.
        lru: the share where the page used longest ago is evicted.
        optimum: an upper bound of the share of every policy.
        policies: the share that a backend's manager reached, by eviction policy; empty where no backend was asked.
    """

    num_pages: int
    lru: float
    optimum: float
    policies: Mapping[str, float] = MappingProxyType({})


def chain_numbers(requests: Iterable[NDArray[np.int32]], page_size: int) -> list[list[int]]:
    """The chain of each request. O(tokens); a digest is kept for each distinct page.

    Args:
        requests: token ids, `i32[length]` each.
        page_size: tokens in a page.
    """
    numbers: dict[bytes, int] = {}
    chains = []
    for tokens in requests:
        data = np.ascontiguousarray(tokens, "<i4").tobytes()
        digest, chain = b"", []
        for end in range(4 * page_size, len(data) + 1, 4 * page_size):
            digest = hashlib.blake2b(digest + data[end - 4 * page_size : end], digest_size=16).digest()
            chain.append(numbers.setdefault(digest, len(numbers)))
        chains.append(chain)
    return chains


def _num_leading(resident: Iterable[int], chain: Chain, most: int) -> int:
    """The number of leading pages of a chain that are resident, at most ``most``."""
    for place, page in enumerate(chain[:most]):
        if page not in resident:
            return place
    return min(len(chain), most)


def lru_hits(chains: Sequence[Chain], most: Sequence[int], num_pages: int) -> list[int]:
    """Hit pages of each request where the page used longest ago is evicted. O(pages of all requests).

    Args:
        chains: the requests in order of arrival.
        most: the most pages that each can hit: those that lie wholly before its last token (MAN-1).
        num_pages: pages of the pool, the null page not counted.
    """
    resident: OrderedDict[int, None] = OrderedDict()
    hits = []
    for chain, limit in zip(chains, most, strict=True):
        hits.append(_num_leading(resident, chain, limit))
        for page in reversed(chain):  # pages are freed tail first (MAN-5)
            resident[page] = None
            resident.move_to_end(page)
        while len(resident) > num_pages:
            resident.popitem(last=False)
    return hits


def optimum_hits(chains: Sequence[Chain], most: Sequence[int], num_pages: int) -> list[int]:
    """Hit pages of each request under the best choice of evictions, with knowledge of all later requests.

    Arguments as of `lru_hits`. O(p log p) for p pages of all requests.
    """
    next_use: list[list[int]] = [[] for _ in chains]
    upcoming: dict[int, int] = {}
    for place in range(len(chains) - 1, -1, -1):
        next_use[place] = [upcoming.get(page, _NEVER) for page in chains[place]]
        upcoming.update(dict.fromkeys(chains[place], place))
    resident: dict[int, int] = {}
    furthest: list[tuple[int, int, int]] = []  # minus the next use, minus the place in the chain, the page
    hits = []
    for chain, limit, uses in zip(chains, most, next_use, strict=True):
        hits.append(_num_leading(resident, chain, limit))
        for place, (page, use) in enumerate(zip(chain, uses, strict=True)):
            resident[page] = use
            heapq.heappush(furthest, (-use, -place, page))
        while len(resident) > num_pages:
            use, _, page = heapq.heappop(furthest)
            if resident.get(page) == -use:
                del resident[page]
    return hits


def limits_of(trace: Sequence[TraceRequest], page_size: int, sizes: Sequence[int] | None = None) -> list[Limit]:
    """What can be hit of a trace's prompts, with one group of full attention, for each size of the pool.

    Args:
        trace: the requests in order of arrival.
        page_size: tokens in a page.
        sizes: pages of each pool, the null page included; None: room for all distinct pages of the prompts, and for a
            half, a quarter and so on of them.
    """
    chains = chain_numbers(map(prompt_tokens, trace), page_size)
    most = [(request.input_length - 1) // page_size for request in trace]
    if sizes is None:
        num_distinct = len({page for chain in chains for page in chain})
        sizes = sorted({1 + max(num_distinct >> halving, 1) for halving in range(_HALVINGS + 1)})
    asked = sum(request.input_length for request in trace)

    def share(hits: Callable[[Sequence[Chain], Sequence[int], int], list[int]], num_pages: int) -> float:
        return sum(hits(chains, most, num_pages - 1)) * page_size / asked

    return [Limit(num_pages, share(lru_hits, num_pages), share(optimum_hits, num_pages)) for num_pages in sizes]


# -- A backend's policies: its managers at work. Prompts are served one after the other, with one group of full
# -- attention: each is looked up, admitted and freed before the next one comes.


def policies_of(backend: Backend) -> tuple[str, ...]:
    """The eviction policies that a backend's manager takes: lru alone, of one that takes no ``eviction``."""
    return POLICIES if backend.accepts("CacheManager", "eviction") else POLICIES[:1]


def policy_share(
    backend: Backend,
    policy: str,
    trace: Sequence[TraceRequest],
    page_size: int,
    num_pages: int,
    progress: Callable[[], None] = lambda: None,
) -> float:
    """The share of all prompt tokens that were hit.

    Args:
        backend: whose ``CacheManager`` is at work.
        policy: one of `policies_of`.
        trace: the requests in order of arrival.
        page_size: tokens in a page.
        num_pages: pages of the pool, the null page included.
        progress: called after each request.

    Raises:
        DeviationError: the manager raised, or gave no pages although there are enough.
    """
    fitting = (num_pages - 1) * page_size
    longest = max((one.input_length for one in trace if one.input_length <= fitting), default=1)
    sizes = Sizes(read_groups("full", page_size), num_pages, 1, longest)
    engine = Engine(backend, sizes, b"kvproof replay", eviction=policy, with_tables=False)
    hit = asked = 0
    for number, one in enumerate(trace):
        asked += one.input_length
        if one.input_length <= fitting:
            tokens = np.ascontiguousarray(prompt_tokens(one), np.int32)
            request = engine.open(f"{number}", tokens, len(tokens))
            pages, num_hit = engine.look_up(request)
            if engine.admit(request, len(tokens) - num_hit, pages, num_hit) is None:
                expected = "pages, as the pool holds the prompt and nothing else is live"
                raise DeviationError("allocate_slots at admission", request.request_id, expected, "None")
            request.num_computed_tokens = len(tokens)
            engine.free(request, finished=True)
            hit += num_hit
        progress()
    return hit / asked
