"""The hit share that a backend's eviction policies reach on a trace: its managers at work, where `limits` computes.

As there, prompts are served one after the other, with one group of full attention: each is looked up, admitted and
freed before the next one comes, and one that the pool can't hold is left out.
"""

from collections.abc import Callable, Sequence

import numpy as np

from kvproof.spec.declarations.eviction import POLICIES

from ..backends.loading import Backend
from .engine import DeviationError, Engine
from .groups import read_groups
from .sizes import Sizes
from .traces import TraceRequest, prompt_tokens

__all__ = ["policies_of", "policy_share"]


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
