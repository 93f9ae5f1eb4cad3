"""What a cache is made of and how many pages fit (CACHE-1), against the specification's answers."""

import json
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.fast.cache import pool_size
from kvproof.fast.cache.cache_metadata import RaggedPagesCacheMetaData
from kvproof.fast.cache.partitions import AxisRules
from kvproof.fast.layout import cache_layout
from kvproof.spec.clauses import clause_of_message

DTYPES = ["f32", "bf16", "f16", "f8_e4m3", "f8_e5m2", "int8"]


class Mesh(NamedTuple):
    """As much of a mesh as sizes need."""

    shape: dict[str, int]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the class and the clause by which it was refused."""
    try:
        return call()
    except (TypeError, IndexError, ValueError) as error:
        return type(error), clause_of_message(str(error))


def refused(outcome: Any) -> bool:
    return isinstance(outcome, tuple) and outcome[0] in (TypeError, IndexError, ValueError)


def described(call: Callable[[], Any]) -> Any:
    """All that metadata tells."""
    made = outcome(call)
    if isinstance(made, tuple):
        return made
    names: tuple[str, ...] = (
        "is_v2",
        "is_v3",
        "kvdtype",
        "kv_head_packing",
        "storage_head_dim",
        "storage_num_combined_kv_heads",
    )
    names += ("storage_num_kv_groups", "layer_page_bytes", "page_bytes")
    told = {name: getattr(made, name) for name in names}
    return made.to_dict(), told, outcome(made.get_shape_and_axes), made.get_max_num_seqs(), made.get_padded_num_slices()


sizes = st.integers(1, 300)
head_dims = st.sampled_from([1, 32, 63, 64, 65, 80, 96, 128, 129, 192, 256])
worlds = st.fixed_dictionaries(
    {
        "kvdtype": st.sampled_from([*DTYPES, "bfloat16", "float8_e4m3fn", "float64", 3]),
        "num_hidden_layers": st.integers(0, 4),
        "num_kv_heads": st.integers(1, 9),
        "max_model_length": st.integers(1, 5000),
        "kv_head_dim_size": st.none() | head_dims,
        "k_headdim": st.none() | head_dims,
        "v_headdim": st.none() | head_dims,
        "page_size": st.sampled_from([1, 8, 16, 33, 128]),
        "version": st.sampled_from(["v2", "v3", "v4"]),
        "budget_bytes": st.integers(0, 1 << 24),
        "max_num_tokens": st.sampled_from([-1, 0, 1, 64, 4096]),
        "max_num_reqs": st.sampled_from([-1, 1, 7]),
        "slot_scales": st.booleans(),
    }
)


@given(world=worlds, tp=st.sampled_from([1, 2, 3]), dp=st.sampled_from([1, 2]))
def test_metadata_is_the_specifications(world: dict[str, Any], tp: int, dp: int) -> None:
    """CACHE-1, CACHE-5: every size, shape and refusal; bytes are those of one device."""
    mesh = Mesh({"dp": dp, "tp": tp, "other": 5})
    ours = described(lambda: RaggedPagesCacheMetaData.create(mesh, AxisRules(), **world))
    theirs = described(lambda: spec.RaggedPagesCacheMetaData.create(mesh, spec.AxisRules(), **world))
    if refused(ours) and refused(theirs):  # of several faults either may be named
        return
    assert ours == theirs


@given(world=worlds)
def test_the_budget_is_used_and_one_more_page_would_not_fit(world: dict[str, Any]) -> None:
    """CACHE-1: counted over the arrays that a view allocates, with scales and the null page."""
    try:
        metadata = RaggedPagesCacheMetaData.create(None, AxisRules(), **world)
    except (TypeError, ValueError):
        return
    (num_pages, page_size, *row), _ = metadata.get_shape_and_axes()
    slot = metadata.kvdtype.itemsize
    for size in row:
        slot *= size
    if metadata.slot_scales:
        slot += 4 * 2 * metadata.num_kv_heads
    page = metadata.num_hidden_layers * page_size * slot
    assert num_pages * page <= world["budget_bytes"] < (num_pages + 1) * page


FIELDS: dict[str, list[Any]] = {
    "num_pages": [-1, 0, 1, 2, 2**31, True, 2.0],
    "page_size": [0, 16, "16"],
    "hbm_utilization": [0, 0.5, 1, 1.5, float("nan"), "all", None],
    "max_num_tokens": [-2, -1, 0, 5],
    "num_head_shards": [0, 1, 3, 4],
    "num_page_shards": [0, 2],
    "version": ["v2", "V3", 3],
    "_kvdtype_str": ["fp8_e4m3", "half", None, "int8", "bfloat16"],
    "slot_scales": [1, True, False],
    "num_hidden_layers": [0, -1, "2"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FIELDS.items() for value in values])
def test_fields_are_read_as_the_specification_reads_them(name: str, value: Any) -> None:
    """R1: what is refused, by which clause, and what a field becomes."""
    fields: dict[str, Any] = {"num_hidden_layers": 2, "max_model_length": 100, "num_kv_heads": 4}
    fields |= {"k_headdim": 64, "v_headdim": 64, name: value}
    ours = outcome(lambda: RaggedPagesCacheMetaData(**fields).to_dict())
    assert ours == outcome(lambda: spec.RaggedPagesCacheMetaData(**fields).to_dict())


@given(world=worlds)
def test_documents_are_read_by_both_packages(world: dict[str, Any]) -> None:
    """SEC-3: one format, in both directions; equal metadata is equal, and hashed alike."""
    try:
        metadata = RaggedPagesCacheMetaData.create(None, AxisRules(), **world)
    except (TypeError, ValueError):
        return
    theirs = spec.RaggedPagesCacheMetaData.from_json(metadata.to_json())
    again = RaggedPagesCacheMetaData.from_json(theirs.to_json(indent=1))
    assert again == metadata
    assert hash(again) == hash(metadata)


GOOD = RaggedPagesCacheMetaData(2, 100, 4, 64, 64, num_pages=8).to_dict()


@given(
    damage=st.sampled_from(
        [
            GOOD | {"format": 2},
            GOOD | {"format": True},
            GOOD | {"kind": "RaggedPagesCache"},
            GOOD | {"more": 1},
            {name: value for name, value in GOOD.items() if name != "page_size"},
            GOOD | {"page_size": "16"},
            GOOD | {"page_size": 0},
            GOOD | {"_kvdtype_str": "__import__"},
            [],
            None,
        ]
    )
)
def test_damaged_documents_are_refused(damage: Any) -> None:
    """SEC-3."""
    ours = outcome(lambda: RaggedPagesCacheMetaData.from_dict(damage))
    assert ours == outcome(lambda: spec.RaggedPagesCacheMetaData.from_dict(damage))
    assert isinstance(ours, tuple)
    for text in ("", "{", "[" * 100_000, 7, json.dumps(damage)):
        with pytest.raises((TypeError, ValueError), match=r"\[(SEC-3|R1)\]$"):
            RaggedPagesCacheMetaData.from_json(text)  # type: ignore[arg-type]


# -- Helpers --------------------------------------------------------------------------------------

anything = st.integers(-3, 1 << 26) | st.sampled_from([True, 1.5, None, 0, 1, 2**40])


@given(name=st.sampled_from(["align_to_multiple", "previous_power_of_2"]), value=anything, more=anything)
def test_formulas_are_the_specifications(name: str, value: Any, more: Any) -> None:
    arguments = (value, more) if name == "align_to_multiple" else (value,)
    ours = outcome(lambda: getattr(cache_layout, name)(*arguments))
    assert ours == outcome(lambda: getattr(spec, name)(*arguments))


@given(value=anything)
def test_slices_at_a_time_are_the_specifications(value: Any) -> None:
    ours = outcome(lambda: cache_layout.get_num_slices_per_kv_cache_update_page(value))
    assert ours == outcome(lambda: spec.get_num_slices_per_kv_cache_update_page(value))


@given(
    page_size=st.integers(0, 40), heads=st.integers(0, 9), head_dim=head_dims, dtype=st.sampled_from([*DTYPES, "x", 1])
)
@example(page_size=16, heads=8, head_dim=96, dtype="bf16")  # a third of a row is padding
def test_page_bytes_are_the_specifications(page_size: int, heads: int, head_dim: int, dtype: Any) -> None:
    """CACHE-1: padding counts."""
    ours = outcome(lambda: cache_layout.get_page_size_bytes(page_size, heads, head_dim, dtype))
    assert ours == outcome(lambda: spec.get_page_size_bytes(page_size, heads, head_dim, dtype))
    assert outcome(lambda: cache_layout.get_dtype_packing(dtype)) == outcome(lambda: spec.get_dtype_packing(dtype))


def test_page_bytes_by_hand() -> None:
    """CACHE-1: the cases in which a sizing without padding takes too much memory."""
    assert cache_layout.get_page_size_bytes(16, 8, 96, jnp.bfloat16) == 16 * 2 * 8 * 128 * 2
    assert cache_layout.get_page_size_bytes(16, 8, 32, jnp.float32) == 16 * 2 * 8 * 128 * 4
    assert cache_layout.get_page_size_bytes(16, 1, 128, jnp.float8_e4m3fn) == 16 * 4 * 128
    assert cache_layout.get_page_size_bytes(16, 3, 64, jnp.bfloat16) == 16 * 4 * 128 * 2


@given(budget=st.integers(-1, 10_000) | st.just(1.5), groups=st.lists(st.integers(0, 900), max_size=4) | st.just("7"))
def test_pools_are_sized_as_the_specification_sizes_them(budget: Any, groups: Any) -> None:
    """CACHE-1: the largest page counts, and each group's waste is told."""
    ours = outcome(lambda: pool_size.size_pool(budget, groups))
    assert ours == outcome(lambda: spec.size_pool(budget, groups))
    if isinstance(ours, spec.PoolSize):
        assert ours.num_pages * ours.page_bytes + ours.unused_bytes == budget
        assert ours.group_waste == tuple(max(groups) - size for size in groups)


class Device(NamedTuple):
    limit: int
    used: int

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": self.limit, "bytes_in_use": self.used}


@given(
    util=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, 1.1, True, "x"]),
    mode=st.sampled_from(["free", "total", "all", 1]),
    margin=st.sampled_from([-1, 0, 100, 5000]),
    devices=st.lists(st.builds(Device, st.integers(0, 1 << 20), st.integers(0, 5000)), min_size=1, max_size=3),
)
def test_budgets_are_the_specifications(util: Any, mode: Any, margin: int, devices: list[Device]) -> None:
    """CACHE-1: the device with the least counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_size, "jax", SimpleNamespace(local_devices=lambda: devices))
        ours = outcome(lambda: pool_size.per_device_hbm_budget_bytes(util, mode, margin))
    assert ours == outcome(lambda: spec.per_device_hbm_budget_bytes(util, mode, margin, devices=devices))


def test_devices_that_do_not_tell_share_the_hosts_memory() -> None:
    """CACHE-1: eight devices on one CPU must not each count all of its memory."""
    budget = pool_size.per_device_hbm_budget_bytes(safety_margin=0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < budget * len(jax.local_devices()) <= memory
