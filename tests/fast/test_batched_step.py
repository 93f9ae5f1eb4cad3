"""MAN-11: the batched step is the single calls in order, over any groups, with pages enough or not."""

import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest

from kvproof import fast, spec
from kvproof.conformance.backends.loading import load_backend
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.search.runner import run_machine
from kvproof.fast.step import batched_step, small_step

from ..cache_groups import full, window
from ..strategies import PlainRequest


@pytest.mark.parametrize(
    ("machine", "few"), [("batch", 0), ("batch", 4), ("swap", 0)], ids=["arrays", "some as arrays", "swapped as well"]
)
def test_man_11_the_suite_sees_no_difference_where_steps_are_arrays(machine: str, few: int) -> None:
    """Steps of small worlds touch so few pages that they are served in a loop; here as those of many requests are."""
    with mock.patch.object(batched_step, "FEW", few):
        report = run_machine(MACHINES[machine], load_backend("kvproof.fast"), seed=few, effort=0.3)
    assert not report.deviations


@pytest.mark.parametrize("tabled", [False, True])
def test_man_11_a_page_is_told_of_who_took_it(tabled: bool) -> None:
    """Right after admission it is not worked out yet who needs one: here it is the second request."""
    manager, tables = fast.CacheManager(10, [full(4)], 16), fast.MultiGroupPageTable(2, 16, 8, [4])
    for row, length in enumerate((5, 4)):
        manager.allocate_slots(fast.Request(f"r{row}", list(range(length))), length)
        tables.add_row(manager.get_page_ids(f"r{row}"), row)
    options: dict[str, Any] = {"tables": tables, "rows": [0, 1]} if tabled else {}
    batch = manager.allocate_slots_batch([0, 1], [5, 4], 1, **options)
    assert [batch.get_page_ids(place) for place in (0, 1)] == [([],), ([4],)]
    assert [offsets.tolist() for offsets in batch.offsets] == [[0, 0, 1]]


# -- Refusals (R1) --------------------------------------------------------------------------------


class Ready:
    """Two live requests of 4 and 3 tokens, pages of 2, with their rows."""

    def __init__(self) -> None:
        self.manager = fast.CacheManager(10, [full(2)], 8)
        self.tables = fast.MultiGroupPageTable(3, 8, 8, [2])
        for row, tokens in enumerate(([1, 2, 3, 4], [1, 2, 9])):
            request = spec.Request("ab"[row], tokens)
            self.manager.allocate_slots(request, len(tokens))
            self.tables.add_row(self.manager.get_page_ids(request.request_id), row)


@pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])
@pytest.mark.parametrize("few", [small_step.FEW, 0])
@pytest.mark.parametrize(
    ("token", "kind"),
    [
        (True, TypeError),
        (1.5, TypeError),
        ("x", TypeError),
        (None, TypeError),
        (2**31, ValueError),
        (-(2**31) - 1, ValueError),
    ],
)
def test_r1_a_page_with_a_token_that_is_none(package: Any, few: int, token: Any, kind: type[Exception]) -> None:
    """In the second of two requests that list their tokens and fill a page; the first gets nothing either."""
    manager = package.CacheManager(10, [full(2)], 8)
    requests = [PlainRequest(name, [1, 2, 3]) for name in "ab"]
    for request in requests:
        manager.allocate_slots(request, 3)
        request.grow([4])
    requests[1].all_token_ids[3] = token

    def seen() -> Any:
        pool = manager.page_pool
        return [manager.get_page_ids(name) for name in "ab"], list(pool.cached_page_hash_to_page), manager.usage

    before = seen()
    with mock.patch.object(batched_step, "FEW", few):
        with pytest.raises(kind, match=r"all_token_ids.*\[R1\]"):
            manager.allocate_slots_batch([0, 1], [3, 3], 1)
        assert seen() == before
        manager.check()
        requests[1].all_token_ids[3] = np.int64(4)
        assert manager.allocate_slots_batch([0, 1], [3, 3], 1).num_granted == 2
    assert manager.get_computed_pages(PlainRequest("c", [1, 2, 3, 4, 5], status=None))[1] == 4


def test_man_11_rows_named_again_are_rows_of_these_tables() -> None:
    at = Ready()
    few = fast.MultiGroupPageTable(1, 8, 8, [2])
    for computed in ([4, 3], [5, 4]):
        at.manager.allocate_slots_batch([0, 1], computed, 1, tables=at.tables, rows=[0, 1])
    with pytest.raises(IndexError, match=r"TAB-2"):
        at.manager.allocate_slots_batch([0, 1], [6, 5], 1, tables=few, rows=[0, 1])
    at.manager.allocate_slots_batch([0, 1], [6, 5], 1, tables=at.tables, rows=[0, 1])
    with pytest.raises(ValueError, match=r"rows=\[0, 1\] must be 1 different rows \[MAN-11\]"):
        at.manager.allocate_slots_batch([0], [7], 1, tables=at.tables, rows=[0, 1])


def test_man_11_slots_named_again_are_read_again() -> None:
    """What is known of the slots of the step before is that they exist and differ, not that they are live."""
    at = Ready()
    slots = np.array([0, 1])
    for computed in ([4, 3], [5, 4]):
        at.manager.allocate_slots_batch(slots, computed, 1)
    slots[1] = 0  # the same array
    with pytest.raises(ValueError, match=r"slots=\[0, 0\] names a slot twice \[MAN-11\]"):
        at.manager.allocate_slots_batch(slots, [6, 6], 1)
    live, slots = at.manager.coordinator.live, np.array([0, 1])
    request = live.requests[1]
    assert request is not None
    at.manager.free(request)
    with pytest.raises(IndexError, match=r"slot 1 \[MAN-11\]"):
        at.manager.allocate_slots_batch([0, 1], [6, 5], 1)
    for count in (-1, live.num_slots[1], live.num_computed[1]):  # nor that it has what a slot without a request has
        with pytest.raises(IndexError, match=r"slot 1 \[MAN-11\]"):
            at.manager.allocate_slots_batch(slots, np.array([6, count]), 1)
    at.manager.allocate_slots(fast.Request("c", [1]), 1)
    assert at.manager.allocate_slots_batch([0, 1], [6, 1], 1).num_granted == 2
    at.manager.check()


# -- Cost (MAN-11) --------------------------------------------------------------------------------


def _calls(act: Callable[[], object]) -> int:
    """How many Python and C functions are called meanwhile."""
    calls = 0

    def count(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        act()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("mix", [["full"], ["full", "window"]], ids=["full", "full and window"])
def test_man_11_a_step_costs_what_crosses_a_boundary(mix: list[str]) -> None:
    """Counted in calls: not the requests, nor their contexts, but those that need or fill a page."""
    kinds = {"full": full(16), "window": window(16, 64)}

    def step_calls(num_requests: int, context: int, num_crossing: int) -> int:
        manager = fast.CacheManager(num_requests * (context // 8 + 8), [kinds[kind] for kind in mix], 1 << 16)
        for number in range(num_requests):
            tokens = np.arange(context + (15 if number < num_crossing else 5), dtype=np.int32) + number
            manager.allocate_slots(fast.Request(str(number), tokens), len(tokens))
        computed = np.array([manager.coordinator.live.num_promised[slot] for slot in range(num_requests)])
        slots = np.arange(num_requests)
        live = [request for request in manager.coordinator.live.requests if isinstance(request, fast.Request)]
        manager.allocate_slots_batch(slots, computed - 1, 1)  # the columns are worked out
        for request in live:
            request.append(7)
        return _calls(lambda: manager.allocate_slots_batch(slots, computed, 1))

    quiet = step_calls(16, 64, 0)
    assert step_calls(256, 64, 0) == step_calls(16, 1024, 0) == quiet
    some, many = step_calls(256, 64, 8), step_calls(256, 64, 64)
    assert quiet < some < many < some + 56 * 40 * len(mix)
