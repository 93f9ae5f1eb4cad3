"""The pool machine: one page pool, its free queue, its cached map, and the views of its pages."""

from typing import Any

from hypothesis import strategies as st

from kvproof.spec.pool.hashing import PageHash

from ..properties import start, step
from ..spelling import NUMBERS, OBJECTS
from .base import Side
from .draws import Drawing, one_of, rarely, some, whole
from .pool_faults import PoolFaults
from .pool_state import page_list

__all__ = ["Pool"]

_COUNTS = ("ref_cnt", "not in the queue exactly while at 0", "free pages", "numbers of free pages")
_HASHES = ("hashed pages", "cached map")


class Pool(PoolFaults):
    """Takes, touches, frees, caches, evicts, looks up and resets; sets what the views of pages let one set."""

    name = "pool"
    examples = 110

    @start(
        num_pages=st.integers(3, 9),
        caching=st.sampled_from([True, True, True, True, True, False]),
        unhashed_first=st.booleans(),
    )
    def construct(self, num_pages: int, caching: bool, unhashed_first: bool) -> None:
        """A fresh pool: its free pages stand in the order of their ids."""
        self.build_pool(num_pages, caching, **({"unhashed_first": True} if unhashed_first else {}))

    @step("POOL-4", "POOL-13", when=lambda self: self.spec.pool.get_num_free_pages(), weight=2)
    def get_new_pages(self, data: Drawing) -> None:
        """Takes pages from the front, their hashes evicted; 0 gives an empty list."""
        count = 0 if rarely(data) and rarely(data) else whole(data, 1, min(self.spec.pool.get_num_free_pages(), 4))
        if rarely(data):
            self.take_and_free(count)
            return
        self.call(
            f"pool.get_new_pages({count})",
            lambda side: side.pool.get_new_pages(count),
            self.in_order() if count else "POOL-4",
            page_list,
            dict.fromkeys((*_COUNTS, *_HASHES), self.in_order())
            | {"not in the queue exactly while at 0": "POOL-2", "numbers of free pages": "POOL-2"},
        )

    def take_and_free(self, count: int) -> None:
        """Pages come and go in the very list that the pool made of them."""
        self.call(
            f"pool.free_pages(pool.get_new_pages({count}))",
            lambda side: side.pool.free_pages(side.pool.get_new_pages(count)),
            "POOL-5",
            charge=dict.fromkeys(_COUNTS, "POOL-5")
            | dict.fromkeys(_HASHES, "POOL-3")
            | {"free pages": "POOL-13" if self.unhashed_first else self.in_order()},
        )

    @step("POOL-6")
    def touch(self, data: Drawing) -> None:
        """Touches held pages, cached free pages and the null page, several groups at once, pages repeatedly."""
        options = [*(page for page in self.owned if self.count(page) or self.hashed(page)), 0]
        groups = data.draw(st.lists(st.lists(st.sampled_from(options), max_size=3), max_size=3))
        spelling = self.spelling(data, OBJECTS)
        self.call(
            f"pool.touch({spelling.source(groups, spelling.source)})",
            lambda side: side.pool.touch(spelling.of(spelling.of(self.pages_of(side, group)) for group in groups)),
            "POOL-6",
            charge=dict.fromkeys(_COUNTS, "POOL-6"),
        )

    @step("POOL-13", when=lambda self: self.holds_any(), weight=2)
    def free_pages(self, data: Drawing) -> None:
        """Frees pages, each at most as often as it is held, null pages among them."""
        mentions = [page for page in self.owned for _ in range(self.count(page))]
        freed = some(data, [*mentions, 0], most=5, least=1)
        spelling = self.spelling(data, OBJECTS)
        bare = any(page and not self.hashed(page) for page in freed)
        self.call(
            f"pool.free_pages({spelling.source(freed)})",
            lambda side: side.pool.free_pages(spelling.of(self.pages_of(side, freed))),
            "POOL-5",
            charge=dict.fromkeys(("not in the queue exactly while at 0", *_HASHES), "POOL-5")
            | {"free pages": "POOL-13" if self.unhashed_first and bare else self.in_order()},
        )

    @step(when=lambda self: self.caching and self.cacheable(), weight=4)
    def cache_full_pages(self, data: Drawing) -> None:
        """Caches full pages of a request, null pages and pages cached before among them."""
        self.cache(self.draw_caching(data))

    def free_all(self, held: list[int]) -> None:
        """Frees every page as often as it is held."""
        self.call(
            f"pool.free_pages({held})",
            lambda side: side.pool.free_pages(self.pages_of(side, held)),
            "POOL-5",
            charge=dict.fromkeys(("not in the queue exactly while at 0", *_HASHES), "POOL-5")
            | {"free pages": "POOL-13" if self.unhashed_first else self.in_order()},
        )

    @step("POOL-9", "POOL-11", "POOL-13")
    def forget(self, data: Drawing) -> None:
        """Drops the hashes of some pages, held or free, hashed or not; or every hash, if no page is in use."""
        hashed = [page for page in self.owned if self.hashed(page)]
        evicted = some(data, [*hashed, *self.owned, 0], most=3, least=1)
        spelling = self.spelling(data, NUMBERS)
        if one_of(data, [False, False, True]) or not self.offers("pool", "evict_pages"):
            held = [page for page in self.owned for _ in range(self.count(page))]
            all_go: bool = one_of(data, [True, False])
            if held and all_go:
                self.free_all(held)
            self.call(
                "pool.reset_prefix_cache()", lambda side: side.pool.reset_prefix_cache(), "POOL-9", charge="POOL-9"
            )
        else:
            self.call(
                f"pool.evict_pages({spelling.source(evicted)})",
                lambda side: side.pool.evict_pages(spelling.of(evicted)),
                "POOL-11",
                charge=dict.fromkeys((*_COUNTS, *_HASHES), "POOL-11"),
            )

    @step(when=lambda self: self.known_keys(), weight=2)
    def get_cached_page(self, data: Drawing) -> None:
        """Looks up keys that are cached, were cached, or are cached for another group."""
        shared = [key.page_hash for key, pages in self.spec.pool.cached_page_hash_to_page.items() if len(pages) > 1]
        key: PageHash = one_of(data, shared * 3 + self.known_keys())
        groups = one_of(data, [[0]] if self.lacks("groups") else [[0], [1], [0, 1], [1, 0], [2], [0, 0]])
        self.call(
            f"pool.get_cached_page({self.key_name(key)}, {groups})",
            lambda side: side.pool.get_cached_page(side.keys[key], groups),
            "POOL-7",
            lambda pages, side: None if pages is None else page_list(pages, side),
            alone=True,
        )

    @step("POOL-11", when=lambda self: not self.lacks("views"))
    def set_on_view(self, data: Drawing) -> None:
        """Sets what a page view lets one set; what would break the pool's order is refused."""
        page = one_of(data, [*self.owned, 0])
        act, clause = one_of(
            data,
            [("incr_ref", "POOL-2"), ("decr_ref", "POOL-2"), ("reset_hash", "POOL-11"), ("ref_cnt", ""), ("key", "")],
        )
        if act == "ref_cnt":
            self.set_count(page, data.draw(st.integers(0, 3)))
        elif act == "key":
            self.set_key(page)
        else:
            self.call(
                f"page({page}).{act}()",
                lambda side: getattr(side.pages[page], act)(),
                clause,
                charge=dict.fromkeys((*_COUNTS, *_HASHES), clause),
            )

    def set_count(self, page: int, count: int) -> None:
        """Sets a page's count: refused where it would free the page or take it behind the pool's back."""

        def act(side: Any) -> None:
            side.pages[page].ref_cnt = count

        self.call(f"page({page}).ref_cnt = {count}", act, "POOL-2", charge=dict.fromkeys(_COUNTS, "POOL-2"))

    def set_key(self, page: int) -> None:
        """Sets a page's hash: always refused on a page of a pool, which caches pages itself."""

        def act(side: Side) -> None:
            offered = side.names.offers("PageHash") and side.names.offers("PageHashWithGroupId")
            names = side.names if offered else self.spec.names
            side.pages[page].page_hash = names.get("PageHashWithGroupId")(names.get("PageHash")(b"x", (0,), None), 0)

        self.call(f"page({page}).page_hash = <a key made by hand>", act, "POOL-7")
