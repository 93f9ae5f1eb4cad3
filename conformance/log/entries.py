"""What stands in a log, read: objects, requests, operations and states; and with other names (SEC-2)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import (
    CacheGroupSpec,
    ExtraKey,
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    WeightsVersion,
)

from ..report.redaction import Redaction

__all__ = ["Entry", "Grown", "Made", "NewKeys", "NewRequest", "Operation", "Shown", "redactor"]


@dataclass(frozen=True)
class Made:
    """An object was made.

    Attributes:
        number: its number.
        name: its class.
        arguments: its constructor's, groups as declarations; or ``of`` and ``group``, where it is a part of another.
    """

    number: int
    name: str
    arguments: dict[str, Any]

    def built(self, takes_interval: bool) -> dict[str, Any]:
        """What its constructor is given.

        Args:
            takes_interval: whether it takes a retention interval: logs without one are of managers that keep all
                (RET-1).
        """
        arguments = dict(self.arguments)
        if "hash_seed" in arguments:
            arguments["hash_seed"] = bytes.fromhex(arguments["hash_seed"])
        if self.name == "CacheManager":
            interval = arguments.pop("retention_interval", None)
            arguments |= {"retention_interval": interval} if takes_interval else {}
        return arguments


@dataclass(frozen=True)
class NewRequest:
    """A request, when it was first seen.

    Attributes:
        number: its number.
        request_id: its id.
        tokens: its tokens, `i32[n]`.
        extra_keys: its extra keys.
        prompt_logprobs: as it asked for.
    """

    number: int
    request_id: str
    tokens: NDArray[np.int32]
    extra_keys: tuple[ExtraKey, ...]
    prompt_logprobs: int | None


@dataclass(frozen=True)
class Grown:
    """A request's tokens from one of them on."""

    number: int
    start: int
    tokens: NDArray[np.int32]


@dataclass(frozen=True)
class NewKeys:
    """A request's extra keys from now on."""

    number: int
    extra_keys: tuple[ExtraKey, ...]


@dataclass(frozen=True)
class Operation:
    """A call.

    Attributes:
        number: its number, from 1 on.
        target: the object's number.
        method: the method, or the property that was read.
        arguments: by name, as the log has them.
        told: (request, tokens) of requests that are not handed to it and whose tokens it reads.
        result: what it returned, as the log has it.
        error: the kind of error that it raised, None if it returned.
    """

    number: int
    target: int
    method: str
    arguments: dict[str, Any]
    told: tuple[tuple[int, int], ...] = ()
    result: Any = None
    error: str | None = None


@dataclass(frozen=True)
class Shown:
    """What an object showed after the operations before it.

    Attributes:
        target: the object's number.
        fields: its state, by field.
    """

    target: int
    fields: dict[str, Any]


Entry = Made | NewRequest | Grown | NewKeys | Operation | Shown
"""Anything that a log tells."""


# -- The same with other names in place of the engine's own (SEC-2) ---------------------------------------------------

_IDS = "request_id"
"""The argument that is a request's id."""


def redactor(redaction: Redaction) -> Callable[[Entry], Entry]:
    """What maps the names in an entry: request ids, adapters, versions, digests and layer names."""

    def text(value: Any) -> Any:
        return redaction.text(value) if isinstance(value, str) else value

    def key(own: ExtraKey) -> ExtraKey:
        match own:
            case LoraAdapter(name):
                return LoraAdapter(redaction.text(name))
            case WeightsVersion(version):
                return WeightsVersion(redaction.text(version))
            case MultimodalItem() | PromptEmbeddings():
                return replace(own, content=redaction.digest(own.content))
            case _:
                return own

    def group(own: CacheGroupSpec) -> CacheGroupSpec:
        return own if own.layer_names is None else replace(own, layer_names=list(map(text, own.layer_names)))

    def redacted(entry: Entry) -> Entry:
        match entry:
            case Made():
                # keys of other names are others with any seed
                arguments = {name: value for name, value in entry.arguments.items() if name != "hash_seed"}
                if "kv_cache_groups" in arguments:
                    arguments["kv_cache_groups"] = list(map(group, arguments["kv_cache_groups"]))
                return replace(entry, arguments=arguments)
            case NewRequest():
                keys = tuple(map(key, entry.extra_keys))
                return replace(entry, request_id=redaction.text(entry.request_id), extra_keys=keys)
            case NewKeys():
                return replace(entry, extra_keys=tuple(map(key, entry.extra_keys)))
            case Operation():
                made = entry
                if _IDS in entry.arguments:
                    made = replace(made, arguments=entry.arguments | {_IDS: text(entry.arguments[_IDS])})
                if entry.method == "free" and isinstance(entry.result, list):
                    made = replace(made, result=list(map(text, entry.result)))
                return made
            case Shown() if isinstance(held := entry.fields.get("pages of requests"), dict) and "crc32" not in held:
                pages = {text(request_id): groups for request_id, groups in held.items()}
                return replace(entry, fields=entry.fields | {"pages of requests": pages})
            case Shown() if "pages of requests" in entry.fields:  # a sum over the names that were
                return replace(entry, fields={n: own for n, own in entry.fields.items() if n != "pages of requests"})
            case _:
                return entry

    return redacted
