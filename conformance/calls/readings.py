"""What objects of a backend show, read off public names: the one set of readers of the state.

Machines compare what these functions return, logs write it down, and emitted tests hold the sources of those that they
use; so each function stands for itself and is made of plain Python.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

__all__ = [
    "SHOWS",
    "Reading",
    "cached_entries",
    "page_hashes",
    "page_ids",
    "page_list",
    "page_views",
    "readable",
    "source",
]


def page_views(pool: Any, queue: bool = True) -> dict[int, Any]:
    """Views of a pool's pages by id: those that it shows, or if it shows none those that are free, and its null page.

    Args:
        pool: the pool.
        queue: whether it shows its free queue; if not, all pages are taken and given back in the same order.
    """
    pages = getattr(pool, "pages", None)
    if pages is None and queue and hasattr(pool, "free_page_queue"):
        pages = list(pool.free_page_queue.get_all_free_pages())
    elif pages is None:
        pages = list(pool.get_new_pages(pool.get_num_free_pages()))
        pool.free_pages(pages)
    null = [pool.null_page] if hasattr(pool, "null_page") else []
    return dict(sorted((int(page.page_id), page) for page in [*null, *pages]))


def readable(value: Any) -> Any:
    """A result as plain values: pages by their ids, arrays and sequences as lists."""
    if hasattr(value, "page_id"):
        return int(value.page_id)
    if hasattr(value, "get_page_ids") and hasattr(value, "pages"):
        return [list(map(int, group)) for group in value.get_page_ids()]
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: readable(entry) for key, entry in value.items()}
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes):
        return [readable(entry) for entry in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: readable(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def ref_counts(pages: Any) -> Any:
    """How often each page is held, by its id."""
    return {page_id: int(page.ref_cnt) for page_id, page in pages.items() if page_id}


def null_page(pool: Any, pages: Any) -> Any:
    """The null page's id, count, flag and hash, and the ids of other pages that say they are it."""
    page = pool.null_page
    others = [page_id for page_id, other in pages.items() if page_id and other.is_null]
    return page.page_id, page.ref_cnt, bool(page.is_null), page.page_hash, others


def free_pages(pool: Any) -> Any:
    """The ids of the free pages, first the next to be taken."""
    return [int(page.page_id) for page in pool.free_page_queue.get_all_free_pages()]


def misplaced_pages(pool: Any, pages: Any) -> Any:
    """The ids of pages that are not in the free queue exactly once while nobody holds them, and else not at all."""
    times: Any = {}
    for page in pool.free_page_queue.get_all_free_pages():
        times[page.page_id] = times.get(page.page_id, 0) + 1
    wrong = [n for n, page in pages.items() if n and times.get(n, 0) != (page.ref_cnt == 0)]
    return wrong + [n for n in times if n not in pages]


def numbers_of_free_pages(pool: Any) -> Any:
    """How many pages are free, as the pool and its queue say."""
    return int(pool.get_num_free_pages()), int(pool.free_page_queue.num_free_pages)


def page_hashes(pages: Any) -> Any:
    """The hash of every page but the null page, by its id."""
    return {page_id: page.page_hash for page_id, page in pages.items() if page_id}


def cached_entries(pool: Any) -> Any:
    """The keys of the cached map, each with the ids of its pages in the order in which they were cached."""
    entries = []
    for key, pages in pool.cached_page_hash_to_page.items():
        listed = pages.values() if hasattr(pages, "values") else pages
        entries.append((key, [int(page.page_id) for page in listed]))
    return [entry for entry in entries if entry[1]]


def hashed_pages(hashes: Any) -> Any:
    """The ids of the pages that have a hash."""
    return [page_id for page_id, key in hashes.items() if key is not None]


def cached_pages(entries: Any) -> Any:
    """For each key of the cached map its group and its pages, in the order in which they were cached."""
    return sorted((int(key.group_id), pages) for key, pages in entries)


def misfiled_pages(entries: Any, hashes: Any) -> Any:
    """The ids of pages that are cached under another key than their own hash, or under two keys."""
    keys: Any = {}
    for key, pages in entries:
        for page_id in pages:
            keys.setdefault(page_id, []).append(key)
    return sorted(page_id for page_id, known in keys.items() if known != [hashes.get(page_id)])


def page_keys(hashes: Any) -> Any:
    """The digest, the tokens and the extra keys of every page that has a hash."""
    keys = {n: key.page_hash for n, key in hashes.items() if key is not None}
    return {n: (key.hash_value, tuple(key.token_ids), key.extra_keys) for n, key in keys.items()}


def key_tokens(hashes: Any) -> Any:
    """The tokens and the extra keys of every page that has a hash."""
    keys = {n: key.page_hash for n, key in hashes.items() if key is not None}
    return {n: (tuple(key.token_ids), key.extra_keys) for n, key in keys.items()}


def usage(pool: Any) -> Any:
    """The part of the pages that is in use."""
    return round(float(pool.get_usage()), 9)


def manager_usage(manager: Any) -> Any:
    """The part of the pages that is in use."""
    return round(float(manager.usage), 9)


def pages_of_requests(manager: Any, names: Any) -> Any:
    """The page ids of some requests, group by group."""
    return {name: [list(map(int, group)) for group in manager.get_page_ids(name)] for name in names}


def events_told(manager: Any) -> Any:
    """What the manager told of its cache: the kind of each event, and what it says."""
    told = []
    for event in manager.take_events():
        kind: Any = type(event)
        said = kind._fields if hasattr(kind, "_fields") else kind.__dataclass_fields__
        told.append((kind.__name__, *(getattr(event, name) for name in said)))
    return told


def counters(owner: Any) -> Any:
    """What was counted."""
    counted = owner.counters
    return {name: getattr(counted, name) for name in counted.__dataclass_fields__}


def pinned_pages(pool: Any) -> Any:
    """How many pages are pinned."""
    return int(pool.num_pinned_pages)


def priorities(pool: Any, pages: Any) -> Any:
    """The priority of every page."""
    return {page_id: int(pool.get_priority(page_id)) for page_id in pages}


def whole_state(manager: Any) -> Any:
    """The whole state as a snapshot has it, or by what error there is none."""
    kinds = TypeError, IndexError, ValueError  # a refusal may be of a class derived from them
    try:
        return manager.snapshot()
    except Exception as error:
        return next((kind.__name__ for kind in kinds if isinstance(error, kind)), type(error).__name__)


def slots(manager: Any, names: Any) -> Any:
    """The slots of requests, or by what error they have none."""
    found: Any = {}
    kinds = TypeError, IndexError, ValueError  # a refusal may be of a class derived from them
    for name in names:
        try:
            found[name] = int(manager.slot_of(name))
        except Exception as error:
            found[name] = next((kind.__name__ for kind in kinds if isinstance(error, kind)), type(error).__name__)
    return found


def shards_of_requests(manager: Any, names: Any) -> Any:
    """The shard of every request."""
    return {name: manager.shard_of(name) for name in names}


def host_pages_of_requests(manager: Any, names: Any) -> Any:
    """The host pages of some requests, group by group."""
    return {name: [list(map(int, group)) for group in manager.get_host_page_ids(name)] for name in names}


def free_host_pages(manager: Any) -> Any:
    """How many host pages are free."""
    return int(manager.num_free_host_pages)


def queued_pages(queue: Any) -> Any:
    """The ids of the pages in a queue, first the first."""
    return [int(page.page_id) for page in queue.get_all_free_pages()]


def queue_length(queue: Any) -> Any:
    """How many pages the queue says it has."""
    return int(queue.num_free_pages)


def counts_and_hashes(pages: Any) -> Any:
    """The count of every page, and whether it has no hash."""
    return {page_id: (page.ref_cnt, page.page_hash is None) for page_id, page in pages.items()}


def free_queue(pool: Any) -> Any:
    """The queue of a pool's free pages."""
    return pool.free_page_queue


def neighbours(queue: Any, pages: Any) -> Any:
    """The ids of the pages before and behind each page, and behind and before the queue's ends."""
    ends = {"head": queue.fake_free_list_head, "tail": queue.fake_free_list_tail}
    found = {}
    for name, page in (pages | ends).items():
        beside = page.prev_free_page, page.next_free_page
        found[str(name)] = tuple(None if other is None else other.page_id for other in beside)
    return found


def row_lengths(tables: Any) -> Any:
    """How many pages each row of each table names."""
    return [[int(count) for count in table.num_pages_per_row] for table in tables]


def host_rows(tables: Any) -> Any:
    """The rows of each table on the host."""
    return [table.get_cpu_tensor().tolist() for table in tables]


def device_rows(tables: Any) -> Any:
    """The rows of each table on the device."""
    return [table.get_device_tensor().tolist() for table in tables]


def changeable_tables(tables: Any) -> Any:
    """The tables whose host rows can be changed from outside."""
    return [n for n, table in enumerate(tables) if table.get_cpu_tensor().flags.writeable]


def page_tables(table: Any) -> Any:
    """The rows of every group's table on the host."""
    return [each.get_cpu_tensor().tolist() for each in table.page_tables]


def page_ids(pages: Iterable[Any]) -> list[int]:
    """The ids of some pages."""
    return [int(page.page_id) for page in pages]


def page_list(pages: Any, side: Any) -> object:
    """A page list that a call returned: its ids, and what is wrong with it as a list of views of a side's pages."""
    given = list(pages)
    if "views" in side.names.lacks:
        return page_ids(given)
    of_list = (
        ("not equal to a list of its pages", lambda: pages != given),
        ("equal to a longer list", lambda: bool(pages == [*given, None])),
        ("not a list of both when added behind a list", lambda: list(given + pages) != [*given, *given]),
        ("not a list of both when a list is added", lambda: list(pages + given) != [*given, *given]),
        ("of another length than its pages", lambda: len(pages) != len(given)),
        ("no immutable sequence", lambda: hasattr(type(pages), "__setitem__") or hasattr(type(pages), "append")),
    )
    wrong = () if type(pages) is tuple else of_list  # nobody can change a tuple, or takes it for a list
    others = (
        "made of views that do not equal those of the pool",
        lambda: any(not _is_view(page, side) for page in given),
    )
    flaws = [flaw for flaw, is_wrong in (*wrong, others) if is_wrong()]
    numbers = page_ids(given)
    return f"{numbers}, which is {' and '.join(flaws)}" if flaws else numbers


def _is_view(page: Any, side: Any) -> bool:
    if side.pages is None:
        return True  # whose pages they are is not known: a shard's
    known = side.pages[page.page_id]
    other = side.pages[1 if page.page_id == 0 else 0]
    return bool(page == known) and hash(page) == hash(known) and page != other and page.ref_cnt == known.ref_cnt


PARTS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "hashes": (page_hashes, "pages"),
    "entries": (cached_entries, "pool"),
    "free queue": (free_queue, "pool"),
}
"""What several readings are given, by name: the function that makes it, and what that is given."""


@dataclass(frozen=True)
class Reading:
    """How a test looks at one thing that the state shows.

    Attributes:
        look: the function.
        given: the names of what it is given: of a side, or ``names``, the ids of all requests; or one of `PARTS`.
        told: how the values are read off a side here, where looking twice shows another thing; None for ``look``.
    """

    look: Callable[..., Any]
    given: tuple[str, ...]
    told: Callable[[Any], Any] | None = None

    @cached_property
    def needs(self) -> frozenset[str]:
        """The names of what it is worked out of."""
        return frozenset(PARTS[name][1] if name in PARTS else name for name in self.given)

    def looked(self, part: Callable[[str], Any], made: dict[str, Any] | None = None) -> Any:
        """What it shows.

        Args:
            part: says what there is under a name.
            made: those of `PARTS` that were worked out already; more are added.
        """
        made, given = {} if made is None else made, []
        for name in self.given:
            if name not in PARTS:
                given.append(part(name))
                continue
            if name not in made:
                make, of = PARTS[name]
                made[name] = make(part(of))
            given.append(made[name])
        return self.look(*given)

    def text(self, parts: Mapping[str, str]) -> str:
        """The call that shows it, made of the texts of what it needs."""
        made = (f"{PARTS[n][0].__name__}({parts[PARTS[n][1]]})" if n in PARTS else parts[n] for n in self.given)
        return f"{self.look.__name__}({', '.join(made)})"

    @property
    def functions(self) -> tuple[Callable[..., Any], ...]:
        """The functions that it is made of."""
        return *(PARTS[name][0] for name in self.given if name in PARTS), self.look


@dataclass(frozen=True)
class Shows:
    """One thing that the state shows.

    Attributes:
        clause: the label that its differences are charged to, unless the call that made them says otherwise.
        readings: how a test looks at it; of several ways the first that shows a difference.
    """

    clause: str
    readings: tuple[Reading, ...]


SHOWS: dict[str, Shows] = {
    "ref_cnt": Shows("POOL-5", (Reading(ref_counts, ("pages",)),)),
    "null page": Shows("POOL-1", (Reading(null_page, ("pool", "pages")),)),
    "not in the queue exactly while at 0": Shows("POOL-2", (Reading(misplaced_pages, ("pool", "pages")),)),
    "free pages": Shows("POOL-3", (Reading(free_pages, ("pool",)),)),
    "numbers of free pages": Shows("POOL-2", (Reading(numbers_of_free_pages, ("pool",)),)),
    "hashed pages": Shows("POOL-7", (Reading(hashed_pages, ("hashes",)),)),
    "cached map": Shows("POOL-7", (Reading(cached_pages, ("entries",)),)),
    "cached under another key than its own": Shows("POOL-8", (Reading(misfiled_pages, ("entries", "hashes")),)),
    "keys": Shows("HASH-1", (Reading(key_tokens, ("hashes",)), Reading(page_keys, ("hashes",)))),
    "usage": Shows("POOL-10", (Reading(usage, ("pool",)),)),
    "usage of the manager": Shows("POOL-10", (Reading(manager_usage, ("manager",)),)),
    "pages of requests": Shows("MAN-2", (Reading(pages_of_requests, ("manager", "names")),)),
    "events": Shows("MAN-12", (Reading(events_told, ("manager",), lambda side: side.told),)),
    "counters": Shows("MAN-12", (Reading(counters, ("manager",)),)),
    "counters of the pool": Shows("MAN-12", (Reading(counters, ("pool",)),)),
    "number of pinned pages": Shows("PIN-1", (Reading(pinned_pages, ("pool",)),)),
    "priorities": Shows("PIN-2", (Reading(priorities, ("pool", "pages")),)),
    "host pages of requests": Shows("SWAP-1", (Reading(host_pages_of_requests, ("manager", "names")),)),
    "free host pages": Shows("SWAP-1", (Reading(free_host_pages, ("manager",)),)),
    "slots": Shows("MAN-11", (Reading(slots, ("manager", "names")),)),
    "snapshot": Shows("MAN-14", (Reading(whole_state, ("manager",)),)),
    "shards of requests": Shows("POOL-12", (Reading(shards_of_requests, ("manager", "names")),)),
    "table rows": Shows("MAN-11", (Reading(page_tables, ("table",)),)),
    "pages": Shows("POOL-5", (Reading(counts_and_hashes, ("pages",)),)),
    "num_free_pages": Shows("POOL-2", (Reading(queue_length, ("queue",)),)),
    "queue": Shows("POOL-3", (Reading(queued_pages, ("queue",)),)),
    "neighbours of free pages": Shows("POOL-2", (Reading(neighbours, ("free queue", "pages")),)),
    "neighbours": Shows("POOL-2", (Reading(neighbours, ("queue", "pages")),)),
    "pages in a row": Shows("TAB-1", (Reading(row_lengths, ("tables",)),)),
    "host rows": Shows("TAB-1", (Reading(host_rows, ("tables",)),)),
    "device rows": Shows("TAB-4", (Reading(device_rows, ("tables",)),)),
    "tables that can be changed from outside": Shows("TAB-6", (Reading(changeable_tables, ("tables",)),)),
}
"""Each field of the state that is compared."""


def source(function: Callable[..., Any]) -> str:
    """The source of one of these functions, as a file has it: without annotations, which it would have to import."""
    signature, empty = inspect.signature(function), inspect.Parameter.empty
    bare = [parameter.replace(annotation=empty) for parameter in signature.parameters.values()]
    head = signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    body = inspect.getsource(function).partition(":\n")[2].replace(": Any", "").rstrip()
    return f"def {function.__name__}{head}:\n{body}"
