"""vLLM's own tests of its scheduler, with our manager in place of its `KVCacheManager`.

By hand, and not in CI: it needs vLLM 0.33.0 (CONFORMANCE.md says how to install it, and to get its sources, as its
wheel has no tests), ``pip install pytest pytest-asyncio tblib einops``, and the configurations of the models that the
tests name (OPT-125m and 350m, LLaVA 1.5 7B), from the Hugging Face Hub or its cache; with the cache and without a
network set ``HF_HUB_OFFLINE=1``, else each test waits for the Hub until it gives up; and a configuration must name its
``dtype``, else each test looks for the model's weights and waits two seconds. Then::

    python -m tests.demonstrations.vllm_own_tests CHECKOUT      # some minutes

It runs them as they are and then with ours in place, and holds what fails because of ours to `CANNOT_PASS` and to what
the glue refuses by name. The exit status is 0 if just those fail.
"""

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

FILES = (
    "test_async_scheduler",
    "test_deferred_block_free",
    "test_priority_preemption_bug",
    "test_priority_scheduler_random",
    "test_scheduler",
    "test_swa_inflight_window_free",
)
"""Its tests, in ``tests/v1/core``, that make a scheduler."""

_LEFT_OUT = "are left out of tests/demonstrations/vllm_glue.py"

_INSIDE = "it looks inside vLLM's own manager: request lists, the null block, blocks taken by hand"
_AUXILIARY = "left out: auxiliary outputs, a connector that reads the pool of vLLM's own manager"

CANNOT_PASS = {
    "test_async_load_reservation_prevents_wedge_e2e": _INSIDE,
    "test_chunked_local_free_waits_for_in_flight_step": _INSIDE,
    "test_cow_retentions_deferred_until_copy_step_processed": _INSIDE,
    "test_memory_leak": _INSIDE,
    "test_swa_free_immediate_when_sync": _INSIDE,
    "test_swa_free_waits_for_in_flight_step": _INSIDE,
    "test_evicted_blocks_release_their_auxiliary_outputs_past_capacity": _AUXILIARY,
    "test_prefix_hit_is_capped_at_retained_auxiliary_outputs": _AUXILIARY,
    "test_routed_experts_hashes_follow_scheduled_tokens": _AUXILIARY,
    "test_routed_experts_prompt_start_at_prompt_end": _AUXILIARY,
    "test_scheduler_reset_prefix_cache": _AUXILIARY,
    "test_no_spec_decode_padding_up_to_max_model_len": "MAN-8: its request says that 30 tokens are computed, and none "
    "was ever given a slot: they would come by a connector",
    "test_scheduler_publishes_lookahead_blocks_at_allocation": "HASH-1: a page's key is that of its own tokens and of "
    "those before it; theirs can be of the next token too",
}
"""The tests that ours can't pass, each with the clause or the reason.

Those that ask for what the glue leaves out, and are refused by its name, are found by that message.
"""


def pytest_configure() -> None:
    """As a plugin of pytest: puts ours in place, and gives it what the tests look at inside vLLM's own."""
    if "KVPROOF_SWAP" not in os.environ:
        return
    glue: Any = importlib.import_module("vllm_glue")
    glue.swap()
    glue.Manager.block_pool = property(_block_pool)


def _block_pool(manager: Any) -> Any:
    """The pool by the names that the tests ask for."""
    pool = manager.ours.page_pool
    blocks = [SimpleNamespace(block_id=page, ref_cnt=pool.pages[page].ref_cnt) for page in range(pool.num_pages)]
    free = SimpleNamespace(num_free_blocks=pool.get_num_free_pages())
    return SimpleNamespace(
        get_num_free_blocks=pool.get_num_free_pages, num_gpu_blocks=pool.num_pages, blocks=blocks, free_block_queue=free
    )


def main() -> None:
    """Runs the tests both ways."""
    parser = argparse.ArgumentParser(description="Runs vLLM's own tests of its scheduler with our manager.")
    parser.add_argument("checkout", type=Path, help="where vLLM's sources are; its tests import vllm from elsewhere")
    checkout = parser.parse_args().checkout.resolve()
    _, broken = _run(checkout)
    passed, failed = _run(checkout, KVPROOF_SWAP="1")
    print(f"{passed} tests pass with ours in place; {len(broken)} fail as they are, with vLLM's own:")
    print("".join(f"  {test}\n" for test in sorted(broken)) + "By ours fail:")
    odd = {test: CANNOT_PASS.get(test, why) for test, why in sorted(failed.items()) if test not in broken}
    for test, why in odd.items():
        print(f"  {test}: {why}")
    sys.exit(any(test not in CANNOT_PASS and _LEFT_OUT not in why for test, why in odd.items()))


def _run(checkout: Path, **more: str) -> tuple[int, dict[str, str]]:
    """How many tests pass, and of those that fail their names and what was raised."""
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as place:  # beside the tests lies vLLM's own package, which is not built
        shutil.copytree(checkout / "tests", Path(place) / "tests", symlinks=True)
        paths = [place, str(here), str(here.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
        settings = {"JAX_PLATFORMS": "cpu", "VLLM_TARGET_DEVICE": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
        settings |= {"COLUMNS": "1000"}  # so that what was raised is told whole
        command = [sys.executable, "-m", "pytest", "-p", Path(__file__).stem, "-p", "no:cacheprovider", "-q", "-rfE"]
        told = subprocess.run(
            [*command, "--rootdir", place, *(f"tests/v1/core/{name}.py" for name in FILES)],
            cwd=place,
            env=os.environ | settings | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=7200,
        ).stdout
    counted = re.search(r"(\d+) passed", told)
    if counted is None:
        sys.exit(f"the tests did not run:\n{told}")
    return int(counted[1]), dict(re.findall(r"^(?:FAILED|ERROR) \S+?::(\w+)\S*(.*)", told, re.MULTILINE))


if __name__ == "__main__":
    main()
