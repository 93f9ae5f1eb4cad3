"""What a seeded bug is, and the list of all of them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

__all__ = ["FORESEEN", "OWN", "SEEDED_BUGS", "SERVED_BUGS", "SeededBug", "seeded", "served"]

OWN = 0
"""The line of faults that the fast backend itself once had."""

FORESEEN = -1
"""The line of faults that no system is known for: of what few have yet, and a clause warns of."""

Build = Callable[[ModuleType], SimpleNamespace]


@dataclass(frozen=True)
class SeededBug:
    """A fault that a real system had, or may come to have.

    Attributes:
        name: what it is called.
        line: its number in the list of known faults, `OWN` or `FORESEEN`.
        clause: the label of the clause that it breaks.
        also: labels by which the suite may report it as well, where another comparison comes first.
        machine: the machine that must catch it; of `SERVED_BUGS` the oracle's relation.
        says: what the system did, in a sentence or two.
        build: makes the faulty backend from the fast one.
        setups: where the machine draws from programs that each take seconds to compile, those of them that show
            the fault; empty for any. Of `SERVED_BUGS` what an engine must have, by the words of `small_engine`.
    """

    name: str
    line: int
    clause: str
    also: frozenset[str]
    machine: str
    says: str
    build: Build
    setups: tuple[str, ...] = ()

    @property
    def clauses(self) -> frozenset[str]:
        """All labels by which the suite may report it."""
        return self.also | {self.clause}


SEEDED_BUGS: dict[str, SeededBug] = {}
"""Every seeded bug by its name, in the order of the modules."""


SERVED_BUGS: dict[str, SeededBug] = {}
"""Faults that show in what a whole engine answers, by name: no machine looks for them, the oracle does."""


def seeded(
    line: int, clause: str, machine: str, also: tuple[str, ...] = (), setups: tuple[str, ...] = ()
) -> Callable[[Build], Build]:
    """Enters a function that builds a faulty backend in the list, under its own name; its docstring says the fault."""
    return _entered(SEEDED_BUGS, line, clause, machine, also, setups)


def served(
    line: int, clause: str, relation: str, also: tuple[str, ...] = (), setups: tuple[str, ...] = ()
) -> Callable[[Build], Build]:
    """Enters a function that builds a faulty backend in the list of faults of whole engines; see `seeded`."""
    return _entered(SERVED_BUGS, line, clause, relation, also, setups)


def _entered(
    bugs: dict[str, SeededBug], line: int, clause: str, machine: str, also: tuple[str, ...], setups: tuple[str, ...]
) -> Callable[[Build], Build]:
    def enter(build: Build) -> Build:
        name = build.__name__
        if name in SEEDED_BUGS | SERVED_BUGS:
            raise ValueError(f"there are two bugs named {name}: a backend is found by its bug's name")
        says = inspect.cleandoc(build.__doc__ or "").split("\n\n")[0]
        bugs[name] = SeededBug(name, line, clause, frozenset(also), machine, " ".join(says.split()), build, setups)
        return build

    return enter
