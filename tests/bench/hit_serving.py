"""The serving loop of the hit-share bench, and the managers that it drives.

A step goes as in an engine: first slots for the next tokens of each live request, in the order of admission, the last
of them giving way where pages run out; then admissions. Prompts are computed in steps of at most `STEP_TOKENS`, which
end where states are worth keeping, see `StepEnds`. Generated tokens come `STRIDE` a step: which pages are taken, and in
which order, hardly depends on it.
"""

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from kvproof import fast
from kvproof.conformance.engine.step_ends import StepEnds, junction_of
from kvproof.spec import Request
from kvproof.spec.declarations.eviction import POLICIES

from .hit_workloads import Prompt, Workload
from .implementation import Tokens, peer_module

__all__ = ["SERVERS", "STEP_TOKENS", "Outcome", "Server", "serve"]

STEP_TOKENS = 2_048
STRIDE = 64


class Found(NamedTuple):
    """The result of a look-up.

    Attributes:
        pages: the cached pages, in the manager's own form.
        hit: their tokens.
        junction: the length at which a state or a window is worth keeping, as the look-up says; 0: none.
    """

    pages: Any
    hit: int
    junction: int


class Server(Protocol):
    """A cache manager of any package.

    Attributes:
        retention_interval: tokens between the lengths at which states are kept anyway; 0: there are none.
    """

    retention_interval: int

    def open(self, request_id: str, prompt: Tokens) -> Any:
        """The package's own request."""

    def look_up(self, request: Any) -> Found:
        """The longest cached prefix."""

    def admit(self, request: Any, found: Found, num_tokens: int) -> bool:
        """Slots for the first tokens behind a hit; False where pages run out."""

    def advance(self, request: Any, computed: int, more: Tokens, num_tokens: int) -> bool:
        """Slots for tokens of a live request, after ``more`` generated ones were appended."""

    def free(self, request: Any) -> None:
        """Gives the pages of a live request back."""

    def shard_of(self, request: Any) -> int:
        """The number of the shard that a live request is on; 0 where there is one only."""


class Ours:
    """`kvproof.fast`."""

    def __init__(self, workload: Workload, num_pages: int, max_len: int, **options: Any) -> None:
        groups, made = list(workload.groups), {"hash_seed": b"hit share", "match_unit": workload.match_unit, **options}
        self.retention_interval = int(options.get("retention_interval", 0))
        self._is_sharded = workload.num_shards > 1
        self.manager: Any = (
            fast.ShardedCacheManager(workload.num_shards, num_pages, groups, max_len, **made)
            if self._is_sharded
            else fast.CacheManager(num_pages, groups, max_len, **made)
        )

    def open(self, request_id: str, prompt: Tokens) -> Request:
        return Request(request_id, prompt)

    def look_up(self, request: Request) -> Found:
        pages, hit = self.manager.get_computed_pages(request)
        return Found(pages, hit, junction_of(self.manager, request))

    def admit(self, request: Request, found: Found, num_tokens: int) -> bool:
        return self.manager.allocate_slots(request, num_tokens, found.hit, found.pages) is not None

    def advance(self, request: Request, computed: int, more: Tokens, num_tokens: int) -> bool:
        request.num_computed_tokens = computed
        for token in more.tolist():
            request.append(token)
        granted = self.manager.allocate_slots(request, num_tokens) is not None
        if not self._is_sharded:
            self.manager.take_page_copies()  # nothing is stored here, so that none need to be run
        return granted

    def free(self, request: Request) -> None:
        self.manager.free(request)

    def shard_of(self, request: Request) -> int:
        return int(self.manager.shard_of(request.request_id)) if self._is_sharded else 0


class Vllm:
    """vLLM's manager, with the defaults of its engine; look-ups hand the junction on as its scheduler does."""

    retention_interval = 0

    def __init__(self, workload: Workload, num_pages: int, max_len: int) -> None:
        os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # else a machine without a GPU has no platform to it
        adapter = peer_module("kvproof.conformance.adapters.vllm_groups")
        logging.getLogger("vllm").setLevel(logging.ERROR)
        utils, hashing = peer_module("vllm.v1.core.kv_cache_utils"), peer_module("vllm.utils.hashing")
        utils.init_none_hash(hashing.sha256)
        config = adapter.config_of(num_pages, workload.groups)
        config.prefix_cache_retention_interval = 0  # the default of its CacheConfig, from which an engine takes it
        scheduled, hashed = adapter.page_sizes(config, True)
        self._hasher = utils.get_request_block_hasher(hashed, hashing.sha256)
        self._request = peer_module("vllm.v1.request").Request
        self._sampling = peer_module("vllm.sampling_params").SamplingParams()
        self.manager = peer_module("vllm.v1.core.kv_cache_manager").KVCacheManager(
            config, max_len, scheduled, hashed, enable_caching=True
        )

    def open(self, request_id: str, prompt: Tokens) -> Any:
        return self._request(request_id, prompt.tolist(), self._sampling, None, block_hasher=self._hasher)

    def look_up(self, request: Any) -> Found:
        found = Found(*self.manager.get_computed_blocks(request))
        request.shared_prefix_boundary = found.junction
        return found

    def admit(self, request: Any, found: Found, num_tokens: int) -> bool:
        self.manager.new_step_starts()
        return self.manager.allocate_slots(request, num_tokens, found.hit, found.pages) is not None

    def advance(self, request: Any, computed: int, more: Tokens, num_tokens: int) -> bool:
        request.num_computed_tokens = computed
        request.append_output_token_ids(more.tolist())
        self.manager.new_step_starts()
        return self.manager.allocate_slots(request, num_tokens) is not None

    def free(self, request: Any) -> None:
        self.manager.free(request)

    def shard_of(self, request: Any) -> int:
        return 0


SERVERS: dict[str, Callable[..., Server]] = {f"kvproof {policy}": partial(Ours, eviction=policy) for policy in POLICIES}
"""Managers by name."""
if find_spec("vllm"):
    SERVERS["vLLM"] = Vllm


@dataclass
class Outcome:
    """What serving a workload came to.

    Attributes:
        hits: the hit tokens of each request, at its first admission.
        preemptions: times a request gave way.
        shards: the shard of each request; None where there is one only.
    """

    hits: list[int]
    preemptions: int
    shards: list[int] | None


@dataclass(eq=False)
class _Live:
    """A request being served; counts are in tokens."""

    number: int
    prompt: Prompt
    tokens: Tokens
    request: Any
    start: int = 0
    """Tokens computed before the step at hand."""
    end: int = 0
    """Tokens computed after it."""
    junction: int = 0


class _Loop:
    """The live and waiting requests of a workload."""

    def __init__(self, workload: Workload, server: Server, step_tokens: int) -> None:
        self._workload, self._server, self._step_tokens = workload, server, step_tokens
        self._ends = StepEnds(workload.groups, server.retention_interval)
        self._arrivals = deque(enumerate(workload.prompts))
        self._waiting: deque[_Live] = deque()
        self._live: list[_Live] = []
        self.outcome = Outcome([-1] * len(workload.prompts), 0, [] if workload.num_shards > 1 else None)

    @property
    def num_arrived(self) -> int:
        """Requests that are live or done."""
        return len(self._workload.prompts) - len(self._arrivals) - len(self._waiting)

    def step(self) -> bool:
        """One step. Returns False when every request is done."""
        if not self._advance():
            self._admit()
        for session in [session for session in self._live if session.end == len(session.tokens)]:
            self._live.remove(session)
            self._server.free(session.request)
        return bool(self._live or self._waiting or self._arrivals)

    def _advance(self) -> bool:
        """Serves the live requests. Returns whether one gave way."""
        preempted = False
        for session in list(self._live):
            while session in self._live and not self._grow(session):
                assert len(self._live) > 1, "a request of the workload does not fit into the pool"
                self._preempt()
                preempted = True
        return preempted

    def _grow(self, session: _Live) -> bool:
        session.start, known = session.end, max(session.prompt.length, session.end)
        end = self._step_end(session, session.start)
        more = session.tokens[known:end]
        if not self._server.advance(session.request, session.start, more, end - session.start):
            return False
        session.end = end
        return True

    def _preempt(self) -> None:
        """The request admitted last gives way, to be served again from its prompt."""
        session = self._live.pop()
        self._server.free(session.request)
        self.outcome.preemptions += 1
        self._waiting.appendleft(self._opened(session.number, session.prompt))

    def _opened(self, number: int, prompt: Prompt) -> _Live:
        tokens = prompt.make()
        name = f"request {number}, {self.outcome.preemptions}"  # an id is never used twice
        return _Live(number, prompt, tokens, self._server.open(name, tokens[: prompt.length]))

    def _admit(self) -> None:
        while len(self._live) < self._workload.live:
            if not self._waiting:
                if not self._arrivals:
                    return
                self._waiting.append(self._opened(*self._arrivals.popleft()))
            session = self._waiting[0]
            found = self._server.look_up(session.request)
            session.junction = found.junction
            session.end = self._step_end(session, found.hit)
            if not self._server.admit(session.request, found, session.end - found.hit):
                assert self._live, "a request of the workload does not fit into the pool"
                return
            self._live.append(self._waiting.popleft())
            if self.outcome.hits[session.number] < 0:
                self.outcome.hits[session.number] = found.hit
            if self.outcome.shards is not None:
                self.outcome.shards.append(self._server.shard_of(session.request))

    def _step_end(self, session: _Live, start: int) -> int:
        """The tokens computed after a step that starts behind ``start`` of them."""
        prompt = session.prompt.length
        if start < prompt:
            return self._ends.end(start, min(start + self._step_tokens, prompt), prompt, session.junction)
        length = len(session.tokens)  # as if in steps of one token: one ends at each boundary, the last among them
        return self._ends.end(start, min(start + STRIDE, length), length + 1, 0)


def serve(
    workload: Workload, server: Server, progress: Callable[[int], None], step_tokens: int = STEP_TOKENS
) -> Outcome:
    """Serves a workload from its first request to its last.

    Args:
        workload: the workload.
        server: a fresh manager.
        progress: called after every step with the number of requests that were admitted.
        step_tokens: the most tokens of a prompt that a step computes.
    """
    loop = _Loop(workload, server, step_tokens)
    while loop.step():
        progress(loop.num_arrived)
    return loop.outcome
