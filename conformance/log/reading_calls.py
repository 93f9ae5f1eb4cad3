"""Reads a log as calls that can be made on a backend, and shows them without token ids (SEC-2)."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import kvproof.spec

from ..backends.levels import Level
from ..backends.loading import Backend
from ..calls.datum import LEFT_OUT, Call, Hashed, Key, Prompt, Ref, written
from ..calls.interfaces import BUILDS
from ..report.redaction import Redaction
from ..trying.script import Entry, Rows, entry_of
from .as_calls import Converter, Recorded, calls_in_order, in_order
from .format import LogError
from .reading import LogReader

__all__ = ["LogCalls", "entries_of", "read_calls", "without_defaults"]


@dataclass(frozen=True)
class LogCalls:
    """The calls of a log.

    Attributes:
        recorded: its operations, and what makes their objects, as calls.
        ref_of: how a request is named, by its number in the log.
        shows_tokens: whether the log's token ids are the engine's own.
    """

    recorded: tuple[Recorded, ...]
    ref_of: Callable[[int], Ref]
    shows_tokens: bool

    def entries(self) -> list[Entry]:
        """All calls in order, requests' own among them, each with the number of its operation."""
        places: list[str] = []
        calls: list[Call] = []
        for recorded, made in calls_in_order(self.recorded, self.ref_of):
            number = 0 if recorded.operation is None else recorded.operation.number
            places += [f"operation {number}" if number else "made first"] * len(made)
            calls += made
        shown = entries_of(in_order(calls), show_tokens=False)
        return [replace(entry, place=place) for entry, place in zip(shown, places, strict=True)]


def read_calls(path: str | Path, backend: Backend, level: Level, redaction: Redaction | None = None) -> LogCalls:
    """Reads a log as calls to be made on a backend.

    Args:
        path: the log.
        backend: the backend.
        level: the level at which it is compared: at ``safe`` no page can be named by its id.
        redaction: maps the log's names; None leaves them.

    Raises:
        LogError: the log can't be read, has no operations, or a call can't be made again.
    """
    reader = LogReader(Path(path), redaction)
    takes_interval = backend.offers("CacheManager") and backend.accepts("CacheManager", "retention_interval")
    converter = Converter(takes_interval, "results or ids" if level == "exact" else "results")
    recorded = []
    for entry in reader.entries():
        try:
            made = converter.take(entry)
        except LogError as error:
            raise LogError(f"{path}, line {reader.line}: {error}") from error
        if made is not None:
            recorded.append(made if made.operation else _taken_by(made, backend, path))
    if not any(own.operation for own in recorded):
        raise LogError(f"{path}: a log without operations, {reader.cut or 'closed'}: nothing can be made again")
    return LogCalls(tuple(recorded), converter.ref_of, reader.shows_tokens)


def _taken_by(made: Recorded, backend: Backend, path: str | Path) -> Recorded:
    """What makes an object, with the options that are not as they are by default.

    Raises:
        LogError: the backend takes one of them not, so that it can't make such an object.
    """
    (call,) = without_defaults([made.call])
    for name in BUILDS[call.method].by_name:
        if name in call.arguments and backend.offers(call.method) and not backend.accepts(call.method, name):
            told = f"with {name}={call.arguments[name]!r:.40}, which {backend.name}'s {call.method} does not take"
            raise LogError(f"{path}: the log is of a {call.method} {told}")
    return replace(made, call=call)


def entries_of(calls: Sequence[Call], show_tokens: bool) -> list[Entry]:
    """Calls with the texts that show them.

    Args:
        calls: the calls.
        show_tokens: whether token ids stand in the texts; else how many there are (SEC-2).
    """

    def shown(value: Any) -> str:
        if isinstance(value, Prompt) and not show_tokens:
            keys = f", {value.extra_keys}" if value.extra_keys else ""
            return f"Request({value.request_id!r}, {len(value.tokens)} tokens{keys})"
        if isinstance(value, Key) and not show_tokens:
            return f"<key of page {value.place} of {value.prompt.request_id!r}>"
        if isinstance(value, Hashed) and not show_tokens:
            return f"<keys of {value.prompt.request_id!r}>"
        return written(value)

    rows, entries = Rows(), []
    for number, call in enumerate(calls):
        row = rows.row_of(call)
        hidden = not show_tokens and "token_id" in call.arguments
        entries.append(
            replace(
                entry_of(f"calls[{number}]", call.given(token_id=Ref("token")) if hidden else call, row, shown),
                call=call,
            )
        )
    return entries


def without_defaults(calls: Sequence[Call]) -> tuple[Call, ...]:
    """The same calls without arguments that are as they are by default."""
    rows, made = Rows(), []
    for call in calls:
        rows.row_of(call)
        owner = call.method if call.target is None else rows.table_of(call.target).owner
        called = getattr(kvproof.spec, owner, None)
        called = called if call.target is None else getattr(called, call.method, None)
        known = inspect.signature(called).parameters if callable(called) else {}
        left_out = {
            name: LEFT_OUT
            for name, value in call.arguments.items()
            if name in known and type(value) is type(known[name].default) and value == known[name].default
        }
        made.append(call.given(**left_out))
    return tuple(made)
