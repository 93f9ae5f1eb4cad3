"""The engine's requests as a recording knows them: each defined once, its tokens as they grow."""

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.snapshot_fields import extra_keys_to_json

from ..redaction import Redaction

__all__ = ["KnownRequests", "Told", "is_running"]

_MOST_GONE = 4096
"""So many requests that were freed are remembered, should the same object come back."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a request said when it was handed to a call.

    Attributes:
        request: the engine's object.
        computed: its computed tokens, in a form that JSON has.
        known: how many tokens it had.
        running: whether it was running.
        tokens: all of them, `i32`, as bytes; None where they are read later, as they only grow (MAN-6).
    """

    request: Any
    computed: Any
    known: int
    running: bool
    tokens: bytes | None


@dataclass(slots=True, eq=False)
class _Known:
    """A request that the log has defined.

    Attributes:
        number: its number.
        request: the object, kept so that nothing else has its identity.
        tokens: those that the log has, `i32`, as bytes.
        extra_keys: as the log has them.
    """

    number: int
    request: Any
    tokens: bytearray
    extra_keys: tuple[Any, ...]


def is_running(request: Any) -> bool:
    """Whether a request is running: its status is a member of that name, of whatever enumeration (MAN-10)."""
    return getattr(getattr(request, "status", None), "name", None) == "RUNNING"


def _bytes(tokens: Any) -> bytes:
    array = np.asarray(tokens)
    return np.ascontiguousarray(array, np.int32).tobytes() if array.size else b""


class KnownRequests:
    """Numbers requests, and writes what a log says of them.

    Args:
        redaction: maps token ids; None shows them.
        redact_names: whether ids, adapters, versions and digests are mapped, too.
        salts: maps the fingerprints of salts.
    """

    def __init__(self, redaction: Redaction | None, redact_names: bool, salts: Redaction) -> None:
        self._tokens, self._names, self._salts = redaction, redact_names, salts
        self._known: dict[int, _Known] = {}
        self._gone: dict[int, None] = {}
        self._number = 0
        self.by_id: dict[str, Any] = {}
        """The requests by their ids, the last one of each."""

    # -- When a call is made ----------------------------------------------------------------------

    def tell(self, request: Any, computed: Any, *, whole: bool) -> Told | None:
        """What a request says now; None where it is no request.

        Args:
            request: what a call was given.
            computed: its computed tokens, in a form that JSON has.
            whole: whether all of its tokens are read, not just those that are new.
        """
        try:
            request_id, known = request.request_id, int(request.num_tokens)
            if not isinstance(request_id, str):
                return None
            self.by_id[request_id] = request
            tokens = _bytes(request.all_token_ids) if whole or id(request) not in self._known else None
        except (AttributeError, TypeError, ValueError, OverflowError):
            return None
        return Told(request, computed, known, is_running(request), tokens)

    def running(self) -> list[Any]:
        """The requests that say that they are running."""
        return [request for request in self.by_id.values() if is_running(request)]

    def text(self, text: str) -> str:
        """A request's id as the log has it."""
        return self._salts.text(text) if self._names else text

    # -- When it is written -----------------------------------------------------------------------

    def define(self, requests: list[Any], told: Iterable[Told], lines: list[Any]) -> None:
        """Writes what is new about requests: those that the log has not defined yet, and tokens that came since.

        Args:
            requests: the engine's objects.
            told: what others said when they were first seen.
            lines: where it is written to.
        """
        for entry in told:
            if id(entry.request) not in self._known and entry.tokens is not None:
                self._enter(entry.request, entry.tokens, lines)
        numbers, starts, counts, grown = [], [], [], []
        for request in dict(zip(map(id, requests), requests, strict=True)).values():
            known = self._known.get(id(request))
            if known is None:
                self._enter(request, _bytes(request.all_token_ids), lines)
                continue
            start = len(known.tokens) // 4
            if request.num_tokens > start:
                new = _bytes(request.all_token_ids[start:])
                known.tokens += new
                numbers.append(known.number)
                starts.append(start)
                counts.append(len(new) // 4)
                grown.append(new)
            keys = getattr(request, "extra_keys", None) or ()
            if keys is not known.extra_keys and tuple(keys) != known.extra_keys:
                known.extra_keys = tuple(keys)
                lines.append(["keys", known.number, self._extra_keys(known.extra_keys)])
        if numbers:
            lines.append(["tokens", numbers, starts, counts, self._mapped(b"".join(grown))])

    def settle(self, told: Told, lines: list[Any]) -> dict[str, Any]:
        """A request as it stands in a call; before it tokens that are not those that the log has."""
        known = self._known[id(told.request)]
        self._gone.pop(id(told.request), None)
        if told.tokens is not None and not known.tokens.startswith(told.tokens):
            places = range(0, len(known.tokens), 4)
            other = (place for place in places if known.tokens[place : place + 4] != told.tokens[place : place + 4])
            start = next(other, len(known.tokens))
            changed = told.tokens[start:]
            known.tokens[start:] = changed
            lines.append(["tokens", [known.number], [start // 4], [len(changed) // 4], self._mapped(changed)])
        return {"r": known.number, "computed": told.computed, "known": told.known, "running": told.running}

    def numbers_of(self, requests: Iterable[Any]) -> list[int]:
        """The numbers of requests that were defined."""
        keys, known = list(map(id, requests)), self._known
        if self._gone:
            for key in self._gone.keys() & set(keys):
                del self._gone[key]
        return [known[key].number for key in keys]

    def forget(self, request: Any) -> None:
        """Notes that a request's end has been told of; a few of those are kept, should the same object come back."""
        self._gone[id(request)] = None
        while len(self._gone) > _MOST_GONE:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            gone = self._known.pop(oldest, None)
            if gone is not None:
                self._drop_id(gone.request)

    def _drop_id(self, request: Any) -> None:
        request_id = request.request_id
        if self.by_id.get(request_id) is request:
            del self.by_id[request_id]

    # -- Inside -----------------------------------------------------------------------------------

    def _enter(self, request: Any, tokens: bytes, lines: list[Any]) -> None:
        keys = tuple(getattr(request, "extra_keys", None) or ())
        self._known[id(request)] = known = _Known(self._number, request, bytearray(tokens), keys)
        self._gone.pop(id(request), None)
        self.by_id[request.request_id] = request
        self._number += 1
        wanted = getattr(getattr(request, "sampling_params", None), "prompt_logprobs", None)
        line = [known.number, self.text(request.request_id), self._mapped(tokens), self._extra_keys(keys)]
        lines.append(["request", *line, wanted if isinstance(wanted, int) else None])

    def _mapped(self, tokens: bytes) -> str:
        array: NDArray[np.int32] = np.frombuffer(tokens, np.int32)
        if self._tokens is not None:
            array = self._tokens.tokens(array)
        return base64.b64encode(array.astype("<i4", copy=False).tobytes()).decode()

    def _extra_keys(self, keys: tuple[Any, ...]) -> Any:
        try:
            entries = extra_keys_to_json(keys) or []
        except TypeError:  # they are of another package
            return [{"kind": "LoraAdapter", "name": self._salts.text(repr(key))} for key in keys]
        for entry in entries:
            for field in ("fingerprint",) if not self._names else ("fingerprint", "content"):
                if field in entry:
                    entry[field] = self._salts.digest(bytes.fromhex(entry[field])).hex()
            for field in ("name", "version") if self._names else ():
                if field in entry:
                    entry[field] = self._salts.text(entry[field])
        return entries
