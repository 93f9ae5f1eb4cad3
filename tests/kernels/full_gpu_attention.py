"""Runs the GPU's attention, interpreted, over all cases; some minutes, where CI runs one of them.

    python -m tests.kernels.full_gpu_attention
    python -m tests.kernels.full_gpu_attention float8 window

With words, only the cases that name one of them. Exit status 1: some were wrong, or raced.
"""

import os
import sys
import time
from collections.abc import Sequence

# Read when JAX is loaded: each warpgroup of a block waits in a thread of its own, of which there are otherwise as many
# as cores; with two all would wait for ever.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

from .gpu_cases import CASES, run_case

__all__ = ["main"]


def main(words: Sequence[str]) -> int:
    """Runs and prints; the exit status: 0 if all is well."""
    failed = 0
    for name, case in CASES.items():
        if words and not any(word in name for word in words):
            continue
        begin = time.perf_counter()
        try:
            fault = run_case(case).minds
        except AssertionError as error:
            fault = str(error)
        failed += bool(fault)
        print(f"{name}: {fault or 'right, no races'} ({time.perf_counter() - begin:.1f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
