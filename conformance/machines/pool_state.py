"""What the observable state of pools and managers shows, read off public names only."""

import json
import operator
from collections.abc import Collection, Mapping
from typing import Any

from ..calls.datum import New
from ..calls.manager import event
from .base import SPEC, Field, Machine

__all__ = [
    "CHECK_EVERY",
    "FOLLOWED",
    "SELDOM_EVERY",
    "TAKEN",
    "event_fields",
    "follower_field",
    "order_clause",
    "pin_fields",
    "pool_fields",
    "whole_fields",
]

CHECK_EVERY = 3
"""The number of calls of which one is followed by the backend's own ``check()``, which took a fifth of the time.

What deviates by it alone is looked for again after every call, so that it is charged to the right one. And some checks
do what a backend had put off: without one, it stays put off for several calls, as it does for those who use it.
"""

SELDOM_EVERY = 8
"""The number of calls of which one is followed by a snapshot, or by a walk along the links of a pool's queue."""

Groups = list[tuple[int, list[int]]]
"""The cached map with its keys forgotten: (group id, page ids in the order they were cached), sorted."""


def order_clause(options: Mapping[str, Any]) -> str:
    """The clause that says in which order free pages are taken by pools with some options."""
    return "POOL-3" if options.get("eviction", "lru") == "lru" else "EVICT-1"


def pool_fields(seeded: bool, weak: bool, lacks: Collection[str] = (), order: str = "POOL-3") -> tuple[Field, ...]:
    """What a pool shows. A side has its ``pool`` and the ``pages`` of it by id.

    Args:
        seeded: whether both pools were given the same seed, so that their keys are the same.
        weak: whether the hash function may collide. Then a backend that tells more keys apart is right too.
        lacks: the capabilities that the backend lacks: it need not show its queue, nor what keys are made of.
        order: the clause that says in which order free pages are taken, see `order_clause`.
    """
    queue = (
        Field.of("not in the queue exactly while at 0"),
        Field.of("free pages", clause=order),
        Field.of("numbers of free pages"),
    )
    number = Field("number of free pages", "POOL-2", lambda side: int(side.pool.get_num_free_pages()))
    keys = (
        Field.of("cached under another key than its own"),
        Field.of("keys", way=int(seeded), blame=_blame_key, also=("HASH-2", "HASH-3"), aside=True),
    )
    return (
        Field.of("ref_cnt"),
        Field.of("null page", aside=True),
        *((number,) if "queue" in lacks else queue),
        Field.of("hashed pages"),
        Field.of("cached map", agree=refines if weak else operator.eq, blame=_blame_order, also=("POOL-7",)),
        *(() if "keys" in lacks else keys),
        Field.of("usage", aside=True),
        Field("check()", "POOL-2", _check, aside=True, inner=True, every=CHECK_EVERY),
    )


def _check(side: Any) -> None:
    """The own check of what was built, a manager's covers its pool; the specification's is not run."""
    whole = getattr(side, "manager", side.pool)
    if side.names is not SPEC and hasattr(whole, "check"):
        whole.check()


def refines(expected: Groups, observed: Groups) -> bool:
    """Whether one cached map tells at least the keys apart that another does, in the same order."""
    place = {page: (entry, rank) for entry, (_, pages) in enumerate(expected) for rank, page in enumerate(pages)}
    cached = [page for _, pages in observed for page in pages]
    if sorted(cached) != sorted(place):
        return False
    for group, pages in observed:
        entries = {place[page][0] for page in pages}
        ranks = [place[page][1] for page in pages]
        if len(entries) != 1 or ranks != sorted(ranks) or expected[entries.pop()][0] != group:
            return False
    return True


def _blame_order(expected: Groups, observed: Groups) -> str:
    """POOL-7 where only the order of duplicates is wrong: it does not depend on the call before; "" otherwise."""
    one, other = (sorted((group, sorted(pages)) for group, pages in entries) for entries in (expected, observed))
    return "POOL-7" if one == other else ""


def _blame_key(expected: Mapping[int, Any], observed: Mapping[int, Any]) -> str:
    """The clause of a wrong key: its tokens (HASH-3), its extra keys (HASH-2), or its digest (HASH-1)."""
    for page_id, (*digest, tokens, extra_keys) in expected.items():
        found = observed.get(page_id)
        if found is None or found[-2] != tokens:
            return "HASH-3"
        if found[-1] != extra_keys:
            return "HASH-2"
        if list(found[:-2]) != digest:
            return "HASH-1" if extra_keys is None else "HASH-2"
    return "HASH-1"


_OF_PART: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("priorities", "now"), ("PIN-2",)),
    **dict.fromkeys(("pins", "next_pin_id"), ("PIN-1",)),
    **dict.fromkeys(("known", "given_back", "counters", "events", "clock", "stored_at", "freed_at"), ("MAN-12",)),
    "eviction": ("EVICT-1",),
    "retention": ("RET-3",),
    "requests": ("MAN-2",),
    "copies": ("MAN-17", "MAN-13"),
    "next_swap_id": ("SWAP-1",),
    "match_unit": ("MAN-17",),
}
"""The clauses of the parts of a snapshot, those to be blamed first; all else is of MAN-14."""

_IN_ANY_ORDER = ("known", "given_back")
"""The lists of a snapshot that name requests, and whose order no call depends on."""


def whole_fields(machine: Machine) -> tuple[Field, ...]:
    """The whole state, as a snapshot has it: what no call has shown yet as well. None where managers don't tell it.

    Equal states give equal snapshots (MAN-14). What a policy, retention or a request has noted shows in them at once;
    in what is evicted, freed or counted it may show many calls later, or in no sequence that a machine draws.

    Args:
        machine: whose sides have a ``manager``; for a part of the state its ``always`` may be blamed.
    """
    if machine.lacks("snapshots") or not machine.offers("manager", "snapshot"):
        return ()
    always = machine.always

    def blame(expected: Any, observed: Any) -> str:
        if not isinstance(expected, dict) or not isinstance(observed, dict):
            return "MAN-14"
        wrong = [name for name in expected if expected[name] != observed.get(name)]
        points = [shot["retention"]["points"] for shot in (expected, observed) if shot.get("retention")]
        if "retention" in wrong and len(points) == 2 and points[0] != points[1] and "RET-2" in always:
            return "RET-2"  # a live request's resume points, its junction among them
        return next((label for name in wrong for label in _OF_PART.get(name, ()) if label in always), "MAN-14")

    labels = {label for of_part in _OF_PART.values() for label in of_part if label in always}
    also = tuple(sorted(labels | {"MAN-14"}))
    return (Field.of("snapshot", agree=_alike, blame=blame, also=also, aside=True, inner=True, every=SELDOM_EVERY),)


def _alike(expected: Any, observed: Any) -> bool:
    """Whether two snapshots are equal as documents, but for the order of what has none."""
    if expected == observed or not isinstance(expected, dict) or not isinstance(observed, dict):
        return bool(expected == observed)
    one, other = (json.loads(json.dumps(shot)) for shot in (expected, observed))
    for shot in (one, other):
        shot.update({name: sorted(shot[name]) for name in _IN_ANY_ORDER})
    return bool(one == other)


_LAST = 48
"""The number of last events that are shown: more than one call emits, as they are compared after every call."""

TAKEN = ("events", "cached map of a follower")
"""The fields for which events are taken off a manager."""


FOLLOWED: Mapping[str, Any] = {"told": [], "follower": New("CacheFollower")}
"""What a side has by which name so that its events are compared: what was told so far, and a follower of its own."""


def event_fields(options: Collection[str]) -> tuple[Field, ...]:
    """Events, a follower of them, and counters, as far as managers with some options have them (MAN-12).

    A side has its ``manager``, beside it `FOLLOWED` where events are kept. Where none are, counters are no machine's
    concern: wrong ones are told where nothing else differs, as times also follow from which page was taken when.

    Args:
        options: the names of the options.
    """
    told = (
        Field(TAKEN[0], "MAN-12", _events, aside=True),
        Field(TAKEN[1], "MAN-12", _followed, aside=True),
    )
    tells = "enable_events" in options
    names = ("counters", "counters of the pool") if "counter_sampling" in options else ()
    counted = [Field.of(name, aside=True, inner=not tells) for name in names]
    return (*(told if tells else ()), *counted)


def follower_field() -> Field:
    """A follower of events that may differ: whether it has the cached map of its own side (MAN-12)."""

    def followed(side: Any) -> bool:
        _events(side)  # of which the follower is told
        return _followed(side)[1]

    return Field(TAKEN[1], "MAN-12", followed, aside=True)


def _events(side: Any) -> tuple[int, list[Any]]:
    new = list(side.manager.take_events())
    side.told.extend(map(event, new))
    side.follower.apply(new)
    return len(side.told), side.told[-_LAST:]


def _followed(side: Any) -> tuple[Any, bool]:
    """What a follower knows, and whether it is what the pool that it follows has, keys and duplicates included."""
    found = {key: [int(page) for page in pages] for key, pages in side.follower.cached_page_hash_to_page.items()}
    side.follower.check()
    own = {
        key: [int(page.page_id) for page in (pages.values() if isinstance(pages, Mapping) else pages)]
        for key, pages in side.pool.cached_page_hash_to_page.items()
    }
    return sorted((int(key.group_id), pages) for key, pages in found.items()), found == own


def pin_fields() -> tuple[Field, ...]:
    """Pins and priorities. A side has its ``pool``, and its ``pages`` by id."""
    return Field.of("number of pinned pages"), Field.of("priorities")
