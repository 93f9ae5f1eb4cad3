"""The tables of a cache manager, of one over several shards, and of the page lists that they give.

What is known when a call is made is a machine's (`kvproof.conformance.machines.manager_base`), which also says which
clause a wrong hit or wrong pages break: that depends on what the pages hold.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvproof.spec.declarations import ManagerOptions, PageRemoved, PageStored

from . import manager_arguments as kinds
from .datum import LEFT_OUT, Holder, Minus, New, Spelled
from .kinds import HASHES, NONE, PLAIN, REQUEST_ID, recorded, wrong
from .method import EVERY, Given, Kind, Method, Table
from .pool import NOW
from .readings import page_list

__all__ = [
    "COUNTS",
    "HIT_AGAIN",
    "MANAGER",
    "MOST_PAGES",
    "PAGE_LISTS",
    "SHARDS",
    "STEP_COLUMNS",
    "StrangePage",
    "event",
    "step_columns",
]

MOST_PAGES = 1000
"""A page of shard n is shown as its id and n times this."""

STEP_COLUMNS = ("slots", "num_computed_tokens", "num_new_tokens", "num_lookahead_tokens", "rows")
"""The arguments of a batched step that may be lists with an entry for each request."""

COUNTS = ("ref_cnt", "free pages", "numbers of free pages", "null page")
"""What shows who holds which page."""


@dataclass(frozen=True)
class StrangePage:
    """A page of another manager."""

    def made_on(self, holder: Holder) -> Any:
        """A page that a side's own manager gives, which is made for it."""
        return holder.names.get("CacheManager")(3, [], 8, False).page_pool.get_new_pages(1)[0]

    def as_python(self, write: Callable[[Any], str]) -> str:
        """The calls that give it."""
        return f"{write(New('CacheManager', (3, [], 8, False)))}.page_pool.get_new_pages(1)[0]"

    def __str__(self) -> str:
        return "<another manager's page>"


def step_columns(given: Given, places: Sequence[int] | None = None) -> dict[str, Spelled]:
    """The arguments of a batched step that are lists, each in its spelling.

    Args:
        given: the step's arguments.
        places: the places of the requests that go on; None: all of them.
    """
    columns = {name: own for name in STEP_COLUMNS if isinstance(own := given.get(name), Spelled)}
    if places is None:
        return columns
    return {name: replace(own, values=tuple(own.values[at] for at in places)) for name, own in columns.items()}


# -- How results are compared ------------------------------------------------------------------------------------------


def _group_of(pages: Any, side: Any) -> Any:
    """One group's pages by their ids; of shards, with what is wrong with them as a list of one shard's pages."""
    shards = getattr(side, "shards", None)
    if shards is None:
        return page_list(pages, side)
    owners = [next(n for n, shard in enumerate(shards) if shard.pages[page.page_id] == page) for page in pages]
    shown = page_list(pages, shards[owners[0]]) if len(set(owners)) == 1 else []
    if isinstance(shown, str):
        return shown
    return [page.page_id and page.page_id + owner * MOST_PAGES for page, owner in zip(pages, owners, strict=True)]


def _lists(pages: Any, side: Any) -> Any:
    """Pages that a manager gave: the ids of each group's, or None."""
    return None if pages is None else [_group_of(group, side) for group in pages.pages]


def _pinned(pinned: Any, side: Any) -> Any:
    return pinned and (int(pinned.pin_id), int(pinned.num_tokens), _lists(pinned.pages, side))


def _plan(plan: Any, _: Any) -> Any:
    """A plan: its parts, and each copy's."""
    if plan is None:
        return None
    copies = [tuple(int(number) for number in copy) for copy in plan.copies]
    return int(plan.swap_id), plan.request_id, plan.direction, int(plan.num_tokens), copies


def _batch(batch: Any, _: Any) -> Any:
    """A `SlotBatch`: its arrays with their types, and what it says of each request."""
    arrays = [batch.granted, *batch.page_ids, *batch.offsets]
    each = [[list(map(int, group)) for group in batch.get_page_ids(place)] for place in range(len(batch.granted))]
    return [(str(array.dtype), array.tolist()) for array in arrays], each, int(batch.num_granted)


_SAID = {kind.__name__: kind._fields for kind in (PageStored, PageRemoved)}


def event(told: Any) -> tuple[Any, ...]:
    """An event of any backend, to be compared: its kind and what it says, token ids included."""
    kind = type(told).__name__
    return (kind, *(getattr(told, name) for name in _SAID.get(kind, ())))


def _by_group(ids: Any, _: Any) -> Any:
    return [list(map(int, group)) for group in ids]


def _chains(keys: Any, _: Any) -> Any:
    return {name: [tuple(key.token_ids) for key in chain] for name, chain in keys.items() if chain}


def _ints(values: Any, _: Any) -> Any:
    return list(map(int, values))


_COUNTERS = Kind("counters")
_GROUPS, _HIT, _BATCH = (
    Kind("groups", plain=_lists),
    Kind("hit", plain=lambda found, side: (_lists(found[0], side), int(found[1]))),
    Kind("batch", plain=_batch),
)
_LISTED = Kind("groups", plain=_by_group)
_PIN, _PLAN = Kind("pin", plain=_pinned), Kind("plan", plain=_plan)
_COPIES = Kind("copies", plain=lambda copies, _: [tuple(map(int, copy)) for copy in copies])
_EVENTS = Kind("events", plain=lambda events, _: list(map(event, events)))
_HOLDERS = Kind("ids", plain=lambda holders, _: None if holders is None else list(holders))
_DOCUMENT = Kind("document", plain=lambda *_: None)
_COUNT, _COUNTED_PAGES = Kind(plain=lambda count, _: int(count)), Kind(plain=_ints)

# -- The rows ----------------------------------------------------------------------------------------------------------


def _changes(
    name: str, arguments: Mapping[str, Kind], result: Kind, clause: str, charges: Mapping[str, Any] | None = None,
    **more: Any,
) -> Method:  # fmt: skip
    """A method that changes the state, or that looks: whatever is wrong then is charged to its clause."""
    return Method(name, arguments, result, clause, {EVERY: clause} if charges is None else charges, **more)


def _reads(name: str, arguments: Mapping[str, Kind], result: Kind, clause: str, **more: Any) -> Method:
    return Method(name, arguments, result, clause, reads=True, **more)


def _property(name: str, result: Kind, clause: str, **more: Any) -> Method:
    return _reads(name, {}, result, clause, form="get", **more)


_OF_REQUEST = {"request": kinds.REQUEST}
_OF_ID = {"request_id": REQUEST_ID}
_OPTIONS = ("enable_caching", "use_eagle", *recorded(ManagerOptions))


def _built(name: str, first: Mapping[str, Any], arguments: Mapping[str, Kind], **options: Kind) -> Method:
    """A constructor, whose options good calls leave out."""
    return Method(
        *(name, arguments, NONE, "R1"),
        form="build",
        by_name=_OPTIONS,
        options=kinds.OPTIONS | options,
        draw=lambda *_: {**first, "num_pages": 4, "kv_cache_groups": [], "max_model_len": 8},
        spoils=3,
    )


def _slots_less(given: Given) -> Iterator[Given]:
    """Fewer tokens of a hit, or none of it; nothing beside the new tokens."""
    hits, new = given.get("num_new_computed_tokens"), given["num_new_tokens"]
    if hits is not None:
        yield {"num_new_computed_tokens": LEFT_OUT, "new_computed_pages": LEFT_OUT}
        whole = new.number if isinstance(new, Minus) else new + hits if type(hits) is type(new) is int else None
        if whole is not None:
            yield {"num_new_computed_tokens": LEFT_OUT, "new_computed_pages": LEFT_OUT, "num_new_tokens": whole}
    for option in ("num_lookahead_tokens", "delay_cache_pages"):
        if option in given:
            yield {option: LEFT_OUT}


def _batch_less(given: Given) -> Iterator[Given]:
    """One request fewer; one number for all that are alike."""
    names = ("slots", "num_computed_tokens", "num_new_tokens", "num_lookahead_tokens", "rows")
    lists = {name: given[name] for name in names if isinstance(given.get(name), Spelled)}
    count = len(lists["slots"].values) if "slots" in lists else 0
    if all(len(own.values) == count for own in lists.values()):
        for place in range(count):
            rest = {name: (*own.values[:place], *own.values[place + 1 :]) for name, own in lists.items()}
            yield {name: replace(lists[name], values=values) for name, values in rest.items()}
    if "tables" in given:
        yield {"tables": LEFT_OUT, "rows": LEFT_OUT}
    for name in names[2:4]:
        if name in lists and len(set(lists[name].values)) == 1:
            yield {name: lists[name].values[0]}


def _free_less(given: Given) -> Iterator[Given]:
    """All of its tokens are written."""
    if "num_written" in given:
        yield {"num_written": LEFT_OUT}


_CACHED = dict.fromkeys((*HASHES, "free pages"), "POOL-11")
_RANKED = dict.fromkeys(("priorities", "free pages"), "PIN-2")
_GRANTED = dict.fromkeys(("pages of requests", "host rows", "pages in a row", *COUNTS), "MAN-2")


def _withdraws(_: Any, given: Given) -> str:
    """The clause of a freed request's pages: what was not written is withdrawn (MAN-4)."""
    return "MAN-4" if "num_written" in given else "MAN-5"


_FREED = dict.fromkeys(("pages of requests", *COUNTS, "host rows", "pages in a row"), "MAN-5") | dict.fromkeys(
    HASHES, _withdraws
)

_BOTH = (
    _changes("get_computed_pages", _OF_REQUEST, _HIT, "MAN-1", spoils=1),
    _changes("get_num_hit_tokens", _OF_REQUEST, _COUNT, "MAN-1", reads=True, by_eviction=True, optional=True, spoils=1),
    _changes("get_junction", _OF_REQUEST, _COUNT, "RET-2", reads=True, by_eviction=True, optional=True, spoils=1),
    _changes(
        *("allocate_slots", kinds.SLOTS, _GROUPS, "MAN-2", _GRANTED | dict.fromkeys(HASHES, "MAN-3")),
        by_name=("delay_cache_pages",),
        less=_slots_less,
        spoils=5,
    ),
    _changes("cache_pages", {"request": kinds.LIVE, "num_computed_tokens": kinds.TOKENS}, NONE, "MAN-3", spoils=3),
    _changes(
        *("free", {**_OF_REQUEST, "num_written": kinds.WRITTEN}, _HOLDERS, "MAN-4", _FREED),
        where=_withdraws,
        less=_free_less,
        spoils=2,
    ),
    _changes("free_page_hashes", _OF_REQUEST, NONE, "MAN-6", spoils=1),
    _reads("get_page_ids", _OF_ID, _LISTED, "MAN-2", spoils=1),
    _reads(
        "get_num_common_prefix_pages",
        {"request": kinds.RUNNING, "num_scheduled_requests": kinds.AS_MANY},
        _COUNTED_PAGES,
        "MAN-10",
        optional=True,
        last=True,
        spoils=3,
    ),
    _changes("swap_out", _OF_REQUEST, _PLAN, "SWAP-1", capability="swaps", spoils=1),
    _changes("swap_in", _OF_REQUEST, _PLAN, "SWAP-1", capability="swaps", spoils=1),
    _changes("swap_done", {"swap_id": kinds.SWAP_ID}, NONE, "SWAP-1", capability="swaps", spoils=4),
    _reads("get_host_page_ids", _OF_ID, _LISTED, "SWAP-1", capability="swaps", spoils=1),
    _changes("reset_prefix_cache", {}, PLAIN, "POOL-9"),
    _reads("create_empty_page_list", {}, _GROUPS, "MAN-2", logged=False),
    _property("usage", PLAIN, "POOL-10"),
)
_INNER = {"check": "what a backend says of itself; run with every state"}

MANAGER = Table(
    "manager",
    "CacheManager",
    (
        _built("CacheManager", {}, kinds.BUILT),
        *_BOTH,
        _changes(
            "allocate_slots_batch",
            kinds.STEP,
            _BATCH,
            "MAN-11",
            by_name=("delay_cache_pages", "tables", "rows"),
            less=_batch_less,
            draw=lambda source, known: known.good_step(source),
            capability="batch",
            spoils=1,
        ),
        _reads("slot_of", _OF_ID, PLAIN, "MAN-11", spoils=1),
        _reads("take_page_copies", {}, _COPIES, "MAN-13"),
        _changes(
            *("pin_prefix", {**_OF_REQUEST, "num_tokens": kinds.LENGTH}, _PIN, "PIN-1"), capability="pins", spoils=2
        ),
        _changes(
            *("unpin_prefix", {"pin_id": kinds.PIN_ID}, NONE, "PIN-1", dict.fromkeys(COUNTS, "PIN-1")),
            capability="pins",
            spoils=3,
        ),
        _changes(
            "set_prefix_priority", kinds.RANKING, PLAIN, "PIN-2", _RANKED, by_eviction=True, capability="pins", spoils=4
        ),
        _changes("advance_time", {"now": NOW}, NONE, "PIN-2", _RANKED, capability="pins", spoils=3),
        _changes(
            *("receive_pages", {**_OF_REQUEST, "num_tokens": kinds.NEW_TOKENS}, _PLAN, "SWAP-2"),
            capability="swaps",
            spoils=2,
        ),
        _changes("evict_pages", {"page_ids": kinds.IDS}, NONE, "POOL-11", _CACHED, optional=True, spoils=1),
        _reads("take_events", {}, _EVENTS, "MAN-12", by_eviction=True, optional=True),
        _property("counters", _COUNTERS, "MAN-12", by_eviction=True),
        _property("num_free_host_pages", PLAIN, "SWAP-1", logged=False),
        _property("num_host_pages", PLAIN, "SWAP-1", logged=False),
        _property("retention_interval", PLAIN, "RET-1", logged=False),
        _property("match_unit", PLAIN, "MAN-17", logged=False),
        _property("req_to_page_hashes", Kind("keys", plain=_chains), "HASH-3", optional=True, logged=False, last=True),
        _reads("snapshot", {}, _DOCUMENT, "MAN-14", logged=False),
        Method(
            *(
                "restore",
                {
                    "snapshot": wrong(None, "x", [], 1, log="document"),
                    "requests": wrong(None, 1, [None], "a", log="requests"),
                },
                Kind(plain=lambda manager, _: json.loads(json.dumps(manager.snapshot()))),
                "MAN-14",
                {EVERY: "MAN-14"},
            ),
            by_name=("hash_function", "hash_seed"),
            options={"hash_function": wrong(1, "sha256", None)},
            capability="snapshots",
            draw=lambda _, known: known.good_snapshot(),
            spoils=1,
            logged=False,
        ),
    ),
    _INNER,
)

SHARDS = Table(
    "shards",
    "ShardedCacheManager",
    (
        _built(
            "ShardedCacheManager",
            {"num_shards": 2},
            {"num_shards": kinds.SHARDS, **kinds.BUILT},
            placement=kinds.PLACEMENT,
        ),
        *_BOTH,
        _reads("shard_of", _OF_ID, PLAIN, "POOL-12", spoils=1),
        _reads("take_page_copies", {"shard": kinds.SHARD}, _COPIES, "MAN-13", spoils=2),
    ),
    _INNER,
)

HIT_AGAIN = replace(
    MANAGER["get_computed_pages"],
    result=Kind(plain=lambda found, _: int(found[1])),
    clause="HIT-1",
    charges={},
    last=True,
)
"""A look-up of what was served last, nobody coming between: what counts is how much it finds."""

_OTHER = Kind(plain=_lists)

PAGE_LISTS = Table(
    "page lists",
    "CachePages",
    (
        Method("CachePages", {"pages": Kind("groups")}, NONE, "MAN-2", form="build", logged=False),
        _reads("__add__", {"other": Kind("groups")}, _OTHER, "MAN-2", logged=False),
        _reads("new_empty", {}, _OTHER, "MAN-2", logged=False),
        _reads("get_page_ids", {}, Kind(plain=_by_group), "MAN-2", logged=False),
        _reads("get_unhashed_page_ids", {}, Kind(plain=_ints), "POOL-1", logged=False),
    ),
    {"pages": "read with every result"},
)
