"""What a call is: a method, what it is called on, and its arguments as plain values that can be written and read again.

A thing that no text can hold is named by how it came about: a page by the call that gave it (`Ref`), a request by what
it asks for (`Prompt`), a key by the page of a request whose key it is (`Key`), a list by its entries and the type in
which they are handed over (`Spelled`), an object by how it is constructed (`New`), or by the call whose result it is
(`Hashed`). What an engine says of a request
goes with it (`Saying`). `resolve` makes of such a value what one side is given: by its method ``made_on`` where it has
one. One that is written in tests otherwise than as what it makes has a method ``as_python``, too.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from kvproof.spec.declarations import ExtraKey

from .spelling import Spelling, request_as, request_source

__all__ = [
    *("Call", "Described", "GoneError", "Hashed", "Holder", "Key", "Minus", "New", "Pages", "Prompt", "Ref"),
    *("Saying", "Slot", "Spelled"),
    *(
        "LEFT_OUT",
        "exchange",
        "fitting",
        "growing",
        "grown",
        "larger",
        "mended",
        "refs",
        "renamed",
        "resolve",
        "said_of",
        "simpler",
        "smaller",
    ),
    "written",
]


class GoneError(LookupError):
    """A `Ref` names what no call gave: the call that gave it was left out, or refused; or what one side lacks."""

    def __str__(self) -> str:
        return f"there is no {super().__str__()}"


LEFT_OUT: Any = object()
"""Among the changes of a call's arguments: one that is not given."""


@dataclass(frozen=True)
class Ref:
    """A thing that both sides have: ``Ref(3, (0, 1))`` is ``r3[0][1]``, the result of call 3; ``Ref("pool")`` the pool.

    Attributes:
        of: the number of the call that gave it, or the name by which a side has it.
        path: the way from there to the thing: entries by their keys, attributes by ``.name``, the first entries of a
            list by ``:count``.
        otherwise: what it names where that call was left out, such as the page by its id.
    """

    of: int | str
    path: tuple[int | str, ...] = ()
    otherwise: "Ref | None" = field(default=None, compare=False, repr=False)

    def to(self, *path: int | str) -> "Ref":
        """A thing within this one."""
        return Ref(self.of, (*self.path, *path), self.otherwise and self.otherwise.to(*path))

    def __str__(self) -> str:
        steps = (step if isinstance(step, str) and step[0] == "." else f"[{step}]" for step in self.path)
        return (f"r{self.of}" if isinstance(self.of, int) else self.of) + "".join(steps)


@dataclass(frozen=True)
class Spelled:
    """A list, and the type in which it is handed over."""

    how: Spelling
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Prompt:
    """A request, by what it asks for."""

    tokens: tuple[int, ...]
    extra_keys: tuple[ExtraKey, ...] = ()
    how: Spelling = Spelling.INT32
    request_id: str = "r"
    logprobs: int | None = None


@dataclass(frozen=True)
class Saying:
    """A request, and what the engine says of it when it hands it over.

    Attributes:
        request: the request: a `Ref` or a `Prompt`.
        said: attributes of the request that are set first, such as ``num_computed_tokens``, each with its value.
    """

    request: Any
    said: tuple[tuple[str, Any], ...]

    def made_on(self, holder: "Holder") -> Any:
        """The request, which says so from now on."""
        request = resolve(self.request, holder)
        for name, value in self.said:
            setattr(request, name, value)
        return request

    def simpler(self) -> Iterator["Saying"]:
        """The same with a smaller number."""
        for place, (name, value) in enumerate(self.said):
            for less in simpler(value):
                yield replace(self, said=(*self.said[:place], (name, less), *self.said[place + 1 :]))


@dataclass(frozen=True)
class Pages:
    """Page lists group by group, made by the backend's own ``CachePages``.

    Attributes:
        groups: the lists, each a list of pages or a `Ref` to one.
    """

    groups: Any

    def made_on(self, holder: "Holder") -> Any:
        """A side's own object."""
        return holder.names.get("CachePages")(resolve(self.groups, holder))

    def as_python(self, write: Callable[[Any], str]) -> str:
        """The call that makes it; ``write`` writes what is in it."""
        return f"backend.CachePages({write(self.groups)})"


@dataclass(frozen=True)
class New:
    """An object of a public class of the backend, which is made for one call.

    Attributes:
        name: the class.
        arguments: what it is constructed with, by position.
        options: further arguments, by name.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    def made_on(self, holder: "Holder") -> Any:
        """A side's own object."""
        options = {name: resolve(value, holder) for name, value in self.options}
        return holder.names.get(self.name)(*resolve(self.arguments, holder), **options)

    def as_python(self, write: Callable[[Any], str]) -> str:
        """The call of the constructor; ``write`` writes what is in it."""
        given = [*map(write, self.arguments), *(f"{name}={write(value)}" for name, value in self.options)]
        return f"backend.{self.name}({', '.join(given)})"

    def __str__(self) -> str:
        given = [*map(str, self.arguments), *(f"{name}={value}" for name, value in self.options)]
        return f"{self.name}({', '.join(given)})"


@dataclass(frozen=True)
class Minus:
    """A number less one that a call gave: the tokens of a prompt that are new behind a hit.

    Attributes:
        number: the number.
        less: what is taken from it.
    """

    number: int
    less: Ref

    def made_on(self, holder: "Holder") -> int:
        """The difference on one side."""
        return self.number - int(holder.thing(self.less))

    def simpler(self) -> Iterator[int]:
        """The number itself."""
        yield self.number


@dataclass(frozen=True)
class Slot:
    """A live request's slot in batched steps.

    Attributes:
        manager: the manager.
        request_id: the request's id.
    """

    manager: Ref
    request_id: str

    def made_on(self, holder: "Holder") -> int:
        """The slot on one side."""
        return int(holder.thing(self.manager).slot_of(self.request_id))

    def __repr__(self) -> str:
        return f"slot of {self.request_id}"


@dataclass(frozen=True)
class Described:
    """A value that is written as what it is, as nobody would read it: a document, a key, a request that is none.

    Attributes:
        value: the value.
        what: what it is.
    """

    value: Any
    what: str

    def made_on(self, _: "Holder") -> Any:
        """A copy for one side: what is handed over may be changed."""
        return copy.deepcopy(self.value)

    def __str__(self) -> str:
        return f"<{self.what}>"


@dataclass(frozen=True)
class Key:
    """The key of one page of a request.

    Attributes:
        prompt: the request.
        page_size: tokens in a page.
        place: which of its full pages.
        made_by_hand: whether it is a key of the same tokens with another digest: no page's.
        group: the cache group, of a key that names one.
    """

    prompt: Prompt
    page_size: int
    place: int
    made_by_hand: bool = False
    group: int | None = None


@dataclass(frozen=True)
class Hashed:
    """The keys of all full pages of a request as `hash_request_tokens` gives them: its own result, and no list of keys.

    Attributes:
        prompt: the request.
        page_size: tokens in a page.
        seed: of what the root of the keys is made.
    """

    prompt: Prompt
    page_size: int
    seed: bytes

    def made_on(self, holder: "Holder") -> Any:
        """What a side's own function gives."""
        hashed, init, function = map(holder.names.get, ("hash_request_tokens", "init_none_hash", "sha256"))
        return hashed(function, self.page_size, resolve(self.prompt, holder), none_hash=init(self.seed))

    def as_python(self, write: Callable[[Any], str]) -> str:
        """The call of the function; ``write`` writes the request."""
        root = f"backend.init_none_hash({self.seed!r})"
        given = f"backend.sha256, {self.page_size}, {write(self.prompt)}, none_hash={root}"
        return f"backend.hash_request_tokens({given})"

    def simpler(self) -> Iterator[Any]:
        """The keys as a list; those of a simpler request."""
        yield [Key(self.prompt, self.page_size, place) for place in range(len(self.prompt.tokens) // self.page_size)]
        yield from (replace(self, prompt=less) for less in simpler(self.prompt))

    def __str__(self) -> str:
        return f"hash_request_tokens(sha256, {self.page_size}, {written(self.prompt)})"


@dataclass(frozen=True)
class Call:
    """What is called, and with what.

    Attributes:
        target: what it is called on; None for a class of the backend, which is named by ``method``.
        method: the name of the method, or of the attribute that is set.
        arguments: by name, in the order of the method.
        number: what `Ref` calls its result; it stays when calls before it are left out.
        fault: the name of the argument that is wrong; "" if none is known to be.
        refused: whether the specification refused it when it was drawn.
        about: the label of the clause that it is made for, where not that of the row.
    """

    target: Ref | None
    method: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    fault: str = ""
    refused: bool = False
    about: str = ""

    @property
    def name(self) -> str:
        """What its step is called."""
        return self.method

    def given(self, **changes: Any) -> "Call":
        """The same call with other arguments, those left out that are `LEFT_OUT`."""
        given = {name: value for name, value in {**self.arguments, **changes}.items() if value is not LEFT_OUT}
        return replace(self, arguments=given)

    def __repr__(self) -> str:
        given = ", ".join(f"{name!r}: {value!r}" for name, value in self.arguments.items())
        about = f", about={self.about!r}" if self.about else ""
        return f"Call({self.target!r}, {self.method!r}, {{{given}}}, {self.number}{about})"


class Holder(Protocol):
    """One of the two sides that are compared: it has objects by name, and the results of calls.

    Attributes:
        names: where its public names come from.
    """

    names: Any

    def thing(self, ref: Ref) -> Any:
        """The thing that a `Ref` names; raises `GoneError` if there is none."""

    def key(self, key: Key) -> Any:
        """This side's own key for a page of a request; raises `GoneError` if it was never shown."""


def resolve(value: Any, holder: Holder) -> Any:
    """What one side is given for a value. Raises `GoneError`."""
    if isinstance(value, Ref):
        return holder.thing(value)
    if isinstance(value, Spelled):
        return value.how.of(resolve(entry, holder) for entry in value.values)
    if type(value) in (list, tuple):  # an empty list, too, is a new one each time: who is given it may add to it
        return type(value)(resolve(entry, holder) for entry in value)
    if type(value) is dict:
        return {name: resolve(entry, holder) for name, entry in value.items()}
    if isinstance(value, Prompt):
        return request_as(value.how, value.request_id, value.tokens, value.extra_keys, value.logprobs)
    if isinstance(value, Key):
        return holder.key(value)
    return value.made_on(holder) if hasattr(value, "made_on") else value


def renamed(value: Any, name: Callable[[Ref], Ref]) -> Any:
    """A value with other names for the same things."""
    if isinstance(value, Ref):
        return name(value)
    if isinstance(value, Spelled):
        return replace(value, values=renamed(value.values, name))
    if isinstance(value, Pages):
        return Pages(renamed(value.groups, name))
    if isinstance(value, Saying):
        return replace(value, request=renamed(value.request, name))
    if isinstance(value, Minus):
        return replace(value, less=name(value.less))
    if isinstance(value, Slot):
        return replace(value, manager=name(value.manager))
    if type(value) in (list, tuple):
        return type(value)(renamed(entry, name) for entry in value)
    return value


def exchange(steps: Sequence[Any], one: Ref, other: Ref) -> tuple[Any, ...]:
    """A sequence in which two things have changed places, as arguments of all its calls."""

    def name(ref: Ref) -> Ref:
        return other if ref == one else one if ref == other else ref

    return tuple(
        step.given(**{argument: renamed(value, name) for argument, value in step.arguments.items()})
        if isinstance(step, Call)
        else step
        for step in steps
    )


def refs(value: Any) -> Iterator[Ref]:
    """Every `Ref` in a value."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, Spelled):
        yield from refs(value.values)
    elif isinstance(value, Pages):
        yield from refs(value.groups)
    elif isinstance(value, Saying):
        yield from refs(value.request)
    elif isinstance(value, Minus):
        yield value.less
    elif isinstance(value, Slot):
        yield value.manager
    elif isinstance(value, Call):
        yield from refs((value.target, *value.arguments.values()))
    elif type(value) in (list, tuple):
        for entry in value:
            yield from refs(entry)


def said_of(value: Any) -> tuple[tuple[str, Any], ...]:
    """What an engine says of a request when it hands it over; nothing of any other value."""
    return value.said if isinstance(value, Saying) else ()


def written(value: Any, shown: Callable[[Ref], str] = str) -> str:
    """A value as Python text; salts stand in it by their fingerprints (SEC-2).

    Args:
        value: the value.
        shown: how a `Ref` is written.
    """

    def each(entry: Any) -> str:
        return written(entry, shown)

    if isinstance(value, Ref):
        return shown(value)
    if isinstance(value, Spelled):
        return value.how.source(value.values, each)
    if type(value) is list:
        return f"[{', '.join(map(each, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(each, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, Prompt):
        return request_source(value.how, value.request_id, value.tokens, value.extra_keys, value.logprobs)
    if isinstance(value, Saying):
        return each(value.request)
    if isinstance(value, Pages):
        return f"<pages {each(value.groups)}>"
    if isinstance(value, Minus):
        return f"{value.number} - {each(value.less)}"
    if isinstance(value, Key):
        owner = "no page" if value.made_by_hand else f"page {value.place}"
        return f"<key of {owner} of {list(value.prompt.tokens)}>"
    return str(value) if hasattr(value, "made_on") else repr(value)


def mended(steps: Sequence[Any]) -> tuple[Any, ...]:
    """A sequence without mentions of what no call in it gives, and without the calls that can't do without them.

    Args:
        steps: calls, and steps of other kinds, which are kept.
    """
    kept: list[Any] = []
    given: set[int] = set()
    for step in steps:
        if isinstance(step, Call):
            step = fitting(step, given)
            if step is None:
                continue
            given.add(step.number)
        kept.append(step)
    return tuple(kept)


def fitting(call: Call, given: set[int]) -> Call | None:
    """A call without mentions of what others gave than calls of some numbers; None if it can't do without them."""
    left = replace(call, arguments={name: _without(value, given) for name, value in call.arguments.items()})
    gone = any(isinstance(ref.of, int) and ref.of not in given for ref in refs(left))
    return None if gone else left


def growing(step: Any) -> str:
    """The id of the request that gets a token more by a step; "" if none does: a queue gets pages by such a call."""
    grows = isinstance(step, Call) and step.target is not None and "token_id" in step.arguments
    return str(step.target.of) if grows else ""


def grown(steps: Sequence[Any], names: Iterable[str]) -> tuple[Any, ...]:
    """A sequence in which some requests come with the tokens that they have at their end, and do not grow.

    Args:
        steps: calls, and steps of other kinds, which are kept.
        names: the requests' ids.
    """
    kept: list[Any] = []
    more: dict[str, tuple[int, ...]] = dict.fromkeys(names, ())
    for step in reversed(steps):
        prompt = step.arguments.get("prompt") if isinstance(step, Call) else None
        name = growing(step)
        if name in more:
            more[name] = (step.arguments["token_id"], *more[name])
            continue
        if isinstance(prompt, Prompt) and more.get(prompt.request_id):
            step = step.given(prompt=replace(prompt, tokens=(*prompt.tokens, *more[prompt.request_id])))
            more[prompt.request_id] = ()
        kept.append(step)
    return tuple(reversed(kept))


def _without(value: Any, given: set[int]) -> Any:
    """A list without the mentions of what calls that are not among some gave."""
    if isinstance(value, Spelled):
        return replace(value, values=_without(value.values, given))
    if type(value) in (list, tuple):
        entries = (_without(entry, given) for entry in value)
        return type(value)(
            entry for entry in entries if not isinstance(entry, Ref) or isinstance(entry.of, str) or entry.of in given
        )
    return value


def larger(call: Call, most: int) -> Iterator[Call]:
    """The same call with a larger number, or a list whose last entry stands in it once more."""
    for name, value in call.arguments.items():
        if isinstance(value, int | np.integer) and type(value) is not bool:
            yield from (call.given(**{name: more}) for more in range(int(value) + 1, most))
        elif isinstance(value, Spelled) and value.values:
            yield call.given(**{name: replace(value, values=(*value.values, value.values[-1]))})
        elif type(value) is list and value:
            yield call.given(**{name: [*value, value[-1]]})


def simpler(value: Any) -> Iterator[Any]:
    """Values that are simpler than one, the simplest first; nothing for what cannot be made simpler."""
    if isinstance(value, Call):
        for name, given in value.arguments.items():
            yield from (value.given(**{name: less}) for less in simpler(given))
    elif isinstance(value, Spelled):
        yield from (replace(value, how=how) for how in simpler(value.how))
        yield from (replace(value, values=less) for less in simpler(value.values))
    elif isinstance(value, Prompt):
        yield from (replace(value, tokens=less) for less in simpler(value.tokens))
        yield from (replace(value, extra_keys=less) for less in simpler(value.extra_keys))
        if value.how is not Spelling.INT32:
            yield replace(value, how=Spelling.INT32)
        if value.logprobs is not None:
            yield replace(value, logprobs=None)
    elif value is True:
        yield False
    elif isinstance(value, int | np.integer) and value and type(value) is not bool:
        number, step = int(value), 1 if value > 0 else -1
        yield from dict.fromkeys((0, *(step * less for less in smaller(abs(number)))))
        if type(value) is not int:
            yield number
    elif type(value) in (list, tuple):
        yield from _shorter(value)
    elif type(value) is dict:
        yield from ({name: kept for name, kept in value.items() if name != left_out} for left_out in value)
    elif hasattr(value, "simpler"):
        yield from value.simpler()


def smaller(number: int) -> Iterator[int]:
    """Numbers from half of a positive one up to one less than it, ever closer to it.

    Where all numbers from some one on will do, whoever takes the first of these that will do, again and again, comes to
    the smallest in tries of the order of the logarithm's square.
    """
    parts = range(2, number.bit_length())
    yield from dict.fromkeys((number // 2, *(number - (number >> part) for part in parts), number - 1))


def _shorter(values: Any) -> Iterator[Any]:
    """A list or a tuple without some of its entries, or with one entry made simpler."""
    if values:
        yield values[:0]
    if len(values) > 2:
        yield values[: len(values) // 2]
        yield values[len(values) // 2 :]
    for place in range(len(values)):
        yield values[:place] + values[place + 1 :]
    for place, entry in enumerate(values):
        for less in simpler(entry):
            yield values[:place] + type(values)([less]) + values[place + 1 :]
