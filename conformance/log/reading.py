"""Reads a log, which is hostile until it was read: every line is looked at before anything is made of it (SEC-3)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..report.redaction import Redaction
from .entries import Entry
from .entry_reading import EntryReader
from .format import HEADER, VERSION, LogError
from .redacting import redactor

__all__ = ["LogReader", "is_log"]

_MOST_LINE = 1 << 26
"""Bytes of a line."""

_LARGEST = 2**63
_SHOWN = 60


def is_log(path: Path) -> bool:
    """Whether a file begins as a log does; False where it can't be read."""
    try:
        with path.open("rb") as lines:
            header = json.loads(lines.readline(1000))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(header, dict) and header.get("kvproof") == HEADER["kvproof"]


@dataclass
class LogReader:
    """A log, read from its first line to its last.

    Attributes:
        path: the file.
        redaction: maps the names in what is read; None leaves them.
        shows_tokens: whether its token ids are the engine's own; known when reading has begun.
        cut: why it ends before its end: it was cut off in the middle of a line, or never closed; None if it did not.
        line: the number of the line that was read last.
    """

    path: Path
    redaction: Redaction | None = None
    shows_tokens: bool = False
    cut: str | None = None
    line: int = 0
    _entries: EntryReader = field(default_factory=EntryReader)

    def entries(self) -> Iterator[Entry]:
        """What stands in it, in order.

        Raises:
            LogError: the file can't be read, is no log, is one of a newer version, or a line makes no sense.
        """
        try:
            with self.path.open("rb") as lines:
                self._header(self._next(lines))
                while True:
                    line = self._next(lines)
                    if line is None:
                        break
                    if not line.endswith(b"\n"):
                        self.cut = f"cut off in line {self.line}"
                        yield from self._line(self._whole_entries(line))
                        return
                    yield from self._line(self._parsed(line))
        except OSError as error:
            raise LogError(f"{self.path}: {error.strerror or error}") from error
        if not self._entries.ended:
            self.cut = f"not closed: it ends after line {self.line}"

    def _next(self, lines: IO[bytes]) -> bytes | None:
        line = lines.readline(_MOST_LINE + 1)
        if len(line) > _MOST_LINE:
            raise self._wrong(f"the line is longer than {_MOST_LINE} bytes")
        if line:
            self.line += 1
        return line or None

    def _header(self, line: bytes | None) -> None:
        header = None if line is None else self._parsed(line)
        if not isinstance(header, dict) or header.get("kvproof") != HEADER["kvproof"]:
            raise LogError(f"{self.path}: no log: its first line is not a log's header")
        version = header.get("version")
        if isinstance(version, bool) or not isinstance(version, int):
            raise self._wrong("a header without a version")
        if version != VERSION:
            raise LogError(f"{self.path}: a log, version {version}: this version reads version {VERSION} only")
        self.shows_tokens = header.get("tokens") == "shown"

    def _line(self, given: Any) -> Iterator[Entry]:
        if not isinstance(given, list) or self._entries.ended:
            raise self._wrong("no entries of a log" if not self._entries.ended else "a line behind the log's end")
        for entry in given:
            try:
                read = list(self._entries.read(entry))
            except (ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
                raise self._wrong(_one_line(error)) from error
            yield from read if self.redaction is None else map(redactor(self.redaction), read)

    def _whole_entries(self, line: bytes) -> list[Any]:
        """The entries of a line that was cut off which are whole."""
        text, place = line.decode("ascii", "replace"), 1
        entries: list[Any] = []
        while True:
            try:
                entry, end = _DECODER.raw_decode(text, place)
            except (ValueError, RecursionError):
                return entries
            entries.append(entry)
            place = end + 1

    def _parsed(self, line: bytes) -> Any:
        try:
            return json.loads(line, parse_constant=_no_constant, parse_int=_integer)
        except ValueError as error:
            raise self._wrong(f"no valid JSON: {_one_line(error)}") from error
        except RecursionError as error:
            raise self._wrong("no valid JSON: nested too deeply") from error

    def _wrong(self, reason: str) -> LogError:
        return LogError(f"{self.path}, line {self.line}: {reason}")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _integer(digits: str) -> int:
    number = int(digits) if len(digits) <= 20 else _LARGEST
    if not -_LARGEST < number < _LARGEST:
        raise ValueError(f"a number of {len(digits)} digits")
    return number


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_int=_integer)


def _one_line(error: Exception) -> str:
    """What is wrong, as one line that no terminal takes for a command."""
    text = " ".join(str(error).split()) or type(error).__name__
    shown = json.dumps(text)[1:-1].replace('\\"', '"')
    return shown if len(shown) <= 3 * _SHOWN else f"{shown[: 3 * _SHOWN]}..."
