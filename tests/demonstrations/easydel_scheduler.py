"""The recorder's demonstration: EasyDeL's own scheduler, unmodified, its manager recorded, then replayed.

By hand, and not in CI: it needs ``pip install easydel==0.3.0 pillow``, then kvproof. Then::

    python -m tests.demonstrations.easydel_scheduler /tmp/easydel.log      # some 15 s, most of them EasyDeL's import
    kvproof replay /tmp/easydel.log

The workload is made up: requests of a few tenants with shared system prompts come to a pool too small for them, so that
they hit, are preempted and come back; no model runs, the next tokens are drawn. EasyDeL is as it was installed: its
scheduler is given the recorded manager in place of its own, which is how any engine is recorded.
"""

import argparse
import importlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvproof import spec
from kvproof.conformance import record

PAGE_SIZE, NUM_PAGES, MAX_LENGTH, MOST_RUNNING, MOST_TOKENS = 4, 48, 64, 6, 16

GROUPS = {
    "full": ["FullAttention"],
    "full,window": ["FullAttention", "SlidingWindow"],
    "full,chunk": ["FullAttention", "ChunkedLocalAttention"],
}


def main() -> None:
    """Serves the workload, and writes the log."""
    parser = argparse.ArgumentParser(description="Records EasyDeL's scheduler at work.")
    parser.add_argument("log", type=Path, help="where the log goes")
    parser.add_argument("--requests", type=int, default=40, help="how many requests come")
    parser.add_argument("--groups", default="full", choices=GROUPS, help="the model's layers (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the workload")
    options = parser.parse_args()
    scheduler = make_scheduler(options.groups)
    groups = [spec.CacheGroupSpec(_declared(spec, f"{kind}Spec")) for kind in GROUPS[options.groups]]
    with record(scheduler.kv_cache_manager, options.log, options={"kv_cache_groups": groups}) as recorded:
        scheduler.kv_cache_manager = recorded
        steps, preempted, hits = serve(scheduler, options.requests, random.Random(options.seed))
    print(f"{options.requests} requests in {steps} steps: {preempted} preemptions, {hits} tokens hit; {options.log}")


def _module(name: str) -> Any:
    os.environ.setdefault("EASYDEL_AUTO", "0")  # else it adds flags to XLA_FLAGS that the jaxlib of today refuses
    return importlib.import_module(f"easydel.inference.esurge.{name}")


def _declared(names: Any, kind: str, **more: Any) -> Any:
    """A cache group's declaration, by our classes or by EasyDeL's, which have the same names."""
    extent = {"SlidingWindowSpec": {"sliding_window": 8}, "ChunkedLocalAttentionSpec": {"attention_chunk_size": 8}}
    shape = {"page_size": PAGE_SIZE, "num_kv_heads": 1, "head_size": 8, "dtype": "float32"}
    return getattr(names, kind)(**shape, **extent.get(kind, {}), **more)


def make_scheduler(kinds: str, ahead: bool = False) -> Any:
    """EasyDeL's scheduler over a small pool.

    Args:
        kinds: the model's layers, one of `GROUPS`.
        ahead: whether a step can be scheduled before the one before it has brought its tokens.
    """
    config, groups = _module("config"), _module("core.interface")
    attention = [_declared(groups, f"{kind}Spec", use_mla=False) for kind in GROUPS[kinds]]
    kv_cache_config = groups.CacheGroupsConfig(NUM_PAGES, [groups.CacheGroupSpec(kind) for kind in attention])
    whole = config.Config(
        config.SchedulerConfig(
            *(MOST_RUNNING, MOST_TOKENS, MAX_LENGTH),
            chunked_prefill_enabled=True,
            async_scheduling=ahead,
        ),
        config.CacheConfig(NUM_PAGES, PAGE_SIZE, True),
    )
    schedulers = _module("scheduler")
    return (schedulers.AsyncScheduler if ahead else schedulers.Scheduler)(whole, kv_cache_config)


def serve(
    scheduler: Any, count: int, draw: random.Random, on_step: Callable[[Any], None] | None = None, ahead: int = 0
) -> tuple[int, int, int]:
    """Serves requests until all are done; how many steps, preemptions, and tokens found in the cache.

    Args:
        scheduler: what `make_scheduler` made.
        count: how many requests come.
        draw: where the workload comes from.
        on_step: called with every step that the scheduler has put together; None: nothing is.
        ahead: so many steps are scheduled before the tokens of the first of them come.
    """
    request_of, params = _module("request").EngineRequest, importlib.import_module("easydel.inference.sampling_params")
    output_of = _module("outputs").ModelRunnerOutput
    prompts = [[draw.randrange(1000) for _ in range(length)] for length in (12, 9, 16)]
    waiting = [
        request_of(
            request_id=f"request {number}",
            prompt_token_ids=draw.choice(prompts) + [draw.randrange(1000) for _ in range(draw.randint(1, 20))],
            sampling_params=params.SamplingParams(max_tokens=draw.randint(2, 16)),
            eos_token_id=None,
        )
        for number in range(count)
    ]
    every, steps, preempted = list(waiting), 0, 0
    under_way: list[tuple[Any, Any]] = []
    while waiting or scheduler.get_num_unfinished_requests():
        for _ in range(min(len(waiting), draw.randint(0, 2))):
            scheduler.add_request(waiting.pop())
        step = scheduler.schedule()
        if on_step is not None:
            on_step(step)
        steps, preempted = steps + 1, preempted + len(step.preempted_req_ids)
        ids = list(step.num_scheduled_tokens)
        known = [scheduler.requests[name] for name in ids]
        sampled = [[draw.randrange(1000)] if r.num_computed_tokens >= r.num_tokens else [] for r in known]
        places = {name: place for place, name in enumerate(ids)}
        under_way.append((step, output_of(ids, places, sampled, None, None, {})))
        if len(under_way) > ahead:
            scheduler.update_from_output(*under_way.pop(0))
    return steps, preempted, sum(max(request.num_cached_tokens, 0) for request in every)


if __name__ == "__main__":
    main()
