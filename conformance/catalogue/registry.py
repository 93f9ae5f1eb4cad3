"""What a seeded bug is, and the list of all of them."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace

from .patching import Fault, Way, replaced

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


def _entering(bugs: dict[str, SeededBug]) -> Callable[..., Callable[[Fault], Fault]]:
    """What enters a function in a list, under its own name; its docstring says the fault."""

    def described(
        line: int,
        clause: str,
        machine: str,
        also: tuple[str, ...] = (),
        setups: tuple[str, ...] = (),
        by: str | Way | None = None,
    ) -> Callable[[Fault], Fault]:
        """Says what the function is; see `SeededBug`.

        Args:
            line: its number in the list of known faults, `OWN` or `FORESEEN`.
            clause: the label of the clause that it breaks.
            machine: the machine that must catch it, or the oracle's relation.
            also: labels by which the suite may report it as well.
            setups: the machine's programs that show it.
            by: how the function gets into a backend: the place that it takes there, see `patching.replaced`, or what
                makes a backend with it; None: it builds the faulty backend.
        """

        def enter(fault: Fault) -> Fault:
            name = getattr(fault, "__name__", "")
            if name in SEEDED_BUGS | SERVED_BUGS:
                raise ValueError(f"there are two bugs named {name}: a backend is found by its bug's name")
            says = " ".join(inspect.cleandoc(fault.__doc__ or "").split("\n\n")[0].split())
            way = replaced(by) if isinstance(by, str) else by
            build = fault if way is None else functools.partial(_built, way, fault)
            bugs[name] = SeededBug(name, line, clause, frozenset(also), machine, says, build, setups)
            return fault

        return enter

    return described


def _built(by: Way, fault: Fault, fast: ModuleType) -> SimpleNamespace:
    return by(fast, fault)


seeded = _entering(SEEDED_BUGS)
"""Enters a bug that a machine must catch."""

served = _entering(SERVED_BUGS)
"""Enters a fault that shows in what a whole engine answers; its setups are words of `small_engine`."""
