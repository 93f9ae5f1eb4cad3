"""MAN-14: the parts of a snapshot in JSON: groups, extra keys, events; and how what was read back is refused.

Everything that is read back is hostile until it was read with these functions (SEC-3): they name what is wrong and
where, and never a salt, of which a snapshot has the fingerprint only (SEC-2).
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows the names of its types once it is imported
import numpy as np

from ..declarations import (
    CacheCleared,
    CacheEvent,
    CacheGroupSpec,
    CacheSalt,
    ChunkedLocalAttentionSpec,
    ExtraKey,
    FullAttentionSpec,
    LoraAdapter,
    MambaSpec,
    MLAAttentionSpec,
    MultimodalItem,
    PageRemoved,
    PageStored,
    PromptEmbeddings,
    SlidingWindowSpec,
    WeightsVersion,
)
from ..reading.arguments import refusal

__all__ = [
    "damaged",
    "event_from_json",
    "event_to_json",
    "extra_keys_from_json",
    "extra_keys_to_json",
    "group_from_json",
    "group_to_json",
    "read_digest",
    "read_each",
    "read_flag",
    "read_integer",
    "read_list",
    "read_object",
    "read_page_tokens",
    "read_text",
    "read_time",
]

_GROUPS = {
    kind.__name__: kind
    for kind in (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec, MLAAttentionSpec, MambaSpec)
}
_EXTRA_KEYS = {
    kind.__name__: kind for kind in (CacheSalt, LoraAdapter, WeightsVersion, MultimodalItem, PromptEmbeddings)
}
_LATEST = sys.float_info.max
_EVENTS = {kind.__name__: kind for kind in (PageStored, PageRemoved, CacheCleared)}


def damaged(name: str, problem: str, clause: str = "MAN-14") -> Exception:
    """The error for a snapshot that is damaged or does not fit (MAN-14), or is no snapshot at all (SEC-3)."""
    return refusal(ValueError, clause, f"snapshot: {name} {problem}")


# -- Reading JSON ---------------------------------------------------------------------------------


def read_object(name: str, value: object, keys: Iterable[str]) -> Mapping[str, Any]:
    """Reads an object with exactly these keys."""
    if not isinstance(value, Mapping) or set(value) != set(keys):
        raise damaged(name, f"must be an object with the keys {sorted(keys)}")
    return value


def read_list(name: str, value: object, length: int | None = None) -> list[Any]:
    """Reads a list, perhaps of a given length."""
    if not isinstance(value, list | tuple) or (length is not None and len(value) != length):
        raise damaged(name, f"must be a list{'' if length is None else f' of {length}'}")
    return list(value)


def read_each(name: str, value: object, length: int) -> Iterable[list[Any]]:
    """Reads a list of lists of one length."""
    return [read_list(f"{name}[{place}]", entry, length) for place, entry in enumerate(read_list(name, value))]


def read_integer(name: str, value: object, minimum: int = 0, below: int = 2**63) -> int:
    """Reads an integer within bounds; none is 2**63 or above, so that arrays of integers can hold it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise damaged(name, "must be an integer")
    if not minimum <= value < below:
        raise damaged(name, f"is {value}, which is out of range")
    return value


def read_flag(name: str, value: object) -> bool:
    """Reads true or false."""
    if not isinstance(value, bool):
        raise damaged(name, "must be true or false")
    return value


def read_text(name: str, value: object) -> str:
    """Reads a text."""
    if not isinstance(value, str):
        raise damaged(name, "must be a text")
    return value


def read_digest(name: str, value: object) -> bytes:
    """Reads bytes, which stand as hexadecimal digits."""
    text = read_text(name, value)
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        raise damaged(name, "must be hexadecimal digits") from None
    if digest.hex() != text:
        raise damaged(name, "must be hexadecimal digits, lower-case and without spaces")
    return digest


def read_time(name: str, value: object) -> float | None:
    """Reads a time, which may be missing."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LATEST <= value <= _LATEST:
        raise damaged(name, "must be a finite number")
    return float(value)


# -- Extra keys -----------------------------------------------------------------------------------


def extra_keys_to_json(extra_keys: tuple[ExtraKey, ...] | None) -> list[dict[str, Any]] | None:
    """A page's extra keys: null, or an object each, bytes as hexadecimal digits."""
    if extra_keys is None:
        return None
    return [
        {"kind": type(key).__name__, **{field.name: _plain(getattr(key, field.name)) for field in fields(key)}}
        for key in extra_keys
    ]


def _plain(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, bytes):
        return value.hex()
    return int(value) if isinstance(value, int | np.integer) else value


def extra_keys_from_json(name: str, value: object) -> tuple[ExtraKey, ...] | None:
    """Reads a page's extra keys."""
    if value is None:
        return None
    return tuple(_extra_key(f"{name}[{place}]", entry) for place, entry in enumerate(read_list(name, value)))


def _extra_key(name: str, value: object) -> ExtraKey:
    kind = _kind(name, value, _EXTRA_KEYS)
    entry = read_object(name, value, ["kind", *(field.name for field in fields(kind))])
    match kind.__name__:
        case "CacheSalt":
            return CacheSalt.of_fingerprint(read_digest(f"{name}.fingerprint", entry["fingerprint"]))
        case "LoraAdapter":
            return LoraAdapter(_read_unicode(f"{name}.name", entry["name"]))
        case "WeightsVersion":
            return WeightsVersion(_read_unicode(f"{name}.version", entry["version"]))
        case _:
            return (MultimodalItem if kind is MultimodalItem else PromptEmbeddings)(
                read_digest(f"{name}.content", entry["content"]),
                read_integer(f"{name}.offset", entry["offset"], below=2**63),
                read_integer(f"{name}.length", entry["length"], minimum=1, below=2**63),
            )


def _read_unicode(name: str, value: object) -> str:
    """Reads a text that has an encoding, as keys need it (HASH-2)."""
    text = read_text(name, value)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise damaged(name, "must be Unicode text") from None
    return text


def _kind(name: str, value: object, kinds: Mapping[str, type]) -> type:
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise damaged(name, f"must be an object whose kind is one of {sorted(kinds)}")
    return kinds[kind]


# -- Events ---------------------------------------------------------------------------------------


def event_to_json(event: CacheEvent) -> dict[str, Any]:
    """An event: its kind and its fields."""
    entry: dict[str, Any] = {"kind": type(event).__name__}
    for field in _event_fields(type(event)):
        value = getattr(event, field)
        if field == "extra_keys":
            entry[field] = extra_keys_to_json(value)
        elif field == "token_ids":
            entry[field] = list(value)
        else:
            entry[field] = _plain(value)
    return entry


def _event_fields(kind: type[CacheEvent]) -> tuple[str, ...]:
    return () if issubclass(kind, CacheCleared) else kind._fields


def event_from_json(name: str, value: object, num_groups: int, num_pages: int) -> CacheEvent:
    """Reads an event."""
    kind = _kind(name, value, _EVENTS)
    entry = read_object(name, value, ["kind", *_event_fields(kind)])
    if kind is CacheCleared:
        return CacheCleared()
    group_id = read_integer(f"{name}.group_id", entry["group_id"], below=num_groups)
    page_id = read_integer(f"{name}.page_id", entry["page_id"], minimum=1, below=num_pages)
    page_hash = read_digest(f"{name}.page_hash", entry["page_hash"])
    if kind is PageRemoved:
        return PageRemoved(group_id, page_id, page_hash)
    parent = None if entry["parent_hash"] is None else read_digest(f"{name}.parent_hash", entry["parent_hash"])
    tokens = read_page_tokens(f"{name}.token_ids", entry["token_ids"])
    extra_keys = extra_keys_from_json(f"{name}.extra_keys", entry["extra_keys"])
    return PageStored(group_id, page_id, page_hash, parent, tokens, extra_keys)


def read_page_tokens(name: str, value: object) -> tuple[int, ...]:
    """Reads token ids."""
    return tuple(read_integer(name, token, minimum=-(2**31), below=2**31) for token in read_list(name, value))


# -- Groups ---------------------------------------------------------------------------------------


def group_to_json(group: CacheGroupSpec) -> dict[str, Any]:
    """A group: the kind and the fields of its declaration, dtypes by name, its layers, whether it is Eagle's."""
    spec = group.kv_cache_spec
    entry: dict[str, Any] = {"kind": type(spec).__name__}
    for field in fields(spec):
        value = getattr(spec, field.name)
        if field.name == "dtype":
            value = np.dtype(value).name
        elif field.name == "dtypes":
            value = [np.dtype(dtype).name for dtype in value]
        elif field.name == "shapes":
            value = [[int(size) for size in shape] for shape in value]
        entry[field.name] = _plain(value)
    entry["layer_names"] = None if group.layer_names is None else list(group.layer_names)
    entry["is_eagle_group"] = bool(group.is_eagle_group)
    return entry


def group_from_json(name: str, value: object) -> CacheGroupSpec:
    """Reads a group; its fields are read where every manager reads them (R1)."""
    kind = _kind(name, value, _GROUPS)
    names = [field.name for field in fields(kind)]
    entry = read_object(name, value, ["kind", *names, "layer_names", "is_eagle_group"])
    values = {field: entry[field] for field in names}
    for field, given in values.items():
        if isinstance(given, int):
            read_integer(f"{name}.{field}", given)
    if kind is MambaSpec:
        values["shapes"] = tuple(
            tuple(read_integer(f"{name}.shapes", size) for size in read_list(f"{name}.shapes", shape))
            for shape in read_list(f"{name}.shapes", values["shapes"])
        )
        values["dtypes"] = tuple(read_list(f"{name}.dtypes", values["dtypes"]))
    return CacheGroupSpec(kind(**values), entry["layer_names"], entry["is_eagle_group"])
