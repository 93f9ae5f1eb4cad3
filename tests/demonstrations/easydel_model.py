"""A model served by EasyDeL: its scheduler, runner and kernel, with our manager and tables in place of its own.

By hand, and not in CI: it needs ``pip install easydel==0.3.0 pillow torch``, then kvproof. Then::

    python -m tests.demonstrations.easydel_model      # a minute

A small Llama with random weights serves prompts with a shared prefix, greedily, from a pool too small for all of them:
first by EasyDeL as it is, then with what `easydel_glue` puts in place. The tokens must be the same, and every call must
do what the specification does (`Lockstep`). EasyDeL finds no device's memory to size its cache by on a CPU, and takes 4
GiB; here it is told of less.
"""

import importlib
import os
import random
from typing import Any
from unittest.mock import Mock

from kvproof import fast
from kvproof.conformance import Lockstep

PAGE_SIZE, NUM_PAGES, MAX_LENGTH, MOST_RUNNING, MOST_TOKENS, VOCABULARY = 4, 24, 128, 4, 32, 128
_PAGE_BYTES = PAGE_SIZE * 2 * 2 * 32 * 2  # keys and values of one layer, 2 heads of 32 numbers in bfloat16


def main() -> None:
    """Serves the prompts both ways."""
    os.environ.setdefault("EASYDEL_AUTO", "0")  # else it adds flags to XLA_FLAGS that the jaxlib of today refuses
    own, steps, preempted, hits = _served()
    print(f"EasyDeL's own: {steps} steps, {preempted} preemptions, {hits} tokens hit")

    from .easydel_glue import Manager, swap

    Manager.names = Lockstep(fast)
    swap()
    ours, steps, preempted, hits = _served()
    print(f"With ours: {steps} steps, {preempted} preemptions, {hits} tokens hit; every call as the specification")
    assert ours == own, "other tokens"
    print(f"The same {sum(map(len, own))} tokens for {len(own)} prompts.")


def engine(**more: Any) -> tuple[Any, Any]:
    """EasyDeL's scheduler and runner over the model.

    Args:
        more: further arguments of the runner.
    """
    runners = importlib.import_module("easydel.inference.esurge.runners.model_runner")
    schedulers = importlib.import_module("easydel.inference.esurge.scheduler")
    ragged: Any = importlib.import_module("easydel.caching.ragged_page.cache")
    ragged.per_device_hbm_budget_bytes = Mock(return_value=NUM_PAGES * _PAGE_BYTES)
    runner = runners.eSurgeRunner(
        _model(),
        page_size=PAGE_SIZE,
        max_model_len=MAX_LENGTH,
        max_num_batched_tokens=MOST_TOKENS,
        min_input_pad=MOST_RUNNING,
        min_token_pad=MOST_TOKENS,  # few programs are compiled
        max_num_seqs=MOST_RUNNING,
        async_scheduling=False,
        use_aot_forward=False,
        enable_overlap_execution=False,
        **more,
    )
    scheduler = schedulers.Scheduler.from_runner(runner, max_num_batched_tokens=MOST_TOKENS, async_scheduling=False)
    runner.compile(max_num_batched_tokens=MOST_TOKENS)
    runner.initialize_kv_cache()
    return scheduler, runner


def _served() -> tuple[list[list[int]], int, int, int]:
    """Serves the prompts: their tokens; how many steps, preemptions, and tokens found in the cache."""
    scheduler, runner = engine()
    requests = _requests()
    waiting, steps, preempted = list(requests), 0, 0
    while waiting or scheduler.get_num_unfinished_requests():
        if waiting:
            scheduler.add_request(waiting.pop(0))
        step = scheduler.schedule()
        scheduler.update_from_output(step, runner.execute_model(step))
        steps, preempted = steps + 1, preempted + len(step.preempted_req_ids)
    hits = sum(max(request.num_cached_tokens, 0) for request in requests)
    return [list(request.output_token_ids) for request in requests], steps, preempted, hits


def _model() -> Any:
    easydel, nnx, jnp = map(importlib.import_module, ("easydel", "flax.nnx", "jax.numpy"))
    config = easydel.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_LENGTH,
        attn_mechanism="ragged_page_attention_v2",
        sharding_axis_dims=(1, 1, 1, 1, 1),
    )
    return easydel.LlamaForCausalLM(config=config, dtype=jnp.float32, param_dtype=jnp.float32, rngs=nnx.Rngs(0))


def _requests() -> list[Any]:
    draw = random.Random(0)
    request_of = importlib.import_module("easydel.inference.esurge.request").EngineRequest
    params = importlib.import_module("easydel.inference.sampling_params").SamplingParams
    prefix = [draw.randrange(VOCABULARY) for _ in range(40)]
    return [
        request_of(
            request_id=f"request {number}",
            prompt_token_ids=prefix[: 32 + 8 * (number % 2)] + [draw.randrange(VOCABULARY) for _ in range(3 + number)],
            sampling_params=params(max_tokens=12, temperature=0.0),
            eos_token_id=None,
        )
        for number in range(8)
    ]


if __name__ == "__main__":
    main()
