"""The rows of the performance table on kvproof and on whichever peers are installed, in one process and in turn.

    python -m tests.bench.compare                       # all rows
    python -m tests.bench.compare --rows a,b,c_1024 --json figures.json
    KVPROOF_TRACE=FILE python -m tests.bench.compare --rows r

Medians of runs in a row, the garbage collector off; the file has the best of them as well, and the first runs after
another implementation's. The table goes to standard output, progress to standard error.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import jax

from .implementation import Implementation
from .manager_rows import bare_digests
from .peers import IMPLEMENTATIONS
from .rows import ROWS
from .samples import Row, interleaved

__all__ = ["installed", "machine", "main", "measure", "on_a_cpu", "table"]

OURS = IMPLEMENTATIONS[0].name


def measure(row: Row, implementations: Sequence[Implementation], seconds: float) -> dict[str, Any]:
    """Times a row on every implementation that can be run on it.

    Args:
        row: the row.
        implementations: ours first.
        seconds: how long to go on, once all is ready.

    Returns:
        Its figures in microseconds, the peers' ratios to ours, and why implementations were left out.
    """
    left_out = {found.name: reason for found in implementations if (reason := row.why_not(found)) is not None}
    names = [found.name for found in implementations if found.name not in left_out]
    samples = [row.make(found) for found in implementations if found.name in names]
    if row.name.startswith("d_") and samples:
        names.append("bare digests")
        samples.append(bare_digests(int(row.name.removeprefix("d_"))))
    figures = {
        name: {"median": median(times.warm), "best": min(times.warm), "samples": len(times.warm)}
        | ({"cold": median(times.cold)} if times.cold else {})
        for name, times in zip(names, interleaved(samples, row.clock, seconds) if samples else [], strict=True)
    }
    ratios = {
        name: figure["median"] / figures[OURS]["median"]
        for name, figure in figures.items()
        if name != OURS and OURS in figures
    }
    return {
        "row": row.name, "workload": row.text, "clock": row.clock, "microseconds": figures, "ratios": ratios,
        "left out": left_out,
    }  # fmt: skip


def shown(microseconds: float) -> str:
    """A time with three digits and its unit."""
    value, unit = (microseconds, "us") if microseconds < 1_000 else (microseconds / 1_000, "ms")
    return f"{value:.{max(0, 2 - len(str(int(value))) + (value >= 1))}f} {unit}"


def table(results: Iterable[dict[str, Any]]) -> str:
    """The results as a Markdown table, peers with how many times as long as ours they took."""
    results = list(results)
    names = list(dict.fromkeys(name for result in results for name in result["microseconds"]))
    lines = [f"| row | workload | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for result in results:
        cells = []
        for name in names:
            figure, ratio = result["microseconds"].get(name), result["ratios"].get(name)
            cell = "" if figure is None else shown(figure["median"])
            cells.append(
                cell if ratio is None else f"{cell} ({ratio:.2g}x)" if ratio < 10 else f"{cell} ({ratio:.0f}x)"
            )
        lines.append(f"| {result['row']} | {result['workload']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def installed(without: Iterable[str] = ()) -> list[Implementation]:
    """The implementations that can be run here, but for those named; says why of the others."""
    names = {name.casefold() for name in without}
    found = [implementation for implementation in IMPLEMENTATIONS if implementation.name.casefold() not in names]
    for implementation in found:
        if (reason := implementation.missing()) is not None:
            print(reason, file=sys.stderr)
    return [implementation for implementation in found if implementation.missing() is None]


def on_a_cpu() -> None:
    """Has JAX use the CPU, as the figures are all of the host."""
    jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]


def machine() -> dict[str, Any]:
    """Where the figures were taken: what matters to them."""
    return {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the rows; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compare", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", help="names of rows, separated by commas; those of a letter are named by it")
    parser.add_argument("--without", default="", help="implementations to leave out, separated by commas")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to time each row (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args(arguments)
    wanted = options.rows.split(",") if options.rows else [row.name for row in ROWS]
    rows = [row for row in ROWS if row.name in wanted or row.name.partition("_")[0] in wanted]
    without = options.without.split(",")
    implementations = installed(without)
    if not rows or not implementations:
        parser.error(f"nothing to run; rows: {', '.join(row.name for row in ROWS)}")
    on_a_cpu()
    results = []
    for row in rows:
        print(f"{row.name}: {row.text}", file=sys.stderr, flush=True)
        results.append(measure(row, implementations, options.seconds))
        for name, reason in results[-1]["left out"].items():
            print(f"  without {name}: {reason}", file=sys.stderr)
        if options.json is not None:
            options.json.write_text(json.dumps({"machine": machine(), "rows": results}, indent=1) + "\n")
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
