"""How a conformance run is told: a table of clauses, then each deviation with its calls and the states around it."""

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvproof.spec.clauses import CLASSES, CLAUSES

from ..calls.deviation import Deviation
from ..console.terminal import visible
from .verdicts import MachineReport, Report
from .xfails import Xfails

__all__ = ["machine_line", "print_deviation", "print_report", "short", "verdict_lines"]

_STYLES = {
    "conforms": "green",
    "deviates": "bold red",
    "expected": "magenta",
    "undecided": "yellow",
    "not offered": "dim",
}
_SHORT = 48

_BEFORE, _RIGHT, _SEEN = "before the last call", "after, by the specification", "after, by the backend"
_SAME = "after, by both"
_WIDTH = len(_RIGHT)


def short(sentence: str) -> str:
    """The beginning of a clause's sentence, for a table."""
    return sentence if len(sentence) <= _SHORT else sentence[: _SHORT - 4].rsplit(" ", 1)[0] + " ..."


def machine_line(machine: MachineReport) -> str:
    """What one machine did, in a line."""
    if machine.missing:
        return visible(f"{machine.name}: not offered: {', '.join(machine.missing)}")
    if machine.note.startswith(("closed", "cut")):  # a small world that was walked through: nothing is drawn
        line = f"{machine.name}: {machine.note}, {machine.seconds:.1f} s"
    else:
        line = (
            f"{machine.name}: {machine.examples} sequences, {machine.steps} steps, {machine.wasted} of them wasted, "
            f"{machine.seconds:.1f} s" + (f"; {machine.note}" if machine.note else "")
        )
        line += f"; {machine.hits} hits" if "MAN-1" in machine.clauses else ""
    if machine.lacks:
        line += f"; not offered: {', '.join(machine.lacks)}"
    if machine.deviations:
        line += f"; deviates from {', '.join(found.clause for found in machine.deviations)}"
    return visible(line)


def print_report(report: Report, console: Console, xfails: Xfails) -> None:
    """Prints the table of clauses, every deviation, and how many clauses came to what."""
    title = f"{escape(visible(report.backend))}, level {report.level}, seed {report.seed}"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("clause", no_wrap=True)
    table.add_column("what it says", no_wrap=True, overflow="ellipsis")
    table.add_column("steps", justify="right", no_wrap=True, min_width=6)
    table.add_column("verdict", no_wrap=True, min_width=max(map(len, _STYLES)))
    counts = dict.fromkeys(_STYLES, 0)
    kind = ""
    for clause in sorted(report.clauses, key=_weight):
        if CLAUSES[clause].kind != kind:
            kind = CLAUSES[clause].kind
            table.add_row("", f"[bold]{kind}[/]", "", "")
        verdict: str = report.verdict(clause)
        if xfails.expected(report, clause) is not None:
            verdict = "expected"
        counts[verdict] += 1
        table.add_row(
            clause,
            escape(short(CLAUSES[clause].sentence)),
            str(report.tried(clause)),
            f"[{_STYLES[verdict]}]{verdict}[/]",
        )
    console.print(table)
    deviations = [(found, machine.name) for machine in report.machines for found in machine.deviations]
    for found, name in sorted(deviations, key=lambda pair: _weight(pair[0].clause)):
        print_deviation(found, name, console, xfails)
    for machine in report.machines:
        if machine.unrepeated:
            line = f"not deterministic, seen by machine {machine.name}: {machine.unrepeated}"
            console.print(f"\n{visible(line)}", markup=False, highlight=False, soft_wrap=True)
    if report.tried("MAN-1"):
        console.print(f"\nMAN-1: {report.hits} look-ups that found something", highlight=False)
    named = {"expected": "expected to deviate"}
    told = [f"{count} {named.get(verdict, verdict)}" for verdict, count in counts.items() if count]
    console.print(f"\n{len(report.clauses)} clauses: {', '.join(told)}", markup=False, highlight=False)


def _weight(label: str) -> int:
    """The place of a clause in a report: what is about content and ownership comes first."""
    return list(CLASSES).index(CLAUSES[label].kind)


def print_deviation(found: Deviation, machine: str, console: Console, xfails: Xfails) -> None:
    """Prints one deviation."""
    expected = xfails.expects(machine, found.clause)
    if expected is None:
        console.print(f"\n[bold red]{found.clause}[/] broken, found by machine {machine}", highlight=False)
    else:
        reason = escape(visible(expected.reason)) or f"{escape(visible(xfails.file))}:{expected.number}"
        console.print(
            f"\n[magenta]{found.clause}[/] broken as expected ({reason}), found by machine {machine}", highlight=False
        )
    for line in verdict_lines(found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def verdict_lines(found: Deviation) -> list[str]:
    """One deviation, line by line: the clause, what was expected, what came, the calls, the states around the last.

    Nothing in them can command a terminal.
    """
    last = f"calls, {found.num_calls} on the backend, the last one deviates"
    lines = [
        f"  the clause  {CLAUSES[found.clause].sentence}",
        f"  expected    {found.expected}",
        f"  observed    {found.observed}",
        f"  {last}",
        *(f"    {call}" for call in found.calls),
        *(["  raised, the innermost frame last"] if found.raised else []),
        *(f"    {frame}" for frame in found.raised),
        *_states(found),
    ]
    return list(map(visible, lines))


def _states(found: Deviation) -> list[str]:
    """The observable state around the last call: what it changes, and what it should have."""
    if not found.before and not found.after:
        return []
    sides: dict[str, Mapping[str, str]] = {_BEFORE: found.before, _RIGHT: found.after}
    if found.observed_after:
        sides[_SEEN] = found.observed_after
    names = dict.fromkeys(name for state in sides.values() for name in state)
    lines = []
    for name in names:
        shown = {title: state[name] for title, state in sides.items() if name in state}
        if len(set(shown.values())) > 1 or (found.before and name not in found.before):
            if shown.get(_RIGHT) == shown.get(_SEEN):
                shown = {_BEFORE: shown.get(_BEFORE, ""), _SAME: shown[_RIGHT]}
            lines += [f"    {name}", *(f"      {title:{_WIDTH}}  {value}" for title, value in shown.items())]
    if not lines:
        return ["  state: as before the last call, on both sides"]
    return ["  state, as far as it changes or differs", *lines]
