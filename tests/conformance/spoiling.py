"""Makes every fault of every argument that a machine spoils, and looks at how both packages refuse it (R1)."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.strategies import SearchStrategy

from kvproof.conformance.calls.datum import Call, resolve
from kvproof.conformance.calls.deviation import Outcome, SpecificationError
from kvproof.conformance.calls.judging import Difference, equal
from kvproof.conformance.calls.method import Given, Method
from kvproof.conformance.calls.source import Source
from kvproof.conformance.calls.spelling import Spelling
from kvproof.conformance.machines import Machine
from kvproof.conformance.machines.base import Nothing
from kvproof.conformance.machines.calling import Calling
from kvproof.conformance.machines.draws import Drawing

__all__ = ["Spoilt", "spoiling"]

T = TypeVar("T")

PARTNERS = (
    {"keys", "values"},
    {"key", "value", "keys", "values"},
    {"latents", "rotary"},
    {"sources", "destinations"},
    {"page_ids", "num_slots"},
    {"kv_lens", "page_table", "cu_q_lens", "num_seqs"},
    {"queries", "rotary_queries"},
    {"num_kv_heads", "kv_pages"},
)
"""Arguments that have to fit one another: where they do not, a message may name either."""


class Spoilt(NamedTuple):
    """How one fault was refused.

    Attributes:
        argument: the interface, the method and the argument, as ``pool.touch(pages)``.
        call: the call as a report shows it.
        package: which package refused it.
        message: what it said.
        wrong: what is wrong with how it was refused; "" if nothing is.
    """

    argument: str
    call: str
    package: str
    message: str
    wrong: str


class Chance(Drawing):
    """Decisions by random numbers: an example of Hypothesis' own has no room for hundreds of calls in one step.

    Args:
        seed: the seed.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(None)
        self._data = ConjectureData(random=random.Random(seed))

    def draw(self, strategy: SearchStrategy[T]) -> T:
        """See `Drawing.draw`."""
        return self._data.draw(strategy)


class Every(Chance):
    """Every decision in turn, but for how lists are spelled and which good things stand before what is wrong."""

    def __init__(self) -> None:
        super().__init__(0)
        self._taken: list[int] = []
        self._most: list[int] = []
        self._place = 0

    def rounds(self) -> Iterator[None]:
        """One round for each way to decide."""
        while True:
            self._place = 0
            yield
            del self._taken[self._place :], self._most[self._place :]
            while self._taken and self._taken[-1] >= self._most[-1]:
                self._taken.pop()
                self._most.pop()
            if not self._taken:
                return
            self._taken[-1] += 1

    def integer(self, least: int, most: int) -> int:
        """See `Source.integer`."""
        if self._place == len(self._taken):
            self._taken.append(0)
            self._most.append(most - least)
        self._most[self._place] = most - least
        self._place += 1
        return min(least + self._taken[self._place - 1], most)

    def one_of(self, options: Sequence[T]) -> T:
        """See `Source.one_of`; where there is none, there is no call."""
        if not options:
            raise Nothing
        return super().one_of(options)

    def rarely(self) -> bool:
        """See `Source.rarely`: once each way."""
        return self.integer(0, 1) == 1

    def likely(self, often: Sequence[T], seldom: Sequence[T]) -> T:
        """See `Source.likely`: each option once."""
        return self.one_of([*often, *seldom])

    def spelling(self, options: Sequence[Spelling], iterables: bool = True) -> Spelling:
        """See `Source.spelling`: a list."""
        del options, iterables
        return Spelling.LIST

    def counted(self, number: int) -> Any:
        """See `Source.counted`: an int."""
        return number

    def some(self, options: Sequence[T], most: int, least: int = 0) -> list[T]:
        """See `Source.some`: the first ones."""
        del least
        return list(options)[:most]

    def several(self, options: Sequence[T], most: int, least: int = 0) -> list[T]:
        """See `Source.several`: the first ones."""
        return self.some(options, most, least)


class Spoiling(Calling):
    """A machine that makes all faults of a method where it would make one; which it then makes as well.

    Attributes:
        found: how the faults were refused.
        times: in how many states the faults of each argument were made.
        most_times: in how many they are made.
    """

    found: ClassVar[list[Spoilt]]
    times: ClassVar[dict[str, int]]
    most_times: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self.hurrying = True
        self._outcomes: list[tuple[Outcome, Outcome]] = []

    def compared_call(self, expected: Outcome, observed: Outcome, *more: Any) -> Difference | None:
        """See `Machine.compared_call`; two refusals have one label."""
        self._outcomes.append((expected, observed))
        if expected.error is not None and expected.clause != observed.clause:
            return Difference("R1", str(expected), str(observed))
        return super().compared_call(expected, observed, *more)

    def spoilt(self, row: Method, source: Source, name: str = "") -> Call:
        """See `Calling.spoilt`; before it, every fault of the argument is made, or of all if none is named."""
        for argument in [name] if name and self.most_times > 1 else row.faults(self):
            self.spoil_each(row, argument)
        if len(row.arguments) > 1 and not row.possible(self):
            raise Nothing  # one of these calls was none of a fault
        return super().spoilt(row, source, name)

    def spoil_each(self, row: Method, name: str) -> None:
        """Makes every fault of an argument, if it was not made often enough."""
        table, _ = self.row_of(row.name)
        argument = f"{table.name}.{row.name}({name})"
        self.times[argument] = self.times.get(argument, 0) + 1
        spoil = row.kinds[name].fault
        if (
            self.times[argument] > self.most_times
            or spoil is None
            or (len(row.arguments) > 1 and not row.possible(self))
        ):
            return
        good = row.drawn(Chance(self.times[argument]), self) if row.possible(self) else {}
        source, tried = Every(), set()
        for _ in source.rounds():
            try:
                wrong = spoil(source, self, good)
            except Nothing:
                continue
            changes = wrong if isinstance(wrong, dict) else {name: wrong}
            if repr(changes) not in tried:
                tried.add(repr(changes))
                call = self.call_of(row.name, self._target(row, source), **(good | changes))
                self.make_spoilt_alone(argument, replace(call, fault=name), changes)

    def make_spoilt_alone(self, argument: str, call: Call, changes: Given) -> None:
        """Makes a call with a fault, and notes how each package refuses it."""
        self.hurrying = False
        self._outcomes.clear()
        try:
            self.compare_states({})
            before = dict(self._before)
            both = self.make_call(call)
        except SpecificationError as error:  # where Hypothesis repeats what failed, these calls are not made again
            self.found.append(Spoilt(argument, repr(call), "spec", str(error), "no refusal of the specification"))
            raise Nothing from None
        finally:
            self.hurrying = True
        if not both.refused or not self._outcomes:
            return
        for package, side, outcome in zip(("spec", "fast"), (self.spec, self.backend), self._outcomes[-1], strict=True):
            given = {name: resolve(value, side) for name, value in call.arguments.items()}
            message = str(outcome.error)
            both_read = before.keys() & self._before.keys()  # some of it is read now and then only
            wrong = next(
                (f"{name} has changed" for name in both_read if not equal(before[name], self._before[name])), ""
            )
            wrong = wrong or what_is_missing(call.fault, changes, given, message)
            self.found.append(Spoilt(argument, self.calls[-1], package, message, wrong))


def what_is_missing(fault: str, changes: Given, given: Given, message: str) -> str:
    """What R1 wants of a message and it lacks; "" if it lacks nothing."""
    partners = {name for pair in PARTNERS if fault in pair for name in pair}
    names = [name for name in {fault, *changes, *partners} if _has_word(name, message)]
    if not names:
        return f"{fault} is not named"
    said = any(
        re.search(rf"\b{name}([\w.[\], ]*[=:]|\[\d|\.\w)", message) for name in names
    )  # name=, name[2], name.shape
    if not said and not any(shows(message, given[name]) for name in names if name in given):
        return f"the value of {' or '.join(names)} is not shown"
    return ""


def shows(message: str, value: Any) -> bool:
    """Whether a message shows a value, one of its entries, or says of what type or shape it is; secrets it may not."""
    words = [type(value).__name__]
    if isinstance(value, np.ndarray):
        words += [str(value.dtype), *map(str, (*value.shape, *value.ravel()[:99].tolist()))]
    elif hasattr(value, "shape"):
        words += [str(value.dtype), *map(str, value.shape)]
    elif hasattr(value, "page_id"):
        words.append(str(value.page_id))
    elif isinstance(value, list | tuple):
        words.append(str(len(value)))
    else:
        words += [repr(value)[:40], str(getattr(value, "request_id", value))[:40]]
    return any(_has_word(word, message) for word in words) or (
        isinstance(value, list | tuple) and any(shows(message, entry) for entry in value)
    )


def _has_word(word: str, message: str) -> bool:
    return bool(word) and re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", message) is not None


def spoiling(known: type[Machine], times: int = 2) -> type[Spoiling]:
    """A machine that makes all faults of each argument, in as many states of a run as ``times`` says."""
    return type(known.__name__, (Spoiling, known), {"found": [], "times": {}, "most_times": times})
