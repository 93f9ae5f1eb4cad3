"""RET-3: letting go of pages by what they are worth: which lose their hashes, and where in the free queue they go."""

from collections.abc import Iterable, Sequence
from enum import Enum

from .page_pool import PagePool
from .pages import CachePage

__all__ = ["Worth", "is_second", "let_go", "put_first"]


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


def let_go(pool: PagePool, pages: Sequence[CachePage], worth: Iterable[Worth]) -> None:
    """`PagePool.free_pages` for pages that a request held once each, by what they are worth (RET-3).

    Args:
        pool: the pool.
        pages: the pages in the order in which they are freed, null pages among them.
        worth: what each is worth.
    """
    worth_of = {page.page_id: own for page, own in zip(pages, worth, strict=True) if not page.is_null}
    cached, order = pool.index.key_of, pool.free_order
    pool.lasting.update(page for page, own in worth_of.items() if own is Worth.KEPT and page in cached)
    by_worth: dict[Worth, list[int]] = {own: [] for own in Worth}
    freed = pool.counts.remove(worth_of)
    order.queue.released(list(worth_of), len(freed))
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
