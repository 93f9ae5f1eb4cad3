"""Any method of a recorded object: its arguments are read, the call is made, what came of it is noted."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .call_texts import encode, groups_text, outcome_text, plain_text, text_of
from .calls import Call
from .columns import listed
from .values import kind_of, page_ids
from .writer import LogWriter

__all__ = ["KeyOrigins", "RecordedCall", "bare", "materialised"]

_TELLS_ALL = {"get_computed_pages", "pin_prefix", "set_prefix_priority", "cache_full_pages"}
"""The calls that read a request's tokens from the first on."""

_ENDS = {"free", "free_page_hashes"}
"""The calls behind which a request is rarely heard of."""

_SIMPLE = {int, bool, list, tuple, str, type(None), np.ndarray}

_READ_OFTEN = {int, bool, type(None), np.ndarray}

_CACHING = ("request", "pages", "num_cached_pages", "num_full_pages", "page_size")


def bare(value: Any) -> Any:
    """An argument as the engine's own objects know it: not the recorded one."""
    own = getattr(value, "__dict__", None)
    return value if own is None else own.get("_kvproof_thing", value)


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

    Args:
        writer: the log.
        number: the object's number in it.
        method: the method's name.
        call: what is known of it.
        act: the method itself.
        origins: where the pool's keys come from.
    """

    def __init__(
        self, writer: LogWriter, number: int, method: str, call: Call, act: Callable[..., Any], origins: KeyOrigins
    ) -> None:
        self._writer, self._number, self._method, self._call = writer, number, method, call
        self._act, self._origins = act, origins
        self._names = list(call.arguments)
        self._head = f'["call",{number},{text_of(method)},{{'
        self._is_plain = set(call.arguments.values()) <= {"plain"} and call.result in ("none", "plain")
        self._takes_request = self._names[:1] == ["request"] and method != "get_num_common_prefix_pages"
        self._tells_all = method in _TELLS_ALL
        self._ends = method in _ENDS
        functools.update_wrapper(self, act)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Makes the call and notes it."""
        if self._writer.failure is not None:  # the log has ended
            return self._act(*map(bare, args), **{name: bare(value) for name, value in kwargs.items()})
        if not kwargs:
            if self._takes_request and len(args) == 1:
                return self._call_on(args[0])
            if self._is_plain and _SIMPLE.issuperset(map(type, args)):
                return self._call_plainly(args)
        args = tuple(materialised(value) for value in args)
        kwargs = {name: materialised(value) for name, value in kwargs.items()}
        given = self._given(args, kwargs)
        try:
            value = self._act(*map(bare, args), **{name: bare(value) for name, value in kwargs.items()})
        except Exception as error:
            self.note_error(given, error)
            raise
        self.note(given, value)
        named = {**dict(zip(self._names, args, strict=False)), **kwargs}
        if self._method == "cache_full_pages":
            self._origins.learn(*(named[name] for name in _CACHING))
        if self._ends:
            self._writer.requests.forget(named["request"])
        return value

    def _call_on(self, request: Any) -> Any:
        """The same for a request and nothing else."""
        given = f'"request":{self._writer.requests.told(request, whole=self._tells_all)}'
        try:
            value = self._act(request)
        except Exception as error:
            self.note_error(given, error)
            raise
        self.note(given, value)
        if self._ends:
            self._writer.requests.forget(request)
        return value

    def _call_plainly(self, args: tuple[Any, ...]) -> Any:
        """The same for numbers and lists of them, as tables are called in each step."""
        given = ",".join([f'"{name}":{plain_text(value)}' for name, value in zip(self._names, args, strict=False)])
        try:
            value = self._act(*args)
        except Exception as error:
            self.note_error(given, error)
            raise
        self.note(given, value)
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

    def refused(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> None:
        """Notes a call that was made elsewhere and raised."""
        self.note_error(self._given(args, kwargs), error)

    def note_error(self, given: str, error: Exception) -> None:
        """Notes a call that raised; see `note`."""
        self._writer.note(f"{self._head}{given}}},null,{text_of(kind_of(error))}]")

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The arguments as the log has them; those that are another package's own are its own affair."""
        kinds = self._call.arguments
        named = {**dict(zip(self._names, args, strict=False)), **kwargs}
        given = {name: self._argument(kinds[name], value) for name, value in named.items() if name in kinds}
        requests = self._writer.requests
        if self._method == "get_num_common_prefix_pages":
            given["running"] = listed(requests.running())
        if "key" in kinds.values():
            origin = self._origins.of(named.get("page_hash"))
            given["page_hash"] = encode({"key": None if origin is None else list(origin[1:])})
            if origin is not None:
                given["origin"] = requests.told(origin[0], whole=self._tells_all)
        return ",".join([f'"{name}":{text}' for name, text in given.items()])

    def _argument(self, kind: str, value: Any) -> str:
        """An argument as the log has it; of a request what it says now."""
        requests = self._writer.requests
        match kind:
            case "request":
                return requests.told(value, whole=self._tells_all)
            case "id" if isinstance(value, str):
                return text_of(requests.text(value))
            case "pages":
                return encode(page_ids(value))
            case "groups":
                return encode(list(map(page_ids, value)) if isinstance(value, list | tuple) else page_ids(value))
            case "hits" if hasattr(value, "get_page_ids"):
                return groups_text(value)
            case "keys" if isinstance(value, list | tuple):
                return encode({"keys": len(value)})
            case "tables" if "_kvproof_number" in getattr(value, "__dict__", {}):
                return encode({"k": value.__dict__["_kvproof_number"]})
            case "hits" | "tables" if value is not None:
                return encode({"type": type(value).__name__})
            case _:
                return plain_text(value)


def materialised(value: Any) -> Any:
    """An argument that can be read more than once."""
    if type(value) in _READ_OFTEN:
        return value
    if hasattr(value, "__next__"):
        value = list(value)
    if isinstance(value, list | tuple) and any(hasattr(entry, "__next__") for entry in value):
        value = [materialised(entry) for entry in value]
    return value
