"""What every machine does: make a call on both sides, compare the outcomes, compare the whole observable state."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NoReturn, TypeVar, cast

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from hypothesis.strategies import DataObject

import kvproof.spec
from kvproof.spec.clauses import clause_of_message

from ..backends.capabilities import OF_OPTION
from ..backends.levels import Level
from ..backends.loading import Backend, takes_arguments
from ..backends.raising import frames
from ..backends.step_timeout import NoAnswer
from ..calls.contrast import beside, shown
from ..calls.datum import Call
from ..calls.deviation import Deviation, Outcome, SpecificationError, attempt, clause_of_state, is_refusal
from ..calls.judging import Difference, difference
from ..calls.spelling import WIDE, Spelling
from .draws import Drawing
from .properties import Step, clauses_of_step, steps_of
from .session import EnoughError, Session, TracedStep
from .sides import Both, Field, Side, same

__all__ = ["SPEC", "Both", "Field", "Machine", "Nothing", "Side", "Undecided", "same"]

T = TypeVar("T")

Charge = Mapping[str, str] | str
"""Labels for differences of the state, by field, or one for all fields."""

_HURRIED = 1 / 3
"""What a step costs that is taken in a hurry, in steps otherwise."""

_LABELS = re.compile(r"\b([A-Z]+-\d+|R\d):")
"""How a message of ``check()`` names a clause, as those of ours do."""

SPEC = Backend("kvproof.spec", kvproof.spec)


class Nothing(Exception):
    """Ends a step that found nothing possible to do; it is counted as wasted."""


class Undecided(Exception):
    """Ends an example behind which nothing can be told, as where it deviates by a clause that is not looked at."""


class Machine(RuleBasedStateMachine):
    """A machine that compares a backend with the specification, one call at a time.

    Attributes:
        name: what the machine is called on the command line.
        needs: the public names that the backend must offer: ``Name``, ``Class.method``, ``callable(keyword)``, or
            ``callable(first, second)``, which is called with that many arguments by position.
        examples: how many sequences of calls are tried unless told otherwise.
        num_steps: how many steps a sequence has.
        always: the clauses that the machine checks after every step, whatever the step is.
        levels: the levels at which it runs; at both, if what it compares depends on no eviction policy.
        capability: what the whole machine is about, by a name of `capabilities`; "" if no backend may lack it.
        shows_answers: whether its calls are noted with what the backend answered, not with what it must answer.
        records_calls: whether an example is known by the calls and operations that it makes, and a step by what it drew
            only where it makes none; see `Calling`.
        session: what its examples share.
        at_once: whether what only the backend's own ``check()`` finds is reported at once; else at the end of a run
            that finds nothing that a user sees.
        spec: the specification's side.
        backend: the backend's side.
        hurrying: whether states are not compared, as nobody asks for what is wrong by now.
        closing: whether the last step of a sequence is taken again.
        closely: whether all of the state is looked at after every call, also what costs much; see `Field.every`.
        fields: what the observable state shows.
    """

    name: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[int] = 100
    num_steps: ClassVar[int] = 50
    always: ClassVar[frozenset[str]] = frozenset({"R1"})
    levels: ClassVar[frozenset[Level]] = frozenset({"exact"})
    capability: ClassVar[str] = ""
    shows_answers: ClassVar[bool] = False
    records_calls: ClassVar[bool] = False
    session: ClassVar[Session]
    at_once: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self._over = not self.begin_example()
        self.spec = Side(SPEC)
        self.backend = Side(self.session.backend)
        self.fields: tuple[Field, ...] = ()
        self.calls: list[str] = []
        self._before: dict[str, object] = {}
        self._wrong_before: set[str] = set()
        self._after: dict[str, object] = {}
        self._compared: set[str] = set()
        self._doubts: dict[int, Deviation] = {}
        self._trace: list[TracedStep | Call] = []
        self._step: TracedStep | None = None
        self._operating = False
        self.hurrying = self.closing = self.closely = False

    def begin_example(self) -> bool:
        """Counts an example, and returns whether it is made; ends the run where a deviation was found."""
        return self.session.begin_example()

    def teardown(self) -> None:
        """Ends an example, by its last step where everything went well."""
        if self.fields and type(self).wind_up is not Machine.wind_up:
            self.run_step("wind_up", self.wind_up, None)
        self.session.doubts = self._doubts | self.session.doubts
        if self.shows_answers and self._trace:
            self.session.end_example(self._trace, self.calls)

    def wind_up(self) -> None:
        """The last step of every sequence: what this came to by chance is asked for its consequences.

        Nothing is drawn for it, so that it leaves the draws of all other steps as they are.
        """

    @classmethod
    def steps_of_rows(cls) -> dict[str, Step]:
        """The steps that make one call each, as the tables of the interface have it; see `Calling`."""
        return {}

    @classmethod
    def missing(cls, backend: Backend) -> list[str]:
        """What the machine needs and the backend does not offer: its capability, or public names."""
        if cls.capability in backend.lacks:
            return [f"capability {cls.capability}"]
        return [shortage for name in cls.needs if (shortage := _shortage(backend, name))]

    # -- Steps --------------------------------------------------------------------------------------

    @rule(data=st.data())
    def take_step(self, data: DataObject) -> None:
        """Takes one of the steps that are possible now.

        To Hypothesis this is the only rule: it would leave out many rules of most examples, and a cache that is
        never filled shows little. The steps of most weight come first, as Hypothesis has a liking for what does.
        """
        if not self._over:
            self.take_step_of(data.draw(st.sampled_from(self.possible_steps())), Drawing(data))

    def possible_steps(self) -> list[str]:
        """The names of the steps that are possible now, each as often as its weight, those of most weight first."""
        possible = [
            (name, found)
            for name, found in steps_of(type(self)).items()
            if not found.first and (found.when is None or found.when(self))
        ]
        possible.sort(key=lambda named: -named[1].weight)
        return [name for name, found in possible for _ in range(found.weight)]

    def take_step_of(self, name: str, source: Drawing) -> None:
        """Takes a step by its name, which decides by a source of decisions."""
        found = steps_of(type(self))[name]
        if found.plays:
            self.run_step(name, functools.partial(self.play, found.method(self, source)), None)
        else:
            self.run_step(name, functools.partial(found.method, self, source), source.drawn)

    def play(self, calls: Any) -> None:
        """Makes calls that a step yields; see `Calling`."""
        raise NotImplementedError

    @classmethod
    def simpler(cls, call: Call) -> Iterator[Call]:
        """Calls with simpler arguments, the simplest first; see `Calling`."""
        raise NotImplementedError

    def make_call(self, call: Call) -> Both:
        """Makes a call on both sides, and compares what came of it; see `Calling`."""
        raise NotImplementedError

    def repeat_call(self, call: Call) -> None:
        """Makes a call that was made before; see `Calling`."""
        raise NotImplementedError

    def repeat_step(self, step: TracedStep | Call) -> None:
        """Takes a step, or makes a call, again, with what it drew; what is not possible any more is left out."""
        if isinstance(step, Call):
            self.run_step(step.method, functools.partial(self.repeat_call, step), None)
            return
        if step.is_operation:
            *arguments, options = cast(Sequence[Any], step.drawn)
            act = functools.partial(getattr(self, step.name), *arguments, **options)
            self.run_step(step.name, act, step.drawn, is_operation=True)
            return
        found = steps_of(type(self))[step.name]
        if found.when is not None and not found.when(self):
            return
        method = found.method
        if isinstance(step.drawn, Mapping):
            self.run_step(step.name, functools.partial(method, self, **step.drawn), step.drawn)
        else:
            drawing = Drawing(None, step.drawn)
            self.run_step(step.name, functools.partial(method, self, drawing), drawing.drawn)

    def cost_of(self, step: TracedStep | Call) -> float:
        """What it cost to take a step again just now, in steps of this machine as they are in the mean."""
        del step
        return _HURRIED if self.hurrying else 1.0

    def operate(self, name: str, act: Callable[[], T], arguments: Sequence[Any]) -> T:
        """Makes an operation; see `operations.operation`."""
        if self._operating:
            return act()
        made = TracedStep(name, arguments, is_operation=True)
        if self.records_calls:
            self.note_call(made)
        else:
            self._note_made(made)
        self._operating = True
        try:
            return act()
        finally:
            self._operating = False

    def note_call(self, made: TracedStep | Call) -> None:
        """Notes a call, or an operation: it stands in the place of the step that makes it."""
        if self._step is not None and self._trace[-1] is self._step:
            self._trace.pop()
        self._step = None
        self._trace.append(made)
        self.session.note_call()

    def note_step(self, step: TracedStep | None) -> None:
        """Notes the step that is taken; None if it is known by its calls alone."""
        self._step = step
        if step is not None:
            self._trace.append(step)

    def _note_made(self, made: TracedStep | None) -> None:
        """Notes what the step that is taken is made of."""
        last = self._trace[-1] if self._trace else None
        if isinstance(last, TracedStep) and not self._operating:
            last.made.append(made)

    def run_step(
        self,
        name: str,
        act: Callable[[], None],
        drawn: Mapping[str, Any] | Sequence[Any] | None,
        is_operation: bool = False,
    ) -> None:
        """Takes one step, and counts it.

        Args:
            name: the step's name.
            act: takes it.
            drawn: what it draws; it may grow meanwhile. None of a step that is known by the calls that it makes.
            is_operation: whether it is an operation taken by itself.
        """
        if self._over:
            return
        self._compared = set()
        self.note_step(None if drawn is None else TracedStep(name, drawn, is_operation))
        wasted = False
        self.session.watch.begin(self.name, name, self.session.examples, self.session.steps)
        try:
            act()
        except Nothing:
            wasted = True
        except Undecided:
            self._over = True
        except NoAnswer:
            self._doubts = {}
            self._stopped(again=self.session.watch.stopped())
        except BaseException:
            self._doubts = {}  # what ends an example goes before what only check() found
            self._over = True
            raise
        finally:
            known = not is_operation and name in steps_of(type(self))
            declared = clauses_of_step(type(self), name) if known else self._compared
            self.session.end_step(name, declared, self._compared, wasted)

    def _stopped(self, again: bool) -> NoReturn:
        """Ends the search: a call was stopped, and whatever comes next might have to be, too.

        Args:
            again: whether one was stopped before, and the calls before it are being made fewer.
        """
        self._over = True
        watch = self.session.watch
        clause, expected = watch.pending
        if clause in self.session.clauses:
            before = {name: shown(value) for name, value in self._before.items()}
            after = {name: shown(value) for name, value in self._read(self.spec).items()}
            calls, trace = tuple(self.calls), tuple(self._trace)
            found = Deviation(clause, expected, watch.observed, calls, before, after, trace)
            self.session.record(found)
            if again:
                raise found
        raise EnoughError

    def watched(self, clause: str, expected: str) -> AbstractContextManager[None]:
        """Where the backend is called and read: what does not come to an end is stopped, and charged to a clause.

        Args:
            clause: the label of the clause.
            expected: what the specification says of the call that was noted last.
        """
        return self.session.watch.over(clause, expected, self.calls)

    def build(self, line: str, clause: str, act: Callable[[Side], Mapping[str, Any]]) -> None:
        """Builds what the other steps call; the names that ``act`` returns become the side's."""
        self.spec.put(act(self.spec))
        self.build_backend(line, clause, act)

    def build_backend(self, line: str, clause: str, act: Callable[[Side], Mapping[str, Any]]) -> None:
        """`build` for the backend alone."""
        self.calls.append(line)
        with self.watched(clause, "an object"):
            outcome = attempt(lambda: act(self.backend))
        self._compared.add(clause)
        if outcome.error is not None:
            self.differ(clause, "an object", str(outcome), outcome.error)
        self.backend.put(outcome.value)

    def watch(self, *fields: Field) -> None:
        """Compares these from now on after every call, and once now."""
        self.fields = tuple(sorted(fields, key=lambda shows: shows.inner))
        with self.watched(fields[0].clause, "an object whose state can be read"):
            self.compare_states({})

    def offers(self, thing: str, method: str) -> bool:
        """Whether the backend's object has a method beyond the seeds' interface; one that it lacks is not called."""
        offered = hasattr(getattr(self.backend, thing), method)
        if not offered:
            self.session.lacks.add(f"{thing}.{method}")
        return offered

    def offered(self, name: str) -> bool:
        """Whether the backend has a function; one that it lacks is not called."""
        if not self.backend.names.offers(name):
            self.session.lacks.add(name)
        return self.backend.names.offers(name)

    def lacks(self, capability: str) -> bool:
        """Whether the backend is said to lack a capability; what is about it is left out."""
        lacking = capability in self.session.backend.lacks
        if lacking:
            self.session.lacks.add(capability)
        return lacking

    def options_taken(self, made: str, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Those of some options that the constructors of both sides take.

        Args:
            made: the class.
            wanted: the options; what the backend is said to lack is noted.
        """
        for option in wanted:
            self.lacks(OF_OPTION.get(option, ""))
        sides = (self.spec.names, self.backend.names)
        return {name: value for name, value in wanted.items() if all(names.accepts(made, name) for names in sides)}

    def spelling(self, data: Drawing, options: Sequence[Spelling]) -> Spelling:
        """Draws how a list is handed over: as a list, where the backend takes no other iterables."""
        return data.spelling(options, not self.lacks("iterables"))

    def token_spelling(self, data: Drawing) -> Spelling:
        """Draws how the tokens of a request are handed over, half of the time in the usual way."""
        return data.token_spelling(not self.lacks("iterables"))

    def spelling_of_fault(self, data: Drawing, values: object) -> Spelling | None:
        """Draws how a list with a fault is handed over; None for anything but a list of ints, which goes as it is."""
        if not isinstance(values, list) or any(type(value) is not int for value in values):
            return None
        return self.spelling(data, WIDE)

    # -- Calls --------------------------------------------------------------------------------------

    def call(
        self,
        line: str,
        act: Callable[[Any], Any],
        clause: str,
        normal: Callable[[Any, Side], object] = same,
        charge: Charge | Callable[[Any], Charge] | None = None,
        blame: Callable[[Any, Any], str] | None = None,
        also: tuple[str, ...] = (),
        alone: bool = False,
    ) -> Both:
        """Makes one call on both sides and compares what came of it.

        A call that the specification refuses is not made on the backend if no clause that is looked at says anything
        of it.

        Args:
            line: the call as a report shows it.
            act: makes it on a side.
            clause: the label that a wrong result is charged to.
            normal: makes of a side's result what can be compared.
            charge: labels for differences of the state after it, by field, or one for all fields; or what makes
                them of the specification's result.
            blame: the label for a difference between two results, where it depends on them.
            also: other labels that ``blame`` may give.
            alone: True if no later call uses this result; such a result is compared only when one of its clauses is
                selected.

        Returns:
            The results.
        """
        self._note_made(None)
        expected = attempt(lambda: act(self.spec))
        if expected.error is not None and not is_refusal(expected.error):
            raise SpecificationError(f"the specification is wrong: {line} {expected}") from expected.error
        refused = expected.error is not None
        if refused and not self.session.refuses(clause_of_message(str(expected.error))):
            return Both(refused=True)
        plain = Outcome(error=expected.error) if refused else Outcome(normal(expected.value, self.spec))
        brief = _brief(plain)
        self.calls.append(f"{line}  # {brief}")
        with self.watched(plain.clause if refused else clause, brief):
            observed = attempt(lambda: act(self.backend))
            if refused or not alone or not self.session.clauses.isdisjoint({clause, *also}):
                self._compared |= {plain.clause, "R1"} if refused else {clause, *also}
                found = self.compared_call(plain, observed, clause, normal, blame)
                if found is not None:
                    self.differ(*found)
            if refused:
                self.compare_states(clause_of_state(plain.clause), fixed=True)
            else:
                self.compare_states((charge(plain.value) if callable(charge) else charge) or {})
        return Both(expected.value, observed.value, refused)

    def compared_call(
        self,
        expected: Outcome,
        observed: Outcome,
        clause: str,
        normal: Callable[[Any, Side], object],
        blame: Callable[[Any, Any], str] | None = None,
    ) -> Difference | None:
        """How what the backend made of a call differs from what the specification made of it; None if it does not.

        See `kvproof.conformance.calls.judging.difference`; other arguments as for `call`.
        """
        any_error = self.session.level == "safe" or "R1" not in self.session.clauses
        return difference(
            expected, observed, clause, lambda value: normal(value, self.backend), blame, any_error=any_error
        )

    def result_on(self, side: Side, made: Both) -> Any:
        """What one side returned."""
        return made.spec if side is self.spec else made.backend

    # -- State --------------------------------------------------------------------------------------

    def check(self, clause: str, what: str, expected: object, read: Callable[[], object]) -> None:
        """Compares one thing that the backend shows with what it must show."""
        self._compared.add(clause)
        with self.watched(clause, f"{what}: {shown(expected)}"):
            outcome = attempt(read)
        found = difference(Outcome(expected), outcome, clause)
        if found is not None:
            self.differ(clause, f"{what}: {found.expected}", found.observed, outcome.error)

    def compared(self, clause: str) -> None:
        """Notes that this step compares something by a clause."""
        self._compared.add(clause)

    def compare_states(self, charge: Charge, fixed: bool = False) -> None:
        """Compares everything that the observable state shows.

        Args:
            charge: labels for differences, by field, or one for all fields.
            fixed: True if the values that differ do not change the label. A field that was not read before the call
                keeps its own.
        """
        if self.hurrying:
            return
        Side.made = {}  # while states are compared nothing changes
        try:
            self._compare_states(charge, fixed)
        finally:
            Side.made = None

    def _compare_states(self, charge: Charge, fixed: bool) -> None:
        fields = [shows for shows in self.fields if self.looks_at(shows)]
        self._after = {shows.name: shows.read(self.spec) for shows in fields}
        for shows in fields:
            clause = charge if isinstance(charge, str) else charge.get(shows.name, shows.clause)
            if fixed and shows.name not in self._before:
                clause = shows.clause  # it may have been wrong before the refused call already
            expected = self._after[shows.name]
            outcome = attempt(functools.partial(shows.read, self.backend))
            self._compared |= {clause} if fixed else {clause, *shows.also}
            found = difference(Outcome(expected), outcome, clause, agree=shows.agree)
            if found is None:
                self._wrong_before.discard(shows.name)
                continue
            if outcome.error is None and shows.blame is not None and not fixed:
                clause = shows.blame(expected, outcome.value) or clause
            if outcome.error is not None and shows.inner and not fixed:
                clause = self._named_in(str(outcome.error)) or clause
            if shows.aside and (shows.name in self._wrong_before or clause not in self.session.clauses):
                self._wrong_before.add(shows.name)  # whatever is called next is not to blame
                continue
            told = clause, f"{shows.name} = {found.expected}", f"{shows.name} = {found.observed}", outcome.error
            if not shows.inner or self.at_once:
                self.differ(*told)
            if clause in self.session.clauses and shows.every not in self._doubts:
                self._doubts[shows.every] = self._deviation(*told)
                self._doubts[shows.every].inner = True
        self._before = self._after

    def looks_at(self, shows: Field) -> bool:
        """Whether a field is looked at now."""
        return self.closely or self.closing or not len(self.calls) % shows.every

    def _named_in(self, message: str) -> str:
        """The first clause that a backend's own ``check()`` names, of those that the machine always checks."""
        return next((label for label in _LABELS.findall(message) if label in self.always), "")

    def end(self) -> None:
        """Ends steps that are taken again: what only the backend's own ``check()`` found is raised now."""
        found, self._doubts = self._doubts, {}
        for every in sorted(found):
            raise found[every]

    def differ(self, clause: str, expected: str, observed: str, error: BaseException | None = None) -> NoReturn:
        """Ends the example: the backend breaks a clause, which is a verdict if the clause is looked at.

        Args:
            clause: the clause's label.
            expected: what is right.
            observed: what the backend did.
            error: what it raised, if that is what is wrong.
        """
        self._compared.add(clause)
        if clause not in self.session.clauses:
            raise Undecided
        found, self._doubts = self._deviation(clause, expected, observed, error), {}
        self.session.record(found)
        raise found

    def _deviation(self, clause: str, expected: str, observed: str, error: BaseException | None) -> Deviation:
        """A deviation by the last call; see `differ`."""
        before, after, observed_after = self._states()
        calls, trace = tuple(self.calls), tuple(self._trace)
        found = Deviation(clause, expected, observed, calls, before, after, trace, observed_after)
        found.raised = () if error is None else frames(error)
        return found

    def _states(self) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """The observable state as a report shows it: before the last call, by the specification, by the backend."""
        states: tuple[dict[str, str], dict[str, str], dict[str, str]] = ({}, {}, {})
        read = {"": self._before, "spec": self._read(self.spec), "backend": self._read(self.backend)}
        for name in dict.fromkeys(name for state in read.values() for name in state):
            sides = [
                (shown_of, state[name]) for shown_of, state in zip(states, read.values(), strict=True) if name in state
            ]
            texts = beside(*(value for _, value in sides))
            if self._before and name not in self._before and len(set(texts)) == 1:
                continue  # it was not looked at before the call (see `Field.every`), and shows no difference
            for (shown_of, _), text in zip(sides, texts, strict=True):
                shown_of[name] = text
        return states

    def _read(self, side: Side) -> dict[str, object]:
        """What a side shows, by field; what cannot be read is how it fails."""
        read = {shows.name: attempt(functools.partial(shows.read, side)) for shows in self.fields}
        return {name: found if found.error else found.value for name, found in read.items()}


def _shortage(backend: Backend, name: str) -> str:
    """What a backend does not offer of what a machine needs, as a message names it; "" if it offers it."""
    first, *path = name.rstrip(")").replace("(", ".").split(".")
    if not path or not backend.offers(first):
        return "" if backend.offers(first) else first if ", " in name else name
    called = ".".join([first, *path[:-1]])
    if ", " in name:
        made = backend.get(called)
        return "" if takes_arguments(made, name.count(", ") + 1) else f"{name}: its {called} takes {_parameters(made)}"
    offered = backend.accepts(called, path[-1]) if name.endswith(")") else hasattr(backend.get(first), path[0])
    return "" if offered else name


def _parameters(called: Any) -> str:
    return f"({', '.join(map(str, inspect.signature(called).parameters.values()))})"


def _brief(outcome: Outcome) -> str:
    return type(outcome.error).__name__ if outcome.error is not None else shown(outcome.value)
