"""CACHE-1: the budget of the specification's devices, TAB-4: whose table a step is.

How many pages fit, the machine `sizing` works out by itself.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from kvproof import spec


def _device(stats: dict[str, int] | None) -> Any:
    return SimpleNamespace(memory_stats=lambda: stats)


def test_cache_1_the_budget_is_the_least_of_the_devices() -> None:
    devices = [_device(None), _device({"bytes_limit": 1000, "bytes_in_use": 100}), _device({"bytes_limit": 2000})]
    assert spec.per_device_hbm_budget_bytes(0.5, "free", 100, devices) == 400
    assert spec.per_device_hbm_budget_bytes(0.5, "total", 100, devices) == 300
    assert spec.per_device_hbm_budget_bytes() == 4 * 2**30
    with pytest.raises(ValueError, match=r"safety_margin=5000: .*\[CACHE-1\]"):
        spec.per_device_hbm_budget_bytes(0.5, "free", 5000, devices)


def test_tab_7_a_step_is_the_tables_at_the_time() -> None:
    """What the host does with the table afterwards shows nowhere in it (TAB-4)."""
    table = spec.PageTable(2, 2, 8)
    table.add_row([1, 2], 0)
    made = spec.MetadataBuilder(2, 2, 2, 8).build(table, [1], [3])
    before = made.to_json()
    table.add_row([5, 6], 0)
    table.commit(2)
    assert made.to_json() == before
