"""The engine's requests as a recording knows them: each defined once, its tokens as they grow."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.json_kinds import extra_keys_to_json

from ..report.redaction import Redaction
from .call_texts import encode, plain_text, text_of
from .columns import listed
from .token_texts import TokenTexts

__all__ = ["Known", "KnownRequests", "is_running"]

_MOST_GONE = 256
"""So many requests that were freed are remembered, should the same object come back."""

_MOST_TOLD = 1 << 20
"""So many tokens of running requests are told in a line, and those of one request more."""


@dataclass(slots=True, eq=False)
class Known:
    """A request that the log has defined.

    Attributes:
        number: its number.
        request: the object, kept so that nothing else has its identity.
        tokens: those that the log has, copies of `i32` arrays, one behind another.
        length: how many they are.
        extra_keys: as the log has them.
        is_gone: whether its end was told of, and nothing since.
    """

    number: int
    request: Any
    tokens: list[NDArray[np.int32]]
    length: int
    extra_keys: tuple[Any, ...]
    is_gone: bool = False


def is_running(request: Any) -> bool:
    """Whether a request is running: its status is a member of that name, of whatever enumeration (MAN-10)."""
    return getattr(getattr(request, "status", None), "name", None) == "RUNNING"


def _tokens(request: Any, start: int = 0) -> NDArray[np.int32]:
    """A copy of a request's tokens from one of them on, `i32[n]`."""
    return np.array(request.all_token_ids[start:], np.int32)  # a slice, as what is no list may be slow to read


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
        known: what the log has of requests, by their identities.
        by_id: the same of those that may hold pages, by the requests' ids, the last one of each.
    """

    def __init__(self, tokens: TokenTexts, redact_names: bool, salts: Redaction, write: Callable[[], None]) -> None:
        self._spelling, self._names, self._salts, self._write = tokens, redact_names, salts, write
        self.known: dict[int, Known] = {}
        self._gone: OrderedDict[int, None] = OrderedDict()
        self._number = 0
        self._status: Any = self  # the status that was seen last, and whether it is running
        self._runs = False
        self.lines: list[str] = []
        self.waiting = 0
        self.by_id: dict[str, Known] = {}

    def text(self, text: str) -> str:
        """A request's id as the log has it."""
        return self._salts.text(text) if self._names else text

    # -- As calls are made ------------------------------------------------------------------------

    def told(self, request: Any, *, whole: bool = False, ends: bool = False) -> str:
        """What a request says now, as it stands in a call.

        Args:
            request: what a call was given; ``{"type": name}`` stands for what is no request.
            whole: whether the call reads all of its tokens, not just those that are new.
            ends: whether `forget` comes next.
        """
        known = self.known.get(id(request))
        try:
            if known is None:
                known = self._enter(request)
            elif whole:
                self._compare(known)
            length = int(request.num_tokens)
        except (AttributeError, TypeError, ValueError, OverflowError):
            return encode({"type": type(request).__name__})
        if known.is_gone and not ends:
            self._come_back(known)
        computed = plain_text(getattr(request, "num_computed_tokens", None))
        status = getattr(request, "status", None)
        if status is not self._status:
            self._status, self._runs = status if isinstance(status, Enum) else self, is_running(request)
        running = "true" if self._runs else "false"
        return f'{{"r":{known.number},"computed":{computed},"known":{length},"running":{running}}}'

    def numbers_of(self, requests: list[Any]) -> list[int]:
        """The numbers of requests."""
        keys, known = list(map(id, requests)), self.known
        if self._gone:
            for key in self._gone.keys() & set(keys):
                self._come_back(known[key])
        try:
            return [known[key].number for key in keys]
        except KeyError:  # some are new
            return [(known.get(id(request)) or self._enter(request)).number for request in requests]

    def running(self) -> list[int]:
        """The numbers of the requests that say that they are running, of those that may hold pages (MAN-10)."""
        held = self.by_id.values()
        try:
            statuses = [known.request.status for known in held]
        except AttributeError:
            return [known.number for known in held if is_running(known.request)]
        kinds = dict(zip(map(id, statuses), held, strict=True))  # few: whether one is that of running requests costs
        runs = {kind: is_running(known.request) for kind, known in kinds.items()}
        return [known.number for known, status in zip(held, statuses, strict=True) if runs[id(status)]]

    def forget(self, request: Any, *, freed: bool) -> None:
        """Notes that a request's end was told of; a few of those are kept, should the same object come back.

        Args:
            request: the request.
            freed: whether it was freed, or else only its pages' keys.
        """
        known = self.known.get(id(request))
        if known is None:
            return
        self._grow([known])
        known.is_gone = True
        if freed and self.by_id.get(request.request_id) is known:
            del self.by_id[request.request_id]
        self._gone[id(request)] = None
        if len(self._gone) > _MOST_GONE:
            oldest = self.known.pop(self._gone.popitem(last=False)[0])
            request_id = oldest.request.request_id
            if self.by_id.get(request_id) is oldest:
                del self.by_id[request_id]

    def forget_all(self) -> None:
        """Lets go of all requests: nothing more will be told."""
        self.known.clear()
        self._gone.clear()
        self.by_id.clear()

    # -- As they are written ----------------------------------------------------------------------

    def take_lines(self) -> list[str]:
        """What is new about requests since this was asked last, tokens that came since then included."""
        self._grow(self.known.values())
        lines, self.lines, self.waiting = self.lines, [], 0
        return lines

    # -- Inside -----------------------------------------------------------------------------------

    def _enter(self, request: Any) -> Known:
        """Defines a request.

        Raises:
            AttributeError, TypeError, ValueError, OverflowError: it is none.
        """
        request_id, tokens = request.request_id, _tokens(request)
        name = text_of(self.text(request_id))
        keys = tuple(getattr(request, "extra_keys", None) or ())
        known = Known(self._number, request, [tokens], len(tokens), keys)
        wanted = getattr(getattr(request, "sampling_params", None), "prompt_logprobs", None)
        rest = f"{self._extra_keys(keys)},{int(wanted) if isinstance(wanted, int) else 'null'}"
        self._add(f'["request",{known.number},{name},{self._spelling.text(tokens)},{rest}]')
        self.known[id(request)] = known
        self.by_id[request_id] = known
        self._number += 1
        return known

    def _come_back(self, known: Known) -> None:
        known.is_gone = False
        self.by_id[known.request.request_id] = known
        del self._gone[id(known.request)]

    def _compare(self, known: Known) -> None:
        """Tells a request's tokens anew where they are not those that the log has."""
        if len(known.tokens) > 1:
            known.tokens = [np.concatenate(known.tokens)]
        own = known.tokens[0].tobytes()
        now = np.ascontiguousarray(known.request.all_token_ids[:], np.int32).tobytes()
        if own == now or own[: len(now)] == now[: len(own)]:
            return
        self._write()  # what was noted so far is about the tokens that were
        told, tokens = np.concatenate(known.tokens), _tokens(known.request)
        length = min(len(told), len(tokens))
        start = int((told[:length] != tokens[:length]).argmax())
        known.tokens, known.length = [tokens], len(tokens)
        self._tell([known.number], [start], [tokens[start:]])

    def _grow(self, all_known: Iterable[Known]) -> None:
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
