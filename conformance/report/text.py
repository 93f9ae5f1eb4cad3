"""How a conformance run is told: the verdict, a line for each cause, each with its shortest calls, what is left out."""

import re
from collections.abc import Callable, Iterable, Mapping

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

_FIELD = re.compile(r"[A-Za-z_ ]+")
"""What is compared of an object's state, as an expectation names it."""

_CALLED = re.compile(r"([A-Za-z_]\w*)\(")


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


def print_report(
    report: Report,
    console: Console,
    xfails: Xfails,
    full: bool = False,
    again: Callable[[str], str] | None = None,
) -> None:
    """Prints the verdict, then what it rests on.

    Args:
        report: what was found.
        console: where to print.
        xfails: the deviations that are expected.
        full: whether to print the table of all clauses, and each deviation with its calls: also where another one is
            told by the same last call and the same difference, and where it is expected.
        again: the command that finds again what a machine found, by the machine's name; None to name none.
    """

    def tell(line: str) -> None:
        console.print(visible(line), markup=False, highlight=False, soft_wrap=True)

    verdicts = {clause: _verdict(report, clause, xfails) for clause in report.clauses}
    counts = {verdict: list(verdicts.values()).count(verdict) for verdict in _STYLES}
    named = {"expected": "expected to deviate"}
    told = [f"{count} {named.get(verdict, verdict)}" for verdict, count in counts.items() if count]
    said = "deviates" if counts["deviates"] else "conforms" if counts["conforms"] else "is undecided"
    if report.interrupted and not counts["deviates"]:
        said = "shows no deviation up to where the run was interrupted"
    tell(f"{report.backend} {said}, at level {report.level}, seed {report.seed}")
    if report.warning:
        tell(f"warning: {report.warning}")
    tell(f"{len(report.clauses)} clauses: {', '.join(told)}")
    causes = _causes(report, xfails)
    for cause in causes:
        found, name = cause[0]
        if xfails.expects(name, found.clause) is None:
            labels = ", ".join(dict.fromkeys(other.clause for other, _ in cause))
            tell(f"  {labels}: {_last_call(found)}: {_short_of(found.observed)}; expected: {_short_of(found.expected)}")
    if full:
        _print_table(report, verdicts, console)
    for (found, name), *others in causes:
        expected = xfails.expects(name, found.clause) is not None
        print_deviation(found, name, console, xfails, calls=full or not expected)
        if again is not None and not expected:
            tell(f"  again       {again(name)}")
        if others and not full:
            tell(f"  the same    {_by_machine(others)}: the same call, the same difference; --full tells them")
        for other, its in others if full else ():
            print_deviation(other, its, console, xfails)
    for machine in report.machines:
        if not machine.ended and machine.note:
            tell("")
            tell(machine_line(machine))
        if machine.unrepeated:
            tell("")
            tell(f"not deterministic, seen by machine {machine.name}: {machine.unrepeated}")
    left = [clause for clause in report.clauses if verdicts[clause] in ("undecided", "not offered")]
    reasons: dict[str, list[str]] = {}
    for clause in left:
        reasons.setdefault(f"{verdicts[clause]}, as {report.why_left(clause)}", []).append(clause)
    if reasons:
        console.print()
    for reason, clauses in sorted(reasons.items(), reverse=True):
        tell(f"{reason}: {', '.join(clauses)}")


def _verdict(report: Report, clause: str, xfails: Xfails) -> str:
    """What came of a clause, an expected deviation being a verdict of its own."""
    return "expected" if xfails.expected(report, clause) is not None else report.verdict(clause)


def _print_table(report: Report, verdicts: Mapping[str, str], console: Console) -> None:
    """Prints a row for each clause, and what each machine did."""
    table = Table(box=None, pad_edge=False)
    table.add_column("clause", no_wrap=True)
    table.add_column("what it says", no_wrap=True, overflow="ellipsis")
    table.add_column("steps", justify="right", no_wrap=True, min_width=6)
    table.add_column("verdict", no_wrap=True, min_width=max(map(len, _STYLES)))
    kind = ""
    for clause in sorted(report.clauses, key=_weight):
        if CLAUSES[clause].kind != kind:
            kind = CLAUSES[clause].kind
            table.add_row("", f"[bold]{kind}[/]", "", "")
        verdict = verdicts[clause]
        sentence = escape(short(CLAUSES[clause].sentence))
        table.add_row(clause, sentence, str(report.tried(clause)), f"[{_STYLES[verdict]}]{verdict}[/]")
    console.print()
    console.print(table)
    console.print()
    for machine in report.machines:
        console.print(machine_line(machine), markup=False, highlight=False, soft_wrap=True)
    if report.tried("MAN-1"):
        console.print(f"MAN-1: {report.hits} look-ups that found something", highlight=False)


def _causes(report: Report, xfails: Xfails) -> list[list[tuple[Deviation, str]]]:
    """The deviations with their machines, those together that show one difference after one call; shortest first.

    What is expected stands apart from what is not.
    """
    pairs = [(found, machine.name) for machine in report.machines for found in machine.deviations]
    causes: dict[tuple[object, ...], list[tuple[Deviation, str]]] = {}
    for found, name in sorted(pairs, key=lambda pair: (_weight(pair[0].clause), pair[0].size)):
        field, equals, _ = found.expected.partition(" = ")
        shown = field if equals and _FIELD.fullmatch(field) else found.clause
        key = (_last_call(found), shown, xfails.expects(name, found.clause))
        causes.setdefault(key, []).append((found, name))
    return list(causes.values())


def _last_call(found: Deviation) -> str:
    """The function or method that a deviation's last call calls."""
    called = _CALLED.search(found.calls[-1]) if found.calls else None
    return called[1] if called else "no call"


def _short_of(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 4]} ..."


def _by_machine(found: Iterable[tuple[Deviation, str]]) -> str:
    return ", ".join(f"{deviation.clause} by machine {machine}" for deviation, machine in found)


def _weight(label: str) -> int:
    """The place of a clause in a report: what is about content and ownership comes first."""
    return list(CLASSES).index(CLAUSES[label].kind)


def print_deviation(found: Deviation, machine: str, console: Console, xfails: Xfails, calls: bool = True) -> None:
    """Prints one deviation: that there is one, and with ``calls`` its calls and states."""
    expected = xfails.expects(machine, found.clause)
    if expected is None:
        console.print(f"\n[bold red]{found.clause}[/] broken, found by machine {machine}", highlight=False)
    else:
        reason = escape(visible(expected.reason)) or f"{escape(visible(xfails.file))}:{expected.number}"
        console.print(
            f"\n[magenta]{found.clause}[/] broken as expected ({reason}), found by machine {machine}", highlight=False
        )
    for line in verdict_lines(found) if calls else ():
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def verdict_lines(found: Deviation) -> list[str]:
    """One deviation, line by line: the clause, what was expected, what came, the calls, the states around the last.

    Nothing in them can command a terminal.
    """
    last = f"calls, {found.num_calls} on the backend, the last one deviates"
    lines = [
        f"  the clause  {CLAUSES[found.clause].sentence}",
        f"  its page    kvproof clauses {found.clause}",
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
