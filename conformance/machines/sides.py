"""The two sides that a machine compares, and what it compares of them."""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ..backends.loading import Backend
from ..calls.datum import GoneError, Key, Prompt, Ref, resolve
from ..calls.readings import SHOWS

__all__ = ["Both", "Field", "Side", "hashed_key", "part_of", "same", "unread"]


class Side:
    """One of the two that are compared: the specification, or the backend. Machines add what they build.

    Args:
        names: where its public names come from.

    Attributes:
        made: what several readings are given, worked out once in a comparison of states: by the sides' ids; else None.
        results: the results of calls by their numbers.
        find_key: finds its own key for a page of a request; None: there is none.
        hashed: the request whose keys were hashed last, the page size, and the keys; see `hashed_key`.
    """

    made: ClassVar[dict[int, dict[str, Any]] | None] = None

    def __init__(self, names: Backend) -> None:
        self.names = names
        self.results: dict[int, Any] = {}
        self.find_key: Callable[[Key], Any] | None = None
        self.hashed: tuple[Prompt | None, Any, list[Any]] = None, None, []

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """What a machine put there under a name."""

    def thing(self, ref: Ref) -> Any:
        """What a `Ref` names on this side, or of the backend; raises `GoneError` if there is no such thing."""
        try:
            if isinstance(ref.of, int):
                found = self.results[ref.of]
            else:
                found = vars(self)[ref.of] if ref.of in vars(self) else getattr(self.names.holder, ref.of)
            for step in ref.path:
                if isinstance(step, int):
                    found = found[step]
                else:
                    found = found[: int(step[1:])] if step[0] == ":" else getattr(found, step[1:])
        except (LookupError, AttributeError) as error:
            if ref.otherwise is not None:
                return self.thing(ref.otherwise)
            raise GoneError(str(ref)) from error
        return found

    def key(self, key: Key) -> Any:
        """This side's own key for a page of a request; raises `GoneError` if the machine knows none."""
        if self.find_key is None:
            raise GoneError(str(key))
        return self.find_key(key)

    def put(self, made: Mapping[str, Any]) -> None:
        """Puts things there, each under its name."""
        vars(self).update(made)


def hashed_key(side: Side, key: Key) -> Any:
    """A side's own key of a page of a request, by its tokens and the root of the pool; one made by hand is no page's.

    The keys of a request are hashed once for all calls that name several of them one after another.
    """
    if key.made_by_hand:
        return side.names.get("PageHash")(b"no key of any page", (), None)
    prompt, size, keys = side.hashed
    if prompt is not key.prompt or size != key.page_size:
        request, hashed = resolve(key.prompt, side), side.names.get("hash_request_tokens")
        keys = list(hashed(side.pool.hash_function, key.page_size, request, none_hash=side.pool.none_hash))
        side.hashed = key.prompt, key.page_size, keys
    own = keys[key.place]
    return own if key.group is None else side.names.get("PageHashWithGroupId")(own, key.group)


def part_of(side: Side, requests: Iterable[str], name: str) -> Any:
    """What a reading is given: a thing that a side has, or the ids of all requests."""
    return list(requests) if name == "names" else getattr(side, name)


@dataclass(frozen=True)
class Field:
    """One thing that the observable state shows.

    Attributes:
        name: what it is called in a report.
        clause: the label that its differences are charged to, unless the call that made them says otherwise.
        read: how it is read off a side.
        agree: whether the backend's value agrees with the specification's.
        blame: the label for a difference between two values, where it depends on them; else empty.
        also: other labels that ``blame`` may give.
        aside: whether no later call depends on it: then a wrong value by a clause that is not looked at does not
            end the example.
        inner: whether no user sees it, as what a backend's own ``check()`` finds: a wrong value is reported where
            nothing else differs in the whole run.
        every: the number of calls of which one is followed by a look at it, where a look costs much.
    """

    name: str
    clause: str
    read: Callable[[Any], object]
    agree: Callable[[Any, Any], bool] = operator.eq
    blame: Callable[[Any, Any], str] | None = None
    also: tuple[str, ...] = ()
    aside: bool = False
    inner: bool = False
    every: int = 1

    @classmethod
    def of(cls, name: str, requests: Iterable[str] = (), way: int = 0, **more: Any) -> "Field":
        """A field that is read as emitted tests look at it; see `SHOWS`, which has its clause.

        Args:
            name: the field's name.
            requests: the ids of all requests, whose number may grow.
            way: which of several ways of looking at it.
            more: the other attributes.
        """
        shows = SHOWS[name]
        reading = shows.readings[way]

        def read(side: Side) -> object:
            made = None if Side.made is None else Side.made.setdefault(id(side), {})
            return cast(object, reading.looked(functools.partial(part_of, side, requests), made))

        return cls(name, **{"clause": shows.clause, "read": read, **more})


@dataclass(frozen=True)
class Both:
    """What a call returned on both sides.

    Attributes:
        spec: the specification's value.
        backend: the backend's value.
        refused: whether the call was refused, by both.
    """

    spec: Any = None
    backend: Any = None
    refused: bool = False


def same(value: Any, _: Side) -> object:
    """A result that compares as it is."""
    return value


def unread(*_: object) -> None:
    """A result of which nothing is compared right away."""
