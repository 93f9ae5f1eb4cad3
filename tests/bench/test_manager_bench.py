"""What no row of the performance table has: decode steps in single calls, and a window beside full attention."""

from typing import Any

import pytest

from kvproof import fast

from .workloads import group, manager, tokens

LONG = 32_769
HYBRID = [group(), fast.CacheGroupSpec(fast.SlidingWindowSpec(16, 8, 128, "float32", 128))]


@pytest.mark.parametrize("groups", [[group()], HYBRID], ids=["full", "full and window"])
def test_decode_step_in_single_calls(benchmark: Any, groups: list[fast.CacheGroupSpec]) -> None:
    served = manager(groups=groups)
    requests = [fast.Request(str(i), tokens(512 + i % 16, i)) for i in range(256)]
    for request in requests:
        served.allocate_slots(request, request.num_tokens)

    def grow() -> None:
        for request in requests:
            request.num_computed_tokens = request.num_tokens
            request.append(7)

    def step() -> None:
        allocate = served.allocate_slots
        for request in requests:
            allocate(request, 1)

    benchmark.pedantic(step, setup=grow, rounds=64)


def test_look_up_over_a_window_as_well(benchmark: Any) -> None:
    served = manager(groups=HYBRID)
    prompt = tokens(LONG)
    first = fast.Request("first", prompt)
    served.allocate_slots(first, LONG)
    served.free(first)
    second = fast.Request("second", prompt)
    assert served.get_computed_pages(second)[1] == LONG - 1
    benchmark.pedantic(served.get_computed_pages, args=(second,), rounds=300, warmup_rounds=5)
