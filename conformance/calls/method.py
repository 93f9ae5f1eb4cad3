"""What is known of a method of the interface: its row in the table from which calls are drawn, made and judged."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .datum import Call, resolve, simpler
from .source import Nth, Source

__all__ = ["EVERY", "Kind", "Method", "Table", "bound", "perform"]

EVERY = ""
"""Among the charges of a row: every field of the state but events and counters."""

Given = Mapping[str, Any]
"""The arguments of a call by name."""

Label = str | Callable[[Any, Given], str]
"""The label of a clause; or what says it from what is known before the call and its arguments."""


def _always(_: Any) -> bool:
    return True


def _same(value: Any, _: Any) -> object:
    return value


@dataclass(frozen=True)
class Kind:
    """A sort of value that calls take or give.

    Attributes:
        log: how a log writes it, by a name of `kvproof.conformance.log.values` and ``recorded_calls``.
        good: draws what is allowed now: called with a `Source` and what is known.
        fault: draws the same with one thing wrong; it is told the other arguments, and may change some of them, too,
            by returning all changes by name.
        possible: whether there is anything to draw, by what is known.
        plain: makes of a side's result what can be compared.
        fits: leaves out of a value what is not allowed any more, since calls before it were left out.
    """

    log: str = "plain"
    good: Callable[[Source, Any], Any] | None = None
    fault: Callable[[Source, Any, Given], Any] | None = None
    possible: Callable[[Any], object] = _always
    plain: Callable[[Any, Any], object] = _same
    fits: Callable[[Any, Any], Any] | None = None


@dataclass(frozen=True)
class Method:
    """A row: everything that is said of a method, an attribute or a class of the interface.

    Attributes:
        name: its name.
        arguments: the kinds of its arguments by name, in order.
        options: the kinds of further ones, given by name, which good calls leave out.
        result: the kind of its result.
        clause: the label that a wrong result is charged to.
        charges: labels for differences of the state after it, by field, where not the field's own; see `EVERY`.
        where: the label of a wrong result, where it depends on the call; ``clause`` for whoever does not know that.
        refuses: the labels by which it refuses, beside R1, and those that ``where``, ``charges`` or ``blame`` gives.
        blame: the label of a wrong result, where it depends on what both sides gave.
        form: whether it is called, or an attribute that is read or set, or a class that is constructed.
        reads: whether it only reads.
        by_eviction: whether its result depends on what was evicted, and no other result that is compared on it: at
            level safe it may be another one.
        last: whether no later call uses its result: then it is compared only where one of its clauses is looked at.
        optional: whether a backend may do without it: what is beyond the seeds' interface.
        capability: the capability without which it makes no sense; "" if no backend may lack it.
        weight: how often a call is drawn, compared with other rows; 0 if only scenarios draw it.
        spoils: how often a call with a fault is drawn, compared with other rows.
        when: whether a call is possible, by what is known, beside what its kinds say.
        draw: draws all arguments together, where one depends on another.
        less: simpler arguments, where several have to change together.
        by_name: the arguments that are always given by name, and those that may be left out.
        logged: whether a log records it.
    """

    name: str
    arguments: Mapping[str, Kind]
    result: Kind
    clause: str
    charges: Mapping[str, Label] = field(default_factory=dict)
    where: Callable[[Any, Given], str] | None = None
    refuses: tuple[str, ...] = ()
    blame: Callable[[Any, Any], str] | None = None
    form: str = "call"
    reads: bool = False
    by_eviction: bool = False
    last: bool = False
    optional: bool = False
    capability: str = ""
    weight: int = 0
    spoils: int = 0
    when: Callable[[Any], object] = _always
    draw: Callable[[Source, Any], Given] | None = None
    less: Callable[[Given], Iterator[Given]] | None = None
    by_name: tuple[str, ...] = ()
    options: Mapping[str, Kind] = field(default_factory=dict)
    logged: bool = True

    @cached_property
    def labels(self) -> frozenset[str]:
        """Every label that a call of it may be charged to, beside R1 and the fields' own."""
        return frozenset(
            {self.clause, *self.refuses, *(label for label in self.charges.values() if isinstance(label, str))}
        )

    @cached_property
    def kinds(self) -> Mapping[str, Kind]:
        """The kinds of all arguments by name, those included that good calls leave out."""
        return {**self.arguments, **self.options}

    def faults(self, known: Any) -> list[str]:
        """The arguments that can be wrong in a call that is made now."""
        return [name for name, kind in self.kinds.items() if kind.fault is not None and known.can_spoil(self, name)]

    def possible(self, known: Any) -> bool:
        """Whether a call of it can be drawn."""
        return bool(self.when(known)) and all(kind.possible(known) for kind in self.arguments.values())

    def drawn(self, source: Source, known: Any, but: str = "") -> dict[str, Any]:
        """Arguments that are allowed now, without the one that is named. A row that draws them together gives all."""
        if self.draw is not None:
            return dict(self.draw(source, known))
        kinds = {name: kind.good for name, kind in self.arguments.items() if name != but}
        return {name: good(source, known) for name, good in kinds.items() if good is not None}

    def spoilt(self, source: Source, known: Any, name: str = "") -> tuple[str, dict[str, Any]]:
        """Arguments with one thing wrong, and the name of the one that is.

        Args:
            source: draws them.
            known: what is known.
            name: the argument; "" draws that, too.
        """
        name = name or source.one_of(self.faults(known))
        given = self.drawn(source, known) if self.possible(known) else {}
        spoil = self.kinds[name].fault
        assert spoil is not None, "only kinds with faults are chosen"
        wrong = spoil(source, known, given)
        given |= wrong if isinstance(wrong, dict) else {name: wrong}
        return name, given

    def every_fault(self, known: Any) -> Iterator[tuple[str, int]]:
        """The faults of calls that are made now, each by its argument and its place among those of the argument.

        Only where one decision draws what is wrong with an argument; `spoilt` makes one of `Nth` with its place.
        """
        given = self.drawn(Nth(0), known)
        for name in self.faults(known):
            spoil = self.kinds[name].fault
            assert spoil is not None, "only kinds with faults are chosen"
            source = Nth(0)
            spoil(source, known, given)
            yield from ((name, place) for place in range(source.last + 1))

    def fitting(self, known: Any, given: Given) -> dict[str, Any]:
        """Arguments that were allowed once, without what is not allowed any more."""
        fits = {name: self.arguments[name].fits for name in given if name in self.arguments}
        return {name: value if (fit := fits.get(name)) is None else fit(known, value) for name, value in given.items()}

    def simpler(self, call: Call) -> Iterator[Call]:
        """Calls with simpler arguments, the simplest first."""
        if self.less is not None:
            yield from (call.given(**changes) for changes in self.less(call.arguments))
        yield from simpler(call)

    def label(self, known: Any, given: Given) -> str:
        """The label that a wrong result of a call is charged to."""
        return self.clause if self.where is None else self.where(known, given)

    @cached_property
    def charges_by_field(self) -> dict[str, str]:
        """The labels of wrong fields of the state after a call; ``clause`` where a label depends on the call."""
        return {shows: label if isinstance(label, str) else self.clause for shows, label in self.charges.items()}

    def charged(self, known: Any, given: Given) -> dict[str, str]:
        """The labels of wrong fields of the state after a call."""
        return {
            shows: label if isinstance(label, str) else label(known, given) for shows, label in self.charges.items()
        }


@dataclass(frozen=True)
class Table:
    """The rows of one interface.

    Attributes:
        name: what the interface is called.
        owner: the class whose methods they are; "" for functions.
        rows: one for each method.
        inner: public names that are no part of the interface, each with the reason.
    """

    name: str
    owner: str
    rows: tuple[Method, ...]
    inner: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def by_name(self) -> Mapping[str, Method]:
        """The rows by name."""
        return {row.name: row for row in self.rows}

    def __getitem__(self, name: str) -> Method:
        return self.by_name[name]

    def __iter__(self) -> Iterator[Method]:
        return iter(self.rows)

    def counted(self, call: Call) -> list[str]:
        """What a call counts for where draws are counted: its method, its arguments, and the one that is wrong."""
        name = f"{self.name}.{call.method}"
        wrong = [f"{name}({call.fault}) wrong"] if call.fault else []
        return [name, *(f"{name}({argument})" for argument in call.arguments), *wrong]

    def but(self, *names: str) -> tuple[Method, ...]:
        """All rows but some."""
        return tuple(row for row in self.rows if row.name not in names)


def bound(names: Sequence[str], arguments: Given, by_name: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments as they are handed over: by position from the first on, up to one that is left out or goes by name."""
    named, leading = dict(arguments), []
    for name in names:
        if name not in named or name in by_name:
            break
        leading.append(named.pop(name))
    return leading, named


def perform(side: Any, call: Call, row: Method) -> Any:
    """Makes a call on one side. Returns what it returns, and raises what it raises; `GoneError` before it is made."""
    given = {name: resolve(value, side) for name, value in call.arguments.items()}
    owner = side.names.get(call.method) if call.target is None else side.thing(call.target)
    if row.form == "set":
        setattr(owner, call.method, *given.values())
        return None
    act = owner if call.target is None else getattr(owner, call.method)
    if row.form == "get":
        return act
    leading, named = bound(tuple(row.arguments), given, row.by_name)
    return act(*leading, **named)
