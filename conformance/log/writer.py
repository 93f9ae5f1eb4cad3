"""Writes a log: requests as they grow, operations noted as text while the engine runs, and written many at once."""

import atexit
import json
import time
import warnings
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from operator import sub
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.json_kinds import extra_keys_to_json

from ..calls.logged import KeyNumbers
from ..report.redaction import Redaction
from .format import HEADER, LogError
from .values import TokenTexts, digest, encode, groups_text, listed, plain_text, text_of

__all__ = ["MOST_NOTED", "NO_PAGES", "SLOTS", "KnownRequests", "LogFile", "LogWriter"]


_MOST_GONE = 256
"""The number of freed requests that are remembered, should the same object come back."""

_MOST_TOLD = 1 << 20
"""The number of tokens of running requests written in a line, to which one request's may be added."""


@dataclass(slots=True, eq=False)
class Known:
    """A request that the log has defined.

    Attributes:
        number: its number.
        request: the object, kept so that nothing else has its identity.
        tokens: those that the log has, copies of `i32` arrays, one behind another.
        length: how many they are.
        extra_keys: as the log has them.
        is_gone: whether its end was told of, and nothing since.
    """

    number: int
    request: Any
    tokens: list[NDArray[np.int32]]
    length: int
    extra_keys: tuple[Any, ...]
    is_gone: bool = False


def is_running(request: Any) -> bool:
    """Whether a request is running: its status is a member of that name, of whatever enumeration (MAN-10)."""
    return getattr(getattr(request, "status", None), "name", None) == "RUNNING"


def _tokens(request: Any, start: int = 0) -> NDArray[np.int32]:
    """A copy of a request's tokens from one of them on, `i32[n]`."""
    return np.array(request.all_token_ids[start:], np.int32)  # a slice, as sequences may be slow to read


class KnownRequests:
    """Numbers requests, and writes what a log says of them.

    Args:
        tokens: spells token ids.
        redact_names: whether ids, adapters, versions and digests are mapped, too.
        salts: maps names and the fingerprints of salts.
        write: writes `lines` and all calls that were noted.

    Attributes:
        lines: definitions, in order, that must stand before the calls that were noted since the log was written.
        waiting: how many characters they have.
        known: what the log has of requests, by their identities.
        by_id: the same of those that may hold pages, by the requests' ids, the last one of each.
    """

    def __init__(self, tokens: TokenTexts, redact_names: bool, salts: Redaction, write: Callable[[], None]) -> None:
        self._spelling, self._names, self._salts, self._write = tokens, redact_names, salts, write
        self.known: dict[int, Known] = {}
        self._gone: OrderedDict[int, None] = OrderedDict()
        self._number = 0
        self._status: Any = self  # the status that was seen last, and whether it is running
        self._runs = False
        self.lines: list[str] = []
        self.waiting = 0
        self.by_id: dict[str, Known] = {}

    def text(self, text: str) -> str:
        """A request's id as the log has it."""
        return self._salts.text(text) if self._names else text

    # -- As calls are made ------------------------------------------------------------------------

    def told(self, request: Any, *, whole: bool = False, ends: bool = False) -> str:
        """What a request says now, as it stands in a call.

        Args:
            request: what a call was given; ``{"type": name}`` stands for other objects than requests.
            whole: whether the call reads all of its tokens, not just those that are new.
            ends: whether `forget` comes next.
        """
        known = self.known.get(id(request))
        try:
            if known is None:
                known = self._enter(request)
            elif whole:
                self._compare(known)
            length = int(request.num_tokens)
        except (AttributeError, TypeError, ValueError, OverflowError):
            return encode({"type": type(request).__name__})
        if known.is_gone and not ends:
            self._come_back(known)
        computed = plain_text(getattr(request, "num_computed_tokens", None))
        status = getattr(request, "status", None)
        if status is not self._status:
            self._status, self._runs = status if isinstance(status, Enum) else self, is_running(request)
        running = "true" if self._runs else "false"
        return f'{{"r":{known.number},"computed":{computed},"known":{length},"running":{running}}}'

    def numbers_of(self, requests: list[Any]) -> list[int]:
        """The numbers of requests."""
        keys, known = list(map(id, requests)), self.known
        if self._gone:
            for key in self._gone.keys() & set(keys):
                self._come_back(known[key])
        try:
            return [known[key].number for key in keys]
        except KeyError:  # some are new
            return [(known.get(id(request)) or self._enter(request)).number for request in requests]

    def running(self) -> list[int]:
        """The numbers of the requests that say that they are running, of those that may hold pages (MAN-10)."""
        held = self.by_id.values()
        try:
            statuses = [known.request.status for known in held]
        except AttributeError:
            return [known.number for known in held if is_running(known.request)]
        kinds = dict(zip(map(id, statuses), held, strict=True))  # few: whether one is that of running requests costs
        runs = {kind: is_running(known.request) for kind, known in kinds.items()}
        return [known.number for known, status in zip(held, statuses, strict=True) if runs[id(status)]]

    def forget(self, request: Any, *, freed: bool) -> None:
        """Notes that a request's end was told of; a few of those are kept, should the same object come back.

        Args:
            request: the request.
            freed: whether it was freed, or else only its pages' keys.
        """
        known = self.known.get(id(request))
        if known is None:
            return
        self._grow([known])
        known.is_gone = True
        if freed and self.by_id.get(request.request_id) is known:
            del self.by_id[request.request_id]
        self._gone[id(request)] = None
        if len(self._gone) > _MOST_GONE:
            oldest = self.known.pop(self._gone.popitem(last=False)[0])
            request_id = oldest.request.request_id
            if self.by_id.get(request_id) is oldest:
                del self.by_id[request_id]

    def forget_all(self) -> None:
        """Lets go of all requests: nothing more will be told."""
        self.known.clear()
        self._gone.clear()
        self.by_id.clear()

    # -- As they are written ----------------------------------------------------------------------

    def take_lines(self) -> list[str]:
        """What is new about requests since this was asked last, tokens that came since then included."""
        self._grow(self.known.values())
        lines, self.lines, self.waiting = self.lines, [], 0
        return lines

    # -- Inside -----------------------------------------------------------------------------------

    def _enter(self, request: Any) -> Known:
        """Defines a request.

        Raises:
            AttributeError, TypeError, ValueError, OverflowError: it is none.
        """
        request_id, tokens = request.request_id, _tokens(request)
        name = text_of(self.text(request_id))
        keys = tuple(getattr(request, "extra_keys", None) or ())
        known = Known(self._number, request, [tokens], len(tokens), keys)
        wanted = getattr(getattr(request, "sampling_params", None), "prompt_logprobs", None)
        rest = f"{self._extra_keys(keys)},{int(wanted) if isinstance(wanted, int) else 'null'}"
        self._add(f'["request",{known.number},{name},{self._spelling.text(tokens)},{rest}]')
        self.known[id(request)] = known
        self.by_id[request_id] = known
        self._number += 1
        return known

    def _come_back(self, known: Known) -> None:
        known.is_gone = False
        self.by_id[known.request.request_id] = known
        del self._gone[id(known.request)]

    def _compare(self, known: Known) -> None:
        """Writes a request's tokens again where they are not those that the log has."""
        if len(known.tokens) > 1:
            known.tokens = [np.concatenate(known.tokens)]
        own = known.tokens[0].tobytes()
        now = np.ascontiguousarray(known.request.all_token_ids[:], np.int32).tobytes()
        if own == now or own[: len(now)] == now[: len(own)]:
            return
        self._write()  # what was noted so far is about the tokens that were
        told, tokens = np.concatenate(known.tokens), _tokens(known.request)
        length = min(len(told), len(tokens))
        start = int((told[:length] != tokens[:length]).argmax())
        known.tokens, known.length = [tokens], len(tokens)
        self._tell([known.number], [start], [tokens[start:]])

    def _grow(self, all_known: Iterable[Known]) -> None:
        """Tells tokens that came since a request's were told, and extra keys that changed."""
        numbers: list[int] = []
        starts: list[int] = []
        grown: list[NDArray[np.int32]] = []
        count = 0
        for known in all_known:
            request = known.request
            start = known.length
            if request.num_tokens > start:
                new = _tokens(request, start)
                numbers.append(known.number)
                starts.append(start)
                grown.append(new)
                known.tokens.append(new)
                known.length += len(new)
                count += len(new)
                if count > _MOST_TOLD:
                    self._tell(numbers, starts, grown)
                    numbers, starts, grown, count = [], [], [], 0
            keys = getattr(request, "extra_keys", None) or ()
            if keys is not known.extra_keys and tuple(keys) != known.extra_keys:
                known.extra_keys = tuple(keys)
                self._add(f'["keys",{known.number},{self._extra_keys(known.extra_keys)}]')
        if numbers:
            self._tell(numbers, starts, grown)

    def _tell(self, numbers: list[int], starts: list[int], tokens: list[NDArray[np.int32]]) -> None:
        """Tells tokens of requests, each from one of theirs on."""
        counts = list(map(len, tokens))
        spelt = self._spelling.text(np.concatenate(tokens) if len(tokens) > 1 else tokens[0])
        self._add(f'["tokens",{listed(numbers)},{listed(starts)},{listed(counts)},{spelt}]')

    def _add(self, line: str) -> None:
        self.lines.append(line)
        self.waiting += len(line)

    def _extra_keys(self, keys: tuple[Any, ...]) -> str:
        if not keys:
            return "[]"
        try:
            entries = extra_keys_to_json(keys) or []
        except TypeError:  # they are of another package
            return encode([{"kind": "LoraAdapter", "name": self._salts.text(repr(key))} for key in keys])
        for entry in entries:
            for field in ("fingerprint",) if not self._names else ("fingerprint", "content"):
                if field in entry:
                    entry[field] = self._salts.digest(bytes.fromhex(entry[field])).hex()
            for field in ("name", "version") if self._names else ():
                if field in entry:
                    entry[field] = self._salts.text(entry[field])
        return encode(entries)


# -- Plain allocate_slots calls: in columns, a line for those between two other calls ---------------------------------

SLOTS = 7
"""Entries of a plain ``allocate_slots`` among the notes."""

NO_PAGES = ""
"""What stands among the notes for pages of which none is new, where they were read at once."""


class SlotRuns:
    """Writes calls that were noted, each with `SLOTS` entries.

    These are the manager's number, what the log knows of the request, its computed tokens, its tokens, new tokens,
    look-ahead, and None, pages that stay as they are, or the text of their ids, `NO_PAGES` for none.
    """

    def __init__(self) -> None:
        self._nothing: dict[int, Any] = {}

    def lines(self, noted: list[Any], ends: list[int]) -> Iterator[list[str]]:
        """The lines of each run of calls.

        Args:
            noted: the entries of all calls.
            ends: where the entries of each run end.
        """
        numbers, requests, computed, known, new, ahead, pages = (noted[place::SLOTS] for place in range(SLOTS))
        more = list(map(sub, known, computed))
        told = _packed([request.number for request in requests])
        columns = told, _packed(computed), _packed(known), more, new, ahead, pages
        start = 0
        for end in [place // SLOTS for place in ends]:
            lines = []
            for begin, stop in _of_one(numbers, start, end):
                lines.append(self._line(numbers[begin], *(column[begin:stop] for column in columns)))
            yield lines
            start = end

    def _line(
        self, number: int, told: Any, computed: Any, known: Any, more: Any, new: Any, ahead: Any, pages: Any
    ) -> str:
        nothing = self._nothing.get(number, NO_PAGES)
        some = []
        for place, given in [entry for entry in enumerate(pages) if entry[1] is not nothing]:
            if type(given) is str:
                some.append(f"[{place},{given}]")
                continue
            ids = None if given is None else given.get_page_ids()
            if ids is None or any(ids):
                some.append(f"[{place},{groups_text(ids)}]")
            else:
                self._nothing[number] = given  # what gives no pages may be one object for all such calls
        lengths = f'{{"more":{more[0]}}}' if more.count(more[0]) == len(more) else listed(known)
        columns = f"{listed(told)},{listed(computed)},{lengths},{_column(new)},{_column(ahead)}"
        return f'["slots",{number},{columns},[{",".join(some)}]]'


def _of_one(numbers: list[int], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a run that are of one manager each."""
    while start < end:
        own = numbers[start:end]
        stop = end
        if own.count(own[0]) != len(own):
            stop = start + next(place for place, number in enumerate(own) if number != own[0])
        yield start, stop
        start = stop


def _packed(numbers: list[Any]) -> Any:
    try:
        return array("i", numbers)
    except (OverflowError, TypeError):  # `listed` writes other numbers than int32
        return numbers


def _column(numbers: list[int]) -> str:
    """A list of numbers, or the one number that stands in all of its places."""
    first = numbers[0]
    return str(first) if type(first) is int and numbers.count(first) == len(numbers) else listed(numbers)


# -- The log ----------------------------------------------------------------------------------------------------------

MOST_NOTED = 4096
"""The number of operations noted before they are written: the most that a killed process loses."""

_MOST_TEXT = 1 << 22
"""The number of characters of requests and their tokens that are kept before they are written."""

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
        if self._is_state_due():
            self.note_states(self.readers)
        if len(self.notes) + self._ended // SLOTS >= self.most_noted or self.requests.waiting > _MOST_TEXT:
            self.flush()

    def _is_state_due(self) -> bool:
        """Counts a call, and says whether states are noted behind it."""
        self._since_state += 1
        due = self._since_state == self.states_every
        self._since_state *= not due
        return due

    def note_states(self, numbers: Iterable[int]) -> None:
        """Notes what objects show now, by their numbers; long fields by their CRC-32."""
        self._end_run()
        for number in numbers:
            state = {name: digest(value) for name, value in self.readers[number]().items()}
            self.notes.append(encode(["state", number, state]))

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
            self.note_states(self.readers)
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
            self.note_states(self.readers)
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
