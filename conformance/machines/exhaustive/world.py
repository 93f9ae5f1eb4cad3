"""A small world: what can be called in each of its states, and which of its states are the same but for names.

A world is a machine that draws nothing. In each state it lists its *moves*, the calls that may lead to another one, and
its *looks*: calls that leave the state as it is, by the specification; what they return or refuse is compared there.
"""

import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn, TypeVar

from kvproof.spec.clauses import clause_of_message

from ...backends.step_timeout import NoAnswer
from ...calls.datum import Call
from ...calls.deviation import Outcome, attempt
from ..base import Both, Field, Machine, Side, same
from ..pool_state import CHECK_EVERY
from ..properties import steps_of
from ..session import TracedStep
from .walk import COMPARING, GLANCING, PASSING_OVER, Move, UndecidedError, UnlikeError, Walk

__all__ = ["SmallWorld"]

T = TypeVar("T")


class SmallWorld(Machine):
    """A machine whose calls are listed, not drawn. Its examples are its states."""

    at_once = True

    def __init__(self) -> None:
        super().__init__()
        self._care = COMPARING
        self._order: Any = None  # what a world worked out of this state, kept until the next way

    def begin_example(self) -> bool:
        """Counts nothing: a walk counts its states, and goes on after a deviation: a later one may have fewer calls."""
        return True

    # -- What a world says of itself ---------------------------------------------------------------------

    def begin(self) -> None:
        """Builds both sides' objects."""
        raise NotImplementedError

    def moves(self) -> Sequence[Move]:
        """The ways that may lead on from this state, but for those that others are by another name.

        Objects that are in one state list them in one order, whatever names their pages, requests and tokens have.
        """
        raise NotImplementedError

    def looks(self) -> Sequence[Move]:
        """The ways that leave this state as it is, in an order that names do not change, either."""
        raise NotImplementedError

    def key(self) -> Hashable:
        """What this state is, by the specification, but for names: states of one key have the same futures."""
        raise NotImplementedError

    # -- How its ways are taken --------------------------------------------------------------------------

    @classmethod
    def walk(cls, seed: int, most_states: int) -> None:
        """Walks through the world, bound to a session, which keeps what is found: this is how the machine searches.

        Args:
            seed: of what is drawn: nothing is.
            most_states: the number of states after which none is left any more.
        """
        del seed
        Walk(cls, cls.session, most_states).run()

    def take(self, way: Move, care: str = COMPARING) -> None:
        """Makes the calls of a way.

        Args:
            way: the way.
            care: how much is compared: everything; what calls return, but not the state behind them; or nothing, where
                all was compared before.
        """
        self._care, self._order = care, None
        drawn: dict[str, Any] | None = None
        if isinstance(way, Call):
            act: Callable[[], Any] = functools.partial(self.make_call, way)
        else:
            found = steps_of(type(self))[way.name]
            drawn = dict(zip(_parameters(found.method), way.arguments, strict=True))
            act = functools.partial(found.method, self, **drawn)
            if found.plays:
                act, drawn = functools.partial(self.play, act()), None
        if care is not PASSING_OVER:
            self.run_step(way.name, act, drawn)
            return
        self.note_step(None if drawn is None else TracedStep(way.name, drawn))
        watch = self.session.watch
        watch.begin(self.name, way.name, self.session.examples, self.session.steps)
        try:
            act()
        except NoAnswer:
            self._stopped(again=watch.stopped())

    def face(self) -> None:
        """Compares the whole observable state."""
        self._care = COMPARING
        self._compared = set()
        self.compare_states({})

    @property
    def seen(self) -> frozenset[str]:
        """The clauses that the last way compared."""
        return frozenset(self._compared)

    def lightly(self, act: Callable[[], T]) -> T:
        """Makes calls whose results are compared, if any are, but not the state behind them."""
        care = self._care
        self._care = GLANCING if care is COMPARING else care
        try:
            return act()
        finally:
            self._care = care

    def looks_at(self, shows: Field) -> bool:
        """See `Machine.looks_at`: a backend's ``check()`` is called in every state, as a walk comes to each once."""
        return shows.every <= CHECK_EVERY or super().looks_at(shows)

    # -- What machines do, with less care where it was done before -----------------------------------------

    def call(
        self,
        line: str,
        act: Callable[[Any], Any],
        clause: str,
        normal: Callable[[Any, Side], object] = same,
        *args: Any,
        **options: Any,
    ) -> Both:
        """Makes one call on both sides, and compares what came of it unless that was done before."""
        if self._care is COMPARING:
            return super().call(line, act, clause, normal, *args, **options)
        expected = attempt(lambda: act(self.spec))
        refused = expected.error is not None
        said = clause_of_message(str(expected.error)) if refused else clause
        if refused and not self.session.refuses(said):
            return Both(refused=True)
        self.calls.append(line)
        with self.watched(said, "an answer"):
            observed = attempt(lambda: act(self.backend))
            alike = refused == (observed.error is not None)
            if alike and self._care is GLANCING:
                self._compared |= {said, "R1"} if refused else {said}
                plain = expected if refused else Outcome(normal(expected.value, self.spec))
                alike = self.compared_call(plain, observed, said, normal) is None
        if not alike:
            raise UnlikeError(line)
        return Both(expected.value, observed.value, refused)

    def check(self, clause: str, what: str, expected: object, read: Callable[[], object]) -> None:
        """Compares one thing that the backend shows, unless that was done before."""
        if self._care is not PASSING_OVER:
            super().check(clause, what, expected, read)

    def compare_states(self, *args: Any, **options: Any) -> None:
        """Compares everything that the observable state shows, if asked for."""
        if self._care is COMPARING:
            super().compare_states(*args, **options)

    def differ(self, clause: str, expected: str, observed: str, error: BaseException | None = None) -> NoReturn:
        """Ends the way: the backend breaks a clause, which is a verdict if the clause is looked at."""
        if clause not in self.session.clauses:
            raise UndecidedError(clause)
        super().differ(clause, expected, observed, error)


@functools.cache
def _parameters(method: Callable[..., None]) -> tuple[str, ...]:
    """The names of what a step is given."""
    return tuple(inspect.signature(method).parameters)[1:]
