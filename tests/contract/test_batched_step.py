"""MAN-11, MAN-12: batched steps by example; their rows and their refusals."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ..cache_groups import full, states, window
from ..strategies import PlainRequest


def _rows(tables: Any, row: int) -> list[list[int]]:
    return [table.page_table_cpu[row, : table.num_pages_per_row[row]].tolist() for table in tables.page_tables]


def _manager(package: ModuleType, num_pages: int = 12) -> tuple[Any, list[PlainRequest]]:
    """Requests a, b and c in slots 0, 1 and 2, with 2 of their 9 tokens computed and a page in each of two groups."""
    manager = package.CacheManager(num_pages, [full(2), window(2, 3)], 20, hash_seed=b"s", retention_interval=None)
    requests = [PlainRequest(name, [place] * 9) for place, name in enumerate("abc")]
    for request in requests:
        assert manager.allocate_slots(request, 2) is not None
    return manager, requests


def _tables(package: ModuleType, manager: Any, max_model_len: int = 20) -> Any:
    """Tables whose row i names the pages of slot i."""
    tables = package.MultiGroupPageTable(4, max_model_len, 64, [2, 2])
    for place, name in enumerate("abc"):
        tables.append_row(manager.get_page_ids(name), place)
    return tables


def test_a_request_that_does_not_fit_keeps_none_from_going_on(package: ModuleType) -> None:
    """MAN-11: five pages are free: b wants six and gets none, a and c get theirs, in the order of the call."""
    manager, _ = _manager(package)
    batch = manager.allocate_slots_batch([2, 1, 0], [2, 2, 2], [2, 6, 2])
    assert batch.granted.tolist() == [True, False, True]
    assert [page_ids.tolist() for page_ids in batch.page_ids] == [[7, 9], [8, 10]]
    assert [offsets.tolist() for offsets in batch.offsets] == [[0, 1, 1, 2], [0, 1, 1, 2]]
    assert [array.dtype.name for array in batch.page_ids] == ["int32", "int32"]
    assert [array.dtype.name for array in (batch.granted, *batch.offsets)] == ["bool", "int64", "int64"]
    assert batch.get_page_ids(1) == ([], [])
    with pytest.raises(IndexError, match=r"place=3 .*\[MAN-11\]$"):
        batch.get_page_ids(3)
    manager.check()


def test_what_a_request_without_room_no_longer_needs_is_given_back(package: ModuleType) -> None:
    """MAN-8, MAN-11: a has no room, but its window moved on; b gets the page that it gave back."""
    manager, _ = _manager(package, num_pages=10)
    assert manager.allocate_slots_batch([0], [2], [2]).num_granted == 1
    assert manager.get_page_ids("a") == ([1, 7], [2, 8])
    batch = manager.allocate_slots_batch([0, 1], [4, 2], [16, 2])
    assert batch.granted.tolist() == [False, True]
    assert manager.get_page_ids("a") == ([1, 7], [0, 8])
    assert batch.get_page_ids(1) == ([9], [2])


@pytest.mark.parametrize(("eviction", "regrets"), [("lru", 0), ("reuse", 1)])
def test_a_policy_learns_the_same_of_a_batched_step_as_of_single_calls(
    package: ModuleType, eviction: Any, regrets: int
) -> None:
    """MAN-11, EVICT-1: b evicts the content that a stores again, before or after it; a policy learns of it later."""
    seen = []
    for batched in (True, False):
        manager = package.CacheManager(4, [full(2)], 8, hash_seed=b"s", eviction=eviction)
        gone, a, b = (PlainRequest(*given) for given in (("gone", [0, 0]), ("a", [0, 0]), ("b", [1, 1, 1])))
        for request, tokens in ((gone, 2), (a, 1), (b, 2)):
            assert manager.allocate_slots(request, tokens) is not None
            if request is gone:
                manager.free(gone)
        if batched:
            assert manager.allocate_slots_batch([0, 1], [1, 2], [1, 1]).num_granted == 2
        else:
            a.num_computed_tokens, b.num_computed_tokens = 1, 2
            assert None not in [manager.allocate_slots(request, 1) for request in (a, b)]
        assert [manager.get_page_ids(name) for name in "ab"] == [([2],), ([3, 1],)]
        manager.free(a)
        seen.append(manager.page_pool.eviction_counters.regrets)
    assert seen == [regrets, regrets]


def test_slots_are_the_lowest_free_numbers(package: ModuleType) -> None:
    """MAN-11."""
    manager, requests = _manager(package, num_pages=20)
    assert [manager.slot_of(name) for name in "abc"] == [0, 1, 2]
    manager.free(requests[1])
    manager.free(requests[0])
    manager.allocate_slots(PlainRequest("d", [4]), 1)
    manager.allocate_slots(PlainRequest("e", [5]), 1)
    assert [manager.slot_of(name) for name in "dec"] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"request_id='a' is not live \[R1\]$"):
        manager.slot_of("a")
    with pytest.raises(TypeError, match=r"request_id=0 must be a str \[R1\]$"):
        manager.slot_of(0)


def test_one_number_is_for_all_and_none_is_no_error(package: ModuleType) -> None:
    """MAN-11: counts may be one int; a step of no requests does nothing."""
    manager, _ = _manager(package)
    assert manager.allocate_slots_batch([], [], 1).granted.tolist() == []
    assert manager.allocate_slots_batch(np.array([0, 1]), np.array([2, 2]), 1, 1).num_granted == 2
    assert manager.get_page_ids("a") == ([1, 7], [2, 8])


def test_copies_of_a_step_are_noted_request_by_request(package: ModuleType) -> None:
    """MAN-13."""
    manager = package.CacheManager(20, [states(2), states(2)], 20, hash_seed=b"s")
    for name in "ab":
        manager.allocate_slots(PlainRequest(name, list(range(9))), 2)
    assert manager.allocate_slots_batch([1, 0], [2, 2], 1).num_granted == 2
    assert [tuple(copy) for copy in manager.take_page_copies()] == [(0, 3, 5), (1, 4, 6), (0, 1, 7), (1, 2, 8)]


Arguments = Callable[[ModuleType, Any], dict[str, Any]]


def _given(**wrong: Any) -> Arguments:
    return lambda *_: wrong


REFUSED: dict[str, tuple[Arguments, type[Exception], str]] = {
    "new tokens beyond all": (_given(num_new_tokens=[1, 2**70]), ValueError, r"\[MAN-2\]"),
    "new tokens that are true": (_given(num_new_tokens=True), TypeError, r"num_new_tokens=True .* int \[R1\]"),
    "more tokens than a model has": (_given(num_new_tokens=[1, 19]), ValueError, r"max_model_len=20 \[MAN-2\]"),
    "a slot without a request, and numbers for two": (_given(slots=[3]), IndexError, r"slots: .* 3 \[MAN-11\]"),
    "a slot without a request, twice": (_given(slots=[3, 3]), IndexError, r"slots: .* 3 \[MAN-11\]"),
    "a slot without a request, and a number that is wrong": (
        _given(slots=[0, 3], num_new_tokens=0),
        IndexError,
        r"slots: .* 3 \[MAN-11\]",
    ),
    "tables of other groups": (
        lambda package, _: {"tables": package.MultiGroupPageTable(4, 20, 64, [2]), "rows": [0, 1]},
        ValueError,
        r"tables has 1 groups, the manager 2 \[MAN-11\]",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_one_fault_refuses_the_whole_step(package: ModuleType, fault: str) -> None:
    """R1, MAN-11: before anything changed, rows included."""
    manager, _ = _manager(package, num_pages=20)
    arguments, kind, message = REFUSED[fault]
    wrong: dict[str, Any] = {"slots": [0, 1], "num_computed_tokens": [2, 2], "num_new_tokens": 1} | arguments(
        package, manager
    )
    before, tables = manager.snapshot(), wrong.get("tables")
    whole = tables if isinstance(tables, package.MultiGroupPageTable) else _tables(package, manager)
    rows = [_rows(whole, row) for row in range(4)]
    with pytest.raises(kind, match=rf"{message}$"):
        manager.allocate_slots_batch(**wrong)
    assert manager.snapshot() == before
    assert rows == [_rows(whole, row) for row in range(4)]


def test_the_first_faulty_request_is_told(package: ModuleType) -> None:
    """MAN-11: in the order of the call."""
    manager, _ = _manager(package)
    with pytest.raises(ValueError, match=r"num_computed_tokens=5: only 2 have slots"):
        manager.allocate_slots_batch([2, 0, 1], [2, 5, 2], [1, 1, 30])


def test_man_11_a_manager_without_groups(package: ModuleType) -> None:
    manager = package.CacheManager(10, [], 8)
    manager.allocate_slots(package.Request("a", [1, 2]), 2)
    batch = manager.allocate_slots_batch([0], [2], 1)
    assert (batch.num_granted, batch.page_ids, batch.offsets, batch.get_page_ids(0)) == (1, (), (), ())
