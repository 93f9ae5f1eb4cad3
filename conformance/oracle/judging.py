"""Judges an engine: finds out what it offers, measures its noise, asks all relations, and says what contradicts."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .consistency import Contradiction, contradictions, largest
from .noise import LostForGoodError, Noise, measure
from .performing import History, Performer
from .probing import find_out
from .relations import RELATIONS, Relation, Sizes, draw_prompt
from .scripts import Ask, Script, Wave
from .shrinking import shortened
from .subjects import Facts, LostError, Subject, UnusableError

__all__ = ["Deviation", "Judgement", "Plan", "RelationReport", "contradiction_of", "judge"]

Verdict = Literal["bit-exact", "within the bound", "deviates", "not offered", "refused", "undecided"]


@dataclass(frozen=True)
class Plan:
    """How an engine is judged.

    Attributes:
        seed: of all that is drawn.
        scripts: the number of scripts for each relation.
        relations: the names of those that are asked.
        insisted: what the engine is said to offer, whether it shows or not.
        tolerance: how far log-probabilities may be apart; None to measure it.
        first: whether the first deviation ends it.
        tries: the most scripts that are performed to make one short.
    """

    seed: int = 0
    scripts: int = 6
    relations: tuple[str, ...] = tuple(RELATIONS)
    insisted: frozenset[str] = frozenset()
    tolerance: float | None = None
    first: bool = False
    tries: int = 120


@dataclass(frozen=True)
class Deviation:
    """Something that an engine said and can't be right.

    Attributes:
        clause: the clause that it breaks.
        relation: the relation that showed it.
        expected: what one answer says.
        observed: what another says, or how the engine was lost.
        script: what was asked, as short as it got, with the tokens that were sent.
        again: how many of three more performances showed it as well.
    """

    clause: str
    relation: str
    expected: str
    observed: str
    script: Script
    again: int


@dataclass
class RelationReport:
    """What came of one relation.

    Attributes:
        relation: the relation.
        lacks: what the engine lacks for it.
        scripts: the number of scripts that were performed.
        refused: what the engine said when it refused one; the last time.
        refusals: the number of scripts of which it refused a request.
        largest: how far log-probabilities of one token were apart at most.
        deviation: what contradicts.
    """

    relation: Relation
    lacks: list[str] = field(default_factory=list)
    scripts: int = 0
    refused: str = ""
    refusals: int = 0
    largest: float = 0.0
    deviation: Deviation | None = None

    @property
    def verdict(self) -> Verdict:
        """What came of it, in a word or two."""
        if self.deviation is not None:
            return "deviates"
        if self.lacks:
            return "not offered"
        if self.scripts == self.refusals:
            return "refused" if self.scripts else "undecided"
        return "within the bound" if self.largest else "bit-exact"


@dataclass
class Judgement:
    """What is known of an engine so far.

    Attributes:
        plan: how it is judged.
        facts: what it offers.
        noise: how much its answers vary of themselves.
        bound: how far log-probabilities may be apart.
        reports: what came of each relation.
        requests: the number of requests sent.
        cached: the number of tokens that requests found cached, as far as the engine says.
        ended: why it ended early; "" where it did not.
        found_out: whether it is known what the engine offers.
    """

    plan: Plan
    facts: Facts
    noise: Noise = field(default_factory=Noise)
    bound: float = 0.0
    reports: list[RelationReport] = field(default_factory=list)
    requests: int = 0
    cached: int = 0
    ended: str = ""
    found_out: bool = False

    @property
    def deviations(self) -> list[Deviation]:
        """All deviations, in the order of the relations."""
        return [report.deviation for report in self.reports if report.deviation is not None]


Watch = Callable[[str, int], Any]
"""A function that is called with what is being done, and with the number of requests sent until now."""


def judge(
    subject: Subject,
    plan: Plan,
    watch: Watch = lambda *_: None,
    judgement: Judgement | None = None,
) -> Judgement:
    """Judges an engine.

    Args:
        subject: the engine; its facts are completed.
        plan: how it is judged.
        watch: is called with the progress.
        judgement: takes what is learnt, for those who may be interrupted; None for a new one.

    Returns:
        What came of it; where the engine could not be judged to the end, what was learnt until then.
    """
    judgement = Judgement(plan, subject.facts) if judgement is None else judgement
    draw = random.Random(plan.seed)
    try:
        watch("finding out what it offers", 0)
        judgement.facts, judgement.found_out = find_out(subject, draw, plan.insisted), True
        sizes = Sizes.of(judgement.facts)
        performer = Performer(subject, sizes.low)
        try:
            if plan.tolerance is None:
                watch("measuring its noise", performer.requests)
                judgement.noise = measure(performer, sizes, draw)
            judgement.bound = judgement.noise.bound if plan.tolerance is None else plan.tolerance
            for name in plan.relations:
                watch(name, performer.requests)
                judgement.reports.append(_related(performer, RELATIONS[name], sizes, judgement, watch))
                if judgement.ended or (plan.first and judgement.deviations):
                    break
        finally:
            judgement.requests, judgement.cached = performer.requests, performer.cached
    except LostForGoodError as error:
        judgement.ended = str(error)
        shown = error.history, _loss(error.history)
        report = RelationReport(_NOISE, scripts=1, deviation=_deviation(_NOISE, shown, 0))
        judgement.reports.append(report)
    except UnusableError as error:
        judgement.ended = str(error)
    return judgement


_NOISE = Relation("ENG-2", "noise", lambda *_: Script(()))
"""Stands for the measuring of noise where the engine is lost in it."""


def _loss(history: History) -> Contradiction:
    last = history.exchanges[-1].ask.name if history.exchanges else ""
    return Contradiction(last, "", "an answer to every request", history.lost, 0.0, "ENG-2")


def contradiction_of(performer: Performer, history: History, bound: float) -> Contradiction | None:
    """What contradicts in a history, its loss and a refusal that depends on it included; None if nothing does."""
    if history.lost:
        return _loss(history)
    if history.refused and not history.busy and _is_taken_alone(performer, history):
        expected = "an answer to every request that is answered when it is asked first"
        return Contradiction("", "", expected, f"refused: {history.refused}", 0.0, "ENG-2")
    return next(contradictions(history, bound), None)


def _is_taken_alone(performer: Performer, history: History) -> bool:
    """Whether each request of a script that was refused is answered by an engine that knows nothing of the others."""
    for step in history.script.steps:
        if not isinstance(step, Wave):
            continue
        for ask in step.asks:
            alone = Script((replace(step, asks=(ask,)),))
            if not ask.follows and performer.perform(alone).refused:
                return False
    return True


def _related(
    performer: Performer, relation: Relation, sizes: Sizes, judgement: Judgement, watch: Watch
) -> RelationReport:
    """Asks one relation until something contradicts."""
    plan, report = judgement.plan, RelationReport(relation, relation.lacks(judgement.facts))
    if report.lacks:
        return report
    draw = random.Random(f"{plan.seed} {relation.name}")
    number = max(plan.scripts, min(sizes.page, _MOST_LENGTHS)) if relation.every_length else plan.scripts
    for turn in range(number):
        script = relation.draw(draw, sizes, turn)
        history = performer.perform(script)
        report.scripts += 1
        found = contradiction_of(performer, history, judgement.bound)
        if found is not None and (not found.by_chance or _comes_again(performer, script, judgement.bound)):
            watch(f"{relation.name}: making the script shorter", performer.requests)
            report.deviation = _told(performer, relation, script, (history, found), judgement)
            return report
        if history.refused:
            _require_answers(performer, sizes, history.refused)
            report.refused, report.refusals = history.refused, report.refusals + 1
        report.largest = max(report.largest, largest(history))
        watch(relation.name, performer.requests)
    return report


_MOST_LENGTHS = 64
"""Of larger pages not every number of tokens is tried as the length of a prefix."""

_AGAIN = 3
"""The number of times that a script that showed a deviation is performed again."""

_LOST_TRIES = 6
"""The most scripts tried where each costs a time-out or a new start."""

_Shown = tuple[History, Contradiction]


def _require_answers(performer: Performer, sizes: Sizes, refusal: str) -> None:
    """Ends the judging of an engine that refuses by now what it answered when it was asked first.

    Raises:
        UnusableError: it does.
    """
    plain = Wave((Ask("a", draw_prompt(random.Random(refusal), sizes, sizes.middle)),), sizes.answer)
    again = performer.perform(Script((plain,)))
    if again.refused:
        raise UnusableError(f"it refuses by now what it answered at first: {again.refused}")


def _comes_again(performer: Performer, script: Script, bound: float) -> bool:
    """Whether a script shows a contradiction each time."""
    return all(contradiction_of(performer, performer.perform(script), bound) is not None for _ in range(_AGAIN))


def _told(performer: Performer, relation: Relation, script: Script, shown: _Shown, judgement: Judgement) -> Deviation:
    """A deviation, its script made short."""
    lost = bool(shown[0].lost)

    def shows(shorter: Script) -> _Shown | None:
        if shown[0].lost:
            performer.subject.restart()
        try:
            history = performer.perform(shorter)
        except UnusableError:  # what was shown before counts
            return None
        found = contradiction_of(performer, history, judgement.bound)
        return (history, found) if found is not None and found.clause == shown[1].clause else None

    try:
        if (
            not lost and shows(script) is None
        ):  # something that it was not told to forget remembers: others have to be sent
            performer.renames = True
        if lost:
            script = Script(script.steps[: shown[0].begun])
        tries = min(judgement.plan.tries, _LOST_TRIES) if lost else judgement.plan.tries
        script, shown = shortened(script, shown, shows, tries)
        again = sum(shows(script) is not None for _ in range(1 if lost else _AGAIN))
        if lost:
            performer.subject.restart()
    except LostError as error:  # it can't be started again: what is known stays
        judgement.ended = f"lost for good: {error}"
        return _deviation(relation, shown, 0)
    finally:
        performer.renames = False
    return _deviation(relation, shown, again)


def _deviation(relation: Relation, shown: _Shown, again: int) -> Deviation:
    history, found = shown
    clause = found.clause or relation.clause
    return Deviation(clause, relation.name, found.expected, found.observed, history.script, again)
