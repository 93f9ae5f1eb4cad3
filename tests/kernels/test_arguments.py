"""What is refused: by shape, type and option when a call is traced, by content with ``validate=True`` (R1)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof.kernels import (
    ScaledPages,
    copy_pages,
    fused_ragged_paged_attention,
    kv_cache_update,
    mla_cache_update,
    mla_paged_attention,
    ragged_paged_attention,
    read_states,
    write_states,
)

from .reference import make_batch

T, HQ, H, D, P, PAGE, S, WIDTH = 6, 4, 2, 128, 9, 4, 3, 3
Arguments = dict[str, Any]


def attention_arguments() -> Arguments:
    """A call that nobody could refuse."""
    return {
        "queries": np.zeros((T, HQ, D), np.float32),
        "kv_pages": np.zeros((P, PAGE, 2 * H, D), np.float32),
        "kv_lens": np.array([5, 12, 0], np.int32),
        "page_table": np.array([[1, 2, 99], [3, 4, 5], [-1, -1, -1]], np.int32),
        "cu_q_lens": np.array([0, 2, 5, 5], np.int32),
        "num_seqs": np.array([3], np.int32),
    }


def update_arguments() -> Arguments:
    return {
        "kv_pages": np.zeros((P, PAGE, 2 * H, D), np.float32),
        "keys": np.zeros((T, H, D), np.float32),
        "values": np.zeros((T, H, D), np.float32),
        "slot_mapping": np.array([-1, 0, 35, 7, -5, 8], np.int32),
    }


def fused_arguments() -> Arguments:
    update = update_arguments()
    return {**attention_arguments(), "keys": update["keys"], "values": update["values"]}


def mla_arguments() -> Arguments:
    lengths = {name: value for name, value in attention_arguments().items() if name not in ("queries", "kv_pages")}
    return {
        "queries": np.zeros((T, HQ, 100), np.float32),
        "rotary_queries": np.zeros((T, HQ, 20), np.float32),
        "latent_pages": np.zeros((P, PAGE, 256), np.float32),
        "scale": 0.1,
        **lengths,
    }


def mla_update_arguments() -> Arguments:
    return {
        "latent_pages": np.zeros((P, PAGE, 256), np.float32),
        "latents": np.zeros((T, 100), np.float32),
        "rotary": np.zeros((T, 20), np.float32),
        "slot_mapping": update_arguments()["slot_mapping"],
    }


def copy_arguments() -> Arguments:
    ids = {"sources": np.array([1, 2, -1], np.int32), "destinations": np.array([3, -1, 4], np.int32)}
    return {"pages": np.zeros((P, 2), np.float32), **ids}


def write_arguments() -> Arguments:
    return {
        "pages": {"a": np.zeros((P, 2), np.float32)},
        "page_ids": np.array([1, -1], np.int32),
        "states": {"a": np.ones((2, 2), np.float32)},
    }


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], Arguments]]] = {
    "attend": (ragged_paged_attention, attention_arguments),
    "update": (kv_cache_update, update_arguments),
    "fused": (fused_ragged_paged_attention, fused_arguments),
    "mla": (mla_paged_attention, mla_arguments),
    "mla_update": (mla_cache_update, mla_update_arguments),
    "copy": (copy_pages, copy_arguments),
    "write": (write_states, write_arguments),
    "read": (read_states, lambda: {name: write_arguments()[name] for name in ("pages", "page_ids")}),
}


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


def virtual(*shape: int, dtype: Any = np.float32) -> Any:
    """Zeros of a shape that no memory could hold."""
    return np.broadcast_to(np.zeros((), dtype), shape)


STATIC: list[tuple[str, Arguments, type[Exception], str]] = [
    ("attend", {"kv_lens": zeros(3, dtype=np.int64)}, TypeError, "kv_lens must be int32, not int64"),
    ("attend", {"page_table": zeros(3, 3, dtype=np.int64)}, TypeError, "page_table must be int32"),
    ("attend", {"cu_q_lens": zeros(4, dtype=np.uint32)}, TypeError, "cu_q_lens must be int32"),
    ("attend", {"num_seqs": zeros(1)}, TypeError, "num_seqs must be int32"),
    ("attend", {"num_seqs": 3}, TypeError, "num_seqs must be an array, not int"),
    ("attend", {"kv_lens": [5, 12, 0]}, TypeError, "kv_lens must be an array, not list"),
    ("attend", {"kv_lens": zeros(4, dtype=np.int32)}, ValueError, "kv_lens.shape"),
    ("attend", {"cu_q_lens": zeros(3, dtype=np.int32)}, ValueError, "cu_q_lens.shape"),
    ("attend", {"num_seqs": zeros(2, dtype=np.int32)}, ValueError, "num_seqs.shape"),
    ("attend", {"page_table": zeros(3, dtype=np.int32)}, ValueError, "page_table.shape"),
    ("attend", {"page_table": zeros(3, 0, dtype=np.int32)}, ValueError, "page_table.shape"),
    ("attend", {"page_table": virtual(3, 2**29, dtype=np.int32)}, ValueError, r"page_table.*2\^31"),
    ("attend", {"kv_pages": virtual(2**29, 4, 4, 128)}, ValueError, r"kv_pages.*2\^31"),
    ("attend", {"queries": zeros(T, HQ, D, dtype=np.float64)}, TypeError, "queries must be float32"),
    ("attend", {"queries": zeros(T, HQ, D, dtype=np.int32)}, TypeError, "queries must be float32"),
    ("attend", {"queries": zeros(T, D)}, ValueError, "queries.shape"),
    ("attend", {"queries": zeros(T, 3, D)}, ValueError, "queries have 3 heads"),
    ("attend", {"queries": zeros(T, HQ, 129)}, ValueError, "kv_pages.shape"),
    ("attend", {"queries": zeros(T, 0, D)}, ValueError, "queries.shape"),
    ("attend", {"kv_pages": zeros(P, PAGE, 2 * H, D, dtype=np.int32)}, TypeError, "kv_pages must hold"),
    ("attend", {"kv_pages": zeros(P, PAGE, 2 * H, D, dtype=np.uint16)}, TypeError, "kv_dtype=None"),
    ("attend", {"kv_pages": zeros(P, PAGE, 2 * H, D, dtype=np.int8)}, ValueError, "k_scale=None and v_scale=None"),
    ("attend", {"kv_pages": zeros(0, PAGE, 2 * H, D)}, ValueError, "kv_pages.shape"),
    ("attend", {"kv_pages": zeros(P, PAGE, D)}, ValueError, "kv_pages.shape"),
    ("attend", {"kv_pages": "pages"}, TypeError, "kv_pages must be an array, not str"),
    ("attend", {"kv_dtype": jnp.bfloat16}, ValueError, "kv_dtype=bfloat16"),
    ("attend", {"kv_dtype": "float33"}, TypeError, "kv_dtype='float33'"),
    ("attend", {"num_kv_heads": 4}, ValueError, "kv_pages.shape"),
    ("attend", {"num_kv_heads": 0}, ValueError, "num_kv_heads=0"),
    ("attend", {"num_kv_heads": True}, TypeError, "num_kv_heads"),
    ("attend", {"v_head_dim": 192}, ValueError, "kv_pages.shape"),
    ("attend", {"v_head_dim": 0}, ValueError, "v_head_dim=0"),
    ("attend", {"window": 0}, ValueError, "window=0 must be at least 1"),
    ("attend", {"window": -3}, ValueError, "window=-3"),
    ("attend", {"window": 2.0}, TypeError, "window must be an int"),
    ("attend", {"window": True}, TypeError, "window must be an int, not bool"),
    ("attend", {"chunk": 0}, ValueError, "chunk=0"),
    ("attend", {"soft_cap": 0.0}, ValueError, "soft_cap=0.0"),
    ("attend", {"soft_cap": -1}, ValueError, "soft_cap=-1.0"),
    ("attend", {"soft_cap": float("nan")}, ValueError, "soft_cap=nan"),
    ("attend", {"soft_cap": True}, TypeError, "soft_cap must be a number"),
    ("attend", {"scale": float("inf")}, ValueError, "scale=inf"),
    ("attend", {"scale": "1"}, TypeError, "scale must be a number"),
    ("attend", {"q_scale": 0}, ValueError, "q_scale=0.0"),
    ("attend", {"k_scale": -1.0}, ValueError, "k_scale=-1.0"),
    ("attend", {"causal": 1}, TypeError, "causal must be a bool"),
    ("attend", {"validate": "yes"}, TypeError, "validate must be a bool"),
    ("attend", {"sinks": zeros(HQ + 1)}, ValueError, "sinks.shape"),
    ("attend", {"sinks": zeros(HQ, dtype=np.float16)}, TypeError, "sinks must be float32"),
    ("attend", {"sinks": [0.0] * HQ}, TypeError, "sinks must be an array"),
    ("update", {"keys": zeros(T, H, D, dtype=np.float64)}, TypeError, "keys must be float32"),
    ("update", {"keys": zeros(T, H)}, ValueError, "keys.shape"),
    ("update", {"keys": zeros(T, H + 1, D), "values": zeros(T, H + 1, D)}, ValueError, "kv_pages.shape"),
    ("update", {"values": zeros(T, H + 1, D)}, ValueError, "values.shape"),
    ("update", {"values": zeros(T + 1, H, D)}, ValueError, "values.shape"),
    ("update", {"values": zeros(T, H, D, dtype=np.float16)}, TypeError, "values must be float32"),
    ("update", {"slot_mapping": zeros(T, dtype=np.int64)}, TypeError, "slot_mapping must be int32"),
    ("update", {"slot_mapping": zeros(T + 1, dtype=np.int32)}, ValueError, "slot_mapping.shape"),
    ("update", {"slot_mapping": zeros(3, 2, dtype=np.int32)}, ValueError, "slot_mapping.shape"),
    ("update", {"num_slices": zeros(1, dtype=np.int32)}, ValueError, "slot_mapping.shape"),
    ("update", {"kv_pages": zeros(P, PAGE, 2 * H, D, dtype=np.int8), "k_scale": 1.0}, ValueError, "v_scale=None"),
    ("update", {"k_scale": 0.0}, ValueError, "k_scale=0.0"),
    ("update", {"k_scale": np.ones(1)}, TypeError, "k_scale must be a number"),
    ("fused", {"keys": zeros(T + 1, H, D), "values": zeros(T + 1, H, D)}, ValueError, r"keys.shape\[0\]=7"),
    ("fused", {"queries": zeros(T, HQ, 64)}, ValueError, r"keys.shape\[2\]=128"),
    ("fused", {"num_kv_heads": 1}, ValueError, "num_kv_heads=1"),
    ("fused", {"v_head_dim": 64}, ValueError, "v_head_dim=64"),
    ("fused", {"num_kv_heads": True}, TypeError, "num_kv_heads"),
    ("fused", {"v_head_dim": 128.0}, TypeError, "v_head_dim"),
    ("fused", {"window": 0}, ValueError, "window=0"),
    ("fused", {"queries": zeros(T, 3, D)}, ValueError, "queries have 3 heads"),
    ("mla", {"rotary_queries": zeros(T, HQ + 1, 20)}, ValueError, "rotary_queries.shape"),
    ("mla", {"rotary_queries": zeros(T, HQ, 200)}, ValueError, r"latent_pages.shape\[2\]=256"),
    ("mla", {"latent_pages": zeros(P, PAGE, 256, dtype=np.int8)}, TypeError, "latent_pages"),
    ("mla", {"latent_pages": zeros(P, PAGE, 2, 128)}, ValueError, "latent_pages.shape"),
    ("mla", {"scale": None}, TypeError, "scale must be a number"),
    ("mla", {"window": 0}, ValueError, "window=0"),
    ("mla", {"soft_cap": 0}, ValueError, "soft_cap"),
    ("mla_update", {"rotary": zeros(T, 20, dtype=np.float16)}, TypeError, "rotary must be float32"),
    ("mla_update", {"latents": zeros(T, 200)}, ValueError, "latent_pages"),
    ("mla_update", {"slot_mapping": zeros(T, dtype=np.int8)}, TypeError, "slot_mapping"),
    ("copy", {"sources": zeros(2, dtype=np.int32)}, ValueError, "destinations.shape"),
    ("copy", {"sources": zeros(3, dtype=np.int64)}, TypeError, "sources must be int32"),
    ("copy", {"num_slots": zeros(2, dtype=np.int32)}, ValueError, "num_slots.shape"),
    ("copy", {"pages": zeros(P), "num_slots": zeros(3, dtype=np.int32)}, ValueError, "[P, page, ...]"),
    ("copy", {"pages": [zeros(P), zeros(P + 1)]}, ValueError, "the same number of pages"),
    ("copy", {"pages": [zeros(P), 3]}, TypeError, "pages must hold arrays, not int"),
    ("copy", {"pages": np.float32(3)}, TypeError, "pages must hold arrays"),
    ("copy", {"pages": zeros(0, 2)}, ValueError, "pages must hold arrays"),
    ("write", {"states": {"b": zeros(2, 2)}}, ValueError, "structure of states"),
    ("write", {"states": {"a": zeros(3, 2)}}, ValueError, "states.shape"),
    ("write", {"states": {"a": zeros(2, 2, dtype=np.float16)}}, TypeError, "states must be float32"),
    ("write", {"page_ids": zeros(2)}, TypeError, "page_ids must be int32"),
    ("read", {"page_ids": zeros(2, 1, dtype=np.int32)}, ValueError, "page_ids.shape"),
]


@pytest.mark.parametrize(("name", "changes", "error", "message"), STATIC)
def test_refused_when_traced(name: str, changes: Arguments, error: type[Exception], message: str) -> None:
    """R1."""
    function, arguments = CALLS[name]
    with pytest.raises(error, match=rf"{message}.*\[R1\]$"):
        function(**{**arguments(), **changes})


def scaled(**changes: Any) -> ScaledPages:
    return ScaledPages(
        **{"values": zeros(P, PAGE, 2 * H, D, dtype=np.int8), "scales": zeros(P, PAGE, 2 * H), **changes}
    )


SCALED: list[tuple[ScaledPages, Arguments, type[Exception], str]] = [
    (scaled(scales=zeros(P, PAGE, 2 * H + 2)), {"num_kv_heads": H}, ValueError, r"kv_pages.scales.shape\[2\]=6"),
    (scaled(scales=zeros(P, PAGE)), {}, ValueError, "kv_pages.scales.shape"),
    (scaled(scales=zeros(P + 1, PAGE, 2 * H)), {}, ValueError, "kv_pages.scales.shape"),
    (scaled(scales=zeros(P, PAGE, 2 * H, dtype=np.float16)), {}, TypeError, "kv_pages.scales must be float32"),
    (scaled(values=zeros(P, PAGE, 2 * H, D)), {}, TypeError, "int8 or float8"),
    (scaled(values=zeros(P, PAGE, 2 * H, D, dtype=np.uint8)), {}, TypeError, "kv_dtype=None"),
    (scaled(), {"k_scale": 1.0}, ValueError, "k_scale=1.0"),
]


@pytest.mark.parametrize(("pages", "changes", "error", "message"), SCALED)
def test_scaled_pages_that_do_not_fit(
    pages: ScaledPages, changes: Arguments, error: type[Exception], message: str
) -> None:
    """R1."""
    with pytest.raises(error, match=rf"{message}.*\[R1\]$"):
        ragged_paged_attention(**{**attention_arguments(), "kv_pages": pages, **changes})
    with pytest.raises(TypeError, match=r"latent_pages must be an array.*\[R1\]$"):
        mla_paged_attention(**{**mla_arguments(), "latent_pages": pages})


def changed(name: str, place: Any, value: int) -> Arguments:
    """The lengths of the call that nobody could refuse, but for one number."""
    array = attention_arguments()[name].copy()
    array[place] = value
    return {name: array}


def ints(*numbers: int) -> Any:
    return np.array(numbers, np.int32)


def slices(*columns: tuple[int, int, int], count: int | None = None) -> Arguments:
    number = len(columns) if count is None else count
    return {"slot_mapping": np.array(columns, np.int32).T.copy(), "num_slices": ints(number)}


BATCHES: list[tuple[Arguments, type[Exception], str]] = [
    (changed("page_table", (1, 2), 9), IndexError, r"page_table\[1, 2\]=9 must be in \[0, 9\) at sequence 1"),
    (changed("page_table", (0, 0), -1), IndexError, r"page_table\[0, 0\]=-1 .* at sequence 0"),
    (changed("kv_lens", 1, 13), ValueError, r"kv_lens\[1\]=13 must be in \[0, 12\]"),
    (changed("kv_lens", 2, -1), ValueError, r"kv_lens\[2\]=-1"),
    (changed("kv_lens", 0, 1), ValueError, "q_len=2 must not be above kv_len=1 at sequence 0"),
    (changed("cu_q_lens", 0, 1), ValueError, r"cu_q_lens\[0\]=1 must be 0"),
    (changed("cu_q_lens", 2, 1), ValueError, r"cu_q_lens\[2\]=1 must not be below cu_q_lens\[1\]=2"),
    (changed("cu_q_lens", 3, 7), ValueError, r"cu_q_lens\[3\]=7 must not be above the 6"),
    (changed("num_seqs", 0, 4), ValueError, r"num_seqs=4 must be in \[0, 3\]"),
    (changed("num_seqs", 0, -1), ValueError, "num_seqs=-1"),
]

DYNAMIC: list[tuple[str, Arguments, type[Exception], str]] = [
    *((name, *rest) for name in ("attend", "fused", "mla") for rest in BATCHES),
    ("fused", changed("page_table", (1, 2), 1), ValueError, "written through page_table writes 7 more than once"),
    ("update", {"slot_mapping": ints(0, 1, 2, 3, 4, 36)}, IndexError, r"slot_mapping\[5\]=36 must be below 36"),
    ("update", {"slot_mapping": ints(0, 1, 2, 0, -1, -1)}, ValueError, "slot_mapping writes 0 more than once"),
    ("update", slices((36, 0, 1)), IndexError, r"slot_mapping\[0, 0\]=36"),
    ("update", slices((-1, 0, 1)), IndexError, r"slot_mapping\[0, 0\]=-1"),
    ("update", slices((0, 0, 1), (6, 0, 3)), ValueError, r"slot_mapping\[2, 1\]=3 .* page"),
    ("update", slices((0, 0, 0)), ValueError, r"slot_mapping\[2, 0\]=0"),
    ("update", slices((0, 4, 3)), IndexError, r"slot_mapping\[1, 0\]=4, 3 rows"),
    ("update", slices((0, -1, 1)), IndexError, r"slot_mapping\[1, 0\]=-1"),
    ("update", slices((0, 0, 2), (1, 4, 2)), ValueError, "slot_mapping writes 1 more than once"),
    ("update", slices((0, 0, 2), count=2), ValueError, r"num_slices=2 must be in \[0, 1\]"),
    ("mla_update", {"slot_mapping": ints(0, 1, 2, 3, 4, 36)}, IndexError, "slot_mapping"),
    ("mla_update", slices((0, 0, 5)), ValueError, "slot_mapping"),
    ("copy", {"sources": ints(1, 9, 2)}, IndexError, r"sources\[1\]=9 must be below 9"),
    ("copy", {"destinations": ints(1, 9, 2)}, IndexError, r"destinations\[1\]=9"),
    ("copy", {"sources": ints(1, 2, 5), "destinations": ints(3, 4, 3)}, ValueError, "destinations writes 3 more"),
    ("copy", {"sources": ints(1, 2, 5), "destinations": ints(3, 4, 1)}, ValueError, "destinations names page 1"),
    ("write", {"page_ids": ints(1, 9)}, IndexError, r"page_ids\[1\]=9"),
    ("write", {"page_ids": ints(2, 2)}, ValueError, "page_ids writes 2 more than once"),
]


@pytest.mark.parametrize(("name", "changes", "error", "message"), DYNAMIC)
def test_refused_when_validated(name: str, changes: Arguments, error: type[Exception], message: str) -> None:
    """R1: the sequence, or the place, is named."""
    function, arguments = CALLS[name]
    with pytest.raises(error, match=rf"{message}.*\[R1\]$"):
        function(**{**arguments(), **changes}, validate=True)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "read"])
def test_validation_needs_concrete_arrays(name: str) -> None:
    """R1: within jit there is nothing to look at."""
    function, arguments = CALLS[name]
    static = {key: value for key, value in arguments().items() if isinstance(value, float)}
    traced = {key: value for key, value in arguments().items() if key not in static}
    with pytest.raises(ValueError, match=r"is traced: validate=True needs concrete arrays, outside of jit \[R1\]"):
        jax.jit(partial(function, validate=True, **static))(**traced)


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("read", "attend", "fused", "mla")])
def test_what_is_in_order_passes(name: str) -> None:
    function, arguments = CALLS[name]
    function(**arguments(), validate=True)
    if "slot_mapping" in arguments():
        function(**{**arguments(), **slices((0, 0, 4), (6, 4, 2), (99, 99, 99), count=2)}, validate=True)


def test_a_batch_in_order_passes_whatever_its_padding_holds() -> None:
    """ATT-4: only what is live is looked at; null pages left of a window are pages like others."""
    batch = make_batch(
        np.random.default_rng(0), [1, 3], [40, 20], num_q_heads=2, num_kv_heads=1, head_dim=64, max_tokens=9, max_seqs=6
    )
    assert np.isfinite(np.asarray(ragged_paged_attention(*batch.arrays, validate=True))).all()
