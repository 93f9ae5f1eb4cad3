"""What ``kvproof check`` can be told, and what of it makes sense together."""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kvproof.spec.clauses import CLAUSES, SOUND

from ..backends.capabilities import CAPABILITIES
from ..backends.levels import CHECK_LEVELS, LEVELS, Level
from ..console.named import BadInputError, chosen, family_of
from ..machines import EVERY_MACHINE, EXHAUSTIVE, MACHINES, ON_REQUEST, Machine
from ..oracle.relations import RELATIONS
from ..report.xfails import Xfails, read_xfails
from ..search.runner import PROFILES, Search, machines_for

__all__ = ["Options", "add_options", "in_order", "read_options"]

_MOST_SEED = 2**64

_OF_ANSWERS = {relation.clause for relation in RELATIONS.values()}
"""The clauses about what whole engines answer."""

_MINUTES = 10.0
"""So long, about, the small worlds take on two cores."""


@dataclass(frozen=True)
class Given:
    """The options as they were given, by the names that `add_options` gives them."""

    backend: str
    level: Level
    without: str | None
    clauses: str | None
    machines: str | None
    xfails: str | None
    xfails_update: bool
    exhaustive: bool
    profile: str
    examples: int | None
    minutes: float | None
    seed: int | None
    first: bool
    step_timeout: float
    jobs: int | None
    hours: float | None
    state: str | None
    full: bool
    json: str | None
    coverage: bool
    junit: str | None
    emit: str | None
    redact: bool


@dataclass(frozen=True)
class Options:
    """The options, each known to make sense.

    Attributes:
        given: as they were given; what needs no more than to be read is read there.
        clauses: the labels of the clauses to look at.
        machines: the machines to run.
        level: the level at which they compare.
        without: the capabilities that the backend is said to lack.
        xfails: the deviations that are expected.
        search: how machines search.
        before: the machines that found deviations of this backend in the report that ``--json`` names, if one is there.
    """

    given: Given
    clauses: tuple[str, ...]
    machines: tuple[type[Machine], ...]
    level: Level
    without: tuple[str, ...]
    xfails: Xfails
    search: Search
    before: tuple[str, ...]

    def command(self, machine: str | None, seed: int, profile: str | None = None) -> str:
        """The command that does the same again, in a line.

        Args:
            machine: the only machine to run; None for all.
            seed: the seed.
            profile: the profile; None for the same.
        """
        given = self.given
        words = ["kvproof check", f"--backend {given.backend}"]
        words += [f"--level {self.level}"] if self.level != LEVELS[0] else []
        words += [f"--without {','.join(self.without)}"] if self.without else []
        words += [f"--clauses {','.join(self.clauses)}"] if given.clauses is not None else []
        named = ",".join(chosen.name for chosen in self.machines) if given.machines is not None else None
        words += [f"--machines {machine or named}"] if machine or named else []
        words += ["--exhaustive"] if given.exhaustive else []
        words += [f"--minutes {given.minutes:g}"] if given.minutes is not None else []
        words += [f"--examples {given.examples}"] if given.examples is not None else []
        chosen = given.profile if profile is None else profile
        words += [f"--profile {chosen}"] if chosen != "default" else []
        return " ".join([*words, f"--seed {seed}"])


def add_options(check: argparse.ArgumentParser) -> None:
    """Adds the options to the command's parser."""
    add = check.add_argument_group("what is checked").add_argument
    add("--backend", default="kvproof.fast", metavar="M[:A]", help="module, or object in it (default %(default)s)")
    add(
        "--level",
        choices=CHECK_LEVELS,
        default=LEVELS[0],
        help="exact: as the specification does it; safe: any eviction order; sound: safe, and no bad input",
    )
    add("--without", metavar="A,B", help=f"what the backend is said to lack: {', '.join(CAPABILITIES)}")
    add("--clauses", metavar="L,L", help="look at these clauses or families of them only, such as POOL-3,TAB")
    add(
        "--machines",
        metavar="A,B",
        help="run these machines only: queue, pool, manager, table, attention, ...; gpu-kernels only if named",
    )
    add("--xfails", metavar="FILE", help="deviations that are expected: lines CLAUSE or machine:CLAUSE, # and a reason")
    add("--xfails-update", action="store_true", help="write that file: what deviates now, with the reasons it has")
    add("--exhaustive", action="store_true", help="every state of small worlds, nearest first, in place of draws")
    add = check.add_argument_group("how long, how often").add_argument
    abouts = "; ".join(f"{name}: {profile.about}" for name, profile in PROFILES.items())
    add("--profile", choices=list(PROFILES), default="default", help=f"{abouts} (default %(default)s)")
    add("--examples", type=int, metavar="N", help="sequences of calls for each machine, whatever the profile says")
    add("--minutes", type=float, metavar="M", help="with --exhaustive: bounds for some M minutes or more (default 10)")
    add("--seed", type=int, metavar="S", help="draw as an earlier run did (default: a new seed, which is printed)")
    add("--first", action="store_true", help="stop at the first deviation; otherwise every clause gets a verdict")
    add("--step-timeout", type=float, default=60.0, metavar="S",
        help="stop a step that takes longer than S seconds: a deviation; 0: never (default %(default)g)")  # fmt: skip
    add(
        "--jobs", type=int, metavar="N", help="processes that run machines; the report is the same (default: 2 at most)"
    )
    add("--hours", type=float, metavar="H", help="with --profile deep: begin no new round after H hours (default 1)")
    add("--state", metavar="FILE", help="with --profile deep: keep what was found after each round, and go on from it")
    add = check.add_argument_group("what is written").add_argument
    add("--full", action="store_true", help="print every clause, machine and deviation, also those alike or expected")
    add(
        "--json",
        metavar="FILE",
        help="the report, with both states around each deviation; what deviated in one that is there runs first",
    )
    add("--coverage", action="store_true", help="print how often each method, argument and fault was drawn as well")
    add("--junit", metavar="FILE", help="the report for continuous integration: a test case for each clause")
    add("--emit", metavar="FILE.py", help="the shortest deviations as a pytest file that fails by itself")
    add("--redact", action="store_true", help="replace tokens in all that is printed or written, equality kept")


def read_options(given: Given) -> Options:
    """Reads the options.

    Raises:
        BadInputError: an option makes no sense.
        XfailsError: the file of expected deviations makes none.
    """
    usual = list(EXHAUSTIVE if given.exhaustive else MACHINES)
    every = usual if given.machines is None or given.exhaustive else [*usual, *ON_REQUEST]
    checked = [
        label
        for label, clause in CLAUSES.items()
        if machines_for([label], usual, given.level) and (given.level != "sound" or clause.kind in SOUND)
    ]
    clauses = chosen("--clauses", given.clauses, list(CLAUSES), family_of) if given.clauses is not None else checked
    names = chosen("--machines", given.machines, every)
    without = chosen("--without", given.without, list(CAPABILITIES)) if given.without is not None else []
    for option, value, least in (("--examples", given.examples, 1), ("--jobs", given.jobs, 1)):
        if value is not None and value < least:
            raise BadInputError(f"{option} {value} must be at least {least}")
    if given.seed is not None and given.seed < 0:
        raise BadInputError(f"--seed {given.seed} must not be negative")
    if given.seed is not None and given.seed >= _MOST_SEED:
        raise BadInputError(f"--seed {given.seed} must be below 2**64")
    if not 0 <= given.step_timeout < math.inf:
        raise BadInputError(f"--step-timeout {given.step_timeout:g} must be a number of seconds, or 0")
    _check_together(given)
    machines = machines_for(clauses, names, given.level)
    if not machines:
        looked_at = ", ".join(clauses) if given.clauses is not None else "any clause"
        which = "no machine" if given.machines is None else f"none of the machines {', '.join(names)}"
        by_answers = "; kvproof serve-check --engine or --url does" if clauses[0] in _OF_ANSWERS else ""
        raise BadInputError(f"{which} checks {looked_at} at level {given.level}{by_answers}")
    file = None if given.xfails is None else Path(given.xfails)
    if file is None or (given.xfails_update and not file.exists()):
        xfails = Xfails(given.xfails or "")
    else:
        xfails = read_xfails(file, CLAUSES, EVERY_MACHINE)
    search: Search = {
        **PROFILES[given.profile].search(first=given.first),
        "level": given.level,
        "step_timeout": given.step_timeout,
    }
    if given.minutes is not None:
        search["effort"] = given.minutes / _MINUTES
    return Options(
        given, tuple(clauses), tuple(machines), given.level, tuple(without), xfails, search, _deviated_before(given)
    )


def _check_together(given: Given) -> None:
    """Options that say nothing without another, or contradict it."""
    deep = given.profile == "deep"
    if given.xfails_update and given.xfails is None:
        raise BadInputError("--xfails-update says nothing without --xfails FILE")
    for option, value in (("--hours", given.hours), ("--state", given.state)):
        if value is not None and not deep:
            raise BadInputError(f"{option} {value} says nothing without --profile deep")
    if given.minutes is not None and not given.exhaustive:
        raise BadInputError(f"--minutes {given.minutes:g} says nothing without --exhaustive")
    if given.minutes is not None and not 0 < given.minutes < math.inf:
        raise BadInputError(f"--minutes {given.minutes:g} must be a positive number")
    if given.exhaustive and given.profile != "default":
        raise BadInputError(f"--profile {given.profile} says nothing with --exhaustive: small worlds draw nothing")
    if given.hours is not None and not 0 < given.hours < math.inf:
        raise BadInputError(f"--hours {given.hours:g} must be a positive number")
    if given.redact and given.emit is not None:
        raise BadInputError(f"--emit {given.emit} writes calls that can be made, tokens and all: not with --redact")
    if given.emit is not None and not given.emit.endswith(".py"):
        raise BadInputError(f"--emit {given.emit} must end in .py")
    if given.emit is not None and not Path(given.emit).parent.is_dir():
        raise BadInputError(f"--emit {given.emit}: there is no directory {Path(given.emit).parent}")
    files = [file for file in (given.json, given.junit, given.emit, given.state) if file is not None]
    if len(set(files)) < len(files):
        raise BadInputError(f"{max(files, key=files.count)} is to be written twice")


def _deviated_before(given: Given) -> tuple[str, ...]:
    """The machines that found deviations of the backend, by the report that will be written over; else none."""
    try:
        before = json.loads(Path(given.json or "").read_text(encoding="utf-8"))
        if before["kvproof"] != "report" or before["backend"] != given.backend:
            return ()
        return tuple(machine["machine"] for machine in before["machines"] if machine["deviations"])
    except (OSError, ValueError, KeyError, TypeError):  # it is no report, and is written over
        return ()


def in_order(machines: Sequence[type[Machine]], before: Sequence[str]) -> list[type[Machine]]:
    """The machines in the order in which they run: those that found deviations in an earlier report come first."""
    return sorted(machines, key=lambda machine: machine.name not in before)
