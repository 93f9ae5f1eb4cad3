"""Any method of a recorded object: its arguments are read, the call is made, what came of it is noted."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .calls import Call
from .values import kind_of, page_ids, plain, result, snapshot
from .writer import LogWriter

__all__ = ["KeyOrigins", "RecordedCall", "bare", "materialised"]

_TELLS_ALL = {"get_computed_pages", "pin_prefix", "set_prefix_priority", "cache_full_pages"}
"""The calls that read a request's tokens from the first on."""

_SIMPLE = {int, bool, list, tuple, str, type(None), np.ndarray}

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
        self._is_plain = set(call.arguments.values()) <= {"plain"} and call.result in ("none", "plain")
        self._takes_request = self._names[:1] == ["request"] and method != "get_num_common_prefix_pages"
        functools.update_wrapper(self, act)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Makes the call and notes it."""
        if self._is_plain and not kwargs and _SIMPLE.issuperset(map(type, args)):
            return self._call_plainly(args)
        writer, call = self._writer, self._call
        if self._takes_request and len(args) == 1 and not kwargs:
            given = {"request": self._request(args[0], self._method in _TELLS_ALL)}
        else:
            args = tuple(materialised(value) for value in args)
            kwargs = {name: materialised(value) for name, value in kwargs.items()}
            given = self._given(args, kwargs)
        try:
            value = self._act(*map(bare, args), **{name: bare(value) for name, value in kwargs.items()})
        except Exception as error:
            writer.note(self._number, self._method, given, None, kind_of(error))
            raise
        outcome = result(call.result, value, writer.keys)
        if call.result == "ids":
            held = () if value is None else value  # of a manager that tells of none
            outcome = [writer.requests.text(request_id) for request_id in held]
        writer.note(self._number, self._method, given, outcome, None)
        if self._method == "cache_full_pages":
            named = {**dict(zip(self._names, args, strict=False)), **kwargs}
            self._origins.learn(*(named[name] for name in _CACHING))
        return value

    def _call_plainly(self, args: tuple[Any, ...]) -> Any:
        """The same for numbers and lists of them, as tables are called in each step."""
        given = dict(zip(self._names, map(snapshot, args), strict=False))
        try:
            value = self._act(*args)
        except Exception as error:
            self._writer.note_plain(self._number, self._method, given, None, kind_of(error))
            raise
        self._writer.note_plain(self._number, self._method, given, plain(value))
        return value

    def refused(self, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> None:
        """Notes a call that was made elsewhere and raised."""
        self._writer.note(self._number, self._method, self._given(args, kwargs), None, kind_of(error))

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments as the log has them; those that are another package's own are its own affair."""
        kinds = self._call.arguments
        named = {**dict(zip(self._names, args, strict=False)), **kwargs}
        whole = self._method in _TELLS_ALL
        given = {name: self._argument(kinds[name], value, whole) for name, value in named.items() if name in kinds}
        if self._method == "get_num_common_prefix_pages":
            given["running"] = self._writer.requests.running()
        if "key" in kinds.values():
            origin = self._origins.of(named.get("page_hash"))
            given["page_hash"] = {"key": None if origin is None else list(origin[1:])}
            if origin is not None:
                given["origin"] = self._request(origin[0], whole)
        return given

    def _argument(self, kind: str, value: Any, whole: bool) -> Any:
        """An argument as the log has it; of a request what it says now."""
        texts = self._writer.requests.text
        match kind:
            case "request":
                return self._request(value, whole)
            case "id":
                return texts(value) if isinstance(value, str) else plain(value)
            case "pages":
                return page_ids(value)
            case "groups":
                return [page_ids(group) for group in value] if isinstance(value, list | tuple) else page_ids(value)
            case "hits" if hasattr(value, "get_page_ids"):
                return [list(group) for group in value.get_page_ids()]
            case "keys":
                return {"keys": len(value)} if isinstance(value, list | tuple) else plain(value)
            case "tables" if "_kvproof_number" in getattr(value, "__dict__", {}):
                return {"k": value.__dict__["_kvproof_number"]}
            case "hits" | "tables" if value is not None:
                return {"type": type(value).__name__}
            case _:
                return plain(value)

    def _request(self, request: Any, whole: bool) -> Any:
        computed = getattr(request, "num_computed_tokens", None)
        if type(computed) is not int:
            computed = plain(computed)
        told = self._writer.requests.tell(request, computed, whole=whole)
        return {"type": type(request).__name__} if told is None else told


def materialised(value: Any) -> Any:
    """An argument that can be read more than once."""
    if hasattr(value, "__next__"):
        value = list(value)
    if isinstance(value, list | tuple) and any(hasattr(entry, "__next__") for entry in value):
        value = [materialised(entry) for entry in value]
    return value
