"""POOL-1, POOL-2, POOL-8: pages of one's own, and what check() of a queue sees.

What both packages' queues do in step, and refuse, the machine `queue` draws.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from kvproof import fast


def test_pool_2_links_come_from_the_queue_only(package: ModuleType) -> None:
    page = package.CachePage(1)
    with pytest.raises(ValueError, match=r"prev_free_page and next_free_page.*\[POOL-2\]"):
        package.CachePage(2, prev_free_page=page)
    with pytest.raises(ValueError, match=r"\[POOL-2\]"):
        package.CachePage(2, next_free_page=page)
    with pytest.raises(AttributeError):
        page.prev_free_page = page


def test_pool_2_neither_a_queues_ends_nor_a_pools_pages_go_into_a_queue(package: ModuleType) -> None:
    page = package.CachePage(1)
    queue = package.FreeCachePageQueue([])
    for stranger in (package.PagePool(2, False).pages[1], queue.fake_free_list_head):
        for put in (queue.append_n, queue.prepend_n):
            with pytest.raises(ValueError, match=r"\[POOL-2\]$"):
                put([page, stranger])
    assert queue.num_free_pages == 0


def test_pool_8_a_page_of_ones_own_gets_one_hash_at_a_time(package: ModuleType) -> None:
    key = package.PageHashWithGroupId(package.PageHash(b"k", (1,)), 0)
    page = package.CachePage(1)
    page.page_hash = key
    with pytest.raises(ValueError, match=r"page 1 .*\[POOL-8\]"):
        page.page_hash = key
    assert page.page_hash is key
    page.reset_hash()
    page.page_hash = key
    null = package.CachePage(0, is_null=True)
    with pytest.raises(ValueError, match=r"\[POOL-7\]"):
        null.page_hash = key


def test_pool_1_counts_of_a_null_page_stay(package: ModuleType) -> None:
    null = package.CachePage(0, is_null=True)
    null.incr_ref()
    null.decr_ref()
    null.decr_ref()
    null.ref_cnt = 5
    assert null.ref_cnt == 0


def test_r1_a_count_is_an_int_and_not_negative(package: ModuleType) -> None:
    page = package.CachePage(1)
    page.incr_ref()
    page.decr_ref()
    with pytest.raises(ValueError, match="ref_cnt=-1"):
        page.decr_ref()
    with pytest.raises(TypeError, match=r"ref_cnt=1\.0"):
        page.ref_cnt = 1.0
    with pytest.raises(TypeError, match="ref_cnt=True"):
        page.ref_cnt = True
    assert page.ref_cnt == 0
    for arguments in [(-1,), (1, -1)]:
        with pytest.raises(ValueError, match="=-1 must be at least 0"):
            package.CachePage(*arguments)


class Damaged(NamedTuple):
    """A queue that is about to be damaged, and its three pages."""

    queue: Any
    pages: list[Any]


DAMAGES: dict[str, Callable[[Damaged], object]] = {
    "a wrong count": lambda at: setattr(at.queue, "_count", 2),
    "a link back broken": lambda at: setattr(at.pages[1], "before", at.pages[2]),
    "a page of no queue": lambda at: setattr(at.pages[1], "queue", None),
    "a page skipped": lambda at: setattr(at.pages[0], "after", at.pages[2]),
    "a head with something before it": lambda at: setattr(at.queue._head, "before", at.pages[0]),
    "a tail with something behind it": lambda at: setattr(at.queue._tail, "after", at.pages[0]),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_check_of_fasts_queue_sees(damage: str) -> None:
    pages = [fast.CachePage(place) for place in range(3)]
    queue = fast.FreeCachePageQueue(pages)
    queue.check()
    DAMAGES[damage](Damaged(queue, pages))
    with pytest.raises(AssertionError):
        queue.check()
