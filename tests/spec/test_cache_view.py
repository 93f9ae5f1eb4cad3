"""CACHE-2 to CACHE-5 by views: what is written is read, on one device and on several; and their JSON."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec.layout.cache_dtypes import CODES, as_bits

PAGE = 3
RULES = spec.AxisRules()


def _mesh(tp: int = 1, dp: int = 1) -> Any:
    return SimpleNamespace(shape={"tp": tp, "dp": dp})


def _metadata(code: str, heads: int, sizes: tuple[int, int], version: str = "v3", mesh: Any = None, **more: Any) -> Any:
    return spec.RaggedPagesCacheMetaData.create(
        mesh, RULES, code, 2, heads, 12, None, *sizes, page_size=PAGE, version=version, budget_bytes=10**8, **more
    ).replace(num_pages=6)


def _step(pools: int = 1, slices: bool = False) -> Any:
    """Two sequences, of 4 + 1 and 0 + 3 tokens, in a batch of 6 rows."""
    table = spec.PageTable(3, 4, 6)
    table.add_row([4, 1], 0)
    table.add_row([5], 1)
    step = spec.MetadataBuilder(PAGE, 3, 4, 6, slices=slices).build(table, [4, 0], [1, 3])
    return spec.RaggedPagesMetadata.stack([step] * pools)


def _tokens(heads: int, size: int, seed: int, tokens: int = 6) -> Any:
    return np.random.default_rng(seed).normal(size=(tokens, heads, size)).astype(np.float32)


WHERE = [(1, 1), (5, 0), (5, 1), (5, 2)]
"""Page and offset of the four tokens of `_step`."""

sizes = st.sampled_from([(64, 64), (8, 8), (80, 80), (64, 5), (130, 130)])


@given(
    code=st.sampled_from(["f32", "bf16", "f16"]),
    heads=st.integers(1, 4),
    sizes=sizes,
    version=st.sampled_from(["v2", "v3", "seq_on_lane"]),
    how=st.sampled_from(["slots", "slices", "table", "batch"]),
)
def test_cache_2_what_is_written_is_read(code: str, heads: int, sizes: tuple[int, int], version: str, how: str) -> None:
    metadata = _metadata(code, heads, sizes, version)
    view = spec.RaggedPagesCacheView.init(None, metadata, 1, RULES)
    keys, values = _tokens(heads, sizes[0], 0), _tokens(heads, sizes[1], 1)
    step = _step(slices=how == "slices")
    if how == "table":
        step = step.replace(slot_mapping=None)
    lead = (2, 3) if how == "batch" else (6,)
    after = view.concatenate_to_cache(keys.reshape(*lead, heads, -1), values.reshape(*lead, heads, -1), step)
    for read, given_rows in ((after.key_pages, keys), (after.value_pages, values)):
        wanted = np.zeros((6, PAGE, *given_rows.shape[1:]), CODES[code])
        for token, where in enumerate(WHERE):
            wanted[where] = given_rows[token].astype(CODES[code])
        assert read.dtype == wanted.dtype
        assert np.array_equal(as_bits(read), as_bits(wanted))
    assert not as_bits(view.kv_pages).any(), "a view is never changed"
    flat = after.flattened_kv_pages()
    assert flat.shape == (6, PAGE, metadata.storage_num_combined_kv_heads, metadata.storage_head_dim)
    pages = after.kv_pages
    assert flat.tobytes() == (np.moveaxis(pages, -1, 1) if version == "seq_on_lane" else pages).tobytes()


@settings(max_examples=30)
@given(
    code=st.sampled_from(sorted(CODES)),
    sizes=sizes,
    version=st.sampled_from(["v2", "v3", "seq_on_lane"]),
    tp=st.sampled_from([1, 2, 3]),
    dp=st.sampled_from([1, 2]),
    slot_scales=st.booleans(),
    rule=st.fixed_dictionaries({}, optional={"window": st.integers(1, 5), "soft_cap": st.just(2.0)}),
)
def test_cache_5_several_devices_give_what_one_gives(
    code: str, sizes: tuple[int, int], version: str, tp: int, dp: int, slot_scales: bool, rule: Any
) -> None:
    """Heads, and pools with ids of their own, each with rows of its own; also where the parts' heads are padded."""
    scales = {"slot_scales": slot_scales and CODES[code].itemsize == 1}
    heads = 6
    queries = [_tokens(2 * heads, sizes[0], 10 + pool) for pool in range(dp)]
    keys = [_tokens(heads, sizes[0], 20 + pool) for pool in range(dp)]
    values = [_tokens(heads, sizes[1], 30 + pool) for pool in range(dp)]
    sinks = np.linspace(-1, 1, 2 * heads, dtype=np.float32)

    def run(mesh: Any, q: Any, k: Any, v: Any, pools: int) -> tuple[Any, Any, Any]:
        metadata = _metadata(code, heads, sizes, version, mesh, **scales)
        view = spec.RaggedPagesCacheView.init(mesh, metadata, 0, RULES)
        out, fused = view.update_and_attend(q, k, v, _step(pools), sinks=sinks, **rule)
        updated = view.concatenate_to_cache(k, v, _step(pools))
        assert updated.attend(q, _step(pools), sinks=sinks, **rule).tobytes() == out.tobytes()
        assert updated.key_pages.tobytes() == fused.key_pages.tobytes()
        return out, fused.key_pages, fused.value_pages

    alone = [run(None, q, k, v, 1) for q, k, v in zip(queries, keys, values, strict=True)]
    together = run(_mesh(tp, dp), np.concatenate(queries), np.concatenate(keys), np.concatenate(values), dp)
    for place in range(3):
        assert together[place].tobytes() == np.concatenate([parts[place] for parts in alone]).tobytes()


@given(code=st.sampled_from(sorted(CODES)), tp=st.sampled_from([1, 2]), slot_scales=st.booleans())
def test_sec_3_views_and_caches_come_back_from_json(code: str, tp: int, slot_scales: bool) -> None:
    mesh = _mesh(tp)
    metadata = _metadata(code, 2, (8, 8), mesh=mesh, slot_scales=slot_scales and CODES[code].itemsize == 1)
    cache = spec.RaggedPagesCache.init_cache(mesh, metadata, RULES)
    cache.views[1] = cache.views[1].concatenate_to_cache(_tokens(2, 8, 0), _tokens(2, 8, 1), _step())
    again = spec.RaggedPagesCache.from_json(cache.to_json())
    assert again.metadata == metadata
    for own, view in zip(again.views, cache.views, strict=True):
        assert own.layer_index == view.layer_index
        assert own.partition_manager == RULES
        assert type(own.kv_pages) is type(view.kv_pages)
        for mine, theirs in zip(_arrays(own), _arrays(view), strict=True):
            assert mine.dtype == theirs.dtype
            assert mine.tobytes() == theirs.tobytes()
    assert again.to_dict() == cache.to_dict()


def _arrays(view: Any) -> Any:
    return view.kv_pages if isinstance(view.kv_pages, spec.ScaledPages) else [view.kv_pages]


@pytest.mark.parametrize("pools", [1, 2])
def test_man_13_pages_are_copied_in_every_layer(pools: int) -> None:
    mesh = _mesh(1, pools)
    cache = spec.RaggedPagesCache.init_cache(mesh, _metadata("int8", 1, (8, 8), mesh=mesh), RULES)
    rows = _tokens(1, 8, 0, 6 * pools)
    cache = cache.replace(views=[view.concatenate_to_cache(rows, rows, _step(pools)) for view in cache.views])
    pairs = ([1, 5, -1], [2, 0, 3])
    copied = cache.copy_pages(*(pairs if pools == 1 else ([ids] * pools for ids in pairs)))
    for view, before in zip(copied.views, cache.views, strict=True):
        for mine, theirs in zip(_arrays(view), _arrays(before), strict=True):
            for pool in range(pools):
                own, was = mine[6 * pool : 6 * (pool + 1)], theirs[6 * pool : 6 * (pool + 1)]
                assert np.array_equal(own, was[[5, 1, 1, 3, 4, 5]])
    assert spec.RaggedPagesCache([]).copy_pages([1], [2]).metadata is None
    assert cache.init_empty(1, any=2) is None


# -- R1 -------------------------------------------------------------------------------------------


_ROWS = _tokens(2, 8, 0)


def test_r1_rows_must_be_of_all_pools() -> None:
    mesh = _mesh(dp=2)
    view = spec.RaggedPagesCacheView.init(mesh, _metadata("f32", 2, (8, 8), mesh=mesh), 0, RULES)
    with pytest.raises(ValueError, match=r"can't be split in 2 .*\[CACHE-5\]"):
        view.concatenate_to_cache(_ROWS[:5], _ROWS[:5], _step(2))
    with pytest.raises(ValueError, match=r"num_seqs.shape=\(1,\) .*\[CACHE-5\]"):
        view.concatenate_to_cache(_ROWS, _ROWS, _step())
