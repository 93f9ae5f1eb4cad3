"""``kvproof check``: reads its options, runs the machines, tells what they found."""

import argparse
import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from kvproof.spec.clauses import CLAUSES

from .backends import BackendError, load_backend
from .deviation import SpecificationError
from .exit_status import COULD_NOT_RUN, DEVIATES, FINE
from .machines import MACHINES
from .report import as_json, machine_line, print_report
from .runner import MachineReport, Report, machines_for, run
from .workers import run_in_workers

__all__ = ["add_parser", "run_check"]


_DEVICES = "--xla_force_host_platform_device_count=4"
"""Where the user has set no flags: a CPU stands for four devices, so that what is split over a mesh can be checked."""


class _BadInputError(Exception):
    """An option that makes no sense; the message is one line."""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", about: str) -> None:
    """Adds the command ``check`` to a command line; ``about`` is its line in the help."""
    check = commands.add_parser(
        "check",
        help=about,
        description="""\
Makes random sequences of calls on the backend and on the specification, compares every result, every refusal
and the whole observable state after every call, and says for each clause what came of it:

  conforms      compared in that many steps, without a difference
  deviates      a difference was seen; the shortest sequence of calls that shows it is printed
  undecided     not compared, or hardly, because a deviation from another clause ended the search
  not offered   the backend does not have what the clause is about
""",
        epilog="""\
examples:
  kvproof check --backend kvproof.spec --examples 20
  kvproof check --machines pool,queue --clauses POOL-3 --seed 7 --json report.json

exit status: 0 no deviation; 1 the backend deviates; 2 could not run
""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = check.add_argument
    add("--backend", default="kvproof.fast", metavar="M[:A]", help="module, or object in it (default %(default)s)")
    add("--clauses", metavar="L,L", help="look at these clauses only, such as POOL-3,R1")
    add("--machines", metavar="A,B", help="run these machines only: queue, pool, manager, table, attention, ...")
    add("--examples", type=int, metavar="N", help="sequences of calls for each machine (default: enough for a minute)")
    add("--seed", type=int, metavar="S", help="draw as an earlier run did (default: a new seed, which is printed)")
    add(
        "--jobs", type=int, metavar="N", help="processes that run machines; the report is the same (default: 2 at most)"
    )
    add("--json", metavar="FILE", help="write the report to a file as well")
    check.set_defaults(func=run_check)


def run_check(arguments: argparse.Namespace) -> int:
    """Checks as asked.

    Returns:
        The exit status: 0 no deviation, 1 the backend deviates, 2 could not run.
    """
    try:
        return _run(arguments)
    except (_BadInputError, BackendError, SpecificationError) as error:
        print(f"kvproof check: {error}", file=sys.stderr)
        return COULD_NOT_RUN


def _run(arguments: argparse.Namespace) -> int:
    clauses = _chosen("--clauses", arguments.clauses, list(CLAUSES))
    names = _chosen("--machines", arguments.machines, list(MACHINES))
    if arguments.examples is not None and arguments.examples < 1:
        raise _BadInputError(f"--examples {arguments.examples} must be at least 1")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise _BadInputError(f"--jobs {arguments.jobs} must be at least 1")
    if arguments.seed is not None and arguments.seed < 0:
        raise _BadInputError(f"--seed {arguments.seed} must not be negative")
    machines = machines_for(clauses, names)
    if not machines:
        raise _BadInputError(f"none of the machines {', '.join(names)} checks any of {', '.join(clauses)}")
    file = None if arguments.json is None else Path(arguments.json)
    if file is not None:
        _write(file, "")  # better known now than after a minute
    os.environ.setdefault("XLA_FLAGS", _DEVICES)
    backend = load_backend(arguments.backend)
    seed = secrets.randbelow(2**32) if arguments.seed is None else arguments.seed
    jobs = min(os.cpu_count() or 1, 2) if arguments.jobs is None else arguments.jobs
    console, progress = Console(), Console(stderr=True)
    console.print(f"seed {seed}", highlight=False)
    report = Report(backend.name, seed, tuple(clauses), [])
    found: Iterator[MachineReport] = (
        run_in_workers(backend.name, seed, clauses, [machine.name for machine in machines], arguments.examples, jobs)
        if jobs > 1 and len(machines) > 1
        else run(backend, seed, clauses, machines, arguments.examples)
    )
    for machine in machines:
        with progress.status(f"{machine.name} ..."):
            report.machines.append(next(found))
        console.print(machine_line(report.machines[-1]), markup=False, highlight=False, soft_wrap=True)
    console.print()
    print_report(report, console)
    if file is not None:
        _write(file, json.dumps(as_json(report), indent=1) + "\n")
    if all(machine.missing for machine in report.machines):
        raise BackendError(f"backend {backend.name} offers nothing that the machines need")
    return DEVIATES if report.deviates else FINE


def _chosen(option: str, given: str | None, known: list[str]) -> list[str]:
    """Those of the known names that an option lists, in their own order."""
    if given is None:
        return known
    words = [word.strip() for word in given.split(",") if word.strip()]
    strange = [word for word in words if word not in known]
    if strange or not words:
        raise _BadInputError(f"{option} {given}: no {', '.join(strange) or 'name'}; there are {', '.join(known)}")
    return [name for name in known if name in words]


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _BadInputError(f"{file}: {error.strerror or error}") from error
