"""Compiles attention for an H200 with every value of every option, or in a random part of all combinations.

    python -m tests.kernels.full_gpu_grid
    python -m tests.kernels.full_gpu_grid --sample 300 --seed 1 --only head_dim=128 queries=bfloat16 --json grid.json

Without --sample each option differs from its most usual value alone. A program takes one to twenty seconds; registers
and bytes spilled are printed for each kernel, but for those that were compiled before. Exit status 1: some didn't
compile, copied what should be updated in place, called other kernels than they should, or the most usual spills.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from . import gpu_aot
from .gpu_grid import FACTORS, USUAL, Account, Choice, account, every_choice, one_at_a_time

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles and prints.

    Returns:
        The exit status: 0 if all is well, 1 if not, 2 where nothing can be compiled for GPUs.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.full_gpu_grid", description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, help="compile so many of all combinations, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", nargs="+", default=[], metavar="FACTOR=VALUE", help=f"factors: {', '.join(FACTORS)}")
    parser.add_argument("--json", type=Path, help="write the results there")
    chosen = parser.parse_args(arguments)
    if not gpu_aot.available():
        print("jax-cuda13-plugin and absl-py, which compile for GPUs, are not installed", file=sys.stderr)
        return 2
    wanted = dict(each.partition("=")[::2] for each in chosen.only)
    unknown = [name for name in wanted if name not in FACTORS]
    if unknown:
        parser.error(f"--only: no factors: {', '.join(unknown)}")
    choices = list((one_at_a_time if chosen.sample is None else every_choice)(wanted))
    if chosen.sample is not None:
        choices = random.Random(chosen.seed).sample(choices, min(chosen.sample, len(choices)))
    results = [_compiled(choice, at, len(choices)) for at, choice in enumerate(choices, 1)]
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1, default=str) + "\n")
    failed, spilled, left = (sum(bool(result[name]) for result in results) for name in ("fault", "spilled", "left"))
    print(f"{len(results)} programs, {left} left to XLA, {spilled} with spills, {failed} with faults")
    return 1 if failed else 0


def _compiled(choice: Choice, at: int, of: int) -> dict[str, Any]:
    begin = time.perf_counter()
    try:
        found = account(choice)
    except Exception as error:  # a compiler's errors are of many types, and one must not end the grid
        found = Account(None, (), f"{type(error).__name__}: {str(error)[-500:]}")
    fault = found.fault
    if choice == USUAL and found.spilled and not fault:
        fault = f"{found.spilled} bytes are spilled with the most usual options"
    seconds = time.perf_counter() - begin
    kernels = ", ".join(f"{name} {registers} registers {spilled} spilled" for name, registers, spilled in found.kernels)
    left = f"XLA: {found.left_to_xla}" if found.left_to_xla else ""
    print(f"{at}/{of} {choice} {seconds:.1f} s {fault or 'ok'}; {left or kernels or 'compiled before'}", flush=True)
    return {
        **asdict(choice),
        "seconds": round(seconds, 2),
        "left": found.left_to_xla,
        "kernels": found.kernels,
        "spilled": found.spilled,
        "fault": fault,
    }


if __name__ == "__main__":
    sys.exit(main())
