"""Machines whose calls are data: drawn, spoilt, made, judged and shown by the tables of the interface."""

import functools
import inspect
import operator
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import kvproof.spec

from ..backends.loading import Backend
from ..backends.raising import Ending
from ..calls.datum import Call, Ref, refs, renamed, resolve, said_of, written
from ..calls.deviation import REFUSALS
from ..calls.interfaces import BUILDS
from ..calls.method import EVERY, Method, Table, bound, perform
from ..calls.source import Source
from .base import Both, Charge, Machine, Nothing, Side
from .draws import Drawing
from .properties import Step

__all__ = ["Calling", "Calls", "left_out", "takes_argument"]


class _LeftOut(Ending):
    """Ends a call that is made again and makes no sense any more."""


Calls = Generator[Call, Both, None]
"""A scenario: it yields the next call, and is sent what came of it."""


class Calling(Machine):
    """A machine that makes calls which stand in tables.

    Each row with a weight is a step of its own: one call, drawn by the kinds of its arguments. What needs several calls
    is a step that yields them and is sent what came of each; or, where scenes are made of scenes, one that makes them
    by `make_call`. The calls themselves are the trace of an example: making it shorter leaves out calls, and entries of
    their arguments; nothing is drawn again. Where a call makes no sense without what its step does besides, a machine
    says so by ``records_calls = False``: then steps are the trace, with what they drew.

    Attributes:
        tables: the interfaces that it calls.
        strangers: what a report says of things that are none of what is called, by the names that sides have them by.
        held_as: the names by which sides have the objects of interfaces, by the interfaces' names, where not by these.
    """

    tables: ClassVar[tuple[Table, ...]] = ()
    strangers: ClassVar[Mapping[int | str, str]] = {}
    held_as: ClassVar[Mapping[str, str]] = {}
    records_calls = True

    def __init__(self) -> None:
        super().__init__()
        self._num_calls = 0
        self._repeats = False

    @classmethod
    def rows(cls) -> list[Method]:
        """The rows that are drawn: those of the machine's first table that need no capability but its own."""
        return [row for row in cls.tables[0] if row.capability in ("", cls.capability)]

    @classmethod
    def row_of(cls, name: str) -> tuple[Table, Method]:
        """The table and the row of a method."""
        return next((table, table[name]) for table in cls.tables if name in table.by_name)

    @classmethod
    def row_of_call(cls, call: Call) -> tuple[Table, Method]:
        """The table and the row of a call: where tables have methods of one name, by what it is called on."""
        return cls.row_of(call.method)

    @classmethod
    def steps_of_rows(cls) -> dict[str, Step]:
        """See `Machine.steps_of_rows`."""
        return {
            row.name: Step(
                functools.partial(_one_call, row=row),
                row.labels,
                functools.partial(_is_possible, row=row),
                row.weight,
                says=_sentence(cls.row_of(row.name)[0], row),
            )
            for row in cls.rows()
            if row.weight
        }

    @classmethod
    def simpler(cls, call: Call) -> Iterator[Call]:
        """See `Machine.simpler`."""
        return cls.row_of_call(call)[1].simpler(call)

    # -- What is built --------------------------------------------------------------------------------------

    def build_things(
        self, line: str, clause: str, things: Mapping[str, Any], of_spec: Mapping[str, Any] | None = None
    ) -> None:
        """Builds what the other steps call.

        Args:
            line: it as a report shows it.
            clause: the label that a failure is charged to.
            things: what a side has by which name: what a `Call` gives, or another value (see `resolve`); each may
                name those before it.
            of_spec: that of the specification's side, where it is made otherwise.
        """

        def act(side: Side) -> Mapping[str, Any]:
            for name, value in ((of_spec or things) if side is self.spec else things).items():
                self.make(side, name, value)
            return {}

        self.build(line, clause, act)

    def make(self, side: Side, name: str, value: Any) -> None:
        """Makes a thing, which a side has by a name from now on; see `build_things`."""
        if not isinstance(value, Call):
            side.put({name: resolve(value, side)})
            return
        side.put({name: self.perform(side, value, self.row_of_thing(value))})

    def row_of_thing(self, call: Call) -> Method:
        """The row of a call that makes a thing."""
        row = BUILDS.get(call.method) if call.target is None else None
        return row or self.row_of_call(call)[1]

    # -- What is known while calls are drawn ----------------------------------------------------------------

    @property
    def takes_iterables(self) -> bool:
        """Whether lists may be handed over as other things than lists."""
        return not self.lacks("iterables")

    @property
    def takes_groups(self) -> bool:
        """Whether there may be several cache groups."""
        return not self.lacks("groups")

    def target_of(self, table: Table, source: Source) -> Ref:
        """The object on which a method of an interface is called."""
        raise NotImplementedError

    def can_call(self, row: Method) -> bool:
        """Whether the backend has a method or a function, where it may do without it."""
        table, _ = self.row_of(row.name)
        if not table.owner:
            return not row.optional or self.offered(row.name)
        return not row.optional or self.offers(self.held_as.get(table.name, table.name), row.name)

    def can_spoil(self, row: Method, argument: str) -> bool:
        """Whether calls with this argument wrong are made: one that may be left out the backend must take."""
        return takes_argument(self.backend.names, self.row_of(row.name)[0], row, argument)

    # -- Drawing --------------------------------------------------------------------------------------------

    def call_of(self, name: str, target: Ref | None, **arguments: Any) -> Call:
        """A call that was not made yet."""
        self._num_calls += 1
        return Call(target, name, arguments, self._num_calls)

    def drawn(self, row: Method, source: Drawing) -> Call:
        """A call of a method that is allowed now."""
        return self.call_of(row.name, self._target(row, source), **row.drawn(source, self))

    def each_spoilt(self, row: Method, source: Drawing) -> Calls:
        """A call for each argument that can be wrong: of rows of which calls with a fault are drawn seldom."""
        for name in row.faults(self):
            yield self.spoilt(row, source, name)

    def spoilt(self, row: Method, source: Source, name: str = "") -> Call:
        """The same with one argument wrong, which is drawn where it is not named."""
        name, given = row.spoilt(source, self, name)
        call = self.call_of(row.name, self._target(row, source), **given)
        return Call(call.target, call.method, call.arguments, call.number, name)

    def _target(self, row: Method, source: Source) -> Ref | None:
        table, _ = self.row_of(row.name)
        return None if row.form == "build" or not table.owner else self.target_of(table, source)

    def spoilable(self) -> list[Method]:
        """The rows of which a call with one fault can be drawn, each as often as it shall be."""
        return [
            row
            for row in self.rows()
            for _ in range(row.spoils)
            if (len(row.arguments) == 1 or row.possible(self)) and self.can_call(row) and row.faults(self)
        ]

    # -- Making, judging, showing ---------------------------------------------------------------------------

    def play(self, calls: Any) -> None:
        """Makes the calls that a scenario yields, and sends it what came of each."""
        try:
            call = next(calls)
            while True:
                call = calls.send(self.make_call(call))
        except StopIteration:
            return

    def make_call(self, call: Call) -> Both:
        """Makes a call on both sides, and compares what came of it."""
        noted = self.records_calls and not self._operating
        if noted:
            self.note_call(call)
        table, row = self.row_of_call(call)
        self.session.note_drawn(table.counted(call))

        def act(side: Side) -> Any:
            try:
                return self.perform(side, call, row)
            except REFUSALS:
                if side is self.spec:
                    if self._repeats and not call.refused:
                        raise _LeftOut from None
                    if noted:
                        self._trace[-1] = replace(call, refused=True)
                raise

        both = self.call(
            self.line(call, row),
            act,
            row.label(self, call.arguments),
            row.result.plain,
            self.charge_of(row, call),
            *self.blame_of(row, call),
            alone=row.last,
        )
        if not both.refused:
            self.spec.results[call.number], self.backend.results[call.number] = both.spec, both.backend
            self.learn(call, both)
        return both

    def charges_of(self, row: Method, call: Call) -> Mapping[str, str]:
        """Labels of wrong fields of the state after a call."""
        charges = row.charged(self, call.arguments)
        if EVERY not in charges:
            return charges
        return {shows.name: charges[EVERY] for shows in self.fields if shows.clause != "MAN-12"} | charges

    def charge_of(self, row: Method, call: Call) -> Charge | Callable[[Any], Charge]:
        """See `charges_of`; or what says the labels by the specification's result."""
        return self.charges_of(row, call)

    def blame_of(self, row: Method, call: Call) -> tuple[Callable[[Any, Any], str] | None, tuple[str, ...]]:
        """What says the label of a wrong result by both results, if anything does, and the labels that it may say."""
        del call
        return row.blame, row.refuses if row.blame else ()

    def perform(self, side: Side, call: Call, row: Method) -> Any:
        """Makes a call on one side; see `kvproof.conformance.calls.method.perform`."""
        return perform(side, call, row)

    def repeat_call(self, call: Call) -> None:
        """Makes a call that was drawn before, if the specification does not refuse it now and did not then.

        Raises:
            GoneError: it names what there is not any more.
        """
        before = len(self._trace)
        self._repeats = True
        try:
            row = self.row_of_call(call)[1]
            given = call.arguments if call.refused else self.fitting(row, call)
            for ref in refs((call.target, *given.values())):  # a request says nothing yet: the call may be refused
                resolve(ref, self.spec)
                if isinstance(ref.of, int):  # a state that lacks it is the backend's fault
                    resolve(ref, self.backend)
            given = {name: renamed(value, self.named_now) for name, value in given.items()}
            self.make_call(replace(call, arguments=given))
        except _LeftOut:
            del self._trace[before:]
        finally:
            self._repeats = False

    def fitting(self, row: Method, call: Call) -> dict[str, Any]:
        """The arguments of a call that was allowed once, as they are allowed now; see `Method.fitting`."""
        return row.fitting(self, call.arguments)

    def left_out(self) -> BaseException:
        """What ends a call that makes no sense: where it is made again it is left out."""
        return _LeftOut() if self._repeats else Nothing()

    def named_now(self, ref: Ref) -> Ref:
        """A name of a thing that says what it is now: then it can do without the call that gave it."""
        return ref

    def learn(self, call: Call, both: Both) -> None:
        """Notes what later calls may name."""

    def line(self, call: Call, row: Method) -> str:
        """A call as a report shows it."""
        target = "" if call.target is None else f"{self.show_target(call.target)}."
        texts = {name: written(value, self.show) for name, value in call.arguments.items()}
        if row.form in ("get", "set"):
            return " = ".join([f"{target}{call.method}", *texts.values()])
        leading, named = bound(tuple(row.arguments), texts, row.by_name)
        said = [f"{name}={told!r}" for value in call.arguments.values() for name, told in said_of(value) if told]
        at = f"  [{', '.join(said)}]" if said else ""
        return (
            f"{target}{call.method}({', '.join([*leading, *(f'{name}={text}' for name, text in named.items())])}){at}"
        )

    def show(self, ref: Ref) -> str:
        """A thing as a report shows it: a page by its id."""
        if ref.of in self.strangers:
            return f"<{self.strangers[ref.of]}>"
        return _shown(self.spec.thing(ref)) or str(ref)

    def show_target(self, ref: Ref) -> str:
        """What a call is made on, as a report shows it."""
        page = _shown(self.spec.thing(ref))
        return f"page({page})" if page else str(ref)


def takes_argument(backend: Backend, table: Table, row: Method, argument: str) -> bool:
    """Whether a backend takes an argument of what it offers; one that no call leaves out it takes."""
    if row.form in ("get", "set"):
        return True
    path = row.name if row.form == "build" or not table.owner else f"{table.owner}.{row.name}"
    return argument not in left_out(path) or backend.accepts(path, argument)


@functools.cache
def left_out(path: str) -> frozenset[str]:
    """The arguments that calls of ``name`` or ``Class.method`` may leave out, by the specification's signature."""
    parameters = inspect.signature(operator.attrgetter(path)(kvproof.spec)).parameters.values()
    return frozenset(known.name for known in parameters if known.default is not known.empty)


def _shown(thing: Any) -> str:
    """A page, or a list of pages, by ids; "" for all else."""
    if hasattr(thing, "page_id"):
        return str(thing.page_id)
    if isinstance(thing, int):
        return str(thing)
    if hasattr(thing, "get_page_ids") and hasattr(thing, "pages"):
        return repr(thing)
    return str(thing.page_ids) if hasattr(thing, "page_ids") else ""


def _sentence(table: Table, row: Method) -> str:
    """What a method does, in the words of the specification."""
    owner = getattr(kvproof.spec, table.owner) if table.owner else kvproof.spec
    return (inspect.getdoc(getattr(owner, row.name)) or "").split("\n")[0]


def _one_call(machine: Calling, source: Drawing, *, row: Method) -> Iterator[Call]:
    yield machine.drawn(row, source)


def _is_possible(machine: Calling, *, row: Method) -> bool:
    return row.possible(machine) and machine.can_call(row)
