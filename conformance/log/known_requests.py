"""The engine's requests as a recording knows them: each defined once, its tokens as they grow."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.snapshot_fields import extra_keys_to_json

from ..redaction import Redaction
from .call_texts import encode, plain_text, text_of
from .columns import listed
from .token_texts import TokenTexts

__all__ = ["KnownRequests", "is_running"]

_MOST_GONE = 256
"""So many requests that were freed are remembered, should the same object come back."""

_MOST_TOLD = 1 << 20
"""So many tokens of running requests are told in a line, and those of one request more."""


@dataclass(slots=True, eq=False)
class _Known:
    """A request that the log has defined.

    Attributes:
        number: its number.
        request: the object, kept so that nothing else has its identity.
        tokens: those that the log has, copies of `i32` arrays, one behind another.
        length: how many they are.
        extra_keys: as the log has them.
    """

    number: int
    request: Any
    tokens: list[NDArray[np.int32]]
    length: int
    extra_keys: tuple[Any, ...]


def is_running(request: Any) -> bool:
    """Whether a request is running: its status is a member of that name, of whatever enumeration (MAN-10)."""
    return getattr(getattr(request, "status", None), "name", None) == "RUNNING"


def _tokens(request: Any, start: int = 0) -> NDArray[np.int32]:
    """A copy of a request's tokens from one of them on, `i32[n]`."""
    given = request.all_token_ids
    return np.array(given[start:] if start else given, np.int32)


class KnownRequests:
    """Numbers requests, and writes what a log says of them.

    Args:
        tokens: spells token ids.
        redact_names: whether ids, adapters, versions and digests are mapped, too.
        salts: maps names and the fingerprints of salts.
        write: writes `lines` and all calls that were noted.

    Attributes:
        lines: definitions, in order, that must stand before the calls that were noted since the log was written.
        waiting: how many characters they have.
        by_id: the requests by their ids, the last one of each.
    """

    def __init__(self, tokens: TokenTexts, redact_names: bool, salts: Redaction, write: Callable[[], None]) -> None:
        self._spelling, self._names, self._salts, self._write = tokens, redact_names, salts, write
        self._known: dict[int, _Known] = {}
        self._gone: OrderedDict[int, None] = OrderedDict()
        self._number = 0
        self._status: Any = self  # the status that was seen last, and whether it is running
        self._runs = False
        self.lines: list[str] = []
        self.waiting = 0
        self.by_id: dict[str, Any] = {}

    def text(self, text: str) -> str:
        """A request's id as the log has it."""
        return self._salts.text(text) if self._names else text

    # -- As calls are made ------------------------------------------------------------------------

    def told(self, request: Any, *, whole: bool) -> str:
        """What a request says now, as it stands in a call.

        Args:
            request: what a call was given; ``{"type": name}`` stands for what is no request.
            whole: whether the call reads all of its tokens, not just those that are new.
        """
        known = self._known.get(id(request))
        try:
            if known is None:
                known = self._enter(request)
            elif whole:
                self._compare(known)
            length = int(request.num_tokens)
        except (AttributeError, TypeError, ValueError, OverflowError):
            return encode({"type": type(request).__name__})
        if self._gone:
            self._gone.pop(id(request), None)
        computed = plain_text(getattr(request, "num_computed_tokens", None))
        status = getattr(request, "status", None)
        if status is not self._status:
            self._status, self._runs = status if isinstance(status, Enum) else self, is_running(request)
        running = "true" if self._runs else "false"
        return f'{{"r":{known.number},"computed":{computed},"known":{length},"running":{running}}}'

    def numbers_of(self, requests: list[Any]) -> list[int]:
        """The numbers of requests."""
        keys, known = list(map(id, requests)), self._known
        if self._gone:
            for key in self._gone.keys() & set(keys):
                del self._gone[key]
        try:
            return [known[key].number for key in keys]
        except KeyError:  # some are new
            return [(known.get(id(request)) or self._enter(request)).number for request in requests]

    def running(self) -> list[int]:
        """The numbers of the requests that say that they are running."""
        return self.numbers_of([request for request in self.by_id.values() if is_running(request)])

    def forget(self, request: Any) -> None:
        """Notes that a request's end was told of; a few of those are kept, should the same object come back."""
        known = self._known.get(id(request))
        if known is None:
            return
        self._grow([known])
        self._gone[id(request)] = None
        if len(self._gone) > _MOST_GONE:
            oldest = self._known.pop(self._gone.popitem(last=False)[0]).request
            request_id = oldest.request_id
            if self.by_id.get(request_id) is oldest:
                del self.by_id[request_id]

    def forget_all(self) -> None:
        """Lets go of all requests: nothing more will be told."""
        self._known.clear()
        self._gone.clear()
        self.by_id.clear()

    # -- As they are written ----------------------------------------------------------------------

    def take_lines(self) -> list[str]:
        """What is new about requests since this was asked last, tokens that came since then included."""
        self._grow(self._known.values())
        lines, self.lines, self.waiting = self.lines, [], 0
        return lines

    # -- Inside -----------------------------------------------------------------------------------

    def _enter(self, request: Any) -> _Known:
        """Defines a request.

        Raises:
            AttributeError, TypeError, ValueError, OverflowError: it is none.
        """
        request_id, tokens = request.request_id, _tokens(request)
        name = text_of(self.text(request_id))
        keys = tuple(getattr(request, "extra_keys", None) or ())
        known = _Known(self._number, request, [tokens], len(tokens), keys)
        wanted = getattr(getattr(request, "sampling_params", None), "prompt_logprobs", None)
        rest = f"{self._extra_keys(keys)},{int(wanted) if isinstance(wanted, int) else 'null'}"
        self._add(f'["request",{known.number},{name},{self._spelling.text(tokens)},{rest}]')
        self._known[id(request)] = known
        self.by_id[request_id] = request
        self._number += 1
        return known

    def _compare(self, known: _Known) -> None:
        """Tells a request's tokens anew where they are not those that the log has."""
        if len(known.tokens) > 1:
            known.tokens = [np.concatenate(known.tokens)]
        own = known.tokens[0].tobytes()
        now = np.ascontiguousarray(known.request.all_token_ids, np.int32).tobytes()
        if own == now or own[: len(now)] == now[: len(own)]:
            return
        self._write()  # what was noted so far is about the tokens that were
        told, tokens = np.concatenate(known.tokens), _tokens(known.request)
        length = min(len(told), len(tokens))
        start = int((told[:length] != tokens[:length]).argmax())
        known.tokens, known.length = [tokens], len(tokens)
        self._tell([known.number], [start], [tokens[start:]])

    def _grow(self, all_known: Iterable[_Known]) -> None:
        """Tells tokens that came since a request's were told, and extra keys that changed."""
        numbers: list[int] = []
        starts: list[int] = []
        grown: list[NDArray[np.int32]] = []
        count = 0
        for known in all_known:
            request = known.request
            start = known.length
            if request.num_tokens > start:
                new = _tokens(request, start)
                numbers.append(known.number)
                starts.append(start)
                grown.append(new)
                known.tokens.append(new)
                known.length += len(new)
                count += len(new)
                if count > _MOST_TOLD:
                    self._tell(numbers, starts, grown)
                    numbers, starts, grown, count = [], [], [], 0
            keys = getattr(request, "extra_keys", None) or ()
            if keys is not known.extra_keys and tuple(keys) != known.extra_keys:
                known.extra_keys = tuple(keys)
                self._add(f'["keys",{known.number},{self._extra_keys(known.extra_keys)}]')
        if numbers:
            self._tell(numbers, starts, grown)

    def _tell(self, numbers: list[int], starts: list[int], tokens: list[NDArray[np.int32]]) -> None:
        """Tells tokens of requests, each from one of theirs on."""
        counts = list(map(len, tokens))
        spelt = self._spelling.text(np.concatenate(tokens) if len(tokens) > 1 else tokens[0])
        self._add(f'["tokens",{listed(numbers)},{listed(starts)},{listed(counts)},{spelt}]')

    def _add(self, line: str) -> None:
        self.lines.append(line)
        self.waiting += len(line)

    def _extra_keys(self, keys: tuple[Any, ...]) -> str:
        if not keys:
            return "[]"
        try:
            entries = extra_keys_to_json(keys) or []
        except TypeError:  # they are of another package
            return encode([{"kind": "LoraAdapter", "name": self._salts.text(repr(key))} for key in keys])
        for entry in entries:
            for field in ("fingerprint",) if not self._names else ("fingerprint", "content"):
                if field in entry:
                    entry[field] = self._salts.digest(bytes.fromhex(entry[field])).hex()
            for field in ("name", "version") if self._names else ():
                if field in entry:
                    entry[field] = self._salts.text(entry[field])
        return encode(entries)
