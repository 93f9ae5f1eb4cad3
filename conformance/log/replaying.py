"""A log replayed: every recorded result is held to the specification's, and the first wrong step is named."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvproof.spec.clauses import CLAUSES

from ..backends.loading import Backend, load_backend
from ..report.redaction import Redaction
from .call_lines import call_line, request_line
from .calls import LoggedCall
from .comparing import Difference, call_of, compare_answers, compare_states, recorded_answer
from .entries import Entry, NewRequest, Operation, Shown
from .format import LogError
from .player import Player, UnplayableError
from .reading import LogReader
from .sides import Answer

__all__ = ["LogResult", "Replayed", "Run", "WrongStep", "replay_log"]

_LAST = 8
"""So many calls before the wrong one are shown."""


@dataclass(frozen=True)
class WrongStep:
    """The first operation of a log that deviates.

    Attributes:
        number: the operation's number; of a wrong state the number of the last one before it was shown.
        call: the call on one line.
        clause: the label of the clause that it breaks.
        sentence: what the clause says.
        expected: what the specification says.
        observed: what the log says.
        earlier: the calls before it, the last ones.
        before: what the object showed before it, by field: both sides agreed up to there.
        after: what the specification shows after it.
        observed_after: what the log shows after it, where a state was recorded.
    """

    number: int
    call: str
    clause: str
    sentence: str
    expected: str
    observed: str
    earlier: tuple[str, ...] = ()
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)
    observed_after: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LogResult:
    """What came of a replay.

    Attributes:
        path: the log.
        backend: what it was held to.
        operations: how many operations were replayed, the wrong one included.
        states: how many recorded states were compared.
        cut: why the log ends before its end; None if it does not.
        wrong: the first wrong step; None if there is none.
    """

    path: str
    backend: str
    operations: int
    states: int
    cut: str | None
    wrong: WrongStep | None

    def to_json(self) -> dict[str, Any]:
        """The result, ready for JSON."""
        return {"kvproof": "log replay", "version": 1, **asdict(self)}


@dataclass(frozen=True)
class Replayed:
    """An operation that was replayed.

    Attributes:
        operation: the operation.
        player: who made the call; its first side is what the log is held to.
        answer: what that side answered.
        difference: what the log has otherwise; None if nothing.
        line: the call on one line.
    """

    operation: Operation
    player: Player
    answer: Answer
    difference: Difference | None
    line: Callable[[], str]


class Judge:
    """Holds what stands in a log to an implementation, entry by entry.

    Args:
        holder: what holds the implementation's public names.
        ignored: clauses whose differences are passed over.
        show_tokens: whether token ids are shown.

    Attributes:
        player: makes the calls.
        operations: how many were made.
        states: how many recorded states were compared.
        last: the operation that was made last; None before the first.
        wrong: how that one deviates, and the state that shows it if that is how it was seen.
        agreed: what each object showed when its state was last compared, by number.
    """

    def __init__(self, holder: Any, ignored: frozenset[str] = frozenset(), show_tokens: bool = False) -> None:
        self.player = Player([holder])
        self.operations = self.states = 0
        self.last: Operation | None = None
        self.wrong: tuple[Difference, Shown | None] | None = None
        self.agreed: dict[int, dict[str, Any]] = {}
        self._ignored, self._show_tokens = ignored, show_tokens
        self._since: dict[int, list[tuple[LoggedCall, Answer]]] = {}
        self._lines: list[Callable[[], str]] = []
        self._new: list[Callable[[], str]] = []

    def take(self, entry: Entry) -> Replayed | None:
        """Plays an entry; an operation is returned with what came of it.

        Raises:
            UnplayableError: it can't be played.
        """
        if isinstance(entry, Operation):
            return self._operation(entry)
        if isinstance(entry, Shown):
            self._state(entry)
            return None
        self.player.prepare(entry)
        if isinstance(entry, NewRequest):
            tokens = entry.tokens.tolist() if self._show_tokens else None
            request = self.player.requests[-1]
            self._new.append(lambda: request_line(request, tokens))
        return None

    def _operation(self, operation: Operation) -> Replayed:
        (answer,) = self.player.call(operation)
        if answer.error is not None and answer.error not in ("TypeError", "ValueError", "IndexError"):
            where = f", raised at {answer.raised[-1]}" if answer.raised else ""
            raise UnplayableError(f"operation {operation.number} can't be made: {answer.error}{where}")
        self.operations += 1
        things = self.player.sides[0].things
        thing = things[operation.target]
        found = compare_answers(thing, operation, answer, recorded_answer(operation, answer))
        found = None if found is not None and found.clause in self._ignored else found
        self._since.setdefault(thing.whole, []).append((call_of(thing.name, operation.method), answer))
        tables = operation.arguments.get("tables")
        if isinstance(tables, dict) and tables.get("k") in things:
            self._since.setdefault(things[tables["k"]].whole, []).append(self._since[thing.whole][-1])

        def line() -> str:
            return call_line(operation, things, self.player.requests)

        self._lines = [*self._lines, *self._new, line][-_LAST - 1 :]
        self._new.clear()
        self.last = operation
        if found is not None:
            self.wrong = found, None
        return Replayed(operation, self.player, answer, found, line)

    def _state(self, entry: Shown) -> None:
        since = self._since.pop(self.player.sides[0].things[entry.target].whole, [])
        last = since[0] if len(since) == 1 else None
        expected = self.state(entry.target, "device rows" in entry.fields)
        self.states += 1
        kept = dict(entry.fields)
        while (found := compare_states(expected, kept, last)) is not None and found.clause in self._ignored:
            del kept[found.expected.partition(" = ")[0]]
        if found is not None:
            self.wrong = found, entry
        else:
            self.agreed[entry.target] = expected

    def state(self, number: int, device: bool = False) -> dict[str, Any]:
        """What an object shows."""
        side = self.player.sides[0]
        return side.state(side.things[number].whole, self.player.live, device)

    @property
    def calls(self) -> tuple[str, ...]:
        """The last calls, and the requests that came up between them."""
        return tuple(line() for line in self._lines)


class Run(Judge):
    """One pass over a log.

    Args:
        path: the log.
        backend: what it is held to.
        ignored: see `Judge`.
        show_tokens: see `Judge`.
        redaction: maps names; None shows them.

    Attributes:
        reader: reads the log.
    """

    def __init__(
        self,
        path: Path,
        backend: Backend,
        ignored: frozenset[str],
        show_tokens: bool = False,
        redaction: Redaction | None = None,
    ) -> None:
        super().__init__(backend.holder, ignored, show_tokens)
        self.reader = LogReader(path, redaction)

    def steps(self, upto: int | None = None) -> Iterator[Replayed]:
        """Replays to the first wrong step, or up to an operation; every operation that was made, in order.

        A wrong state is seen after the last operation was told of; then the pass is over, too.

        Raises:
            LogError: the log can't be read or replayed.
        """
        for entry in self.reader.entries():
            if isinstance(entry, Operation) and upto is not None and entry.number >= upto:
                return
            try:
                made = self.take(entry)
                if self.wrong is not None and self.last is None:
                    raise UnplayableError("a fresh object shows another state than the specification's")
            except UnplayableError as error:
                where = f"{self.reader.path}, line {self.reader.line}"
                raise LogError(f"{where}: {error}") from error
            if made is not None:
                yield made
            if self.wrong is not None:
                return


def replay_log(
    path: str | Path,
    backend: str = "kvproof.spec",
    observe: Callable[[Replayed], None] | None = None,
    *,
    ignore: frozenset[str] = frozenset(),
    show_tokens: bool = False,
    redact: bool = False,
) -> LogResult:
    """Replays a log and names the first step whose recorded result, refusal or state is not what it should be.

    Args:
        path: the log.
        backend: what it is held to: the specification, or a backend by its name.
        observe: told of every operation, in order.
        ignore: clauses whose differences are passed over: reads that the engine does otherwise by design.
        show_tokens: whether token ids stand in the lines of calls (SEC-2).
        redact: whether request ids, adapters, versions, digests and layer names are mapped in what is shown.

    Raises:
        LogError: the log can't be read, is no log, is of a newer version, has no operations, or holds what can't be
            replayed.
        BackendError: the backend can't be had.
    """
    found = load_backend(backend)
    redaction = Redaction() if redact else None
    first = Run(Path(path), found, ignore, show_tokens, redaction)
    for replayed in first.steps():
        if observe is not None:
            observe(replayed)
    if not first.operations:
        raise LogError(f"{path}: a log without operations, {first.reader.cut or 'closed'}: nothing was replayed")
    wrong = None
    if first.wrong is not None and first.last is not None:
        difference, shown = first.wrong
        operation, target = first.last, first.last.target if shown is None else shown.target
        again = Run(Path(path), found, ignore, show_tokens, redaction)
        for _ in again.steps(upto=operation.number):
            pass
        fields = {} if shown is None else shown.fields
        device = "device rows" in fields
        *earlier, call = first.calls
        wrong = WrongStep(
            operation.number,
            call,
            difference.clause,
            CLAUSES[difference.clause].sentence,
            difference.expected,
            difference.observed,
            tuple(earlier),
            again.state(target, device),
            first.state(target, device),
            fields,
        )
    return LogResult(str(path), backend, first.operations, first.states, first.reader.cut, wrong)
