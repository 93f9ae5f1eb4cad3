"""Writes a log: operations are noted while the engine runs, and written many at once."""

import atexit
import json
import time
import warnings
from collections.abc import Callable
from operator import sub
from pathlib import Path
from typing import Any

from ..redaction import Redaction
from .columns import encoded
from .format import HEADER, LogError
from .known_requests import KnownRequests, Told
from .values import KeyNumbers, plain, result, same

__all__ = ["MOST_NOTED", "SLOTS", "LogWriter"]

SLOTS = 7
"""Entries of a plain ``allocate_slots`` among the notes."""

_OF_LINE = 64
"""Entries of a line."""

MOST_NOTED = 4096
"""So many operations are noted before they are written: what a killed process loses."""

_OPEN: set[Path] = set()
"""The logs that are being written by this process."""

_STATE_SHARE = 0.02
"""The share of time that states may take where no number of operations is given."""

_ENTRY_SECONDS = 5e-6
"""What a page or a table's entry costs in a state, before the first one was measured."""


class LogWriter:
    """A log that is being written.

    What is noted is a tuple that begins with the method that writes it. Plain ``allocate_slots`` calls, most of all
    calls, are noted in one flat list: so many tuples kept alive would have the garbage collector run all the time.

    Args:
        path: the file, which is overwritten.
        show_tokens: whether token ids stand in it as they are.
        redact: whether request ids, adapters, versions, digests and layer names are mapped, too.
        states_every: a state of every object is noted after so many operations; None: as often as 2 % of the time
            allow, and at the end; 0: never.

    Attributes:
        notes: what was noted and not yet written.
        slots: calls of ``allocate_slots`` behind all notes, `SLOTS` entries each: the manager's number, the request,
            its computed tokens, its tokens, new tokens, look-ahead, and the pages or None. Its identity never changes.
        requests: the requests that the log has defined.
        keys: numbers of keys of pages.
        redact: as given.
        states_every: as given.
        failure: why the log ended early; None while it goes on.

    Raises:
        LogError: the file can't be written.
    """

    def __init__(self, path: Path, *, show_tokens: bool, redact: bool, states_every: int | None) -> None:
        self.path = path
        hidden = Redaction()
        hidden.prepare()
        self.requests = KnownRequests(None if show_tokens else hidden, redact, hidden)
        self.redact, self.states_every = redact, states_every
        self.keys = KeyNumbers()
        self.notes: list[tuple[Any, ...]] = []
        self.slots: list[Any] = []
        self._readers: list[Callable[[], None]] = []
        self.failure: str | None = None
        self._operations = 0
        self._objects = 0
        self._since_state = 0
        self._state_seconds, self._state_at = 0.0, time.perf_counter()
        self._steps: dict[int, list[Any]] = {}
        self._nothing: dict[int, Any] = {}
        shown = {True: "shown", False: "mapped"}
        if path.resolve() in _OPEN:
            raise LogError(f"{path} is being written by another recording: close that one first")
        try:
            self._file = path.open("w", encoding="utf-8", newline="\n")
        except OSError as error:
            raise LogError(f"{path}: {error.strerror or error}") from error
        _OPEN.add(path.resolve())
        header = HEADER | {"tokens": shown[show_tokens], "names": shown[not redact]}
        self._file.write(json.dumps(header) + "\n")
        atexit.register(self.close)

    # -- Noting -----------------------------------------------------------------------------------

    def make(self, name: str, arguments: dict[str, Any]) -> int:
        """Notes that an object was made; returns its number."""
        number, self._objects = self._objects, self._objects + 1
        self.notes.append((self._line, ["make", number, name, arguments]))
        return number

    def note(self, number: int, method: str, arguments: dict[str, Any], outcome: Any, error: str | None) -> None:
        """Notes one call, and a state where one is due."""
        self.end_run()
        self.notes.append((self._call, number, method, arguments, outcome, error))
        self.tick()

    def note_plain(self, number: int, method: str, arguments: dict[str, Any], outcome: Any, *error: str) -> None:
        """Notes a call that no request was handed to."""
        self.end_run()
        self.notes.append((self._plain_call, ["call", number, method, arguments, outcome, *error]))
        self.tick()

    def tick(self) -> None:
        """Counts an operation that was noted: writes where there are many, notes states where they are due."""
        if self.states_every:
            self._since_state += 1
            if self._since_state >= self.states_every:
                self._since_state = 0
                self._note_states()
        if len(self.notes) >= MOST_NOTED:
            self.flush()

    def _note_states(self) -> None:
        for read in self._readers:
            read()

    def note_state(self, number: int, state: dict[str, Any]) -> None:
        """Notes what an object shows now."""
        self.end_run()
        self.notes.append((self._line, ["state", number, state]))

    def note_step(self, *noted: Any) -> None:
        """Notes a batched step; see `_step`."""
        self.end_run()
        self.notes.append((self._step, *noted))
        self.tick()

    def end_run(self) -> None:
        """Puts the calls of `slots` that were noted among the other notes, which come behind them."""
        if self.slots:
            self.notes.append((self._slots, self.slots[:]))
            self.slots.clear()

    def watch(self, read: Callable[[], None], entries: int) -> None:
        """Has an object's states noted from now on.

        Args:
            read: notes one.
            entries: how many pages or table entries it reads.
        """
        self._readers.append(read)
        self._state_seconds += entries * _ENTRY_SECONDS

    # -- Writing ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes what was noted. A file that can't be written ends the log with a warning, not the engine."""
        self.end_run()
        if self.failure is None:
            lines: list[Any] = []
            self._define(lines)
            for write, *noted in self.notes:
                write(lines, *noted)
            self._write(lines)
        self.notes.clear()
        self._sample()

    def close(self) -> None:
        """Writes what was noted, and the log's end. Calls on the recorded objects go on and are recorded no more."""
        if not self._file.closed:
            self.flush()
            if self.states_every is None and self.failure is None:
                self._note_states()
                self.flush()
            self._write([["end", self._operations]])
            try:
                self._file.close()
            except OSError as error:
                self._fail(error)
            _OPEN.discard(self.path.resolve())
            self.failure = self.failure or "closed"
            atexit.unregister(self.close)

    def _write(self, entries: list[Any]) -> None:
        """Writes entries, some to a line: to encode one costs little more than to encode many."""
        try:
            for start in range(0, len(entries), _OF_LINE):
                self._file.write(_encoded(entries[start : start + _OF_LINE]) + "\n")
            self._file.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if self.failure is None:
            self.failure = error.strerror or str(error)
            warnings.warn(f"{self.path}: the log ends here: {self.failure}", RuntimeWarning, stacklevel=4)

    def _sample(self) -> None:
        """Notes states where they have taken less than their share of the time."""
        now = time.perf_counter()
        if self.states_every is None and self._state_seconds <= _STATE_SHARE * (now - self._state_at):
            self._note_states()
            self._state_at = time.perf_counter()
            self._state_seconds = self._state_at - now

    def _define(self, lines: list[Any]) -> None:
        """Writes what is new about the requests of all notes."""
        told: list[Told] = []
        requests: list[Any] = []
        for note in self.notes:
            if note[0] == self._slots:
                requests += note[1][1::SLOTS]
            elif note[0] == self._call:
                told += [value for value in note[3].values() if type(value) is Told]
                requests += note[3].get("running", ())
            elif note[0] == self._step:
                requests += note[5]
        self.requests.define([*requests, *(entry.request for entry in told)], told, lines)

    def _line(self, lines: list[Any], line: list[Any]) -> None:
        lines.append(line)

    def _plain_call(self, lines: list[Any], line: list[Any]) -> None:
        lines.append(line)
        self._operations += 1

    def _call(
        self, lines: list[Any], number: int, method: str, arguments: dict[str, Any], outcome: Any, error: str | None
    ) -> None:
        settled = {
            name: self.requests.settle(value, lines) if type(value) is Told else value
            for name, value in arguments.items()
        }
        if "running" in settled:
            settled["running"] = self.requests.numbers_of(settled["running"])
        lines.append(["call", number, method, settled, outcome] + ([] if error is None else [error]))
        self._operations += 1
        if method in ("free", "free_page_hashes") and type(arguments.get("request")) is Told:
            self.requests.forget(arguments["request"].request)

    def _slots(self, lines: list[Any], noted: list[Any]) -> None:
        """Writes plain ``allocate_slots`` calls that follow each other, in columns; see `slots`."""
        numbers = noted[::SLOTS]
        if isinstance(same(numbers), list):  # of several managers
            for start in range(0, len(noted), SLOTS):
                self._slots(lines, noted[start : start + SLOTS])
            return
        number = numbers[0]
        requests, computed, known, new, ahead, pages = (noted[place::SLOTS] for place in range(1, SLOTS))
        more = same(list(map(sub, known, computed)))
        nothing = self._nothing.get(number, self)
        some = []
        for place, given in [entry for entry in enumerate(pages) if entry[1] is not nothing]:
            ids = None if given is None else given.get_page_ids()
            if ids is None or any(ids):
                some.append([place, ids])
            else:
                self._nothing[number] = given  # what gives no pages may be one object for all such calls
        lines.append(
            [
                "slots",
                number,
                self.requests.numbers_of(requests),
                computed,
                known if isinstance(more, list) else {"more": more},
                *map(same, (new, ahead)),
                some,
            ]
        )
        self._operations += len(numbers)

    def _step(
        self,
        lines: list[Any],
        number: int,
        columns: list[Any],
        options: dict[str, Any],
        batch: Any,
        requests: list[Any],
        known: list[int],
    ) -> None:
        """Writes a batched step.

        Args:
            lines: where it is written to.
            number: the manager.
            columns: slots, computed, new tokens, look-ahead, and the rows or 0.
            options: the other arguments.
            batch: what it gave.
            requests: those whose tokens it may publish.
            known: how many tokens each of them had.
        """
        before = self._steps.get(number, [None] * len(columns))
        self._steps[number] = columns
        written = [encoded(column, old) for column, old in zip(columns, before, strict=True)]
        told = [self.requests.numbers_of(requests), same(known)]
        lines.append(["step", number, *written, options, result("batch", batch, self.keys), told])
        self._operations += 1


def _encoded(entries: list[Any]) -> str:
    try:
        return _ENCODER.encode(entries)
    except (TypeError, ValueError):  # an argument with a key that is no text, or a number that is not finite
        return _ENCODER.encode(plain(entries))


def _stranger(value: Any) -> Any:
    return plain(value)


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=_stranger, allow_nan=False)
