"""``kvproof strength``: runs the suite on the seeded bugs, and says what it catches, how soon, and how briefly told."""

import argparse
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from kvproof import __version__

from ..backends.raising import Interrupted
from ..catalogue import SEEDED_BUGS, SERVED_BUGS
from ..catalogue.strength import Finding, Strength, find_bugs
from ..console.exit_status import COULD_NOT_RUN, DEVIATES, FINE
from ..console.named import BadInputError, did_you_mean, words_of
from ..console.writing import require_writable, write_file
from .devices import want_devices

__all__ = ["as_json", "run_strength", "set_up"]


@dataclass(frozen=True)
class _Options:
    """What the command was asked for, by the options that `set_up` adds."""

    bugs: str | None
    seed: int
    jobs: int | None
    json: str | None


def set_up(parser: argparse.ArgumentParser) -> None:
    """Says what ``strength`` does and what it is asked for, and has `run_strength` called."""
    parser.description = """\
Runs the suite on every seeded bug: a variant of the fast backend with one fault that a real system had. Says of each
whether it is caught, by which clause and which machine, after how long, and how many calls the counterexample has;
the making of a request is no call, the construction of the object is one.

Of each bug the machine that must catch it runs first, with its default number of sequences of calls, and the other
machines of `kvproof check` follow only while the bug is not caught. Each machine starts from the seed alone, so that
what is caught here is caught by

  kvproof check --backend kvproof.conformance.catalogue:BUG --seed SEED

as well. A bug counts as caught where a machine reports it by one of the clauses that it breaks. Where the shortest
counterexample has more than 12 calls, the small worlds of the default check look for a shorter one.

Faults of whole engines follow in a table of their own: each is planted in a small engine, which is judged as

  kvproof serve-check --engine ... --seed SEED

does it, by the relation that must show the fault and, while it is not caught, by the others. The counterexample is a
script of requests. In JSON they stand under "engines".
"""
    parser.epilog = """\
examples:
  kvproof strength                                       all seeded bugs, in half an hour or so
  kvproof strength --bugs double_mention,fixed_root --seed 7 --json strength.json

exit status: 0 all are caught; 1 one is missed; 2 could not run
"""
    add = parser.add_argument
    add("--bugs", metavar="A,B", help="these seeded bugs only (default: all of them)")
    add("--seed", type=int, default=0, metavar="S", help="the seed of what is drawn (default %(default)s)")
    add("--jobs", type=int, metavar="N", help="processes that run bugs (default: 2 at most)")
    add("--json", metavar="FILE", help="write what was found to a file as well, counterexamples included")
    parser.set_defaults(func=run_strength, options=_Options)


def run_strength(options: _Options) -> int:
    """Measures as asked.

    Returns:
        The exit status: 0 all bugs were caught, 1 one was missed, 2 could not run.
    """
    _require_sense(options)
    require_writable(options.json)  # better known now than after ten minutes
    want_devices()
    names = _names(options.bugs)
    jobs = min(os.cpu_count() or 1, 2) if options.jobs is None else options.jobs
    found: dict[str, Finding] = {}
    interrupted = False
    try:
        with Console(stderr=True, emoji=False).status("") as progress:
            for finding in _shown(find_bugs(names, options.seed, min(jobs, len(names))), len(names), progress):
                found[finding.bug] = finding
    except Interrupted:
        if not found:
            raise
        interrupted = True
    strength, engines = (
        Strength(tuple(found[name] for name in names if name in bugs and name in found))
        for bugs in (SEEDED_BUGS, SERVED_BUGS)
    )
    _print(strength, engines, options.seed)
    document = as_json(strength, engines, options.seed) | ({"interrupted": True} if interrupted else {})
    write_file(options.json, json.dumps(document, indent=1) + "\n")
    if interrupted:
        print(f"kvproof strength: interrupted; {len(found)} of {len(names)} seeded bugs are told", file=sys.stderr)
    if not all(finding.caught for finding in found.values()):
        return DEVIATES
    return COULD_NOT_RUN if interrupted else FINE


def _names(given: str | None) -> list[str]:
    """The bugs that are named, in the catalogue's order; all if none is."""
    words = None if given is None else set(words_of(given))
    return [name for name in (*SEEDED_BUGS, *SERVED_BUGS) if words is None or name in words]


def _require_sense(options: _Options) -> None:
    """Refuses options that make no sense."""
    words = [] if options.bugs is None else words_of(options.bugs)
    strange = [word for word in words if word not in SEEDED_BUGS | SERVED_BUGS]
    if strange or (options.bugs is not None and not words):
        meant = did_you_mean(strange[0], SEEDED_BUGS | SERVED_BUGS) if strange else ""
        said = ", ".join(map(repr, strange)) or "is named"
        raise BadInputError(f"--bugs {options.bugs!r}: no seeded bug {said}{meant}")
    if options.jobs is not None and options.jobs < 1:
        raise BadInputError(f"--jobs {options.jobs} must be at least 1")
    if options.seed < 0:
        raise BadInputError(f"--seed {options.seed} must not be negative")


def _shown(findings: Any, count: int, progress: Any) -> Any:
    """Findings as they come, with a line of progress."""
    progress.update(f"0 of {count} seeded bugs")
    for number, finding in enumerate(findings, 1):
        progress.update(f"{number} of {count} seeded bugs; {finding.bug} is {_word(finding)}")
        yield finding


def _word(finding: Finding) -> str:
    return "caught" if finding.caught else "missed"


def _print(strength: Strength, engines: Strength, seed: int) -> None:
    console = Console(width=None if sys.stdout.isatty() else 140, emoji=False)
    for found, one, by, many in (
        (strength, "machine", "calls", "sequences"),
        (engines, "relation", "requests", "scripts"),
    ):
        if found.findings:
            _print_table(found, console, one, by, many)
            console.print(
                f"\nseed {seed}: {found.caught} of {len(found.findings)} "
                f"{'faults of whole engines ' if found is engines else ''}caught; counterexamples of "
                f"{found.median_calls:g} {by} in the median, {found.longest_calls} at most; {found.seconds:.0f} s",
                highlight=False,
            )


def _print_table(strength: Strength, console: Console, one: str, by: str, many: str) -> None:
    table = Table(box=None, pad_edge=False)
    for name in ("line", "seeded bug", "", "clause", one):
        table.add_column(name, no_wrap=True)
    for name in (by, many, "s to catch", "s in all"):
        table.add_column(name, justify="right", no_wrap=True)
    for found in strength.findings:
        calls = str(found.calls) if found.caught else ""
        times = f"{found.seconds_to_catch:.1f}", f"{found.seconds:.1f}"
        words = found.bug, _word(found), found.clause, found.machine
        table.add_row(str(found.line), *words, calls, str(found.examples), *times)
    console.print(table)


def as_json(strength: Strength, engines: Strength, seed: int) -> dict[str, Any]:
    """What was found, for a file.

    Args:
        strength: of the bugs that machines look for.
        engines: of the faults of whole engines.
        seed: the seed of what was drawn.
    """
    return {
        "kvproof": "strength",
        "version": 1,
        "kvproof_version": __version__,
        "seed": seed,
        **_sums(strength, "machine", "calls"),
        "engines": _sums(engines, "relation", "requests"),
    }


def _sums(strength: Strength, one: str, by: str) -> dict[str, Any]:
    return {
        "caught": strength.caught,
        "of": len(strength.findings),
        f"median_{by}": strength.median_calls,
        f"longest_{by}": strength.longest_calls,
        "seconds": round(strength.seconds, 1),
        "bugs": [
            {
                "bug": found.bug,
                "line": found.line,
                "caught": found.caught,
                "clause": found.clause,
                one: found.machine,
                by: found.calls,
                "sequence": list(found.lines),
                "examples": found.examples,
                "seconds_to_catch": round(found.seconds_to_catch, 2),
                "seconds": round(found.seconds, 2),
            }
            for found in strength.findings
        ],
    }
