"""The engine: requests come, are scheduled, computed and sampled, and go (ENG-1, ENG-2)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from kvproof.spec.declarations import ExtraKey, ManagerOptions, Request, SwapPlan, defaults_of, takes_options
from kvproof.spec.declarations.eviction import EvictionPolicy
from kvproof.spec.reading.arguments import flag, integer, listed, refusal, shown, token_list

from ..backends.loading import DEFAULT_BACKEND, Backend, load_backend
from .config import ModelConfig
from .groups import groups_of
from .model import Params
from .plans import Chunk, Limits, Plan, Served
from .runner import PLATFORMS, Runner
from .sampler import GREEDY, Sampling, sample
from .scheduler import Scheduler

__all__ = ["Engine", "Output"]

EVICTION: EvictionPolicy = "adaptive"
"""The policy by which an engine's pools evict, unless another is asked for (EVICT-1)."""


@dataclass(frozen=True, eq=False)
class Output:
    """What a step made of a request.

    Attributes:
        request_id: whose it is.
        token: the token that it has now; None where some of its prompt is still to be computed.
        is_finished: whether that was its last.
        start: the position of the first row of ``logits``.
        logits: after each token that was computed, `f32[n, V]`; None unless the engine keeps them.
    """

    request_id: str
    token: int | None
    is_finished: bool
    start: int
    logits: NDArray[np.float32] | None


class Engine:
    """Serves a model through a backend's manager, tables and caches: nothing of the backend but its public names.

    Prompts come in chunks beside the tokens of others, prefixes are found, those who find no room wait or take it
    from the less urgent, who go to host memory or compute again what is lost. What comes out is what dense attention
    gives (ENG-1).

    Not thread-safe.

    Args:
        model: the model and its weights.
        backend: ``module`` or ``module:attribute``, or one that is loaded.
        num_pages: pages of the pool, of each data shard; the null page included.
        page_size: tokens in a page; or those of each cache group, one for each kind of layers as they first come.
        max_num_seqs: the most requests that run at a time, on each data shard.
        max_num_batched_tokens: the most tokens of a step, of each data shard.
        layout: of the caches, ``"v2"``, ``"v3"`` or ``"seq_on_lane"``.
        platform: ``"xla"``, or ``"interpret"`` for the backend's kernels for TPUs, interpreted.
        mesh: devices with the axes ``dp``, over which requests are spread, and ``tp``, over which KV heads are; None
            for one device.
        enable_caching: whether prefixes are found.
        keep_logits: whether outputs have the logits of all tokens.
        optimise: whether programs are compiled to be fast; False halves the time that compiling takes.
        options: of the manager, see `ManagerOptions`. In host memory those who give way wait with what they computed
            (SWAP-1); there is none with several data shards. A backend that takes no seed draws its own, and one that
            takes no policy evicts by its own (EVICT-1).

    Attributes:
        config: the model.
        schedulers: of each data shard.
        runner: what computes.

    Raises:
        TypeError: an argument of a wrong type [R1].
        ValueError: one out of its range, or that the model does not go with [R1].
    """

    @partial(takes_options, eviction=EVICTION)
    def __init__(
        self,
        model: tuple[ModelConfig, Params],
        *,
        backend: str | Backend = DEFAULT_BACKEND,
        num_pages: int,
        page_size: int | Sequence[int] = 16,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 64,
        layout: str = "v3",
        platform: str = "xla",
        mesh: Mesh | None = None,
        enable_caching: bool = True,
        keep_logits: bool = False,
        optimise: bool = True,
        **options: Unpack[ManagerOptions],
    ) -> None:
        self.config, params = model
        if platform not in PLATFORMS:
            raise refusal(ValueError, "R1", f"platform={shown(platform)} must be one of {', '.join(PLATFORMS)}")
        self._keep_logits = flag("keep_logits", keep_logits)
        names = load_backend(backend) if isinstance(backend, str) else backend
        groups = groups_of(self.config, page_size)
        limits = Limits(
            tuple(group.declared for group in groups),
            integer("num_pages", num_pages, minimum=2),
            self.config.max_model_len,
            integer("max_num_seqs", max_num_seqs, minimum=1),
            integer("max_num_batched_tokens", max_num_batched_tokens, minimum=1),
            flag("enable_caching", enable_caching),
        )
        self._num_shards = 1 if mesh is None else dict(mesh.shape).get("dp", 1)
        host = options["num_host_pages"] = integer("num_host_pages", options["num_host_pages"])
        managers = _managers(names, limits, self._num_shards, options)
        sizes = [group.page_size for group in groups]
        most = limits.max_num_seqs, limits.max_model_len, limits.max_num_batched_tokens
        tables = [names.get("MultiGroupPageTable")(*most, sizes) for _ in managers]
        planner = names.get("Scheduler") if names.offers("Scheduler") else Scheduler
        given = (limits, self._move) if host else (limits,)
        self.schedulers = [planner(*both, *given) for both in zip(managers, tables, strict=True)]
        self.runner = Runner(
            self.config,
            params,
            names,
            groups,
            tables,
            limits.num_pages,
            limits.max_num_seqs,
            limits.max_num_batched_tokens,
            layout,
            platform,
            mesh,
            flag("optimise", optimise),
        )
        self._served: dict[str, tuple[Served, int]] = {}
        self._arrivals = 0

    # -- Requests ---------------------------------------------------------------------------------------------------

    def add_request(
        self,
        request_id: str,
        prompt: Sequence[int] | NDArray[np.integer[Any]],
        *,
        max_tokens: int,
        sampling: Sampling = GREEDY,
        priority: int = 0,
        extra_keys: Iterable[ExtraKey] = (),
    ) -> None:
        """Takes a request; it is served from the next step on (ENG-2).

        Args:
            request_id: no unfinished request's.
            prompt: its tokens, at least one.
            max_tokens: how many are generated, at least one.
            sampling: how they are drawn.
            priority: the higher, the sooner it is served.
            extra_keys: what beside the tokens decides on the content of its pages: salts, adapters (HASH-2).

        Raises:
            TypeError: an argument of a wrong type [R1].
            ValueError: an id that an unfinished request has, an empty prompt, a token outside of the vocabulary, a
                length beyond the model's [R1]; a request that can never fit the pool [ENG-2].
        """
        if not isinstance(request_id, str):
            raise refusal(TypeError, "R1", f"request_id={shown(request_id)} must be a str")
        if request_id in self._served:
            raise refusal(ValueError, "R1", f"request_id={request_id!r} is that of an unfinished request")
        tokens = np.array(token_list("prompt", prompt), np.int32)
        if not tokens.size:
            raise refusal(ValueError, "R1", f"prompt of {request_id!r} is empty")
        strange = np.flatnonzero((tokens < 0) | (tokens >= self.config.vocab_size))
        if strange.size:
            raise refusal(
                ValueError, "R1", f"prompt[{strange[0]}] is none of the vocabulary's {self.config.vocab_size} tokens"
            )
        most = integer("max_tokens", max_tokens, minimum=1)
        if len(tokens) + most > self.config.max_model_len:
            raise refusal(
                ValueError,
                "R1",
                f"request {request_id!r} has {len(tokens)} tokens and max_tokens={most}, the model takes "
                f"{self.config.max_model_len} in all",
            )
        if not isinstance(sampling, Sampling):
            raise refusal(TypeError, "R1", f"sampling={shown(sampling)} must be a Sampling")
        urgency = integer("priority", priority, minimum=None)
        request = Request(request_id, tokens, listed("extra_keys", extra_keys))
        served = Served(request, len(tokens), most, sampling, urgency, self._arrivals)
        shard = self._shard_for(request)
        self.schedulers[shard].add(served)
        self._served[request_id] = served, shard
        self._arrivals += 1

    def abort(self, request_id: str) -> None:
        """Ends a request; what it computed can still be found. One that is not there is passed over."""
        served, shard = self._served.pop(request_id, (None, 0))
        if served is not None:
            self.schedulers[shard].remove(served)

    def tokens_of(self, request_id: str) -> list[int]:
        """The tokens of an unfinished request, its prompt first.

        Raises:
            ValueError: there is no such request [R1].
        """
        if request_id not in self._served:
            raise refusal(ValueError, "R1", f"request_id={request_id!r} is no unfinished request")
        tokens: list[int] = self._served[request_id][0].request.all_token_ids.tolist()
        return tokens

    @property
    def num_unfinished(self) -> int:
        """How many requests are waiting or running."""
        return len(self._served)

    # -- Steps ----------------------------------------------------------------------------------------------------

    def step(self) -> list[Output]:
        """Schedules, computes and samples (ENG-1).

        Returns:
            An output for each request that has a new token; where logits are kept for each that computed any.
        """
        return self.execute(self.schedule())

    def schedule(self) -> list[Plan]:
        """Plans a step, of each data shard, and runs its swaps; what it plans must be given to `execute` (ENG-2)."""
        return [scheduler.schedule() for scheduler in self.schedulers]

    def execute(self, plans: Sequence[Plan]) -> list[Output]:
        """Computes and samples what was planned; see `step`."""
        chunks = [chunk for plan in plans for chunk in plan.chunks]
        if not chunks:
            return []
        copies = [scheduler.manager.take_page_copies() for scheduler in self.schedulers]
        all_logits = self.runner.run(plans, copies, self._keep_logits)
        for scheduler, plan in zip(self.schedulers, plans, strict=True):
            scheduler.note_computed(plan)
        outputs = [self._output(chunk, logits) for chunk, logits in zip(chunks, all_logits, strict=True)]
        for output in outputs:
            if output.is_finished:
                self.abort(output.request_id)
        return outputs if self._keep_logits else [output for output in outputs if output.token is not None]

    def run(self) -> dict[str, list[int]]:
        """Takes steps until every request has finished.

        Returns:
            All tokens generated for each request, those of earlier steps too, in the order in which they finish.

        Raises:
            RuntimeError: a step computes nothing while requests wait (ENG-2).
        """
        generated = {name: self.tokens_of(name)[served.num_prompt :] for name, (served, _) in self._served.items()}
        finished: dict[str, list[int]] = {}
        while self._served:
            plans = self.schedule()
            if not any(plan.chunks for plan in plans):
                raise RuntimeError(f"{len(self._served)} requests wait and nobody runs [ENG-2]")
            for output in self.execute(plans):
                if output.token is not None:
                    generated[output.request_id].append(output.token)
                if output.is_finished:
                    finished[output.request_id] = generated[output.request_id]
        return finished

    # -- Inside ---------------------------------------------------------------------------------------------------

    def _move(self, plan: SwapPlan) -> None:
        """Runs a swap's copies, behind those of states that were asked for earlier in the step (MAN-13, SWAP-1).

        What those read may be given back and taken by who comes back; they may have to wait for nothing else.
        """
        self.runner.copy([self.schedulers[0].manager.take_page_copies()])
        self.runner.swap(plan)

    def _output(self, chunk: Chunk, logits: NDArray[np.float32]) -> Output:
        """Samples what follows a chunk, if it is the last that was known."""
        served, request = chunk.served, chunk.served.request
        token, ends = None, False
        if chunk.end == request.num_tokens:
            token = sample(logits[-1], served.sampling, chunk.end)
            request.append(token)
            generated = request.num_tokens - served.num_prompt
            ends = generated == served.max_tokens or token in served.sampling.stop_tokens
        return Output(request.request_id, token, ends, chunk.start, logits if self._keep_logits else None)

    def _shard_for(self, request: Request) -> int:
        """The data shard of a new request: where it is computed with the fewest tokens before it and its own (POOL-12).

        Those of requests that wait for a row count as well, of which managers don't know yet.
        """
        if self._num_shards == 1:
            return 0
        hits = [scheduler.manager.get_computed_pages(request)[1] for scheduler in self.schedulers]
        for scheduler in self.schedulers:
            scheduler.manager.free_page_hashes(request)
        waiting = [sum(served.num_left for served in scheduler.queue) for scheduler in self.schedulers]
        costs = [request.num_tokens - hit + tokens for hit, tokens in zip(hits, waiting, strict=True)]
        return costs.index(min(costs))


def _managers(names: Backend, limits: Limits, num_shards: int, options: ManagerOptions) -> list[Any]:
    """A manager for each data shard. Options at their defaults are left to the backend, which may not know them."""
    given = limits.num_pages, list(limits.groups), limits.max_model_len
    num_host_pages = options["num_host_pages"]
    if num_host_pages and num_shards > 1:
        raise refusal(ValueError, "R1", f"num_host_pages={num_host_pages} must be 0 with {num_shards} data shards")
    kind = "ShardedCacheManager" if num_shards > 1 else "CacheManager"
    flags = names.flags(kind, limits.enable_caching) if limits.enable_caching else (False,)
    defaults = defaults_of(ManagerOptions)
    wanted = {name: value for name, value in options.items() if value is not defaults[name]}
    if not names.accepts(kind, "hash_seed"):
        wanted.pop("hash_seed", None)
    if wanted.get("eviction") == EVICTION and not names.accepts(kind, "eviction"):
        wanted.pop("eviction")
    for name, value in wanted.items():
        if not names.accepts(kind, name):
            raise refusal(ValueError, "R1", f"{name}={shown(value)}: the backend's manager takes none")
    if num_shards > 1:
        return list(names.get(kind)(num_shards, *given, *flags, **wanted).shards)
    return [names.get(kind)(*given, *flags, **wanted)]
