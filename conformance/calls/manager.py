"""The tables of a cache manager, and of one over several shards."""

from collections.abc import Mapping
from typing import Any

from kvproof.spec.declarations import ManagerOptions

from .kinds import HASHES, NONE, PLAIN, recorded
from .method import Kind, Method, Table

__all__ = ["MANAGER", "SHARDS"]

_REQUEST, _ID, _HITS, _TABLES, _IDS = (Kind(name) for name in ("request", "id", "hits", "tables", "ids"))
_GROUPS, _HIT, _BATCH, _PIN, _PLAN = (Kind(name) for name in ("groups", "hit", "batch", "pin", "plan"))
_COPIES, _EVENTS, _COUNTERS, _DOCUMENT = (Kind(name) for name in ("copies", "events", "counters", "document"))


def _plain(names: str) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), PLAIN)


def _changes(
    name: str, arguments: Mapping[str, Kind], result: Kind, clause: str, rest: str = "", hashes: str = "", **more: Any
) -> Method:
    """A method that changes the state: wrong page lists and counts are charged to ``rest``, hashes to ``hashes``."""
    charges = dict.fromkeys(("pages of requests", "ref_cnt", "free pages", "host rows"), rest or clause)
    charges |= dict.fromkeys(("pages in a row",), rest or clause) | dict.fromkeys(HASHES, hashes or clause)
    return Method(name, arguments, result, clause, charges, **more)


def _reads(name: str, arguments: Mapping[str, Kind], result: Kind, clause: str, **more: Any) -> Method:
    return Method(name, arguments, result, clause, reads=True, **more)


def _property(name: str, result: Kind, clause: str, **more: Any) -> Method:
    return _reads(name, {}, result, clause, form="get", **more)


_OF_REQUEST = {"request": _REQUEST}
_OF_ID = {"request_id": _ID}
_LENGTH = {**_OF_REQUEST, **_plain("num_tokens")}
_SLOTS = {
    **_OF_REQUEST,
    **_plain("num_new_tokens num_new_computed_tokens"),
    "new_computed_pages": _HITS,
    **_plain("num_lookahead_tokens delay_cache_pages"),
}
_STEP = {
    **_plain("slots num_computed_tokens num_new_tokens num_lookahead_tokens delay_cache_pages"),
    "tables": _TABLES,
    **_plain("rows"),
}
_COUNTED = {**_OF_REQUEST, **_plain("num_scheduled_requests")}
_BUILT = _plain("num_pages kv_cache_groups max_model_len")
_OPTIONS = ("enable_caching", "use_eagle", *recorded(ManagerOptions))

_BOTH = (
    _changes("get_computed_pages", _OF_REQUEST, _HIT, "MAN-1"),
    _reads("get_junction", _OF_REQUEST, PLAIN, "RET-2", optional=True),
    _changes("allocate_slots", _SLOTS, _GROUPS, "MAN-2", hashes="MAN-3", by_name=("delay_cache_pages",)),
    _changes("cache_pages", {**_OF_REQUEST, **_plain("num_computed_tokens")}, NONE, "MAN-3"),
    _changes("free", {**_OF_REQUEST, **_plain("num_written")}, _IDS, "MAN-4", rest="MAN-5"),
    _changes("free_page_hashes", _OF_REQUEST, NONE, "MAN-6"),
    _reads("get_page_ids", _OF_ID, _GROUPS, "MAN-2"),
    _reads("get_num_common_prefix_pages", _COUNTED, PLAIN, "MAN-10", optional=True),
    _changes("swap_out", _OF_REQUEST, _PLAN, "SWAP-1", capability="swap"),
    _changes("swap_in", _OF_REQUEST, _PLAN, "SWAP-1", capability="swap"),
    _changes("swap_done", _plain("swap_id"), NONE, "SWAP-1", capability="swap"),
    _reads("get_host_page_ids", _OF_ID, _GROUPS, "SWAP-1", capability="swap"),
    _changes("reset_prefix_cache", {}, PLAIN, "POOL-9"),
    _reads("create_empty_page_list", {}, _GROUPS, "MAN-2", logged=False),
    _property("usage", PLAIN, "POOL-10"),
)
_INNER = {"check": "what a backend says of itself; run with every state"}

MANAGER = Table(
    "manager",
    "CacheManager",
    (
        Method("CacheManager", _BUILT, NONE, "R1", form="build", by_name=_OPTIONS),
        *_BOTH,
        _changes("allocate_slots_batch", _STEP, _BATCH, "MAN-11", by_name=("delay_cache_pages", "tables", "rows")),
        _reads("slot_of", _OF_ID, PLAIN, "MAN-11"),
        _reads("take_page_copies", {}, _COPIES, "MAN-13"),
        _changes("pin_prefix", _LENGTH, _PIN, "PIN-1", capability="pins"),
        _changes("unpin_prefix", _plain("pin_id"), NONE, "PIN-1", capability="pins"),
        _changes(
            *("set_prefix_priority", {**_OF_REQUEST, **_plain("priority num_tokens expires_at")}, PLAIN, "PIN-2"),
            capability="pins",
        ),
        _changes("advance_time", _plain("now"), NONE, "PIN-2", capability="pins"),
        _changes("receive_pages", _LENGTH, _PLAN, "SWAP-2", capability="swap"),
        _changes("evict_pages", _plain("page_ids"), NONE, "POOL-11", optional=True),
        _reads("take_events", {}, _EVENTS, "MAN-12", optional=True),
        _property("counters", _COUNTERS, "MAN-12"),
        _property("num_free_host_pages", PLAIN, "SWAP-1", logged=False),
        _property("num_host_pages", PLAIN, "SWAP-1", logged=False),
        _property("retention_interval", PLAIN, "RET-1", logged=False),
        _property("req_to_page_hashes", Kind("keys"), "HASH-3", optional=True, logged=False),
        _reads("snapshot", {}, _DOCUMENT, "MAN-14", logged=False),
        Method(
            *("restore", {"snapshot": _DOCUMENT, "requests": Kind("requests")}, NONE, "MAN-14"),
            by_name=("hash_function", "hash_seed"),
            logged=False,
        ),
    ),
    _INNER,
)

SHARDS = Table(
    "shards",
    "ShardedCacheManager",
    (
        Method("ShardedCacheManager", _plain("num_shards") | _BUILT, NONE, "R1", form="build", by_name=_OPTIONS),
        *_BOTH,
        _reads("shard_of", _OF_ID, PLAIN, "POOL-12"),
        _reads("take_page_copies", _plain("shard"), _COPIES, "MAN-13"),
    ),
    _INNER,
)
