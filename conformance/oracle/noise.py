"""How much an engine's answers vary of themselves: measured before anything is judged.

A request is asked cold again and again, alone; beside others; and its own answer's beginning is sent as part of the
prompt, so that the same tokens are computed in other shapes. None of this reads what another request computed. Long
prompts are cut at every token of the answer: engines compute many tokens at once by other code than few, so that their
noise is in the long ones alone.
"""

import random
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from .answers import Answer
from .consistency import apart_at_most, difference, largest
from .performing import History, Performer
from .relations import Sizes, draw_prompt
from .scripts import Ask, Forget, Script, Step, Wave
from .subjects import LostError, UnusableError

__all__ = ["LostForGoodError", "Noise", "measure"]

_MOST = 0.1
"""Log-probabilities that vary by more than this, in nats, are no noise: rounding to 8 bits makes some hundredths."""

_FLOOR = 2e-5
"""What rounding of float32 numbers makes of log-probabilities is never a fault."""

_FACTOR = 8
"""The bound, as a multiple of the largest noise that was seen."""

_SHAPES = 30
"""The most noise that other shapes of computation make, as a multiple of that of half of the cuts from some length on.

An engine that rounds to few bits rounds otherwise wherever prompts of some length, or longer ones, are cut; what shows
at few cuts, or goes where prompts are longer, is no rounding.
"""

_TRIES = 4
"""Prompts drawn for each that is wanted, as there may be answers of which nothing can be compared."""

_LONG = 8
"""The pages of a long prompt."""


class LostForGoodError(Exception):
    """The engine was lost while its noise was measured, and can't be started again (ENG-2).

    Attributes:
        history: what it was asked, and how it was lost.
    """

    def __init__(self, history: History) -> None:
        super().__init__(history.lost)
        self.history = history


@dataclass(frozen=True)
class Noise:
    """How much log-probabilities of the same tokens vary, in nats.

    Attributes:
        alone: between the same cold request asked several times, alone.
        batched: between a cold request alone and beside others.
        shapes: between an answer, and what follows where its beginning is sent as part of a prompt, both cold.
    """

    alone: float = 0.0
    batched: float = 0.0
    shapes: float = 0.0

    @property
    def bound(self) -> float:
        """How far log-probabilities may be apart without being a fault."""
        return max(_FLOOR, _FACTOR * max(self.alone, self.batched, self.shapes))


def measure(performer: Performer, sizes: Sizes, draw: random.Random) -> Noise:
    """Measures an engine's noise.

    What is larger than noise can be is left to the relations, and so is a script in which the engine is lost. Where an
    engine can't forget, only the same request asked again, warm, is looked at.

    Raises:
        UnusableError: the engine does not answer alike twice: it samples, though the temperature is 0.
        LostForGoodError: the engine was lost, and can't be started again.
    """
    alone, batched = [0.0], [0.0]
    forgets: tuple[Step, ...] = (Forget(),) if performer.subject.facts.forgets else ()
    long = _LONG * sizes.page
    lengths = (sizes.middle, 1, long, long)
    measured, by_length = 0, {length: [0.0] for length in lengths}
    for turn in range(_TRIES * len(lengths)):
        if measured == len(lengths):
            break
        length = lengths[turn % len(lengths)]
        cuts = by_length[length]
        prompt, other = draw_prompt(draw, sizes, length), draw_prompt(draw, sizes, sizes.middle)
        ask = Ask("a", prompt)
        one = Wave((ask,), sizes.answer)
        again = [Wave((Ask(name, prompt),), sizes.answer) for name in "bcd"]
        steps = [one, *(step for wave in again for step in (*forgets, wave))]
        history = _performed(performer, Script(tuple(steps)))
        _require_repeatable(history)
        answers = [exchange.answers[0] for exchange in history.exchanges]
        alone += [apart_at_most(*pair) for pair in combinations(answers[1:], 2)]
        measured += all(bool(answer.tokens) for answer in answers)
        if not forgets or not all(answer.tokens for answer in answers):
            continue
        beside = Wave((Ask("b", prompt), Ask("n", other)), sizes.answer)
        history = _performed(performer, Script((one, Forget(), beside)))
        batched.append(largest(history))
        for taken in range(1, sizes.answer, 1 if length == long else max(1, sizes.answer // 3)):
            cut = Wave((Ask("b", (), "a", taken),), sizes.answer - taken)
            history = _performed(performer, Script((one, Forget(), cut)))
            if all(exchange.answers[0].tokens for exchange in history.exchanges):
                cuts.append(largest(history))
    shapes = [cut for cuts in by_length.values() for cut in cuts]
    from_each = [[cut for other, cuts in by_length.items() if other >= length for cut in cuts] for length in by_length]
    typical = max(min(_MOST, median(cuts)) for cuts in from_each)
    first, second = _largest(alone, _MOST), _largest(batched, _MOST)
    most = min(_MOST, max(1e-3, _SHAPES * max(first, second, typical)))
    return Noise(first, second, _largest(shapes, most))


def _largest(samples: list[float], most: float) -> float:
    """The largest of those that are noise."""
    return max(sample for sample in samples if sample <= most)


def _performed(performer: Performer, script: Script) -> History:
    history = performer.perform(script)
    if history.refused:
        raise UnusableError(f"a request of {len(next(script.asks).prompt)} tokens is refused: {history.refused}")
    if history.lost:
        try:
            performer.subject.restart()
        except LostError as error:
            raise LostForGoodError(history) from error
    return history


def _require_repeatable(history: History) -> None:
    """Refuses an engine that draws tokens: in one state, asked the same, it says others of one distribution."""
    answers = [exchange.answers[0] for exchange in history.exchanges[1:]]
    if len(answers) > 2 and not any(answer.alternatives for answer in answers):
        others = {answer.tokens for answer in answers}
        if len(others) == len(answers):  # two answers may tie, hardly three
            raise UnusableError(
                f"asked the same {len(answers)} times it answers {len(answers)} texts: "
                "it samples, though the temperature is 0"
            )
    for one, other in combinations(answers, 2):
        found = difference(one, other, _MOST, 0)
        if found is not None and _are_drawn(one, other, found.position):
            raise UnusableError(
                f"asked the same again it answers token {other.tokens[found.position]} in place of "
                f"{one.tokens[found.position]}: it samples, though the temperature is 0"
            )


def _are_drawn(one: Answer, other: Answer, place: int) -> bool:
    """Whether two tokens that differ may be drawn from one distribution, as far as the engine says what that is."""
    if one.tokens[place] == other.tokens[place]:
        return False
    if not one.alternatives or not other.alternatives:
        return True
    mine, theirs = one.alternatives[place], other.alternatives[place]
    common = mine.keys() & theirs.keys()
    return bool(common) and all(abs(mine[name] - theirs[name]) <= _MOST for name in common)
