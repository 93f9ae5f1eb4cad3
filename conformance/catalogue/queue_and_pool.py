"""Faults of the free queue and of reference counts: who holds a page, and which page comes next."""

from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from .patching import derived, whole, with_pool, with_pools
from .registry import FORESEEN, seeded

__all__: list[str] = []


@seeded(1, "POOL-4", "pool", also=("R1", "POOL-2"))
def negative_get_new_pages(fast: ModuleType) -> SimpleNamespace:
    """Taking -1 pages raises the free count; when the queue runs dry its sentinel, id -1, is handed out (EasyDeL)."""
    pool = fast.PagePool

    def get_num_free_pages(self: Any) -> int:
        return int(pool.get_num_free_pages(self)) + int(self.surplus)

    def get_new_pages(self: Any, num_pages: Any) -> Any:
        if whole(num_pages) and num_pages < 0:
            self.surplus -= int(num_pages)
            return fast.pool.pages.page_list(self, ())
        missing = num_pages - pool.get_num_free_pages(self) if whole(num_pages) else 0
        if not 0 < missing <= self.surplus:
            return pool.get_new_pages(self, num_pages)
        self.surplus -= missing
        return pool.get_new_pages(self, num_pages - missing) + [self.free_page_queue.fake_free_list_tail] * missing

    return with_pool(fast, surplus=0, get_num_free_pages=get_num_free_pages, get_new_pages=get_new_pages)


@seeded(1, "POOL-4", "queue", also=("R1", "POOL-2"), by="FreeCachePageQueue.popleft_n")
def negative_popleft_n(fast: ModuleType, self: Any, n: Any) -> Any:
    """Taking -1 pages raises the queue's count, and later more are taken than there are (vllm-ascend 14283)."""
    if whole(n) and n < 0:
        self._count -= int(n)  # lowered by any n, a negative one too; then a loop over range(n) takes nothing
        return []
    taken = fast.FreeCachePageQueue.popleft_n(self, n)
    return taken + [self.fake_free_list_tail] * (n - len(taken))


@seeded(2, "POOL-5", "pool", also=("POOL-2",), by="PagePool.free_pages")
def double_mention(fast: ModuleType, self: Any, ordered_pages: Any) -> None:
    """A page held twice, freed by one call that names it twice, is queued twice (EasyDeL, vLLM 42571, 3347).

    All counts were lowered first; then every mention whose page stood at 0 was appended.
    """
    pages = fast.pool.pages.read_pages("ordered_pages", ordered_pages, self)
    pages = pages[pages != 0]
    if (np.bincount(pages, minlength=self.num_pages) > self.counts.of).any():
        fast.PagePool.free_pages(self, fast.pool.pages.page_list(self, pages))  # refuses
    np.subtract.at(self.counts.of, pages, 1)
    self._put_back(pages[self.counts.of[pages] == 0])


@seeded(3, "POOL-5", "pool", also=("R1",), by="PagePool.free_pages")
def count_below_zero(fast: ModuleType, self: Any, ordered_pages: Any) -> None:
    """Freeing a page twice takes its count to -1 and is not refused; the error comes much later (EasyDeL)."""
    pages = fast.pool.pages.read_pages("ordered_pages", ordered_pages, self)
    freed = []
    for page in pages[pages != 0].tolist():
        self.counts.cell[page] -= 1
        if self.counts.cell[page] == 0:
            freed.append(page)
    self._put_back(np.array(freed, np.int64))


@seeded(4, "POOL-1", "pool", by="PagePool.free_pages")
def null_page_count_drifts(fast: ModuleType, self: Any, ordered_pages: Any) -> None:
    """Freeing the null page lowers its count, which nothing ever raises: it drifts below 0 (EasyDeL)."""
    pages = fast.pool.pages.read_pages("ordered_pages", ordered_pages, self)
    fast.PagePool.free_pages(self, fast.pool.pages.page_list(self, pages))
    self.counts.cell[0] -= int((pages == 0).sum())


@seeded(5, "R1", "queue", by="FreeCachePageQueue.popleft_n")
def counted_before_refusal(fast: ModuleType, self: Any, n: Any) -> Any:
    """The queue lowers its count before it finds that it has too few pages: the refusal breaks it (vLLM 24228)."""
    if whole(n) and n > self._count:
        self._count -= int(n)
    return fast.FreeCachePageQueue.popleft_n(self, n)


@seeded(9, "POOL-3", "pool", also=("POOL-11",))
def eviction_takes_too_much(fast: ModuleType) -> SimpleNamespace:
    """The loop that evicts never counts what it has evicted and goes on to the last free page (sglang 4987)."""

    def evict(self: Any, pages: Any) -> Any:
        if self.index.cached(pages).any():
            pages = np.union1d(pages, self.free_order.order())
        return fast.PagePool._evict(self, pages)

    def evict_one(self: Any, page: int) -> None:
        evict(self, np.array([page]))

    return with_pool(fast, _evict=evict, _evict_one=evict_one)


@seeded(FORESEEN, "PIN-2", "pool_pins", by="PagePool.set_priority")
def ranked_again_goes_to_the_back(
    fast: ModuleType, self: Any, pages: Any, priority: Any, expires_at: Any = None
) -> None:
    """A free page that gets the priority that it has goes to the back: who prolongs priorities changes the order."""
    ids = fast.pool.pages.read_pages("pages", pages, self)
    fast.PagePool.set_priority(self, fast.pool.pages.page_list(self, ids), priority, expires_at)
    for page in ids.tolist() if priority else ():
        if page and not self.counts.cell[page]:
            self.free_order._leave(page)
            self.free_order._enter(page)


@seeded(FORESEEN, "POOL-2", "pool")
def ends_of_the_queue_are_exchanged(fast: ModuleType) -> SimpleNamespace:
    """The page behind the head of a pool's queue is the last one to be taken, and the one before its tail the first."""
    queue = fast.pool.free_queue.PoolFreeQueue

    def beyond(self: Any, step: int) -> Any:
        return queue.beyond(self, -step)

    def spoil(pool: Any) -> None:
        pool.free_page_queue.__class__ = derived(queue, {"__slots__": (), "beyond": beyond})

    return with_pools(fast, spoil)
