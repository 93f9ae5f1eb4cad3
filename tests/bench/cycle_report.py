"""How many bundles our kernels issue for a block of keys, beside what HBM and the MXU need, and beside others' kernels.

    python -m tests.bench.cycle_report --devices v6e --pages 16 64 --kernels decode decode-jax

Needs no TPU: kernels are compiled with dumps of their schedules, which are counted (`schedule` says how) and deleted.
Each is compiled in a process of its own and takes 10 to 30 seconds, some of others minutes; dumps take up to 2 GB while
it runs. Others' are JAX's, and tpu-inference's where that can be found (`cycle_peers` says where); a kernel that is not
installed, or takes no pages of a size, has a line that says so.

Bundles are not time. They are what the core issues when nothing stalls it: waits for copies and bank conflicts come on
top. Where HBM needs longer than the bundles, the copies set the pace, if enough of them are in flight.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .cycle_kernels import KERNELS
from .cycle_turn import NotCounted
from .schedule import Choose, Cost, Loop, Schedule, Trips, fullest, kernel_files, read_schedule, read_use

__all__ = ["Line", "main", "measure"]

UNIT = 128
"""Keys (and, of prefill, query tokens) that figures are given for."""


@dataclass(frozen=True)
class Chip:
    """One core of a TPU.

    Attributes:
        clock: GHz, inferred from the peak of the matrix units over their width.
        bandwidth: GB/s of HBM; of chips with two cores a core's half.
        peak: TFLOP/s in bfloat16, of the same.
        width: rows and columns of a matrix unit: what is narrower leaves the rest of it empty.
    """

    clock: float
    bandwidth: float
    peak: float
    width: int

    def hbm_cycles(self, num_bytes: float) -> float:
        """Cycles in which HBM gives as much."""
        return num_bytes / self.bandwidth * self.clock

    def mxu_cycles(self, rows: int, keys: int, dims: Sequence[int]) -> float:
        """Cycles in which the matrix units multiply rows with keys, and their weights with values, at their peak.

        That leaves out how long it takes to load them with keys, which counts where rows are few.

        Args:
            rows: heads times query tokens.
            keys: keys that each row is multiplied with.
            dims: numbers of a key, and of a value.
        """
        taken = sum(max(dim, self.width) for dim in dims)
        return 2 * rows * keys * taken / (1e3 * self.peak) * self.clock


CHIPS = {
    "v5e": Chip(1.5, 819, 197, 128),
    "v5p": Chip(1.75, 2765 / 2, 459 / 2, 128),
    "v6e": Chip(1.75, 1640, 918, 256),
    "7x": Chip(2.0, 7380 / 2, 2307 / 2, 256),
}


@dataclass(frozen=True)
class Line:
    """One line of the report.

    Attributes:
        kernel: which kernel.
        device: which TPU.
        page: slots of a page.
        variant: "full": blocks of full size without a mask; "masked": the same with; "short": the smallest blocks
            (of prefill: of queries); "middle": those between.
        turn_keys: keys that a turn of the loop over blocks works on.
        turn_queries: query tokens that it works on.
        turn_bundles: bundles of a turn, inner loops times their trips.
        bundles: bundles for 128 keys, and in prefill for 128 query tokens as well.
        sequence: bundles for a whole sequence that fits into one block: of a decoding batch of such; None: not counted.
        least: `bundles` without what only the first and the last block of a sequence need.
        hbm_cycles: cycles in which HBM gives as many keys.
        ratio: bundles over cycles: below 1 the copies set the pace, unless queries share the keys.
        mxu_cycles: cycles in which the matrix units multiply as much at their peak (`Chip.mxu_cycles`).
        mxu_ratio: bundles over them.
        busiest: the unit that is used most, and the bundles that it alone would need, for as much.
        spill_share: share of the turn's vector loads and stores that only save and restore registers.
        copies: copies started in a turn.
        loops: of each inner loop its bundles and its trips.
        left_out: bundles of the variants that are not counted.
    """

    kernel: str
    device: str
    page: int
    variant: str
    turn_keys: int
    turn_queries: int
    turn_bundles: int
    bundles: float
    sequence: float | None
    least: float
    hbm_cycles: float
    ratio: float
    mxu_cycles: float
    mxu_ratio: float
    busiest: tuple[str, float]
    spill_share: float
    copies: int
    loops: list[tuple[int, int]]
    left_out: list[int]


def measure(kernel: str, device: str, page: int) -> list[Line]:
    """Compiles one kernel and counts its schedule.

    Raises:
        NotCounted: it is not installed, or does not take such pages.
        RuntimeError: it didn't compile; the message holds the end of the compiler's.
    """
    with TemporaryDirectory(prefix="kvproof-dumps-") as folder:
        flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
        run = subprocess.run(
            [sys.executable, "-m", "tests.bench.cycle_kernels", kernel, device, str(page)],
            env={**os.environ, "LIBTPU_INIT_ARGS": flags, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )
        if run.returncode:
            raise RuntimeError(f"{kernel} for {device}, page {page}: {run.stderr.strip()[-600:]}")
        turn = json.loads(run.stdout.strip().splitlines()[-1])
        if "not_counted" in turn:
            raise NotCounted(turn["not_counted"])
        bundles, table = kernel_files(Path(folder), turn["kernel"])
        units, slots, use = read_use(table.read_text())
        schedule = read_schedule(bundles.read_text(), use)
    return [
        _line(kernel, device, page, variant, schedule, choose, turn, place, units, slots)
        for place, (variant, choose) in enumerate(_variants(schedule, turn))
    ]


def _variants(schedule: Schedule, turn: dict[str, Any]) -> list[tuple[str, Choose]]:
    """Which variants of a turn are worth a line: those that differ."""
    sizes = turn["sizes"]
    if len(sizes) > 1:
        names = ["short", *["middle"] * (len(sizes) - 2), "full"]
        whole = schedule.cost(schedule.block_loop, _trips(schedule, turn)).matrix
        return [(name, _nearest(whole * keys / sizes[-1])) for name, keys in zip(names, sizes, strict=True)][::-1]
    choices: list[tuple[str, Choose]] = [
        ("full", fullest),
        ("masked", lambda costs: max(costs, key=lambda cost: (cost.matrix, cost.bundles))),
        ("short", lambda costs: min(costs, key=lambda cost: (cost.matrix, cost.bundles))),
    ]
    seen: dict[int, tuple[str, Choose]] = {}
    for name, choose in choices:
        cost = schedule.cost(schedule.block_loop, _trips(schedule, turn), choose)
        seen.setdefault(cost.bundles, (name, choose))
    return list(seen.values())


def _nearest(matrix: float) -> Choose:
    """Chooses blocks of a size, by how many matrix instructions a turn of them has; of equals the shortest."""
    return lambda costs: min(costs, key=lambda cost: (abs(cost.matrix - matrix), cost.bundles))


def _trips(schedule: Schedule, turn: dict[str, Any]) -> Trips:
    block = schedule.block_loop
    within = [loop for loop in schedule.loops if block.begin < loop.begin and loop.end <= block.end]
    over_heads = [loop for loop in within if schedule.holds(loop, "matrix")]
    if len(over_heads) != len(turn["heads"]):
        raise ValueError(f"{len(over_heads)} loops over heads, and the trips of {len(turn['heads'])}")

    def trips(schedule: Schedule, loop: Loop) -> int:
        if schedule.holds(loop, "matrix"):
            return int(turn["heads"][over_heads.index(loop)])
        if schedule.holds(loop, "copies"):
            return int(turn["pages"])
        return 1

    return trips


def _line(
    kernel: str,
    device: str,
    page: int,
    variant: str,
    schedule: Schedule,
    choose: Choose,
    turn: dict[str, Any],
    place: int,
    units: Sequence[str],
    slots: Sequence[int],
) -> Line:
    cost = schedule.cost(schedule.block_loop, _trips(schedule, turn), choose)
    least = schedule.cost(schedule.block_loop, _trips(schedule, turn), choose, least=True)
    keys, queries = turn["keys"], turn["queries"] if kernel.startswith("prefill") else 1
    if turn["sizes"]:
        keys = turn["sizes"][::-1][place]
    share = UNIT / keys * (UNIT / queries if kernel.startswith("prefill") else 1)
    chip = CHIPS[device]
    hbm = chip.hbm_cycles(UNIT * turn["key_bytes"])
    mxu = chip.mxu_cycles(turn["rows"] * (UNIT if kernel.startswith("prefill") else 1), UNIT, turn["dims"])
    alone = {name: cost.use[i] / slots[i] * share for i, name in enumerate(units) if ":" not in name}
    busiest = max(alone, key=lambda name: alone[name])
    return Line(
        kernel=kernel,
        device=device,
        page=page,
        variant=variant,
        turn_keys=keys,
        turn_queries=queries,
        turn_bundles=cost.bundles,
        bundles=round(cost.bundles * share, 1),
        sequence=round(cost.bundles / turn["blocks"], 1) if turn["blocks"] else None,
        least=round(least.bundles * share, 1),
        hbm_cycles=round(hbm, 1),
        ratio=round(cost.bundles * share / hbm, 3),
        mxu_cycles=round(mxu, 1),
        mxu_ratio=round(cost.bundles * share / mxu, 3),
        busiest=(busiest, round(alone[busiest], 1)),
        spill_share=_spills(cost, units),
        copies=cost.copies,
        loops=[(loop.end - loop.begin, trips) for loop, trips in cost.loops],
        left_out=cost.left_out,
    )


def _spills(cost: Cost, units: Sequence[str]) -> float:
    moved = sum(cost.use[i] for i, name in enumerate(units) if name in ("VLOAD", "VSTORE"))
    spilled = sum(cost.use[i] for i, name in enumerate(units) if ":" in name)
    return round(spilled / moved, 2) if moved else 0.0


def _text(line: Line) -> str:
    unit, alone = line.busiest
    loops = ", ".join(f"{bundles} x {trips}" for bundles, trips in line.loops) or "none"
    left_out = f"; not counted: {', '.join(map(str, line.left_out))}" if line.left_out else ""
    sequence = "-" if line.sequence is None else f"{line.sequence:.0f}"
    return (
        f"{line.device:4} {line.page:4}  {line.kernel:19} {line.variant:7} "
        f"{line.bundles:8.1f} {sequence:>8} {line.least:7.1f} {line.hbm_cycles:7.1f} {line.ratio:6.2f} "
        f"{line.mxu_cycles:7.1f} {line.mxu_ratio:6.2f}  "
        f"{unit:>5} {alone:7.1f} {line.spill_share:6.0%}  "
        f"{line.turn_bundles:6} for {line.turn_keys} x {line.turn_queries}, {line.copies} copies; "
        f"loops: {loops}{left_out}"
    )


_HEAD = """\
bfloat16 or the cache named; 32 / 8 heads of 128; mla: 128 heads, latents of 512 + 64. For 128 keys (prefill: and 128
query tokens): bundles; those of a whole sequence that fits into one block, of many that decode; the least of the
former, without what only the first and the last block of a sequence need; HBM's cycles; bundles over them; the cycles
that the products need at the MXU's peak; bundles over them; the busiest unit and what it alone needs; the share of
loads and stores that are spills. Then one turn of the loop over blocks: its bundles for keys x queries, the copies it
starts, its inner loops as bundles x trips, variants not counted.

TPU  page  kernel              blocks   bundles sequence   least     HBM  ratio     MXU  ratio  busiest unit  spills"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report.

    Returns:
        The exit status: 1 if a kernel was not compiled or not understood, else 0: also if one is not installed.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cycle_report", description=__doc__.splitlines()[0])
    parser.add_argument("--devices", nargs="+", choices=CHIPS, default=["v5e", "v6e", "7x"])
    parser.add_argument("--pages", nargs="+", type=int, default=[16, 64, 128])
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--json", type=Path, help="write the lines there as well")
    chosen = parser.parse_args(arguments)
    print(_HEAD)
    lines: list[Line] = []
    failures = 0
    for device in chosen.devices:
        for page in chosen.pages:
            for kernel in chosen.kernels:
                try:
                    found = measure(kernel, device, page)
                except NotCounted as reason:
                    print(f"{device:4} {page:4}  {kernel:19} not counted: {reason}", flush=True)
                    continue
                except (RuntimeError, ValueError) as error:
                    failures += 1
                    print(f"{device:4} {page:4}  {kernel:19} FAILED: {error}", flush=True)
                    continue
                lines += found
                for line in found:
                    print(_text(line), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(line) for line in lines], indent=1) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
