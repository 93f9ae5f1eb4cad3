"""MAN-14: what a snapshot looks like: a manager's whole state as JSON, which every implementation writes and reads.

::

    kvproof         "manager snapshot"
    version         2, without ``eviction``, ``retention`` and ``match_unit``; 5 with ``eviction``, else 3
    num_pages, max_model_len, enable_caching, use_eagle, unhashed_first, enable_events, counter_sampling,
    max_pinned_pages, max_pinned_pages_per_salt, num_host_pages     the arguments of the manager
    none_hash       the root of its keys, hexadecimal as all bytes
    groups          [{kind, the fields of the declaration, layer_names, is_eagle_group}]; a dtype by its name
    now             the time of the last `advance_time`, or null
    eviction        in version 5 only: {policy, regrets, empty, queues, candidate, scores, asked, recent, credit,
                    shadows}, see `SavedEviction`; queues: {front: [[clock, [page]]],
                    levels: [[[page, clock]]], hits: [[page, hits]], ghosts: [[slot, tag]]}; shadows: [[clock, queues
                    of marks]]
    free            [page], in eviction order
    priorities      [[page, priority, expires_at]] of the pages that have one, by page
    contents        [[place of the content before in this list or -1, [token], extra keys]]
    cached          [[group, page, place in contents]]; the pages of one key in their order, keys by their first page
    requests        [{id, slot, num_promised, num_slots, num_computed, groups}], live ones, in order of admission;
                    groups: [{pages, num_hits, num_published, states}], a null page as 0; states: [[place, tokens]]
                    of the places with a page in a group of mode align, else []
    known           [id] of the requests looked up or admitted whose keys were not dropped, in their order
    given_back      [[id, tokens with slots]] of those among them that were live and are freed
    pins            [{id, num_tokens, pages}], a list of pages for each group
    next_pin_id     the id of the next pin
    next_swap_id    the id of the next plan of copies to or from the host
    copies          [[request id, group, source, destination]], not taken by `take_page_copies` yet; for copies amid a
                    page the number of tokens follows
    events          [{kind, the fields of the event}], not taken by `take_events` yet
    counters        {the fields of CacheCounters}; resumed_hit_tokens and junction_hit_tokens only where not 0
    clock           the number of pages ever allocated
    stored_at       [[page, clock]] of the sampled pages that are cached, by page
    freed_at        [[page, clock]] of those among them that are free, by page
    extra keys      null, or [{kind, its fields}]
    retention       {interval, second, kept, points, passed}: the argument ``retention_interval``, where it is not what
                    a document without this part stands for: null if a hit needs only part of a group's prefix, else 0
        second      [page], the free pages of second class, in order
        kept        [page], the cached pages that are kept whoever lets go of them, by page
        points      [[request id, prompt's end, junction]] of the live requests that have either
        passed      [[request id, group, place, page]], what was let go although a hit of all computed tokens needs it
    match_unit      {unit, first}: the argument, where it is not None; first: [[request id, tokens]] of the live
                    requests whose admission published something. A content may then have fewer tokens than a page

A snapshot has token ids. It has neither the engine's request objects, nor keys, which are computed from the contents,
nor salts, of which only fingerprints are kept (SEC-2).

This module declares the format, and reads what can be read without a manager. The state itself is written and read by
the parts of a manager that have it, in each package.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from .codec import Part, plain
from .eviction import POLICIES
from .groups import CacheGroupSpec, FullAttentionSpec, MambaSpec, MLAAttentionSpec
from .json_kinds import group_of
from .reading import listed, refusal
from .requests import EngineRequest

__all__ = [
    "POOL_ARGUMENTS",
    "firsts_of",
    "known_of",
    "made_of",
    "objects_of",
    "parts_of",
    "request_named",
    "require_same",
    "retention_of",
    "snapshot_with",
    "unit_of",
    "with_retention",
    "with_unit",
]

Made = TypeVar("Made")

_HEADER = "manager snapshot"
_VERSION = 2
_VERSION_WITH_MORE = 3
_VERSION_WITH_EVICTION = 5
"""With ``eviction`` version 3 told pages that were hit once from no others that were, and version 4 not which pages in
use were let go before; both are refused."""

_KEYS = (
    *("kvproof", "version", "num_pages", "max_model_len", "enable_caching", "use_eagle", "unhashed_first"),
    *("enable_events", "counter_sampling", "max_pinned_pages", "max_pinned_pages_per_salt", "num_host_pages"),
    *("none_hash", "groups", "now", "free", "priorities", "contents", "cached", "requests", "known", "given_back"),
    *("pins", "next_pin_id", "next_swap_id", "copies", "events", "counters", "clock", "stored_at", "freed_at"),
)
_MORE = ("eviction", "retention", "match_unit")
"""Keys that only some snapshots have, which then are of the later version."""

_UNIT = ("unit", "first")

_RETENTION = ("interval", "second", "kept", "points", "passed")

POOL_ARGUMENTS = (
    *("num_pages", "enable_caching", "unhashed_first", "enable_events", "counter_sampling"),
    *("max_pinned_pages", "max_pinned_pages_per_salt"),
)
"""The arguments of a pool that a snapshot has, each an attribute of the pool."""


def _version(more: Collection[str]) -> int:
    """The version of a snapshot with some of the keys of `_MORE`."""
    if "eviction" in more:
        return _VERSION_WITH_EVICTION
    return _VERSION_WITH_MORE if more else _VERSION


def snapshot_with(state: Mapping[str, Any]) -> dict[str, Any]:
    """The snapshot of a state: its header, and then every part, in the order above."""
    more = [name for name in _MORE if name in state]
    whole = {"kvproof": _HEADER, "version": _version(more), **state}
    return {name: whole[name] for name in (*_KEYS, *more)}


def parts_of(snapshot: object) -> dict[str, Part]:
    """The parts of a snapshot by their names, once it was found to be one.

    Raises:
        TypeError: it is no mapping.
        ValueError: it is of another kind or version, has other fields, or claims more pages than it lists (SEC-3).
    """
    if not isinstance(snapshot, Mapping):
        raise refusal(TypeError, "R1", f"snapshot must be a mapping, not {type(snapshot).__name__}")
    more = [name for name in _MORE if name in snapshot]
    for name, expected in (("kvproof", _HEADER), ("version", _version(more))):
        part = Part(f"snapshot: {name}", snapshot.get(name), "SEC-3")
        if type(part.value) is not type(expected) or part.value != expected:
            raise part.damaged(f"must be {expected!r}")
    whole = Part("snapshot: the object", snapshot, "SEC-3")
    members = whole.members((*_KEYS, *more))
    parts = {name: Part(f"snapshot: {name}", part.value) for name, part in members.items()}
    lists = [parts["free"], parts["copies"]]
    for request in parts["requests"].items():
        lists += [group.member("pages") for group in request.member("groups").items()]
    for pin in parts["pins"].items():
        lists += pin.member("pages").items()
    if parts["num_pages"].integer() > 1 + sum(map(len, lists)):
        raise parts["num_pages"].damaged(f"is {parts['num_pages'].value}, more than are free or held", "SEC-3")
    return parts


def objects_of(requests: Iterable[EngineRequest], read_id: Callable[[EngineRequest], str]) -> dict[str, EngineRequest]:
    """The engine's requests by their ids, which ``read_id`` reads; refused if two objects have one id (MAN-14)."""
    objects: dict[str, EngineRequest] = {}
    for place, request in enumerate(listed("requests", requests)):
        if not hasattr(request, "request_id"):
            raise refusal(
                TypeError, "R1", f"requests[{place}] is a {type(request).__name__}, which is no EngineRequest"
            )
        if objects.setdefault(read_id(request), request) is not request:
            raise refusal(ValueError, "MAN-14", f"requests has two objects of the id {request.request_id!r}")
    return objects


def made_of(parts: Mapping[str, Part], make: Callable[..., Made]) -> Made:
    """The manager that ``make`` makes of a snapshot's arguments, empty; refused where it refuses them (MAN-14)."""
    arguments = _arguments_of(parts)
    try:
        manager = make(**arguments)
    except (TypeError, ValueError) as error:
        raise refusal(ValueError, "MAN-14", f"snapshot: what the manager was made with is refused: {error}") from None
    if arguments["enable_caching"] and not arguments["kv_cache_groups"]:
        raise parts["enable_caching"].damaged("is true without a group")
    return manager


def _arguments_of(parts: Mapping[str, Part]) -> dict[str, Any]:
    """The arguments by which the manager of a snapshot is made, but for its keys' hash and their root.

    Raises:
        ValueError: one is damaged (MAN-14). Whether they go together is for the manager to say.
    """
    per_salt = parts["max_pinned_pages_per_salt"]
    counts = ("num_pages", "max_model_len", "counter_sampling", "max_pinned_pages", "num_host_pages")
    flags = ("enable_caching", "use_eagle", "unhashed_first", "enable_events")
    policy = parts["eviction"].member("policy") if "eviction" in parts else None
    if policy is not None and policy.value not in POLICIES[1:]:
        raise policy.damaged(f"must be one of {', '.join(map(repr, POLICIES[1:]))}")
    groups = [group_of(part) for part in parts["groups"].items()]
    interval = retention_of(parts)["interval"]
    if "retention" not in parts and not _needs_parts(groups):
        interval = Part("snapshot: retention: interval", 0)
    return {
        **{name: parts[name].integer() for name in counts},
        "retention_interval": None if interval.value is None else interval.integer(),
        "match_unit": unit_of(parts),
        **{name: parts[name].flag() for name in flags},
        "eviction": "lru" if policy is None else policy.value,
        "max_pinned_pages_per_salt": None if per_salt.value is None else per_salt.integer(),
        "kv_cache_groups": groups,
    }


def retention_of(parts: Mapping[str, Part]) -> dict[str, Part]:
    """The parts of ``retention``; nothing is kept or of second class where a snapshot lacks them."""
    whole = parts.get("retention")
    if whole is not None:
        return whole.members(_RETENTION)
    return {name: Part(f"snapshot: retention: {name}", None if name == "interval" else []) for name in _RETENTION}


def with_retention(
    groups: Sequence[CacheGroupSpec], interval: int | None, retention: Mapping[str, Any]
) -> dict[str, Any]:
    """The part ``retention`` of a snapshot, if it has one.

    It has none where every page is kept as before there was retention, and no live request was admitted at a junction.

    Args:
        groups: the cache groups.
        interval: the argument ``retention_interval``.
        retention: the other members.
    """
    if interval == (None if _needs_parts(groups) else 0) and not any(retention.values()):
        return {}
    whole = {"interval": interval, **retention}
    return {"retention": {name: whole[name] for name in _RETENTION}}


def unit_of(parts: Mapping[str, Part]) -> int | None:
    """The argument ``match_unit`` of a snapshot's manager (MAN-17)."""
    return parts["match_unit"].members(_UNIT)["unit"].integer(minimum=1) if "match_unit" in parts else None


def firsts_of(parts: Mapping[str, Part]) -> dict[str, int]:
    """What the admissions of live requests published, in tokens by request id (MAN-17)."""
    if "match_unit" not in parts:
        return {}
    entries = [part.items(2) for part in parts["match_unit"].members(_UNIT)["first"].items()]
    return {id_part.text(): tokens.integer(minimum=1) for id_part, tokens in entries}


def with_unit(unit: int | None, firsts: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """The part ``match_unit`` of a snapshot, if it has one.

    Args:
        unit: the argument.
        firsts: the id of each live request, and the tokens that its admission published.
    """
    return {} if unit is None else {"match_unit": {"unit": unit, "first": [list(own) for own in firsts if own[1]]}}


def _needs_parts(groups: Sequence[CacheGroupSpec]) -> bool:
    """Whether a hit needs only part of a prefix in some group: states of mode ``none`` are never hit (MAN-13)."""
    specs = [group.kv_cache_spec for group in groups]
    return any(
        spec.mamba_cache_mode == "align"
        if isinstance(spec, MambaSpec)
        else not isinstance(spec, FullAttentionSpec | MLAAttentionSpec)
        for spec in specs
    )


def request_named(part: Part, objects: Mapping[str, EngineRequest]) -> EngineRequest:
    """The engine's object of the request whose id a part has; refused if it was not passed (MAN-14)."""
    request = objects.get(part.text())
    if request is None:
        raise part.damaged(f"is {part.value!r}, a request that was not passed")
    return request


def known_of(
    parts: Mapping[str, Part], objects: Mapping[str, EngineRequest]
) -> tuple[dict[str, EngineRequest], dict[str, int]]:
    """The parts ``known`` and ``given_back``: the known requests by id, and the tokens of those that were freed."""
    known: dict[str, EngineRequest] = {}
    for part in parts["known"].items():
        if part.text() in known:
            raise part.damaged(f"is {part.value!r}, which is named twice")
        known[part.text()] = request_named(part, objects)
    freed: dict[str, int] = {}
    for part in parts["given_back"].items():
        id_part, tokens = part.items(2)
        if id_part.text() in freed:
            raise id_part.damaged(f"is {id_part.value!r}, which is named twice")
        freed[id_part.text()] = tokens.integer(minimum=1)
    return known, freed


def require_same(parts: Mapping[str, Part], again: Mapping[str, Any]) -> None:
    """Refuses a snapshot other than the one that the manager made of it writes, which is ``again`` (MAN-14)."""
    for name, part in parts.items():
        if name not in again or (part.value != again[name] and plain(part.value) != plain(again[name])):
            raise part.damaged("is not what a manager in this state writes")
