"""EasyDeL's own tests of its scheduler, manager, pool, tables and sequence buffer, with ours in place of theirs.

By hand, and not in CI: it needs ``pip install easydel==0.3.0 pillow pytest`` and a checkout of EasyDeL, whose wheel has
no tests. Then::

    python -m tests.demonstrations.easydel_own_tests CHECKOUT      # half a minute

It runs them as they are and then with ours in place, and holds what fails because of ours to `CANNOT_PASS`. The exit
status is 0 if just those fail.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

FILES = (
    "test_cache_manager_allocation_rollback",
    "test_dp_page_sharding",
    "test_model_runner_window_alignment",
    "test_optional_config_regressions",
    "test_scheduler_comprehensive",
    "test_scheduler_dp_shard_fallback",
    "test_scheduler_starvation",
    "test_sequence_buffer_condense",
)
"""Its tests, in ``tests/inference``, that make a scheduler, manager, pool, table or sequence buffer.

Some import torch: without it they can't run, with EasyDeL's own or with ours.
"""

_SHARDS = "POOL-12: each shard has a pool with ids of its own; theirs has ranges of one pool's ids, and takes a hint"
_INSIDE = "R1: it makes a manager of parts that only theirs has, one of which fails midway, and wants its roll-back"

CANNOT_PASS = {
    "test_allocate_slots_rolls_back_saved_prefix_pages_on_shard_allocation_error": _INSIDE,
    "test_page_pool_shard_allocation_uses_usable_ranges": _SHARDS,
    "test_page_pool_ignores_invalid_dp_shard_partition": _SHARDS,
    "test_scheduler_uses_dp_local_hints_when_num_pages_divisible": _SHARDS,
    "test_fsdp_like_scheduler_cycle_completes_request_with_fallback": _SHARDS,
}
"""The tests that ours can't pass, each with the clause that says why ours is right."""


def pytest_configure() -> None:
    """As a plugin of pytest: puts ours in place, in the modules that make them and in those that tests import from."""
    if "KVPROOF_SWAP" not in os.environ:
        return
    glue: Any = importlib.import_module("easydel_glue")
    glue.swap()
    home = "easydel.inference.esurge"
    importlib.import_module(f"{home}.core.manager").__dict__["CacheManager"] = glue.Manager
    importlib.import_module(f"{home}.core.page_pool").__dict__["PagePool"] = glue.fast.PagePool
    tables = {name: getattr(glue.fast, name) for name in ("PageTable", "MultiGroupPageTable")}
    importlib.import_module(f"{home}.page_table").__dict__.update(tables)


def main() -> None:
    """Runs the tests both ways."""
    parser = argparse.ArgumentParser(description="Runs EasyDeL's own tests with our manager, pool and tables.")
    parser.add_argument("checkout", type=Path, help="where EasyDeL's repository is")
    checkout = parser.parse_args().checkout.resolve()
    _, broken = _run(checkout)
    passed, failed = _run(checkout, KVPROOF_SWAP="1")
    print(f"{passed} tests pass with ours in place; {len(broken)} fail as they are, with EasyDeL's own:")
    print("".join(f"  {test}\n" for test in sorted(broken)) + "By ours fail:")
    for test in sorted(failed - broken):
        print(f"  {test}: {CANNOT_PASS.get(test, 'not expected')}")
    sys.exit(failed - broken != CANNOT_PASS.keys())


def _run(checkout: Path, **more: str) -> tuple[int, set[str]]:
    """How many tests pass, and the names of those that fail."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parents[1]), str(here.parents[1] / "src"), os.environ.get("PYTHONPATH", "")]
    settings = {"EASYDEL_AUTO": "0", "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pytest", "-p", Path(__file__).stem, "-p", "no:cacheprovider", "-q", "-rf"]
    tests = [f"tests/inference/{name}.py" for name in FILES]
    told = subprocess.run(
        [*command, "--rootdir", str(checkout), "--import-mode=importlib", "--continue-on-collection-errors", *tests],
        cwd=checkout,
        env=os.environ | settings | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    ).stdout
    counted = re.search(r"(\d+) passed", told)
    if counted is None:
        sys.exit(f"the tests did not run:\n{told}")
    return int(counted[1]), set(re.findall(r"^FAILED \S+::(\w+)", told, re.MULTILINE))


if __name__ == "__main__":
    main()
