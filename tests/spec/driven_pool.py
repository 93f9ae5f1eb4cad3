"""A pool of the specification that is driven through every call it has, and the history of what became of its pages."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvproof import spec

from ..strategies import PlainRequest

__all__ = ["DrivenPool"]

_SALTS = st.sampled_from([(), (spec.CacheSalt("a"),), (spec.CacheSalt("b"),)])


class DrivenPool(RuleBasedStateMachine):
    """Makes calls that are allowed, and pins that may be one too many.

    ``history`` has one entry a call: what happened, and to which pages in which order. The tests that follow from
    it what is to be seen know nothing of the pool.
    """

    pool: Any
    """Of `spec.PagePool`; not said so that steps before it is built are no error."""

    @initialize(
        num_pages=st.integers(3, 8),
        unhashed_first=st.booleans(),
        counter_sampling=st.integers(1, 3),
        max_pinned_pages=st.integers(1, 5),
        per_salt=st.sampled_from([None, None, 1, 2]),
    )
    def build(
        self,
        num_pages: int,
        unhashed_first: bool,
        counter_sampling: int,
        max_pinned_pages: int,
        per_salt: int | None,
    ) -> None:
        self.pool = spec.PagePool(
            num_pages,
            True,
            hash_seed=b"s",
            unhashed_first=unhashed_first,
            enable_events=True,
            counter_sampling=counter_sampling,
            max_pinned_pages=max_pinned_pages,
            max_pinned_pages_per_salt=per_salt,
        )
        self.history: list[tuple[Any, ...]] = []
        self.pinned: Counter[int] = Counter()
        self.now: float | None = None

    # -- What the pool shows --------------------------------------------------------------------------

    def ids(self, *, held: bool | None = None, cached: bool | None = None) -> list[int]:
        """The pages but the null page, or those among them that are held, or not, and cached, or not."""
        return [
            page.page_id
            for page in self.pool.pages[1:]
            if held in (None, page.ref_cnt > 0) and cached in (None, page.page_hash is not None)
        ]

    def pages(self, ids: list[int]) -> list[Any]:
        return [self.pool.pages[page_id] for page_id in ids]

    def is_cached(self, page_id: int) -> bool:
        return self.pool.pages[page_id].page_hash is not None

    def draw_some(self, data: st.DataObject, ids: list[int], most: int = 4) -> list[int]:
        return data.draw(st.lists(st.sampled_from(ids), min_size=1, max_size=most))

    # -- Calls ----------------------------------------------------------------------------------------

    @precondition(lambda self: self.ids(held=False))
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, min(3, len(self.ids(held=False)))))
        self.history.append(("taken", self.pool.get_new_pages(count).page_ids))

    @precondition(lambda self: self.ids(held=True, cached=False))
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 1), min_size=3, max_size=3), extra_keys=_SALTS)
    def cache(self, data: st.DataObject, tokens: list[int], extra_keys: Any) -> None:
        ready = [page_id for page_id in self.ids(held=True, cached=False) if not self.pinned[page_id]]
        if not ready:
            return
        stored = data.draw(st.lists(st.sampled_from(ready), min_size=1, max_size=2, unique=True))
        ids = [*stored, *[0] * data.draw(st.integers(0, 3 - len(stored)))]
        ids = data.draw(st.permutations(ids))
        first = data.draw(st.integers(0, 3 - len(ids)))
        request = PlainRequest("r", tokens, extra_keys)
        group = data.draw(st.integers(0, 1))
        self.pool.cache_full_pages(request, self.pages([0] * first + list(ids)), [], first, first + len(ids), 1, group)
        self.history.append(("stored", [page_id for page_id in ids if page_id]))

    @precondition(lambda self: any(self.held_but_for_pins().values()))
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        mentions = data.draw(st.permutations(list(self.held_but_for_pins().elements())))
        freed = mentions[: data.draw(st.integers(1, 4))]
        before = Counter({page_id: self.pool.pages[page_id].ref_cnt for page_id in freed})
        self.pool.free_pages(self.pages([0, *freed]))
        self.note_freed(before, freed)

    def held_but_for_pins(self) -> Counter[int]:
        return Counter({page.page_id: page.ref_cnt - self.pinned[page.page_id] for page in self.pool.pages[1:]})

    def note_freed(self, before: Counter[int], mentions: list[int]) -> None:
        freed = []
        for page_id in mentions:
            before[page_id] -= 1
            if before[page_id] == 0:
                freed.append(page_id)
        self.history.append(("freed", [(page_id, self.is_cached(page_id)) for page_id in freed]))

    @precondition(lambda self: self.ids(cached=True))
    @rule(data=st.data())
    def touch(self, data: st.DataObject) -> None:
        ids = self.draw_some(data, [*self.ids(cached=True), *self.ids(held=True), 0])
        free = set(self.ids(held=False))
        self.pool.touch([self.pages(ids[:1]), self.pages(ids[1:])])
        self.history.append(("held", [page_id for page_id in dict.fromkeys(ids) if page_id in free]))

    @precondition(lambda self: self.ids(cached=True))
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        ids = self.draw_some(data, [*self.ids(cached=True), 0])
        free = set(self.ids(held=False))
        if self.may_pin({*+self.pinned, *ids} - {0}):
            self.pool.pin([self.pages(ids[:2]), self.pages(ids[2:])])
            self.pinned.update(page_id for page_id in ids if page_id)
            self.history.append(("held", [page_id for page_id in dict.fromkeys(ids) if page_id in free]))
        else:
            with pytest.raises(ValueError, match=r"max_pinned_pages.*\[PIN-1\]$"):
                self.pool.pin([self.pages(ids)])

    def may_pin(self, ids: set[int]) -> bool:
        keys = [page.page_hash.page_hash for page in self.pages(sorted(ids)) if page.page_hash is not None]
        per_salt = [sum(other.extra_keys == key.extra_keys for other in keys) for key in keys]
        bound = self.pool.max_pinned_pages_per_salt
        return len(ids) <= self.pool.max_pinned_pages and (bound is None or max(per_salt, default=0) <= bound)

    @precondition(lambda self: +self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        ids = data.draw(st.permutations(list(self.pinned.elements())))[: data.draw(st.integers(1, 3))]
        before = Counter({page_id: self.pool.pages[page_id].ref_cnt for page_id in ids})
        self.pool.unpin([self.pages([0, *ids])])
        self.pinned -= Counter(ids)
        self.note_freed(before, ids)

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        ids = self.draw_some(data, [page_id for page_id in [0, *self.ids()] if not self.pinned[page_id]])
        lost = [page_id for page_id in dict.fromkeys(ids) if self.is_cached(page_id)]
        self.pool.evict_pages(ids)
        self.history.append(("lost", lost))

    @precondition(lambda self: self.ids(cached=True, held=True))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        ids = list(dict.fromkeys(self.draw_some(data, self.ids(cached=True, held=True), most=2)))
        self.pool.withdraw(self.pages(ids))
        self.history.append(("lost", ids))

    @rule()
    def reset(self) -> None:
        idle = not self.ids(held=True)
        cached = self.ids(cached=True)
        assert self.pool.reset_prefix_cache() == idle
        if idle:
            self.history.append(("lost", cached))

    @precondition(lambda self: self.ids(cached=True))
    @rule(data=st.data(), priority=st.integers(-2, 2), lasting=st.none() | st.integers(1, 3))
    def set_priority(self, data: st.DataObject, priority: int, lasting: int | None) -> None:
        ids = self.draw_some(data, [*self.ids(cached=True), 0])
        end = None if lasting is None else (self.now or 0.0) + lasting
        self.pool.set_priority(iter(self.pages(ids)), priority, expires_at=end)
        self.history.append(("priority", [page_id for page_id in ids if page_id], priority, end))

    @rule(later=st.integers(0, 2))
    def advance_time(self, later: int) -> None:
        self.now = (self.now or 0.0) + later
        self.pool.advance_time(self.now)
        self.history.append(("time", self.now))

    # -- What always holds ----------------------------------------------------------------------------

    @invariant()
    def the_check_passes(self) -> None:
        self.pool.check()
