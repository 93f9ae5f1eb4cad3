"""Small worlds of page pools: few pages, few keys, every way to take, touch, free, cache and forget pages."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any, ClassVar

from ...calls.datum import Call, Key, Prompt, Ref
from ..pool import PoolMachine
from ..properties import step
from .renaming import swapped, texts_of_keys
from .world import SmallWorld

__all__ = ["PoolShape", "PoolWorld"]

_What = tuple[int, int, int, tuple[int, ...], int]
"""What a page is: its place in the queue or -1, how often it is held; the group, text and rank of its hash."""

_Ordered = tuple[bool, list[tuple[_What, int]]]


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
        size = shape.page_size
        every = {text[: place * size] for text in shape.texts for place in range(1, len(text) // size + 1)}
        if self.seeded:  # else a backend's own keys are known when it has shown them
            for text in sorted(every):
                key = Key(Prompt(text), size, len(text) // size - 1)
                self.key_of[self._spec_key(key)] = key

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

    def moves(self) -> list[Call]:
        """Everything that takes, holds, gives back, caches or forgets."""
        changed, pages = self._ordered()
        what = {page: shown for shown, page in pages}
        held = [page for page, shown in what.items() if shown[1]]
        free = [page for page, shown in what.items() if not shown[1]]
        hashed = [page for page, shown in what.items() if shown[3]]
        unlike = self._unlike(held, what)
        calls = [self._take(count) for count in range(1, len(free) + 1)]
        for page in [*unlike, *(page for page in free if page in hashed)]:
            room = self.shape.most_held - what[page][1]
            calls += [self._touch([page])] if room else []
            calls += [self._touch([page], [0, page])] if room > 1 else []
        for page in unlike:
            calls.append(self._free(page))
            calls += [self._free(page, page)] if what[page][1] > 1 else []
        for one, other in self._pairs(held, what):
            calls.append(self._free(one, other))
            calls += [self._free(one, 0, other, one)] if what[one][1] > 1 else []
        calls += self._cachings([page for page in held if page not in hashed], what, changed)
        if self.offers("pool", "evict_pages"):
            calls += [self._evict(page) for page in hashed]
            calls += [self._evict(*hashed[::-1])] if len(hashed) > 1 else []
        calls += [self._reset()] if hashed and not held else []
        return calls

    def _cachings(self, cacheable: list[int], what: Mapping[int, _What], changed: bool) -> Iterator[Call]:
        size = self.shape.page_size
        unlike, pairs = self._unlike(cacheable, what), self._pairs(cacheable, what)
        for text in map(swapped, self.shape.texts) if changed else self.shape.texts:
            for group in self.shape.groups:
                before = [0] * (len(text) // size - 1)  # a released window page
                for page in unlike:
                    yield self._cache(text, [*before, page], len(before), group)
                    if before:
                        yield self._cache(text, [*before, page], 0, group)
                for pair in pairs if before else ():
                    yield self._cache(text, list(pair), 0, group)

    # -- Calls, pages by their ids --------------------------------------------------------------------------

    def ref(self, page_id: int) -> Ref:
        """A page by its id: objects in one state may have come there by other calls."""
        return Ref("pages", (page_id,))

    def _on_pool(self, name: str, **arguments: Any) -> Call:
        return self.call_of(name, Ref("pool"), **arguments)

    def _take(self, count: int) -> Call:
        return self._on_pool("get_new_pages", num_pages=count)

    def _touch(self, *groups: list[int]) -> Call:
        return self._on_pool("touch", pages=[list(map(self.ref, group)) for group in groups])

    def _free(self, *pages: int) -> Call:
        return self._on_pool("free_pages", ordered_pages=list(map(self.ref, pages)))

    def _evict(self, *pages: int) -> Call:
        return self._on_pool("evict_pages", page_ids=list(pages))

    def _reset(self) -> Call:
        return self._on_pool("reset_prefix_cache")

    def _cache(self, text: tuple[int, ...], pages: list[int], first: int, group: int) -> Call:
        prompt, size = Prompt(text), self.shape.page_size
        return self._on_pool(
            "cache_full_pages",
            request=prompt,
            pages=list(map(self.ref, pages)),
            page_hashes=self.keys_of(prompt, size),
            num_cached_pages=first,
            num_full_pages=len(pages),
            page_size=size,
            kv_cache_group_id=group,
        )

    # -- Looks ----------------------------------------------------------------------------------------------

    def looks(self) -> list[Call]:
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
        calls = [*self._look_ups(changed), self._take(len(free) + 1)]
        calls += [self._touch([*held[:1], page]) for page in bare[:1]]
        calls += [self._free(*held, *[page] * what[page][1]) for page in self._unlike(held, what)]
        calls += [self._free(*held[:1], page) for page in free[:1]]
        calls += [self._reset()] if held or not hashed else []
        text, size = self.shape.texts[0], self.shape.page_size
        calls += [
            self._cache(text[:size], [page], 0, 0) for page in (*free[:1], *(page for page in held if page in hashed))
        ]
        for page in cacheable[:1]:
            calls.append(self._cache((*text[:size], *text[:size]), [page, page], 0, 0))
        if len(hashed) < 2:
            calls += [self._take(count) for count in (-1, 0)]
            calls += [self._touch([0]), self._free(0), self._free()]
            calls += [self._cache(text[: size - 1], [page], 0, 0) for page in cacheable[:1]]
            if self.offers("pool", "evict_pages"):
                calls += [self._evict(page) for page in (0, *bare[:1], *cacheable[:1])]
                calls += [self._evict(*held[:1], page) for page in (-1, self.shape.num_pages)]
        return calls

    def _look_ups(self, changed: bool) -> Iterator[Call]:
        groups = self.shape.groups
        known = {self.text_of[found]: key for found, key in self.key_of.items()}
        for text in sorted(known, key=lambda text: swapped(text) if changed else text):
            for looked_in in [(group,) for group in groups] + ([groups] if len(groups) > 1 else []):
                yield self._on_pool("get_cached_page", page_hash=known[text], kv_cache_group_ids=list(looked_in))
