"""What a seeded bug is, and the list of all of them."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

__all__ = ["FORESEEN", "OWN", "SEEDED_BUGS", "SERVED_BUGS", "SeededBug", "seeded", "served"]

OWN = 0
"""The line of faults that the fast backend itself once had."""

FORESEEN = -1
"""The line of faults that no system is known for: of what few have yet, and a clause warns of."""

Build = Callable[[ModuleType], SimpleNamespace]

Fault = Callable[..., Any]

Way = Callable[[ModuleType, Fault], SimpleNamespace]
"""How a fault gets into a backend: makes one of the fast one, with a function that does what is wrong."""


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
    line: int,
    clause: str,
    machine: str,
    also: tuple[str, ...] = (),
    setups: tuple[str, ...] = (),
    by: Way | None = None,
) -> Callable[[Fault], Fault]:
    """Enters a function in the list, under its own name; its docstring says the fault.

    Args:
        line: see `SeededBug`, as for the other arguments.
        clause: the label of the clause that it breaks.
        machine: the machine that must catch it.
        also: labels by which the suite may report it as well.
        setups: the machine's programs that show it.
        by: how the function gets into a backend, in the place of one of its own; None: it builds the faulty backend.
    """
    return _entered(SEEDED_BUGS, line, clause, machine, also, setups, by)


def served(
    line: int,
    clause: str,
    relation: str,
    also: tuple[str, ...] = (),
    setups: tuple[str, ...] = (),
    by: Way | None = None,
) -> Callable[[Fault], Fault]:
    """Enters a function in the list of faults of whole engines; see `seeded`."""
    return _entered(SERVED_BUGS, line, clause, relation, also, setups, by)


def _entered(
    bugs: dict[str, SeededBug],
    line: int,
    clause: str,
    machine: str,
    also: tuple[str, ...],
    setups: tuple[str, ...],
    by: Way | None,
) -> Callable[[Fault], Fault]:
    def enter(fault: Fault) -> Fault:
        name = getattr(fault, "__name__", "")
        if name in SEEDED_BUGS | SERVED_BUGS:
            raise ValueError(f"there are two bugs named {name}: a backend is found by its bug's name")
        says = " ".join(inspect.cleandoc(fault.__doc__ or "").split("\n\n")[0].split())
        build = fault if by is None else functools.partial(_built, by, fault)
        bugs[name] = SeededBug(name, line, clause, frozenset(also), machine, says, build, setups)
        return fault

    return enter


def _built(by: Way, fault: Fault, fast: ModuleType) -> SimpleNamespace:
    return by(fast, fault)
