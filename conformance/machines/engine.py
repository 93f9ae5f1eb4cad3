"""The engine machine: a model served through the backend, by a schedule that is drawn, is held against dense attention.

The engine is the suite's own (`engine.serving`): its manager, tables, caches and functions are the backend's, and so is
its ``Scheduler`` if the backend offers one.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import kvproof.spec
from kvproof.spec.declarations import CacheSalt, ExtraKey, LoraAdapter, Request
from kvproof.spec.reading.arguments import refusal

from ..backends.levels import LEVELS
from ..backends.loading import Backend
from ..engine.config import LayerKind, ModelConfig
from ..engine.dense import dense_logits, tolerance
from ..engine.groups import groups_of
from ..engine.judging import Fault, output_fault, plan_fault, told
from ..engine.model import Params, init_params
from ..engine.sampler import GREEDY, Sampling
from ..engine.serving import Engine, Output
from .base import Machine, Side
from .draws import Drawing
from .properties import start, step
from .sides import unread

__all__ = ["EngineMachine"]


_PAGE = 2
_SEQS, _TOKENS = 3, 8


@dataclass(frozen=True)
class Kit:
    """What is served. Hashable.

    Attributes:
        config: the model.
        num_pages: pages of the pool.
    """

    config: ModelConfig
    num_pages: int

    @property
    def longest(self) -> int:
        """The longest prompt from which a token can be generated in the pool."""
        return max(length for length in range(1, self.config.max_model_len) if fits(self, length))

    def __str__(self) -> str:
        kinds = ", ".join(
            f"{layer.kind} {layer.extent}" if layer.extent else layer.kind for layer in self.config.layers
        )
        return (
            f"<model of layers {kinds}>, num_pages={self.num_pages}, page_size={_PAGE}, max_num_seqs={_SEQS}, "
            f"max_num_batched_tokens={_TOKENS}"
        )


def _kit(num_pages: int, *layers: LayerKind) -> Kit:
    return Kit(ModelConfig(8, 16, 16, 2, 1, 8, layers, 14, latent_rank=8, rotary_size=4, state_size=2), num_pages)


KITS = {
    "window": _kit(9, LayerKind("full"), LayerKind("window", 3)),
    "state": _kit(10, LayerKind("mla"), LayerKind("chunk", 4), LayerKind("state")),
}
"""What is served, by name: a program each. The pools hold one request, but the longest, or a few short ones."""


@dataclass
class Asked:
    """An unfinished request, as the machine knows it.

    Attributes:
        tokens: its tokens so far.
        num_prompt: tokens of its prompt.
        max_tokens: how many are generated.
        sampling: how.
    """

    tokens: list[int]
    num_prompt: int
    max_tokens: int
    sampling: Sampling


@functools.lru_cache(maxsize=8)
def _params(config: ModelConfig) -> Params:
    return init_params(config, 0)


def swaps(backend: Backend) -> bool:
    """Whether a backend's engine may have host memory: its manager, caches and scheduler, if any, allow it (SWAP-1)."""
    return (
        "swaps" not in backend.lacks
        and backend.accepts("CacheManager", "num_host_pages")
        and hasattr(backend.get("RaggedPagesCache"), "export_pages")
        and all(backend.offers(name) for name in ("export_pages", "write_states"))
        and (not backend.offers("Scheduler") or backend.accepts("Scheduler", "move"))
    )


def matches_parts(backend: Backend) -> bool:
    """Whether a backend's engine may hit amid pages: its manager finds them, its caches copy slots (MAN-17).

    A scheduler of the backend's own may publish pages before they are written, which is right where none is copied.
    """
    return (
        backend.accepts("CacheManager", "match_unit")
        and hasattr(backend.get("RaggedPagesCache"), "copy_pages")
        and backend.accepts("RaggedPagesCache.copy_pages", "num_slots")
        and not backend.offers("Scheduler")
    )


def engine_of(kit: Kit, backend: Backend, num_host_pages: int, match_unit: int | None) -> Engine:
    """An engine on a backend."""
    return Engine(
        (kit.config, _params(kit.config)),
        backend=backend,
        num_pages=kit.num_pages,
        page_size=_PAGE,
        max_num_seqs=_SEQS,
        max_num_batched_tokens=_TOKENS,
        keep_logits=True,
        hash_seed=b"kvproof",
        num_host_pages=num_host_pages,
        match_unit=match_unit,
        optimise=False,
    )


@functools.lru_cache(maxsize=4096)
def dense(kit: Kit, tokens: tuple[int, ...]) -> NDArray[np.float64]:
    """The logits after each token, `f64[n, V]`."""
    return dense_logits(_params(kit.config), kit.config, list(tokens))


@functools.lru_cache(maxsize=256)
def bound(kit: Kit, tokens: tuple[int, ...]) -> NDArray[np.float64]:
    """How far logits may be off after each token, `f64[n]`; some dense passes."""
    return tolerance(_params(kit.config), kit.config, list(tokens))


@functools.lru_cache(maxsize=256)
def fits(kit: Kit, num_tokens: int) -> bool:
    """Whether the specification's manager can serve a request of some tokens alone, one at a time (ENG-2)."""
    groups = [group.declared for group in groups_of(kit.config, _PAGE)]
    manager: Any = kvproof.spec.CacheManager(kit.num_pages, groups, kit.config.max_model_len)
    request = Request("alone", [0] * num_tokens)
    for computed in range(num_tokens):
        request.num_computed_tokens = computed
        if manager.allocate_slots(request, 1) is None:
            return False
    return True


_IDS = ("a", "b", "c", "d")
_KEYS: tuple[tuple[ExtraKey, ...], ...] = ((), (CacheSalt("s"),), (LoraAdapter("s"),))
_SAMPLINGS = (GREEDY, Sampling(1, 0.8), Sampling(2, 1.5, 3))


class EngineMachine(Machine):
    """Requests come with shared prefixes and go; steps are taken; a few tokens fill the pool.

    Attributes:
        kit: the model and the sizes.
        asked: the unfinished requests by id, as the machine knows them.
        text: what prompts begin like.
    """

    name = "engine"
    levels = frozenset(LEVELS)
    capability = "kernels"
    needs = (
        *(
            "CacheManager",
            "MultiGroupPageTable",
            "MultiGroupMetadataBuilder",
            "RaggedPagesCache",
            "RaggedPagesCacheMetaData",
        ),
        *("StatePages", "AxisRules", "mla_cache_update", "mla_paged_attention"),
    )
    examples, num_steps = 18, 12
    always = frozenset({"R1"})

    kit: Kit
    asked: dict[str, Asked]
    text: list[int]

    @start(
        "ENG-1",
        kit=st.sampled_from(list(KITS)),
        seed=st.integers(0, 3),
        host=st.sampled_from([0, 5, 40]),
        unit=st.sampled_from([None, 1]),
    )
    def construct(self, kit: str, seed: int, host: int, unit: int | None) -> None:
        """An engine with a small model, a small pool, few rows, host memory and hits amid pages if the backend can."""
        self.kit, self.asked = KITS[kit], {}
        num_host_pages = host if swaps(self.session.backend) else 0
        match_unit = unit if kit == "window" and matches_parts(self.session.backend) else None
        self.text = np.random.default_rng(seed).integers(0, 2, self.kit.config.max_model_len).tolist()

        def act(side: Side) -> dict[str, Any]:
            return {} if side is self.spec else {"engine": engine_of(self.kit, side.names, num_host_pages, match_unit)}

        shown = f", {num_host_pages=}" if num_host_pages else ""
        shown += f", {match_unit=}" if match_unit else ""
        self.build(f"engine = Engine({self.kit}{shown})", "ENG-1", act)

    # -- Steps --------------------------------------------------------------------------------------------------

    @step("ENG-2", weight=3, when=lambda self: len(self.asked) < len(_IDS))
    def add_request(self, data: Drawing) -> None:
        """A request comes, its prompt beginning like others; what can't be served is refused at once."""
        config = self.kit.config
        name = next(name for name in _IDS if name not in self.asked)
        length, most = data.draw(st.integers(1, config.max_model_len - 1)), data.draw(st.integers(1, 4))
        if data.one_of([False, False, True]):
            length, most = self.kit.longest, 1  # one token more would not fit the pool
        tokens = self.text[:length]
        if data.one_of([False, True]):
            tokens[-1] = 1 - tokens[-1]
        sampling, keys = data.one_of(_SAMPLINGS), data.one_of(_KEYS)
        priority: int = data.one_of([0, 0, 1])
        if data.rarely():
            name, tokens = data.one_of([(name, []), *((other, tokens) for other in self.asked)])
        self.bring(name, tokens, most, priority, sampling, keys)

    @step("ENG-1", "ENG-2", weight=2, when=lambda self: len(self.asked) < len(_IDS) - 1)
    def overtake(self, data: Drawing) -> None:
        """One that needs the whole pool comes while another is served, which gives way, to host memory or for good."""
        names = [name for name in _IDS if name not in self.asked]
        if not self.asked:
            self.bring(names.pop(), self.text[: data.draw(st.integers(1, self.kit.longest))], 1)
        self.advance()
        self.bring(names[0], [1 - token for token in self.text[: self.kit.longest]], 1, priority=2)
        self.advance()

    def bring(
        self,
        name: str,
        tokens: list[int],
        most: int,
        priority: int = 0,
        sampling: Sampling = GREEDY,
        keys: tuple[ExtraKey, ...] = (),
    ) -> None:
        """A request comes."""
        given = {"max_tokens": most, "priority": priority}
        shown = "".join(f", {word}={value}" for word, value in given.items() if value or word == "max_tokens")
        shown += f", sampling=Sampling({sampling.seed}, {sampling.temperature}, {sampling.top_k})" * bool(sampling.seed)
        shown += f", extra_keys={keys}" if keys else ""

        def act(side: Side) -> None:
            if side is self.spec:
                self.refuse(name, tokens, most)
            else:
                side.engine.add_request(name, tokens, sampling=sampling, extra_keys=keys, **given)

        done = self.call(f"engine.add_request({name!r}, {tokens}{shown})", act, "ENG-2")
        if not done.refused:
            self.asked[name] = Asked(list(tokens), len(tokens), most, sampling)
        self.hold_unfinished("R1")

    @step("ENG-2", when=lambda self: self.asked)
    def abort(self, data: Drawing) -> None:
        """A request is taken back."""
        name = data.one_of(list(self.asked))
        self.call(f"engine.abort({name!r})", lambda side: side is self.spec or side.engine.abort(name), "ENG-2", unread)
        del self.asked[name]
        self.hold_unfinished("ENG-2")

    @step("ENG-1", "ENG-2", weight=4, when=lambda self: self.asked)
    def take(self, data: Drawing) -> None:
        """A step is taken; every logit and token that it gives is held against dense attention."""
        del data
        self.advance()

    @step("ENG-1", "ENG-2", weight=2, when=lambda self: self.asked)
    def finish(self, data: Drawing) -> None:
        """Steps are taken until all have finished, at most as many as compute each token three times."""
        del data
        left = 8 + 3 * sum(len(asked.tokens) + asked.max_tokens for asked in self.asked.values())
        while self.asked and left:
            self.advance()
            left -= 1
        self.compared("ENG-2")
        if self.asked:
            self.differ("ENG-2", "all to finish", f"{', '.join(self.asked)} still waiting, though nobody came")

    # -- What must be -------------------------------------------------------------------------------------------

    def refuse(self, name: str, tokens: list[int], most: int) -> None:
        """Raises as the engine must for a request that it can't serve."""
        if name in self.asked:
            raise refusal(ValueError, "R1", f"request_id={name!r} is in use")
        if not tokens:
            raise refusal(ValueError, "R1", "the prompt is empty")
        if len(tokens) + most > self.kit.config.max_model_len:
            raise refusal(ValueError, "R1", "the request is longer than the model's limit")
        if not fits(self.kit, len(tokens) + most - 1):
            raise refusal(ValueError, "ENG-2", "the request can never fit the pool")

    def advance(self) -> None:
        """Takes a step and holds what it does."""
        faults: list[Fault] = []
        notes: list[str] = []

        def act(side: Side) -> list[Output]:
            if side is self.spec:
                return []
            engine: Engine = side.engine
            plans = engine.schedule()
            notes.append(told(plans))
            fault = plan_fault(engine, plans)
            if fault is not None:
                faults.append(fault)
                return []
            return engine.execute(plans)

        made = self.call("engine.step()", act, "ENG-1", unread)
        self.calls.extend(notes)
        self.compared("ENG-2")
        for fault in faults:
            self.differ(fault.clause, fault.expected, fault.observed)
        for output in made.backend:
            self.judge(output)
        self.hold_unfinished("ENG-2")

    def judge(self, output: Output) -> None:
        """Holds the logits and the token of an output against dense attention (ENG-1)."""
        name = output.request_id
        asked = self.asked[name]
        tokens = tuple(asked.tokens)
        self.compared("ENG-1")
        fault = output_fault(output, asked.sampling, dense(self.kit, tokens), lambda: bound(self.kit, tokens))
        if fault is not None:
            self.differ(fault.clause, fault.expected, fault.observed)
        if output.token is None:
            return
        asked.tokens.append(output.token)
        ends = len(asked.tokens) == asked.num_prompt + asked.max_tokens
        if ends != output.is_finished:
            self.differ("ENG-2", f"{name!r} to finish after {asked.max_tokens} tokens", f"{output.is_finished=}")
        if ends:
            del self.asked[name]

    def hold_unfinished(self, clause: str) -> None:
        """Holds which requests are unfinished, and how many tokens each has."""
        expected = {name: len(asked.tokens) for name, asked in self.asked.items()}
        engine: Engine = self.backend.engine

        def read() -> tuple[int, dict[str, int]]:
            return engine.num_unfinished, {name: len(engine.tokens_of(name)) for name in self.asked}

        self.check(clause, "how many are unfinished, and their lengths", (len(expected), expected), read)
