"""CACHE-5: views on several devices give what one gives.

What is written through a view, and read, the machine `views` holds both packages to.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec.layout.cache_dtypes import CODES

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


sizes = st.sampled_from([(64, 64), (8, 8), (80, 80), (64, 5), (130, 130)])


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


# -- R1 -------------------------------------------------------------------------------------------


_ROWS = _tokens(2, 8, 0)


def test_r1_rows_must_be_of_all_pools() -> None:
    mesh = _mesh(dp=2)
    view = spec.RaggedPagesCacheView.init(mesh, _metadata("f32", 2, (8, 8), mesh=mesh), 0, RULES)
    with pytest.raises(ValueError, match=r"can't be split in 2 .*\[CACHE-5\]"):
        view.concatenate_to_cache(_ROWS[:5], _ROWS[:5], _step(2))
    with pytest.raises(ValueError, match=r"num_seqs.shape=\(1,\) .*\[CACHE-5\]"):
        view.concatenate_to_cache(_ROWS, _ROWS, _step())
