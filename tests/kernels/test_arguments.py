"""What is refused: by shape, type and option when a call is traced, by content with ``validate=True`` (R1)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
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
    ("attend", {"num_seqs": zeros(2, dtype=np.int32)}, ValueError, "num_seqs.shape"),
    ("attend", {"page_table": zeros(3, 0, dtype=np.int32)}, ValueError, "page_table.shape"),
    ("attend", {"page_table": virtual(3, 2**29, dtype=np.int32)}, ValueError, r"page_table.*2\^31"),
    ("attend", {"kv_pages": virtual(2**29, 4, 4, 128)}, ValueError, r"kv_pages.*2\^31"),
    ("attend", {"queries": zeros(T, 0, D)}, ValueError, "queries.shape"),
    ("attend", {"kv_pages": zeros(P, PAGE, 2 * H, D, dtype=np.uint16)}, TypeError, "kv_dtype=None"),
    ("attend", {"kv_pages": zeros(P, PAGE, 2 * H, D, dtype=np.int8)}, ValueError, "k_scale=None and v_scale=None"),
    ("attend", {"kv_pages": zeros(0, PAGE, 2 * H, D)}, ValueError, "kv_pages.shape"),
    ("attend", {"kv_pages": zeros(P, PAGE, D)}, ValueError, "kv_pages.shape"),
    ("attend", {"kv_pages": "pages"}, TypeError, "kv_pages must be an array, not str"),
    ("attend", {"kv_dtype": "float33"}, TypeError, "kv_dtype='float33'"),
    ("attend", {"scale": float("inf")}, ValueError, "scale=inf"),
    ("attend", {"sinks": [0.0] * HQ}, TypeError, "sinks must be an array"),
    ("update", {"values": zeros(T, H, D, dtype=np.float16)}, TypeError, "values must be float32"),
    ("update", {"slot_mapping": zeros(3, 2, dtype=np.int32)}, ValueError, "slot_mapping.shape"),
    ("update", {"kv_pages": zeros(P, PAGE, 2 * H, D, dtype=np.int8), "k_scale": 1.0}, ValueError, "v_scale=None"),
    ("fused", {"keys": zeros(T + 1, H, D), "values": zeros(T + 1, H, D)}, ValueError, r"keys.shape\[0\]=7"),
    ("fused", {"queries": zeros(T, HQ, 64)}, ValueError, r"keys.shape\[2\]=128"),
    ("fused", {"v_head_dim": 64}, ValueError, "v_head_dim=64"),
    ("mla", {"rotary_queries": zeros(T, HQ, 200)}, ValueError, r"latent_pages.shape\[2\]=256"),
    ("mla", {"latent_pages": zeros(P, PAGE, 256, dtype=np.int8)}, TypeError, "latent_pages"),
    ("mla_update", {"rotary": zeros(T, 20, dtype=np.float16)}, TypeError, "rotary must be float32"),
    ("mla_update", {"latents": zeros(T, 200)}, ValueError, "latent_pages"),
    ("copy", {"pages": zeros(P), "num_slots": zeros(3, dtype=np.int32)}, ValueError, "[P, page, ...]"),
    ("copy", {"pages": [zeros(P), zeros(P + 1)]}, ValueError, "the same number of pages"),
    ("copy", {"pages": zeros(0, 2)}, ValueError, "pages must hold arrays"),
    ("write", {"states": {"a": zeros(3, 2)}}, ValueError, "states.shape"),
    ("write", {"states": {"a": zeros(2, 2, dtype=np.float16)}}, TypeError, "states must be float32"),
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


DYNAMIC: list[tuple[str, Arguments, type[Exception], str]] = [
    ("fused", changed("page_table", (1, 2), 1), ValueError, "written through page_table writes 7 more than once"),
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
