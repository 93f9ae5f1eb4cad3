"""MAN-14: groups, extra keys, events and counters in JSON: an object with the kind's name and the kind's fields.

One table for each says how every field is written and how it is read back, so that the two can't part.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from dataclasses import fields as fields_of
from operator import index
from typing import Any, NamedTuple, cast

import ml_dtypes  # noqa: F401 - numpy knows the names of its types once it is imported
import numpy as np

from .codec import Part
from .events import NUM_BUCKETS, CacheCleared, CacheCounters, CacheEvent, PageRemoved, PageStored
from .extra_keys import CacheSalt, ExtraKey, LoraAdapter, MultimodalItem, PromptEmbeddings, WeightsVersion
from .groups import (
    CacheGroupSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

__all__ = [
    "any_event_of",
    "counters_of",
    "counters_to_json",
    "event_of",
    "event_to_json",
    "extra_keys_of",
    "extra_keys_to_json",
    "group_of",
    "group_to_json",
    "is_length",
]


class _Field(NamedTuple):
    """How a field is written, and how it is read."""

    write: Callable[[Any], Any]
    read: Callable[[Part], Any]


class _Kind(NamedTuple):
    """A kind's fields, and how it is made from them."""

    make: Callable[..., Any]
    fields: Mapping[str, _Field]


def _maybe(field: _Field) -> _Field:
    """A field that may be null."""
    return _Field(
        lambda value: None if value is None else field.write(value),
        lambda part: None if part.value is None else field.read(part),
    )


def _list_of(field: _Field) -> _Field:
    """A list of what a field holds, a tuple when it is read."""
    return _Field(
        lambda values: [field.write(value) for value in values],
        lambda part: tuple(field.read(item) for item in part.items()),
    )


def _to_json(kinds: Mapping[type, _Kind], value: Any) -> dict[str, Any]:
    kind = next((base for base in type(value).__mro__ if base in kinds), None)
    if kind is None:
        raise TypeError(f"{type(value).__name__} is none of {[own.__name__ for own in kinds]}")
    fields = kinds[kind].fields
    return {
        "kind": kind.__name__,
        **{name: field.write(getattr(value, name)) for name, field in fields.items()},
    }


def _kind_of(kinds: Mapping[type, _Kind], part: Part) -> _Kind:
    named = {kind.__name__: fields for kind, fields in kinds.items()}
    name = part.member("kind").value
    if not isinstance(name, str) or name not in named:
        raise part.damaged(f"must be of a kind in {list(named)}")
    return named[name]


def _made(kinds: Mapping[type, _Kind], part: Part) -> Any:
    make, fields = _kind_of(kinds, part)
    members = part.members(["kind", *fields])
    return make(**{name: field.read(members[name]) for name, field in fields.items()})


_COUNT = _Field(index, Part.integer)
_TEXT = _Field(str, Part.text)
_UNICODE = _Field(str, Part.unicode)
_DIGEST = _Field(bytes.hex, Part.digest)
_TOKENS = _Field(list, lambda part: tuple(np.frombuffer(part.tokens(), "<i4").tolist()))


# -- Extra keys -----------------------------------------------------------------------------------

_ITEM = {"content": _DIGEST, "offset": _COUNT, "length": _Field(index, lambda part: part.integer(minimum=1))}

_EXTRA_KEYS: dict[type, _Kind] = {
    CacheSalt: _Kind(CacheSalt.of_fingerprint, {"fingerprint": _DIGEST}),
    LoraAdapter: _Kind(LoraAdapter, {"name": _UNICODE}),
    WeightsVersion: _Kind(WeightsVersion, {"version": _UNICODE}),
    MultimodalItem: _Kind(MultimodalItem, _ITEM),
    PromptEmbeddings: _Kind(PromptEmbeddings, _ITEM),
}

_PAGE_EXTRA_KEYS = _maybe(
    _list_of(_Field(lambda key: _to_json(_EXTRA_KEYS, key), lambda part: _made(_EXTRA_KEYS, part)))
)


def extra_keys_to_json(extra_keys: tuple[ExtraKey, ...] | None) -> list[dict[str, Any]] | None:
    """The extra keys that touch a page: null, or a list of objects."""
    written: list[dict[str, Any]] | None = _PAGE_EXTRA_KEYS.write(extra_keys)
    return written


def extra_keys_of(part: Part) -> tuple[ExtraKey, ...] | None:
    """Reads the extra keys that touch a page; whether these can be any page's is not looked at."""
    return cast("tuple[ExtraKey, ...] | None", _PAGE_EXTRA_KEYS.read(part))


# -- Events ---------------------------------------------------------------------------------------

_REMOVED = {"group_id": _COUNT, "page_id": _Field(index, lambda part: part.integer(minimum=1)), "page_hash": _DIGEST}

_EVENTS: dict[type, _Kind] = {
    PageStored: _Kind(
        PageStored,
        {**_REMOVED, "parent_hash": _maybe(_DIGEST), "token_ids": _TOKENS, "extra_keys": _PAGE_EXTRA_KEYS},
    ),
    PageRemoved: _Kind(PageRemoved, _REMOVED),
    CacheCleared: _Kind(CacheCleared, {}),
}


def event_to_json(event: CacheEvent) -> dict[str, Any]:
    """An event."""
    return _to_json(_EVENTS, event)


def any_event_of(part: Part) -> CacheEvent:
    """Reads an event of a pool of which nothing is known."""
    return cast("CacheEvent", _made(_EVENTS, part))


def is_length(num_tokens: int, page_size: int, unit: int | None) -> bool:
    """Whether a cached page can have that many tokens: a whole page's, or a multiple of ``match_unit`` (MAN-17)."""
    return num_tokens == page_size or (unit is not None and 0 < num_tokens < page_size and num_tokens % unit == 0)


def event_of(part: Part, page_sizes: list[int], num_pages: int, unit: int | None) -> CacheEvent:
    """Reads an event.

    Args:
        part: the event.
        page_sizes: tokens in a page of each group.
        num_pages: pages of the pool.
        unit: the manager's ``match_unit``: a page may be stored with a multiple of it in tokens (MAN-17).
    """
    event = any_event_of(part)
    if not isinstance(event, CacheCleared):
        if event.group_id >= len(page_sizes) or event.page_id >= num_pages:
            raise part.damaged("names a group or a page that does not exist")
        if isinstance(event, PageStored) and not is_length(len(event.token_ids), page_sizes[event.group_id], unit):
            raise part.damaged(f"must have {page_sizes[event.group_id]} tokens")
    return event


# -- Groups ---------------------------------------------------------------------------------------


def _dtype_of(part: Part) -> str:
    """Reads the name of a dtype as numpy spells it; what else numpy would take for one is refused."""
    name = part.text()
    if re.fullmatch("[a-z]{3}[a-z0-9_]{0,29}", name):
        try:
            if np.dtype(name).name == name:
                return name
        except TypeError:  # numpy knows no such name
            pass
    raise part.damaged("must be the name of a dtype")


_DTYPE = _Field(lambda dtype: np.dtype(dtype).name, _dtype_of)
_ATTENTION = {"page_size": _COUNT, "num_kv_heads": _COUNT, "head_size": _COUNT, "dtype": _DTYPE}
_VALUES = {"head_size_v": _maybe(_COUNT)}

_GROUPS: dict[type, _Kind] = {
    FullAttentionSpec: _Kind(FullAttentionSpec, {**_ATTENTION, **_VALUES}),
    SlidingWindowSpec: _Kind(SlidingWindowSpec, {**_ATTENTION, "sliding_window": _COUNT, **_VALUES}),
    ChunkedLocalAttentionSpec: _Kind(
        ChunkedLocalAttentionSpec, {**_ATTENTION, "attention_chunk_size": _COUNT, **_VALUES}
    ),
    MLAAttentionSpec: _Kind(MLAAttentionSpec, _ATTENTION),
    MambaSpec: _Kind(
        MambaSpec,
        {
            "page_size": _COUNT,
            "shapes": _list_of(_list_of(_COUNT)),
            "dtypes": _list_of(_DTYPE),
            "mamba_cache_mode": _TEXT,
            "page_size_padded": _maybe(_COUNT),
        },
    ),
}

_LAYERS: dict[str, _Field] = {"layer_names": _maybe(_list_of(_TEXT)), "is_eagle_group": _Field(bool, Part.flag)}


def group_to_json(group: CacheGroupSpec) -> dict[str, Any]:
    """A group: its declaration, and beside its fields the layers and whether they are Eagle's."""
    layers = {name: field.write(getattr(group, name)) for name, field in _LAYERS.items()}
    return {**_to_json(_GROUPS, group.kv_cache_spec), **layers}


def group_of(part: Part) -> CacheGroupSpec:
    """Reads a group; whether its fields go together is for the manager that is made of it."""
    make, fields = _kind_of(_GROUPS, part)
    members = part.members(["kind", *fields, *_LAYERS])
    spec = make(**{name: field.read(members[name]) for name, field in fields.items()})
    return CacheGroupSpec(spec, **{name: field.read(members[name]) for name, field in _LAYERS.items()})


# -- Counters -------------------------------------------------------------------------------------


_ONLY_WHERE_COUNTED = ("resumed_hit_tokens", "junction_hit_tokens")
"""Counters that documents lack where they are 0: those written before there were these counters stay as they are."""


def counters_to_json(counters: CacheCounters) -> dict[str, Any]:
    """The fields of counters, histograms as lists, hits by reason only where there are any."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(counters).items()
        if value or name not in _ONLY_WHERE_COUNTED
    }


def counters_of(part: Part) -> CacheCounters:
    """Reads counters."""
    histograms = {field.name for field in fields_of(CacheCounters) if isinstance(field.default, tuple)}
    known = part.value if isinstance(part.value, Mapping) else {}
    names = [field.name for field in fields_of(CacheCounters)]
    members = part.members(name for name in names if name in known or name not in _ONLY_WHERE_COUNTED)
    numbers: dict[str, Any] = {
        name: tuple(count.integer() for count in member.items(NUM_BUCKETS)) if name in histograms else member.integer()
        for name, member in members.items()
    }
    return CacheCounters(**numbers)
