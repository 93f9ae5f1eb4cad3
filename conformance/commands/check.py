"""``kvproof check``: runs the machines, tells what they found."""

import argparse
import importlib.util
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from rich.console import Console

from ..adapters.peers import unknown_version
from ..backends.loading import Backend, BackendError, load_backend
from ..backends.raising import Interrupted, prints_apart
from ..console.exit_status import COULD_NOT_RUN, DEVIATES, FINE, CannotRunError
from ..console.terminal import visible
from ..console.writing import require_writable, write_file
from ..emitting import write_test
from ..machines import Machine
from ..report.coverage import coverage_json, coverage_lines, coverage_of, pair_lines, pairs_of
from ..report.document import as_json
from ..report.junit import junit_xml
from ..report.redacting import redacted
from ..report.redaction import Redaction
from ..report.text import print_report
from ..search.runner import MachineReport, Report, run
from ..search.workers import Task, run_in_workers
from .check_options import Given, Options, add_options, in_order, read_options
from .deep import DeepRun, Failure, resumed
from .devices import want_devices

__all__ = ["run_check", "set_up"]

_DESCRIPTION = """\
Makes random sequences of calls on the backend and on the specification, compares every result, every refusal
and the whole observable state after every call, and says for each clause what came of it:

  conforms      compared in that many steps, without a difference
  deviates      a difference was seen; the shortest sequence of calls that shows it is printed, with the
                observable state before the last call and after it, as it must be and as it is. Where several
                deviations show the same difference after the same call, the first is printed; --full prints all
  expected      it deviates as a line of --xfails says
  undecided     not compared, or hardly; the last lines say why
  not offered   the backend does not have what the clause is about

After a deviation the search goes on without the clause that deviates, so that one deviation hides no other.
What a backend does not offer by name is not checked; what else it lacks is said by --without, or by the
attribute kvproof_lacks of the backend. At level safe any eviction order is right and any exception a refusal.
"""

_EPILOG = """\
examples:
  kvproof check --backend kvproof.spec --profile quick
  kvproof check --backend my_engine.cache --level safe --without keys,events
  kvproof check --machines pool,queue --clauses POOL-3 --seed 7 --json report.json --emit test_pool_3.py
  kvproof check --xfails known.txt --junit report.xml
  kvproof check --machines pool,queue --coverage      what of their interfaces was drawn, and what never
  kvproof check --exhaustive --minutes 10             every state of small worlds
  kvproof check --profile deep --hours 8 --state deep.json
  kvproof check --jobs 1 --step-timeout 0             in this process, for a debugger

exit status: 0 no deviation, or expected ones only; 1 the backend deviates; 2 could not run, or nothing was decided
"""

_NAMED = 5
"""The most names that a message lists where all are missing."""

_HOURS = 1.0
"""The number of rounds after which none begins, unless an option says another."""


def set_up(parser: argparse.ArgumentParser) -> None:
    """Says what ``check`` does and what it is asked for, and has `run_check` called."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add_options(parser)
    parser.set_defaults(func=run_check, options=Given)


def run_check(given: Given) -> int:
    """Checks as asked.

    Returns:
        The exit status: 0 no deviation but expected ones, 1 the backend deviates, 2 could not run.
    """
    options = read_options(given)
    require_writable(given.json, given.junit, given.state)  # better known now than after a minute
    want_devices()
    backend = load_backend(given.backend, options.without)
    warning = unknown_version(backend)
    if warning:
        print(f"kvproof check: {visible(warning)}", file=sys.stderr)
    lacks = tuple(sorted(backend.lacks))
    missing = [machine.missing(backend) for machine in options.machines]
    if all(missing):
        wanting = zip(options.machines, missing, strict=True)
        begun = [lacking for machine, lacking in wanting if any(map(backend.offers, machine.needs))]
        every = dict.fromkeys(name for lacking in missing for name in lacking)
        raise BackendError(_offers_nothing(backend, every, min(begun, key=len, default=[])))
    seed = secrets.randbelow(2**32) if given.seed is None else given.seed
    console = Console(emoji=False)
    if given.profile == "deep":
        deep = resumed(options, seed)
        interrupted = _go_deep(deep, backend, console)
        told = replace(deep.report(backend.name, lacks), warning=warning, interrupted=interrupted)
        status = _tell(options, told, backend, console)
        return COULD_NOT_RUN if interrupted and not deep.rounds and status == FINE else status
    console.print(f"seed {seed}", highlight=False)
    report = Report(backend.name, seed, options.clauses, [], options.level, given.profile, lacks, warning)
    try:
        for found in _reports(options, backend, seed):
            report.machines.append(found)
    except Interrupted as end:
        report.machines.extend(end.reports)
        report = replace(report, interrupted=True)
    status = _tell(options, report, backend, console)
    if report.interrupted:
        print("kvproof check: interrupted; the verdicts are on what was compared up to there", file=sys.stderr)
    return COULD_NOT_RUN if report.interrupted and status == FINE else status


def _offers_nothing(backend: Backend, missing: Iterable[str], nearest: Sequence[str]) -> str:
    """Says that no machine can run on a backend, what it would need, and what may have been meant.

    Args:
        backend: the backend.
        missing: what the machines lack, in the words of `Machine.missing`.
        nearest: what the machine lacks that lacks least, of those that find something; empty if none does.
    """
    said = f"backend {backend.name} offers nothing that the machines need: it has no"
    begun = [name for name in missing if backend.offers(re.split(r"[.(]", name)[0])]
    if begun:
        return f"{said} {', '.join([name for name in begun if ': its ' in name] or begun)}"
    if nearest:
        return f"{said} {', '.join(nearest)}"
    names = [name for name in missing if name.isidentifier()]
    holders = [name for name in vars(backend.holder) if not name.startswith("_")] if ":" not in backend.name else []
    meant = [name for name in holders if any(hasattr(getattr(backend.holder, name), known) for known in names)]
    if meant:
        return f"{said} {names[0]}; did you mean {backend.name}:{meant[-1]}?"
    if isinstance(backend.holder, type):
        return (
            f"{said} {names[0]}; a backend has classes: name a module that says {names[0]} = {backend.holder.__name__}"
        )
    more = f" and {len(names) - _NAMED} more names" if len(names) > _NAMED else ""
    return f"{said} {', '.join(names[:_NAMED])}{more} of kvproof.spec"


def _reports(options: Options, backend: Backend, seed: int) -> Iterator[MachineReport]:
    """What the machines find; meanwhile the standard error, where it is a terminal, says how far they are."""
    progress = Console(stderr=True, emoji=False)
    machines = in_order(options.machines, options.before)
    asked = [machine for machine in machines if not machine.missing(backend)]
    began, ended = time.monotonic(), 0
    with closing(_found(options, backend, seed, machines)) as found:
        for machine in machines:
            took = time.monotonic() - began
            left = f", about {took / ended * (len(asked) - ended):.0f} s left" if ended else ""
            which = f"machine {machine.name}, {ended + 1} of {len(asked)}{left} ..." if machine in asked else "..."
            with progress.status(which), prints_apart():
                report = next(found)
            ended += machine in asked
            yield report
            if options.given.first and options.xfails.unexpected_of(report):
                return


def _go_deep(deep: DeepRun, backend: Backend, console: Console) -> bool:
    """Takes rounds until the time is over, a first deviation is enough, or somebody interrupts it.

    Returns:
        Whether it was interrupted.
    """
    given = deep.options.given
    hours = _HOURS if given.hours is None else given.hours
    before = f", after {deep.rounds} rounds in {deep.seconds / 3600:.2f} h" if deep.rounds else ""
    console.print(f"seed {deep.seed}{before}", highlight=False)
    reports: list[MachineReport] = []
    try:
        while deep.seconds < hours * 3600 and not (given.first and deep.failures):
            began = time.monotonic()
            for report in _reports(deep.options, backend, deep.next_seed):
                reports.append(report)
            number, seed = deep.rounds, deep.next_seed
            steps = sum(report.steps for report in reports)
            ended, reports = reports, []
            new = deep.add(ended, time.monotonic() - began)
            console.print(f"round {number}, seed {seed}: {steps} steps; {deep.seconds / 3600:.2f} h", highlight=False)
            _tell_new(new, console)
        console.print(f"ended after {deep.rounds} rounds, by --hours {hours:g} or --first", highlight=False)
    except Interrupted as end:
        console.print(f"interrupted; {deep.rounds} rounds have ended", highlight=False)
        _tell_new(deep.add_part([*reports, *end.reports]), console)
        return True
    return False


def _tell_new(failures: Iterable[Failure], console: Console) -> None:
    for failure in failures:
        line = f"  {failure.clause}, by machine {failure.machine}: {failure.command}"
        console.print(visible(line), markup=False, highlight=False, soft_wrap=True)


def _tell(options: Options, report: Report, backend: Backend, console: Console) -> int:
    """Prints and writes a report.

    Returns:
        The exit status.

    Raises:
        CannotRunError: a file could not be written, or no clause was decided.
    """
    given, xfails = options.given, options.xfails
    scripts = [script for machine in report.machines for script in machine.scripts]
    report = redacted(report, Redaction()) if given.redact else report
    console.print()
    again = None if given.profile == "deep" else lambda machine: options.command(machine, report.seed)
    print_report(report, console, xfails, given.full, again)
    covered, pairs = coverage_of(report, backend), pairs_of(report)
    for line in ["", *coverage_lines(covered), *pair_lines(pairs)] if given.coverage else ():
        console.print(visible(line), markup=False, highlight=False, soft_wrap=True)
    if given.xfails_update:
        write_file(given.xfails, xfails.updated(report))
    else:
        for line in xfails.stale(report):
            print(f"kvproof check: {visible(line)}", file=sys.stderr)
    write_file(
        given.json,
        json.dumps(as_json(report, xfails) | {"coverage": coverage_json(covered) | {"pairs": pairs}}, indent=1) + "\n",
    )
    write_file(given.junit, junit_xml(report, xfails))
    if given.emit is not None and report.deviates:
        try:
            for line in write_test(given.emit, scripts):
                print(f"kvproof check: {visible(line)}", file=sys.stderr)
        except CannotRunError as error:
            print(f"kvproof check: {visible(str(error))}", file=sys.stderr)
    if xfails.unexpected(report) and not given.xfails_update:
        return DEVIATES
    if (
        not report.deviates
        and not report.interrupted
        and all(report.verdict(clause) != "conforms" for clause in report.clauses)
    ):
        left_out = "; a deviation from a clause that --clauses leaves out ends a sequence of calls"
        why = left_out if given.clauses is not None else ""
        raise CannotRunError(f"no clause was decided{why}")
    return FINE


def _found(
    options: Options, backend: Backend, seed: int, machines: Sequence[type[Machine]]
) -> Generator[MachineReport, None, None]:
    """What the machines find: in processes of their own, or here if nothing else is asked for, or can be had."""
    given, names = options.given, [machine.name for machine in machines]
    jobs = min(os.cpu_count() or 1, 2) if given.jobs is None else given.jobs
    jobs = min(jobs, len(names))
    search = options.search
    if given.emit is not None:
        search = {**search, "found_by": options.command(None, seed, "default" if given.profile == "deep" else None)}
    elsewhere = jobs > 1 or search["step_timeout"] > 0
    if elsewhere and _can_be_imported(given.backend.partition(":")[0]):
        task = Task(given.backend, options.without, seed, options.clauses, given.examples, search)
        return run_in_workers(task, names, jobs)
    return run(backend, seed, options.clauses, machines, given.examples, **search)


def _can_be_imported(module: str) -> bool:
    """Whether another process can import a module that this one has imported: not if it was made here."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # it has no spec: it was not imported from anywhere
        return False
