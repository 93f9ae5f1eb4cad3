"""What a run finds: what each machine did, and a verdict for each clause."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from ..backends.levels import Level
from ..calls.deviation import Deviation
from ..emitting import Script

__all__ = ["MachineReport", "Report", "Verdict"]

Verdict = Literal["conforms", "deviates", "undecided", "not offered"]

_ENOUGH_STEPS = 200
"""The number of steps that suffice for a clause whose machine ended early, at a deviation from another clause."""

_FEW_STEPS = 20
"""The number that suffices if the machine went on, without the clauses that deviate, and came to its end."""


@dataclass(frozen=True)
class MachineReport:
    """What one machine found.

    Attributes:
        name: the machine.
        clauses: the clauses that it checks.
        missing: the names that it needs and the backend does not offer; if there are any, it did not run.
        lacks: what else the backend does not offer, so that the steps about it were left out.
        examples: sequences of calls that were made: after a deviation without the clause that deviates, from the start.
        steps: steps in them.
        wasted: steps in them that had nothing possible to do.
        tried: for each clause the steps in which it was compared.
        deviations: the shortest deviation found for each clause, the shortest of all first.
        undeclared: (property, clause) compared though not declared; empty unless the suite has a fault.
        seconds: how long it took.
        hits: look-ups of requests that found a cached prefix.
        unrepeated: how calls ended otherwise when they were made again, the backend being not deterministic; "" if
            none was seen to.
        seconds_to_first: after how long it saw its first deviation; 0.0 if it saw none.
        level: the level at which it compared.
        ended: whether it came to its end: after a deviation it does if it goes on without the clause that deviates.
        note: what else there is to say, such as how many states were covered.
        scripts: tests made of the deviations, if they were asked for.
    """

    name: str
    clauses: frozenset[str]
    missing: list[str] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)
    examples: int = 0
    steps: int = 0
    wasted: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    deviations: list[Deviation] = field(default_factory=list)
    undeclared: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    level: Level = "exact"
    ended: bool = True
    note: str = ""
    scripts: list[Script] = field(default_factory=list)
    seconds_to_first: float = 0.0
    hits: int = 0
    unrepeated: str = ""
    drawn: Counter[str] = field(default_factory=Counter)

    def decides(self, clause: str) -> bool:
        """Whether it compared enough by a clause to say that the backend conforms, having seen no deviation from it."""
        if self.ended and not self.deviations:
            return self.tried[clause] > 0
        return self.tried[clause] >= (_FEW_STEPS if self.ended else _ENOUGH_STEPS)

    def lacks_all_of(self, clause: str) -> bool:
        """Whether it never compared by a clause, the backend lacking something: not just because it ended early.

        Where a deviation ends each sequence with its first step, nothing is known of what else there is.
        """
        if self.deviations and self.steps <= self.examples:
            return False
        ran = self.ended or not self.deviations or self.steps >= _ENOUGH_STEPS
        return bool(self.lacks) and ran and not self.tried[clause]


@dataclass(frozen=True)
class Report:
    """What a run found.

    Attributes:
        backend: the backend's name.
        seed: the run's seed.
        clauses: the labels of the clauses that were looked at.
        machines: what each machine found.
        level: the level at which they compared.
        profile: the profile, by its name.
        without: the capabilities that the backend is said to lack.
        warning: what is to be known before the verdicts are read, such as an adapter's package of another version.
        interrupted: whether the run was interrupted, so that machines that it was asked for may have no report.
    """

    backend: str
    seed: int
    clauses: tuple[str, ...]
    machines: list[MachineReport]
    level: Level = "exact"
    profile: str = "default"
    without: tuple[str, ...] = ()
    warning: str = ""
    interrupted: bool = False

    def tried(self, clause: str) -> int:
        """In how many steps a clause was compared."""
        return sum(machine.tried[clause] for machine in self.machines)

    @property
    def hits(self) -> int:
        """How many look-ups of requests found a cached prefix."""
        return sum(machine.hits for machine in self.machines)

    def verdict(self, clause: str) -> Verdict:
        """What came of one clause.

        Returns:
            ``deviates`` if any machine saw that; ``conforms`` if it was compared by a machine that came to its
            end, or often enough by one that did not; ``not offered`` if the backend lacks what it is about;
            else ``undecided``.
        """
        checking = [machine for machine in self.machines if clause in machine.clauses]
        if any(found.clause == clause for machine in checking for found in machine.deviations):
            return "deviates"
        if any(machine.decides(clause) for machine in checking):
            return "conforms"
        if checking and all(machine.missing or machine.lacks_all_of(clause) for machine in checking):
            return "not offered"
        return "undecided"

    def why_left(self, clause: str) -> str:
        """Why a clause is undecided or not offered, in the words of a message."""
        checking = [machine for machine in self.machines if clause in machine.clauses]
        if not checking:
            if self.interrupted:
                return "the run was interrupted before a machine that checks it began"
            return "no machine of this run checks it"
        if self.verdict(clause) == "not offered":
            lacking = [list(machine.missing or machine.lacks) for machine in checking]
            classes = [[name for name in lacks if name.isidentifier() and name[0].isupper()] for lacks in lacking]
            whole = min(filter(None, classes), key=len, default=[])  # what lacks the class lacks all else of it
            fewest = min(lacking, key=len)
            return f"the backend has no {', '.join(whole[:1] or fewest)}"
        ran = [machine for machine in checking if not machine.missing]
        if any(machine.deviations for machine in ran):
            return "deviations from other clauses left too few comparisons"
        stopped = [machine.note for machine in ran if not machine.ended and machine.note]
        if stopped:
            return f"the search was ended ({stopped[0]})"
        return "no call that was made is about it"

    @property
    def deviates(self) -> bool:
        """Whether the backend deviates from any clause that was looked at."""
        return any(machine.deviations for machine in self.machines)
