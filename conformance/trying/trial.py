"""Makes the calls of a file on a backend and on the specification, and judges each by its row."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import kvproof.spec
from kvproof.spec.clauses import CLAUSES

from ..backends.levels import Level
from ..backends.loading import Backend
from ..backends.raising import frames
from ..calls.contrast import shown
from ..calls.datum import Call, GoneError, Prompt, refs, resolve
from ..calls.deviation import Outcome, attempt, clause_of_state, is_refusal
from ..calls.documents import MOST
from ..calls.interfaces import REQUEST
from ..calls.judging import difference, equal
from ..calls.logged import KeyNumbers, result
from ..calls.method import Method, perform
from ..calls.pool import POOL
from ..calls.queue import PAGE, QUEUE
from ..calls.readings import SHOWS, page_views, readable
from ..machines.base import SPEC
from ..machines.sides import Side, hashed_key
from .script import Entry, FileError, Rows, made_by

__all__ = ["Built", "Said", "Trial", "sizes"]

_POOL = (
    *("ref_cnt", "null page", "not in the queue exactly while at 0", "free pages", "numbers of free pages"),
    *("hashed pages", "cached map", "cached under another key than its own", "keys", "usage"),
    *("number of pinned pages", "priorities"),
)
_TABLES = ("pages in a row", "host rows", "device rows")

FIELDS: Mapping[str, tuple[str, ...]] = {
    "PagePool": _POOL,
    "CacheManager": (*_POOL, "usage of the manager", "pages of requests", "slots"),
    "ShardedCacheManager": ("usage of the manager", "pages of requests", "shards of requests"),
    "FreeCachePageQueue": ("queue", "num_free_pages"),
    "PageTable": _TABLES,
    "MultiGroupPageTable": _TABLES,
}
"""What objects of each class show; see `SHOWS`."""

_NEED = {
    **dict.fromkeys(("not in the queue exactly while at 0", "free pages", "numbers of free pages"), "queue"),
    **dict.fromkeys(("cached under another key than its own", "keys"), "keys"),
    **dict.fromkeys(("number of pinned pages", "priorities"), "pins"),
    "slots": "batch",
}
"""The capability without which a backend does not show a field."""

_SAFE = frozenset(
    {
        *("null page", "not in the queue exactly while at 0", "cached under another key than its own"),
        *("numbers of free pages", "usage", "usage of the manager", "num_free_pages", "pages in a row"),
        "number of pinned pages",
    }
)
"""What any eviction order leaves as it is, as long as look-ups have found the same."""

_AS_IN_A_LOG = frozenset({"pages", "groups", "hit", "pin", "plan", "ids", "copies", "events", "counters", "batch"})
"""Kinds of results that are of a backend's own classes, and are compared as a log writes them."""

_LAST_DIGITS = 1e-8
"""How far real numbers may be from each other, such as the share of pages that are in use."""

_SEED = b"kvproof"
"""The seed of keys, where a file names none: each side would draw its own, and no two keys were the same."""

_ROOT = kvproof.spec.init_none_hash(_SEED)
"""The root of keys that are hashed by themselves."""


@dataclass(frozen=True)
class Said:
    """What came of one call.

    Attributes:
        entry: the call.
        expected: what the specification said.
        observed: what the backend said.
        verdict: ``conforms``, ``deviates`` or ``undecided``; "" for what only the engine does.
        clause: the label of the clause that it is about, or that it breaks.
        differences: what differs of the state after it: by field what it must be and what it is.
        raised: where the backend raised, if that is how it deviates.
        refused: whether the specification refused the call.
        field: the first field that differs, by its name and the number of the object that shows it; None if a result
            does.
    """

    entry: Entry
    expected: str
    observed: str
    verdict: str
    clause: str
    differences: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    raised: tuple[str, ...] = ()
    refused: bool = False
    field: tuple[str, int | str] | None = None

    def to_json(self) -> dict[str, Any]:
        """The same, ready for JSON."""
        return {
            "place": self.entry.place,
            "call": self.entry.text,
            "expected": self.expected,
            "observed": self.observed,
            "verdict": self.verdict,
            "clause": self.clause,
            "sentence": CLAUSES[self.clause].sentence if self.clause else "",
            "differences": {
                name: {"expected": right, "observed": seen} for name, (right, seen) in self.differences.items()
            },
            "raised": list(self.raised),
        }


@dataclass
class Built:
    """An object that a call constructed on both sides, and what of it the state shows.

    Attributes:
        owner: its class.
        parts: for each side what readings are given, by name.
        fields: the fields that are compared.
    """

    owner: str
    parts: tuple[dict[str, Any], dict[str, Any]]
    fields: tuple[str, ...]


class _Known:
    """What the labels of a pool's rows ask: what its specification shows before a call.

    Args:
        side: the specification's.
        built: the pool; None of a page or a queue made by hand.
    """

    def __init__(self, side: Side, built: Built | None) -> None:
        self._side = side
        self._parts = built.parts[0] if built is not None else {}
        self.pooled = "pool" in self._parts
        self.unhashed_first = bool(getattr(self._parts.get("pool"), "unhashed_first", False))

    def ids(self, pages: Any) -> list[int]:
        """The ids of the pages in an argument."""
        given = attempt(lambda: [int(page.page_id) for page in resolve(pages, self._side) if hasattr(page, "page_id")])
        return given.value or []

    def hashed(self, page_id: int) -> bool:
        """Whether a page has a hash."""
        page = self._parts.get("pages", {}).get(page_id)
        return page is not None and page.page_hash is not None

    def ranks_any(self) -> bool:
        """Whether any page has a priority."""
        pages = self._parts.get("pages", {})
        return any(self._parts["pool"].get_priority(page) for page in pages if page)

    def in_order(self) -> str:
        """The clause that says in which order free pages are taken."""
        return "PIN-2" if self.ranks_any() else "POOL-3"


class Trial:
    """A sequence of calls on a backend and on the specification.

    Args:
        backend: the backend.
        level: at ``exact`` the backend must do as the specification does; at ``safe`` page ids, their order and what
            look-ups find may be others, and any exception is a refusal.

    Attributes:
        spec: the specification's side.
        backend: the backend's side.
        strayed: whether a look-up has found something else than the specification's: then nothing is decided any more.
    """

    def __init__(self, backend: Backend, level: Level) -> None:
        self.spec = Side(SPEC)
        self.backend = Side(backend)
        self.strayed = False
        self._rows = Rows()
        self._level = level
        self._built: dict[int | str, Built] = {}
        self._requests: dict[str, None] = {}
        self._given: tuple[dict[Any, Any], dict[Any, Any]] = {}, {}
        self._looks = False
        self._keys = KeyNumbers(), KeyNumbers()
        for side in (self.spec, self.backend):
            side.find_key = functools.partial(hashed_key, side)

    def run(self, entries: Iterable[Entry], looks: Callable[[int], bool] = lambda _: True) -> Iterator[Said]:
        """Makes calls in order, up to the first one that deviates.

        Args:
            entries: the calls.
            looks: whether states are compared after the call in a place, or the next one that the backend makes.

        Raises:
            FileError: a call can't be made: it names what there is not.
        """
        for place, entry in enumerate(entries):
            self._looks |= looks(place)
            said = self.make(entry)
            self._looks &= not said.verdict  # behind what an engine does with a request nothing is compared
            yield said
            if said.verdict == "deviates":
                return

    # -- Making -----------------------------------------------------------------------------------------------------

    def make(self, entry: Entry) -> Said:
        """Makes one call.

        Raises:
            FileError: it can't be made: it names what there is not.
        """
        try:
            return self._make(entry)
        except FileError as error:
            raise FileError(f"{entry.place}: {error}") from error

    def _make(self, entry: Entry) -> Said:
        call = self._seeded(entry.call)
        row = self._rows.row_of(call)
        if row in REQUEST.rows:
            self._change(call, row)
            return Said(entry, "", "", "", "")
        self._require_offered(call, row)
        self._require_room(call)
        sides: tuple[Side, Side] = (self.spec, self.backend)
        for side in sides:
            self._turn_to(side, call)
        labels = self._labels(call, row)
        expected = self._attempt(self.spec, call, row)
        observed = self._attempt(self.backend, call, row)
        if any(isinstance(outcome.error, GoneError) for outcome in (expected, observed)):  # as the two have strayed
            return Said(entry, str(expected), str(observed), "undecided", row.clause)
        if expected.error is not None and not is_refusal(expected.error):
            raise FileError(f"the specification can't make this call: {expected}") from expected.error
        if expected.error is None:
            self.spec.results[call.number], self.backend.results[call.number] = expected.value, observed.value
            if observed.error is None:
                self._note_built(call)
                self._note_given(call, row, expected.value, observed.value)
        return self._judge(entry, call, row, labels, expected, observed)

    def _attempt(self, side: Side, call: Call, row: Method) -> Outcome:
        outcome = attempt(lambda: perform(side, call, row))
        if isinstance(outcome.error, GoneError) and not self.strayed:
            whose = "specification" if side is self.spec else "backend"
            raise FileError(f"{outcome.error} on the side of the {whose}") from outcome.error
        return outcome

    def _seeded(self, call: Call) -> Call:
        """A call with the seed of keys, or their root, where both sides take one and the file names none."""
        if call.target is not None:
            return call
        missing = {
            name: value
            for name, value in (("hash_seed", _SEED), ("none_hash", _ROOT))
            if name not in call.arguments
            and all(
                side.names.offers(call.method) and side.names.accepts(call.method, name)
                for side in (self.spec, self.backend)
            )
        }
        return call.given(**missing)

    def _require_offered(self, call: Call, row: Method) -> None:
        if call.target is None and not self.backend.names.offers(call.method):
            raise FileError(f"the backend {self.backend.names.name} does not offer {call.method}")
        if call.target is not None:
            target = call.target
            owner = attempt(lambda: self.backend.thing(target))
            if owner.error is None and not hasattr(owner.value, row.name):
                raise FileError(f"the backend's {type(owner.value).__name__} does not offer {row.name}")

    @staticmethod
    def _require_room(call: Call) -> None:
        """Refuses objects that would fill the memory, not sizes that the contract itself refuses."""
        for name, value in call.arguments.items():
            if (
                call.target is None
                and name in MOST
                and isinstance(value, int | np.integer)
                and MOST[name] < value < 2**31
            ):
                raise FileError(f"{name}={value}: a file of calls makes at most {MOST[name]}, by two implementations")

    def _change(self, call: Call, row: Method) -> None:
        """What an engine does with a request of its own: both sides have the same one."""
        if row.form == "build":
            prompt = call.arguments["prompt"]
            if not isinstance(prompt, Prompt):
                raise FileError(f"prompt={prompt!r:.60} must be a request")
            made = resolve(prompt, self.spec)
            self.spec.results[call.number] = self.backend.results[call.number] = made
            self._requests[prompt.request_id] = None
            return
        outcome = self._attempt(self.spec, call, row)
        if outcome.error is not None:
            raise FileError(f"the request can't do this: {outcome}") from outcome.error

    def _turn_to(self, side: Side, call: Call) -> None:
        """Notes the pages of the pool that a call is about: lists of pages are compared with its views.

        There is no such pool where a call is made on shards: None then.
        """
        built = self._built.get(call.target.of) if call.target is not None else None
        if built is not None:
            parts = built.parts[side is not self.spec]
            side.put({name: parts.get(name) for name in ("pages", "pool")})

    def _note_built(self, call: Call) -> None:
        owner = made_by(call)
        if owner not in FIELDS:
            return
        parts = tuple(self._parts(owner, side.results[call.number], side) for side in (self.spec, self.backend))
        lacks = self.backend.names.lacks
        fields = tuple(
            name
            for name in FIELDS[owner]
            if all(reading.needs <= parts[1].keys() for reading in SHOWS[name].readings)
            and _NEED.get(name) not in lacks
            and (self._level == "exact" or name in _SAFE)
            and (_NEED.get(name) != "pins" or call.arguments.get("max_pinned_pages"))
        )
        self._built[call.number] = Built(owner, (parts[0], parts[1]), fields)
        for side, own in zip((self.spec, self.backend), parts, strict=True):
            side.put({name: own[name] for name in ("pages", "pool") if name in own})

    def _parts(self, owner: str, it: Any, side: Side) -> dict[str, Any]:
        """What readings of an object are given, by name."""
        parts: dict[str, Any] = {"names": self._requests}
        if owner == "PagePool" or (owner == "CacheManager" and hasattr(it, "page_pool")):
            pool = it.page_pool if owner == "CacheManager" else it
            parts |= {"pool": pool, "pages": page_views(pool, "queue" not in side.names.lacks)}
        if owner in ("CacheManager", "ShardedCacheManager"):
            parts["manager"] = it
        if owner == "FreeCachePageQueue":
            parts["queue"] = it
        if owner.endswith("Table"):
            parts["tables"] = list(it.page_tables) if owner == "MultiGroupPageTable" else [it]
        return parts

    def _note_given(self, call: Call, row: Method, *values: Any) -> None:
        """Notes which call gave a page on each side: at level safe two pages are the same if one call gave both."""
        if self._level != "safe" or row.reads or row.result.log not in ("pages", "groups", "batch"):
            return
        root = call.target.of if call.target is not None else None
        for place, given in enumerate(self._given):
            ids = attempt(functools.partial(self._ids, row.result.log, values[place], place))
            given.update({(root, page): (call.number, order) for order, page in enumerate(ids.value or ())})

    def _ids(self, kind: str, value: Any, place: int) -> list[int]:
        """The ids of all pages in a result on one side."""
        plain = self._as_logged(kind, value, place)
        groups = [plain or ()] if kind == "pages" else plain or ()
        if kind == "batch":
            groups = [pages for _, _, pages in plain[1]]
        return [page for pages in groups for page in pages if type(page) is int]

    def _as_logged(self, kind: str, value: Any, place: int) -> Any:
        """A result on one side as a log has it."""
        return result(kind, value, self._keys[place])

    # -- Judging ----------------------------------------------------------------------------------------------------

    def _labels(self, call: Call, row: Method) -> tuple[str, dict[str, str]]:
        """The label of a wrong result of a call, and those of wrong fields of the state after it."""
        if not any(row in table.rows for table in (POOL, PAGE, QUEUE)):
            return row.clause, row.charges_by_field
        root = call.target.of if call.target is not None else None
        known = _Known(self.spec, self._built.get(root) if root in self._built else self._pool_of(call))
        return row.label(known, call.arguments), row.charged(known, call.arguments)

    def _pool_of(self, call: Call) -> Built | None:
        """The pool that a page is one of, if it is any's."""
        target = call.target
        page = attempt(lambda: self.spec.thing(target)) if target is not None else Outcome()
        pools = (built for built in self._built.values() if "pool" in built.parts[0])
        return next((built for built in pools if page.value in built.parts[0]["pages"].values()), None)

    def _judge(
        self,
        entry: Entry,
        call: Call,
        row: Method,
        labels: tuple[str, dict[str, str]],
        expected: Outcome,
        observed: Outcome,
    ) -> Said:
        clause, charges = labels
        refused = expected.error is not None
        if refused:
            clause, right, seen = expected.clause, expected, replace(observed, value=readable(observed.value))
        else:
            right = Outcome(self._plain(call, row, expected.value, self.spec))
            seen = observed if observed.error else attempt(lambda: self._plain(call, row, observed.value, self.backend))
        texts = (str(right), str(seen)) if refused or seen.error else (shown(right.value), shown(seen.value))
        if self.strayed:
            both = refused and observed.error is not None
            return Said(entry, *texts, "conforms" if both else "undecided", clause, refused=refused)
        agree = functools.partial(self._agrees, call, row)
        found = difference(right, seen, clause, agree=agree, any_error=self._level == "safe")
        if found is not None:
            raised = () if observed.error is None else frames(observed.error)
            told = found.expected, found.observed, "deviates", found.clause
            return Said(entry, *told, raised=raised, refused=refused)
        if self._has_strayed():
            return Said(entry, *texts, "undecided", clause)
        broken, differences, field = (
            self._states({}, clause_of_state(clause)) if refused else self._states(charges, charges.get(""))
        )
        verdict = "deviates" if differences else "conforms"
        return Said(entry, *texts, verdict, broken or clause, differences, refused=refused, field=field)

    def _plain(self, call: Call, row: Method, value: Any, side: Side) -> Any:
        """What of a result is compared: at level safe how many pages there are, in place of which."""
        if made_by(call):
            return made_by(call)
        kind, place = row.result.log, int(side is self.backend)
        if self._level == "safe":
            return self._countable(call, kind, self._form(call, row, value, place), place)
        if kind == "array":  # a machine holds arrays against their arguments; here the numbers themselves
            return readable(value)
        plain = row.result.plain(value, side)
        if kind == "events" or (plain is value and kind in _AS_IN_A_LOG):  # their keys by numbers
            plain = self._as_logged(kind, value, place)
        return readable(plain)

    def _form(self, call: Call, row: Method, value: Any, place: int) -> Any:
        """A result at level safe, before pages are counted: those of a backend's own classes as a log has them."""
        kind = row.result.log
        if kind in _AS_IN_A_LOG:
            return self._as_logged(kind, value, place)
        if kind != "array":
            return readable(row.result.plain(value, (self.spec, self.backend)[place]))
        made_of_numbers = call.target is None and not any(refs(call.arguments))
        return readable(value) if made_of_numbers else sizes(kind, readable(value))

    def _countable(self, call: Call, kind: str, plain: Any, place: int) -> Any:
        """A result at level safe without the ids of pages."""
        match kind:
            case "hit":
                return self._origins(call, plain[0], place), plain[1]
            case "batch":
                return plain[0], [group[:2] for group in plain[1]]
            case "pin" if plain is not None:
                return plain[:2], sizes("groups", plain[2])
            case "array":
                return plain
        return sizes(kind, plain)

    def _agrees(self, call: Call, row: Method, right: Any, seen: Any) -> bool:
        if row.result.log == "array":
            return _near(right, seen, self._largest(call))
        if self._level == "safe" and row.by_eviction:
            return True
        real = isinstance(right, float) and isinstance(seen, int | float)  # of which the last digits don't count
        alike = abs(right - seen) < _LAST_DIGITS if real else equal(right, seen)
        if self._level == "safe" and (row.result.log == "hit" or row.name == "get_cached_page"):
            self.strayed = not alike  # what another eviction order keeps is found, and what follows differs
            return True
        return alike

    def _has_strayed(self) -> bool:
        return self.strayed

    def _origins(self, call: Call, groups: Any, place: int) -> Any:
        """Pages that a look-up found, by the calls that gave them; those that no call gave are all alike."""
        root, given = call.target.of if call.target is not None else None, self._given[place]
        return [
            [given.get((root, page), ()) if type(page) is int and page else page for page in group] for group in groups
        ]

    def _largest(self, call: Call) -> float:
        """The largest number among a call's arrays: ATT-6 bounds errors by it."""
        arrays = [np.asarray(value) for value in call.arguments.values() if isinstance(value, np.ndarray)]
        finite = (np.abs(own)[np.isfinite(own)] for own in arrays if own.dtype.kind == "f")
        return max((float(own.max(initial=0)) for own in finite), default=0.0)

    def _states(
        self, charges: Mapping[str, str], rest: str | None
    ) -> tuple[str, dict[str, tuple[str, str]], tuple[str, int | str] | None]:
        """What differs between the states of both sides.

        Args:
            charges: labels of fields, where not the fields' own.
            rest: the label of all other fields; None for the fields' own.

        Returns:
            The label of the first difference, "" if there is none; the fields that differ; and the first of them with
            the number of what shows it.
        """
        clause, differences, field = "", {}, None
        for number, built in self._built.items() if self._looks else ():
            for name in built.fields:
                right, seen = (attempt(functools.partial(_read, name, own)) for own in built.parts)
                label = charges.get(name) or rest or SHOWS[name].clause
                # the specification raises of a request that its manager does not know
                found = None if right.error is not None else difference(right, seen, label)
                if found is not None:
                    clause, field = clause or label, field or (name, number)
                    differences[f"r{number}: {name}" if len(self._built) > 1 else name] = found.expected, found.observed
        return clause, differences, field


def _read(name: str, parts: Mapping[str, Any]) -> Any:
    looks = [each.looked(parts.__getitem__) for each in SHOWS[name].readings]
    return looks[0] if len(looks) == 1 else looks


def sizes(kind: str, plain: Any) -> Any:
    """A result without the ids of pages: how many there are."""
    if plain is None or kind not in ("pages", "groups", "page", "batch", "plan", "pin", "copies", "events", "array"):
        return plain
    return _counts(plain)


def _counts(plain: Any) -> Any:
    if isinstance(plain, Sequence) and not isinstance(plain, str):
        lists = [_counts(entry) for entry in plain if isinstance(entry, Sequence) and not isinstance(entry, str)]
        return lists or len(plain)
    return "a page" if type(plain) is int else plain


def _near(right: Any, seen: Any, largest: float) -> bool:
    """Whether two results are the same, real numbers to within the rounding of 16-bit floats (ATT-6).

    Args:
        right: the specification's, as plain values.
        seen: the backend's.
        largest: the largest number among what was given.
    """
    if isinstance(right, dict) and isinstance(seen, dict):
        return right.keys() == seen.keys() and all(_near(right[name], seen[name], largest) for name in right)
    outcome = attempt(lambda: (np.asarray(right), np.asarray(seen)))
    if outcome.error is not None:  # lists of arrays of unlike shapes are no array
        both = isinstance(right, list) and isinstance(seen, list) and len(right) == len(seen)
        return both and all(_near(*pair, largest) for pair in zip(right, seen, strict=True))
    left, other = outcome.value
    if left.shape != other.shape or left.dtype.kind != "f" or other.dtype.kind not in "fiub":
        return equal(right, seen)
    finite = np.abs(left)[np.isfinite(left)]
    bound = 2.0**-8 * (np.abs(left) + max(largest, float(finite.max(initial=0))))
    with np.errstate(invalid="ignore"):  # what is no number is to be none on both sides, and infinities the same
        near = (np.abs(left - other) <= bound) & np.isfinite(left) & np.isfinite(other)
    return bool((near | (left == other) | (np.isnan(left) & np.isnan(other))).all())
