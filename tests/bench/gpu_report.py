"""Attention on a real GPU: times, as a share of what the same run measures the device to be capable of.

    python -m tests.bench.gpu_report                          # what there are goals for
    python -m tests.bench.gpu_report --all --json gpu.json    # latents (MLA), prompts, 8 bits, too: 222 batches
    python -m tests.bench.gpu_report --all --only "latents B=64" --kernels    # and what each kernel takes
    python -m tests.bench.gpu_report --only "decode B=8" --peers

Decoding is measured by the bandwidth of a copy, prefill by the rate of a product of matrices; mixed batches by both.
Each batch takes some 20 seconds, most of it the compiler's. Exit status 1: a goal was missed; 2: there is no GPU.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from kvproof.kernels.gpu import hopper

from .gpu_peers import PEERS, uneven
from .gpu_timing import copy_rate, matrix_rate, microseconds_by_kernel, seconds_a_turn
from .gpu_workloads import (
    GOALS,
    Workload,
    attend,
    decode_grid,
    inputs_for,
    latents_grid,
    mixed,
    prefill_grid,
    quantized_grid,
)

__all__ = ["Device", "main", "measure"]

_CACHE_BYTES = 50 * 2**20
"""The last cache of an H100 or H200."""


@dataclass(frozen=True)
class Device:
    """A device, and what was measured of it.

    Attributes:
        device: JAX's.
        copies: bytes a second.
        products: operations a second.
        cache_bytes: of its last cache.
    """

    device: Any
    copies: float
    products: float
    cache_bytes: int = _CACHE_BYTES


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints.

    Returns:
        The exit status: 0 if all goals that were measured are reached, 1 if not, 2 where there is no Hopper.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_report", description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="all batches, not only those with goals")
    parser.add_argument("--only", default="", help="of them, those whose names hold this")
    parser.add_argument("--peers", action="store_true", help="beside torch and cuDNN, where they are installed")
    parser.add_argument("--kernels", action="store_true", help="the kernels of a call beneath it, by JAX's profiler")
    parser.add_argument("--json", type=Path, help="write the figures there")
    chosen = parser.parse_args(arguments)
    device = _hopper()
    if isinstance(device, str):
        print(f"nothing is measured: {device}", file=sys.stderr)
        return 2
    workloads = [
        each
        for each in (*decode_grid(), *latents_grid(), *prefill_grid(), *quantized_grid(), mixed())
        if chosen.all or each.name in GOALS
    ]
    found = Device(device, copy_rate(device), matrix_rate(device))
    about = {
        "device": str(device.device_kind),
        "date": time.strftime("%Y-%m-%d"),
        "jax": jax.__version__,
        "copy TB/s": found.copies / 1e12,
        "matrix TFLOP/s": found.products / 1e12,
    }
    print(
        ", ".join(
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in about.items()
        )
    )
    peers = PEERS if chosen.peers else {}
    print(" | ".join(["batch", "us", "of copies", "of products", "goal", *(f"{name} us" for name in peers)]))
    rows = [measure(each, found, peers, chosen.kernels) for each in workloads if chosen.only in each.name]
    if chosen.json:
        chosen.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    missed = [row["name"] for row in rows if row["reached"] is False]
    print(f"{len(rows)} batches" + (f"; goals missed: {', '.join(missed)}" if missed else ""))
    return 1 if missed else 0


def measure(
    workload: Workload,
    found: Device,
    peers: dict[str, Callable[[Workload, Any, int], float]],
    kernels: bool = False,
) -> dict[str, Any]:
    """Times one batch, prints its line.

    Args:
        workload: the batch.
        found: the device.
        peers: what to time beside, by name.
        kernels: whether to print what each kernel takes.

    Returns:
        Name, microseconds, shares, goal, whether it was reached (None without), and for each peer microseconds or why
        there are none.
    """
    share = {"copies": 0.0, "products": 0.0}
    inputs = inputs_for(workload, found.device, found.cache_bytes)
    make = partial(attend, workload=workload)
    seconds = seconds_a_turn(make, inputs.arrays)
    spent = microseconds_by_kernel(make, inputs.arrays) if kernels else {}
    del inputs
    if seconds:
        share["copies"] = workload.read_bytes / seconds / found.copies
        share["products"] = workload.operations / seconds / found.products
    goal = GOALS.get(workload.name)
    reached = None if goal is None else share["copies" if workload.q_lens[0] == 1 else "products"] >= goal
    beside = {name: _beside(time_it, workload, found) for name, time_it in peers.items()}
    told = [workload.name, f"{seconds * 1e6:.1f}", *(f"{part:.2f}" for part in share.values())]
    told.append("" if goal is None else f"{goal:.2f} {'reached' if reached else 'missed'}")
    told += [value if isinstance(value, str) else f"{value:.1f}" for value in beside.values()]
    print(" | ".join(told), flush=True)
    for name, microseconds in spent.items():
        print(f"    {microseconds:8.1f} {name}", flush=True)
    row = {"name": workload.name, "us": seconds * 1e6, **share, "goal": goal, "reached": reached, "peers": beside}
    return row | ({"kernels": spent} if kernels else {})


def _beside(time_it: Callable[[Workload, Any, int], float], workload: Workload, found: Device) -> float | str:
    """A peer's microseconds, or why there are none."""
    reason = uneven(workload)
    if reason is not None:
        return reason
    try:
        return time_it(workload, found.device, found.cache_bytes) * 1e6
    except Exception as error:  # what isn't installed or doesn't take a batch says so in many ways
        return f"{type(error).__name__}: {str(error)[:80]}"


def _hopper() -> Any:
    """A Hopper on which the kernels serve, or why there is none."""
    try:
        devices = jax.local_devices(backend="cuda")
    except RuntimeError:
        return "JAX sees no CUDA device"
    return hopper.unavailable() or devices[0]


if __name__ == "__main__":
    sys.exit(main())
