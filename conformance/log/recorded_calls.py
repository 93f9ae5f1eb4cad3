"""Any method of a recorded object: its arguments are read, the call is made, what came of it is noted."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .argument_texts import READ_OFTEN, Shape, bare, materialised, shape_of, spellings
from .call_texts import encode, outcome_text, text_of
from .calls import LoggedCall
from .columns import listed
from .values import kind_of
from .writer import LogWriter

__all__ = ["KeyOrigins", "RecordedCall"]

_TELLS_ALL = {
    *("get_computed_pages", "pin_prefix", "set_prefix_priority", "cache_full_pages"),
    *("swap_out", "swap_in", "receive_pages"),
}
"""The calls that read a request's tokens from the first on."""

_ENDS = {"free", "free_page_hashes"}
"""The calls behind which a request is rarely heard of."""

_CACHING = ("request", "pages", "num_cached_pages", "num_full_pages", "page_size")


class KeyOrigins:
    """Of which page of which request a key is, for the calls that are handed one (no key stands in a log)."""

    def __init__(self) -> None:
        self._origins: dict[Any, tuple[Any, int, int]] = {}

    def learn(self, request: Any, pages: Any, first: int, end: int, page_size: int) -> None:
        """Notes the keys of a request's pages that were just cached."""
        for place, page in enumerate(pages):
            if first <= place < end and page.page_hash is not None:
                self._origins[_digest(page.page_hash)] = (request, place, page_size)

    def of(self, key: Any) -> tuple[Any, int, int] | None:
        """Request, place and page size of a key; None for one that no call has cached."""
        return self._origins.get(_digest(key))


def _digest(key: Any) -> Any:
    key = getattr(key, "page_hash", key)  # that of a group, perhaps
    return getattr(key, "hash_value", key)


class RecordedCall:
    """A method that notes its calls.

    What is to be known of a call's arguments is found out once for each `Shape` of call.

    Args:
        writer: the log.
        number: the object's number in it.
        method: the method's name.
        call: what is known of it.
        act: the method itself.
        origins: where the pool's keys come from.
    """

    def __init__(
        self,
        writer: LogWriter,
        number: int,
        method: str,
        call: LoggedCall,
        act: Callable[..., Any],
        origins: KeyOrigins,
    ) -> None:
        self._writer, self._call, self._act, self._origins = writer, call, act, origins
        self._head = f'["call",{number},{text_of(method)},{{'
        self._spelt = spellings(writer.requests, whole=method in _TELLS_ALL, ends=method in _ENDS)
        self._shapes: dict[Any, Shape] = {}
        self._lists_running = method == "get_num_common_prefix_pages"
        self._names_key = "key" in call.arguments.values()
        self._frees = method == "free"
        self._learns = method == "cache_full_pages"
        self._ends = method in _ENDS
        self._passed = call.reads and writer.passes_over
        self._method = method
        functools.update_wrapper(self, act)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Makes the call and notes it, unless the log has ended or passes it over."""
        if self._writer.failure is not None or (self._passed and self._passed(self._method)):
            return self._act(*map(bare, args), **{name: bare(value) for name, value in kwargs.items()})
        shape = self._shape(args, kwargs)
        values: Sequence[Any] = (*args, *kwargs.values()) if kwargs else args
        for place in shape.once:
            if type(values[place]) not in READ_OFTEN:
                values = [*values[:place], materialised(values[place]), *values[place + 1 :]]
        given = self._given(shape, values)
        if shape.wrapped:
            values = [bare(value) if place in shape.wrapped else value for place, value in enumerate(values)]
        try:
            if values is args:
                value = self._act(*args)
            else:
                value = self._act(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))
        except Exception as error:
            self.note_error(given, error)
            raise
        self.note(given, value)
        if self._learns:
            self._origins.learn(*(values[shape.places[name]] for name in _CACHING))
        if self._ends:
            self._writer.requests.forget(values[shape.places["request"]], freed=self._frees)
        return value

    def note(self, given: str, value: Any) -> None:
        """Notes a call that returned.

        Args:
            given: its arguments as the log has them, without the braces.
            value: what it returned.
        """
        kind = self._call.result
        if kind == "ids" and value:
            outcome = encode(list(map(self._writer.requests.text, value)))
        else:
            outcome = outcome_text(kind, value, self._writer.keys)
        self._writer.note(f"{self._head}{given}}},{outcome}]")

    def refused(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> None:
        """Notes a call that was made elsewhere and raised."""
        self.note_error(self._given(self._shape(args, kwargs), (*args, *kwargs.values())), error)

    def note_error(self, given: str, error: Exception) -> None:
        """Notes a call that raised; see `note`."""
        self._writer.note(f"{self._head}{given}}},null,{text_of(kind_of(error))}]")

    def _shape(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Shape:
        key = (len(args), *kwargs) if kwargs else len(args)
        shape = self._shapes.get(key)
        if shape is None:
            shape = self._shapes[key] = shape_of(self._call.arguments, self._spelt, len(args), list(kwargs))
        return shape

    def _given(self, shape: Shape, values: Sequence[Any]) -> str:
        """The arguments as the log has them; those that are another package's own are its own affair."""
        given = [before + spelt(values[place]) for place, before, spelt in shape.told]
        if self._lists_running:
            given.append(f'"running":{listed(self._writer.requests.running())}')
        if self._names_key:
            place = shape.places.get("page_hash")
            origin = None if place is None else self._origins.of(values[place])
            given.append(f'"page_hash":{encode({"key": None if origin is None else list(origin[1:])})}')
            if origin is not None:
                given.append(f'"origin":{self._spelt["request"](origin[0])}')
        return ",".join(given)
