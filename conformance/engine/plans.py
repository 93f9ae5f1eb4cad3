"""What a scheduler is told and what it decides: requests as the engine knows them, limits, chunks, plans."""

from dataclasses import dataclass

from kvproof.spec.declarations import CacheGroupSpec, MambaSpec, Request, SwapPlan

from .sampler import Sampling

__all__ = ["Chunk", "Limits", "Plan", "Served"]


@dataclass(eq=False)
class Served:
    """A request as the engine knows it.

    Attributes:
        request: what the manager sees of it.
        num_prompt: tokens of the prompt.
        max_tokens: how many are generated at most.
        sampling: how they are drawn.
        priority: the higher, the sooner it is served.
        arrival: how many came before it.
        row: its row in the tables while it runs; -1 while it waits.
        slot: the manager's number for it while it runs.
        is_away: whether what it computed is in host memory (SWAP-1); it waits then.
        preemptions: how often it gave way.
        junction: the length at which it parts from an earlier request, where a step ends (RET-2); 0: none is known.
    """

    request: Request
    num_prompt: int
    max_tokens: int
    sampling: Sampling
    priority: int
    arrival: int
    row: int = -1
    slot: int = -1
    is_away: bool = False
    preemptions: int = 0
    junction: int = 0

    @property
    def urgency(self) -> tuple[int, int]:
        """What the queue is ordered by."""
        return -self.priority, self.arrival

    @property
    def is_running(self) -> bool:
        """Whether it holds pages and a row."""
        return self.row >= 0

    @property
    def num_left(self) -> int:
        """Its tokens that are known and not computed yet."""
        return self.request.num_tokens - self.request.num_computed_tokens

    @property
    def num_cached(self) -> int:
        """How many tokens are computed until its end: all but the last one that is generated."""
        return self.num_prompt + self.max_tokens - 1


@dataclass(frozen=True)
class Chunk:
    """What a request computes in a step.

    Attributes:
        served: the request.
        start: its first token that is computed.
        count: how many are.
    """

    served: Served
    start: int
    count: int

    @property
    def end(self) -> int:
        """The first token that is not computed any more."""
        return self.start + self.count


@dataclass(frozen=True)
class Plan:
    """A step.

    Attributes:
        chunks: who computes what; nobody twice.
        preempted: who gave way, in that order.
        swaps: what went to host memory or came back, in that order; copied already (SWAP-1).
    """

    chunks: tuple[Chunk, ...]
    preempted: tuple[Served, ...]
    swaps: tuple[SwapPlan, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What a scheduler keeps to.

    Attributes:
        groups: the cache groups.
        num_pages: pages of the pool, the null page included.
        max_model_len: the most tokens of a request.
        max_num_seqs: the most requests that run at a time: rows of the tables.
        max_num_batched_tokens: the most tokens of a step.
        enable_caching: whether prefixes are found.
    """

    groups: tuple[CacheGroupSpec, ...]
    num_pages: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_caching: bool = True

    @property
    def has_states(self) -> bool:
        """Whether a group keeps states."""
        return any(isinstance(group.kv_cache_spec, MambaSpec) for group in self.groups)
