"""RET-3: letting go of pages by what they are worth: which lose their hashes, and where in the free queue they go."""

from collections.abc import Iterable, Mapping
from enum import Enum

from .page_pool import PagePool
from .pages import CachePage

__all__ = ["Judged", "Worth", "is_second", "learn", "let_go", "put_first"]


class Worth(Enum):
    """What a page is worth when a request lets go of it.

    Attributes:
        KEPT: it goes to the back of the free queue, whoever lets go of it, for as long as it has its hash.
        FIRST: it goes to the back of the free queue.
        SECOND: it is taken before all other cached pages of priority 0.
        NONE: it loses its hash and is taken next.
    """

    KEPT = "kept"
    FIRST = "first"
    SECOND = "second"
    NONE = "none"


_BACK = (Worth.KEPT, Worth.FIRST)

Judged = tuple[CachePage, Worth]
"""A page, and what it is worth."""


def learn(pool: PagePool, groups: Iterable[tuple[int, Mapping[int, Judged]]]) -> None:
    """Tells the eviction policy which pages a request lets go of together, those of later tokens first (EVICT-1).

    Pages of all groups are told at once, as a hit needs pages of each; those that the back of the queue is not for are
    left out.

    Args:
        pool: the pool.
        groups: of each group the tokens in a page, and its pages by their places.
    """
    judged = [(place * size, *page) for size, pages in groups for place, page in pages.items()]
    judged.sort(key=lambda page: page[0], reverse=True)
    ids = [page.page_id for _, page, worth in judged if worth in _BACK or page.page_id in pool.lasting]
    pool.free_order.queue.released([page for page in ids if page != 0])


def let_go(pool: PagePool, pages: Iterable[Judged]) -> None:
    """`PagePool.free_pages` for pages that a request held once each, by what they are worth (RET-3); after `learn`.

    Args:
        pool: the pool.
        pages: the pages in the order in which they are freed, null pages among them.
    """
    worth_of = {page.page_id: own for page, own in pages if not page.is_null}
    cached, order = pool.index.key_of, pool.free_order
    pool.lasting.update(page for page, own in worth_of.items() if own is Worth.KEPT and page in cached)
    by_worth: dict[Worth, list[int]] = {own: [] for own in Worth}
    freed = pool.counts.remove(worth_of)
    for page in freed:
        own = Worth.FIRST if page in pool.lasting or order.priority(page) else worth_of[page]
        by_worth[own if page in cached else Worth.NONE].append(page)
    pool.num_unreachable += sum(page in cached for page in by_worth[Worth.NONE])
    pool.withdraw(pool.pages[page] for page in by_worth[Worth.NONE])
    for page in by_worth[Worth.NONE]:
        order.set_priority(page, 0, None)  # PIN-2
    for page in (*by_worth[Worth.SECOND], *by_worth[Worth.FIRST]):
        pool.log.freed(page)
    order.put_front(by_worth[Worth.NONE])
    order.put_second(by_worth[Worth.SECOND])
    order.put(by_worth[Worth.FIRST])


def is_second(pool: PagePool, page: CachePage) -> bool:
    """Whether a page is free and of second class."""
    return pool.free_order.is_second(page.page_id)


def put_first(pool: PagePool, pages: Iterable[CachePage]) -> None:
    """Puts those of some pages that are of second class to the back of the queue, in order."""
    own = [page.page_id for page in pages if is_second(pool, page)]
    for page in own:
        pool.free_order.remove(page)
    pool.free_order.put(own)
