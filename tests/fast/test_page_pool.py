"""POOL: fast's pool beside the specification's, in bulk, with keys that nobody reads or that are read late."""

import random
from collections import Counter
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import fast, spec

from ..strategies import PlainRequest
from .lockstep import both, pool_state

EXTRAS: list[Any] = [(), (), (spec.CacheSalt("a"),), (spec.MultimodalItem(b"a", 3, 4),)]


def _weak(message: bytes) -> bytes:
    """A hash with three values: only content tells pages apart (R2)."""
    return bytes([sum(message) % 3])


@dataclass
class Side:
    """One package's pool and its pages by id."""

    package: ModuleType
    pool: Any
    pages: list[Any] = field(default_factory=list)

    def of(self, ids: list[int]) -> list[Any]:
        return [self.pages[page_id] for page_id in ids]


class Lockstep:
    """Random calls on both pools.

    Args:
        seed: of the calls.
        num_pages: of the pools.
        keys: from which share of the steps on keys are read; 1.0 is only once, behind the last.
        weak: whether the hash function collides.
    """

    def __init__(self, seed: int, num_pages: int, keys: float, weak: bool, unhashed_first: bool) -> None:
        self.source = random.Random(seed)
        self.num_pages = num_pages
        self.keys = keys
        options: dict[str, Any] = {"hash_seed": b"s", "unhashed_first": unhashed_first}
        if weak:
            options["hash_function"] = _weak
        self.hash_function = options.get("hash_function", spec.sha256)
        self.sides = [Side(package, package.PagePool(num_pages, True, **options)) for package in (spec, fast)]
        for side in self.sides:
            side.pages = list(side.pool.pages)
        self.reads_keys = False
        self.known: list[Any] = []
        self.happened: Counter[str] = Counter()

    # -- What the next call is made of ------------------------------------------------------------

    @property
    def model(self) -> Any:
        return self.sides[0].pool

    def held(self) -> list[int]:
        return [page.page_id for page in self.model.pages[1:] if page.ref_cnt]

    def some(self, ids: list[int], most: int = 1000) -> list[int]:
        return self.source.sample(ids, self.source.randrange(min(len(ids), most) + 1))

    def call(self, name: str, call: Any) -> Any:
        served, value = both(self.sides, call, lambda side: pool_state(side.pool, self.reads_keys))
        self.happened[name if served else f"refused {name} {value[1]}"] += 1
        return value if served else None

    def shaped(self, shape: int, pages: list[Any]) -> Any:
        """How pages are handed over: a list, a tuple, an iterator, reversed, or the pool's own list of pages."""
        if shape == 3:
            pages.reverse()
            return reversed(pages)
        if shape == 4:
            return pages[0]._pool.pages[pages[0].page_id : pages[0].page_id + 1] if len(pages) == 1 else pages
        return (list, tuple, iter)[shape](pages)

    # -- Steps ------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        moves = [self.get, self.get, self.free, self.free, self.touch, self.cache, self.cache, self.evict]
        for step in range(steps):
            self.reads_keys = step >= self.keys * steps
            self.source.choice(moves)()
            if self.reads_keys and self.keys < 1.0:
                self.find()
            if self.source.random() < 0.02:
                self.empty()
            for side in self.sides:
                side.pool.check()
        assert pool_state(self.sides[1].pool, True) == pool_state(self.sides[0].pool, True)

    def get(self) -> None:
        free = self.model.get_num_free_pages()
        count = self.source.choice([0, 1, self.source.randrange(free + 1), free + (self.source.random() < 0.1)])
        self.call("get", lambda side: [page.page_id for page in side.pool.get_new_pages(count)])

    def free(self) -> None:
        """Every mention of some held pages, mixed, null pages among them; now and then one mention too many."""
        mentioned = [
            page_id
            for page_id in self.some(self.held())
            for _ in range(self.source.randrange(1, self.model.pages[page_id].ref_cnt + 1))
        ]
        mentioned += [0] * self.source.randrange(2)
        if self.source.random() < 0.1:
            mentioned += self.source.choices(range(self.num_pages), k=2)
        self.source.shuffle(mentioned)
        shape = self.source.randrange(5)
        self.happened["duplicates in free_pages"] += len(set(mentioned)) < len(mentioned)
        self.call("free", lambda side: side.pool.free_pages(self.shaped(shape, side.of(mentioned))))

    def touch(self) -> None:
        cached = [page.page_id for page in self.model.pages if page.page_hash is not None]
        groups = [self.some(cached + self.held() + [0], 20) for _ in range(self.source.randrange(3))]
        if self.source.random() < 0.1:
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
        if self.source.random() < 0.1:
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
        ids = self.some(list(range(self.num_pages)), self.source.choice([3, 3, self.num_pages])) * 2
        if self.source.random() < 0.1:
            ids.append(self.source.choice([-1, self.num_pages]))
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
        self.call("free all", lambda side: side.pool.free_pages(p for p in side.pages for _ in range(p.ref_cnt)))
        self.call("reset all", lambda side: side.pool.reset_prefix_cache())


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    num_pages=st.sampled_from([2, 3, 9, 60]),
    keys=st.sampled_from([0.0, 0.5, 1.0]),
    weak=st.booleans(),
    unhashed_first=st.booleans(),
)
def test_pool_fast_and_specification_in_lockstep(
    seed: int, num_pages: int, keys: float, weak: bool, unhashed_first: bool
) -> None:
    Lockstep(seed, num_pages, keys, weak, unhashed_first).run(30)


@pytest.mark.parametrize("unhashed_first", [False, True], ids=["pool 3", "pool 13"])
@pytest.mark.parametrize("keys", [0.5, 1.0], ids=["keys from the middle on", "keys never read"])
def test_pool_in_bulk(keys: float, unhashed_first: bool) -> None:
    """Hundreds of pages a call, for long enough that all of what the steps are for happens."""
    happened: Counter[str] = Counter()
    for seed in range(4):
        lockstep = Lockstep(seed, 400, keys, False, unhashed_first)
        lockstep.run(100)
        happened += lockstep.happened
    wanted = ["get", "free", "touch", "cache", "evict", "reset all", "duplicates in free_pages", "free pages touched"]
    wanted += ["refused get POOL-4", "refused free POOL-5", "refused touch POOL-6", "refused cache POOL-8"]
    wanted += ["refused evict R1"] + (["found by key"] if keys < 1.0 else [])
    assert [name for name in wanted if not happened[name]] == [], happened
