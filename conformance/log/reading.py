"""Reads a log, which is hostile until it was read: every line is looked at before anything is made of it (SEC-3)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.json_kinds import extra_keys_of, group_of

from ..calls.documents import MOST
from ..report.redaction import Redaction
from .entries import Entry, Grown, Made, NewKeys, NewRequest, Operation, Shown, redactor
from .format import CALLS, CLASSES, HEADER, PROPERTIES, SEEDED, VERSION, LogError
from .values import decoded, numbers_of, tokens_of

__all__ = ["EntryReader", "LogReader", "is_log"]


_MOST_PAGES = 1 << 21
_MOST_ENTRIES = 1 << 26
"""The most pages, and entries of tables, that all objects of a log have together: a line of it asks for any number."""

_MOST_GROUPS = 64
_MOST_SIZE = 1 << 20
_MOST_OBJECTS = 256
_MOST_NAME = 1 << 16
_COLUMNS = 5


class EntryReader:
    """Reads entries one after another.

    Args:
        bounded: whether it refuses objects that are larger, or more, than a replay makes.

    Attributes:
        ended: whether the log's end was read.
    """

    def __init__(self, bounded: bool = True) -> None:
        self._bounded = bounded
        self.ended = False
        self._names: list[str] = []
        self._pages = self._entries = 0
        self._requests = 0
        self._operations = 0
        self._steps: dict[int, list[Any]] = {}

    def read(self, entry: Any) -> Iterator[Entry]:
        """What an entry tells.

        Raises:
            ValueError: it tells nothing that a log can tell; other errors where a part of it has another form.
        """
        if not isinstance(entry, list) or not entry or not isinstance(entry[0], str):
            raise ValueError("an entry must be a list that begins with a word")
        match entry:
            case ["make", number, name, dict(arguments)]:
                yield self._made(number, name, arguments)
            case ["request", number, request_id, tokens, keys, wanted]:
                yield self._request(number, request_id, tokens, keys, wanted)
            case ["tokens", numbers, starts, counts, text]:
                yield from self._grown(numbers_of(numbers), numbers_of(starts), numbers_of(counts), tokens_of(text))
            case ["keys", number, keys]:
                yield NewKeys(self._known(number), _extra_keys(keys))
            case ["call", number, method, dict(arguments), result]:
                yield self._call(number, method, arguments, result, None)
            case ["call", number, method, dict(arguments), None, str(error)] if error.isidentifier():
                yield self._call(number, method, arguments, None, error)
            case ["slots", number, requests, computed, known, new, ahead, list(some)]:
                yield from self._slots(number, requests, computed, known, new, ahead, some)
            case ["step", number, *columns, dict(options), result, [numbers, known]] if len(columns) == _COLUMNS:
                yield self._step(number, columns, options, result, numbers, known)
            case ["state", number, dict(fields)]:
                self._name(number)
                yield Shown(number, fields)
            case ["end", _]:
                self.ended = True
            case _:
                raise ValueError(f"no entry of a log: {entry[0]!r} of {len(entry)} parts")

    # -- Objects and requests ---------------------------------------------------------------------

    def _made(self, number: Any, name: Any, arguments: dict[str, Any]) -> Made:
        if number != len(self._names) or isinstance(number, bool) or (self._bounded and number >= _MOST_OBJECTS):
            raise ValueError(f"object {number!r}: the next one must be {len(self._names)}")
        if not isinstance(name, str) or name not in CLASSES:
            raise ValueError(f"object {number} is of no known class")
        if "of" in arguments:
            self._name(arguments["of"])
            if set(arguments) - {"of", "group"}:
                raise ValueError(f"object {number}: a part is given no arguments")
            _whole("group", arguments.get("group", 0), _MOST_GROUPS)
        else:
            needed, possible = CLASSES[name]
            seed = {"hash_seed": _seed(arguments.pop("hash_seed"))} if "hash_seed" in arguments else {}
            if seed and name not in SEEDED:
                raise ValueError(f"object {number}: a {name} has no hash_seed")
            if not set(needed) <= set(arguments) <= {*needed, *possible}:
                raise ValueError(f"object {number}: {name} is made of {', '.join(needed)}")
            arguments = {argument: _argument(argument, value, self._bounded) for argument, value in arguments.items()}
            if self._bounded:
                self._require_room(arguments)
            arguments |= seed
        self._names.append(name)
        return Made(number, name, arguments)

    def _request(self, number: Any, request_id: Any, tokens: Any, keys: Any, wanted: Any) -> NewRequest:
        if number != self._requests or isinstance(number, bool):
            raise ValueError(f"request {number!r}: the next one must be {self._requests}")
        if not isinstance(request_id, str) or len(request_id) > _MOST_NAME:
            raise ValueError(f"request {number}: its id must be a text")
        if wanted is not None:
            _whole("prompt_logprobs", wanted, 1 << 31)
        self._requests += 1
        return NewRequest(number, request_id, tokens_of(tokens), _extra_keys(keys), wanted)

    def _grown(
        self, numbers: list[int], starts: list[int], counts: list[int], tokens: NDArray[np.int32]
    ) -> Iterator[Grown]:
        begin = 0
        for number, start, count in zip(numbers, starts, counts, strict=True):
            end = begin + _whole("count", count, len(tokens) + 1)
            if end > len(tokens):
                raise ValueError("more tokens told than given")
            yield Grown(self._known(number), _whole("start", start, 1 << 31), tokens[begin:end])
            begin = end

    # -- Operations -------------------------------------------------------------------------------

    def _call(self, number: Any, method: Any, arguments: dict[str, Any], result: Any, error: str | None) -> Operation:
        name = self._name(number)
        if not isinstance(method, str) or method not in CALLS[name].keys() | PROPERTIES[name].keys():
            raise ValueError(f"{name} has no such method")
        row = CALLS[name].get(method)
        for argument, kind in () if row is None else row.arguments.items():
            if kind.log == "hits" and argument in arguments:
                arguments[argument] = _groups(arguments[argument])
        if "running" in arguments:
            arguments["running"] = numbers_of(arguments["running"])
        if row is not None and row.result.log == "groups":
            result = _groups(result)
        elif row is not None and row.result.log == "hit" and isinstance(result, list) and result:
            result[0] = _groups(result[0])
        elif row is not None and row.result.log == "batch" and error is None:
            result = _batch(result)
        self._operations += 1
        return Operation(self._operations, number, method, arguments, (), result, error)

    def _slots(
        self, number: Any, requests: Any, computed: Any, known: Any, new: Any, ahead: Any, some: list[Any]
    ) -> Iterator[Operation]:
        if self._name(number) != "CacheManager":
            raise ValueError("slots are a manager's")
        numbers = [self._known(request) for request in numbers_of(requests)]
        columns = [_column(column, len(numbers)) for column in (decoded(computed, None), new, ahead)]
        columns.append(_column(decoded(known, columns[0]), len(numbers)))
        results = {_whole("place", place, len(numbers)): _groups(result) for place, result in some}
        for place, request in enumerate(numbers):
            done, more, further, length = (column[place] for column in columns)
            self._operations += 1
            arguments: dict[str, Any] = {
                "request": {"r": request, "computed": done, "known": length, "running": True},
                "num_new_tokens": more,
            }
            if further:
                arguments["num_lookahead_tokens"] = further
            yield Operation(self._operations, number, "allocate_slots", arguments, (), results.get(place, []))

    def _step(
        self, number: Any, columns: list[Any], options: dict[str, Any], result: Any, numbers: Any, known: Any
    ) -> Operation:
        if self._name(number) != "CacheManager":
            raise ValueError("steps are a manager's")
        before = self._steps.get(number, [None] * _COLUMNS)
        read = [decoded(column, old) for column, old in zip(columns, before, strict=True)]
        self._steps[number] = read
        slots, computed, new, ahead, rows = read
        arguments: dict[str, Any] = {
            "slots": slots,
            "num_computed_tokens": computed,
            "num_new_tokens": new,
            "num_lookahead_tokens": ahead,
            "delay_cache_pages": bool(options.get("delay", False)),
        }
        if options.get("tables") is not None:
            self._name(options["tables"])
            arguments |= {"tables": {"k": options["tables"]}, "rows": rows}
        requests = [self._known(request) for request in numbers_of(numbers)]
        lengths = _column(known, len(requests))
        self._operations += 1
        told = tuple(zip(requests, lengths, strict=True))
        return Operation(self._operations, number, "allocate_slots_batch", arguments, told, _batch(result))

    # -- Inside -----------------------------------------------------------------------------------

    def _require_room(self, arguments: dict[str, Any]) -> None:
        """Refuses more pages and larger tables than a machine would make, those made before counted."""
        width = arguments.get("max_num_pages_per_req", 0)
        if "page_sizes" in arguments:
            width = sum(arguments["max_model_len"] // max(size, 1) + 1 for size in arguments["page_sizes"])
        self._pages += arguments.get("num_pages", 0) + arguments.get("num_host_pages", 0)
        self._entries += arguments.get("max_num_reqs", 0) * width + arguments.get("max_num_batched_tokens", 0)
        if self._pages > _MOST_PAGES:
            raise ValueError(f"{self._pages} pages in all: a replay makes at most {_MOST_PAGES}")
        if self._entries > _MOST_ENTRIES:
            raise ValueError(f"tables of {self._entries} entries in all: a replay makes at most {_MOST_ENTRIES}")

    def _name(self, number: Any) -> str:
        return self._names[_whole("an object's number", number, len(self._names))]

    def _known(self, number: Any) -> int:
        return _whole("a request's number", number, self._requests)


def _whole(name: str, value: Any, below: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < below:
        raise ValueError(f"{name} must be an integer in [0, {below})")
    return value


def _column(column: Any, length: int) -> list[int]:
    values = decoded(column, None)
    if not isinstance(values, list):
        return [values] * length
    if len(values) != length:
        raise ValueError(f"a column of {len(values)} numbers for {length} calls")
    return values


def _groups(pages: Any) -> Any:
    """Pages by group, their lists read; other values as they are."""
    return [numbers_of(own) if isinstance(own, str) else own for own in pages] if isinstance(pages, list) else pages


def _batch(result: Any) -> Any:
    refused, groups = result
    return [numbers_of(refused), [_groups(group) for group in groups]]


def _extra_keys(value: Any) -> Any:
    return extra_keys_of(Part("extra keys", value)) or ()


def _seed(value: Any) -> str:
    """A seed of keys, which stands in a log as hexadecimal digits."""
    if not isinstance(value, str) or len(value) > _MOST_NAME:
        raise ValueError("hash_seed must be a text of hexadecimal digits")
    return bytes.fromhex(value).hex()


def _argument(name: str, value: Any, bounded: bool) -> Any:
    if name == "kv_cache_groups":
        if not isinstance(value, list) or len(value) > _MOST_GROUPS:
            raise ValueError(f"kv_cache_groups must be a list of at most {_MOST_GROUPS}")
        groups = [group_of(Part("group", group)) for group in value]
        for group in groups:
            _whole("page_size", group.kv_cache_spec.page_size, _MOST_SIZE)
        return groups
    if bounded and name in MOST:
        return _whole(name, value, MOST[name] + 1)
    if name == "page_sizes":
        if not isinstance(value, list) or len(value) > _MOST_GROUPS:
            raise ValueError(f"page_sizes must be a list of at most {_MOST_GROUPS}")
        return [_whole("page_sizes", size, _MOST_SIZE) for size in value]
    if value is None or isinstance(value, int | float | str):
        return value
    raise ValueError(f"{name} must be a number or true or false")


# -- Lines ------------------------------------------------------------------------------------------------------------

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
