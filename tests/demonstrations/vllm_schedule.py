"""vLLM's `schedule()` of decoding requests with its own manager and with ours: whole calls, in turn, in one process.

By hand, and not in CI: it needs vLLM 0.33.0 and its sources, for the schedulers that its tests make (CONFORMANCE.md
says how to get both, and what its tests import). They name a model of the Hugging Face Hub; a folder with the
configuration that ``transformers`` has for its kind stands in for it, so that nothing is downloaded. Then::

    python tests/demonstrations/vllm_schedule.py CHECKOUT 64 256 1024      # a minute or two

Without a GPU set ``VLLM_TARGET_DEVICE=cpu``, else vLLM finds no device.

Each request has a prompt of its own and generates a token a step; prompts are 64 to 79 tokens long, so that one request
in 16 fills a block of 16 in each step. Told are medians and means of CPU time.
"""

import argparse
import gc
import importlib
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from vllm.v1.core.sched import scheduler as scheduling  # type: ignore[import-not-found]
from vllm.v1.outputs import ModelRunnerOutput  # type: ignore[import-not-found]
from vllm.v1.request import Request  # type: ignore[import-not-found]

_WARM, _STEPS = 5, 200


def main() -> None:
    """Times both managers for each number of requests."""
    parser = argparse.ArgumentParser(description="Times vLLM's schedule() with its own manager and with ours.")
    parser.add_argument("checkout", type=Path, help="where vLLM's sources are; its package is imported from elsewhere")
    parser.add_argument("requests", type=int, nargs="+", help="how many requests run")
    options = parser.parse_args()
    place = tempfile.mkdtemp()  # beside the tests lies vLLM's own package, which is not built
    (Path(place) / "tests").symlink_to(options.checkout.resolve() / "tests")
    sys.path.insert(0, place)
    transformers: Any = importlib.import_module("transformers")
    model = Path(place) / "model"
    transformers.OPTConfig(architectures=["OPTForCausalLM"]).save_pretrained(model)
    own, ours = scheduling.KVCacheManager, importlib.import_module("vllm_glue").Manager
    for count in options.requests:
        sides = [_scheduler(kind, count, model) for kind in (own, ours)]
        for side in sides * _WARM:
            _timed_step(side)
        gc.collect()
        gc.freeze()
        times = [[_timed_step(side) for side in sides] for _ in range(_STEPS)]
        middle, other = map(statistics.median, zip(*times, strict=True))
        mean = sum(pair[0] for pair in times) / sum(pair[1] for pair in times)
        print(
            f"{count} requests: vLLM's own {middle * 1e6:.0f} us, ours {other * 1e6:.0f} us"
            f" ({middle / other:.2f}; of means {mean:.2f})"
        )


def _scheduler(manager: type, count: int, model: Path) -> Any:
    """A scheduler of vLLM's with a manager and a number of waiting requests, for the model of a folder."""
    theirs: Any = importlib.import_module("tests.v1.core.utils")  # `tests` is the package of vLLM's tests here

    scheduling.KVCacheManager = manager
    made = theirs.create_scheduler(
        model=str(model), skip_tokenizer_init=True, max_num_seqs=count, max_num_batched_tokens=2**15,
        num_blocks=100_000, enable_prefix_caching=True, max_model_len=2048,
    )  # fmt: skip
    (like,) = theirs.create_requests(1, max_tokens=1900, ignore_eos=True)
    for number in range(count):
        prompt = [(number * 7919 + place * 104729) % 30000 for place in range(64 + number % 16)]
        made.add_request(Request(str(number), prompt, like.sampling_params, None, block_hasher=like._block_hasher))
    return made


def _timed_step(side: Any) -> float:
    """The CPU time of a scheduler's next `schedule()`; then each request gets a token."""
    start = time.process_time()
    step = side.schedule()
    took = time.process_time() - start
    ids = list(step.num_scheduled_tokens)
    tokens = [[int(request_id) * 31 % 30000] for request_id in ids]
    places = {request_id: place for place, request_id in enumerate(ids)}
    side.update_from_output(
        step,
        ModelRunnerOutput(
            req_ids=ids, req_id_to_index=places, sampled_token_ids=tokens, logprobs=None, prompt_logprobs_dict={},
            pooler_output=[],
        ),
    )  # fmt: skip
    return took


if __name__ == "__main__":
    main()
