"""A log replayed: every recorded result is held to the specification's, and the first wrong step is named and shown."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvproof.spec.clauses import CLAUSES

from ..backends.levels import LEVELS, Level
from ..backends.loading import Backend, load_backend
from ..calls.contrast import beside, contrast, shown
from ..calls.deviation import REFUSALS, clause_of_state
from ..calls.following import compared, decided, strays
from ..calls.judging import Difference, difference
from ..calls.logged import same_value
from ..calls.method import Method
from ..calls.readings import SHOWS, numbers_of_free_pages
from ..console.terminal import visible
from ..report.document import header
from ..report.redaction import Redaction
from .entries import Entry, Made, NewRequest, Operation, Shown
from .format import CALLS, LogError, row_of
from .player import Answer, Player, RecordedError, Thing
from .reading import LogReader
from .values import FIELDS, digest

__all__ = [
    *("LogResult", "Replayed", "Run", "WrongStep", "call_line", "compare_answers"),
    *("compare_states", "log_json", "log_lines", "object_name", "recorded_answer", "replay_log"),
    *("request_line", "require_decided"),
]


def recorded_answer(operation: Operation, expected: Answer) -> Answer:
    """What a log says that came of a call."""
    recorded = operation.result
    if operation.method == "allocate_slots" and recorded == [] and isinstance(expected.value, list):
        recorded = [[] for _ in expected.value]  # a run of calls names only those that gave pages
    if operation.method == "counters" and isinstance(recorded, dict) and isinstance(expected.value, dict):
        recorded = expected.value | recorded  # what nobody counted yet when it was recorded is not compared
    return Answer(recorded, None if operation.error is None else RecordedError(operation.error))


def compare_answers(
    thing: Thing, operation: Operation, expected: Answer, observed: Answer, level: Level = "exact"
) -> Difference | None:
    """The difference between two answers to a call; None if there is none."""
    row = row_of(thing.name, operation.method)
    if level == "safe":
        return compared(row, expected, observed, thing.pool)
    return difference(expected, observed, row.clause, agree=same_value)


def compare_states(
    expected: Mapping[str, Any],
    observed: Mapping[str, Any],
    last: tuple[Method, Answer] | None,
    level: Level = "exact",
) -> Difference | None:
    """The first difference between two states of an object; None if there is none.

    Args:
        expected: the specification's.
        observed: what was shown; a long field by its CRC-32, a missing one is not compared.
        last: the one call since the last comparison, and the specification's answer; None where there were several.
        level: see `replay_log`.
    """
    if level == "safe":
        expected, observed = decided(expected, observed)
    for name in FIELDS:
        if name not in observed or name not in expected or same_value(digest(expected[name]), digest(observed[name])):
            continue
        clause = SHOWS[name].clause
        if last is not None:
            row, answer = last
            own = row.charges_by_field.get(name, clause)
            charged = own if answer.error is None else clause_of_state(answer.clause)
            clause = clause if name == "device rows" and answer.error is None else charged
        right, seen = _contrasted(expected[name], observed[name])
        return Difference(clause, f"{name} = {right}", f"{name} = {seen}")
    return None


def _contrasted(expected: Any, observed: Any) -> tuple[str, str]:
    """Two fields of a state that differ, as a report shows them; of a long one a log has its CRC-32 only."""
    mine = digest(expected)
    if mine is not expected and isinstance(observed, dict) and observed.keys() == {"crc32"}:
        return shown(expected), f"another value: its CRC-32 is {observed['crc32']} and must be {mine['crc32']}"
    return contrast(expected, observed)


_NAMES = {"CacheManager": "manager", "PagePool": "pool", "PageTable": "table", "MultiGroupPageTable": "tables"}
_LONGEST = 200


def object_name(number: int, things: Mapping[int, Thing]) -> str:
    """What an object is called: by its class, and by its number where there are others of the class."""
    thing = things[number]
    alike = [other for other, known in things.items() if known.name == thing.name]
    name = _NAMES[thing.name]
    return name if len(alike) == 1 else f"{name}_{alike.index(number)}"


def call_line(operation: Operation, things: Mapping[int, Thing], requests: Sequence[NewRequest]) -> str:
    """A call on one line.

    Args:
        operation: the call.
        things: the objects by number.
        requests: the requests by number.
    """
    thing = things[operation.target]
    target = object_name(operation.target, things)
    if operation.method not in CALLS[thing.name]:
        return f"{target}.{operation.method}"
    shown = []
    said = ""
    for argument, value in operation.arguments.items():
        if argument not in CALLS[thing.name][operation.method].arguments:
            continue
        if isinstance(value, dict) and isinstance(value.get("r"), int) and value["r"] < len(requests):
            shown.append(repr(requests[value["r"]].request_id))
            said = f"  # {value.get('computed')} of {value.get('known')} tokens computed"
        elif isinstance(value, dict) and "k" in value:
            shown.append(object_name(value["k"], things) if value["k"] in things else "?")
        elif isinstance(value, dict):
            shown.append(f"<{json.dumps(value)[1:-1]}>")
        else:
            shown.append(f"{argument}={_short(value)}")
    return f"{target}.{operation.method}({', '.join(shown)}){said}"


def request_line(request: NewRequest, tokens: list[int] | None) -> str:
    """A request on one line: its id, its extra keys, and its token ids if they are to be shown."""
    listed = f"{len(request.tokens)} tokens" if tokens is None else _short(tokens)
    keys = f", {request.extra_keys}" if request.extra_keys else ""
    return f"Request({request.request_id!r}, {listed}{keys})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


# -- Replaying --------------------------------------------------------------------------------------------------------

_LAST = 8
"""The number of calls before the wrong one that are shown."""


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
        level: how it was compared.
        strayed_at: at level safe the number of the first call that both finds a prefix and holds it (a pin, a request
            coming back from host memory) and found another one than the specification: behind it nothing is decided;
            None if there is none.
    """

    path: str
    backend: str
    operations: int
    states: int
    cut: str | None
    wrong: WrongStep | None
    level: Level = "exact"
    strayed_at: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The result, ready for JSON."""
        return {"kvproof": "log replay", "version": 1, **asdict(self)}


@dataclass(frozen=True)
class Replayed:
    """An operation that was replayed.

    Attributes:
        operation: the operation.
        player: who made the call.
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
        level: see `replay_log`.

    Attributes:
        player: makes the calls.
        operations: how many were made.
        states: how many recorded states were compared.
        last: the operation that was made last; None before the first.
        wrong: how that one deviates, and the state that shows it if that is how it was seen.
        agreed: what each object showed when its state was last compared, by number.
        strayed_at: see `LogResult`.
    """

    def __init__(
        self,
        holder: Any,
        ignored: frozenset[str] = frozenset(),
        show_tokens: bool = False,
        level: Level = "exact",
    ) -> None:
        self.level = level
        self.player = Player(holder, follows=level == "safe")
        self.strayed_at: int | None = None
        self.operations = self.states = 0
        self.last: Operation | None = None
        self.wrong: tuple[Difference, Shown | None] | None = None
        self.agreed: dict[int, dict[str, Any]] = {}
        self._ignored, self._show_tokens = ignored, show_tokens
        self._since: dict[int, list[tuple[Method, Answer]]] = {}
        self._answered: tuple[Method, Answer] | None = None
        self._lines: list[Callable[[], str]] = []
        self._new: list[Callable[[], str]] = []

    def take(self, entry: Entry) -> Replayed | None:
        """Plays an entry; an operation is returned with what came of it.

        Raises:
            LogError: it can't be played.
        """
        if self.strayed_at is not None:
            self.operations += isinstance(entry, Operation)
            return None
        if isinstance(entry, Operation):
            return self._operation(entry)
        if isinstance(entry, Shown):
            self._state(entry)
            return None
        self.player.prepare(entry)
        if isinstance(entry, NewRequest):
            tokens = entry.tokens.tolist() if self._show_tokens else None
            self._new.append(lambda: request_line(entry, tokens))
        return None

    def _operation(self, operation: Operation) -> Replayed:
        answer = self.player.call(operation)
        if answer.error is not None and not isinstance(answer.error, REFUSALS):
            where = f", raised at {answer.raised[-1]}" if answer.raised else ""
            raise LogError(f"operation {operation.number} can't be made: {answer.kind}{where}")
        self.operations += 1
        things = self.player.things
        thing = things[operation.target]
        row = row_of(thing.name, operation.method)
        found = compare_answers(thing, operation, answer, recorded_answer(operation, answer), self.level)
        if found is not None and self.level == "safe" and strays(row, found):
            self.strayed_at, found = operation.number, None
        found = None if found is not None and found.clause in self._ignored else found
        self._answered = row, answer
        if not row.reads or answer.error is not None:
            self._since.setdefault(thing.whole, []).append((row, answer))
        tables = operation.arguments.get("tables")
        if isinstance(tables, dict) and tables.get("k") in things:
            self._since.setdefault(things[tables["k"]].whole, []).append((row, answer))

        def line() -> str:
            return call_line(operation, things, self.player.requests)

        self._lines = [*self._lines, *self._new, line][-_LAST - 1 :]
        self._new.clear()
        self.last = operation
        if found is not None:
            self.wrong = found, None
        return Replayed(operation, self.player, answer, found, line)

    def _state(self, entry: Shown) -> None:
        since = self._since.pop(self.player.things[entry.target].whole, [])
        last = since[0] if len(since) == 1 else None
        expected = self.state(entry.target, "device rows" in entry.fields)
        self.states += 1
        kept = dict(entry.fields)
        while (found := compare_states(expected, kept, last, self.level)) is not None and found.clause in self._ignored:
            del kept[found.expected.partition(" = ")[0]]
        if found is not None:
            self.wrong = found, entry
        else:
            self.agreed[entry.target] = expected

    def count(self, observed: tuple[int, int]) -> None:
        """Compares how many pages are free, as a pool and its queue say, after the last operation, which was on it."""
        assert self.last is not None, "an operation was made"
        thing = self.player.things[self.last.target]
        name = "numbers of free pages"
        found = compare_states({name: numbers_of_free_pages(thing.pool)}, {name: observed}, self._answered)
        if found is not None:
            self.wrong = found, Shown(thing.whole, {name: observed})

    @property
    def touched(self) -> list[int]:
        """The objects that calls may have changed since their states were compared, by their numbers."""
        return list(self._since)

    def state(self, number: int, device: bool = False) -> dict[str, Any]:
        """What an object shows."""
        return self.player.state(number, self.player.live, device)

    @property
    def calls(self) -> tuple[str, ...]:
        """The last calls, and the requests that came up between them."""
        return tuple(line() for line in self._lines)


def require_decided(reader: LogReader, made: Iterable[Made], number: int) -> None:
    """Refuses a log that differs where the specification can't know which pages the engine was to evict.

    Args:
        reader: has read the log.
        made: the objects that were made.
        number: how many operations there are up to the difference.

    Raises:
        LogError: one of the objects evicts by a policy that goes by tokens and a seed that are not in the log.
    """
    for one in made:
        policy = one.arguments.get("eviction", "lru")
        if policy != "lru" and not (reader.shows_tokens and "hash_seed" in one.arguments):
            raise LogError(
                f"{reader.path}: operation {number:,} differs, which decides nothing: the {one.name} evicts by "
                f"{policy!r}, which goes by the tokens and the keys' seed (EVICT-1), and the log has not both; record "
                "with show_tokens and options={'hash_seed': ...}, or hold it to level safe"
            )


class Run(Judge):
    """One pass over a log.

    Args:
        path: the log.
        backend: what it is held to.
        ignored: see `Judge`.
        show_tokens: see `Judge`.
        redaction: maps names; None shows them.
        level: see `Judge`.

    Attributes:
        reader: reads the log.
        made: the objects that were made, as the log has them.
    """

    def __init__(
        self,
        path: Path,
        backend: Backend,
        ignored: frozenset[str],
        show_tokens: bool = False,
        redaction: Redaction | None = None,
        level: Level = "exact",
    ) -> None:
        super().__init__(backend.holder, ignored, show_tokens, level)
        self.reader = LogReader(path, redaction)
        self.made: list[Made] = []

    def steps(self, upto: int | None = None) -> Iterator[Replayed]:
        """Replays to the first wrong step, or up to an operation; every operation that was made, in order.

        A wrong state is seen after the last operation was told of; then the pass is over, too.

        Raises:
            LogError: the log can't be read or replayed.
        """
        for entry in self.reader.entries():
            if isinstance(entry, Operation) and upto is not None and entry.number >= upto:
                return
            if isinstance(entry, Made):
                self.made.append(entry)
            try:
                made = self.take(entry)
                if self.wrong is not None and self.last is None:
                    raise LogError("a fresh object shows another state than the specification's")
            except LogError as error:
                where = f"{self.reader.path}, line {self.reader.line}"
                raise LogError(f"{where}: {error}") from error
            if made is not None:
                yield made
            if self.wrong is not None:
                return

    def require_operations(self, what: str) -> None:
        """Refuses a log in which nothing was done, when all of it was read: no news of it is good news.

        Args:
            what: what could not be done with it, as a participle.

        Raises:
            LogError: it has no operations.
        """
        if not self.operations:
            cut = self.reader.cut or "closed"
            raise LogError(f"{self.reader.path}: a log without operations, {cut}: nothing was {what}")


def replay_log(
    path: str | Path,
    backend: str = "kvproof.spec",
    observe: Callable[[Operation], None] = lambda _: None,
    *,
    level: Level = "exact",
    ignore: frozenset[str] = frozenset(),
    show_tokens: bool = False,
    redact: bool = False,
) -> LogResult:
    """Replays a log and names the first step whose recorded result, refusal or state is not what it should be.

    Args:
        path: the log.
        backend: what it is held to: the specification, or a backend by its name.
        observe: told of every operation, in order.
        level: ``exact``, or ``safe``: any free pages may be taken, and look-ups may find less than the specification's,
            which takes the pages that the engine took; no other backend can.
        ignore: clauses whose differences are passed over: reads that the engine does otherwise by design.
        show_tokens: whether token ids stand in the lines of calls (SEC-2).
        redact: whether request ids, adapters, versions, digests and layer names are mapped in what is shown.

    Raises:
        LogError: the log can't be read, is no log, is of a newer version, has no operations, or holds what can't be
            replayed.
        ValueError: the level is none of a replay, or another backend than the specification is asked for at ``safe``.
        BackendError: the backend can't be had.
    """
    redaction = Redaction() if redact else None
    if level not in LEVELS or (level != "exact" and backend != "kvproof.spec"):
        raise ValueError(f"level={level!r} with backend={backend!r}: a log is held at level safe to kvproof.spec alone")
    found = load_backend(backend)
    first = Run(Path(path), found, ignore, show_tokens, redaction, level)
    for replayed in first.steps():
        observe(replayed.operation)
    first.require_operations("replayed")
    wrong = None
    if first.wrong is not None and first.last is not None:
        if level == "exact":
            require_decided(first.reader, first.made, first.operations)
        difference, shown = first.wrong
        operation, target = first.last, first.last.target if shown is None else shown.target
        again = Run(Path(path), found, ignore, show_tokens, redaction, level)
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
    counts = first.operations, first.states, first.reader.cut
    return LogResult(str(path), backend, *counts, wrong, level, first.strayed_at)


# -- What came of it, for a reader and for a program ------------------------------------------------------------------


def log_lines(result: LogResult) -> Iterator[str]:
    """The result as lines in which nothing can command a terminal (SEC-4)."""
    yield from map(visible, _lines(result))


def _lines(result: LogResult) -> Iterator[str]:
    held = "the specification" if result.backend == "kvproof.spec" else result.backend
    at = "" if result.level == "exact" else f", level {result.level}"
    yield f"{Path(result.path).name}: {result.operations:,} operations and {result.states:,} states held to {held}{at}"
    if result.cut is not None:
        yield f"the log is incomplete, {result.cut}: replayed up to there"
    wrong = result.wrong
    if result.strayed_at is not None:
        found = f"operation {result.strayed_at:,} found another prefix than the specification, and holds it"
        yield f"{found}: what follows is undecided"
    if wrong is None:
        yield "no difference" if result.cut is None and result.strayed_at is None else "no difference up to there"
        return
    yield ""
    yield f"operation {wrong.number:,} deviates from {wrong.clause}"
    yield f"  {wrong.sentence}"
    yield f"  expected: {wrong.expected}"
    yield f"  observed: {wrong.observed}"
    yield "  calls, the last ones:"
    yield from (f"    {line}" for line in (*wrong.earlier, wrong.call))
    states = {"before": wrong.before} if wrong.before else {}
    states["after, as it must be" if result.level == "exact" else "after, the specification's"] = wrong.after
    if wrong.observed_after:
        states["after, as it was recorded"] = wrong.observed_after
    for title, state in states.items():
        yield f"  {title}:"
        for name, value in state.items():
            others = [other[name] for other in states.values() if name in other]
            yield f"    {name} = {beside(value, *others)[0]}"


def log_json(result: LogResult) -> dict[str, Any]:
    """The result as JSON values."""
    return {**header("log replay"), **result.to_json(), "deviates": result.wrong is not None}
