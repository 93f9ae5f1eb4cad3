"""Calls on a pool with one fault each: both sides refuse them, and nothing has changed."""

from typing import Any

from hypothesis import strategies as st

from kvproof.spec.pool.hashing import PageHash

from ..properties import step
from .draws import NO_INTS, NO_LISTS, Drawing, likely, one_of, some
from .pool_base import OTHER, STRANGER, WRONG_DIGEST, Caching, PoolMachine, names

__all__ = ["PoolFaults"]


class PoolFaults(PoolMachine):
    """The steps of the pool machine that must be refused."""

    @step("POOL-4", "POOL-6")
    def misuse_pages(self, data: Drawing) -> None:
        """Takes, touches, frees, counts or moves pages with one fault; constructs a pool badly."""
        faults = [self.get_badly, self.touch_badly, self.free_badly, self.free_badly]
        if not self.lacks("views"):
            faults += [self.count_badly] if self.lacks("queue") else [self.move_badly, self.count_badly]
        one_of(data, [*faults, self.construct_badly])(data)

    @step("R2")
    def misuse_cache(self, data: Drawing) -> None:
        """Caches, evicts or looks up with one fault."""
        faults = [self.cache_badly] * 4 if self.cacheable() else []
        if self.known_keys():
            faults.append(self.look_up_badly)
        if self.offers("pool", "evict_pages"):
            faults.append(self.evict_badly)
        one_of(data, faults or [self.get_badly])(data)

    def construct_badly(self, data: Drawing) -> None:
        """A pool needs 2 pages and a bool."""
        arguments: tuple[Any, ...] = one_of(data, [(1, True), (True, True), (4.0, True), (-3, True), (4, 1)])
        self.call(f"PagePool{arguments}", lambda side: side.names.get("PagePool")(*arguments), "R1")

    def get_badly(self, data: Drawing) -> None:
        """No int, a negative number, or more than are free."""
        count = likely(data, [self.spec.pool.get_num_free_pages() + 1, -1], NO_INTS)
        self.call(f"pool.get_new_pages({count!r})", lambda side: side.pool.get_new_pages(count), "POOL-4")

    def touch_badly(self, data: Drawing) -> None:
        """A free page without a hash, another pool's page, no page, no list; good pages stand before it."""
        good = [page for page in self.owned if self.count(page) or self.hashed(page)]
        free = [page for page in self.owned if not self.count(page) and not self.hashed(page)]
        faults: list[Any] = [*free[:2], OTHER, STRANGER]
        groups: Any = [some(data, good, most=2), [*some(data, good, most=1), one_of(data, faults)]]
        if one_of(data, [False, False, False, True]):
            groups = one_of(data, [*NO_LISTS[:2], [1], [groups[0], 1]])
        self.call(f"pool.touch({names(groups)})", lambda side: side.pool.touch(self.grouped(side, groups)), "POOL-6")

    def grouped(self, side: Any, groups: Any) -> Any:
        """A side's pages for drawn groups, what is no list left as it is."""
        if not isinstance(groups, list):
            return groups
        return [self.pages_of(side, group) if isinstance(group, list) else group for group in groups]

    def free_badly(self, data: Drawing) -> None:
        """A mention too many, a free page, another pool's page, no page, no list; good pages stand before it."""
        held = [page for page in self.owned if self.count(page)]
        good = some(data, held, most=2)
        page = one_of(data, [*held, *self.owned])
        left = self.count(page) - good.count(page)
        faults: list[list[Any]] = [[page] * (left + 1), [OTHER], [STRANGER]]
        freed: Any = good + one_of(data, faults)
        if one_of(data, [False] * 7 + [True]):
            freed = one_of(data, NO_LISTS)
        self.call(
            f"pool.free_pages({names(freed)})",
            lambda side: side.pool.free_pages(self.pages_of(side, freed) if isinstance(freed, list) else freed),
            "POOL-5",
        )

    def cache_badly(self, data: Drawing) -> None:
        """Wrong counts, too few tokens, a page free, hashed, mentioned twice or foreign, a key that is not its own."""
        call = self.draw_caching(data)
        if not self.caching:
            self.cache(call)
            return
        end = call.num_full_pages
        counts = [
            call.but(num_cached_pages=end + 1),
            call.but(num_full_pages=len(call.pages) + 1, tokens=call.tokens * 4, page_hashes=[]),
            call.but(tokens=call.tokens[: end * call.page_size - 1], page_hashes=[]),
            call.but(num_full_pages=-1, num_cached_pages=0),
        ]
        numbers = [
            call.but(**{name: wrong})
            for name in ("num_cached_pages", "num_full_pages", "page_size", "kv_cache_group_id")
            for wrong in (-1, *NO_INTS)
        ]
        pages = [self.with_page(call, wrong) for wrong in self.uncacheable(call)]
        keys = []
        if self.seeded and call.page_hashes:
            place = data.draw(st.integers(0, len(call.page_hashes) - 1))
            unlike = PageHash(WRONG_DIGEST, call.page_hashes[place].token_ids, None)
            for wrong in (unlike, unlike, STRANGER):
                keys.append(call.but(page_hashes=[*call.page_hashes[:place], wrong, *call.page_hashes[place + 1 :]]))
        self.cache(
            one_of(
                data, one_of(data, [counts, pages, keys or counts, keys or pages, [*numbers, call.but(page_size=0)]])
            )
        )

    def uncacheable(self, call: Caching) -> list[Any]:
        """Pages that cannot be cached with a call's others."""
        others = call.pages[call.num_cached_pages : call.num_full_pages - 1]
        free = [page for page in self.owned if not self.count(page)]
        hashed = [page for page in self.owned if self.count(page) and self.hashed(page)]
        return [*free[:1], *hashed[:1], *(page for page in others[:1] if page), OTHER, STRANGER]

    def with_page(self, call: Caching, page: Any) -> Caching:
        """A caching call with another last page to be cached."""
        end = call.num_full_pages
        return call.but(pages=[*call.pages[: end - 1], page, *call.pages[end:]])

    def evict_badly(self, data: Drawing) -> None:
        """Ids of no page, after ids of pages; no list."""
        hashed = [page for page in self.owned if self.hashed(page)]
        wrong = likely(data, [-1, len(self.owned) + 1], NO_INTS)
        evicted: Any = one_of(data, [[*some(data, hashed, most=2), wrong]] * 3 + [1])
        self.call(f"pool.evict_pages({evicted!r})", lambda side: side.pool.evict_pages(evicted), "POOL-11")

    def look_up_badly(self, data: Drawing) -> None:
        """A group that is no number, no list of groups, no key."""
        key = one_of(data, self.known_keys())
        groups = one_of(data, [[0, -1], 0, *([0, wrong] for wrong in NO_INTS)])
        self.call(
            f"pool.get_cached_page({self.key_name(key)}, {groups!r})",
            lambda side: side.pool.get_cached_page(side.keys[key], groups),
            "POOL-7",
        )
        self.call("pool.get_cached_page(None, [0])", lambda side: side.pool.get_cached_page(None, [0]), "POOL-7")

    def move_badly(self, data: Drawing) -> None:
        """The pool's queue can be looked at; only the pool's calls move pages in it."""
        page = one_of(data, self.owned)
        acts = {
            "popleft()": lambda side: side.pool.free_page_queue.popleft(),
            "popleft_n(1)": lambda side: side.pool.free_page_queue.popleft_n(1),
            f"remove(page({page}))": lambda side: side.pool.free_page_queue.remove(side.pages[page]),
            f"append(page({page}))": lambda side: side.pool.free_page_queue.append(side.pages[page]),
            f"append_n([page({page})])": lambda side: side.pool.free_page_queue.append_n([side.pages[page]]),
        }
        line = one_of(data, list(acts))
        self.call(f"pool.free_page_queue.{line}", acts[line], "POOL-2")

    def count_badly(self, data: Drawing) -> None:
        """A count that is no int or negative."""
        page, count = one_of(data, self.owned), likely(data, [-1], NO_INTS)

        def act(side: Any) -> None:
            side.pages[page].ref_cnt = count

        self.call(f"page({page}).ref_cnt = {count!r}", act, "POOL-2")
