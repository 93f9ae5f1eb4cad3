"""The engine machine: a model served through the backend, by a schedule that is drawn, is held against dense attention.

The engine is the suite's own (`engine.serving`): its manager, tables, caches and functions are the backend's, and so is
its ``Scheduler`` if the backend offers one.
"""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from kvproof.spec.arguments import refusal
from kvproof.spec.declarations import CacheSalt, LoraAdapter

from ..engine.sampler import GREEDY, Sampling, sample, sure_token
from ..engine.scheduler import Plan
from ..engine.serving import Engine, Output
from ..levels import LEVELS
from ..properties import start, step
from .base import Machine, Side
from .draws import Drawing, one_of, rarely
from .engine_models import KITS, Asked, Kit, bound, dense, engine_of, fits

__all__ = ["EngineMachine"]

_IDS = ("a", "b", "c", "d")
_KEYS = ((), (CacheSalt("s"),), (LoraAdapter("s"),))
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
        *("CacheManager", "MultiGroupPageTable", "MetadataBuilder", "RaggedPagesCache", "RaggedPagesCacheMetaData"),
        *("StatePages", "AxisRules", "mla_cache_update", "mla_paged_attention"),
    )
    examples, num_steps = 18, 12
    always = frozenset({"R1"})

    kit: Kit
    asked: dict[str, Asked]
    text: list[int]

    @start("ENG-1", kit=st.sampled_from(list(KITS)), seed=st.integers(0, 3))
    def construct(self, kit: str, seed: int) -> None:
        """An engine with a small model, a small pool and few rows."""
        self.kit, self.asked = KITS[kit], {}
        self.text = np.random.default_rng(seed).integers(0, 2, self.kit.config.max_model_len).tolist()

        def act(side: Side) -> dict[str, Any]:
            return {} if side is self.spec else {"engine": engine_of(self.kit, side.names)}

        self.build(f"engine = Engine({self.kit})", "ENG-1", act)

    # -- Steps --------------------------------------------------------------------------------------------------

    @step("ENG-2", weight=3, when=lambda self: len(self.asked) < len(_IDS))
    def add_request(self, data: Drawing) -> None:
        """A request comes, its prompt beginning like others; what can't be served is refused at once."""
        config = self.kit.config
        name = next(name for name in _IDS if name not in self.asked)
        length, most = data.draw(st.integers(1, config.max_model_len - 1)), data.draw(st.integers(1, 4))
        if one_of(data, [False, False, True]):
            length, most = self.kit.longest, 1  # one token more would not fit the pool
        tokens = self.text[:length]
        if one_of(data, [False, True]):
            tokens[-1] = 1 - tokens[-1]
        given = {"max_tokens": most, "priority": one_of(data, [0, 0, 1])}
        sampling, keys = one_of(data, _SAMPLINGS), one_of(data, _KEYS)
        if rarely(data):
            name, tokens = one_of(data, [(name, []), *((other, tokens) for other in self.asked)])
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
            self.asked[name] = Asked(tokens, len(tokens), most, sampling)
        self.hold_unfinished("R1")

    @step("ENG-2", when=lambda self: self.asked)
    def abort(self, data: Drawing) -> None:
        """A request is taken back."""
        name = one_of(data, list(self.asked))
        self.call(
            f"engine.abort({name!r})", lambda side: side is self.spec or side.engine.abort(name), "ENG-2", _nothing
        )
        del self.asked[name]
        self.hold_unfinished("ENG-2")

    @step("ENG-1", "ENG-2", weight=4, when=lambda self: self.asked)
    def take(self, data: Drawing) -> None:
        """A step is taken; every logit and token that it gives is held against dense attention."""
        del data
        self.advance()

    @step("ENG-1", "ENG-2", weight=2, when=lambda self: self.asked)
    def finish(self, data: Drawing) -> None:
        """Steps are taken until all have finished: after so many that each token could be computed three times."""
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
        faults: list[str] = []
        notes: list[str] = []

        def act(side: Side) -> list[Output]:
            if side is self.spec:
                return []
            engine: Engine = side.engine
            plans = engine.schedule()
            notes.append(_told(plans))
            faults.extend(_faults(engine, plans))
            return [] if faults else engine.execute(plans)

        made = self.call("engine.step()", act, "ENG-1", _nothing)
        self.calls.extend(notes)
        self.compared("ENG-2")
        if faults:
            self.differ("ENG-2", "a step in which somebody goes on, and nobody scheduled gives way", faults[0])
        for output in made.backend:
            self.judge(output)
        self.hold_unfinished("ENG-2")

    def judge(self, output: Output) -> None:
        """Holds the logits and the token of an output against dense attention (ENG-1)."""
        name = output.request_id
        asked = self.asked[name]
        assert output.logits is not None
        end = output.start + len(output.logits)
        right = dense(self.kit, tuple(asked.tokens))
        errors = np.abs(output.logits - right[output.start : end]).max(axis=1)
        self.compared("ENG-1")
        if not (errors <= bound(self.kit, tuple(asked.tokens), errors)[output.start : end]).all():
            place = int(np.argmax(np.nan_to_num(errors, nan=np.inf)))
            position = output.start + place
            limit = bound(self.kit, tuple(asked.tokens), errors)[position]
            expected = f"logits of {name!r} at position {position} within {limit:.2g} of dense attention's"
            self.differ("ENG-1", expected, f"off by {errors[place]:.2g}")
        if output.token is None:
            return
        given = right[-1], asked.sampling, len(asked.tokens)
        if output.token != sample(*given):
            must = sure_token(*given, bound(self.kit, tuple(asked.tokens), None)[-1])
            if must is not None:
                self.differ("ENG-1", f"token {must} of {name!r} at position {end}", f"token {output.token}")
        asked.tokens.append(output.token)
        if (len(asked.tokens) == asked.num_prompt + asked.max_tokens) != output.is_finished:
            self.differ(
                "ENG-2", f"{name!r} to finish after {asked.max_tokens} tokens", f"finished: {output.is_finished}"
            )
        if output.is_finished:
            del self.asked[name]

    def hold_unfinished(self, clause: str) -> None:
        """Holds which requests are unfinished, and their tokens."""
        expected = {name: asked.tokens for name, asked in self.asked.items()}
        engine: Engine = self.backend.engine
        self.check(
            clause, "unfinished requests", expected, lambda: {name: engine.tokens_of(name) for name in self.asked}
        )
        self.check(clause, "how many are unfinished", len(expected), lambda: engine.num_unfinished)


def _faults(engine: Engine, plans: list[Plan]) -> list[str]:
    """What is wrong with a plan by itself."""
    found = [] if any(plan.chunks for plan in plans) else [f"{engine.num_unfinished} wait and nobody computes anything"]
    for plan, scheduler in zip(plans, engine.schedulers, strict=True):
        gone = [served.request.request_id for served in plan.preempted]
        for chunk in plan.chunks:
            name = chunk.served.request.request_id
            pages = scheduler.manager.get_page_ids(name)
            sizes = [group.kv_cache_spec.page_size for group in scheduler.limits.groups]
            short = any(len(own) * size < chunk.end for own, size in zip(pages, sizes, strict=True))
            if name in gone or short:
                found.append(f"{name!r} is scheduled for tokens {chunk.start} to {chunk.end - 1} and was preempted")
    return found


def _told(plans: list[Plan]) -> str:
    """A plan in a line, as a note of a counterexample."""
    chunks = [
        f"{chunk.served.request.request_id} {chunk.start}-{chunk.end - 1}" for plan in plans for chunk in plan.chunks
    ]
    gone = [served.request.request_id for plan in plans for served in plan.preempted]
    return f"# computes {', '.join(chunks) or 'nothing'}" + (f"; {', '.join(gone)} gave way" if gone else "")


def _nothing(result: Any, side: Side) -> None:
    """Results of which nothing is compared right away."""
    del result, side
