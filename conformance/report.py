"""How a conformance run is told: a table of clauses, then each deviation with its calls; or the same as JSON."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvproof.spec.clauses import CLAUSES

from .deviation import Deviation
from .runner import MachineReport, Report

__all__ = ["as_json", "machine_line", "print_report", "short"]

_STYLES = {"conforms": "green", "deviates": "bold red", "undecided": "yellow", "not offered": "dim"}
_SHORT = 48


def short(sentence: str) -> str:
    """The beginning of a clause's sentence, for a table."""
    return sentence if len(sentence) <= _SHORT else sentence[: _SHORT - 4].rsplit(" ", 1)[0] + " ..."


def machine_line(machine: MachineReport) -> str:
    """What one machine did, in a line."""
    if machine.missing:
        return f"{machine.name}: not offered: {', '.join(machine.missing)}"
    line = (
        f"{machine.name}: {machine.examples} sequences, {machine.steps} steps, {machine.wasted} of them wasted, "
        f"{machine.seconds:.1f} s"
    )
    if machine.lacks:
        line += f"; not offered: {', '.join(machine.lacks)}"
    if machine.deviations:
        line += f"; deviates from {', '.join(found.clause for found in machine.deviations)}"
    return line


def print_report(report: Report, console: Console) -> None:
    """Prints the table of clauses and every machine's shortest deviation."""
    table = Table(title=f"{report.backend}, seed {report.seed}", title_justify="left", box=None, pad_edge=False)
    table.add_column("clause", no_wrap=True)
    table.add_column("what it says", no_wrap=True, overflow="ellipsis")
    table.add_column("steps", justify="right", no_wrap=True, min_width=6)
    table.add_column("verdict", no_wrap=True, min_width=max(map(len, _STYLES)))
    for clause in report.clauses:
        verdict = report.verdict(clause)
        table.add_row(
            clause,
            escape(short(CLAUSES[clause].sentence)),
            str(report.tried(clause)),
            f"[{_STYLES[verdict]}]{verdict}[/]",
        )
    console.print(table)
    for machine in report.machines:
        if machine.deviations:
            _print_deviation(machine, console)
    console.print(f"\n{_summary(report)}", markup=False, highlight=False)


def _print_deviation(machine: MachineReport, console: Console) -> None:
    shortest, *others = machine.deviations
    console.print(f"\n[bold red]{shortest.clause}[/] broken, found by machine {machine.name}")
    for line in _lines(shortest):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if others:
        labels = ", ".join(found.clause for found in others)
        line = f"  also seen to deviate: {labels}; kvproof check --clauses {others[0].clause} looks at it alone"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _lines(found: Deviation) -> Iterable[str]:
    """One deviation, line by line."""
    yield f"  the clause  {CLAUSES[found.clause].sentence}"
    yield f"  expected    {found.expected}"
    yield f"  observed    {found.observed}"
    yield "  calls"
    for call in found.calls:
        yield f"    {call}"
    changed = {name: value for name, value in found.after.items() if found.before.get(name) != value}
    for title, state in (("before the last call", found.before), ("that it changes, by the specification", changed)):
        if state:
            yield f"  state {title}"
            for name, value in state.items():
                yield f"    {name}: {value}"


def _summary(report: Report) -> str:
    verdicts = [report.verdict(clause) for clause in report.clauses]
    counts = [f"{verdicts.count(name)} {name}" for name in _STYLES if name in verdicts]
    return f"{len(verdicts)} clauses: {', '.join(counts)}"


def as_json(report: Report) -> dict[str, Any]:
    """A run's report as JSON values."""
    return {
        "backend": report.backend,
        "seed": report.seed,
        "deviates": report.deviates,
        "clauses": [
            {
                "clause": clause,
                "sentence": CLAUSES[clause].sentence,
                "steps": report.tried(clause),
                "verdict": report.verdict(clause),
            }
            for clause in report.clauses
        ],
        "machines": [_machine_json(machine) for machine in report.machines],
    }


def _machine_json(machine: MachineReport) -> dict[str, Any]:
    return {
        "machine": machine.name,
        "not_offered": [*machine.missing, *machine.lacks],
        "sequences": machine.examples,
        "steps": machine.steps,
        "wasted": machine.wasted,
        "seconds": round(machine.seconds, 3),
        "deviations": [
            {
                "clause": found.clause,
                "sentence": CLAUSES[found.clause].sentence,
                "expected": found.expected,
                "observed": found.observed,
                "calls": list(found.calls),
                "before": found.before,
                "after": found.after,
            }
            for found in machine.deviations
        ],
    }
