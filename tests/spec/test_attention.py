"""ATT-1 to ATT-6: attention over ragged pages, against itself written down a second time."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec.clauses import clause_of_message
from kvproof.spec.layout.cache_dtypes import CODES

from .ragged_batches import FLOAT_TYPES, Heads, RaggedBatch, dense, empty_slot, i32, placed, ragged_batches

ROUNDING = {np.dtype(dtype): 2.0**-bits for dtype, bits in zip(FLOAT_TYPES, (23, 8, 10), strict=True)}
"""Half a unit in the last place of each output type, doubled: the reference itself is float64."""

positive = st.sampled_from([0.25, 0.7, 1.0, 3.0])


@st.composite
def rules(draw: st.DrawFn, num_q_heads: int) -> dict[str, Any]:
    """Options of any kind, each there or not."""
    choices: dict[str, st.SearchStrategy[Any]] = {
        "scale": st.sampled_from([0.1, 1.0, -0.5, 0.0]),
        "causal": st.booleans(),
        "window": st.integers(1, 12),
        "chunk": st.integers(1, 12),
        "soft_cap": positive,
        "sinks": st.lists(st.sampled_from([-9.0, 0.5, 4.0]), min_size=num_q_heads, max_size=num_q_heads).map(
            lambda logits: np.array(logits, np.float32)
        ),
        "q_scale": positive,
        "k_scale": positive,
        "v_scale": positive,
    }
    return {name: draw(choice) for name, choice in choices.items() if draw(st.booleans())}


def _equal(out: Any, wanted: Any) -> None:
    bound = ROUNDING[out.dtype] * np.abs(wanted) + (2.0**-24 if out.dtype == np.float16 else 1e-12)
    assert out.shape == wanted.shape
    assert (np.abs(out.astype(np.float64) - wanted) <= bound).all()


# -- ATT-1, ATT-3, ATT-4, ATT-6 -------------------------------------------------------------------


@settings(max_examples=120)
@given(batch=ragged_batches(), data=st.data())
def test_att_1_it_is_dense_attention_over_poison(batch: RaggedBatch, data: st.DataObject) -> None:
    """ATT-3 and ATT-4 as well: all else in cache, queries and tables is NaN or garbage."""
    rule = data.draw(rules(batch.heads.num_q))
    out = spec.ragged_paged_attention(**batch.arguments, **batch.options, **rule, validate=data.draw(st.booleans()))
    assert out.dtype == batch.queries.dtype
    _equal(out, dense(batch, **rule))


@given(batch=ragged_batches(), data=st.data())
def test_att_3_what_lies_before_window_and_chunk_is_not_looked_at(batch: RaggedBatch, data: st.DataObject) -> None:
    """Pages that all of a sequence's rows have left behind are given back, and may hold anything or not exist."""
    rule: dict[str, Any] = {data.draw(st.sampled_from(["window", "chunk"])): data.draw(st.integers(1, 6))}
    before = spec.ragged_paged_attention(**batch.arguments, **batch.options, **rule)
    for sequence in range(int(batch.num_seqs[0])):
        positions = [position for _, own, position in batch.rows() if own == sequence]
        first = min(positions, default=int(batch.kv_lens[sequence]))
        reads = first - rule["window"] + 1 if "window" in rule else first - first % rule["chunk"]
        for position in range(max(0, reads)):
            batch.kv_pages[divmod(batch.slot(sequence, position), batch.page_size)] = np.nan
        batch.page_table[sequence, : max(0, reads) // batch.page_size] = data.draw(st.sampled_from([0, -1, 10**6]))
    after = spec.ragged_paged_attention(**batch.arguments, **batch.options, **rule)
    assert after.tobytes() == before.tobytes()


def test_att_1_a_window_counts_from_the_position_though_it_is_not_causal() -> None:
    """Peers applied a window to causal attention only, or from the wrong start where it is below q_len."""
    keys = np.zeros((6, 1, 8), np.float32)
    values = np.arange(6, dtype=np.float32).reshape(6, 1, 1)
    heads = Heads(1, 1, 8, 1, "v2")
    pages = np.stack([placed(heads, keys[j], values[j]) for j in range(6)])[np.newaxis]
    arguments = np.zeros((4, 1, 8), np.float32), pages, i32(6), np.zeros((1, 1), np.int32), i32(0, 4), i32(1)

    def means(**rule: Any) -> list[float]:
        return [float(mean) for mean in spec.ragged_paged_attention(*arguments, v_head_dim=1, **rule)[:, 0, 0]]

    assert means() == [1.0, 1.5, 2.0, 2.5]
    assert means(window=2) == [1.5, 2.5, 3.5, 4.5]
    assert means(window=2, causal=False) == [3.0, 3.5, 4.0, 4.5]
    assert means(chunk=4) == [1.0, 1.5, 4.0, 4.5]
    assert means(chunk=4, causal=False) == [2.5, 2.5, 4.5, 4.5]
    assert means(chunk=4, window=3) == [1.0, 2.0, 4.0, 4.5]


@given(batch=ragged_batches([np.float32]), shift=st.sampled_from([-4096.0, -64.0, 512.0]))
def test_att_1_a_vector_added_to_every_key_changes_nothing(batch: RaggedBatch, shift: float) -> None:
    """A softmax is invariant to a shift: very negative and very large logits give the same."""
    batch.queries = np.where(np.isnan(batch.queries), np.nan, np.round(batch.queries * 8) / 8).astype(np.float32)
    keys = [np.round(key * 8).astype(np.float32) / 8 for key in batch.keys]
    outs = []
    for added in (0.0, shift):
        for sequence, key in enumerate(keys):
            for position in range(len(key)):
                where = divmod(batch.slot(sequence, position), batch.page_size)
                batch.kv_pages[where] = placed(
                    batch.heads, key[position] + np.float32(added), batch.values[sequence][position]
                )
        outs.append(spec.ragged_paged_attention(**batch.arguments, **batch.options).astype(np.float64))
    assert np.isfinite(outs[1]).all()
    assert np.allclose(outs[0], outs[1], rtol=1e-2 if batch.queries.dtype != np.float32 else 1e-6, atol=1e-6)


def test_att_1_a_soft_cap_keeps_huge_logits_finite() -> None:
    queries, vector = np.full((1, 1, 8), 3e38, np.float32), np.full((1, 8), 1e19, np.float32)
    heads = Heads(1, 1, 8, 8, "v2")
    pages = np.stack([placed(heads, sign * vector, sign * vector) for sign in (1, -1)])[np.newaxis]
    rest = i32(2), np.zeros((1, 1), np.int32), i32(0, 1), i32(1)
    out = spec.ragged_paged_attention(queries, pages, *rest, soft_cap=2.0, scale=1.0)
    wanted = 1e19 * np.tanh(2.0)
    assert np.allclose(out.astype(np.float64), wanted, rtol=1e-6)


@given(batch=ragged_batches([np.float32]))
def test_att_1_a_sink_far_above_takes_all_and_one_far_below_nothing(batch: RaggedBatch) -> None:
    outs = [
        spec.ragged_paged_attention(
            **batch.arguments,
            **batch.options,
            sinks=None if sink is None else np.full(batch.heads.num_q, sink, np.float32),
        )
        for sink in (None, -1e4, 1e4)
    ]
    assert outs[0].tobytes() == outs[1].tobytes()
    assert not outs[2].any()


# -- ATT-2 ----------------------------------------------------------------------------------------


@given(batch=ragged_batches(), sink=st.booleans(), causal=st.booleans())
def test_att_2_rows_with_nothing_to_read_are_zeros(batch: RaggedBatch, sink: bool, causal: bool) -> None:
    """Sequences of fewer tokens than queries, some of none at all: positions below 0 read nothing (R1 is not asked)."""
    sinks = np.ones(batch.heads.num_q, np.float32) if sink else None
    batch.kv_lens = np.maximum(batch.kv_lens // 3, 0).astype(np.int32)
    wanted = np.zeros((*batch.queries.shape[:2], batch.heads.v_size))
    out = spec.ragged_paged_attention(**batch.arguments, **batch.options, sinks=sinks, causal=causal)
    shortened = [row for row, _, position in batch.rows() if position < 0]
    assert np.isfinite(out.astype(np.float64)).all()
    assert np.array_equal(out[shortened].astype(np.float64), wanted[shortened])
    nobodys = sorted(set(range(len(out))) - {row for row, _, _ in batch.rows()})
    assert np.array_equal(out[nobodys].astype(np.float64), wanted[nobodys])


# -- Storage: quantised, bits ---------------------------------------------------------------------


@given(batch=ragged_batches([np.float32]), code=st.sampled_from(["int8", "f8_e4m3", "f8_e5m2"]), slots=st.booleans())
def test_att_6_quantised_pages_are_attended_as_what_they_stand_for(batch: RaggedBatch, code: str, slots: bool) -> None:
    """Stored numbers times their scales, be these static or by slot and head, on every path."""
    heads, dtype = batch.heads, CODES[code]
    rng = np.random.default_rng(0)
    shape = *batch.kv_pages.shape[:2], *empty_slot(heads, dtype).shape
    pages = np.full(shape, 127 if code == "int8" else np.nan).astype(dtype)
    scales = np.full((*pages.shape[:2], 2 * heads.num_kv), np.nan, np.float32)
    static: dict[str, Any] = {} if slots else {"k_scale": 0.03, "v_scale": 0.5}
    for sequence, key in enumerate(batch.keys):
        for position in range(len(key)):
            where = divmod(batch.slot(sequence, position), batch.page_size)
            numbers = [rng.integers(-4, 5, (heads.num_kv, size)).astype(dtype) for size in (heads.size, heads.v_size)]
            own = rng.uniform(0.1, 2.0, (2, heads.num_kv)).astype(np.float32)
            pages[where] = placed(heads, numbers[0], numbers[1])
            scales[where] = own.T.reshape(-1)
            factors = own.astype(np.float64) if slots else np.array([[0.03], [0.5]])
            batch.keys[sequence] = batch.keys[sequence].astype(np.float64)
            batch.values[sequence] = batch.values[sequence].astype(np.float64)
            batch.keys[sequence][position] = numbers[0].astype(np.float64) * factors[0][:, np.newaxis]
            batch.values[sequence][position] = numbers[1].astype(np.float64) * factors[1][:, np.newaxis]
    kv_pages = spec.ScaledPages(pages, scales) if slots else pages
    out = spec.ragged_paged_attention(batch.queries, kv_pages, **batch.lengths, **batch.options, **static)
    _equal(out, dense(batch))


@given(batch=ragged_batches(FLOAT_TYPES[1:2]))
def test_att_6_bits_are_read_as_what_they_are_said_to_be(batch: RaggedBatch) -> None:
    plain = spec.ragged_paged_attention(**batch.arguments, **batch.options)
    bits = batch.kv_pages.view(np.uint16)
    out = spec.ragged_paged_attention(batch.queries, bits, **batch.lengths, **batch.options, kv_dtype="bf16")
    assert out.tobytes() == plain.tobytes()


# -- ATT-5 ----------------------------------------------------------------------------------------


@given(batch=ragged_batches(), data=st.data())
def test_att_5_fused_is_the_update_of_all_rows_and_then_attention(batch: RaggedBatch, data: st.DataObject) -> None:
    rule, heads = data.draw(rules(batch.heads.num_q)), batch.heads
    rng = np.random.default_rng(0)
    tokens = len(batch.queries)
    keys = np.full((tokens, heads.num_kv, heads.size), np.nan, np.float32)
    values = np.full((tokens, heads.num_kv, heads.v_size), np.nan, np.float32)
    slots = np.full(tokens, -1, np.int32)
    for row, sequence, position in batch.rows():
        keys[row], values[row] = rng.normal(size=keys.shape[1:]), rng.normal(size=values.shape[1:])
        slots[row] = batch.slot(sequence, position)
    before = batch.kv_pages.tobytes()
    scales = {name: rule[name] for name in ("k_scale", "v_scale") if name in rule}
    updated = spec.kv_cache_update(batch.kv_pages, keys, values, slots, **scales)
    wanted = spec.ragged_paged_attention(batch.queries, updated, **batch.lengths, **batch.options, **rule)
    out, pages = spec.fused_ragged_paged_attention(
        keys=keys, values=values, **batch.arguments, **rule, validate=data.draw(st.booleans())
    )
    assert out.tobytes() == wanted.tobytes()
    assert pages.tobytes() == updated.tobytes()
    assert batch.kv_pages.tobytes() == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_att_5_a_request_reads_what_another_writes_in_the_same_step(order: tuple[int, int]) -> None:
    """Writer and reader share a page; in either order the reader sees what is written."""
    kv_lens, tables = np.array([2, 3], np.int32), np.array([[1, 0], [1, 2]], np.int32)
    values = np.arange(1.0, 4.0, dtype=np.float32).reshape(3, 1, 1)
    q_lens = [2, 1]
    written = [values[:2], values[2:]]
    rows = [written[which] for which in order]
    out, _ = spec.fused_ragged_paged_attention(
        np.zeros((3, 1, 1), np.float32),
        np.zeros((3, 1, 1), np.float32),
        np.concatenate(rows),
        np.full((3, 2, 2, 128), np.nan, np.float32),
        kv_lens[list(order)],
        tables[list(order)],
        i32(0, *np.cumsum([q_lens[which] for which in order])),
        i32(2),
        validate=True,
    )
    reader = 2 if order == (0, 1) else 0
    assert out[reader, 0, 0] == 2.0


# -- R1 -------------------------------------------------------------------------------------------


def _arguments(**changes: Any) -> dict[str, Any]:
    given = {
        "queries": np.zeros((4, 2, 8), np.float32),
        "kv_pages": np.zeros((5, 2, 2, 128), np.float32),
        "kv_lens": i32(3, 2),
        "page_table": np.array([[1, 2], [3, 4]], np.int32),
        "cu_q_lens": i32(0, 2, 3),
        "num_seqs": i32(2),
    }
    return {**given, **changes}


WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"queries": np.zeros((4, 0, 8), np.float32)}, ValueError, "queries.shape=(4, 0, 8)"),
    ({"kv_pages": np.zeros((5, 2, 128), np.float32)}, ValueError, "kv_pages.shape=(5, 2, 128)"),
    ({"kv_pages": np.zeros((5, 2, 2, 128), np.int8)}, ValueError, "kv_pages of int8 need scales"),
    ({"kv_pages": np.zeros((5, 2, 2, 128), np.int8), "k_scale": 1.0}, ValueError, "v_scale=None"),
    ({"kv_pages": np.zeros((5, 2, 2, 128), np.uint16)}, TypeError, "kv_dtype=None"),
    ({"kv_pages": np.zeros((5, 2, 2, 128), np.uint16), "kv_dtype": "f32"}, ValueError, "kv_dtype=float32"),
    ({"kv_pages": np.zeros((5, 2, 2, 128), np.uint8), "kv_dtype": "int8"}, ValueError, "kv_dtype=int8"),
    ({"kv_dtype": "float64"}, TypeError, "kv_dtype='float64'"),
    ({"kv_lens": np.zeros((2, 1), np.int32)}, ValueError, "kv_lens.shape=(2, 1)"),
    ({"num_seqs": np.array(2, np.int32)}, ValueError, "num_seqs.shape=()"),
    ({"soft_cap": float("inf")}, ValueError, "soft_cap=inf"),
    ({"scale": float("nan")}, ValueError, "scale=nan"),
]


@pytest.mark.parametrize(("changes", "kind", "text"), WRONG)
def test_r1_a_wrong_argument_is_refused_by_name(changes: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)) as caught:
        spec.ragged_paged_attention(**_arguments(**changes))
    assert clause_of_message(str(caught.value)) in spec.CLAUSES
    new = np.zeros((4, 1, 8), np.float32)
    if not {"queries", "v_head_dim"} & set(changes):
        with pytest.raises(kind):
            spec.fused_ragged_paged_attention(keys=new, values=new, **_arguments(**changes))


def test_r1_a_page_that_does_not_exist_is_never_read_as_another() -> None:
    for page in (5, -1, 2**31 - 1):
        table = np.array([[1, page], [3, 4]], np.int32)
        with pytest.raises(IndexError, match=r"position 2 of sequence=0"):
            spec.ragged_paged_attention(**_arguments(page_table=table))


def test_r1_validate_lets_no_two_tokens_be_written_to_one_slot() -> None:
    new = np.ones((4, 1, 8), np.float32)
    given = _arguments(page_table=np.array([[1, 3], [3, 4]], np.int32), kv_lens=i32(3, 1))
    with pytest.raises(ValueError, match=r"token 2=6 is the slot of token 1, too \[R1\]"):
        spec.fused_ragged_paged_attention(keys=new, values=new, **given, validate=True)


def test_r1_new_keys_are_as_wide_as_queries() -> None:
    new: dict[str, Any] = {"keys": np.zeros((4, 1, 7), np.float32), "values": np.zeros((4, 1, 8), np.float32)}
    with pytest.raises(ValueError, match=r"keys\.shape=\(4, 1, 7\)"):
        spec.fused_ragged_paged_attention(**new, **_arguments())
