"""POOL-2, POOL-3, POOL-4: the free queue of pages of one's own, in both packages, against a list."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvproof import fast, spec
from kvproof.spec.clauses import clause_of_message


class QueueMachine(RuleBasedStateMachine):
    """Every call, good and bad, against the same on a list."""

    package: ClassVar[ModuleType]

    @initialize(num_pages=st.integers(0, 8))
    def begin(self, num_pages: int) -> None:
        self.outside = [self.package.CachePage(place) for place in range(3)]
        self.inside = [self.package.CachePage(10 + place) for place in range(num_pages)]
        self.other = self.package.FreeCachePageQueue([self.package.CachePage(30), self.package.CachePage(31)])
        self.queue = self.package.FreeCachePageQueue(iter(self.inside))

    def _refused(self, kind: type[Exception], clause: str, call: Callable[..., Any], *arguments: Any) -> None:
        with pytest.raises(kind) as caught:
            call(*arguments)
        assert clause_of_message(str(caught.value)) == clause

    def _some(self, data: st.DataObject, pages: list[Any]) -> list[Any]:
        places = data.draw(st.lists(st.sampled_from(range(len(pages))), unique=True) if pages else st.just([]))
        return [pages[place] for place in places]

    @rule(data=st.data())
    def popleft_n(self, data: st.DataObject) -> None:
        n = data.draw(st.integers(0, len(self.inside)))
        taken, self.inside = self.inside[:n], self.inside[n:]
        assert _same(self.queue.popleft_n(n), taken)
        self.outside += taken

    @precondition(lambda self: self.inside)
    @rule()
    def popleft(self) -> None:
        assert self.queue.popleft() is self.inside[0]
        self.outside.append(self.inside.pop(0))

    @rule(beyond=st.integers(1, 3))
    def pop_too_many(self, beyond: int) -> None:
        """POOL-4: never more than there are."""
        self._refused(ValueError, "POOL-4", self.queue.popleft_n, len(self.inside) + beyond)
        self._refused(ValueError, "POOL-4", self.queue.popleft_n, -beyond)
        self._refused(TypeError, "R1", self.queue.popleft_n, True)
        if not self.inside:
            self._refused(ValueError, "POOL-4", self.queue.popleft)

    @precondition(lambda self: self.inside)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        page = self.inside.pop(data.draw(st.integers(0, len(self.inside) - 1)))
        self.queue.remove(page)
        self.outside.append(page)

    @rule(
        data=st.data(), method=st.sampled_from(["append_n", "prepend_n", "append"]), shape=st.sampled_from([list, iter])
    )
    def put(self, data: st.DataObject, method: str, shape: Callable[[list[Any]], Any]) -> None:
        pages = self._some(data, self.outside)[: 1 if method == "append" else None]
        if method == "append":
            for page in pages:
                self.queue.append(page)
        else:
            getattr(self.queue, method)(shape(pages))
        self.inside = pages + self.inside if method == "prepend_n" else self.inside + pages
        self.outside = [page for page in self.outside if not _among(page, pages)]

    @rule(data=st.data(), method=st.sampled_from(["append_n", "prepend_n"]))
    def put_what_is_elsewhere(self, data: st.DataObject, method: str) -> None:
        """POOL-2, R1: one page that is in a queue, a pool's or named twice refuses them all."""
        good = self._some(data, self.outside)
        stranger = self.other.get_all_free_pages()[0]
        pooled = self.package.PagePool(2, False).pages[1]
        bad = data.draw(st.sampled_from([stranger, pooled, self.queue.fake_free_list_head, *self.inside, *good]))
        place = data.draw(st.integers(0, len(good)))
        self._refused(ValueError, "POOL-2", getattr(self.queue, method), [*good[:place], bad, *good[place:]])
        self._refused(TypeError, "R1", getattr(self.queue, method), [*good, 3])
        self._refused(TypeError, "R1", getattr(self.queue, method), 3)

    @rule(data=st.data())
    def remove_what_is_elsewhere(self, data: st.DataObject) -> None:
        """POOL-2: what is not in this queue."""
        strangers = [*self.outside, *self.other.get_all_free_pages(), self.queue.fake_free_list_tail]
        self._refused(ValueError, "POOL-2", self.queue.remove, data.draw(st.sampled_from(strangers)))
        self._refused(TypeError, "R1", self.queue.remove, 3)

    @invariant()
    def the_order_is_exact(self) -> None:
        """POOL-3: the pages, their number, and the links of each, the ends included."""
        if not hasattr(self, "queue"):
            return
        if hasattr(self.queue, "check"):
            self.queue.check()
        assert _same(self.queue.get_all_free_pages(), self.inside)
        assert self.queue.num_free_pages == len(self.inside)
        row = [self.queue.fake_free_list_head, *self.inside, self.queue.fake_free_list_tail]
        assert [row[0].page_id, row[-1].page_id] == [-1, -1]
        for place, page in enumerate(row):
            assert page.prev_free_page is (row[place - 1] if place else None)
            assert page.next_free_page is (row[place + 1] if place + 1 < len(row) else None)
        for page in self.outside:
            assert page.prev_free_page is page.next_free_page is None
        assert [page.page_id for page in self.other.get_all_free_pages()] == [30, 31]


def _same(pages: list[Any], others: list[Any]) -> bool:
    return len(pages) == len(others) and all(page is other for page, other in zip(pages, others, strict=True))


def _among(page: Any, pages: list[Any]) -> bool:
    return any(page is other for other in pages)


class SpecQueueMachine(QueueMachine):
    package: ClassVar[ModuleType] = spec


class FastQueueMachine(QueueMachine):
    package: ClassVar[ModuleType] = fast


SpecQueueMachine.TestCase.settings = FastQueueMachine.TestCase.settings = settings(max_examples=40)
TestSpecQueue = SpecQueueMachine.TestCase
TestFastQueue = FastQueueMachine.TestCase


def test_pool_2_links_come_from_the_queue_only(package: ModuleType) -> None:
    page = package.CachePage(1)
    with pytest.raises(ValueError, match=r"prev_free_page and next_free_page.*\[POOL-2\]"):
        package.CachePage(2, prev_free_page=page)
    with pytest.raises(ValueError, match=r"\[POOL-2\]"):
        package.CachePage(2, next_free_page=page)
    with pytest.raises(AttributeError):
        page.prev_free_page = page


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
