"""Small worlds of page pools: few pages, few keys, every way to take, touch, free, cache and forget pages."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

from ..machines.pool_base import Caching, PoolMachine
from ..machines.pool_state import page_list
from ..properties import step
from ..spelling import Spelling
from .renaming import swapped, texts_of_keys
from .ways import Way
from .world import SmallWorld

__all__ = ["PoolShape", "PoolWorld"]

_What = tuple[int, int, int, tuple[int, ...], int]
"""What a page is: its place in the queue or -1, how often it is held; the group, text and rank of its hash."""

_Ordered = tuple[bool, list[tuple[_What, int]]]

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
        return tuple(what for what, _ in self._ordered()[1])

    def _ordered(self) -> _Ordered:
        """See `_put_in_order`; it is done once in each state."""
        self._order = self._order or self._put_in_order()
        found: _Ordered = self._order
        return found

    def _put_in_order(self) -> _Ordered:
        """Whether the two tokens change places, and what each page is, with its id, in an order that no name changes.

        Pages that are alike in all stand next to each other, in any order.
        """
        places = {int(page.page_id): at for at, page in enumerate(self.spec.pool.free_page_queue.get_all_free_pages())}
        hashes = self._hashes()
        pages = [((places.get(page, -1), self.count(page), *hashes[page]), page) for page in self.owned]
        other = sorted(((*what[:3], swapped(what[3]), what[4]), page) for what, page in pages)
        pages.sort()
        changed = [what for what, _ in other] < [what for what, _ in pages]
        return changed, other if changed else pages

    def _hashes(self) -> dict[int, tuple[int, tuple[int, ...], int]]:
        """Of every page the group, the text and the rank of its hash; of one without, none."""
        found: dict[int, tuple[int, tuple[int, ...], int]] = dict.fromkeys(self.owned, (-1, (), 0))
        for key, pages in self.spec.pool.cached_page_hash_to_page.items():
            for rank, page in enumerate(pages):
                found[int(page.page_id)] = key.group_id, self.text_of[key.page_hash], rank
        return found

    @staticmethod
    def _unlike(pages: list[int], what: Mapping[int, _What]) -> list[int]:
        """Of some held pages one of each kind: those without a hash that are held equally often are alike."""
        kinds: dict[object, int] = {}
        for page in pages:
            kinds.setdefault(what[page], page)
        return list(kinds.values())

    @staticmethod
    def _pairs(pages: list[int], what: Mapping[int, _What]) -> list[tuple[int, int]]:
        """Of the pairs of some held pages, in either order, one of each kind."""
        kinds: dict[object, tuple[int, int]] = {}
        for one, other in permutations(pages, 2):
            kinds.setdefault((what[one], what[other]), (one, other))
        return list(kinds.values())

    # -- Moves ----------------------------------------------------------------------------------------------

    def moves(self) -> list[Way]:
        """Everything that takes, holds, gives back, caches or forgets."""
        changed, pages = self._ordered()
        what = {page: shown for shown, page in pages}
        held = [page for page, shown in what.items() if shown[1]]
        free = [page for page, shown in what.items() if not shown[1]]
        hashed = [page for page, shown in what.items() if shown[3]]
        unlike = self._unlike(held, what)
        ways = [Way("get_new_pages", (count,)) for count in range(1, len(free) + 1)]
        for page in [*unlike, *(page for page in free if page in hashed)]:
            room = self.shape.most_held - what[page][1]
            ways += [Way("touch", ([[page]],))] if room else []
            ways += [Way("touch", ([[page], [0, page]],))] if room > 1 else []
        for page in unlike:
            ways.append(Way("free_pages", ([page],)))
            ways += [Way("free_pages", ([page, page],))] if what[page][1] > 1 else []
        for one, other in self._pairs(held, what):
            ways.append(Way("free_pages", ([one, other],)))
            ways += [Way("free_pages", ([one, 0, other, one],))] if what[one][1] > 1 else []
        ways += self._cachings([page for page in held if page not in hashed], what, changed)
        if self.offers("pool", "evict_pages"):
            ways += [Way("evict_pages", ([page],)) for page in hashed]
            ways += [Way("evict_pages", (hashed[::-1],))] if len(hashed) > 1 else []
        ways += [Way("reset")] if hashed and not held else []
        return ways

    def _cachings(self, cacheable: list[int], what: Mapping[int, _What], changed: bool) -> Iterator[Way]:
        size = self.shape.page_size
        unlike, pairs = self._unlike(cacheable, what), self._pairs(cacheable, what)
        for text in map(swapped, self.shape.texts) if changed else self.shape.texts:
            for group in self.shape.groups:
                before = [0] * (len(text) // size - 1)  # a released window page
                for page in unlike:
                    yield Way("publish", (text, [*before, page], len(before), group))
                    if before:
                        yield Way("publish", (text, [*before, page], 0, group))
                for pair in pairs if before else ():
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
        self.cache(Caching(Spelling.INT32, text, (), pages, keys, first, len(pages), size, group))

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
        changed, pages = self._ordered()
        what = {page: shown for shown, page in pages}
        held = [page for page, shown in what.items() if shown[1]]
        free = [page for page, shown in what.items() if not shown[1]]
        hashed = [page for page, shown in what.items() if shown[3]]
        bare = [page for page in free if page not in hashed]
        cacheable = [page for page in held if page not in hashed]
        ways = [Way("get_cached_page", (place, list(groups))) for place, groups in self._look_ups(changed)]
        ways += [Way("get_new_pages", (len(free) + 1,))]
        ways += [Way("touch", ([[*held[:1], page]],)) for page in bare[:1]]
        for page in self._unlike(held, what):
            ways.append(Way("free_pages", ([*held, *[page] * what[page][1]],)))
        ways += [Way("free_pages", ([*held[:1], page],)) for page in free[:1]]
        ways += [Way("reset")] if held or not hashed else []
        text, size = self.shape.texts[0], self.shape.page_size
        ways += [
            Way("publish", (text[:size], [page], 0, 0))
            for page in (*free[:1], *(page for page in held if page in hashed))
        ]
        for page in cacheable[:1]:
            ways.append(Way("publish", ((*text[:size], *text[:size]), [page, page], 0, 0)))
        if len(hashed) < 2:
            ways += [Way("get_new_pages", (count,)) for count in (-1, 0)]
            ways += [Way("touch", ([[0]],)), Way("free_pages", ([0],)), Way("free_pages", ([],))]
            ways += [Way("publish", (text[: size - 1], [page], 0, 0)) for page in cacheable[:1]]
            if self.offers("pool", "evict_pages"):
                ways += [Way("evict_pages", ([page],)) for page in (0, *bare[:1], *cacheable[:1])]
                ways += [Way("evict_pages", ([*held[:1], page],)) for page in (-1, self.shape.num_pages)]
        return ways

    def _look_ups(self, changed: bool) -> Iterator[tuple[int, tuple[int, ...]]]:
        groups = self.shape.groups
        texts = [self.text_of[key] for key in self.known_keys()]
        for place in sorted(range(len(texts)), key=lambda at: swapped(texts[at]) if changed else texts[at]):
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
