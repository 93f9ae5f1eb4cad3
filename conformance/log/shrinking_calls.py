"""Makes a log that deviates on a backend short: its calls are made on that backend beside the specification.

The operations become calls on what earlier ones gave (`as_calls`), and `kvproof try`'s `Trial` makes and judges them.
A try leaves some out. It counts only if it deviates by the same clause as before, and if the specification refuses
nothing that it did not refuse in the log: else the engine would have been made to do what it never did. What is left is
made simpler argument by argument.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..backends.levels import Level
from ..backends.loading import Backend
from ..backends.raising import Interrupted
from ..calls.datum import Call, Hashed, Key, Prompt, Ref, mended, refs, simpler, smaller, written
from ..calls.method import Method
from ..calls.simplest import simplest
from ..report.redaction import Redaction
from ..trying.script import Entry, FileError, Rows
from ..trying.trial import Said, Trial
from .as_calls import Recorded, calls_in_order, in_order
from .format import LogError
from .leaving_out import Part, leave_out
from .reading_calls import read_calls, without_defaults

__all__ = ["Shortened", "shorten"]

_FEW = 12
"""The number of calls up to which states are compared after each one, else at the end of a try only."""

_WINDOWS = 64
"""The number of places in which a long log is looked at first, to find where it goes wrong."""

_TRIES = 2_000
"""How many simpler sequences are tried when no operation can be left out any more."""

_LONG = 16
"""The number of tokens up to which a prompt is tried without each of them."""

_MOST_SIMPLER = 40
"""The most calls whose arguments are made simpler."""


@dataclass(frozen=True)
class Shortened:
    """What is left of a log.

    Attributes:
        calls: the calls that are left, in order, requests' own among them; the last one deviates.
        said: what came of that one.
        left: how many of them are operations: no constructors, and nothing that an engine does with a request.
        operations: how many operations the log has up to where it deviates.
        tries: how many sequences were tried.
        seconds: how long that took.
        shows_tokens: whether the log's token ids are the engine's own.
        interrupted: whether somebody ended the search; then this is what was found up to there.
    """

    calls: tuple[Call, ...]
    said: Said
    left: int
    operations: int
    tries: int
    seconds: float
    shows_tokens: bool
    interrupted: bool


@dataclass(frozen=True)
class _Found:
    """Operations up to the first that deviates.

    Attributes:
        kept: the operations, and what makes their objects.
        calls: the calls that they come to.
        said: what came of the last one.
        refused: the numbers of the calls that the specification refused.
    """

    kept: tuple[Recorded, ...]
    calls: tuple[Call, ...]
    said: Said
    refused: frozenset[int]


class _Shrinker:
    """Tries one selection of calls after another."""

    def __init__(self, backend: Backend, level: Level, ref_of: Callable[[int], Ref]) -> None:
        self.tries = 0
        self.clause = ""
        self.refused: frozenset[int] = frozenset()
        self.strayed = False
        self.ended: Callable[[], bool] = lambda: False
        self._backend, self._level, self._ref_of = backend, level, ref_of

    def play(self, kept: Sequence[Recorded], looks: Callable[[int], bool] | None = None) -> _Found | None:
        """Makes the calls of some operations; returns how they deviate, None if they don't.

        Args:
            kept: the operations.
            looks: whether states are compared behind a call, by its place among them, beside the last one; None: as few
                as are needed.

        Raises:
            FileError: a call can't be made.
        """
        calls, owners = [], []
        for recorded, made in calls_in_order(kept, self._ref_of):
            calls += made
            owners += [recorded] * len(made)
        found = self.run(calls, looks)
        if found is None:
            return None
        numbers = {owner.call.number for owner in owners[: len(found.calls)]}
        return replace(found, kept=tuple(own for own in kept if own.call.number in numbers))

    def run(self, calls: Sequence[Call], looks: Callable[[int], bool] | None = None) -> _Found | None:
        """Makes calls; see `play`."""
        self.tries += 1

        def is_looked_at(place: int) -> bool:
            return place == len(calls) - 1 or (len(calls) <= _FEW if looks is None else looks(place))

        entries = [Entry(f"calls[{place}]", "", call) for place, call in enumerate(calls)]
        refused = set()
        trial = Trial(self._backend, self._level)
        for place, said in enumerate(trial.run(entries, is_looked_at)):
            if said.refused:
                refused.add(calls[place].number)
            if said.verdict == "deviates":
                return _Found((), tuple(calls[: place + 1]), said, frozenset(refused))
        self.strayed = trial.strayed
        return None

    def counts(self, run: Callable[[], _Found | None]) -> _Found | None:
        """What a try found, if it counts; nothing when the time is over."""
        return None if self.ended() else self._counted(run)

    def _counted(self, run: Callable[[], _Found | None]) -> _Found | None:
        try:
            found = run()
        except FileError:  # it names what was left out
            return None
        if found is None or found.said.clause != self.clause or not found.refused <= self.refused:
            return None
        return found

    def without(self, best: _Found, numbers: set[int]) -> _Found | None:
        """What is found without the operations of some numbers, if that counts."""
        return self.counts(lambda: self.play([own for own in best.kept if own.call.number not in numbers]))

    def simpler(self, best: _Found) -> _Found:
        """The same in fewer calls, with simpler arguments, and with small numbers for token ids."""
        if len(best.calls) > _MOST_SIMPLER:
            return best
        calls = tuple(in_order(best.calls))
        again = self.run(calls)
        if again is None or again.said.clause != self.clause:
            return best
        self.refused = again.refused
        attempts: tuple[tuple[Call, ...], _Found] = calls, again

        def simpler(case: tuple[Call, ...]) -> Iterator[tuple[Call, ...]]:
            return takewhile(lambda _: not self.ended(), _simpler(case))

        def shows(case: tuple[Call, ...]) -> _Found | None:
            return self.counts(lambda: self.run(case))

        case, found = simplest(*attempts, simpler, shows, _TRIES)
        return self._counted(lambda: self.run(_small_tokens(case))) or found


def shorten(
    path: str | Path,
    backend: Backend,
    level: Level = "exact",
    seconds: float = 60.0,
    redaction: Redaction | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Shortened:
    """Makes a log that deviates on a backend as short as it can.

    Args:
        path: the log.
        backend: what makes its calls beside the specification.
        level: how the two are compared, see `Trial`.
        seconds: how long it may take; what is found by then is returned.
        redaction: maps the log's names; None leaves them.
        progress: told how many operations are left, and how many tries were made.

    Raises:
        LogError: the log can't be read, its calls can't be made again, or nothing in it deviates.
    """
    started = time.monotonic()
    log = read_calls(path, backend, level, redaction)
    shrinker = _Shrinker(backend, level, log.ref_of)
    try:
        best = _first(shrinker, log.recorded)
    except FileError as error:
        raise LogError(f"{path}: {error}") from error
    if best is None:
        upto = (
            ", up to a look-up that finds something else, behind which nothing is decided" if shrinker.strayed else ""
        )
        raise LogError(f"{path}: nothing to shrink: {backend.name} does all of it right{upto}")
    shrinker.clause, shrinker.refused = best.said.clause, best.refused
    shrinker.ended = lambda: time.monotonic() > started + seconds
    total = _operations(best.kept)
    interrupted = False

    def keep(found: _Found) -> None:
        nonlocal best
        best = found
        progress(_operations(found.kept), shrinker.tries)

    try:
        leave_out(best, _parts, shrinker.without, keep)
        best = shrinker.simpler(best)
    except Interrupted:
        interrupted = True
    spent = time.monotonic() - started
    calls = in_order(best.calls)
    left = sum(call.target is not None and call.target not in _requests_of(calls) for call in calls)
    told = best.said, left, total, shrinker.tries, spent, log.shows_tokens, interrupted
    return Shortened(tuple(calls), *told)


def _first(shrinker: _Shrinker, recorded: Sequence[Recorded]) -> _Found | None:
    """Where the log itself first deviates: in a long one its states are compared here and there first."""
    if len(recorded) <= _FEW:
        return shrinker.play(recorded, lambda _: True)
    stride = max(len(recorded) // _WINDOWS, _FEW)
    found = shrinker.play(recorded, lambda place: place % stride == 0)
    if found is None:
        return None
    end = len(found.calls)
    return shrinker.play(found.kept, lambda place: place >= end - 1 - stride) or found


def _operations(kept: Sequence[Recorded]) -> int:
    return sum(own.operation is not None for own in kept)


def _parts(best: _Found) -> list[Part]:
    """The operations before the last; a step of several requests goes on without those that are not there."""
    made = [(own, own.operation) for own in best.kept if own.operation is not None][:-1]
    return [
        Part(
            own.call.number,
            (operation.target, operation.method),
            tuple(says.number for says in own.says if own.call.method != "allocate_slots_batch"),
        )
        for own, operation in made
    ]


# -- Calls made simpler -----------------------------------------------------------------------------------------------


def _requests_of(calls: Sequence[Call]) -> set[Ref]:
    return {Ref(call.number) for call in calls if call.method == "Request" and call.target is None}


def _simpler(calls: tuple[Call, ...]) -> Iterator[tuple[Call, ...]]:
    """Sequences that are a little simpler, and shorter to show."""
    size = _size(calls)
    return (other for other in _others(calls) if _size(other) < size)


_NUMBER = re.compile(r"\d+")


def _size(calls: Sequence[Call]) -> tuple[int, int, int]:
    """How many calls there are, how long their arguments are, and how large the numbers in them."""
    texts = [written(value) for call in calls for value in call.arguments.values()]
    texts += [name for call in calls for name in call.arguments]
    return len(calls), sum(map(len, texts)), sum(int(number) for text in texts for number in _NUMBER.findall(text))


def _others(calls: tuple[Call, ...]) -> Iterator[tuple[Call, ...]]:
    """The sequence without a call, with an id in place of what gave it, with a simpler argument."""
    bare = without_defaults(calls)
    if bare != calls:
        yield bare
    for place in reversed(range(len(calls) - 1)):
        yield mended((*calls[:place], *calls[place + 1 :]))
    rows = Rows()
    known = [rows.row_of(call) for call in calls]
    for place in reversed(range(len(calls))):
        for less in _simpler_call(calls[place], known[place]):
            yield (*calls[:place], less, *calls[place + 1 :])
    for place, call in enumerate(calls):
        if any(ref.path[-1:] == (".page_id",) for ref in refs(call)) and call.target is not None:
            yield (*calls[:place], _by_number(call), *calls[place + 1 :])


def _simpler_call(call: Call, row: Method) -> Iterator[Call]:
    """A call with simpler arguments: a long prompt is cut at its end only, as it has as many places as tokens."""
    prompt = call.arguments.get("prompt")
    if not isinstance(prompt, Prompt) or len(prompt.tokens) <= _LONG:
        yield from row.simpler(call)
        return
    for length in (0, *smaller(len(prompt.tokens))):
        yield call.given(prompt=replace(prompt, tokens=prompt.tokens[:length]))
    yield from (call.given(prompt=replace(prompt, extra_keys=less)) for less in simpler(prompt.extra_keys))


def _by_number(call: Call) -> Call:
    """The same with small numbers in place of the ids of pages that others gave."""
    numbers: dict[Ref, int] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, Ref) and value.path[-1:] == (".page_id",):
            return numbers.setdefault(value, len(numbers) + 1)
        if type(value) in (list, tuple):
            return type(value)(map(plain, value))
        return value

    return call.given(**{name: plain(value) for name, value in call.arguments.items()})


def _small_tokens(calls: Sequence[Call]) -> tuple[Call, ...]:
    """The same with small numbers for token ids, equal where they were equal."""
    numbers: dict[int, int] = {}

    def small(value: Any) -> Any:
        if isinstance(value, Prompt):
            return replace(value, tokens=tuple(numbers.setdefault(token, len(numbers)) for token in value.tokens))
        if isinstance(value, Key | Hashed):
            return replace(value, prompt=small(value.prompt))
        return [small(entry) for entry in value] if type(value) is list else value

    made = []
    for call in calls:
        given = {name: small(value) for name, value in call.arguments.items()}
        if call.method == "append" and "token_id" in given:
            given["token_id"] = numbers.setdefault(given["token_id"], len(numbers))
        made.append(replace(call, arguments=given))
    return tuple(made)
