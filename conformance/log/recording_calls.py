"""A sequence of calls as a log: the calls are made once more, on recorded objects of the backend."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..backends.levels import Level
from ..backends.loading import Backend
from ..calls.datum import Call
from ..calls.deviation import Outcome
from ..calls.method import Method
from ..trying.script import Entry, made_by
from ..trying.trial import Trial
from .format import CLASSES, SEEDED
from .recording import record

__all__ = ["record_calls"]

_NEVER = 1 << 62
"""States are recorded where they are asked for, whole ones, and after no number of calls."""


def record_calls(path: Path, calls: Sequence[Call], backend: Backend, level: Level, *, show_tokens: bool) -> None:
    """Makes calls on a backend, and writes them as a log: with the state before the last one and the one after it.

    Args:
        path: the file.
        calls: the calls.
        backend: the backend.
        level: see `Trial`.
        show_tokens: whether token ids stand in it as they are.

    Raises:
        LogError: an object can't be recorded, or the file can't be written.
    """
    trial = _RecordedTrial(backend, level, path, show_tokens)
    entries = [Entry(f"calls[{place}]", "", call) for place, call in enumerate(calls)]
    try:
        for place, _ in enumerate(trial.run(entries, lambda _: False)):
            if place == len(calls) - 2:
                trial.note_states()
        trial.note_states()
    finally:
        trial.close()


class _RecordedTrial(Trial):
    """A trial whose objects of the backend are recorded in one log.

    Args:
        backend: the backend.
        level: see `Trial`.
        path: the log.
        show_tokens: see `record`.
    """

    def __init__(self, backend: Backend, level: Level, path: Path, show_tokens: bool) -> None:
        super().__init__(backend, level)
        self._path, self._show_tokens = path, show_tokens
        self._first: Any = None

    def _attempt(self, side: Any, call: Call, row: Method) -> Outcome:
        outcome = super()._attempt(side, call, row)
        owner = made_by(call)
        if side is self.spec or outcome.error is not None or owner not in CLASSES:
            return outcome
        names = {name for part in CLASSES[owner] for name in part}
        names |= {"hash_seed"} if self._show_tokens and owner in SEEDED else set()
        options = {name: value for name, value in call.arguments.items() if name in names}
        file = self._path if self._first is None else self._first
        made = record(outcome.value, file, show_tokens=self._show_tokens, states_every=_NEVER, options=options)
        self._first = made if self._first is None else self._first
        return replace(outcome, value=made)

    def note_states(self) -> None:
        """Records what all objects show now."""
        if self._first is not None:
            writer = self._first._kvproof_writer
            writer.note_states(writer.readers)

    def close(self) -> None:
        """Writes the log to its end."""
        if self._first is not None:
            self._first.close()
