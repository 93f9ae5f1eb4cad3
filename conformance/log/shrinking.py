"""Makes a log that deviates short where nothing can make its calls again: only the recorded answers are there.

An operation is left out only where the specification still gives every other one the very result that the log has, and
the last one the very result that it was expected to have: what is left shows the same deviation (R1), but whether the
engine would do the same again is not known. With a backend `shrinking_calls` makes the calls again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import kvproof.spec

from ..backends.levels import Level
from ..backends.raising import Interrupted
from ..calls.following import strays
from ..calls.judging import Difference
from ..report.redaction import Redaction
from .entries import Entry, Grown, Made, NewRequest, Operation, Shown
from .format import LogError, row_of
from .leaving_out import Part, leave_out
from .player import Answer, Player
from .pruning import pruned
from .reading import LogReader
from .replaying import call_line, compare_answers, compare_states, recorded_answer, require_decided

__all__ = ["Shrunk", "Try", "shrink"]


# -- Trying -----------------------------------------------------------------------------------------------------------


@dataclass
class Try:
    """Operations that were played, up to the first that deviates.

    Attributes:
        entries: what was played, requests and objects included.
        played: the operations.
        answers: of each operation the specification's answer and the engine's.
        difference: how the last one deviates.
        player: who played.
    """

    entries: list[Entry]
    played: list[Operation]
    answers: list[tuple[Answer, Answer]]
    difference: Difference
    player: Player


@dataclass
class Shrunk:
    """What is left of a log.

    Attributes:
        last: the shortest try that deviates.
        operations: operations of the log up to where it deviates.
        tries: how many were made.
        seconds: how long that took.
        shows_tokens: whether the log's token ids are the engine's own.
        right_after: the number of the last operation after which the log has a whole state of the object that
            deviates, which is right; None if it has none.
        suspects: the calls of the log since then, one of which went wrong, each on one line.
        interrupted: whether somebody ended the search; then this is what was found up to there.
    """

    last: Try
    operations: int
    tries: int
    seconds: float
    shows_tokens: bool
    right_after: int | None = None
    suspects: tuple[str, ...] = ()
    interrupted: bool = False

    def entries(self) -> list[Entry]:
        """What is left, operations with the engine's answers, and the state that shows the deviation, if one does."""
        made = iter(zip(self.last.played, self.last.answers, strict=True))
        kept: list[Entry] = []
        for entry in self.last.entries:
            if isinstance(entry, Operation):
                operation, (_, observed) = next(made)
                kept.append(replace(operation, result=observed.value, error=observed.kind or None))
            elif not isinstance(entry, Shown):
                kept.append(entry)
        shown = self.last.entries[-1]
        if isinstance(shown, Shown):  # one before the last operation, too: what differs behind it is its doing
            kept = [*kept[:-1], Shown(shown.target, {}), kept[-1], shown]
        return kept


class _InvalidError(Exception):
    """A try that doesn't count."""


class _Shrinker:
    """Tries one selection of operations after another.

    Args:
        level: see `shrink`.
    """

    def __init__(self, level: Level) -> None:
        self._level = level
        self.refused: set[int] = set()
        self.right: dict[int, int] = {}
        self.wanted = Difference("", "", "")
        self.tries = 0

    def play(self, entries: Sequence[Entry], first: bool = False) -> Try | None:
        """Plays entries; returns how they deviate, None if they don't.

        Args:
            entries: what is played.
            first: whether it is the log itself, whose refusals are as they are.

        Raises:
            _InvalidError: it is not for this log to say.
        """
        self.tries += 1
        player = Player(kvproof.spec, follows=self._level == "safe")
        played: list[Operation] = []
        answers: list[tuple[Answer, Answer]] = []
        kept: list[Entry] = []
        for entry in entries:
            kept.append(entry)
            if not isinstance(entry, Operation):
                if isinstance(entry, Shown):
                    found = self._recorded_state(player, entry, played, answers)
                    if found is not None:
                        return Try(kept, played, answers, found, player)
                else:
                    player.prepare(entry)
                continue
            expected = player.call(entry)
            observed = recorded_answer(entry, expected)
            if expected.error is not None:
                if first:
                    self.refused.add(entry.number)
                elif entry.number not in self.refused:
                    raise _InvalidError
            played.append(entry)
            answers.append((expected, observed))
            thing = player.things[entry.target]
            difference = compare_answers(thing, entry, expected, observed, self._level)
            if (
                difference is not None
                and self._level == "safe"
                and strays(row_of(thing.name, entry.method), difference)
            ):
                return None
            if difference is not None:
                return Try(kept, played, answers, difference, player)
        return None

    def _recorded_state(
        self, player: Player, entry: Shown, played: list[Operation], answers: list[tuple[Answer, Answer]]
    ) -> Difference | None:
        if not played:
            return None
        ids = [request.request_id for request in player.requests]
        state = player.state(entry.target, ids, "device rows" in entry.fields)
        last = player.things[played[-1].target]
        made = row_of(last.name, played[-1].method), answers[-1][0]
        difference = compare_states(state, entry.fields, made, self._level)
        if difference is None:
            self.right[entry.target] = played[-1].number
            return None
        return difference

    def suspects(self, found: Try) -> tuple[int | None, tuple[str, ...]]:
        """See `Shrunk.right_after` and `Shrunk.suspects`; asked when the log itself was played."""
        things, requests = found.player.things, found.player.requests
        target = found.entries[-1].target if isinstance(found.entries[-1], Shown) else found.played[-1].target
        right = self.right.get(things[target].whole)
        since = [operation for operation in found.played if right is not None and operation.number > right]
        return right, tuple(call_line(operation, things, requests) for operation in since)

    def attempt(self, entries: Sequence[Entry]) -> Try | None:
        """Plays a selection; returns it cut to where it deviates by the clause, None if it does not count."""
        try:
            found = self.play(entries)
        except (_InvalidError, LogError):
            return None
        wanted = self.wanted
        if found is None or (found.difference.clause, found.difference.observed) != (wanted.clause, wanted.observed):
            return None
        return found if self._level == "safe" or found.difference.expected == wanted.expected else None


def shrink(
    path: str | Path,
    level: Level = "exact",
    seconds: float = 60.0,
    redaction: Redaction | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Shrunk:
    """Makes a log that deviates as short as its recorded answers allow.

    Args:
        path: the log.
        level: see `replay_log`. At ``safe`` the specification takes the pages that the engine took, so that more can be
            left out.
        seconds: how long it may take; what is found by then is returned.
        redaction: maps the log's names; None leaves them.
        progress: told how many operations are left, and how many tries were made.

    Raises:
        LogError: the log can't be read, or nothing in it deviates.
    """
    started = time.monotonic()
    reader = LogReader(Path(path), redaction)
    entries = list(reader.entries())
    if not any(isinstance(entry, Operation) for entry in entries):
        raise LogError(f"{path}: a log without operations, {reader.cut or 'closed'}: nothing can be left out")
    shrinker = _Shrinker(level)
    try:
        best = shrinker.play(entries, first=True)
    except LogError as error:
        raise LogError(f"{path}: {error}") from error
    if best is None:
        raise LogError(f"{path}: nothing to shrink: its recorded results are right")
    if level == "exact":
        require_decided(reader, (entry for entry in entries if isinstance(entry, Made)), len(best.played))
    shrinker.wanted = best.difference
    right_after, suspects = shrinker.suspects(best)
    last = best.entries[-1]  # states on the way are those of the whole log: only the one that deviates is kept
    best.entries = [entry for entry in best.entries if not isinstance(entry, Shown) or entry is last]
    total = len(best.played)
    deadline = started + seconds
    interrupted = False

    def without(found: Try, numbers: set[int]) -> Try | None:
        if time.monotonic() >= deadline:
            return None
        kept = [entry for entry in found.entries if not (isinstance(entry, Operation) and entry.number in numbers)]
        tried = shrinker.attempt(kept)
        if progress is not None:
            progress(len(found.played), shrinker.tries)
        return tried

    def keep(found: Try) -> None:
        nonlocal best
        best = found

    try:
        leave_out(best, _parts, without, keep)
        for smaller in (pruned, _small_tokens):
            best = shrinker.attempt(smaller(best.entries)) or best
    except Interrupted:
        interrupted = True
    seconds = time.monotonic() - started
    return Shrunk(best, total, shrinker.tries, seconds, reader.shows_tokens, right_after, suspects, interrupted)


def _parts(best: Try) -> list[Part]:
    """The operations before the last; a step of several requests goes on without those that are not there."""

    def about(operation: Operation) -> tuple[int, ...]:
        told = operation.arguments.get("request")
        return (told["r"],) if isinstance(told, dict) and "r" in told else ()

    operations = [entry for entry in best.entries if isinstance(entry, Operation)][:-1]
    return [Part(own.number, (own.target, own.method), about(own)) for own in operations]


def _small_tokens(entries: Sequence[Entry]) -> list[Entry]:
    """The same with small numbers for token ids, equal where they were equal."""
    numbers: dict[int, int] = {}

    def small(tokens: Any) -> Any:
        return np.array([numbers.setdefault(token, len(numbers)) for token in tokens.tolist()], np.int32)

    return [
        replace(entry, tokens=small(entry.tokens)) if isinstance(entry, NewRequest | Grown) else entry
        for entry in entries
    ]
