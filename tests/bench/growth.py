"""How costs grow, with the pool, with running requests, with contexts: kvproof and the peers that are installed.

    python -m tests.bench.growth --json growth.json --svg growth.svg
    python -m tests.bench.growth --from growth.json --svg growth.svg         # draw again

Medians with the garbage collector off, as in `tests.bench.compare`, the implementations in turn. Peers go only as far
as making them ready does not take minutes. Progress goes to standard error.
"""

import argparse
import gc
import json
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from .compare import OURS, installed, machine, on_a_cpu
from .curves import Panel, Points, drawn
from .implementation import Implementation
from .manager_rows import decode_step, look_up
from .pool_rows import take_and_free_one
from .samples import Sample, interleaved
from .workloads import PAGE_SIZE, POOL, tokens

__all__ = ["CURVES", "Curve", "main", "measured"]


class Curve(NamedTuple):
    """A cost against a size.

    Attributes:
        title: what is measured.
        across: the size.
        sizes: where it is measured.
        most: the largest size for a peer.
        make: makes it ready for an implementation and a size.
    """

    title: str
    across: str
    sizes: tuple[int, ...]
    most: int
    make: Callable[[Implementation, int], Sample]


POOLS = (10_000, 100_000, 1_000_000, 10_000_000)
RUNNING = (1, 4, 16, 64, 256, 1_024, 4_096, 8_192)
CONTEXTS = (1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000)
FEW = 16
"""Requests that decode with long contexts: one of them is at a page's end in each step."""


def _context_pages(context: int, requests: int) -> int:
    return requests * (context // PAGE_SIZE + 200)


CURVES = {
    "pool: take a page, free it": Curve(
        "Take a page, free it", "pages of the pool", POOLS, 1_000_000, take_and_free_one
    ),
    "pool: decode step of 256": Curve(
        "Decode step of 256 requests",
        "pages of the pool",
        (20_000, *POOLS[1:]),
        1_000_000,
        lambda of, pages: decode_step(256, num_pages=pages)(of),
    ),
    "running: decode step": Curve(
        "Decode step", "running requests", RUNNING, 8_192, lambda of, running: decode_step(running)(of)
    ),
    "context: decode step of 16": Curve(
        f"Decode step of {FEW} requests",
        "tokens of each context",
        CONTEXTS,
        256_000,
        lambda of, context: decode_step(FEW, num_pages=_context_pages(context, FEW), context=context)(of),
    ),
    "context: look-up": Curve(
        "Look up a cached prompt, keys included",
        "tokens of the prompt",
        CONTEXTS,
        1_000_000,
        lambda of, context: look_up(
            with_keys=True, length=context + 1, num_pages=max(POOL, _context_pages(context, 2))
        )(of),
    ),
}
"""The curves, by name."""


def measured(curve: Curve, implementations: Sequence[Implementation], seconds: float) -> dict[str, list[list[float]]]:
    """Measures a curve.

    Args:
        curve: what.
        implementations: whose.
        seconds: how long to time each size, once all is ready.

    Returns:
        By implementation [size, microseconds].
    """
    points: dict[str, list[list[float]]] = {found.name: [] for found in implementations}
    for size in curve.sizes:
        print(f"{curve.title}: {size:,} {curve.across}", file=sys.stderr, flush=True)
        some = [found for found in implementations if found.name == OURS or size <= curve.most]
        samples = [curve.make(found, size) for found in some]
        for found, times in zip(some, interleaved(samples, "cpu", seconds), strict=True):
            points[found.name].append([size, median(times.warm)])
        del samples
        gc.collect()
    return points


def memory(implementation: Implementation) -> dict[str, float]:
    """What a pool keeps, in bytes told by ``tracemalloc``, to which numpy tells what it allocates.

    Returns:
        For each page of an empty pool, and for each token that is cached when the request that brought it is gone: of
        one long prompt, and of prompts of a page each.
    """

    def kept(make: Callable[[], Any]) -> float:
        gc.collect()
        tracemalloc.start()
        try:
            made = make()
            gc.collect()
            return tracemalloc.get_traced_memory()[0] if made is not None else 0.0
        finally:
            tracemalloc.stop()

    def pool(prompts: int) -> Any:
        made = implementation.pool(POOL)
        pages = made.get(POOL - 1)
        if prompts:
            count = (POOL - 1) // prompts
            for number in range(prompts):
                own = pages[number * count : (number + 1) * count]
                request = implementation.request(str(number), tokens(count * PAGE_SIZE, number))
                made.publish(request, own, count)
        made.free(pages[::-1])
        return made

    implementation.pool(100)  # imports are not a pool's
    implementation.request("r", tokens(PAGE_SIZE))
    empty = kept(lambda: pool(0))
    one, many = kept(lambda: pool(1)), kept(lambda: pool(POOL - 1))
    cached = (POOL - 1) * PAGE_SIZE
    return {
        "page": kept(lambda: implementation.pool(POOL)) / POOL,
        "cached token, one prompt": (one - empty) / cached,
        "cached token, prompts of a page": (many - empty) / cached,
    }


def picture(curves: dict[str, dict[str, list[list[float]]]], counts: dict[str, dict[str, float]]) -> str:
    """The curves as one SVG picture, bytes as text beside them."""
    panels = []
    for name, points in curves.items():
        curve = CURVES[name]
        lines: dict[str, Points] = {whose: [(x, y) for x, y in line] for whose, line in points.items() if line}
        panels.append(Panel(curve.title, curve.across, "microseconds", lines))
    kinds = list(dict.fromkeys(kind for own in counts.values() for kind in own))
    notes: list[str] = []
    for kind in kinds:
        notes += [kind, "    " + ", ".join(f"{whose} {own[kind]:.3g}" for whose, own in counts.items())]
    return drawn(panels, columns=3, notes=["Bytes of a", *notes] if notes else [])


def write(figures: dict[str, Any], path: Path | None) -> None:
    """Writes what is known by now."""
    if path is not None:
        path.write_text(json.dumps(figures, indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, or reads what was measured, and draws; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="what to measure, separated by commas: pool, running, context, memory"
    )
    parser.add_argument("--without", default="", help="implementations to leave out, separated by commas")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long to time each size (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw them there")
    parser.add_argument("--from", type=Path, dest="source", metavar="FILE", help="draw the figures of this file")
    options = parser.parse_args(arguments)
    if options.source is not None:
        figures = json.loads(options.source.read_text())
    else:
        on_a_cpu()
        implementations = installed(options.without.split(","))
        wanted = tuple(options.only.split(","))
        figures = {"machine": machine(), "microseconds": {}, "bytes": {}}
        for name, curve in CURVES.items():
            if name.startswith(wanted):
                figures["microseconds"][name] = measured(curve, implementations, options.seconds)
                write(figures, options.json)
        for found in implementations:
            if "memory".startswith(wanted):
                print(f"memory of {found.name}", file=sys.stderr, flush=True)
                figures["bytes"][found.name] = memory(found)
                write(figures, options.json)
    if options.svg is not None:
        options.svg.write_text(picture(figures["microseconds"], figures["bytes"]))
    for name, points in figures["microseconds"].items():
        for whose, line in points.items():
            print(f"{name}, {whose}: " + ", ".join(f"{size:,.0f}: {cost:,.2f}" for size, cost in line))
    for whose, counts in figures["bytes"].items():
        print(f"bytes, {whose}: " + ", ".join(f"{what}: {count:.1f}" for what, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
