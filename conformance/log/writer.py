"""Writes a log: operations are noted as text while the engine runs, and written many at once."""

import atexit
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..report.redaction import Redaction
from .call_texts import encode
from .format import HEADER, LogError
from .known_requests import KnownRequests
from .slot_runs import SLOTS, SlotRuns
from .states import digest
from .token_texts import TokenTexts
from .values import KeyNumbers

__all__ = ["MOST_NOTED", "LogFile", "LogWriter"]

MOST_NOTED = 4096
"""The number of operations noted before they are written: the most that a killed process loses."""

_MOST_TEXT = 1 << 22
"""So many characters of requests and their tokens are kept before they are written."""

_OPEN: set[Path] = set()
"""The logs that are being written by this process."""

_STATE_SHARE = 0.02
"""The share of time that states may take where no number of operations is given."""

_ENTRY_SECONDS = 5e-6
"""What a page or a table's entry costs in a state, before the first one was measured."""


class LogWriter:
    """Notes the entries of a log, and hands them on in their order.

    What is noted is the text that will be written, token ids mapped. Only plain ``allocate_slots`` calls, most of all
    calls, are noted as they are, in one flat list that costs the garbage collector nothing, and become text together
    when they are written.

    Args:
        show_tokens: whether token ids stand in the entries as they are.
        redact: whether request ids, adapters, versions, digests and layer names are mapped, too.
        states_every: a state of every object is noted after so many operations; None: as often as 2 % of the time
            allow, and at the end; 0: never.

    Attributes:
        notes: entries that were noted and not yet written; numbers say how many entries of `slots` come before the
            next one.
        slots: plain calls of ``allocate_slots`` that were noted and not yet written, as `SlotRuns` has them. Its
            identity never changes.
        most_noted: the number of operations noted before they are written.
        requests: the requests that the log has defined.
        keys: numbers of keys of pages.
        readers: what reads the state of an object, by the object's number.
        redact: as given.
        states_every: as given.
        failure: why the log ended early; None while it goes on.
    """

    most_noted = MOST_NOTED

    def __init__(self, *, show_tokens: bool, redact: bool, states_every: int | None) -> None:
        self.requests = KnownRequests(TokenTexts(shown=show_tokens), redact, Redaction(), self.flush)
        self.redact, self.states_every = redact, states_every
        self.keys = KeyNumbers()
        self.notes: list[str | int] = []
        self.slots: list[Any] = []
        self.readers: dict[int, Callable[[], dict[str, Any]]] = {}
        self.failure: str | None = None
        self._operations = 0
        self._objects = 0
        self._since_state = 0
        self._state_seconds, self._state_at = 0.0, time.perf_counter()
        self._ended, self._runs = 0, SlotRuns()

    # -- Noting -----------------------------------------------------------------------------------

    def make(self, name: str, arguments: dict[str, Any]) -> int:
        """Notes that an object was made; returns its number."""
        number, self._objects = self._objects, self._objects + 1
        self.requests.lines.append(encode(["make", number, name, arguments]))
        return number

    def note(self, entry: str) -> None:
        """Notes one operation, as it will be written, and a state where one is due."""
        if len(self.slots) != self._ended:
            self._end_run()
        self.notes.append(entry)
        self._operations += 1
        if self.states_every:
            self._since_state += 1
            if self._since_state >= self.states_every:
                self._since_state = 0
                self.note_states()
        if len(self.notes) + self._ended // SLOTS >= self.most_noted or self.requests.waiting > _MOST_TEXT:
            self.flush()

    def note_states(self) -> None:
        """Notes what the objects show now."""
        self._end_run()
        self.notes += [encode(["state", number, self.shown(read())]) for number, read in self.readers.items()]

    def shown(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state as it is noted: long fields by their CRC-32."""
        return {name: digest(value) for name, value in state.items()}

    def passes_over(self, method: str) -> bool:
        """Whether a call of a method is not to be noted."""
        del method
        return False

    def _end_run(self) -> None:
        """Notes that the calls of `slots` up to here come before whatever is noted next."""
        if len(self.slots) != self._ended:
            self._ended = len(self.slots)
            self.notes.append(self._ended)

    def watch(self, number: int, read: Callable[[], dict[str, Any]], entries: int) -> None:
        """Has an object's states noted from now on.

        Args:
            number: the object's.
            read: reads one.
            entries: how many pages or table entries it reads.
        """
        self.readers[number] = read
        self._state_seconds += entries * _ENTRY_SECONDS

    # -- Writing ----------------------------------------------------------------------------------

    def flush(self) -> None:
        """Writes what was noted."""
        self._write_noted()
        self._sample()

    def _write_noted(self) -> None:
        self._end_run()
        entries = self.requests.take_lines() + self._taken()
        if self.failure is None:
            self._write(entries)

    def _taken(self) -> list[str]:
        """What was noted, which is noted no more."""
        noted = self.slots[:]
        runs = self._runs.lines(noted, [note for note in self.notes if isinstance(note, int)])
        texts = []
        for note in self.notes:
            if isinstance(note, str):
                texts.append(note)
            else:
                texts += next(runs)
        self._operations += len(noted) // SLOTS
        self.slots.clear()
        self.notes.clear()
        self._ended = 0
        return texts

    def close(self) -> None:
        """Writes what was noted. Calls on the recorded objects go on and are recorded no more."""
        if self.states_every is None and self.failure is None:
            self.note_states()
        self._write_noted()
        self.failure = self.failure or "closed"
        self.requests.forget_all()

    def _write(self, entries: list[str]) -> None:
        """Hands entries on."""
        raise NotImplementedError

    def _sample(self) -> None:
        """Notes states where they have taken less than their share of the time."""
        now = time.perf_counter()
        if self.states_every is None and self._state_seconds <= _STATE_SHARE * (now - self._state_at):
            self.note_states()
            self._state_at = time.perf_counter()
            self._state_seconds = self._state_at - now


class LogFile(LogWriter):
    """A log that is written to a file. One that can't be written ends the log with a warning, not the engine.

    Args:
        path: the file, which is overwritten.
        show_tokens: see `LogWriter`.
        redact: see `LogWriter`.
        states_every: see `LogWriter`.

    Raises:
        LogError: the file can't be written.
    """

    def __init__(self, path: Path, *, show_tokens: bool, redact: bool, states_every: int | None) -> None:
        super().__init__(show_tokens=show_tokens, redact=redact, states_every=states_every)
        self.path = path
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
        self._write([])  # so that the log of a process that is killed early is seen to be one
        atexit.register(self.close)

    def close(self) -> None:
        """Writes what was noted, and the log's end. Calls on the recorded objects go on and are recorded no more."""
        if not self._file.closed:
            super().close()
            self._write([f'["end",{self._operations}]'])
            try:
                self._file.close()
            except OSError as error:
                self._fail(error)
            _OPEN.discard(self.path.resolve())
            atexit.unregister(self.close)

    def _write(self, entries: list[str]) -> None:
        """Writes entries, each on a line."""
        try:
            if entries:
                self._file.write("[" + "]\n[".join(entries) + "]\n")
            self._file.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if self.failure in (None, "closed"):
            self.failure = error.strerror or str(error)
            warnings.warn(f"{self.path}: the log ends here: {self.failure}", RuntimeWarning, stacklevel=4)
