"""`record`: a live engine's manager, pool or tables with a log written of every call."""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from kvproof.spec.declarations.json_kinds import group_to_json

from ..calls.logged import page_ids, plain
from ..calls.readings import page_views
from .format import CALLS, CLASSES, PROPERTIES, SEEDED, LogError
from .recorded_calls import KeyOrigins, RecordedCall, bare, can_record_slots, record_batch, record_slots
from .values import outcome_text, read_state, text_of
from .writer import LogFile, LogWriter

__all__ = ["Recorded", "arguments_of", "record", "wrapped"]


def record(
    thing: Any,
    file: "str | Path | Recorded",
    *,
    redact: bool = False,
    show_tokens: bool = False,
    states_every: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Wraps a live object so that every call on it is written to a log, which `kvproof replay` holds to the clauses.

    What comes back has the object's interface: a manager's ``page_pool`` is recorded too, and so are the tables of
    groups; what is reached by other ways (a coordinator, setters of page views) is not. It is a context manager;
    ``close()``, the end of its block and the end of the process write the log to its end. A killed process loses what
    was not written yet: up to 4,096 calls, however long ago they were made, which ``flush()`` writes. A machine that
    goes down also loses what its system had not put on the disk.

    What it costs, writing included, as a share of the same calls of the fast backend: a single decode call 80 to 120 %,
    one to two and a half microseconds; a batched step of 256 or 1,024 requests 20 to 50 %; the four calls for a new
    prompt 70 to 130 %, of 8,192 tokens 95 to 150 %, as every token is mapped and written once.
    EasyDeL's own scheduler around EasyDeL's own manager: its step of 64 running requests 35 to 55 %, of 256 some 10 to
    40 %; a call on a running request is two microseconds there, and what a step pays once weighs more where few run.

    Args:
        thing: a fresh ``CacheManager``, ``PagePool``, ``PageTable`` or ``MultiGroupPageTable`` of any package.
        file: where the log goes; or another recorded object, whose log this one joins.
        redact: whether request ids, adapters, versions, digests and layer names are mapped one to one by a key that is
            kept nowhere (SEC-2).
        show_tokens: whether token ids stand in the log; else they are mapped in the same way.
        states_every: what the objects show is recorded after so many calls; None: as often as 2 % of the time allow
            and at the end, without the device's rows and without the usage, which the free pages tell; 0: never.
        options: arguments of the constructor that the object does not show, or shows in a form of its own. Of a
            manager or a pool that evicts by another policy than ``lru`` the log can be replayed to its end only with
            ``show_tokens`` and ``options={"hash_seed": ...}``, as the policy goes by both (EVICT-1).

    Raises:
        TypeError: it is none of the four.
        LogError: the object was used before, does not show how it was made, or the file can't be written.
    """
    name = next((base.__name__ for base in type(thing).__mro__ if base.__name__ in CALLS), None)
    if name is None or isinstance(thing, Recorded):
        raise TypeError(f"thing must be one of {', '.join(CALLS)} and not recorded yet, not {type(thing).__name__}")
    if name == "CacheManager" and not hasattr(thing, "page_pool"):
        raise LogError(f"{type(thing).__name__} shows no page_pool, whose pages a log has by their ids")
    arguments = arguments_of(name, thing, dict(options or {}))
    _require_fresh(name, thing)
    writer = (
        file._kvproof_writer
        if isinstance(file, Recorded)
        else LogFile(Path(file), show_tokens=show_tokens, redact=redact, states_every=states_every)
    )
    if "kv_cache_groups" in arguments and writer.redact:
        for group in arguments["kv_cache_groups"]:
            group["layer_names"] = group["layer_names"] and list(map(writer.requests.text, group["layer_names"]))
    return wrapped(writer, name, thing, arguments)


def arguments_of(name: str, thing: Any, options: dict[str, Any]) -> dict[str, Any]:
    """How an object was made, as far as it shows that, or as it was told."""
    needed, possible = CLASSES[name]
    seed = {"hash_seed": options.pop("hash_seed").hex()} if name in SEEDED and "hash_seed" in options else {}
    unknown = options.keys() - {*needed, *possible}
    if unknown:
        raise LogError(f"options: {name} has no argument {sorted(unknown)[0]}")
    places = [thing] + ([thing.page_pool] if name == "CacheManager" else [])
    if name == "MultiGroupPageTable":
        places.append(thing.page_tables[0])
        options.setdefault("max_model_len", _longest(thing))
    for argument in (*needed, *possible):
        place = next((place for place in places if hasattr(place, argument)), None)
        if argument not in options and place is not None:
            options[argument] = getattr(place, argument)
        if argument in needed and argument not in options:
            raise LogError(f"{type(thing).__name__} does not show its {argument}: give it by options")
    if "kv_cache_groups" in options:
        try:
            options["kv_cache_groups"] = [group_to_json(group) for group in options["kv_cache_groups"]]
        except (AttributeError, TypeError) as error:
            raise LogError("kv_cache_groups are of a form of their own: give kvproof's by options") from error
    told = {argument: value if argument == "kv_cache_groups" else plain(value) for argument, value in options.items()}
    return told | seed


def _longest(tables: Any) -> int:
    """A length for which each group's rows have as many entries as they have."""
    sizes, own = tables.page_sizes, tables.page_tables
    return int(min(size * table.max_num_pages_per_req for size, table in zip(sizes, own, strict=True)))


def _require_fresh(name: str, thing: Any) -> None:
    """Refuses an object that was used before: no replay could begin where it stands."""
    if name.endswith("Table"):
        tables = thing.page_tables if name == "MultiGroupPageTable" else [thing]
        used = any(np.asarray(table.num_pages_per_row).any() for table in tables)
    else:
        pool = thing.page_pool if name == "CacheManager" else thing
        free = page_ids(pool.free_page_queue.get_all_free_pages())
        used = free != list(range(1, int(pool.num_pages))) or bool(len(pool.cached_page_hash_to_page))
    if used:
        raise LogError(f"the {name} was used before: a log begins with a fresh one")


def wrapped(writer: LogWriter, name: str, thing: Any, arguments: dict[str, Any]) -> "Recorded":
    """Wraps an object and its parts, and has their states noted.

    Args:
        writer: the log.
        name: the object's class.
        thing: the object.
        arguments: how it was made.
    """
    kind = _RecordedTables if name == "MultiGroupPageTable" else Recorded
    recorded = kind(writer, name, thing, arguments)
    own = recorded.__dict__
    number = own["_kvproof_number"]
    if name == "CacheManager":
        own["page_pool"] = wrapped(writer, "PagePool", thing.page_pool, {"of": number})
        if not writer.states_every and can_record_slots(thing):
            own["allocate_slots"] = record_slots(writer, number, thing, own["allocate_slots"])
        if "allocate_slots_batch" in own:
            own |= record_batch(writer, number, thing, own["allocate_slots_batch"], own["slot_of"])
    if name == "MultiGroupPageTable":
        own["page_tables"] = [
            wrapped(writer, "PageTable", table, {"of": number, "group": group})
            for group, table in enumerate(thing.page_tables)
        ]
    if "of" not in arguments:
        _watch(writer, number, name, thing)
    return recorded


class Recorded:
    """An object whose calls are recorded; all else is the object's own.

    Args:
        writer: the log.
        name: the object's class.
        thing: the object.
        arguments: how it was made.
    """

    def __init__(self, writer: LogWriter, name: str, thing: Any, arguments: dict[str, Any]) -> None:
        own = self.__dict__
        own |= {"_kvproof_writer": writer, "_kvproof_thing": thing, "_kvproof_properties": PROPERTIES[name]}
        own["_kvproof_number"] = number = writer.make(name, arguments)
        origins = KeyOrigins(of_manager="of" in arguments)
        for method, row in CALLS[name].items():
            if hasattr(thing, method):
                own[method] = RecordedCall(writer, number, method, row, getattr(thing, method), origins)

    def __getattr__(self, attribute: str) -> Any:
        own = self.__dict__
        value = getattr(own["_kvproof_thing"], attribute)
        row = own["_kvproof_properties"].get(attribute)
        writer = own["_kvproof_writer"]
        if row is not None and not callable(value) and not writer.passes_over(attribute):
            told = outcome_text(row.result.log, value, writer.keys)
            writer.note(f'["call",{own["_kvproof_number"]},{text_of(attribute)},{{}},{told}]')
        return value

    def __setattr__(self, attribute: str, value: Any) -> None:
        setattr(self._kvproof_thing, attribute, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._kvproof_thing)

    def __repr__(self) -> str:
        return f"recorded {self._kvproof_thing!r}"

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def flush(self) -> None:
        """Writes what was recorded so far."""
        self._kvproof_writer.flush()

    def close(self) -> None:
        """Writes the log to its end; later calls are not recorded."""
        self._kvproof_writer.close()


class _RecordedTables(Recorded):
    """Tables of several groups, each of which is recorded, too."""

    def __len__(self) -> int:
        return len(self._kvproof_thing)

    def __getitem__(self, group: int) -> Any:
        table = self._kvproof_thing[group]  # which refuses other objects than groups
        return next(own for own in self.page_tables if own._kvproof_thing is table)


def _watch(writer: LogWriter, number: int, name: str, thing: Any) -> None:
    """Has an object's states noted from now on."""
    thing = bare(thing)  # what another log records of it are the engine's calls
    pool = thing.page_pool if name == "CacheManager" else thing if name == "PagePool" else None
    views: dict[int, Any] = {} if pool is None or hasattr(pool, "pages") else page_views(pool)  # while all are free

    def read() -> dict[str, Any]:
        if pool is not None and not views:
            views.update(page_views(pool))
        live = list(writer.requests.by_id) if name == "CacheManager" else []
        state = read_state(name, thing, views, live, device=bool(writer.states_every))
        if "pages of requests" in state:
            held = state["pages of requests"].items()
            state["pages of requests"] = {writer.requests.text(own): groups for own, groups in held}
        if not writer.states_every:
            state.pop("usage", None)
        return state

    tables = getattr(thing, "page_tables", [thing])
    shapes = [table.get_cpu_tensor().shape for table in tables] if pool is None else [(int(pool.num_pages),)]
    writer.watch(number, read, sum(map(prod, shapes)))
