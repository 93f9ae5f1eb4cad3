"""SEC-2: the entries of a log with other names in place of the engine's own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvproof.spec.declarations import (
    CacheGroupSpec,
    ExtraKey,
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    WeightsVersion,
)

from ..report.redaction import Redaction
from .entries import Entry, Made, NewKeys, NewRequest, Operation, Shown

__all__ = ["redactor"]

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
            case Made() if "kv_cache_groups" in entry.arguments:
                groups = list(map(group, entry.arguments["kv_cache_groups"]))
                return replace(entry, arguments=entry.arguments | {"kv_cache_groups": groups})
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
