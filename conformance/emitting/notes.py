"""Notes of every call that is made on a backend, as Python source.

While calls are made again, the backend's objects are given out as stand-ins that pass every call on and have it
written down: constructors by way of ``backend``, methods on the objects that earlier statements gave, pages by their
ids, requests as variables, with what changed in them between two calls. Reads of the state are not noted.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from kvproof.spec.declarations import EngineRequestStatus, Request

from ..backends.loading import Backend
from ..calls.judging import equal
from ..calls.readings import page_views
from ..calls.spelling import ReadOnlyList, SpelledRequest
from ..machines.sides import Side
from .literals import Literals, UnrenderableError, is_plain

__all__ = ["NotedBackend", "NotedSide", "Notes", "Statement", "mark"]


def inside(stand_in: "StandIn") -> tuple[Any, str]:
    """What a stand-in stands for, and the expression that gives it."""
    value: Any = object.__getattribute__(stand_in, "_value")
    text: str = object.__getattribute__(stand_in, "_text")
    return value, text


class StandIn:
    """Stands for a thing of the backend: passes on what is asked of it, and notes what is called.

    Args:
        value: the thing.
        text: the expression that gives it.
        notes: where calls are noted.
    """

    __slots__ = ("_notes", "_text", "_value")

    def __init__(self, value: Any, text: str, notes: "Notes") -> None:
        object.__setattr__(self, "_value", value)
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_notes", notes)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(object.__getattribute__(self, "_value"))

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(object.__getattribute__(self, "_value"))

    def __getattr__(self, name: str) -> Any:
        value, text = inside(self)
        notes: Notes = object.__getattribute__(self, "_notes")
        return notes.stand_in(getattr(value, name), f"{text}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_notes").set(self, name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        notes: Notes = object.__getattribute__(self, "_notes")
        if not notes.on:
            given = [notes.strip(argument) for argument in arguments]
            return inside(self)[0](*given, **{name: notes.strip(given) for name, given in keywords.items()})
        return notes.made(self, arguments, keywords)

    def __getitem__(self, key: Any) -> Any:
        value, text = inside(self)
        notes: Notes = object.__getattribute__(self, "_notes")
        real, shown = notes.given(key)
        return notes.stand_in(value[real], f"{text}[{shown}]")

    def __iter__(self) -> Iterator[Any]:
        value, text = inside(self)
        notes: Notes = object.__getattribute__(self, "_notes")
        whole = text if hasattr(type(value), "__getitem__") and not isinstance(value, Mapping) else f"list({text})"
        return iter([notes.stand_in(entry, f"{whole}[{place}]") for place, entry in enumerate(value)])

    def __add__(self, other: Any) -> Any:
        value, text = inside(self)
        notes: Notes = object.__getattribute__(self, "_notes")
        real, shown = notes.given(other)
        return notes.stand_in(value + real, f"({text} + {shown})")

    def __radd__(self, other: Any) -> Any:
        value, text = inside(self)
        notes: Notes = object.__getattribute__(self, "_notes")
        real, shown = notes.given(other)
        return notes.stand_in(real + value, f"({shown} + {text})")

    def __eq__(self, other: object) -> bool:
        real = inside(other)[0] if type(other) is StandIn else other
        return bool(inside(self)[0] == real)

    def __hash__(self) -> int:
        return hash(inside(self)[0])

    def __len__(self) -> int:
        return len(inside(self)[0])

    def __bool__(self) -> bool:
        return bool(inside(self)[0])

    def __contains__(self, entry: Any) -> bool:
        return bool(entry in inside(self)[0])

    def __int__(self) -> int:
        return int(inside(self)[0])

    def __index__(self) -> int:
        return int(inside(self)[0].__index__())

    def __float__(self) -> float:
        return float(inside(self)[0])

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        return inside(self)[0].__array__(*arguments, **keywords)

    def __repr__(self) -> str:
        return repr(inside(self)[0])


# -- What is written down ---------------------------------------------------------------------------------------------

_READS = frozenset(
    {
        *("get_all_free_pages", "get_page_ids", "get_num_free_pages", "get_usage", "get_cpu_tensor"),
        *("get_device_tensor", "slot_of", "shard_of", "snapshot", "check", "hash_request_tokens"),
    }
)
"""Methods that change nothing: a call of one whose result nobody uses is left out of the file."""


@dataclass
class Statement:
    """One statement of the file, variables written as marks.

    Attributes:
        text: the statement, without what its result is assigned to.
        number: the number of the variable that its result is; None if it has none.
        name: what that variable is called, if anybody does; else it is called by what it is.
        idle: whether it can be left out where nobody uses its result.
        inline: whether it can be written where its result is used, if that is one place.
        act: the number of the call of the machine that it belongs to.
        prepares: whether it only makes or changes a request.
        refused: the name of the error that it raised.
        value: what it gave.
    """

    text: str
    number: int | None = None
    name: str = ""
    idle: bool = False
    inline: bool = False
    act: int = 0
    prepares: bool = False
    refused: str = ""
    value: Any = None


def mark(number: int) -> str:
    """What stands for a variable until the file is written: characters that no literal contains."""
    return f"\ue000{number}\ue001"


@dataclass
class _KnownRequest:
    request: Request
    number: int
    num_tokens: int
    shown: dict[str, Any]


class Notes:
    """What was noted so far.

    Args:
        holder: the backend.

    Attributes:
        statements: the statements, in their order.
        literals: writes values, and keeps the imports.
        on: whether calls are noted now.
        act: the number of the machine's call that is being made.
        problem: why what was noted is no use; empty while it is.
    """

    def __init__(self, holder: Any) -> None:
        self.statements: list[Statement] = []
        self.literals = Literals(holder)
        self._holder = holder
        self.on = False
        self.act = 0
        self.problem = ""
        self._known: dict[int, tuple[Any, str]] = {}
        self._requests: dict[int, _KnownRequest] = {}
        self._views: list[tuple[Mapping[Any, Any], str]] = []
        self._count = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Calls are noted meanwhile; otherwise the backend's objects themselves are given out."""
        before, self.on = self.on, True
        try:
            yield
        finally:
            self.on = before

    # -- What is given out --------------------------------------------------------------------------------------

    def stand_in(self, value: Any, text: str) -> Any:
        """A stand-in for something of the backend that an expression gives; data stands for itself."""
        return value if not self.on or is_plain(value) or isinstance(value, StandIn) else StandIn(value, text, self)

    def strip(self, value: Any) -> Any:
        """The backend's own objects for stand-ins; they are known by their expressions from now on."""
        if isinstance(value, StandIn):
            real, text = inside(value)
            self.know(real, text)
            return real
        if type(value) in (list, tuple):
            return type(value)(map(self.strip, value))
        if type(value) is dict:
            return {key: self.strip(entry) for key, entry in value.items()}
        return value

    def know(self, value: Any, text: str) -> None:
        """Notes by which expression a thing of the backend is known, and what a list of things holds."""
        if is_plain(value):
            return
        self._known[id(value)] = value, text
        if type(value) in (list, tuple):
            for place, entry in enumerate(value):
                self.know(entry, f"{text}[{place}]")

    def text_of_known(self, value: Any) -> str | None:
        """The expression that a thing is known by."""
        known = self._known.get(id(value))
        return known[1] if known is not None else None

    # -- What is written down -----------------------------------------------------------------------------------

    def given(self, value: Any) -> tuple[Any, str]:
        """An argument: what the backend is given, and how the file writes it."""
        if isinstance(value, StandIn):
            return inside(value)
        if isinstance(value, Iterator):
            parts = [self.given(entry) for entry in value]
            return iter([real for real, _ in parts]), f"iter([{', '.join(text for _, text in parts)}])"
        if type(value) is ReadOnlyList and not is_plain(value):
            real, text = self.given(list(value))
            return ReadOnlyList(real), f"{self.literals.name_of(ReadOnlyList)}({text})"
        if type(value) in (list, tuple) and not is_plain(value):
            parts = [self.given(entry) for entry in value]
            inner = ", ".join(text for _, text in parts)
            real = type(value)(real for real, _ in parts)
            return real, f"[{inner}]" if type(value) is list else f"({inner}{',' if len(parts) == 1 else ''})"
        if type(value) is dict and not is_plain(value):
            entries = {key: self.given(entry) for key, entry in value.items()}
            inner = ", ".join(f"{self.literals.of(key)}: {text}" for key, (_, text) in entries.items())
            return {key: real for key, (real, _) in entries.items()}, f"{{{inner}}}"
        return value, self._written(value)

    def _written(self, value: Any) -> str:
        if isinstance(value, Request):
            return self._request(value)
        known = self.text_of_known(value)
        if known is not None:
            return known
        try:
            if hasattr(value, "page_id"):
                return self._page(value)
            return self._pages(value) or self._groups(value) or self.literals.of(value)
        except UnrenderableError as error:
            self.problem = self.problem or f"{error} cannot be written"
            return "..."

    def _page(self, page: Any) -> str:
        """A page by its id."""
        for views, text in self._views:
            if page.page_id in views and views[page.page_id] == page:
                return f"{text}[{int(page.page_id)}]"
        raise UnrenderableError("a page of unknown origin")

    def _pages(self, value: Any) -> str:
        """A list of pages of a backend's own kind; empty if it is none."""
        if is_plain(value) or not isinstance(value, Sequence) or not all(hasattr(entry, "page_id") for entry in value):
            return ""
        return f"[{', '.join(map(self._page, value))}]"

    def _groups(self, value: Any) -> str:
        """Pages of several groups, of the backend's own class; empty if it is none."""
        if type(value) is not getattr(self._holder, "CachePages", None):
            return ""
        groups = [self.given(list(group))[1] for group in value.pages]
        return f"backend.CachePages(({', '.join(groups)}{',' if len(groups) == 1 else ''}))"

    def _request(self, request: Request) -> str:
        known = self._requests.get(id(request))
        if known is None:
            tokens = [int(token) for token in request.all_token_ids]
            arguments = [self.literals.of(request.request_id), self.literals.of(tokens)]
            if isinstance(request, SpelledRequest):
                arguments.append(self.literals.of(request.spelling))
            logprobs = request.sampling_params.prompt_logprobs
            if request.extra_keys:
                arguments.append(self.literals.of(tuple(request.extra_keys)))
            if logprobs is not None:
                arguments.append(f"prompt_logprobs={self.literals.of(logprobs)}")
            made = f"{self.literals.name_of(type(request))}({', '.join(arguments)})"
            name = request.request_id if isinstance(request.request_id, str) else ""
            statement = self.add(
                made, name=name if name.isascii() and name.isidentifier() else "request", prepares=True
            )
            fresh = {
                "num_computed_tokens": 0,
                "status": EngineRequestStatus.WAITING,
                "extra_keys": tuple(request.extra_keys),
            }
            known = _KnownRequest(request, statement.number or 0, request.num_tokens, fresh)
            self._requests[id(request)] = known
            self._note_changes(known)
        return mark(known.number)

    def _note_changes(self, known: _KnownRequest) -> None:
        request, name = known.request, mark(known.number)
        if request.num_tokens < known.num_tokens:
            text = f"{name}.num_tokens = {request.num_tokens}"
            self.statements.append(Statement(text, act=self.act, prepares=True))
            known.num_tokens = request.num_tokens
        for token in request.all_token_ids[known.num_tokens :]:
            self.statements.append(Statement(f"{name}.append({int(token)})", act=self.act, prepares=True))
        known.num_tokens = request.num_tokens
        for attribute, shown in known.shown.items():
            now = getattr(request, attribute)
            if type(now) is not type(shown) or now != shown:
                text = f"{name}.{attribute} = {self.literals.of(now)}"
                self.statements.append(Statement(text, act=self.act, prepares=True))
                known.shown[attribute] = now

    def text_of_result(self, value: Any) -> str:
        """The expression that gives what a call of the machine came to; empty if there is none."""
        if is_plain(value):
            last = self.statements[-1] if self.statements else None
            same = last is not None and last.act == self.act and type(last.value) is type(value)
            return mark(last.number or 0) if last is not None and same and equal(last.value, value) else ""
        before, self.problem = self.problem, ""
        text = self.given(value)[1]
        failed, self.problem = self.problem, before
        return "" if failed else text

    def add(self, text: str, **more: Any) -> Statement:
        """Adds a statement whose result is a variable."""
        self._count += 1
        statement = Statement(text, self._count, act=self.act, **more)
        self.statements.append(statement)
        return statement

    def made(self, what: StandIn, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Makes a call, and notes it first: it may raise."""
        called, text = inside(what)
        given = [self.given(argument) for argument in arguments]
        named = {name: self.given(argument) for name, argument in keywords.items()}
        shown = [*(part for _, part in given), *(f"{name}={part}" for name, (_, part) in named.items())]
        for known in self._requests.values():
            self._note_changes(known)
        reads = text.rpartition(".")[2] in _READS
        builds = isinstance(called, type)
        statement = self.add(f"{text}({', '.join(shown)})", name=_word(called), idle=reads, inline=builds)
        try:
            value = called(*(real for real, _ in given), **{name: real for name, (real, _) in named.items()})
        except BaseException as error:
            statement.refused = type(error).__name__
            raise
        statement.value = value
        return self.stand_in(value, mark(statement.number or 0))

    def set(self, what: StandIn, name: str, value: Any) -> None:
        """Sets an attribute, and notes it first."""
        owner, text = inside(what)
        real, shown = self.given(value)
        statement = Statement(f"{text}.{name} = {shown}", act=self.act)
        self.statements.append(statement)
        try:
            setattr(owner, name, real)
        except BaseException as error:
            statement.refused = type(error).__name__
            raise

    def name(self, made: Mapping[str, Any]) -> dict[str, Any]:
        """Gives things the names by which a side knows them; returns the backend's own objects."""
        real = {}
        for name, value in made.items():
            stripped = self.strip(value)
            real[name] = stripped
            self._name_one(name, stripped, made)
        return real

    def _name_one(self, name: str, value: Any, made: Mapping[str, Any]) -> None:
        known = self.text_of_known(value)
        owner = next((found for found in self.statements if known and known == mark(found.number or 0)), None)
        if owner is not None:
            owner.name, owner.inline = name, False
        elif known is not None:
            alias = self.add(known, name=name, idle=True)
            self.know(value, mark(alias.number or 0))
        elif type(value) in (list, dict) and value and not is_plain(value):
            self._name_many(name, value, made)

    def _name_many(self, name: str, value: Any, made: Mapping[str, Any]) -> None:
        """Names a list of things, or things by their ids; pages of a fresh pool are told by a function."""
        entries = value.values() if type(value) is dict else value
        texts = [self.text_of_known(entry) for entry in entries]
        if None in texts:
            return
        seen = next((text for views, text in self._views if _alike(views, value)), None)
        if seen is not None:
            self.know(value, seen)
            return
        pool = self.strip(made["pool"]) if name == "pages" and "pool" in made else None
        read = any(told.act == self.act and told.text.endswith(".get_all_free_pages()") for told in self.statements)
        if pool is not None and (read or hasattr(pool, "pages")):
            text = f"{page_views.__name__}({self.text_of_known(pool)})"
        elif type(value) is dict:
            keys = map(self.literals.of, value)
            text = f"{{{', '.join(f'{key}: {entry}' for key, entry in zip(keys, texts, strict=True))}}}"
        else:
            text = f"[{', '.join(map(str, texts))}]"
        self._see(value, mark(self.add(text, name=name, idle=True).number or 0))

    def _see(self, views: Any, text: str) -> None:
        """Notes by which expression things are known that stand in a list or by their ids."""
        self._known[id(views)] = views, text
        if type(views) is dict:
            self._views.insert(0, (views, text))
            for key, page in views.items():
                self.know(page, f"{text}[{self.literals.of(key)}]")


def _alike(views: Mapping[Any, Any], value: Any) -> bool:
    """Whether a dict holds the same things by the same keys."""
    return type(value) is dict and views.keys() == value.keys() and all(views[key] is value[key] for key in value)


_WORDS = {
    "get_computed_pages": "found",
    "allocate_slots": "new",
    "get_new_pages": "new",
    "get_device_tensor": "handle",
    "pin_prefix": "pin",
}


def _word(called: Any) -> str:
    """What the result of a call is called, unless somebody names it."""
    name = getattr(called, "__name__", "result")
    if isinstance(called, type):
        return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")
    return _WORDS.get(name, "result")


# -- The backend's side of a machine whose calls are noted ------------------------------------------------------------


@dataclass(frozen=True)
class NotedBackend(Backend):
    """A backend whose public names are given out as stand-ins.

    Attributes:
        notes: where calls are noted.
    """

    notes: Notes = field(default_factory=lambda: Notes(None))

    def get(self, attribute: str) -> Any:
        """See `Backend.get`."""
        return self.notes.stand_in(super().get(attribute), f"backend.{attribute}")

    def accepts(self, attribute: str, parameter: str) -> bool:
        """See `Backend.accepts`."""
        before, self.notes.on = self.notes.on, False
        try:
            return super().accepts(attribute, parameter)
        finally:
            self.notes.on = before


class NotedSide(Side):
    """The backend's side, which gives out stand-ins while calls are noted.

    Args:
        names: the backend.
    """

    def __init__(self, names: NotedBackend) -> None:
        super().__init__(names)
        self._notes = names.notes
        self._made: dict[str, Any] = {}

    def put(self, made: Mapping[str, Any]) -> None:
        """See `Side.put`."""
        sides = {name: value for name, value in made.items() if _is_sides(value)}
        self._made.update({name: list(map(self._within, value)) for name, value in sides.items()})
        self._made.update(self._notes.name({name: value for name, value in made.items() if name not in sides}))

    def _within(self, side: Side) -> "NotedSide":
        """A side within this one, whose things are noted as well."""
        noted = NotedSide(cast(NotedBackend, side.names))
        noted.put({name: value for name, value in vars(side).items() if name not in vars(Side(side.names))})
        return noted

    def __getattr__(self, name: str) -> Any:
        made = self.__dict__.get("_made", {})
        if name not in made:
            raise AttributeError(f"no {name} on this side")
        value, notes = made[name], self._notes
        if not notes.on:
            return value
        if type(value) is dict and value and all(notes.text_of_known(entry) for entry in value.values()):
            return {key: self._shown(entry) for key, entry in value.items()}
        if type(value) is list and value and all(notes.text_of_known(entry) for entry in value):
            return [self._shown(entry) for entry in value]
        return self._shown(value)

    def _shown(self, value: Any) -> Any:
        text = self._notes.text_of_known(value)
        return value if text is None else self._notes.stand_in(value, text)


def _is_sides(value: Any) -> bool:
    return type(value) is list and bool(value) and isinstance(value[0], Side)
