"""The engine behind the one method by which any engine is judged: prompts in, token ids and log-probabilities out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import CacheSalt, ExtraKey, LoraAdapter

from .model import Params
from .serving import Engine, Output

__all__ = ["Completion", "Completions"]

_ALTERNATIVES = 5
"""The number of likeliest tokens that an answer names at each position."""


@dataclass
class Completion:
    """An answer.

    Attributes:
        token_ids: the tokens generated.
        logprobs: for each of them the log-probabilities of the likeliest tokens, its own among them, by token id.
        cached_tokens: the number of prompt tokens that were found cached when it was first scheduled.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    cached_tokens: int = 0


class Completions:
    """An engine that answers prompts: what `kvproof serve-check --engine` asks.

    An answer depends on the prompt, the adapter and the weights, and on nothing else: not on what is cached (ENG-3,
    ENG-4), on who is served beside it (ENG-5, ENG-6, ENG-10, ENG-11), gives way (ENG-7), takes its pages (ENG-8) or is
    taken back (ENG-14), on a reset (ENG-9), on salts (ENG-12), on how its text is cut into turns (ENG-13) or how long
    it is (ENG-15).

    Args:
        engine: an engine that keeps logits, and that nobody else calls.
        adapters: other weights of the same shapes, by the names of adapters.

    Attributes:
        page_size: the largest number of tokens in a page.
        max_model_len: the most tokens of a request.
        vocab_size: the number of tokens that there are.
        max_num_batched_tokens: the most tokens of a step.
        num_cached_tokens: tokens that the pages hold, if each cache group takes the same share of them.
        adapters: the names of adapters.
    """

    def __init__(self, engine: Engine, adapters: Mapping[str, Params] | None = None) -> None:
        self._engine, self._own = engine, engine.runner.params
        self._params = dict(adapters or {})
        limits = engine.schedulers[0].limits
        sizes = [group.kv_cache_spec.page_size for group in limits.groups]
        self.page_size = max(sizes)
        self.max_model_len, self.vocab_size = engine.config.max_model_len, engine.config.vocab_size
        self.max_num_batched_tokens = limits.max_num_batched_tokens
        self.num_cached_tokens = max(1, (limits.num_pages - 1) * min(sizes) // len(sizes))
        self.adapters = tuple(self._params)
        self._requests = 0
        extents = [layer.extent for layer in engine.config.layers if layer.extent]
        if extents:
            self.window = max(extents)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        n: int = 1,
        cache_salts: Sequence[str | None] | None = None,
        adapters: Sequence[str | None] | None = None,
        abort_after: Sequence[int | None] | None = None,
    ) -> list[list[Completion]]:
        """Answers prompts that come at once, with the likeliest tokens.

        Args:
            prompts: token ids of each.
            max_tokens: the number of tokens of each answer.
            n: the number of answers to each prompt.
            cache_salts: of each a salt, or None.
            adapters: of each the name of an adapter, or None.
            abort_after: of each the number of tokens after which it is taken back, or None.

        Returns:
            For each prompt its answers.

        Raises:
            ValueError: a prompt that can't be served; see `Engine.add_request`.
            RuntimeError: nobody goes on [ENG-2].
        """
        none = [None] * len(prompts)
        salts, names, ends = cache_salts or none, adapters or none, abort_after or none
        answers: list[list[Completion]] = [[Completion() for _ in range(n)] for _ in prompts]
        for adapter in dict.fromkeys(names):
            served: dict[str, tuple[Completion, int | None]] = {}
            for place, prompt in enumerate(prompts):
                if names[place] == adapter:
                    for answer in answers[place]:
                        served[self._added(prompt, max_tokens, salts[place], adapter, served)] = answer, ends[place]
            self._engine.runner.params = self._own if adapter is None else self._params[adapter]
            self._serve(served)
        return answers

    def reset(self) -> None:
        """Forgets all prefixes (ENG-9)."""
        for scheduler in self._engine.schedulers:
            scheduler.manager.reset_prefix_cache()

    def _added(
        self, prompt: Sequence[int], max_tokens: int, salt: str | None, adapter: str | None, others: Mapping[str, Any]
    ) -> str:
        """Adds a request; returns its id. Where it is refused the others of the call are taken back."""
        keys: list[ExtraKey] = [CacheSalt(salt)] if salt else []
        keys += [LoraAdapter(adapter)] if adapter else []
        name = f"request {self._requests}"
        self._requests += 1
        try:
            self._engine.add_request(name, list(prompt), max_tokens=max_tokens, extra_keys=keys)
        except ValueError:
            for other in others:
                self._engine.abort(other)
            raise
        return name

    def _serve(self, served: Mapping[str, tuple[Completion, int | None]]) -> None:
        """Takes steps until all have their answers or were taken back."""
        begun: set[str] = set()
        while self._engine.num_unfinished:
            plans = self._engine.schedule()
            chunks = [chunk for plan in plans for chunk in plan.chunks]
            if not chunks:
                raise RuntimeError(f"{self._engine.num_unfinished} requests wait and nobody runs [ENG-2]")
            for chunk in chunks:
                name = chunk.served.request.request_id
                if name not in begun:
                    begun.add(name)
                    served[name][0].cached_tokens = chunk.start
            for output in self._engine.execute(plans):
                self._note(output, *served[output.request_id])

    def _note(self, output: Output, answer: Completion, ends: int | None) -> None:
        if output.token is None:
            return
        assert output.logits is not None
        answer.token_ids.append(output.token)
        answer.logprobs.append(_likeliest(output.logits[-1], output.token))
        if len(answer.token_ids) == ends:
            self._engine.abort(output.request_id)


def _likeliest(logits: NDArray[np.float32], token: int) -> dict[int, float]:
    """The log-probabilities of the likeliest tokens and of one more, by token id; from `f32[V]`."""
    wide = logits.astype(np.float64)
    logprobs = wide - wide.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    best = np.argsort(-logprobs, kind="stable")[:_ALTERNATIVES].tolist()
    return {place: float(logprobs[place]) for place in dict.fromkeys([*best, token])}
