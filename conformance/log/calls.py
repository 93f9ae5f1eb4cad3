"""The calls that a log knows: how their arguments and results are read, and which clauses they are about."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvproof.spec.declarations import ManagerOptions, PoolOptions

__all__ = ["CALLS", "CLASSES", "PROPERTIES", "Call"]

_HASHES = ("hashed pages", "cached map")


@dataclass(frozen=True)
class Call:
    """A method that a log records.

    Attributes:
        arguments: the kind of each argument by its name, in order: ``request``; ``plain`` for numbers, texts and
            lists of them; ``id`` for a request's id; ``pages`` and ``groups`` for views of pages, in a list or in
            lists by group; ``hits`` for what a look-up found; ``keys`` and ``key`` for keys of pages; ``tables``.
        result: the kind of the result: ``none``, ``plain``, ``ids`` of requests, ``pages``, ``groups``, ``hit``,
            ``copies``, ``events``, ``counters``, ``pin``, ``plan``, ``array``, ``batch``.
        clause: the label that a wrong result is charged to.
        reads: whether it only reads.
        charge: labels for differences of the state after it, by field, instead of the fields' own.
    """

    arguments: Mapping[str, str]
    result: str
    clause: str
    reads: bool = False
    charge: Mapping[str, str] = field(default_factory=dict)


def _call(arguments: str, result: str, clause: str, *, reads: bool = False, **charge: Any) -> Call:
    """A call; arguments as ``name:kind``, plain ones by their names; ``rest`` and ``hashes`` charge fields."""
    words = [(*word.split(":"), "plain") for word in arguments.split()]
    kinds = {name: kind for name, kind, *_ in words}
    labels = dict.fromkeys(("pages of requests", "ref_cnt", "free pages", "pages in a row", "host rows"), clause)
    labels |= {} if "rest" not in charge else dict.fromkeys(labels, charge["rest"])
    labels |= dict.fromkeys(_HASHES, charge.get("hashes", clause))
    return Call(kinds, result, clause, reads, {} if reads else labels)


_BATCH = "slots num_computed_tokens num_new_tokens num_lookahead_tokens delay_cache_pages tables:tables rows"
_SLOTS = (
    "request:request num_new_tokens num_new_computed_tokens new_computed_pages:hits num_lookahead_tokens "
    "delay_cache_pages"
)
_CACHING = "request:request pages:pages page_hashes:keys num_cached_pages num_full_pages page_size kv_cache_group_id"
_SHARED = {
    "advance_time": _call("now", "none", "PIN-2"),
    "evict_pages": _call("page_ids", "none", "POOL-11"),
    "reset_prefix_cache": _call("", "plain", "POOL-9"),
    "take_events": _call("", "events", "MAN-12", reads=True),
}

_MANAGER = {
    "get_computed_pages": _call("request:request", "hit", "MAN-1"),
    "allocate_slots": _call(_SLOTS, "groups", "MAN-2", hashes="MAN-3"),
    "allocate_slots_batch": _call(_BATCH, "batch", "MAN-11"),
    "slot_of": _call("request_id:id", "plain", "MAN-11", reads=True),
    "cache_pages": _call("request:request num_computed_tokens", "none", "MAN-3"),
    "take_page_copies": _call("", "copies", "MAN-13", reads=True),
    "free": _call("request:request num_written", "ids", "MAN-4", rest="MAN-5"),
    "free_page_hashes": _call("request:request", "none", "MAN-6"),
    "get_page_ids": _call("request_id:id", "groups", "MAN-2", reads=True),
    "get_num_common_prefix_pages": _call("request:request num_scheduled_requests", "plain", "MAN-10", reads=True),
    "pin_prefix": _call("request:request num_tokens", "pin", "PIN-1"),
    "unpin_prefix": _call("pin_id", "none", "PIN-1"),
    "swap_out": _call("request:request", "plan", "SWAP-1"),
    "swap_in": _call("request:request", "plan", "SWAP-1"),
    "receive_pages": _call("request:request num_tokens", "plan", "SWAP-2"),
    "swap_done": _call("swap_id", "none", "SWAP-1"),
    "get_host_page_ids": _call("request_id:id", "groups", "SWAP-1", reads=True),
    "set_prefix_priority": _call("request:request priority num_tokens expires_at", "plain", "PIN-2"),
    **_SHARED,
}

_POOL = {
    "get_num_free_pages": _call("", "plain", "POOL-2", reads=True),
    "get_usage": _call("", "plain", "POOL-10", reads=True),
    "get_new_pages": _call("num_pages", "pages", "POOL-3"),
    "touch": _call("pages:groups", "none", "POOL-6"),
    "free_pages": _call("ordered_pages:pages", "none", "POOL-5"),
    "pin": _call("pages:groups", "none", "PIN-1"),
    "unpin": _call("pages:groups", "none", "PIN-1"),
    "pins_of": _call("page_id", "plain", "PIN-1", reads=True),
    "cache_full_pages": _call(_CACHING, "none", "POOL-7"),
    "get_cached_page": _call("page_hash:key kv_cache_group_ids", "pages", "POOL-7", reads=True),
    "set_priority": _call("pages:pages priority expires_at", "none", "PIN-2"),
    "get_priority": _call("page_id", "plain", "PIN-2", reads=True),
    **_SHARED,
}

_TABLE = {
    "append_row": _call("page_ids row_idx", "none", "TAB-2"),
    "append_rows_batch": _call("page_ids req_indices", "none", "TAB-2"),
    "add_row": _call("page_ids row_idx", "none", "TAB-2"),
    "clear_row": _call("row_idx", "none", "TAB-2"),
    "move_row": _call("src tgt", "none", "TAB-3"),
    "swap_row": _call("src tgt", "none", "TAB-3"),
    "clear": _call("", "none", "TAB-6"),
    "commit": _call("num_reqs", "none", "TAB-4"),
}
_SLOT_CALLS = {
    "slot_mapping": _call("req_indices positions page_size", "array", "TAB-7", reads=True),
    "update_slices": _call("req_indices starts lengths page_size", "array", "TAB-7", reads=True),
}

CALLS: dict[str, dict[str, Call]] = {
    "CacheManager": _MANAGER,
    "PagePool": _POOL,
    "PageTable": _TABLE | _SLOT_CALLS,
    "MultiGroupPageTable": _TABLE | {"append_rows_batch": _call("page_ids_per_req req_indices", "none", "TAB-2")},
}
"""The recorded methods of each class."""

PROPERTIES: dict[str, dict[str, Call]] = {
    "CacheManager": {
        "usage": _call("", "plain", "POOL-10", reads=True),
        "counters": _call("", "counters", "MAN-12", reads=True),
    },
    "PagePool": {
        "num_pinned_pages": _call("", "plain", "PIN-1", reads=True),
        "counters": _call("", "counters", "MAN-12", reads=True),
    },
    "PageTable": {},
    "MultiGroupPageTable": {},
}
"""The recorded properties of each class."""


def _recorded(declared: type) -> tuple[str, ...]:
    """The options that a log keeps: all but those of the keys, for which whoever reads it takes its own."""
    return tuple(name for name in declared.__annotations__ if name not in ("hash_seed", "hash_function"))


CLASSES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "CacheManager": (
        ("num_pages", "kv_cache_groups", "max_model_len"),
        ("enable_caching", "use_eagle", *_recorded(ManagerOptions)),
    ),
    "PagePool": (
        ("num_pages", "enable_caching"),
        _recorded(PoolOptions),
    ),
    "PageTable": (("max_num_reqs", "max_num_pages_per_req", "max_num_batched_tokens"), ()),
    "MultiGroupPageTable": (("max_num_reqs", "max_model_len", "max_num_batched_tokens", "page_sizes"), ()),
}
"""For each class the arguments of its constructor that it must be given, and those that it may be given."""
