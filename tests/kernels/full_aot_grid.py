"""Compiles attention for TPUs in every combination of options, or in a random part of them.

    python -m tests.kernels.full_aot_grid --sample 500 --seed 1 --only generation=v6e dtypes=bfloat16 --json grid.json

Each program takes one to ten seconds. Exit status 1: some didn't compile, copied what should be updated in place, or
called other kernels than it should.
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

from . import aot
from .aot_grid import FACTORS, Choice, attention, check, every_choice

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compiles and prints.

    Returns:
        The exit status: 0 if all is well, 1 if not, 2 where nothing can be compiled for TPUs.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.full_aot_grid", description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, help="compile so many, drawn at random; all unless given")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--only", nargs="+", default=[], metavar="FACTOR=VALUE", help=f"factors: {', '.join(FACTORS)}")
    parser.add_argument("--full-blocks", action="store_true", help="long batches, so that blocks are of full size")
    parser.add_argument("--json", type=Path, help="write the results there")
    chosen = parser.parse_args(arguments)
    if not aot.available():
        print("libtpu, which compiles for TPUs, is not installed (it exists for Linux on x86-64)", file=sys.stderr)
        return 2
    wanted = [each.partition("=")[::2] for each in chosen.only]
    unknown = [name for name, _ in wanted if name not in FACTORS]
    if unknown:
        parser.error(f"--only: no factors: {', '.join(unknown)}")
    choices = [choice for choice in every_choice() if all(str(getattr(choice, n)) == v for n, v in wanted)]
    if chosen.sample is not None:
        choices = random.Random(chosen.seed).sample(choices, min(chosen.sample, len(choices)))
    results = [_compiled(choice, chosen.full_blocks, at, len(choices)) for at, choice in enumerate(choices, 1)]
    failed = [result for result in results if result["fault"]]
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1, default=str) + "\n")
    print(f"{len(results)} programs, {len(failed)} with faults")
    return 1 if failed else 0


def _compiled(choice: Choice, full: bool, at: int, of: int) -> dict[str, Any]:
    begin = time.perf_counter()
    fault = ""
    try:
        check(attention(choice, full))
    except Exception as error:  # a compiler's errors are of many types, and one must not end the grid
        fault = f"{type(error).__name__}: {str(error)[:500]}"
    seconds = time.perf_counter() - begin
    print(f"{at}/{of} {choice} {seconds:.1f} s {fault or 'ok'}", flush=True)
    return {**asdict(choice), "seconds": round(seconds, 2), "fault": fault}


if __name__ == "__main__":
    sys.exit(main())
