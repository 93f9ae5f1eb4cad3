"""What is asked of a real GPU: attention, updates and both together, against float64, with poison in all that is dead.

Each check runs on whatever device it is given; that its numbers are right is seen on CPU, at small sizes.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kvproof.kernels import (
    ScaledPages,
    fused_ragged_paged_attention,
    kv_cache_update,
    mla_paged_attention,
    ragged_paged_attention,
)

from .reference import FULL, Batch, Mask, assert_close, dense_attention, make_batch, make_latent_batch, pack

__all__ = [
    "CASES",
    "SEQUENCES",
    "SMALL",
    "Case",
    "check_attention",
    "check_far_slots",
    "check_fused",
    "check_latents",
    "check_update",
]

BASIC = ((192, 128, 64), (328, 180, 255))
DECODE_KV = (18, 129, 597, 122, 64, 322, 463, 181, 1107, 123, 31, 18, 1229, 229, 87, 1328)
PREFILL_Q = (5, 15, 120, 100, 21, 32, 251, 40, 64, 99, 10, 5, 3, 120, 9, 2)
MIXED_Q = (5, 1, 120, 1, 1, 32, 251, 1, 1, 99, 1, 5, 3, 117, 1, 1)
EDGES = ((1, 0, 3, 1, 1, 2, 1), (0, 15, 16, 17, 1, 33, 64))

SEQUENCES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "basic": BASIC,
    "decode": ((1,) * len(DECODE_KV), DECODE_KV),
    "prefill": (PREFILL_Q, tuple(max(q, kv) for q, kv in zip(PREFILL_Q, DECODE_KV, strict=True))),
    "mixed": (MIXED_Q, tuple(max(q, kv) for q, kv in zip(MIXED_Q, DECODE_KV, strict=True))),
    "edges": EDGES,
    "long": ((1, 1, 7), (32_769, 5, 40_001)),
}
"""Query tokens and tokens of the sequences of a batch; the first are those that others test with."""

SMALL = ((1, 0, 5, 1), (17, 0, 19, 33))


@dataclass(frozen=True)
class Case:
    """A kind of call.

    Attributes:
        heads: query and KV heads.
        dim: the head size.
        page: slots of a page.
        version: the cache's layout.
        dtype: of the queries.
        kv_dtype: of the cache; None: that of the queries.
        scaled: whether every slot and head has a scale.
        mask: what a query reads.
        options: what else the call says.
        magnitude: what queries are multiplied by.
    """

    heads: tuple[int, int] = (32, 8)
    dim: int = 128
    page: int = 16
    version: str = "v3"
    dtype: Any = jnp.bfloat16
    kv_dtype: Any = None
    scaled: bool = False
    mask: Mask = FULL
    options: dict[str, Any] = field(default_factory=dict)
    magnitude: float = 1.0

    def batch(self, seed: int, q_lens: tuple[int, ...], kv_lens: tuple[int, ...]) -> Batch:
        return make_batch(
            np.random.default_rng(seed),
            q_lens,
            kv_lens,
            num_q_heads=self.heads[0],
            num_kv_heads=self.heads[1],
            head_dim=self.dim,
            page_size=self.page,
            version=self.version,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            scaled_pages=self.scaled,
            max_tokens=sum(q_lens) + 3,
            max_seqs=len(q_lens) + 2,
            mask=self.mask,
            magnitude=self.magnitude,
        )


INT8 = {"k_scale": 1 / 30, "v_scale": 1 / 16}
FP8 = {"k_scale": 0.5, "v_scale": 2.0, "q_scale": 1.5, "scale": 0.05}

CASES: dict[str, Case] = {
    "usual": Case(),
    "v2": Case(version="v2"),
    "float16": Case(dtype=jnp.float16, version="v2"),
    "e4m3": Case(kv_dtype=jnp.float8_e4m3fn, options=FP8),
    "e5m2": Case(kv_dtype=jnp.float8_e5m2, version="v2", options=FP8),
    "int8": Case(kv_dtype=jnp.int8, options=INT8),
    "int8_window_page_64": Case(kv_dtype=jnp.int8, dtype=jnp.float16, page=64, mask=Mask(window=100), options=INT8),
    "scaled_int8": Case(kv_dtype=jnp.int8, scaled=True),
    "scaled_e4m3_float16_v2": Case(
        kv_dtype=jnp.float8_e4m3fn, scaled=True, dtype=jnp.float16, version="v2", page=8, mask=Mask(window=100)
    ),
    "scaled_int8_one_kv_head": Case(heads=(8, 1), page=64, kv_dtype=jnp.int8, scaled=True, options={"soft_cap": 3.0}),
    "scaled_e5m2_head_256": Case(heads=(8, 4), dim=256, page=72, kv_dtype=jnp.float8_e5m2, scaled=True),
    "many_heads": Case(heads=(64, 8), page=64),
    "one_to_one": Case(heads=(8, 8), page=128),
    "one_kv_head": Case(heads=(16, 1)),
    "seven_to_one": Case(heads=(14, 2), version="v2", page=33),
    "group_of_64": Case(heads=(64, 1), page=32),
    "head_64": Case(dim=64),
    "head_80": Case(dim=80, page=8),
    "head_96": Case(dim=96, page=32),
    "head_192": Case(dim=192, heads=(8, 2)),
    "head_256": Case(dim=256, heads=(8, 2)),
    "page_1": Case(page=1, heads=(8, 2)),
    "page_256": Case(page=256),
    "not_causal": Case(mask=Mask(causal=False)),
    "window": Case(mask=Mask(window=100)),
    "chunk_window_cap_sinks": Case(
        heads=(8, 2),
        mask=Mask(window=40, chunk=50),
        options={"soft_cap": 2.0, "sinks": np.array([-np.inf, -50, 0, 2, 3, 60, 1, 1], np.float32)},
    ),
    "large_scores": Case(heads=(8, 2), magnitude=50.0),
}
"""Among them every layout, dtype, head and page size that the kernels are for, and some that are left to XLA."""


def check_attention(case: Case, seed: int, q_lens: tuple[int, ...], kv_lens: tuple[int, ...], device: Any) -> None:
    """ATT-1 to ATT-4, ATT-6: right, and zeros where nothing is read, with NaN in all that no query may read.

    Raises:
        AssertionError: it is not.
    """
    batch = case.batch(seed, q_lens, kv_lens)
    out = ragged_paged_attention(*_placed(device, *_arrays(batch)), **_call(case), num_kv_heads=case.heads[1])
    assert_close(out, dense_attention(batch, **case.options))


def check_fused(case: Case, seed: int, q_lens: tuple[int, ...], kv_lens: tuple[int, ...], device: Any) -> None:
    """ATT-5: writing the batch's own keys and values and attending is the update, then attention, bit for bit.

    Raises:
        AssertionError: it is not.
    """
    batch = case.batch(seed, q_lens, kv_lens)
    rng = np.random.default_rng(seed)
    shape = (len(batch.queries), case.heads[1], case.dim)
    rows: Any = np.full((2, *shape), np.nan, batch.queries.dtype)
    total = sum(q_lens)
    rows[:, :total] = rng.standard_normal((2, total, *shape[1:])).astype(rows.dtype)
    slots = np.full(shape[0], -1, np.int32)
    live = [slot for q_len, own in zip(q_lens, batch.slots, strict=True) for slot in own[len(own) - q_len :]]
    slots[: len(live)] = live
    queries, pages, *lengths = _placed(device, *_arrays(batch))
    keys, values, mapping = _placed(device, *rows, slots)
    call = _call(case)
    scales = {name: call[name] for name in ("k_scale", "v_scale") if name in call}
    out, after = fused_ragged_paged_attention(queries, keys, values, pages, *lengths, **call)
    expected = kv_cache_update(pages, keys, values, mapping, **scales)
    for ours, theirs in zip(jax.tree.leaves(after), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(ours).view(np.uint8), np.asarray(theirs).view(np.uint8))
    alone = ragged_paged_attention(queries, expected, *lengths, **call, num_kv_heads=case.heads[1])
    np.testing.assert_array_equal(np.asarray(out), np.asarray(alone))


def check_update(case: Case, seed: int, num_tokens: int, num_pages: int, device: Any) -> None:
    """CACHE-3: the slots named hold the rows, all else stays bit for bit, slots that don't exist write nothing.

    Raises:
        AssertionError: it is not so.
    """
    batch = case.batch(seed, (1,), (1,))
    row, rng = batch.kv_pages.shape[2:], np.random.default_rng(seed)
    pages = rng.standard_normal((num_pages, case.page, *row)).astype(batch.kv_pages.dtype)
    heads = (num_tokens, case.heads[1], case.dim)
    new: Any = rng.standard_normal((2, *heads)).astype(batch.queries.dtype)
    num_slots = num_pages * case.page
    slots = rng.permutation(num_slots)[:num_tokens].astype(np.int32)
    lost = rng.random(num_tokens) < 0.2
    slots[lost] = rng.choice(np.array([-1, -(2**31), num_slots, 2**31 - 1]), int(lost.sum()))
    scattered = kv_cache_update(*_placed(device, pages, *new, slots))
    expected = pages.reshape(num_slots, *row).copy()
    expected[slots[~lost]] = pack(new[0], new[1], case.version)[~lost]
    np.testing.assert_array_equal(np.asarray(scattered).view(np.uint8), expected.reshape(pages.shape).view(np.uint8))


def check_latents(
    heads: int, page: int, dtype: Any, mask: Mask, q_lens: tuple[int, ...], kv_lens: tuple[int, ...], device: Any
) -> None:
    """ATT-1 to ATT-4, ATT-6 over latents (MLA) of 512 numbers and rotary parts of 64, as `check_attention`.

    Raises:
        AssertionError: it is not right.
    """
    batch = make_latent_batch(
        np.random.default_rng(heads),
        q_lens,
        kv_lens,
        num_q_heads=heads,
        latent_dim=512,
        rotary_dim=64,
        page_size=page,
        dtype=dtype,
        max_tokens=sum(q_lens) + 3,
        max_seqs=len(q_lens) + 2,
        mask=mask,
    )
    halves = np.split(batch.queries, [512], axis=2)
    arrays = _placed(device, *halves, *batch.arrays[1:])
    out = mla_paged_attention(*arrays, scale=0.06, window=mask.window)
    assert_close(out, dense_attention(batch, scale=0.06))


def check_far_slots(device: Any, num_bytes: int) -> None:
    """CACHE-3, ATT-1: slots behind the first ``num_bytes`` of a cache are written and read where they are.

    Raises:
        AssertionError: they are not.
    """
    heads, dim, page = 8, 128, 16
    row = 2 * heads * dim * 2
    num_pages = num_bytes // (row * page) + 3
    with jax.default_device(device):
        pages = jnp.zeros((num_pages, page, 2 * heads, dim), jnp.float16)
    rng = np.random.default_rng(0)
    keys, values = rng.standard_normal((2, page + 1, heads, dim)).astype(jnp.float16)
    table = np.array([[num_pages - 1, num_pages - 2]], np.int32)
    slots = np.concatenate([table[0, 0] * page + np.arange(page), [table[0, 1] * page]]).astype(np.int32)
    pages = jax.jit(kv_cache_update, donate_argnums=0)(pages, *_placed(device, keys, values, slots))
    queries = rng.standard_normal((1, 32, dim)).astype(jnp.float16)
    kv_lens, starts, num_seqs = (np.array(numbers, np.int32) for numbers in ([page + 1], [0, 1], [1]))
    queries_there, *lengths = _placed(device, queries, kv_lens, table, starts, num_seqs)
    out = ragged_paged_attention(queries_there, pages, *lengths)
    wide = [[part.astype(np.float64)] for part in (keys, values)]
    none = np.zeros((1, 1, 1, 1))
    batch = Batch(queries, none, None, kv_lens, table, starts, num_seqs, wide[0], wide[1], [slots], FULL)
    assert_close(out, dense_attention(batch))


def _arrays(batch: Batch) -> list[Any]:
    """The arguments of a call, the pages with their scales if they have some."""
    arrays: list[Any] = [*batch.arrays]
    if batch.scales is not None:
        arrays[1] = ScaledPages(arrays[1], jnp.asarray(batch.scales))
    return arrays


def _placed(device: Any, *arrays: Any) -> list[Any]:
    return [jax.device_put(array, device) for array in arrays]


def _call(case: Case) -> dict[str, Any]:
    masks = {"causal": case.mask.causal, "window": case.mask.window, "chunk": case.mask.chunk}
    return masks | case.options
