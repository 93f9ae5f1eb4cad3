"""Small worlds of page pools: few pages, few keys, every way to take, touch, free, cache and forget pages."""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

from ..machines.pool_base import Caching, PoolMachine
from ..machines.pool_state import page_list
from ..properties import step
from .renaming import swapped, texts_of_keys
from .ways import Way
from .world import SmallWorld

__all__ = ["PoolShape", "PoolWorld"]

_COUNTS = ("ref_cnt", "not in the queue exactly while at 0", "free pages", "numbers of free pages")
_HASHES = ("hashed pages", "cached map")


@dataclass(frozen=True)
class PoolShape:
    """What a world of pools begins with.

    Attributes:
        num_pages: pages, the null page included.
        page_size: tokens in a page.
        texts: what pages are cached for: token sequences of one or two pages; with each the one in which the two
            tokens have changed places.
        groups: the cache groups that pages are cached for.
        most_held: how often a page is held at most.
        unhashed_first: whether freed pages without a hash go to the front.
    """

    num_pages: int
    page_size: int
    texts: tuple[tuple[int, ...], ...]
    groups: tuple[int, ...] = (0,)
    most_held: int = 2
    unhashed_first: bool = False


class PoolWorld(SmallWorld, PoolMachine):
    """One pool.

    Two states are the same if they differ in the names of pages or in which token is which. The contract treats pages
    alike but for their places: ids order the queue of a fresh pool, and nothing after that. So a page is known by its
    place in the queue, or by its count and hash, and a duplicate by its rank among those of its key; of pages that are
    held equally often and carry no hash, each may stand for the others. Counts, queue, hashes and the order of
    duplicates are all that a pool without pins, priorities and events keeps (the digests of keys depend on tokens
    alone, and only their equality decides).
    """

    shape: ClassVar[PoolShape]

    @step()
    def begin(self) -> None:
        """A fresh pool."""
        shape = self.shape
        self.build_pool(shape.num_pages, True, **({"unhashed_first": True} if shape.unhashed_first else {}))
        self.text_of = texts_of_keys(self.spec.pool, shape.texts, shape.page_size)
        if self.seeded:  # else a backend's own keys are known when it has shown them
            self.spec.keys.update({key: key for key in self.text_of})

    # -- The state ----------------------------------------------------------------------------------------

    def key(self) -> Hashable:
        """See the class."""
        free = [int(page.page_id) for page in self.spec.pool.free_page_queue.get_all_free_pages()]
        hashes = self._hashes()
        places = {page: place for place, page in enumerate(free)}
        pages = [(places.get(page, -1), self.count(page), *hashes[page]) for page in self.owned]
        return min(tuple(sorted(pages)), tuple(sorted((*page[:3], swapped(page[3]), page[4]) for page in pages)))

    def _hashes(self) -> dict[int, tuple[int, tuple[int, ...], int]]:
        """Of every page the group, the text and the rank of its hash; of one without, none."""
        found: dict[int, tuple[int, tuple[int, ...], int]] = dict.fromkeys(self.owned, (-1, (), 0))
        for key, pages in self.spec.pool.cached_page_hash_to_page.items():
            for rank, page in enumerate(pages):
                found[int(page.page_id)] = key.group_id, self.text_of[key.page_hash], rank
        return found

    def _unlike(self, pages: list[int]) -> list[int]:
        """Of some held pages one of each kind: those without a hash that are held equally often are alike."""
        kinds = {(self.count(page), page if self.hashed(page) else 0): page for page in reversed(pages)}
        return sorted(kinds.values())

    def _pairs(self, pages: list[int]) -> list[tuple[int, int]]:
        """Of the pairs of some held pages, in either order, one of each kind."""
        kinds = {
            tuple((self.count(page), page if self.hashed(page) else 0) for page in pair): pair
            for pair in permutations(reversed(pages), 2)
        }
        return sorted(kinds.values())

    # -- Moves ----------------------------------------------------------------------------------------------

    def moves(self) -> list[Way]:
        """Everything that takes, holds, gives back, caches or forgets."""
        held = [page for page in self.owned if self.count(page)]
        free = [page for page in self.owned if not self.count(page)]
        hashed = [page for page in self.owned if self.hashed(page)]
        ways = [Way("get_new_pages", (count,)) for count in range(1, len(free) + 1)]
        for page in [*self._unlike(held), *(page for page in free if page in hashed)]:
            room = self.shape.most_held - self.count(page)
            ways += [Way("touch", ([[page]],))] if room else []
            ways += [Way("touch", ([[page], [0, page]],))] if room > 1 else []
        for page in self._unlike(held):
            ways.append(Way("free_pages", ([page],)))
            ways += [Way("free_pages", ([page, page],))] if self.count(page) > 1 else []
        for one, other in self._pairs(held):
            ways.append(Way("free_pages", ([one, other],)))
            ways += [Way("free_pages", ([one, 0, other, one],))] if self.count(one) > 1 else []
        ways += self._cachings(self.cacheable())
        if self.offers("pool", "evict_pages"):
            ways += [Way("evict_pages", ([page],)) for page in hashed]
            ways += [Way("evict_pages", (hashed[::-1],))] if len(hashed) > 1 else []
        ways += [Way("reset")] if hashed and not held else []
        return ways

    def _cachings(self, cacheable: list[int]) -> Iterator[Way]:
        size = self.shape.page_size
        for text in self.shape.texts:
            for group in self.shape.groups:
                before = [0] * (len(text) // size - 1)  # a released window page
                for page in self._unlike(cacheable):
                    yield Way("publish", (text, [*before, page], len(before), group))
                    if before:
                        yield Way("publish", (text, [*before, page], 0, group))
                for pair in self._pairs(cacheable) if before else ():
                    yield Way("publish", (text, list(pair), 0, group))

    @step("POOL-4")
    def get_new_pages(self, count: int) -> None:
        """Takes pages from the front, their hashes evicted (POOL-3, POOL-4)."""
        self.call(
            f"pool.get_new_pages({count})",
            lambda side: side.pool.get_new_pages(count),
            "POOL-3" if count > 0 else "POOL-4",
            page_list,
            dict.fromkeys((*_COUNTS, *_HASHES), "POOL-3")
            | {"not in the queue exactly while at 0": "POOL-2", "numbers of free pages": "POOL-2"},
        )

    @step("POOL-6")
    def touch(self, groups: list[list[int]]) -> None:
        """Holds pages once more (POOL-6)."""
        self.call(
            f"pool.touch({groups})",
            lambda side: side.pool.touch([self.pages_of(side, group) for group in groups]),
            "POOL-6",
            charge=dict.fromkeys(_COUNTS, "POOL-6"),
        )

    @step()
    def free_pages(self, pages: list[int]) -> None:
        """Gives pages back (POOL-3, POOL-5, POOL-13)."""
        bare = any(page and not self.hashed(page) for page in pages)
        self.call(
            f"pool.free_pages({pages})",
            lambda side: side.pool.free_pages(self.pages_of(side, pages)),
            "POOL-5",
            charge=dict.fromkeys(("not in the queue exactly while at 0", *_HASHES), "POOL-5")
            | {"free pages": "POOL-13" if self.unhashed_first and bare else "POOL-3"},
        )

    @step()
    def publish(self, text: tuple[int, ...], pages: list[int], first: int, group: int) -> None:
        """Caches pages of a request from a place on (POOL-7, POOL-8)."""
        size = self.shape.page_size
        keys = self.keys_of(text, (), size)
        self.cache(Caching(text, (), pages, keys, first, len(pages), size, group))

    @step("POOL-11")
    def evict_pages(self, pages: list[int]) -> None:
        """Drops hashes (POOL-11)."""
        self.call(
            f"pool.evict_pages({pages})",
            lambda side: side.pool.evict_pages(pages),
            "POOL-11",
            charge=dict.fromkeys((*_COUNTS, *_HASHES), "POOL-11"),
        )

    @step("POOL-9")
    def reset(self) -> None:
        """Forgets every hash, unless a page is in use (POOL-9)."""
        self.call("pool.reset_prefix_cache()", lambda side: side.pool.reset_prefix_cache(), "POOL-9", charge="POOL-9")

    # -- Looks ----------------------------------------------------------------------------------------------

    def looks(self) -> list[Way]:
        """Look-ups of every key; what does nothing; what is refused.

        What depends on little is tried where little is cached.
        """
        hashed = [page for page in self.owned if self.hashed(page)]
        free = [page for page in self.owned if not self.count(page)]
        held = [page for page in self.owned if self.count(page)]
        bare = [page for page in free if not self.hashed(page)]
        ways = [Way("get_cached_page", (place, list(groups))) for place, groups in self._look_ups()]
        ways += [Way("get_new_pages", (len(free) + 1,))]
        ways += [Way("touch", ([[*held[:1], page]],)) for page in bare[:1]]
        for page in self._unlike(held):
            ways.append(Way("free_pages", ([*held, *[page] * self.count(page)],)))
        ways += [Way("free_pages", ([*held[:1], page],)) for page in free[:1]]
        ways += [Way("reset")] if held or not hashed else []
        text, size = self.shape.texts[0], self.shape.page_size
        ways += [Way("publish", (text[:size], [page], 0, 0)) for page in (*free[:1], *(set(held) & set(hashed)))]
        for page in self.cacheable()[:1]:
            ways.append(Way("publish", ((*text[:size], *text[:size]), [page, page], 0, 0)))
        if len(hashed) < 2:
            ways += [Way("get_new_pages", (count,)) for count in (-1, 0)]
            ways += [Way("touch", ([[0]],)), Way("free_pages", ([0],)), Way("free_pages", ([],))]
            ways += [Way("publish", (text[: size - 1], [page], 0, 0)) for page in self.cacheable()[:1]]
            if self.offers("pool", "evict_pages"):
                ways += [Way("evict_pages", ([page],)) for page in (0, *bare[:1], *self.cacheable()[:1])]
                ways += [Way("evict_pages", ([*held[:1], page],)) for page in (-1, self.shape.num_pages)]
        return ways

    def _look_ups(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        groups = self.shape.groups
        for place in range(len(self.spec.keys)):
            yield from ((place, (group,)) for group in groups)
            if len(groups) > 1:
                yield place, groups

    @step()
    def get_cached_page(self, place: int, groups: list[int]) -> None:
        """Looks up a key that is cached, or was (POOL-7)."""
        key = self.known_keys()[place]
        self.call(
            f"pool.get_cached_page({self.key_name(key)}, {groups})",
            lambda side: side.pool.get_cached_page(self.key_of(side, key), groups),
            "POOL-7",
            lambda pages, side: None if pages is None else page_list(pages, side),
        )
