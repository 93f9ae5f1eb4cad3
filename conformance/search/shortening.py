"""Makes a counterexample shorter: leaves out steps, takes others apart, makes simpler what they draw.

A sequence of steps is known by what each step drew, so that it can be taken again with a few changes, some hundred
times a second; and by the operations that steps were made of, which can be made again alone. It is kept if it still
deviates by the same clause, is no longer than before, and is no deviation of the specification from itself: then
something was changed into what makes no sense, and the machine is misled.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain, combinations
from math import inf
from time import monotonic
from typing import Any

from ..backends.loading import Backend
from ..calls.datum import Call, Prompt, exchange, growing, grown, larger, mended, refs, simpler
from ..calls.deviation import Deviation
from ..calls.simplest import thinned
from ..machines import Machine
from ..machines.base import SPEC
from ..machines.draws import UnrepeatableError
from ..machines.session import EnoughError, Session, TracedStep

__all__ = ["make_again", "shorten"]

_MOST_NUMBER = 8
"""Draws are changed into numbers below this one as well, where a sequence becomes shorter by it."""

_NUMBER = re.compile(r"\d+")

_MANY = 12
"""More steps than these are first taken in a hurry."""

_FEW = 8
"""The number of steps up to which every two calls are changed together."""

Steps = tuple[TracedStep | Call, ...]


def shorten(machine: type[Machine], session: Session, steps: int, seconds: float = inf) -> float:
    """Shortens the session's shortest deviation; the session keeps what is shorter.

    Args:
        machine: the machine, bound to the session.
        session: what the machine found.
        steps: how many steps may be taken for it, about.
        seconds: a limit of time; where it ends the search, the session notes that.

    Returns:
        How many steps were taken, each counted by what it cost; see `Machine.cost_of`.
    """
    found = session.shortest
    if found is None:
        return 0
    shortening = _Shortening(machine, session, found, steps, seconds)
    with suppress(EnoughError):
        shortening.run()
    session.deviations[shortening.found.clause] = shortening.found
    return shortening.steps


class _Shortening:
    """Looks for ever shorter sequences.

    Args:
        machine: the machine, bound to its session.
        session: the session.
        found: the deviation.
        most: after how many steps to stop.
        seconds: after how many seconds to stop.

    Attributes:
        found: the shortest deviation so far.
        steps: steps taken.
    """

    def __init__(self, machine: type[Machine], session: Session, found: Deviation, most: int, seconds: float) -> None:
        def on(backend: Backend, by_all: bool = False) -> type[Machine]:
            return type(machine.__name__, (machine,), {"session": session.again(backend, by_all)})

        self._machine = on(session.backend)
        itself = Backend(SPEC.name, SPEC.holder, session.backend.lacks)
        self._alone = None if machine.missing(SPEC) else on(itself, by_all=True)
        self._session = session
        self._most, self._seconds, self._end = most, seconds, monotonic() + seconds
        self._hurries = False
        self.found = found
        self.steps = 0.0

    def run(self) -> None:
        """Looks until nothing is found any more; where the same steps do not deviate again, it does not look."""
        if self.found.inner:
            self._look_closely()
        again = self._repeat(self._machine, self.found.trace)
        if again is None or again.clause != self.found.clause:
            said = "did not deviate" if again is None else f"deviated from {again.clause}"
            self._session.unrepeated = f"the calls that broke {self.found.clause} {said} when they were made again"
            return
        # Where a comparison takes what it reads (events), the calls after it end otherwise in a hurry.
        hurried = self._repeat(self._machine, self.found.trace, hurrying=True)
        self._hurries = hurried is not None and hurried.clause == self.found.clause
        before = None
        while before != (self.found.size, self.found.trace):
            before = self.found.size, self.found.trace
            self._grow_at_once()
            self._leave_out_beginning()
            self._take_apart()
            self._leave_out_steps()
            self._leave_out_alike()
            long = self.found
            self._simplify_last()
            if self.found is not long:
                continue  # what only the last step named may go now, before all others are looked at one by one
            if self._simplify_draws():
                continue
            self._simplify_start()
            self._exchange_draws()
            self._leave_out_pairs()
            self._tighten()

    def _look_closely(self) -> None:
        """Goes on from the first step after which it shows, where it was looked at only later."""
        seen = self._repeat(self._machine, self.found.trace, closely=True)
        if seen is not None and len(seen.trace) < len(self.found.trace) and self._makes_sense(seen.trace):
            del self._session.deviations[self.found.clause]
            self._session.record(seen)
            self.found = seen

    def _grow_at_once(self) -> None:
        """Lets requests come with all of their tokens: all of them, or one after another."""
        names = dict.fromkeys(name for step in self.found.trace if (name := growing(step)))
        if names and not self._keep(grown(self.found.trace, names)):
            for name in names:
                self._keep(grown(self.found.trace, [name]))

    def _leave_out_beginning(self) -> None:
        """Leaves out all steps but the first one and the last few: few are often enough, and cost little to try.

        The requests that these name come before them, as they came.
        """
        count = 1
        while count < len(self.found.trace) - 1:
            first, *steps = self.found.trace
            brought = [step for step in steps[:-count] if isinstance(step, Call) and "prompt" in step.arguments]
            for before in ([], brought) if brought else ([],):
                if self._keep_mended((first, *before, *steps[-count:])):
                    return
            count *= 2

    def _leave_out_alike(self) -> None:
        """Leaves out all steps of a kind, and all that name a thing: of many steps most are about something else."""
        tried: set[str] = set()
        while left := [mark for step in self.found.trace[1:-1] for mark in _marks(step) if mark not in tried]:
            mark = max(left, key=left.count)
            tried.add(mark)
            first, *steps, last = self.found.trace
            self._keep_mended((first, *(step for step in steps if mark not in _marks(step)), last))

    def _leave_out_steps(self) -> None:
        """Leaves out runs of steps, long ones first; never the first step, which builds, nor the last one."""

        def leave_out(start: int, end: int) -> bool:
            trace = self.found.trace
            return self._keep_mended(trace[: start + 1] + trace[end + 1 :])

        thinned(lambda: len(self.found.trace) - 2, leave_out, max(len(self.found.trace) // 2, 1))

    def _leave_out_pairs(self) -> None:
        """Of a sequence that is short leaves out two calls that make sense together only, wherever they stand.

        Or one, and another call becomes simpler, or its lists longer by what it did, or the last one's numbers larger;
        or two things change places, so that the first of some is the one that matters.
        """
        trace = self.found.trace
        last = trace[-1]
        if not isinstance(last, Call) or len(trace) > _MANY:
            return
        places = range(1, len(trace) - 1)
        pairs = ((*trace[:one], *trace[one + 1 : other], *trace[other + 1 :]) for one, other in combinations(places, 2))
        ends = ((*trace[:one], *trace[one + 1 : -1], more) for one in places for more in larger(last, _MOST_NUMBER))
        fewer = (
            (*left[:place], less, *left[place + 1 :])
            for left in ((*trace[:one], *trace[one + 1 :]) for one in places)
            for place in range(1, len(left) - 1)
            for less in chain(self._simpler_calls(left[place]), _longer(left[place]))
        )
        things = sorted({ref for call in trace for ref in refs(call) if isinstance(ref.of, int)}, key=str)
        exchanged = (exchange(trace, *both) for both in combinations(things, 2))
        if any(map(self._keep, chain(pairs, ends, exchanged, fewer if len(trace) <= _FEW else ()))):
            self._leave_out_pairs()

    def _simpler_calls(self, call: TracedStep | Call) -> Iterator[Call]:
        """Calls with simpler arguments; none of a step of another kind."""
        return self._machine.simpler(call) if isinstance(call, Call) else iter(())

    def _take_apart(self) -> None:
        """Puts the operations that steps are made of in their place, without all other calls, or step by step."""
        first, *steps = self.found.trace
        if any(_made(step) for step in steps):
            last = _operations(steps[-1]) if None not in _made(steps[-1]) else (steps[-1],)
            if self._keep((first, *(made for step in steps[:-1] for made in _operations(step)), *last), longer=True):
                return
        for place in reversed(range(1, len(steps) + 1)):
            before, step, behind = self.found.trace[:place], self.found.trace[place], self.found.trace[place + 1 :]
            if _made(step) and None not in _made(step):
                self._keep((*before, *_operations(step), *behind), longer=True)

    def _simplify_start(self) -> None:
        """Makes what the first step is given simpler: a smaller world."""
        first = self.found.trace[0]
        assert isinstance(first, TracedStep), "the first step builds"
        for name in _by_name(first):
            changed = True
            while changed:
                given = _by_name(self.found.trace[0])
                changed = any(
                    self._keep((replace(first, drawn={**given, name: less}), *self.found.trace[1:]))
                    for less in simpler(given[name])
                )

    def _tighten(self) -> None:
        """Leaves out a step, and makes the first one's world tighter: what only fills a pool goes with the room."""
        for place in reversed(range(1, len(self.found.trace) - 1)):
            first, *steps = self.found.trace
            assert isinstance(first, TracedStep), "the first step builds"
            worlds = [(name, given) for name, given in _by_name(first).items() if hasattr(given, "tighter")]
            if place < len(steps):
                rest = (*steps[: place - 1], *steps[place:])
                _ = any(
                    self._keep((replace(first, drawn={**_by_name(first), name: tighter}), *rest), shorter=True)
                    for name, given in worlds
                    for tighter in given.tighter()
                )

    def _simplify_draws(self) -> bool:
        """Makes draws simpler, one by one, those of the last step first, and numbers before what has parts.

        Returns:
            Whether calls have gone by it: then others may go as well, before it goes on with what takes many tries.
        """
        calls, places = self.found.num_calls, range(1, len(self.found.trace))
        for place in reversed(places):
            self._simplify_step(place, numbers=True)
        for place in reversed(places):
            if self.found.num_calls < calls:
                return True
            self._simplify_call(place)
            self._simplify_step(place, numbers=False)
        return self.found.num_calls < calls

    def _simplify_last(self) -> None:
        """Makes the arguments of the last call simpler, or the numbers that the last step drew."""
        place = len(self.found.trace) - 1
        self._simplify_call(place)
        self._simplify_step(place, numbers=True)

    def _simplify_step(self, place: int, *, numbers: bool) -> None:
        """Makes the numbers simpler that a step drew, or what else it drew."""
        drawn = 0
        while drawn < len(self._drawn(place)):
            value = self._drawn(place)[drawn]
            options = simpler(value) if isinstance(value, int) is numbers else ()
            if not any(self._keep(self._with_draw(place, drawn, less)) for less in options):
                drawn += 1

    def _exchange_draws(self) -> None:
        """Tries other numbers in the place of those that cannot be made simpler, where that shortens."""
        for place in reversed(range(1, len(self.found.trace))):
            for drawn, value in enumerate(self._drawn(place)):
                if any(self._keep(self._with_draw(place, drawn, other), shorter=True) for other in _others(value)):
                    break  # its step may draw something else by now, or be gone

    def _simplify_call(self, place: int) -> None:
        """Makes the arguments of a call simpler."""
        changed = place < len(self.found.trace)
        while changed:
            trace = self.found.trace
            options = self._simpler_calls(trace[place])
            changed = any(self._keep((*trace[:place], less, *trace[place + 1 :])) for less in options)
        trace = self.found.trace
        last = trace[place] if place < len(trace) else None
        if isinstance(last, Call):
            mores = larger(last, _MOST_NUMBER)
            _ = any(self._keep((*trace[:place], more, *trace[place + 1 :]), shorter=True) for more in mores)

    def _drawn(self, place: int) -> list[Any]:
        """What a step drew, other than the first; nothing of a call, which is known by its arguments."""
        step = self.found.trace[place] if place < len(self.found.trace) else None
        return list(step.drawn) if isinstance(step, TracedStep) else []

    def _with_draw(self, place: int, drawn: int, value: Any) -> Steps:
        """The steps with another draw in the place of one."""
        trace, values = self.found.trace, self._drawn(place)
        values[drawn], step = value, trace[place]
        assert isinstance(step, TracedStep), "a call draws nothing"
        return (*trace[:place], replace(step, drawn=values), *trace[place + 1 :])

    def _keep_mended(self, steps: Steps) -> bool:
        """Keeps steps of which some were left out, or else those of them that can do without; see `_keep`."""
        return self._keep(steps) or (mended(steps) != steps and self._keep(mended(steps)))

    def _keep(self, steps: Steps, shorter: bool = False, longer: bool = False) -> bool:
        """Takes steps again, and keeps them if they deviate as before.

        Args:
            steps: the steps.
            shorter: whether there must be fewer calls.
            longer: whether there may be more text, for as many calls.
        """
        if monotonic() > self._end:
            self._session.note = f"a counterexample was made shorter for {self._seconds:g} s, not to the end"
            raise EnoughError
        if self.steps >= self._most:
            raise EnoughError
        if not self._session.gives_bad_input and not self._makes_sense(steps):
            return False  # and the backend is not asked, which may not come back from what no caller means
        if self._hurries and len(steps) > _MANY:
            hurried = self._repeat(self._machine, steps, hurrying=True)
            if hurried is None or hurried.clause != self.found.clause:
                return False
        taken = self._repeat(self._machine, steps)
        if taken is None or taken.clause != self.found.clause:
            self._note(taken)
            return False
        calls, before = taken.num_calls, self.found.num_calls
        if calls > before or (shorter and calls == before):
            return False
        if not (shorter or longer or _rank(taken) < _rank(self.found)):
            return False
        if not self._makes_sense(taken.trace):
            return False
        self.found = taken
        return True

    def _note(self, taken: Deviation | None) -> None:
        """Keeps a deviation by another clause that was come upon, if it is the shortest by that clause."""
        known = taken and self._session.deviations.get(taken.clause)
        if taken is not None and (known is None or taken.size < known.size) and self._makes_sense(taken.trace):
            self._session.deviations[taken.clause] = taken

    def _makes_sense(self, steps: Steps) -> bool:
        """Whether the specification does not deviate from itself in some steps, by any clause.

        What is looked at for the backend leaves out clauses that are not asked for or that it is known to break: by
        them the specification refuses what no caller means, such as a pool of no pages at level sound.
        """
        return self._alone is None or self._repeat(self._alone, steps) is None

    def _repeat(
        self, machine: type[Machine], steps: Steps, hurrying: bool = False, closely: bool = False
    ) -> Deviation | None:
        """Takes steps again.

        Args:
            machine: the machine.
            steps: the steps.
            hurrying: whether states are compared in the last step only.
            closely: whether also what is looked at after one call of some is compared after each.

        Returns:
            The deviation that they end in; None if they end in none.
        """
        taken = machine()
        try:
            taken.closely = closely
            for place, step in enumerate(steps):
                taken.closing = place == len(steps) - 1
                taken.hurrying = hurrying and not taken.closing
                try:
                    taken.repeat_step(step)
                finally:
                    self.steps += taken.cost_of(step)
            if self.found.inner:
                taken.end()
        except Deviation as found:
            return found.with_traceback(None)  # its frames hold what was called
        except Exception:  # steps that build on one that was left out may be impossible, in any way
            return None
        finally:
            vars(taken).clear()  # else hundreds of requests wait for the garbage collector, try by try
        return None


def make_again(machine: type[Machine], session: Session) -> None:
    """Makes the session's samples again, and notes where a call ends otherwise than it did.

    Args:
        machine: the machine, bound to the session; its calls say what the backend answered.
        session: what the machine did.
    """
    repeating = type(machine.__name__, (machine,), {"session": session.again(session.backend)})
    for steps, calls in session.samples:
        taken = repeating()
        with suppress(Deviation, UnrepeatableError, EnoughError):
            for step in steps:
                taken.repeat_step(step)
        for before, now in zip(calls, taken.calls, strict=False):
            if before != now:
                session.unrepeated = f"{before}, and when all calls were made again: {now}"
                return


def _longer(call: TracedStep | Call) -> Iterator[Call]:
    """Calls with a longer list; none of a step of another kind."""
    return larger(call, 0) if isinstance(call, Call) else iter(())


def _rank(found: Deviation) -> tuple[Any, ...]:
    """What makes one deviation simpler than another: fewer calls, less text, smaller numbers in what was drawn.

    What is drawn again may have to be another value than asked for, so that only this tells whether it was worth it.
    """
    drawn = repr([step.arguments if isinstance(step, Call) else step.drawn for step in found.trace])
    return (*found.size, sum(map(int, _NUMBER.findall(drawn))) + drawn.count("True"), len(drawn))


def _by_name(first: TracedStep | Call) -> Mapping[str, Any]:
    """What the first step was given."""
    return first.drawn if isinstance(first, TracedStep) and isinstance(first.drawn, Mapping) else {}


def _marks(step: TracedStep | Call) -> set[str]:
    """What a step has in common with others: its name, and the names that it is given of requests and the like."""
    if isinstance(step, Call):
        prompts = (value.request_id for value in step.arguments.values() if isinstance(value, Prompt))
        return {step.name, *(f"of {name}" for name in (*(ref.of for ref in refs(step)), *prompts))}
    given = () if isinstance(step.drawn, Mapping) else step.drawn
    return {step.name, *(f"of {value}" for value in given if isinstance(value, str))}


def _made(step: TracedStep | Call) -> Sequence[TracedStep | None]:
    """The operations that a step is made of, None among them standing for any other call; an operation is of none."""
    return step.made if isinstance(step, TracedStep) and not step.is_operation else ()


def _operations(step: TracedStep | Call) -> Steps:
    """The operations that a step is made of, without other calls; an operation or a call by itself."""
    if isinstance(step, Call) or step.is_operation:
        return (step,)
    return tuple(made for made in step.made if made is not None)


def _others(value: Any) -> list[Any]:
    """What may be tried in the place of a number that cannot be made simpler: larger small ones, and none at all."""
    if type(value) is not int:
        return []
    return [*range(max(value + 1, -_MOST_NUMBER), _MOST_NUMBER), None]
