"""Runs machines over many seeds on a backend of ours: what it finds is a fault of the backend or of the suite.

No test, as 200 seeds of every machine take hours. It is run by hand; a seed that finds something becomes a test in
``test_sweep.py``::

    python -m tests.conformance.sweep kvproof.fast --seeds 0 200
    python -m tests.conformance.sweep kvproof.spec --machines safe-manager,safe-groups --seeds 0 200 --effort 0.1
"""

import argparse
import sys
import traceback
from collections.abc import Iterable, Iterator

from kvproof.conformance.backends.levels import Level
from kvproof.conformance.backends.loading import load_backend
from kvproof.conformance.commands.devices import want_devices
from kvproof.conformance.machines import MACHINES, TOGETHER
from kvproof.conformance.search.runner import run_machine

QUICK = tuple(name for name in MACHINES if name not in TOGETHER | {"engine"})
"""The machines that compile no device functions: each takes some seconds a seed."""


def sweep(backend: str, names: Iterable[str], seeds: range, effort: float = 1.0) -> Iterator[tuple[str, int, str]]:
    """Runs each machine that the backend offers enough for with each seed; all machines before the next seed.

    Each compares at the level that it is made for.

    Args:
        backend: the backend's name.
        names: the machines.
        seeds: the seeds.
        effort: each machine's sequences of calls, in multiples of those that it makes by default.

    Yields:
        For each run the machine, the seed, and what it found: the first deviation with its calls, or the traceback of
        what it ended in; "" for nothing.
    """
    loaded = load_backend(backend)
    for seed in seeds:
        for name in names:
            machine = MACHINES[name]
            if machine.missing(loaded):
                continue
            level: Level = "exact" if "exact" in machine.levels else "safe"
            try:
                report = run_machine(machine, loaded, seed, shrinking=0.5, level=level, effort=effort)
            except Exception:  # the sweep goes on, and tells
                yield name, seed, traceback.format_exc()
            else:
                yield name, seed, "\n".join("\n".join((str(found), *found.calls)) for found in report.deviations[:1])


def main() -> int:
    """Prints a line for each run, and what it found; returns 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", help="such as kvproof.fast")
    parser.add_argument("--machines", default=",".join(QUICK), help="their names (default: all that compile nothing)")
    parser.add_argument("--seeds", nargs=2, type=int, default=(0, 200), metavar=("FIRST", "END"))
    about = "sequences of calls, as a share of each machine's own (default %(default)s)"
    parser.add_argument("--effort", type=float, default=1.0, metavar="SHARE", help=about)
    given = parser.parse_args()
    want_devices()
    failed = False
    names = given.machines.split(",")
    for name, seed, found in sweep(given.backend, names, range(*given.seeds), given.effort):
        failed |= bool(found)
        print(f"{name} {seed} {'found' if found else 'ok'}", *found.splitlines(), sep="\n    ", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
