"""The pool machine: one page pool, its free queue, its cached map, and the views of its pages."""

from typing import Any

from hypothesis import strategies as st

from ..calls.datum import Prompt, Ref
from ..calls.pool import POOL
from ..calls.queue import PAGE
from .calling import Calls
from .draws import Drawing
from .pool_base import PoolMachine
from .properties import start, step

__all__ = ["Pool"]


class Pool(PoolMachine):
    """Takes, touches, frees, caches, evicts, looks up and resets; sets what the views of pages let one set."""

    name = "pool"
    examples = 110

    @start(
        num_pages=st.integers(3, 9),
        caching=st.sampled_from([True, True, True, True, True, False]),
        unhashed_first=st.booleans(),
        eviction=st.sampled_from([None, None, None, "reuse", "adaptive"]),
        tells=st.booleans(),
    )
    def construct(self, num_pages: int, caching: bool, unhashed_first: bool, eviction: str | None, tells: bool) -> None:
        """A fresh pool of one policy or another: its free pages stand in the order of their ids."""
        wanted: dict[str, Any] = {"unhashed_first": True} if unhashed_first else {}
        wanted |= {"enable_events": True} if tells else {}
        self.build_pool(num_pages, caching, **wanted, **({"eviction": eviction} if eviction else {}))

    @step("POOL-5", "POOL-9", "POOL-11", "POOL-13")
    def forget(self, source: Drawing) -> Calls:
        """Drops the hashes of some pages, held or free, hashed or not; or every hash, if no page is in use."""
        if source.integer(0, 2) < 2 and self.offers("pool", "evict_pages"):
            yield self.drawn(POOL["evict_pages"], source)
            return
        held = self.mentions()
        if held and source.integer(0, 1) == 0:
            yield self.call_of("free_pages", Ref("pool"), ordered_pages=[self.ref(page) for page in held])
        yield self.drawn(POOL["reset_prefix_cache"], source)

    @step("POOL-7", "POOL-11", when=lambda self: self.caching and self.spec.pool.get_num_free_pages() > 2, weight=2)
    def evict_where_two_part(self, source: Drawing) -> Calls:
        """Two requests begin alike; from where they part on, and before that as well, their pages are evicted."""
        most = self.spec.pool.get_num_free_pages() - 2
        alike = source.integer(1, min(most, 3))
        lengths = source.integer(1, min(most - alike + 1, 3)), source.integer(1, 3)
        taken: list[Ref] = []
        for token, own in enumerate(lengths):
            own = min(own, self.spec.pool.get_num_free_pages())
            call = self.call_of("get_new_pages", Ref("pool"), num_pages=own if taken else alike + own)
            if (yield call).refused:
                return
            new = [self.ref(page) for page in self.lists[call.number]]
            yield self.call_of(
                *("cache_full_pages", Ref("pool")),
                request=Prompt((0,) * alike + (token,) * own),
                pages=[*taken[:alike], *new],
                page_hashes=[],
                num_cached_pages=len(taken[:alike]),
                num_full_pages=alike + own,
                page_size=1,
                kv_cache_group_id=0,
            )
            taken += new
        if self.offers("pool", "evict_pages"):
            behind = taken[source.one_of([alike, alike, source.integer(0, alike)]) :]
            gone = source.some(behind, len(behind), max(len(behind) - source.integer(0, 1), 1))
            yield self.call_of("evict_pages", Ref("pool"), page_ids=[page.to(".page_id") for page in gone])

    @step("POOL-11", when=lambda self: not self.lacks("views"))
    def set_on_view(self, source: Drawing) -> Calls:
        """Sets what a page view lets one set; what would break the pool's order is refused."""
        yield self.drawn(source.one_of(PAGE.rows), source)

    @step("POOL-4", "POOL-6", "POOL-11", "R2", weight=2)
    def misuse(self, source: Drawing) -> Calls:
        """Makes a call with one fault."""
        yield self.spoilt(source.one_of(self.spoilable()), source)

    @step("POOL-2", when=lambda self: not self.lacks("views"))
    def misuse_views(self, source: Drawing) -> Calls:
        """Sets a count that is none; moves pages in the queue, which can be looked at, and only the pool moves them."""
        if self.lacks("queue") or source.integer(0, 1) == 0:
            yield self.spoilt(PAGE["ref_cnt"], source)
            return
        page = self.ref(source.one_of(self.owned))
        given: dict[str, dict[str, Any]] = {
            "popleft": {},
            "popleft_n": {"n": 1},
            "remove": {"page": page},
            "append": {"page": page},
            "append_n": {"pages": [page]},
        }
        name = source.one_of(list(given))
        yield self.call_of(name, Ref("pool", (".free_page_queue",)), **given[name])
