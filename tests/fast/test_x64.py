"""The classes of a cache with ``jax_enable_x64``: what they give is what they give without, to the bit."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof import fast, spec


def step_of(num_seqs: int | None = None) -> Any:
    """A step of two prompts; ``num_seqs`` by as many numbers as there are rows, if it is given."""
    table = fast.PageTable(max_num_reqs=8, max_num_pages_per_req=16, max_num_batched_tokens=32)
    builder = fast.MetadataBuilder(page_size=4, max_num_reqs=8, max_pages=16, max_num_tokens=32)
    table.add_row([1, 2, 3], row_idx=0)
    table.add_row([4], row_idx=1)
    step = builder.build(table, num_computed_tokens=[0, 0], num_scheduled_tokens=[9, 3])
    if num_seqs is None:
        return step
    return replace(step, num_seqs=jnp.asarray([num_seqs, *[-7] * 7], jnp.int32))


def life(kv_dtype: str) -> list[Any]:
    """All that a view does, and what it leaves, as numpy arrays."""
    metadata = fast.RaggedPagesCacheMetaData.create(
        None, fast.AxisRules(), kv_dtype, 1, 2, 64, 64, page_size=4, budget_bytes=2**16, slot_scales=kv_dtype == "int8"
    )
    cache = fast.RaggedPagesCache.init_cache(None, metadata, fast.AxisRules())
    step = step_of()
    draw = np.random.default_rng(0).standard_normal
    rows = len(step.slot_mapping)
    queries, keys, values = (draw((rows, heads, 64)).astype(np.float32) for heads in (4, 2, 2))
    view = cache.views[0]
    out, view = view.update_and_attend(queries, keys, values, step, window=5)
    view = view.concatenate_to_cache(keys, values, replace(step, slot_mapping=None))
    again = view.attend(queries, step, soft_cap=3.0)
    made = [out, again, view.key_pages, view.value_pages]
    cache.views[0] = view
    cache = cache.copy_pages([1], [6])
    return [np.asarray(leaf) for leaf in jax.tree.leaves([*made, *cache.export_pages([1, 6], [4, 2])])]


@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_a_view_with_numbers_of_64_bits_enabled(kv_dtype: str) -> None:
    """ATT-1, CACHE-2, CACHE-3, SWAP-2."""
    plain = life(kv_dtype)
    with jax.enable_x64(True):
        wide = life(kv_dtype)
    for left, right in zip(plain, wide, strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("package", [fast, spec])
def test_a_step_may_tell_its_number_of_sequences_in_as_many_places(package: Any) -> None:
    """R1: as the seed annotates it, `i32[S]`, of which the first counts; what has another size is refused."""
    model = (2, 64, 2, 64, 64)
    metadata = package.RaggedPagesCacheMetaData(*model, page_size=4, num_pages=16, _kvdtype_str="f32")
    draw = np.random.default_rng(0).standard_normal
    queries = draw((16, 4, 64)).astype(np.float32)

    def attended(step: Any) -> Any:
        view = package.RaggedPagesCacheView.init(None, metadata, 0, package.AxisRules())
        return np.asarray(view.attend(queries, package.RaggedPagesMetadata.from_json(step.to_json())))

    np.testing.assert_array_equal(attended(step_of(2)), attended(step_of()))
    odd = replace(step_of(), num_seqs=jnp.asarray([2, 2, 2], jnp.int32))
    with pytest.raises(ValueError, match=r"num_seqs\.shape=\(3,\) must be \(1,\)"):
        attended(odd)
