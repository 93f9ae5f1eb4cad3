"""What steps are made of, and which clauses each step of each machine checks: declared once, at the step."""

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, cast

from hypothesis.stateful import initialize
from hypothesis.strategies import SearchStrategy

__all__ = [
    "Property",
    "Step",
    "Stepping",
    "clauses_of_machine",
    "clauses_of_step",
    "declared_clauses",
    "operation",
    "properties_of",
    "start",
    "step",
    "steps_of",
]

Method = Callable[..., Any]
F = TypeVar("F", bound=Method)


@dataclass(frozen=True)
class Step:
    """What a machine can do next.

    Attributes:
        method: does it.
        clauses: what its own calls check, beside what the machine checks after every step.
        when: whether it is possible in a state of the machine.
        weight: how often it is drawn, compared with others.
        first: whether it is the step that builds what the others call.
        says: what it does, in a sentence; "" where its method says it.
    """

    method: Method
    clauses: frozenset[str]
    when: Callable[[Any], object] | None = None
    weight: int = 1
    first: bool = False
    says: str = ""

    @property
    def plays(self) -> bool:
        """Whether its method yields `Call`s, and is sent what came of each."""
        return inspect.isgeneratorfunction(self.method)


class Stepping(Protocol):
    """What has steps: a machine.

    Attributes:
        name: see `Machine`.
        always: see `Machine`.
    """

    name: ClassVar[str]
    always: ClassVar[frozenset[str]]

    @classmethod
    def steps_of_rows(cls) -> dict[str, Step]:
        """See `Machine.steps_of_rows`."""


_STEPS: dict[tuple[str, str], Step] = {}
"""Every step by the (module, qualified name) of its method."""


@dataclass(frozen=True)
class Property:
    """One step of a machine, as a list of properties shows it.

    Attributes:
        name: the machine's name and the step's, such as ``pool.free_pages``.
        clauses: the labels of the clauses that it checks.
        sentence: what it does.
    """

    name: str
    clauses: frozenset[str]
    sentence: str


def step(*clauses: str, when: Callable[[Any], object] | None = None, weight: int = 1) -> Callable[[Method], Method]:
    """Makes a method a step of its machine; it is called with what it draws from.

    Args:
        clauses: the clauses that its own calls check, beside those that its machine checks after every step.
        when: whether the step is possible in a state of the machine.
        weight: how often it is drawn, compared with others.
    """

    def decorate(method: Method) -> Method:
        _STEPS[method.__module__, method.__qualname__] = Step(method, frozenset(clauses), when, weight)
        return method

    return decorate


def start(*clauses: str, **strategies: SearchStrategy[Any]) -> Callable[[Method], Method]:
    """Makes a method the first step of its machine: it builds what the other steps call."""

    def decorate(method: Method) -> Method:
        _STEPS[method.__module__, method.__qualname__] = Step(method, frozenset(clauses), first=True)

        @functools.wraps(method)
        def counted(self: Any, **drawn: Any) -> None:
            self.run_step(method.__name__, functools.partial(method, self, **drawn), drawn)

        as_first: Any = initialize  # its overloads know no **strategies
        made: Method = as_first(**strategies)(counted)
        return made

    return decorate


@functools.lru_cache(maxsize=64)
def steps_of(machine: type[Stepping]) -> dict[str, Step]:
    """The steps of a machine by name, its first step included; its own before those of the classes it stands on."""
    found: dict[str, Step] = {}
    for cls in machine.__mro__:
        for name in vars(cls):
            known = _STEPS.get((cls.__module__, f"{cls.__qualname__}.{name}"))
            if known is not None:
                found.setdefault(name, known)
    return found | machine.steps_of_rows()


def clauses_of_step(machine: type[Stepping], name: str) -> frozenset[str]:
    """The clauses that one step of a machine checks, its machine's included."""
    return steps_of(machine)[name].clauses | machine.always


def properties_of(machine: type[Stepping]) -> list[Property]:
    """The steps of a machine, as a list of properties shows them."""
    return [
        Property(
            f"{machine.name}.{name}",
            clauses_of_step(machine, name),
            found.says or (inspect.getdoc(found.method) or "").split("\n")[0],
        )
        for name, found in steps_of(machine).items()
    ]


def clauses_of_machine(machine: type[Stepping]) -> frozenset[str]:
    """The clauses that any step of a machine checks."""
    return frozenset(clause for found in properties_of(machine) for clause in found.clauses)


def declared_clauses(machines: Iterable[type[Stepping]]) -> dict[str, list[Property]]:
    """For each clause the properties that check it."""
    checked: dict[str, list[Property]] = {}
    for machine in machines:
        for found in properties_of(machine):
            for clause in sorted(found.clauses):
                checked.setdefault(clause, []).append(found)
    return checked


def operation(method: F) -> F:
    """Makes a method of a machine an operation: steps are made of it, and a counterexample may do without the rest.

    It draws nothing, its arguments are plain values, and it ends with `Nothing` where it makes no sense.
    """

    @functools.wraps(method)
    def operate(machine: Any, *arguments: Any, **options: Any) -> Any:
        act = functools.partial(method, machine, *arguments, **options)
        return machine.operate(method.__name__, act, (*arguments, options))

    return cast(F, operate)
