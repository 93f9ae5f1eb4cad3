"""A log replayed at level safe: the specification makes its calls by what they mean, and its pages may be others.

A page, a hit or a slot is named by the call that gave it (`as_calls`), so that each side has its own. Compared are how
many pages there are, refusals, and what of a recorded state no order of eviction changes. Where a look-up found
something else than the specification's, nothing is decided any more.
"""

import functools
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvproof.spec.clauses import CLAUSES

from ..calls.datum import Call
from ..calls.deviation import Outcome, attempt, clause_of_state
from ..calls.judging import Difference, difference
from ..calls.method import Method
from ..calls.readings import SHOWS
from ..machines.base import SPEC
from ..report.redaction import Redaction
from ..trying import script
from ..trying.trial import Built, Trial
from .as_calls import Converter, Requests
from .entries import Entry, Operation, Shown
from .format import LogError, row_of
from .player import Answer, Thing
from .reading import LogReader
from .replaying import LogResult, WrongStep, call_line, recorded_answer
from .values import read_state

__all__ = ["replay_safely"]

_LAST = 8
"""The number of calls before the wrong one that are shown."""


def replay_safely(
    path: str | Path,
    observe: Callable[[Operation], None],
    ignore: frozenset[str] = frozenset(),
    redaction: Redaction | None = None,
) -> LogResult:
    """Replays a log at level safe.

    Args:
        path: the log.
        observe: told of every operation, in order.
        ignore: clauses whose differences are passed over.
        redaction: maps the log's names; None leaves them.

    Raises:
        LogError: the log can't be read, has no operations, or holds what can't be made by what it means.
    """
    reader = LogReader(Path(path), redaction)
    judge = _Judge(ignore)
    try:
        for entry in reader.entries():
            operation = judge.take(entry)
            if operation is not None:
                observe(operation)
            if judge.wrong is not None:
                break
    except (script.FileError, LogError) as error:
        told = str(error)
        raise LogError(told if told.startswith(str(path)) else f"{path}, line {reader.line}: {told}") from error
    if not judge.operations:
        raise LogError(f"{path}: a log without operations, {reader.cut or 'closed'}: nothing was replayed")
    counts = judge.operations, judge.states, reader.cut, judge.wrong
    return LogResult(str(path), SPEC.name, *counts, level="safe", strayed_at=judge.strayed_at)


class _Judge:
    """Holds the entries of a log to the specification, at level safe.

    Args:
        ignore: clauses whose differences are passed over.

    Attributes:
        operations: how many operations were made.
        states: how many recorded states were compared.
        strayed_at: see `LogResult`.
        wrong: the first wrong step; None if there is none.
    """

    def __init__(self, ignore: frozenset[str]) -> None:
        self.operations = self.states = 0
        self.strayed_at: int | None = None
        self.wrong: WrongStep | None = None
        self._ignore = ignore
        self._converter = Converter(naming="results")
        self._requests = Requests(self._converter.ref_of)
        self._trial = _Replay()
        self._last: deque[Operation] = deque(maxlen=_LAST + 1)
        self._since: list[tuple[Method, str | None]] = []

    def take(self, entry: Entry) -> Operation | None:
        """Takes an entry; an operation is returned when it was made and judged.

        Raises:
            LogError: it can't be made again.
            FileError: it names what there is not.
        """
        if isinstance(entry, Shown):
            self._state(entry)
        made = self._converter.take(entry)
        if made is None:
            return None
        for call in self._requests.before(made):
            self._trial.make(script.Entry("a request", "", call))
        operation = made.operation
        said = self._trial.make(
            _Made(f"operation {operation.number}" if operation else "an object", "", made.call, operation)
        )
        if operation is None:
            return None
        if not _gives_pages(operation):
            self._trial.spec.results.pop(made.call.number, None)  # no later call is about it
            self._trial.backend.results.pop(made.call.number, None)
        self.operations += 1
        if self._trial.strayed and self.strayed_at is None:
            self.strayed_at = operation.number
        self._last.append(operation)
        row = row_of(self._converter.names[operation.target], operation.method)
        if not row.reads or said.refused:
            self._since.append((row, said.clause if said.refused else None))
        if said.verdict == "deviates" and said.clause not in self._ignore:
            self._name(Difference(said.clause, said.expected, said.observed), operation.target, {})
        return operation

    def _state(self, entry: Shown) -> None:
        """Compares a recorded state, where anything is decided."""
        since, self._since = self._since, []
        if self._trial.strayed or not self._last:
            return
        self.states += 1
        right = self._shown(entry.target)
        for name, (look, shows) in _LOOKS.items():
            if name not in right or name not in entry.fields or _is_digest(entry.fields[name]):
                continue
            found = difference(Outcome(look(right[name])), attempt(functools.partial(look, entry.fields[name])), "")
            clause = SHOWS[shows].clause
            if len(since) == 1:
                row, refusal = since[0]
                clause = row.charges_by_field.get(name, clause) if refusal is None else clause_of_state(refusal)
            if found is not None and clause not in self._ignore:
                told = Difference(clause, f"{shows}: {found.expected}", f"{shows}: {found.observed}")
                self._name(told, entry.target, entry.fields)
                return

    def _shown(self, number: int) -> dict[str, Any]:
        """What an object shows on the side of the specification."""
        ref, name = self._converter.objects[number], self._converter.names[number]
        views = self._trial.views(ref.of)
        return read_state(name, self._trial.spec.thing(ref), views, self._converter.ids, device=False)

    def _name(self, found: Difference, target: int, fields: Mapping[str, Any]) -> None:
        names = {number: Thing(name, None, {}, number) for number, name in self._converter.names.items()}
        *earlier, call = [call_line(operation, names, self._converter.requests) for operation in self._last]
        told = found.clause, CLAUSES[found.clause].sentence, found.expected, found.observed, tuple(earlier)
        after = self._shown(target)
        self.wrong = WrongStep(self._last[-1].number, call, *told, after=after, observed_after=dict(fields))


def _gives_pages(operation: Operation) -> bool:
    """Whether later calls may be about what an operation gave: not about what has no entries, or is one number."""
    result = operation.result
    return isinstance(result, list) and any(map(bool, result))


def _is_digest(field: Any) -> bool:
    """Whether a log has the CRC-32 of a field only."""
    return isinstance(field, dict) and field.keys() == {"crc32"}


def _held(requests: Any) -> Any:
    return {name: [len(group) for group in groups] for name, groups in requests.items() if any(groups)}


_LOOKS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "ref_cnt": (lambda counts: dict(sorted(Counter(counts.values()).items())), "ref_cnt"),
    "free pages": (len, "numbers of free pages"),
    "usage": (lambda usage: usage, "usage"),
    "pages of requests": (_held, "pages of requests"),
    "pages in a row": (lambda rows: rows, "pages in a row"),
}
"""What of the fields of a state no order of eviction changes, and what that is called among the readings."""


# -- The trial --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Made(script.Entry):
    """A call of a log, with what the log says that came of it.

    Attributes:
        operation: the operation; None for what makes an object.
    """

    operation: Operation | None = None


class _Replay(Trial):
    """A trial whose other side is a log: its results are those that were recorded, as a log has them."""

    def __init__(self) -> None:
        super().__init__(SPEC, "safe")

    def views(self, number: int | str) -> Mapping[int, Any]:
        """The pages of an object by id, of one that has a pool."""
        built = self._built.get(number)
        return {} if built is None else built.parts[0].get("pages", {})

    def _require_offered(self, call: Call, row: Method) -> None:
        """A log has only what the engine offered."""

    def _note_built(self, call: Call) -> None:
        owner = script.made_by(call)
        if owner:
            parts = self._parts(owner, self.spec.results[call.number], self.spec)
            self._built[call.number] = Built(owner, (parts, parts), ())
            self.spec.put({name: parts[name] for name in ("pages", "pool") if name in parts})

    def _observe(self, entry: script.Entry, row: Method, expected: Outcome) -> Outcome:
        if not isinstance(entry, _Made) or entry.operation is None:
            return expected
        right = None if expected.error else self._as_logged(row.result.log, expected.value, 0)
        return recorded_answer(entry.operation, Answer(right, expected.error))

    def _as_logged(self, kind: str, value: Any, place: int) -> Any:
        return value if place else super()._as_logged(kind, value, place)

    def _form(self, call: Call, row: Method, value: Any, place: int) -> Any:
        del call
        plain = self._as_logged(row.result.log, value, place)
        if row.result.log == "array":  # of ids, which are each side's own
            return [plain[0], list(np.shape(plain[1])) if len(plain) == 2 else plain[1]]
        return plain
