"""Makes a log that deviates short: delta debugging on its operations, held to the specification at every try (R1).

A try leaves operations out and plays the rest. It counts only if it deviates by the same clause as before, and if the
specification refuses nothing that it did not refuse in the log: else the engine would have been made to do what it
never did. With a backend both are played; what one operation says of another's result (hits that are handed back,
pages that were taken, slots) is said anew in every try. Without one the engine's answers are known for the log only, so
that an operation is left out only where the specification still gives every other one the very result that the log has,
and the last one the very result that it was expected to have: what is left shows the same deviation, but whether the
engine would do the same again is not known.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import kvproof.spec

from ..backends.loading import Backend
from ..backends.raising import Ending, Interrupted, frames
from ..calls.judging import Difference
from ..report.redaction import Redaction
from .entries import Entry, Grown, NewRequest, Operation, Shown
from .format import LogError, row_of
from .player import Answer, Player, UnplayableError
from .pruning import pruned
from .reading import LogReader
from .replaying import call_line, compare_answers, compare_states, recorded_answer
from .values import digest

__all__ = ["Shrunk", "Try", "shrink"]


_ORIGIN = "\0origin"
"""An argument added by `prepared`: it is no parameter's name, so that no call is given it."""


def prepared(entries: Sequence[Entry]) -> list[Entry]:
    """The entries of a log, each operation with what its arguments say of earlier results.

    A batched step names the requests that its slots are of, an allocation whether its hits are those of the request's
    last look-up, a call on pages which call gave them.
    """
    player = Player([kvproof.spec])
    found: dict[int, tuple[Any, int]] = {}
    given: dict[int, tuple[int, int]] = {}
    made: list[Entry] = []
    for entry in entries:
        if not isinstance(entry, Operation):
            player.prepare(entry)
            made.append(entry)
            continue
        origin: dict[str, Any] = {}
        arguments = entry.arguments
        thing = player.sides[0].things[entry.target]
        if entry.method == "allocate_slots_batch" and isinstance(arguments.get("slots"), list):
            slots = _slots(thing.it, player)
            if all(slot in slots for slot in arguments["slots"]):
                origin["requests"] = [slots[slot] for slot in arguments["slots"]]
        if entry.method == "allocate_slots" and arguments.get("new_computed_pages") is not None:
            last = found.get(arguments["request"].get("r", -1))
            if last == (arguments["new_computed_pages"], arguments.get("num_new_computed_tokens", 0)):
                origin["hits"] = last[1]
        if thing.name == "PagePool":
            origin["pages"] = given
        (answer,) = player.call(entry)
        if entry.method == "get_computed_pages" and answer.error is None and "r" in arguments["request"]:
            found[arguments["request"]["r"]] = answer.value[0], answer.value[1]
        if entry.method == "get_new_pages" and answer.error is None:
            given = given | {page: (entry.number, place) for place, page in enumerate(answer.value)}
        made.append(replace(entry, arguments={**arguments, _ORIGIN: origin}))
    return made


def _slots(manager: Any, player: Player) -> dict[int, int]:
    """The live requests' numbers by their slots."""
    slots = {}
    for number, request in enumerate(player.requests):
        try:
            slots[manager.slot_of(request.request_id)] = number
        except ValueError:  # it is not live
            continue
    return slots


class Adapter:
    """Derives arguments from the results of the operations that are played.

    Args:
        player: who plays them; its first side is the specification.
    """

    def __init__(self, player: Player) -> None:
        self._player = player
        self._found: dict[int, tuple[Any, int]] = {}
        self._given: dict[int, list[int]] = {}

    def adapt(self, operation: Operation) -> Operation | None:
        """The operation with its arguments derived; None where nothing is left of it."""
        arguments = dict(operation.arguments)
        origin = arguments.pop(_ORIGIN, {})
        if "requests" in origin:
            return self._step(operation, arguments, origin["requests"])
        if "hits" in origin:
            pages, tokens = self._found.get(arguments["request"]["r"], (None, 0))
            arguments["num_new_tokens"] += origin["hits"] - tokens
            arguments |= {"num_new_computed_tokens": tokens, "new_computed_pages": pages}
        if origin.get("pages"):
            for name in ("pages", "ordered_pages"):
                if isinstance(arguments.get(name), list):
                    arguments[name] = self._pages(arguments[name], origin["pages"])
        return replace(operation, arguments=arguments)

    def learn(self, operation: Operation, answer: Answer) -> None:
        """Notes what came of an operation."""
        if answer.error is not None:
            return
        if operation.method == "get_computed_pages":
            self._found[operation.arguments["request"].get("r", -1)] = answer.value[0], answer.value[1]
        elif operation.method == "get_new_pages":
            self._given[operation.number] = answer.value

    def _pages(self, pages: Any, given: dict[int, tuple[int, int]]) -> Any:
        if isinstance(pages, list):
            return [self._pages(page, given) for page in pages]
        number, place = given.get(pages, (0, 0)) if isinstance(pages, int) else (0, 0)
        taken = self._given.get(number, [])
        return taken[place] if place < len(taken) else pages

    def _step(self, operation: Operation, arguments: dict[str, Any], requests: list[int]) -> Operation | None:
        """A batched step of the requests that are live."""
        slot_of = {request: slot for slot, request in _slots(self._manager(operation), self._player).items()}
        kept = [place for place, request in enumerate(requests) if request in slot_of]
        if not kept:
            return None
        for name in ("num_computed_tokens", "num_new_tokens", "num_lookahead_tokens", "rows"):
            if isinstance(arguments.get(name), list):
                arguments[name] = [arguments[name][place] for place in kept]
        arguments["slots"] = [slot_of[requests[place]] for place in kept]
        return replace(operation, arguments=arguments)

    def _manager(self, operation: Operation) -> Any:
        return self._player.sides[0].things[operation.target].it


# -- Trying -----------------------------------------------------------------------------------------------------------

_FEW = 400
"""The number of operations up to which states are compared after each one, else at the end of a try only."""

_WINDOWS = 64
"""The number of places in which a long log is looked at first, to find where it goes wrong."""


@dataclass
class Try:
    """Operations that were played, up to the first that deviates.

    Attributes:
        entries: what was played, requests and objects included.
        played: the operations as they were made, with their derived arguments.
        answers: of each operation the specification's answer and the engine's.
        difference: how the last one deviates.
        field: the field of the state that shows it; empty where the result does.
        player: who played.
    """

    entries: list[Entry]
    played: list[Operation]
    answers: list[tuple[Answer, Answer]]
    difference: Difference
    field: str
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
        right_after: without a backend, the number of the last operation after which the log has a whole state of the
            object that deviates, which is right; None if it has none.
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
        shown = self._shown()
        if shown is not None:  # one before the last operation, too: what differs behind it is its doing
            kept = [*kept[:-1], Shown(shown.target, {}), kept[-1], shown]
        return kept

    def _shown(self) -> Shown | None:
        if not self.last.field:
            return None
        if isinstance(self.last.entries[-1], Shown):
            return self.last.entries[-1]
        operation, side = self.last.played[-1], self.last.player.sides[-1]
        tables = operation.arguments.get("tables")
        of_tables = "row" in self.last.field
        number = tables["k"] if of_tables and isinstance(tables, dict) else operation.target
        state = side.state(number, self.last.player.ids, device=of_tables)
        shown = {name: digest(value) for name, value in state.items()}
        return Shown(side.things[number].whole, shown)


class _InvalidError(Exception):
    """A try that doesn't count."""


class _Shrinker:
    """Tries one selection of operations after another."""

    def __init__(self, backend: Backend | None) -> None:
        self.backend = backend
        self.refused: set[int] = set()
        self.right: dict[int, int] = {}
        self.wanted = Difference("", "", "")
        self.tries = 0

    def play(self, entries: Sequence[Entry], since: int = 0, first: bool = False) -> Try | None:
        """Plays entries; returns how they deviate, None if they don't.

        Args:
            entries: what is played.
            since: states are compared after operations from this place on.
            first: whether it is the log itself, whose refusals are as they are.

        Raises:
            _InvalidError: it is not for this log to say.
        """
        self.tries += 1
        holders = [kvproof.spec] + ([] if self.backend is None else [self.backend.holder])
        player = Player(holders)
        adapter = Adapter(player)
        played: list[Operation] = []
        answers: list[tuple[Answer, Answer]] = []
        kept: list[Entry] = []
        for entry in entries:
            kept.append(entry)
            if not isinstance(entry, Operation):
                if isinstance(entry, Shown):
                    found = self._recorded_state(player, entry, played, answers)
                    if found is not None:
                        return Try(kept, played, answers, *found, player)
                else:
                    player.prepare(entry)
                continue
            operation = entry if self.backend is None else adapter.adapt(entry)
            if operation is None:
                kept.pop()
                continue
            expected, *other = player.call(operation)
            observed = other[0] if other else recorded_answer(operation, expected)
            if expected.error is not None:
                if first:
                    self.refused.add(entry.number)
                elif entry.number not in self.refused:
                    raise _InvalidError
            played.append(operation)
            answers.append((expected, observed))
            if self.backend is not None:
                adapter.learn(entry, expected)
            thing = player.sides[0].things[operation.target]
            difference = compare_answers(thing, operation, expected, observed)
            field = ""
            if difference is None and self.backend is not None and len(played) > since:
                difference, field = self._live_states(player, operation, expected)
            if difference is not None:
                return Try(kept, played, answers, difference, field, player)
        return None

    def _live_states(self, player: Player, operation: Operation, answer: Answer) -> tuple[Difference | None, str]:
        """Compares what both sides show of the object that was called, and of the tables that it wrote to."""
        targets = [operation.target]
        if isinstance(operation.arguments.get("tables"), dict):
            targets.append(operation.arguments["tables"]["k"])
        for target in targets:
            thing = player.sides[0].things[target]
            states = []
            for side in player.sides:
                try:
                    states.append(side.state(thing.whole, player.ids, device=thing.name.endswith("Table")))
                except Ending:
                    raise
                except BaseException as error:  # a backend may raise anything
                    shown = f"raised {type(error).__name__}: {' '.join(str(error).split())}; {frames(error)[-1]}"
                    return Difference("R1", "a state that can be read", shown), "?"
            row = row_of(player.sides[0].things[operation.target].name, operation.method)
            difference = compare_states(states[0], states[1], (row, answer))
            if difference is not None:
                return difference, difference.expected.partition(" = ")[0]
        return None, ""

    def _recorded_state(
        self, player: Player, entry: Shown, played: list[Operation], answers: list[tuple[Answer, Answer]]
    ) -> tuple[Difference, str] | None:
        if self.backend is not None or not played:
            return None
        side = player.sides[0]
        state = side.state(side.things[entry.target].whole, player.ids, "device rows" in entry.fields)
        last = player.sides[0].things[played[-1].target]
        difference = compare_states(state, entry.fields, (row_of(last.name, played[-1].method), answers[-1][0]))
        if difference is None:
            self.right[entry.target] = played[-1].number
            return None
        return difference, difference.expected.partition(" = ")[0]

    def suspects(self, found: Try) -> tuple[int | None, tuple[str, ...]]:
        """See `Shrunk.right_after` and `Shrunk.suspects`; asked when the log itself was played."""
        things, requests = found.player.sides[0].things, found.player.requests
        target = found.entries[-1].target if isinstance(found.entries[-1], Shown) else found.played[-1].target
        right = self.right.get(things[target].whole)
        since = [operation for operation in found.played if right is not None and operation.number > right]
        return right, tuple(call_line(operation, things, requests) for operation in since)

    def attempt(self, entries: Sequence[Entry]) -> Try | None:
        """Plays a selection; returns it cut to where it deviates by the clause, None if it does not count."""
        count = sum(isinstance(entry, Operation) for entry in entries)
        try:
            found = self.play(entries, 0 if count <= _FEW else count - 1)
        except (_InvalidError, UnplayableError):
            return None
        if found is None or found.difference.clause != self.wanted.clause:
            return None
        return found if self.backend is not None or found.difference == self.wanted else None


def shrink(
    path: str | Path,
    backend: Backend | None = None,
    seconds: float = 60.0,
    redaction: Redaction | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Shrunk:
    """Makes a log that deviates as short as it can.

    Args:
        path: the log.
        backend: what is played beside the specification; None: the engine's recorded answers.
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
    shrinker = _Shrinker(backend)
    try:
        if backend is not None:
            entries = prepared([entry for entry in entries if not isinstance(entry, Shown)])
        best = _first(shrinker, entries)
    except UnplayableError as error:
        raise LogError(f"{path}: {error}") from error
    if best is None:
        held = "its recorded results are right" if backend is None else f"{backend.name} does all of it right"
        raise LogError(f"{path}: nothing to shrink: {held}")
    shrinker.wanted = best.difference
    right_after, suspects = shrinker.suspects(best)
    if backend is None:  # states on the way are those of the whole log: only the one that deviates is kept
        last = best.entries[-1]
        best.entries = [entry for entry in best.entries if not isinstance(entry, Shown) or entry is last]
    total = len(best.played)
    deadline = started + seconds

    def told(found: Try) -> bool:
        if progress is not None:
            progress(len(found.played), shrinker.tries)
        return time.monotonic() < deadline

    interrupted = False
    try:
        before = -1
        while before != len(best.played) and time.monotonic() < deadline:
            before = len(best.played)
            for units in (_kinds, _requests, _operations):
                for found in _reduced(shrinker, best, units):
                    best = found
                    if not told(best):
                        break
        for smaller in (pruned, _small_tokens):
            best = shrinker.attempt(smaller(best.entries)) or best
    except Interrupted:
        interrupted = True
    seconds = time.monotonic() - started
    return Shrunk(best, total, shrinker.tries, seconds, reader.shows_tokens, right_after, suspects, interrupted)


def _first(shrinker: _Shrinker, entries: list[Entry]) -> Try | None:
    """Where the log itself first deviates: in a long one its states are compared here and there first."""
    count = sum(isinstance(entry, Operation) for entry in entries)
    if shrinker.backend is None or count <= _FEW:
        return shrinker.play(entries, first=True)
    stride = max(count // _WINDOWS, _FEW)
    for end in range(stride, count + stride, stride):
        found = shrinker.play(_upto(entries, end), since=min(end, count) - 1, first=True)
        if found is not None:
            exact = shrinker.play(_upto(entries, end), since=end - stride, first=True)
            return exact or found
    return None


def _upto(entries: Sequence[Entry], end: int) -> list[Entry]:
    """The entries of the first operations."""
    kept: list[Entry] = []
    for entry in entries:
        if isinstance(entry, Operation):
            if end == 0:
                break
            end -= 1
        kept.append(entry)
    return kept


def _reduced(shrinker: _Shrinker, best: Try, units_of: Callable[[Try], list[set[int]]]) -> Iterator[Try]:
    """Delta debugging: leaves out all units, halves of them, quarters, ... and single ones, the last ones first.

    Args:
        shrinker: tries what is left.
        best: the try to begin with.
        units_of: the sets of operations of a try that are left out together.

    Yields:
        The shortest try so far, after each that was made.
    """
    units = units_of(best)
    size = len(units)
    while size:
        end = len(units)
        while end:
            start = max(end - size, 0)
            left_out = set().union(*units[start:end])
            kept = [entry for entry in best.entries if not (isinstance(entry, Operation) and entry.number in left_out)]
            found = shrinker.attempt(kept)
            if found is not None and len(found.played) < len(best.played):
                best = found
                del units[start:end]
            end = start
            yield best
        size //= 2


def _kinds(best: Try) -> list[set[int]]:
    """The calls of each method of each object: reads and tables, mostly, on which nothing else depends."""
    of: dict[tuple[int, str], set[int]] = {}
    for operation in _before_the_last(best):
        of.setdefault((operation.target, operation.method), set()).add(operation.number)
    return list(of.values())


def _requests(best: Try) -> list[set[int]]:
    """The operations about each request, in the order in which the requests come; the last operation is in none.

    A step of several requests goes on without those that are no longer there; see `Adapter`.
    """
    of: dict[int, set[int]] = {}
    for operation in _before_the_last(best):
        told = operation.arguments.get("request")
        if isinstance(told, dict) and "r" in told:
            of.setdefault(told["r"], set()).add(operation.number)
    return list(of.values())


def _operations(best: Try) -> list[set[int]]:
    """The operations before the last, each by itself."""
    return [{operation.number} for operation in _before_the_last(best)]


def _before_the_last(best: Try) -> list[Operation]:
    return [entry for entry in best.entries if isinstance(entry, Operation)][:-1]


def _small_tokens(entries: Sequence[Entry]) -> list[Entry]:
    """The same with small numbers for token ids, equal where they were equal."""
    numbers: dict[int, int] = {}

    def small(tokens: Any) -> Any:
        return np.array([numbers.setdefault(token, len(numbers)) for token in tokens.tolist()], np.int32)

    return [
        replace(entry, tokens=small(entry.tokens)) if isinstance(entry, NewRequest | Grown) else entry
        for entry in entries
    ]
