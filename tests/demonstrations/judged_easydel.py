"""EasyDeL's engine, its scheduler and runner as they are, as the oracle asks it.

By hand, and not in CI. In an environment of its own, in a clone, in this order::

    pip install easydel==0.3.0 pillow torch && pip install -e '.[conformance]'
    EASYDEL_AUTO=0 JAX_PLATFORMS=cpu kvproof serve-check --engine tests.demonstrations.judged_easydel:Surge --seed 1

The model is the small Llama of `easydel_model`, with random weights. What the runner calls log-probabilities of sampled
tokens are the logits of all tokens, from which they are computed here.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from .easydel_model import MOST_TOKENS, NUM_PAGES, PAGE_SIZE, VOCABULARY, engine

__all__ = ["Surge"]


class Surge:
    """A scheduler and a runner with a pool that is too small for the requests that they run at once."""

    page_size, vocab_size, max_num_batched_tokens = PAGE_SIZE, VOCABULARY, MOST_TOKENS
    num_cached_tokens = (NUM_PAGES - 1) * PAGE_SIZE
    max_model_len = 64
    """Fewer than the model takes, so that each request fits into the pool, and no two of the longest do."""

    def __init__(self) -> None:
        self._scheduler, self._runner = engine(enable_sampler_metrics=True)
        self._requests = 0
        self._request = importlib.import_module("easydel.inference.esurge.request").EngineRequest
        self._params = importlib.import_module("easydel.inference.sampling_params").SamplingParams

    def reset(self) -> None:
        """Forgets all prefixes."""
        if not self._scheduler.reset_prefix_cache():
            raise RuntimeError("the prefix cache is in use")

    def generate(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[dict[str, Any]]:
        """Answers prompts that come at once."""
        if max(map(len, prompts)) + max_tokens > self.max_model_len:
            raise ValueError(f"more than {self.max_model_len} tokens")
        requests = {}
        for prompt in prompts:
            self._requests += 1
            name = f"r{self._requests}"
            requests[name] = self._request(
                request_id=name,
                prompt_token_ids=list(prompt),
                sampling_params=self._params(max_tokens=max_tokens, temperature=0.0),
                eos_token_id=None,
            )
            self._scheduler.add_request(requests[name])
        logprobs: dict[str, list[dict[int, float]]] = {name: [] for name in requests}
        while self._scheduler.get_num_unfinished_requests():
            step = self._scheduler.schedule()
            output = self._runner.execute_model(step)
            for name, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
                if tokens:
                    logprobs[name].append(_likeliest(output.token_logprobs[name], tokens[0]))
            self._scheduler.update_from_output(step, output)
        return [
            {
                "token_ids": request.output_token_ids,
                "logprobs": logprobs[name],
                "cached_tokens": max(0, request.num_cached_tokens),
            }
            for name, request in requests.items()
        ]


def _likeliest(logits: Any, token: int) -> dict[int, float]:
    """The log-probabilities of the five likeliest tokens, and of the one that was chosen."""
    numbers = np.asarray(logits, np.float64)
    numbers = numbers - np.logaddexp.reduce(numbers)
    return {int(one): float(numbers[one]) for one in {token, *np.argsort(numbers)[-5:].tolist()}}
