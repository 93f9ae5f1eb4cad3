"""MAN-12, SEC-3: events as vLLM's routers read them: MessagePack of its ``KVEventBatch``, in version 1 of ours.

::

    [time in seconds, [event, ...], rank or null, ["kvproof", 1, publisher]]
    event       {type: BlockStored, block_hashes: [digest], parent_block_hash: digest or null, token_ids: [int],
                 block_size, lora_id: null, medium, lora_name: text or null,
                 extra_keys: null or [[adapter's name, [content, offset], salt]],
                 group_idx, kv_cache_spec_kind, kv_cache_spec_sliding_window, page_id, page_extra_keys}
                {type: BlockRemoved, block_hashes: [digest], medium, group_idx, page_id}
                {type: AllBlocksCleared}

Fields are those of vLLM 0.33 (`vllm/distributed/kv_events.py`), whose decoders pass over the ones that they don't know:
the fourth entry of a batch, which names the format and the publisher, ``page_id``, and ``page_extra_keys``, the extra
keys with their types as JSON documents have them. A page is an event of its own. Digests are ours (HASH-1), so that
equal prefixes have equal digests only where the hash seed is the same; of a salt only the fingerprint is in it (SEC-2).
"""

from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from .codec import Part
from .events import CacheCleared, CacheEvent, PageRemoved, PageStored
from .extra_keys import CacheSalt, LoraAdapter, MultimodalItem, PromptEmbeddings
from .groups import CacheGroupSpec
from .json_kinds import any_event_of, extra_keys_to_json
from .reading import instance, integer, listed, real, refusal

__all__ = ["EventBatch", "events_from_msgpack", "events_to_msgpack", "read_batch"]

_FORMAT = ["kvproof", 1]

_KINDS = {
    "FullAttentionSpec": "full_attention",
    "MLAAttentionSpec": "mla_attention",
    "SlidingWindowSpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked_local_attention",
    "MambaSpec": "mamba",
}
"""vLLM's word for each kind of cache group."""


class EventBatch(NamedTuple):
    """What one message of a publisher says.

    Attributes:
        events: the events, in order.
        publisher: the number of the publisher that sent them; a later one has a larger number.
    """

    events: list[CacheEvent]
    publisher: int


def events_to_msgpack(
    events: Iterable[CacheEvent],
    kv_cache_groups: Sequence[CacheGroupSpec] = (),
    *,
    timestamp: float = 0.0,
    rank: int | None = None,
    medium: str = "GPU",
    publisher: int = 0,
) -> bytes:
    """Events as one MessagePack message, which vLLM's own decoder reads (MAN-12). O(their size).

    Args:
        events: as `take_events` returned them.
        kv_cache_groups: the manager's groups, whose kind and window each event has then; without them it has neither.
        timestamp: the time in seconds.
        rank: the data-parallel rank that the events are of.
        medium: where the pages lie, in vLLM's words.
        publisher: see `EventBatch`.

    Raises:
        ImportError: msgspec is not installed.
        TypeError: one is no event, or another argument of a wrong type (R1).
        ValueError: an event's group is none of ``kv_cache_groups``; a time that is not finite, a negative rank (R1).
    """
    groups = listed("kv_cache_groups", kv_cache_groups)
    specs = [instance("kv_cache_groups", group, CacheGroupSpec).kv_cache_spec for group in groups]
    medium = instance("medium", medium, str)
    written = [_written(event, specs, medium) for event in listed("events", events)]
    timestamp, rank = real("timestamp", timestamp), None if rank is None else integer("rank", rank, below=2**63)
    format_and_publisher = [*_FORMAT, integer("publisher", publisher, below=2**63)]
    encoded: bytes = _msgspec().msgpack.encode([timestamp, written, rank, format_and_publisher])
    return encoded


def events_from_msgpack(message: bytes) -> list[CacheEvent]:
    """Events from what `events_to_msgpack` wrote (SEC-3). O(its length).

    Raises:
        ImportError: msgspec is not installed.
        TypeError: it is not bytes.
        ValueError: it is damaged, of another version, has events of another kind, or ones that name no pages, such as
            vLLM's own.
    """
    return read_batch(message).events


def _is_ours(named: object) -> bool:
    """Whether a batch says that it is of our format, in any version."""
    return isinstance(named, list) and named[:1] == _FORMAT[:1] and len(named) > 1 and type(named[1]) is int


def read_batch(message: bytes) -> EventBatch:
    """The events of a message and who published them; see `events_from_msgpack`."""
    if not isinstance(message, bytes):
        raise refusal(TypeError, "R1", f"message must be bytes, not {type(message).__name__}")
    msgspec = _msgspec()
    whole = Part("message", None, "SEC-3")
    try:
        given = msgspec.msgpack.decode(message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise whole.damaged("is no MessagePack") from None
    if not (isinstance(given, list) and len(given) == 4 and _is_ours(given[3])):
        raise whole.damaged(f"is no batch of events of the format {_FORMAT}, which `events_to_msgpack` writes")
    _, written, _, named = given
    if named[1] != _FORMAT[1]:
        raise whole.damaged(f"is of version {named[1]} of its format; version {_FORMAT[1]} can be read")
    if len(named) != 3:
        raise whole.damaged(f"must name its publisher behind {_FORMAT}")
    publisher = Part("message publisher", named[2], "SEC-3").integer()
    return EventBatch([_event_of(event) for event in Part("message events", written, "SEC-3").items()], publisher)


def _msgspec() -> ModuleType:
    """The package that writes and reads MessagePack: not needed by anything else, so an extra."""
    try:
        import msgspec
    except ImportError:
        raise ImportError("MessagePack needs msgspec: pip install 'kvproof[events]'") from None
    module: ModuleType = msgspec
    return module


# -- Writing --------------------------------------------------------------------------------------


def _written(event: object, specs: Sequence[Any], medium: str) -> dict[str, Any]:
    """The fields of an event."""
    if isinstance(event, CacheCleared):
        return {"type": "AllBlocksCleared"}
    if not isinstance(event, PageStored | PageRemoved):
        raise refusal(TypeError, "R1", f"events has {event!r}, which is no CacheEvent")
    fields = {
        "block_hashes": [event.page_hash],
        "medium": medium,
        "group_idx": event.group_id,
        "page_id": event.page_id,
    }
    if isinstance(event, PageRemoved):
        return {"type": "BlockRemoved", **fields}
    adapters = [key.name for key in event.extra_keys or () if isinstance(key, LoraAdapter)]
    fields |= {
        "type": "BlockStored",
        "parent_block_hash": event.parent_hash,
        "token_ids": list(event.token_ids),
        "block_size": len(event.token_ids),
        "lora_id": None,
        "lora_name": adapters[0] if adapters else None,
        "extra_keys": None if not event.extra_keys else [_plain(event.extra_keys)],
        "page_extra_keys": extra_keys_to_json(event.extra_keys),
    }
    if specs:
        if not 0 <= event.group_id < len(specs):
            raise refusal(
                ValueError, "MAN-12", f"events: group {event.group_id} is none of {len(specs)} kv_cache_groups"
            )
        spec = specs[event.group_id]
        fields |= {
            "kv_cache_spec_kind": _KINDS.get(type(spec).__name__, "unknown"),
            "kv_cache_spec_sliding_window": getattr(spec, "sliding_window", None),
        }
    return fields


def _plain(extra_keys: Iterable[Any]) -> list[Any]:
    """Extra keys as vLLM writes them: without their types."""
    fields: list[Any] = []
    for key in extra_keys:
        match key:
            case MultimodalItem() | PromptEmbeddings():
                fields.append([key.content.hex(), key.offset])
            case CacheSalt():
                fields.append(key.fingerprint.hex())
            case LoraAdapter():
                fields.append(key.name)
            case _:
                fields.append(key.version)
    return fields


# -- Reading --------------------------------------------------------------------------------------

_FIELDS = {
    "AllBlocksCleared": (),
    "BlockRemoved": ("block_hashes", "group_idx", "page_id"),
    "BlockStored": ("block_hashes", "group_idx", "page_id", "parent_block_hash", "token_ids", "page_extra_keys"),
}
"""The fields of each kind that are read; the others are for vLLM's readers."""


def _event_of(part: Part) -> CacheEvent:
    """Reads an event, by way of the form that it has in JSON, whose reader refuses what is damaged."""
    fields = part.value
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise part.damaged("must be an event, which names its type")
    kind = fields["type"]
    if kind not in _FIELDS:
        raise part.damaged(f"is of the type {kind[:40]!r}, none of {sorted(_FIELDS)}")
    missing = [name for name in _FIELDS[kind] if name not in fields]
    if missing:
        raise part.damaged(f"lacks {', '.join(missing)}: it is not of kvproof's version {_FORMAT[1]}")
    if kind == "AllBlocksCleared":
        return CacheCleared()
    hashes = fields["block_hashes"]
    if not (isinstance(hashes, list) and len(hashes) == 1 and isinstance(hashes[0], bytes)):
        raise part.damaged("must have one digest in block_hashes")
    named = {"group_id": fields["group_idx"], "page_id": fields["page_id"], "page_hash": hashes[0].hex()}
    if kind == "BlockStored":
        parent = fields["parent_block_hash"]
        named |= {
            "kind": "PageStored",
            "parent_hash": parent.hex() if isinstance(parent, bytes) else parent,
            "token_ids": fields["token_ids"],
            "extra_keys": fields["page_extra_keys"],
        }
    return any_event_of(Part("message event", {"kind": "PageRemoved", **named}, "SEC-3"))
