"""CACHE-1: how many pages of the specification's caches fit, TAB-4: whose table a step is."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec.layout.cache_dtypes import CODES

MetaData = spec.RaggedPagesCacheMetaData


def _mesh(**devices: int) -> Any:
    return SimpleNamespace(shape=devices)


@given(
    version=st.sampled_from(["v2", "v3", "seq_on_lane"]),
    code=st.sampled_from(sorted(CODES)),
    layers=st.integers(1, 3),
    heads=st.integers(1, 9),
    sizes=st.sampled_from([(64, 64), (32, 32), (96, 96), (128, 64), (64, 200), (256, 256)]),
    page_size=st.integers(1, 20),
    head_shards=st.integers(1, 3),
    page_shards=st.integers(1, 3),
    slot_scales=st.booleans(),
    budget=st.integers(1, 10**7),
)
def test_cache_1_the_pages_fit_and_one_more_would_not(
    version: str,
    code: str,
    layers: int,
    heads: int,
    sizes: tuple[int, int],
    page_size: int,
    head_shards: int,
    page_shards: int,
    slot_scales: bool,
    budget: int,
) -> None:
    """By the arrays that the views really hold, each split over its devices."""
    slot_scales = slot_scales and CODES[code].itemsize == 1
    mesh, rules = _mesh(tp=head_shards, dp=page_shards, other=7), spec.AxisRules()
    arguments = (mesh, rules, code, layers, heads * head_shards, 100, None, *sizes)
    options: dict[str, Any] = {"page_size": page_size, "version": version, "slot_scales": slot_scales}
    if budget < 2 * MetaData.create(*arguments, **options, budget_bytes=10**9).page_bytes:
        with pytest.raises(ValueError, match=r"\[CACHE-1\]"):
            MetaData.create(*arguments, **options, budget_bytes=budget)
        return
    metadata = MetaData.create(*arguments, **options, budget_bytes=budget)
    small = metadata.replace(num_pages=2)
    view = spec.RaggedPagesCacheView.init(mesh, small, 0, rules)
    assert isinstance(view.kv_pages, spec.ScaledPages) == (slot_scales or code == "int8")
    arrays = view.kv_pages if isinstance(view.kv_pages, spec.ScaledPages) else [view.kv_pages]
    device_bytes = layers * sum(array.nbytes for array in arrays) // head_shards // page_shards
    page_bytes, left = divmod(device_bytes, 2)
    assert left == 0
    assert metadata.page_bytes == page_bytes
    assert metadata.num_pages * page_bytes <= budget < (metadata.num_pages + 1) * page_bytes
    assert (metadata.num_head_shards, metadata.num_page_shards) == (head_shards, page_shards)


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
