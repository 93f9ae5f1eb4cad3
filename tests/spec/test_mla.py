"""ATT-1 to ATT-6 for latent attention, and what it refuses."""

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec.clauses import clause_of_message

from .ragged_batches import RaggedBatch, i32, ragged_batches


def _ceil(number: int) -> int:
    return -(-number // 128) * 128


@given(
    batch=ragged_batches([np.float32]),
    rank=st.sampled_from([1, 7, 128, 130]),
    rotary=st.sampled_from([1, 8]),
    rule=st.fixed_dictionaries(
        {"scale": st.sampled_from([0.3, 1.0])},
        optional={
            "causal": st.booleans(),
            "window": st.integers(1, 6),
            "soft_cap": st.sampled_from([0.5, 2.0]),
            "validate": st.booleans(),
        },
    ),
)
def test_att_1_it_is_attention_with_expanded_heads(batch: RaggedBatch, rank: int, rotary: int, rule: Any) -> None:
    """Absorbed queries over latents give what expanded keys and values give, after the values' matrix."""
    heads, rng = batch.heads, np.random.default_rng(3)
    tokens, size, v_size = len(batch.queries), 6, 5
    up_keys = rng.normal(size=(heads.num_q, size, rank))
    up_values = rng.normal(size=(heads.num_q, v_size, rank))
    plain = rng.normal(size=(tokens, heads.num_q, size))
    absorbed = np.einsum("thd,hdr->thr", plain, up_keys).astype(np.float32)
    rotated = rng.normal(size=(tokens, heads.num_q, rotary)).astype(np.float32)
    pages = np.full((*batch.kv_pages.shape[:2], _ceil(rank) + _ceil(rotary)), np.nan, np.float32)
    latents, keys = [], []
    for sequence, own in enumerate(batch.keys):
        latents.append(rng.normal(size=(len(own), rank)).astype(np.float32))
        keys.append(rng.normal(size=(len(own), rotary)).astype(np.float32))
        for position in range(len(own)):
            slot = np.zeros(pages.shape[2], np.float32)
            slot[:rank], slot[_ceil(rank) : _ceil(rank) + rotary] = latents[-1][position], keys[-1][position]
            pages[divmod(batch.slot(sequence, position), batch.page_size)] = slot
    out = spec.mla_paged_attention(absorbed, rotated, pages, **batch.lengths, **rule)
    assert out.dtype == np.float32
    expanded = np.einsum("thr,hvr->thv", out.astype(np.float64), up_values)

    wanted = np.zeros((tokens, heads.num_q, v_size))
    for row, sequence, position in batch.rows():
        read = np.arange(int(batch.kv_lens[sequence]))
        if rule.get("causal", True):
            read = read[read <= position]
        if "window" in rule:
            read = read[read > position - rule["window"]]
        if len(read):
            for head in range(heads.num_q):
                full = np.concatenate([latents[sequence][read] @ up_keys[head].T, keys[sequence][read]], axis=1)
                query = np.concatenate([plain[row, head], rotated[row, head]])
                scores = full.astype(np.float64) @ query * rule["scale"]
                if "soft_cap" in rule:
                    scores = np.tanh(scores / rule["soft_cap"]) * rule["soft_cap"]
                weights = np.exp(scores - scores.max())
                values = latents[sequence][read].astype(np.float64) @ up_values[head].T
                wanted[row, head] = weights @ values / weights.sum()
    assert np.allclose(expanded, wanted, rtol=1e-4, atol=1e-4)
    nobodys = sorted(set(range(tokens)) - {row for row, _, _ in batch.rows()})
    assert not out[nobodys].any()


def test_bits_are_what_they_are_said_to_be() -> None:
    pages = np.zeros((2, 2, 256), ml_dtypes.bfloat16)
    latents = np.full((1, 8), 1.5, np.float32)
    after = spec.mla_cache_update(pages.view(np.uint16), latents, latents, i32(3), kv_dtype="bf16")
    assert after.dtype == np.uint16
    lengths = i32(1), np.array([[1]], np.int32), i32(0, 1), i32(1)
    after[1, 0] = after[1, 1]
    query = np.ones((1, 1, 8), np.float32)
    assert (spec.mla_paged_attention(query, query, after, *lengths, scale=1.0, kv_dtype="bf16") == 1.5).all()


def _attention(**changes: Any) -> dict[str, Any]:
    given = {
        "queries": np.zeros((2, 1, 8), np.float32),
        "rotary_queries": np.zeros((2, 1, 4), np.float32),
        "latent_pages": np.zeros((3, 2, 256), np.float32),
        "kv_lens": i32(2),
        "page_table": np.array([[1, 2]], np.int32),
        "cu_q_lens": i32(0, 2),
        "num_seqs": i32(1),
        "scale": 1.0,
    }
    return {**given, **changes}


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"rotary_queries": np.zeros((2, 1, 0), np.float32)}, ValueError, "rotary keys of 0"),
        ({"latent_pages": np.zeros((3, 2, 256), np.int8)}, TypeError, "latent_pages.dtype=int8"),
        ({"latent_pages": np.zeros((3, 2, 256), np.uint16)}, TypeError, "kv_dtype=None"),
        ({"scale": None}, TypeError, "scale=None"),
    ],
)
def test_r1_a_wrong_argument_is_refused_by_name(changes: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)) as caught:
        spec.mla_paged_attention(**_attention(**changes))
    assert clause_of_message(str(caught.value)) in spec.CLAUSES
