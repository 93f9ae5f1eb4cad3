"""The table of a page pool.

What is known when a call is drawn is a machine's (`kvproof.conformance.machines.pool`): which pages are held,
cached or free by the specification, and how to name them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from kvproof.spec.declarations import CacheCounters, PageRemoved, PageStored, PoolOptions

from .datum import Hashed, Holder, Prompt, Ref, Spelled
from .kinds import (
    COUNTS,
    HASHES,
    NEGATIVE,
    NONE,
    PAGES_FOUND,
    PAGES_GIVEN,
    PLAIN,
    POOL_OPTIONS,
    grouped,
    number,
    recorded,
    spelled,
    wrong_groups,
)
from .method import Given, Kind, Label, Method, Table
from .readings import page_views
from .source import Source
from .spelling import NUMBERS
from .values import BAD_TIMES, NO_INTS, NO_LISTS, PRIORITIES, STRANGER

__all__ = ["EXPIRY", "NOW", "POOL", "PRIORITY"]

OTHER = Ref("other")
"""A page of another pool."""

_FREE_COUNT = Kind(
    good=lambda source, known: (
        0
        if source.rarely() and source.rarely()
        else source.whole(1, min(known.spec.pool.get_num_free_pages(), source.most(4)))
    ),
    fault=lambda source, known, _: source.likely([known.spec.pool.get_num_free_pages() + 1, -1], NO_INTS),
    possible=lambda known: known.spec.pool.get_num_free_pages(),
)


def _good_touch(source: Source, known: Any) -> Spelled:
    """Held pages, cached free pages and the null page, several groups at once, pages repeatedly."""
    pages = [known.ref(page) for page in [*known.touchable(), 0]]
    return grouped(source, known, [source.several(pages, source.most(3)) for _ in range(source.integer(0, 3))])


def _good_free(source: Source, known: Any) -> Any:
    """Pages, each at most as often as it is held, null pages too; often the very list that was given, as of engines."""
    whole = known.whole_lists()
    if whole and source.integer(0, 2) == 2:
        return source.one_of(whole)
    return spelled(source, known, list(map(known.ref, source.a_few([*known.mentions(), 0], source.most(5)))))


def _within(holds: Counter[int], known: Any, value: Any) -> Any:
    """A list of pages without the mentions that are more than some counts; the null page may stand in it."""
    if isinstance(value, Ref):
        return value
    kept = []
    for ref in value.values if isinstance(value, Spelled) else value:
        (page,) = known.ids([ref])
        holds[page] -= 1
        kept += [ref] if page == 0 or holds[page] >= 0 else []
    return replace(value, values=tuple(kept)) if isinstance(value, Spelled) else kept


def _fitting_free(known: Any, value: Any) -> Any:
    return _within(Counter(known.mentions()), known, value)


def _bad_free(source: Source, known: Any, _: Given) -> Any:
    """A mention too many, a free page, another pool's page, no page, no list; good pages stand before it."""
    held = [page for page in known.owned if known.count(page)]
    good = source.some(held, 2)
    page = source.one_of([*held, *known.owned])
    left = known.count(page) - good.count(page)
    if source.rarely():
        return source.one_of(NO_LISTS)
    freed = source.one_of([[known.ref(page)] * (left + 1), [OTHER], [STRANGER]])
    return spelled(source, known, [*map(known.ref, good), *freed])


_TOUCHED = Kind(
    "groups",
    _good_touch,
    lambda source, known, _: wrong_groups(
        source, known, list(map(known.ref, known.touchable())), [*map(known.ref, known.bare()[:2]), OTHER, STRANGER]
    ),
)
_FREED = Kind("pages", _good_free, _bad_free, lambda known: known.mentions(), fits=_fitting_free)


def _dropped(source: Source, known: Any) -> Spelled:
    pages = source.a_few([*known.cached(), *known.owned, 0], source.most(3))
    return spelled(source, known, [known.ref(page).to(".page_id") for page in pages], NUMBERS)


def _bad_ids(source: Source, known: Any, _: Given) -> Any:
    """Ids of no page, after ids of pages; no list."""
    good = [known.ref(page).to(".page_id") for page in source.some(known.cached(), 2)]
    wrong = source.likely([-1, len(known.owned) + 1], NO_INTS)
    faults: list[Any] = [[*good, wrong]] * 3
    return source.one_of([*faults, 1])


_DROPPED = Kind(good=_dropped, fault=_bad_ids)
_KEY = Kind(
    "key",
    lambda source, known: source.one_of(known.shared_keys() * 3 + known.known_keys()),
    lambda *_: None,
    lambda known: known.known_keys(),
)
_GROUP_IDS = Kind(
    good=lambda source, known: source.one_of(
        [[0], [1], [0, 1], [1, 0], [2], [0, 0], []] if known.takes_groups else [[0]]
    ),
    fault=lambda source, *_: source.one_of([[0, -1], 0, *([0, wrong] for wrong in NO_INTS)]),
)

# -- Caching: all arguments depend on each other


def _caching(source: Source, known: Any) -> Given:
    """Full pages of a request, null pages and pages cached before among them; rarely none of them is cached."""
    size, full = source.one_of([1, 1, 2]), source.integer(1, source.most(3))
    again = [tokens for tokens in known.sequences if len(tokens) >= full * size]
    if again and source.integer(0, 2) < 2:
        tokens = source.one_of(again)  # so that there are duplicates
    else:
        tokens = tuple(source.several([0, 1], full * size + 1, full * size))
    prompt = Prompt(tokens, source.one_of(known.extra_keys), source.token_spelling(known.takes_iterables))
    known.sequences.append(tokens)
    first = source.integer(0, full - 1)
    pages = source.some(known.cacheable(), full - first, 1)
    while len(pages) < full - first:
        pages.insert(source.integer(0, len(pages)), 0)  # a null page: a released window page
    before = [source.one_of([0, *known.owned]) for _ in range(first)]
    after = [source.one_of(known.owned)] if source.rarely() else []
    keys = known.keys_of(prompt, size)
    whole = known.keys_at_once(prompt, size)
    return {
        "request": prompt,
        "pages": [known.ref(page) for page in (*before, *pages, *after)],
        "page_hashes": whole if whole and source.one_of([False, True]) else keys[: source.integer(0, len(keys))],
        "num_cached_pages": first,
        "num_full_pages": first if source.rarely() else full,
        "page_size": size,
        "kv_cache_group_id": source.one_of([0, 0, 0, 1] if known.takes_groups else [0]),
    }


def _caching_less(given: Given) -> Iterator[Given]:
    """One page of those that are cached, as the first page of a request; without keys."""
    first, end, size = given["num_cached_pages"], given["num_full_pages"], given["page_size"]
    prompt = given["request"]
    if not (0 <= first < end <= len(given["pages"])) or end == 1 == len(given["pages"]):
        return
    for place in range(first, end):
        yield {
            "request": replace(prompt, tokens=prompt.tokens[:size]),
            "pages": [given["pages"][place]],
            "page_hashes": [],
            "num_cached_pages": 0,
            "num_full_pages": 1,
        }


def _too_few_tokens(_: Source, __: Any, given: Given) -> Given:
    prompt, end = given["request"], max(given["num_full_pages"], 1)
    tokens = prompt.tokens[: end * given["page_size"] - 1]
    return {"request": replace(prompt, tokens=tokens), "page_hashes": [], "num_full_pages": end}


def _uncacheable(source: Source, known: Any, given: Given) -> Given:
    """The pages, the last of those to be cached being free, cached, named twice, another pool's, or no page."""
    end = max(given["num_full_pages"], given["num_cached_pages"] + 1)
    others = [page for page in given["pages"][given["num_cached_pages"] : end - 1] if page != known.ref(0)]
    cached = [page for page in known.cached() if known.count(page)]
    free = [page for page in known.owned if not known.count(page)]
    wrong = source.one_of([*map(known.ref, (*free[:1], *cached[:1])), *others[:1], OTHER, STRANGER])
    return {"pages": [*given["pages"][: end - 1], wrong, *given["pages"][end:]], "num_full_pages": end}


def _wrong_keys(source: Source, known: Any, given: Given) -> Any:
    """The keys, one of them not the page's own, or another request's: for pools whose keys tell what they are of."""
    keys = given["page_hashes"]
    whole = isinstance(keys, Hashed)
    others = known.keys_of_others(given["request"], given["page_size"], given["num_full_pages"]) if whole else ()
    if others:
        return source.one_of(others)
    if whole or not keys or known.lacks("keys"):
        return {"num_cached_pages": given["num_full_pages"] + 1}
    place = source.integer(0, len(keys) - 1)
    wrong = source.one_of([replace(keys[place], made_by_hand=True)] * 2 + [STRANGER])
    return [*keys[:place], wrong, *keys[place + 1 :]]


def _too_many_full(source: Source, _: Any, given: Given) -> Any:
    """More full pages than there are pages; a negative number; no number."""
    prompt = given["request"]
    beyond = {
        "num_full_pages": len(given["pages"]) + 1,
        "request": replace(prompt, tokens=prompt.tokens * 4),
        "page_hashes": [],
    }
    return source.likely([beyond, {"num_full_pages": -1, "num_cached_pages": 0}], [-1, *NO_INTS])


_CACHING = {
    "request": Kind("request", fault=_too_few_tokens),
    "pages": Kind("pages", fault=_uncacheable),
    "page_hashes": Kind("keys", fault=_wrong_keys),
    "num_cached_pages": Kind(
        fault=lambda source, _, given: source.likely([given["num_full_pages"] + 1], [-1, *NO_INTS])
    ),
    "num_full_pages": Kind(fault=_too_many_full),
    "page_size": number(faults=(0, *NEGATIVE)),
    "kv_cache_group_id": number(),
}

# -- Pins and priorities


def _unpinned_too_often(source: Source, known: Any, _: Given) -> Any:
    """A page more often than it is pinned, perhaps behind all that are pinned; no page; no list."""
    pinned = known.pinned
    page = source.one_of(known.cached() or known.owned)
    often = [[[page] * (pinned.count(page) + 1)], [pinned, [source.one_of(known.owned)]]]
    if source.integer(0, 2) == 2:
        return source.one_of([[[known.ref(page), STRANGER]], [1], *NO_LISTS])
    return grouped(source, known, [list(map(known.ref, group)) for group in source.one_of(often)])


def _ranked_badly(source: Source, known: Any, _: Given) -> Any:
    """A page without a hash, another pool's, no page, behind a good one; no list."""
    good = source.some(known.cached(), 1)
    return source.likely(
        [[*map(known.ref, (*good, *known.bare()[:1]))] + [OTHER] * (not known.bare()), [*map(known.ref, good), OTHER]],
        [[STRANGER], *NO_LISTS],
    )


def _expiry(source: Source, known: Any) -> Any:
    return known.now + source.one_of([1, 2, 0.5]) if source.one_of([True, False]) else None


_PINNED = Kind(
    "groups",
    lambda source, known: grouped(
        source,
        known,
        [
            source.several(list(map(known.ref, [*known.cached(), 0])), source.most(3))
            for _ in range(source.integer(1, 2))
        ],
    ),
    lambda source, known, _: wrong_groups(
        source,
        known,
        [known.ref(page) for page in known.pinned[:1] if known.hashed(page)],
        [*map(known.ref, known.unhashed()[:2]), OTHER, STRANGER],
    ),
    lambda known: known.cached(),
)
_UNPINNED = Kind(
    "groups",
    lambda source, known: grouped(
        source, known, [list(map(known.ref, source.a_few([*known.pinned, 0], source.most(4))))]
    ),
    _unpinned_too_often,
    lambda known: known.pinned,
)
_RANKED = Kind(
    "pages",
    lambda source, known: spelled(
        source, known, list(map(known.ref, source.a_few([*known.cached(), 0], source.most(3))))
    ),
    _ranked_badly,
    lambda known: known.cached(),
)
PRIORITY = Kind(
    good=lambda source, _: source.one_of(PRIORITIES),
    fault=lambda source, *_: source.one_of([2**31, -(2**31) - 1, *NO_INTS]),
)
EXPIRY = Kind(
    good=_expiry,
    fault=lambda source, known, _: source.likely([known.now, known.now - 1], BAD_TIMES),
)
NOW = Kind(
    good=lambda source, known: known.now + source.one_of([1, 0.5, 0, 3]),
    fault=lambda source, known, _: source.likely([known.now - 1], [None, *BAD_TIMES]),
)
_PAGE_ID = Kind(fault=lambda source, known, _: source.one_of([-1, len(known.owned) + 1, *NO_INTS]))


def _order(known: Any, _: Given) -> str:
    """The clause that says in which order free pages are taken."""
    return str(known.in_order())


def _freed(known: Any, given: Given) -> str:
    """The clause that says where freed pages stand."""
    bare = any(page and not known.hashed(page) for page in known.ids(given["ordered_pages"]))
    return "POOL-13" if known.unhashed_first and bare else str(known.in_order())


def _unpinned(known: Any, _: Given) -> str:
    return "PIN-2" if known.ranks_any() else "PIN-1"


def _counted(label: Label, **more: Label) -> dict[str, Label]:
    """Fields that say who holds a page charged to one clause; others by name."""
    return dict.fromkeys(COUNTS, label) | {name.replace("_", " "): other for name, other in more.items()}


_TAKEN = dict.fromkeys((*COUNTS, *HASHES), _order) | {
    "not in the queue exactly while at 0": "POOL-2",
    "numbers of free pages": "POOL-2",
}
_FREED_STATE = dict.fromkeys(("not in the queue exactly while at 0", *HASHES), "POOL-5") | {"free pages": _freed}
_DROPPED_STATE = dict.fromkeys((*COUNTS, *HASHES), "POOL-11")
_RESET_STATE = dict.fromkeys((*COUNTS, *HASHES), "POOL-9")
_RANKED_STATE = dict.fromkeys(("priorities", "free pages"), "PIN-2")


def _taken(known: Any, given: Given) -> str:
    return known.in_order() if given["num_pages"] else "POOL-4"


def _can_cache(known: Any) -> bool:
    return bool(known.caching and known.cacheable())


def _can_age(known: Any) -> bool:
    return bool(known.ranks_any())


def _built(*_: Any) -> Given:
    return {"num_pages": 4, "enable_caching": True}


def _reads(name: str, result: Kind, clause: str, **more: Any) -> Method:
    return Method(name, more.pop("arguments", {}), result, clause, reads=True, **more)


def _pins(name: str, arguments: Mapping[str, Kind], clause: str, **more: Any) -> Method:
    return Method(name, arguments, NONE, clause, capability="pins", **more)


def _told(events: Any, _: Any) -> Any:
    return [(type(event).__name__, *(getattr(event, name) for name in _SAID[type(event).__name__])) for event in events]


def _tells(known: Any) -> bool:
    return bool(known.tells)


def _counts(known: Any) -> bool:
    return not known.lacks("counters")


_SAID = {"PageStored": PageStored._fields, "PageRemoved": PageRemoved._fields, "CacheCleared": ()}
_EVENTS = Kind("events", plain=_told)
_COUNTED = tuple(field.name for field in fields(CacheCounters))
_COUNTERS = Kind("counters", plain=lambda counted, _: {name: getattr(counted, name) for name in _COUNTED})
_BUILT = {"num_pages": number(2, 9, (1, True, 4.0, -3)), "enable_caching": Kind(fault=lambda *_: 1)}
_LOOKED_UP = {"page_hash": _KEY, "kv_cache_group_ids": _GROUP_IDS}
_RANKING = {"pages": _RANKED, "priority": PRIORITY, "expires_at": EXPIRY}
_ORDERS = ("POOL-4", "PIN-2")
_CACHED = ("R2", "HASH-3", "POOL-8")


@dataclass(frozen=True)
class Views:
    """Views of a pool's pages by their ids.

    Attributes:
        pool: the pool.
        queue: whether it shows its free queue; see `page_views`.
    """

    pool: Ref
    queue: bool = True

    def made_on(self, holder: Holder) -> dict[int, Any]:
        """Those of a side's own pool."""
        return page_views(holder.thing(self.pool), self.queue)

    def as_python(self, write: Callable[[Any], str]) -> str:
        """The call that gives them."""
        return f"{page_views.__name__}({write(self.pool)}{'' if self.queue else ', False'})"


POOL = Table(
    "pool",
    "PagePool",
    (
        Method(
            "PagePool",
            _BUILT,
            NONE,
            "R1",
            form="build",
            draw=_built,
            by_name=recorded(PoolOptions),
            options=POOL_OPTIONS,
            spoils=1,
        ),
        _reads("get_num_free_pages", PLAIN, "POOL-2"),
        _reads("get_usage", PLAIN, "POOL-10"),
        Method(
            "get_new_pages",
            {"num_pages": _FREE_COUNT},
            PAGES_GIVEN,
            "POOL-3",
            _TAKEN,
            _taken,
            _ORDERS,
            weight=2,
            spoils=1,
        ),
        Method("touch", {"pages": _TOUCHED}, NONE, "POOL-6", _counted("POOL-6"), weight=1, spoils=1),
        Method(
            "free_pages",
            {"ordered_pages": _FREED},
            NONE,
            "POOL-5",
            _FREED_STATE,
            refuses=("POOL-13",),
            weight=2,
            spoils=2,
        ),
        Method(
            *("cache_full_pages", _CACHING, NONE, "POOL-7"),
            less=_caching_less,
            refuses=_CACHED,
            when=_can_cache,
            draw=_caching,
            weight=4,
            spoils=4,
        ),
        _reads("get_cached_page", PAGES_FOUND, "POOL-7", arguments=_LOOKED_UP, last=True, weight=2, spoils=1),
        Method("evict_pages", {"page_ids": _DROPPED}, NONE, "POOL-11", _DROPPED_STATE, optional=True, spoils=1),
        Method("reset_prefix_cache", {}, PLAIN, "POOL-9", _RESET_STATE),
        _pins("pin", {"pages": _PINNED}, "PIN-1", charges=_counted("PIN-1"), spoils=3),
        _pins(
            "unpin", {"pages": _UNPINNED}, "PIN-1", charges=_counted("PIN-1", free_pages=_unpinned), weight=3, spoils=2
        ),
        _reads("pins_of", PLAIN, "PIN-1", arguments={"page_id": _PAGE_ID}, capability="pins", spoils=2),
        _reads("num_pinned_pages", PLAIN, "PIN-1", form="get", capability="pins"),
        _pins("set_priority", _RANKING, "PIN-2", charges=_RANKED_STATE, weight=4, spoils=5),
        _reads("get_priority", PLAIN, "PIN-2", arguments={"page_id": _PAGE_ID}, capability="pins", spoils=2),
        _pins("advance_time", {"now": NOW}, "PIN-2", charges=_RANKED_STATE, when=_can_age, weight=2, spoils=2),
        _reads("take_events", _EVENTS, "MAN-12", by_eviction=True, optional=True, last=True, when=_tells, weight=1),
        _reads(
            "counters",
            _COUNTERS,
            "MAN-12",
            form="get",
            by_eviction=True,
            optional=True,
            last=True,
            when=_counts,
            weight=1,
        ),
    ),
    inner={
        "check": "what a backend says of itself; run with every state",
        "eviction_counters": "what the policy has seen; what follows of it is the order of free pages",
    }
    | dict.fromkeys(("hash_function", "none_hash", "now"), "how it was made, and how late it is"),
)
