"""Calls as Python source: the statements of a test.

`Notes` writes a call down before it is made on the backend. What a `Ref` names is written as the variable that holds
the result of the call which gave it; a request is a variable, too, and what an engine changed in it between two calls
becomes statements. Reads of the state are not noted.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvproof.spec.declarations import EngineRequestStatus, Request

from ..calls.datum import Call, Holder, New, Ref, Saying, Spelled, resolve
from ..calls.deviation import attempt
from ..calls.judging import equal
from ..calls.method import Method, bound
from ..calls.spelling import OBJECTS, ReadOnlyList, SpelledRequest, Spelling
from .literals import Literals, UnrenderableError, is_plain

__all__ = ["MARK", "Notes", "Statement", "mark"]

_READS = frozenset({"get_num_free_pages", "get_usage", "get_page_ids", "get_device_tensor", "slot_of", "shard_of"})
"""Beside those that are asked about a request: methods that are left out of a test where nobody uses their result.

Of others that only read a fault may show in what is called next.
"""


@dataclass
class Statement:
    """One statement of the file, variables written as marks.

    Attributes:
        text: the statement, without what its result is assigned to.
        number: the number of the variable that its result is; None if it has none.
        name: what that variable is called, if anybody does; else it is called by what it is.
        idle: whether it can be left out where nobody uses its result.
        inline: whether it can be written where its result is used, if that is one place.
        builds: whether it constructs an object; calls on one that nothing else uses are left out with it.
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
    builds: bool = False
    act: int = 0
    prepares: bool = False
    refused: str = ""
    value: Any = None


MARK = re.compile("\ue000(\\d+)\ue001")
"""What `mark` gives, with the variable's number."""


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
        act: the number of the machine's call that is being made.
        problem: why what was noted is no use; empty while it is.
    """

    def __init__(self, holder: Any) -> None:
        self.statements: list[Statement] = []
        self.literals = Literals(holder)
        self.act = 0
        self.problem = ""
        self._texts: dict[int | str, str] = {}
        self._requests: dict[int, _KnownRequest] = {}
        self._count = 0
        self._built = -1

    # -- What is written down -----------------------------------------------------------------------------------

    def call(self, call: Call, row: Method, side: Holder) -> Statement:
        """Notes a call that is about to be made; what it names must be there.

        Args:
            call: the call.
            row: its row.
            side: the backend's side.
        """
        text = self._or_problem(lambda: self._text_of_call(call, row, side))
        if row.form == "set":
            statement = Statement(text, act=self.act)
            self.statements.append(statement)
            return statement
        reads = row.reads and (call.method in _READS or "request" in row.arguments)
        builds = row.form == "build"
        statement = self._add(text, name=_word(call.method), idle=reads, inline=builds, builds=builds)
        self._texts[call.number] = mark(statement.number or 0)
        return statement

    def _text_of_call(self, call: Call, row: Method, side: Holder) -> str:
        given = {name: self._written(value, side) for name, value in call.arguments.items()}
        owner = "backend" if call.target is None else self.text_of(call.target, side)
        for known in self._requests.values():
            self._note_changes(known)
        text = f"{owner}.{call.method}"
        if row.form in ("get", "set"):
            return " = ".join([text, *given.values()])
        leading, named = bound(tuple(row.arguments), given, row.by_name)
        return f"{text}({', '.join([*leading, *(f'{name}={value}' for name, value in named.items())])})"

    def _or_problem(self, write: Callable[[], str]) -> str:
        """What a function writes; a value that has no form in Python's source is a problem."""
        try:
            return write()
        except UnrenderableError as error:
            self.problem = self.problem or f"{error} cannot be written"
            return "..."

    def name(self, name: str, value: Any, side: Holder) -> None:
        """Notes a thing that the backend's side has by a name from now on; see `Calling.make`.

        Args:
            name: the name.
            value: how it was made; a call was noted when it was.
            side: the side.
        """
        if isinstance(value, Call):
            statement = self.statements[-1]
            statement.name, statement.inline, statement.idle = name, False, self._built == self.act
            self._built = self.act  # only what is made first need be there where nobody uses it
            self._texts[name] = mark(statement.number or 0)
            return
        self._texts.pop(name, None)
        if not isinstance(value, Ref) and (is_plain(value) or inspect.isroutine(value)):
            return
        text = self._or_problem(lambda: self._written(value, side))
        if not MARK.fullmatch(text):
            builds, inline = isinstance(value, New), isinstance(value, New | Ref | list)
            text = mark(self._add(text, name=name, idle=True, inline=inline, builds=builds).number or 0)
        self._texts[name] = text

    def followed(self) -> None:
        """Notes that a follower is told what a manager tells, as after every call that makes it tell something."""
        follower, manager = self._texts.get("follower"), self._texts.get("manager")
        if follower is not None:
            self.statements.append(Statement(f"{follower}.apply({manager}.take_events())", act=self.act, prepares=True))

    def text_of(self, ref: Ref, side: Holder) -> str:
        """The expression for what a `Ref` names: a number or a text itself, all else by the variable that holds it."""
        found = attempt(lambda: side.thing(ref))
        if isinstance(found.value, Request | str | int | np.generic):
            return self._literal(found.value)
        if ref.of not in self._texts:
            return self.text_of(ref.otherwise, side) if ref.otherwise is not None else self._literal(found.value)
        steps = (step if isinstance(step, str) and step[0] == "." else f"[{step}]" for step in ref.path)
        return self._texts[ref.of] + "".join(steps)

    def text_of_name(self, name: str) -> str | None:
        """The expression for what a side has by a name; None if it was not noted."""
        return self._texts.get(name)

    def text_of_result(self, statement: Statement, value: Any) -> str:
        """The expression that gives what a call of the machine came to, where its statement gave it; else empty."""
        given = statement.value
        same = value is given or (is_plain(value) and type(value) is type(given) and equal(value, given))
        return mark(statement.number) if same and statement.number is not None else ""

    # -- Values ---------------------------------------------------------------------------------------------------

    def _written(self, value: Any, side: Holder) -> str:
        """A value of a call, which may name things."""

        def write(entry: Any) -> str:
            return self._written(entry, side)

        if isinstance(value, Ref):
            return self.text_of(value, side)
        if isinstance(value, Saying):
            return write(value.request)
        if isinstance(value, Spelled) and value.how in OBJECTS:
            if value.how is Spelling.READ_ONLY:
                self.literals.name_of(ReadOnlyList)
            return value.how.source(value.values, write)
        if type(value) in (list, tuple):
            return _listed(value, map(write, value))
        if type(value) is dict:
            return f"{{{', '.join(f'{self._literal(key)}: {write(entry)}' for key, entry in value.items())}}}"
        made = value.as_python(write) if hasattr(value, "as_python") else ""
        return made or self._literal(resolve(value, side))

    def _literal(self, value: Any) -> str:
        """Data, in which there may be requests."""
        if isinstance(value, Request):
            return self._request(value)
        if isinstance(value, Iterator):
            return f"iter([{', '.join(map(self._literal, value))}])"
        if type(value) in (list, tuple):
            return _listed(value, map(self._literal, value))
        return self.literals.of(value)

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
            statement = self._add(
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

    def _add(self, text: str, **more: Any) -> Statement:
        """Adds a statement whose result is a variable."""
        self._count += 1
        statement = Statement(text, self._count, act=self.act, **more)
        self.statements.append(statement)
        return statement


def _listed(value: Any, parts: Iterable[str]) -> str:
    """A list or a tuple of parts."""
    inner = ", ".join(parts)
    return f"[{inner}]" if type(value) is list else f"({inner}{',' if len(value) == 1 else ''})"


_WORDS = {
    "get_computed_pages": "found",
    "allocate_slots": "new",
    "get_new_pages": "new",
    "get_device_tensor": "handle",
    "pin_prefix": "pin",
}


def _word(name: str) -> str:
    """What the result of a call is called, unless somebody names it."""
    if name[0].isupper():
        return "".join(f"_{char.lower()}" if char.isupper() else char for char in name).lstrip("_")
    return _WORDS.get(name, "result")
