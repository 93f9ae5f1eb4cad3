"""RET-3: letting go of pages by what they are worth: which lose their hashes, and where in the free queue they go.

What a page is worth is a number, which arrays have as `i8`.
"""

import numpy as np
from numpy.typing import NDArray

from .page_pool import PagePool

__all__ = ["FIRST", "KEPT", "NONE", "SECOND", "learn", "let_go", "let_go_one", "retain"]

NONE = 0
"""The page loses its hash and is taken next."""

SECOND = 1
"""It is taken before all other cached pages of priority 0."""

FIRST = 2
"""It goes to the back of the free queue."""

KEPT = 3
"""It goes to the back of the free queue, whoever lets go of it, for as long as it has its hash."""


def retain(pool: PagePool) -> None:
    """Makes room for what is noted of pages that are let go, in a pool that was just made."""
    pool.lasting = np.zeros(pool.num_pages, bool)
    pool.free_order.retain()


def learn(
    pool: PagePool,
    pages: NDArray[np.int64],
    worth: NDArray[np.int8] | None,
    starts: NDArray[np.int64] | None = None,
) -> None:
    """Tells the eviction policy, if there is one, which distinct pages a request lets go of together (EVICT-1).

    Args:
        pool: the pool.
        pages: the pages.
        worth: what each is worth; those that the back of the queue is not for are left out. None: it is for all.
        starts: the token at which each begins: later ones are told first; None: they come in this order.
    """
    if pool.policy is None:
        return
    if worth is None:
        pool.policy.released(pages)
        return
    goes_back = worth >= FIRST
    if pool.lasting is not None:
        goes_back |= pool.lasting[pages]
    if starts is not None:
        order = np.argsort(-starts, kind="stable")
        pages, goes_back = pages[order], goes_back[order]
    pool.policy.released(pages[goes_back])


def let_go(pool: PagePool, pages: NDArray[np.int64], worth: NDArray[np.int8]) -> None:
    """`PagePool.give_back` for distinct pages of a request, by what they are worth; after `retain`. O(pages).

    Args:
        pool: the pool.
        pages: the pages, in the order in which they are freed.
        worth: what each is worth.
    """
    kept, order = pool.lasting, pool.free_order
    assert kept is not None
    is_cached = pool.index.cached(pages)
    kept[pages[is_cached & (worth == KEPT)]] = True
    freed = pool.counts.remove(pages, 1)
    if freed.size < pages.size:
        is_free = pool.counts.of[pages] == 0
        worth, is_cached = worth[is_free], is_cached[is_free]
    goes_first = is_cached & ((worth >= FIRST) | kept[freed] | order.has_priority(freed))
    goes_second = is_cached & ~goes_first & (worth == SECOND)
    lost = freed[~(goes_first | goes_second)]
    if lost.size:
        pool.num_unreachable += int(np.count_nonzero(is_cached)) - (freed.size - lost.size)
        pool.forget_hashes(lost)
        order.put_front(lost)
    if lost.size < freed.size:
        pool.log.ages.freed(freed[goes_first | goes_second], pool.log.clock)
        order.put_second(freed[goes_second])
        order.put(freed[goes_first])


def let_go_one(pool: PagePool, page: int, worth: int) -> None:
    """`learn` and `let_go` for one page. O(1)."""
    kept, order = pool.lasting, pool.free_order
    assert kept is not None
    is_cached = pool.index.run_cell[page] > 0
    if is_cached and worth == KEPT:
        kept[page] = True
    if pool.policy is not None and (worth >= FIRST or kept[page]):
        pool.policy.released(np.array((page,)))
    count = pool.counts.cell[page] - 1
    pool.counts.cell[page] = count
    if count:
        return
    stays = is_cached and (worth >= FIRST or bool(kept[page]) or order.priority(page) != 0)
    if not stays and not (is_cached and worth == SECOND):
        if is_cached:
            pool.num_unreachable += 1
            pool.forget_hashes(np.array((page,)))
        order.put_front_one(page)
        return
    if not page % pool.counter_sampling:
        pool.log.ages.freed(np.array((page,)), pool.log.clock)
    if stays:
        order.put_one(page)
    else:
        order.put_second_one(page)
