"""The tables of a page and of a free queue.

What is known when a call is drawn is a machine's: which pages are in the queue, and whether a page is one of a pool.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .datum import Key, Prompt, Ref
from .kinds import COUNTS, HASHES, IDS_GIVEN, NONE, PAGE_GIVEN, number, spelled
from .method import Given, Kind, Method, Table
from .source import Source
from .values import NO_INTS, NO_LISTS

__all__ = ["PAGE", "QUEUE"]

# -- A page ------------------------------------------------------------------------------------------------------------


def _in_pool(own: str, pooled: str) -> Callable[[Any, Given], str]:
    """The label of a page made by hand, and that of a page of a pool."""
    return lambda known, _: pooled if known.pooled else own


def _page(name: str, own: str, pooled: str, **more: Any) -> Method:
    where = _in_pool(own, pooled)
    charges = dict.fromkeys((*COUNTS, *HASHES, "pages"), where)
    more = {"arguments": {}, "refuses": (pooled,), **more}
    return Method(name, result=NONE, clause=own, where=where, charges=charges, logged=False, **more)


_HAND_MADE = Key(Prompt((0,)), 1, 0, made_by_hand=True, group=0)
"""A key that no pool gave."""

_HASH = Kind(good=lambda *_: _HAND_MADE)

PAGE = Table(
    "page",
    "CachePage",
    (
        _page("incr_ref", "POOL-5", "POOL-2"),
        _page("decr_ref", "POOL-5", "POOL-2"),
        _page("reset_hash", "POOL-8", "POOL-11"),
        _page("ref_cnt", "POOL-5", "POOL-2", arguments={"ref_cnt": number()}, form="set", spoils=1),
        _page("page_hash", "POOL-8", "POOL-7", arguments={"page_hash": _HASH}, form="set"),
    ),
    inner=dict.fromkeys(
        ("CachePage", "pool", "page_id", "is_null", "prev_free_page", "next_free_page"), "made or read with every state"
    ),
)

# -- A free queue ------------------------------------------------------------------------------------------------------


def _outside(source: Source, known: Any) -> list[Ref]:
    return [known.ref(page) for page in source.some(known.outside, 4)]


def _queued_badly(source: Source, known: Any, _: Given) -> Any:
    """What is in the queue already, or twice in the list; no page; no list."""
    good = [known.ref(page) for page in source.some(known.outside, 2)]
    often = [[*good, known.ref(page)] for page in known.inside[:2]] + ([[*good, good[0]]] if good else [])
    return source.likely(often or [[*good, None]], [[*good, None], *NO_LISTS])


_QUEUED = Kind(
    "pages",
    lambda source, known: spelled(source, known, _outside(source, known)),
    _queued_badly,
    lambda known: known.outside,
)
_COUNT_QUEUED = Kind(
    good=lambda source, known: source.whole(0, min(len(known.inside), 3)),
    fault=lambda source, known, _: source.likely([len(known.inside) + 1, -1], NO_INTS),
)


_ANOTHER_QUEUES = Ref("other")
"""A page of another queue."""


def _one_queued(known: Any) -> bool:
    return bool(known.inside)


def _one(pages: Callable[[Any], Sequence[int]], wrong: Callable[[Any], Sequence[int]]) -> Kind:
    """A page of some; wrong is one of others, one of another queue, or no page."""
    return Kind(
        "page",
        lambda source, known: known.ref(source.one_of(pages(known))),
        lambda source, known, _: source.one_of([*map(known.ref, wrong(known)[:2]), _ANOTHER_QUEUES, None]),
        pages,
    )


_INSIDE = _one(lambda known: known.inside, lambda known: known.outside)
_OUTSIDE = _one(lambda known: known.outside, lambda known: known.inside)


def _queue(name: str, arguments: Mapping[str, Kind], result: Kind, **more: Any) -> Method:
    more = {"clause": "POOL-3", "refuses": ("POOL-2", "POOL-4"), "weight": 2, "spoils": len(arguments), **more}
    return Method(name, arguments, result, logged=False, **more)


QUEUE = Table(
    "queue",
    "FreeCachePageQueue",
    (
        _queue("popleft", {}, PAGE_GIVEN, when=_one_queued),
        _queue("popleft_n", {"n": _COUNT_QUEUED}, IDS_GIVEN, when=_one_queued),
        _queue("remove", {"page": _INSIDE}, NONE, clause="POOL-2"),
        _queue("append", {"page": _OUTSIDE}, NONE),
        _queue("append_n", {"pages": _QUEUED}, NONE),
        _queue("prepend_n", {"pages": _QUEUED}, NONE, charges={"queue": "POOL-13"}, optional=True),
    ),
    inner=dict.fromkeys(
        (
            *("FreeCachePageQueue", "num_free_pages", "get_all_free_pages"),
            *("fake_free_list_head", "fake_free_list_tail"),
        ),
        "made or read with every state",
    ),
)
