"""Deviations that are expected: a file that lists them, and what in it is out of date."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..console.exit_status import CannotRunError
from ..console.terminal import visible
from .verdicts import MachineReport, Report

__all__ = ["Xfail", "Xfails", "XfailsError", "read_xfails"]

_MOST_BYTES = 1 << 20


class XfailsError(CannotRunError):
    """A file of expected deviations makes no sense; the message is one line that names file and line."""


@dataclass(frozen=True)
class Xfail:
    """One line of the file.

    Attributes:
        number: the line's number, from 1.
        machine: the machine that sees the deviation; "" for any.
        clause: the clause's label.
        reason: why it is expected; "" if the line does not say.
    """

    number: int
    machine: str
    clause: str
    reason: str

    def covers(self, machine: str, clause: str) -> bool:
        """Whether it expects that a machine sees a deviation from a clause."""
        return clause == self.clause and self.machine in ("", machine)


@dataclass(frozen=True)
class Xfails:
    """The deviations that are expected.

    Attributes:
        file: the file's name, as it was given; "" if there is none.
        lines: its lines.
        text: all that stands in it, comments and blank lines among it.
    """

    file: str = ""
    lines: tuple[Xfail, ...] = ()
    text: str = ""

    def expects(self, machine: str, clause: str) -> Xfail | None:
        """The line that expects a deviation; None if there is none."""
        return next((line for line in self.lines if line.covers(machine, clause)), None)

    def unexpected(self, report: Report) -> bool:
        """Whether any deviation of a run is not expected."""
        return any(map(self.unexpected_of, report.machines))

    def unexpected_of(self, machine: MachineReport) -> bool:
        """Whether any deviation that a machine saw is not expected."""
        return any(self.expects(machine.name, found.clause) is None for found in machine.deviations)

    def expected(self, report: Report, clause: str) -> Xfail | None:
        """The line that expects a clause's deviation, if every machine's is expected; None otherwise."""
        seen = [machine.name for machine in report.machines for found in machine.deviations if found.clause == clause]
        lines = [self.expects(name, clause) for name in seen]
        return lines[0] if lines and all(lines) else None

    def stale(self, report: Report) -> list[str]:
        """A warning for each line whose deviation was looked for and not seen."""
        return [
            f"{self.file}:{line.number}: {line.machine + ':' if line.machine else ''}{line.clause} is expected to "
            "deviate and does not: the line is out of date"
            for line in self.lines
            if self._is_stale(line, report)
        ]

    def updated(self, report: Report) -> str:
        """The file as a run would have it: without the lines that are out of date, with one for each new deviation."""
        stale = {line.number for line in self.lines if self._is_stale(line, report)}
        kept = [text for number, text in enumerate(self.text.splitlines(), 1) if number not in stale]
        new = [
            f"{machine.name}:{found.clause}  # {visible(found.observed)}"
            for machine in report.machines
            for found in machine.deviations
            if self.expects(machine.name, found.clause) is None
        ]
        return "".join(f"{line}\n" for line in [*kept, *new])

    def _is_stale(self, line: Xfail, report: Report) -> bool:
        """Whether a line's deviation was looked for and not seen."""
        return any(_holds(machine, line) for machine in report.machines) and not any(
            line.covers(machine.name, found.clause) for machine in report.machines for found in machine.deviations
        )


def read_xfails(file: Path, clauses: Collection[str], machines: Collection[str]) -> Xfails:
    """Reads a file of expected deviations.

    A line is ``CLAUSE`` or ``machine:CLAUSE``, with ``# reason`` behind if one likes; blank lines and comments too.

    Args:
        file: the file.
        clauses: the labels that there are.
        machines: the machines that there are.

    Raises:
        XfailsError: it cannot be read, or names what there is not.
    """
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise XfailsError(f"{file}: more than {_MOST_BYTES} bytes")
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise XfailsError(f"{file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise XfailsError(f"{file}: no UTF-8") from error
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        named, _, reason = line.partition("#")
        if not named.strip():
            continue
        machine, colon, clause = named.strip().rpartition(":")
        if clause not in clauses:
            raise XfailsError(f"{file}:{number}: no clause {clause!r}; kvproof clauses lists them")
        if colon and machine not in machines:
            raise XfailsError(f"{file}:{number}: no machine {machine!r}; there are {', '.join(machines)}")
        lines.append(Xfail(number, machine, clause, reason.strip()))
    return Xfails(str(file), tuple(lines), text)


def _holds(machine: MachineReport, line: Xfail) -> bool:
    """Whether a machine looked for a deviation, long enough, and saw none."""
    return line.covers(machine.name, line.clause) and not machine.missing and machine.decides(line.clause)
