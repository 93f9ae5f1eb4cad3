"""Fast's pool and the specification's, through the same random calls."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from kvproof import fast, spec

from ..lockstep import both, pool_state
from ..strategies import PlainRequest

__all__ = ["PoolLockstep", "Side"]

EXTRAS: list[Any] = [(), (), (spec.CacheSalt("a"),), (spec.CacheSalt("b"), spec.MultimodalItem(b"a", 3, 4))]


def _weak(message: bytes) -> bytes:
    """A hash with three values: only content tells pages apart (R2)."""
    return bytes([sum(message) % 3])


@dataclass
class Side:
    """One package's pool, its pages by id, and who follows it."""

    package: ModuleType
    pool: Any
    follower: Any
    pages: list[Any] = field(default_factory=list)

    def of(self, ids: list[int]) -> list[Any]:
        return [self.pages[page_id] for page_id in ids]

    def withdraw(self, ids: list[int]) -> None:
        """What the managers do, which say their pages in their own ways."""
        self.pool.withdraw(self.of(ids) if self.package is spec else np.array(ids, np.int64))


class PoolLockstep:
    """Random calls on both pools. ``happened`` counts which of them were served, and which refused by which clause.

    Args:
        seed: of the calls.
        num_pages: of the pools.
        keys: from which share of the steps on keys are read; 1.0 is only once, behind the last.
        weak: whether the hash function collides.
        options: further ones of the pools.
    """

    def __init__(self, seed: int, num_pages: int, keys: float, weak: bool, **options: Any) -> None:
        self.source = random.Random(seed)
        self.num_pages = num_pages
        self.keys = keys
        self.hash_function: Any = _weak if weak else spec.sha256
        if weak:
            options["hash_function"] = _weak
        self.sides = [
            Side(package, package.PagePool(num_pages, True, hash_seed=b"s", **options), package.CacheFollower())
            for package in (spec, fast)
        ]
        for side in self.sides:
            side.pages = list(side.pool.pages)
        self.reads_keys = False
        self.known: list[Any] = []
        self.happened: Counter[str] = Counter()
        self.moves: list[Callable[[], None]] = [
            *(self.get, self.get, self.free, self.free, self.touch, self.cache, self.cache, self.evict)
        ]

    @property
    def pins_and_priorities(self) -> list[Callable[[], None]]:
        """The moves that are not about what every pool does."""
        return [self.pin, self.pin, self.unpin, self.withdraw, self.prioritise, self.prioritise, self.advance]

    # -- What the next call is made of ------------------------------------------------------------

    @property
    def model(self) -> Any:
        return self.sides[0].pool

    def held(self) -> list[int]:
        return [page.page_id for page in self.model.pages[1:] if page.ref_cnt]

    def cached(self) -> list[int]:
        return [page.page_id for page in self.model.pages if page.page_hash is not None]

    def some(self, ids: list[int], most: int = 1000) -> list[int]:
        return self.source.sample(ids, self.source.randrange(min(len(ids), most) + 1))

    def rarely(self) -> bool:
        return self.source.random() < 0.1

    def state(self, side: Side) -> dict[str, Any]:
        """What a side shows."""
        pool = side.pool
        return pool_state(pool, self.reads_keys) | {
            "pins": (pool.num_pinned_pages, [pool.pins_of(page_id) for page_id in range(self.num_pages)]),
            "priorities": (pool.now, [pool.get_priority(page_id) for page_id in range(self.num_pages)]),
            "counters": pool.counters,
        }

    def call(self, name: str, call: Any) -> Any:
        served, value = both(self.sides, call, self.state)
        self.happened[name if served else f"refused {name} {value[1]}"] += 1
        return value if served else None

    def shaped(self, shape: int, pages: list[Any]) -> Any:
        """How pages are handed over: a list, a tuple, an iterator, reversed, or the pool's own list of pages."""
        if shape == 3:
            pages.reverse()
            return reversed(pages)
        if shape == 4:
            return pages[0].pool.pages[pages[0].page_id : pages[0].page_id + 1] if len(pages) == 1 else pages
        return (list, tuple, iter)[shape](pages)

    # -- Steps ------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        for step in range(steps):
            self.reads_keys = step >= self.keys * steps
            self.source.choice(self.moves)()
            if self.reads_keys and self.keys < 1.0:
                self.find()
            if self.source.random() < 0.02:
                self.empty()
            self.follow()
            for side in self.sides:
                side.pool.check()
        assert pool_state(self.sides[1].pool, True) == pool_state(self.sides[0].pool, True)
        assert self.sides[1].pool.state() == self.sides[0].pool.state()
        assert self.sides[1].pool.eviction_counters == self.sides[0].pool.eviction_counters
        if self.model.enable_events:
            for side in self.sides:
                cached = {key: pages.page_ids for key, pages in side.pool.cached_page_hash_to_page.items()}
                assert {key: list(ids) for key, ids in side.follower.cached_page_hash_to_page.items()} == cached

    def follow(self) -> None:
        """Takes the events of both, which are the same, and lets both followers follow the other package's."""
        told = [side.pool.take_events() for side in self.sides]
        assert told[0] == told[1]
        for side, events in zip(self.sides, reversed(told), strict=True):
            self.happened.update(type(event).__name__ for event in events)
            side.follower.apply(events)
            side.follower.check()

    def get(self) -> None:
        free = self.model.get_num_free_pages()
        count = self.source.choice([0, 1, self.source.randrange(free + 1), free + self.rarely()])
        self.call("get", lambda side: [page.page_id for page in side.pool.get_new_pages(count)])

    def free(self) -> None:
        """Every mention of some held pages, mixed, null pages among them; now and then one mention too many."""
        mentioned = [
            page_id
            for page_id in self.some(self.held())
            for _ in range(self.source.randrange(self.model.pages[page_id].ref_cnt - self.model.pins_of(page_id) + 1))
        ]
        mentioned += [0] * self.source.randrange(2)
        if self.rarely():
            mentioned += self.source.choices([*self.held(), *range(self.num_pages)], k=2)
        self.source.shuffle(mentioned)
        shape = self.source.randrange(5)
        self.happened["duplicates in free_pages"] += len(set(mentioned)) < len(mentioned)
        self.call("free", lambda side: side.pool.free_pages(self.shaped(shape, side.of(mentioned))))

    def touch(self) -> None:
        groups = [self.some(self.cached() + self.held() + [0], 20) for _ in range(self.source.randrange(3))]
        if self.rarely():
            groups.append(self.source.choices(range(self.num_pages), k=2))
        self.happened["free pages touched"] += any(not self.model.pages[i].ref_cnt for group in groups for i in group)
        self.call("touch", lambda side: side.pool.touch(side.of(group) for group in groups))

    def cache(self) -> None:
        page_size = self.source.choice([1, 2, 16])
        group = self.source.randrange(2)
        free_to_cache = [page_id for page_id in self.held() if self.model.pages[page_id].page_hash is None]
        pages = self.some(free_to_cache, 60)
        if pages and self.source.random() < 0.3:
            pages[self.source.randrange(len(pages))] = 0
        if self.rarely():
            pages += self.source.choices(range(self.num_pages), k=1)
        values = [0] * self.source.randrange(40) + [self.source.randrange(2) for _ in range(len(pages) * page_size)]
        request = PlainRequest("r", np.array(values, np.int32), self.source.choice(EXTRAS))
        end = self.source.randrange(len(pages) + 1) if self.source.random() < 0.3 else len(pages)
        first = self.source.randrange(end + 1) if self.source.random() < 0.3 else 0
        keys = list(spec.hash_request_tokens(self.hash_function, page_size, request, none_hash=self.model.none_hash))
        self.known += [(key, group) for key in keys[first:end]]
        given = self.source.choice(["none", "some", "all"])
        if given == "some":
            keys = keys[: self.source.randrange(len(keys) + 1)]

        def call(side: Side) -> None:
            hashes: Any = [] if given == "none" else [side.package.PageHash(*key) for key in keys]
            if given == "all":
                root = side.pool.none_hash
                hashes = side.package.hash_request_tokens(self.hash_function, page_size, request, none_hash=root)
            side.pool.cache_full_pages(request, side.of(pages), hashes, first, end, page_size, group)

        self.call("cache", call)

    def evict(self) -> None:
        ids = [page_id for page_id in range(self.num_pages) if not self.model.pins_of(page_id)]
        ids = self.some(ids, self.source.choice([3, 3, self.num_pages]))
        ids += self.source.sample(ids, len(ids))
        if self.rarely():
            ids.append(self.source.choice([-1, self.num_pages]))
        if self.source.random() < 0.4:
            ids += [page_id for page_id in range(self.num_pages) if self.model.pins_of(page_id)][:1]
        shape: Any = self.source.choice([list, np.array, tuple])
        self.call("evict", lambda side: side.pool.evict_pages(shape(ids) if ids else ids))

    def find(self) -> None:
        """By keys, some of them still cached; the first time switches fast's keys on."""
        for key, group in self.source.sample(self.known, min(3, len(self.known))):

            def call(side: Side, key: Any = key, group: int = group) -> Any:
                found = side.pool.get_cached_page(side.package.PageHash(*key), [group, group])
                return found and [page.page_id for page in found]

            self.happened["found by key"] += self.call("find", call) is not None

    def empty(self) -> None:
        self.call("reset", lambda side: side.pool.reset_prefix_cache())
        pinned = [page_id for page_id in range(self.num_pages) for _ in range(self.model.pins_of(page_id))]
        self.call("unpin all", lambda side: side.pool.unpin([side.of(pinned)]))
        self.call("free all", lambda side: side.pool.free_pages(p for p in side.pages for _ in range(p.ref_cnt)))
        self.call("reset all", lambda side: side.pool.reset_prefix_cache())

    # -- Pins and priorities ----------------------------------------------------------------------

    def pin(self) -> None:
        """Pages once or twice, in groups; now and then one without a hash, and often more than may be."""
        groups = [
            self.some([*self.cached(), 0], self.source.choice([2, 20])) for _ in range(self.source.randrange(1, 4))
        ]
        if self.rarely():
            groups.append(self.source.choices(range(self.num_pages), k=1))
        self.happened["free pages pinned"] += any(not self.model.pages[i].ref_cnt for group in groups for i in group)
        self.call("pin", lambda side: side.pool.pin(side.of(group) for group in groups))

    def unpin(self) -> None:
        pinned = [page_id for page_id in range(self.num_pages) for _ in range(self.model.pins_of(page_id))]
        mentioned = self.some(pinned)
        if self.rarely():
            mentioned += self.source.choices([*pinned, *range(self.num_pages)], k=1)
        cut = self.source.randrange(len(mentioned) + 1)
        self.call("unpin", lambda side: side.pool.unpin([side.of(mentioned[:cut]), side.of([0, *mentioned[cut:]])]))

    def withdraw(self) -> None:
        ids = self.some([page_id for page_id in self.cached() if self.model.pages[page_id].ref_cnt], 4)
        self.happened["pinned pages withdrawn"] += any(self.model.pins_of(page_id) for page_id in ids)
        self.call("withdraw", lambda side: side.withdraw(ids))

    def prioritise(self) -> None:
        ids = self.some([*self.cached(), 0], self.source.choice([3, self.num_pages]))
        ids += self.some(ids, 2)
        if self.rarely():
            ids += self.source.choices(range(self.num_pages), k=1)
        priority = self.source.choice([-2, -1, 0, 0, 1, 2, 2**31 - 1])
        end = None if self.source.random() < 0.4 else (self.model.now or 0) + self.source.choice([0, 1, 1, 2, 2.5, 9])
        self.call("prioritise", lambda side: side.pool.set_priority(side.of(ids), priority, end))

    def advance(self) -> None:
        later = self.source.choice([-1, 0, 1, 1, 1, 2])
        now = (self.model.now or 0) + later
        before = [self.model.get_priority(page_id) for page_id in range(self.num_pages)]
        self.call("advance", lambda side: side.pool.advance_time(now))
        self.happened["priorities ended by time"] += before != [
            self.model.get_priority(i) for i in range(self.num_pages)
        ]
