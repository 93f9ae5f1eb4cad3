"""PIN-1, MAN-12: what follows from the calls on a manager of the specification: its map, its counters, its pins."""

from typing import Any

from hypothesis import settings

from kvproof import spec

from ..strategies import PlainRequest
from .driven_managers import DrivenManager


class ToldAndCounted(DrivenManager):
    """A follower of the events knows the cached map, and the counters are what an engine counts (MAN-12, PIN-1)."""

    def begin(self) -> None:
        self.follower = spec.CacheFollower()
        self.counted = spec.CacheCounters()
        self.freed: dict[str, tuple[PlainRequest, int]] = {}
        self.most: dict[str, int] = {}

    def after_call(self) -> None:
        manager = self.manager
        events = manager.take_events()
        assert manager.page_pool.enable_events or not events
        if manager.page_pool.enable_events:
            self.follower.apply(events)
            cached = manager.page_pool.cached_page_hash_to_page
            followed = self.follower.cached_page_hash_to_page
            assert {key: list(pages) for key, pages in followed.items()} == {
                key: [page.page_id for page in pages] for key, pages in cached.items()
            }
        pinned = [page for pin in manager.prefixes.pinned.values() for pages in pin.pages.pages for page in pages]
        assert all(page.is_null or page.ref_cnt > 0 for page in pinned)
        assert len({page for page in pinned if not page.is_null}) == manager.page_pool.num_pinned_pages
        self.most = {name: max(self.most.get(name, 0), promised) for name, promised in self.promised.items()}

    def admitted(self, request: PlainRequest, found: int) -> None:
        before, tokens = self.freed.pop(request.request_id, (None, 0))
        caching = self.manager.enable_caching
        counted = self.counted
        self.counted = spec.CacheCounters(
            requests=counted.requests + caching,
            queried_tokens=counted.queried_tokens + caching * request.num_tokens,
            hit_tokens=counted.hit_tokens + found,
            preemptions=counted.preemptions + (before is request),
            preempted_tokens=counted.preempted_tokens + (tokens if before is request else 0),
            resumed_hit_tokens=counted.resumed_hit_tokens + (found if before is request else 0),
        )
        shown = self.manager.counters
        assert (shown.requests, shown.queried_tokens, shown.hit_tokens) == (
            self.counted.requests,
            self.counted.queried_tokens,
            self.counted.hit_tokens,
        )
        assert (shown.preemptions, shown.preempted_tokens, shown.resumed_hit_tokens) == (
            self.counted.preemptions,
            self.counted.preempted_tokens,
            self.counted.resumed_hit_tokens,
        )
        assert shown.resumed_hit_tokens + shown.junction_hit_tokens <= shown.hit_tokens

    def let_go(self, name: str, written: int | None) -> None:
        promised = max(self.most.get(name, 0), self.promised[name])
        super().let_go(name, written)
        self.freed[name] = self.requests[name], promised

    def drop(self, name: str) -> None:
        super().drop(name)
        del self.freed[name]

    def take(self, _: Any) -> None:
        self.call(lambda manager: manager.take_page_copies())


ToldAndCountedTest = ToldAndCounted.TestCase
ToldAndCountedTest.settings = settings(max_examples=80)
