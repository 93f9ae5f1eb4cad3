"""What is lowered for a TPU gets the kernels, and for other platforms plain JAX; neither needs the device."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
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
from kvproof.kernels.choices import listening

P, PAGE, H, D, T, S, WIDTH = 32, 16, 8, 128, 16, 4, 5

array: Callable[..., Any] = jax.ShapeDtypeStruct


def ids(*shape: int) -> Any:
    return array(shape, jnp.int32)


LENGTHS = (ids(S), ids(S, WIDTH), ids(S + 1), ids(1))
QUERIES = array((T, 32, D), jnp.bfloat16)
ROWS = array((T, H, D), jnp.bfloat16)
PAGES = array((P, PAGE, H, 2, D), jnp.bfloat16)
BITS = array((P, PAGE, H, 2, D), jnp.uint16)
SCALED = ScaledPages(array((P, PAGE, H // 2, 4, D), jnp.int8), array((P, PAGE, 2 * H), jnp.float32))
LATENTS = array((P, 32, 640), jnp.bfloat16)


def slices(pages: Any, keys: Any, values: Any, mapping: Any, count: Any) -> Any:
    return kv_cache_update(pages, keys, values, mapping, num_slices=count)


KERNELS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "attention": (ragged_paged_attention, (QUERIES, PAGES, *LENGTHS)),
    "attention_over_bits": (partial(ragged_paged_attention, kv_dtype=jnp.bfloat16), (QUERIES, BITS, *LENGTHS)),
    "fused": (fused_ragged_paged_attention, (QUERIES, ROWS, ROWS, PAGES, *LENGTHS)),
    "attention_with_scales": (ragged_paged_attention, (QUERIES, SCALED, *LENGTHS)),
    "update": (kv_cache_update, (PAGES, ROWS, ROWS, ids(T))),
    "update_of_slices": (slices, (PAGES, ROWS, ROWS, ids(3, T), ids(1))),
    "update_with_scales": (kv_cache_update, (SCALED, ROWS, ROWS, ids(T))),
    "mla": (
        partial(mla_paged_attention, scale=0.1),
        (array((T, 16, 512), jnp.bfloat16), array((T, 16, 64), jnp.bfloat16), LATENTS, *LENGTHS),
    ),
    "copy": (copy_pages, ([PAGES], ids(S), ids(S))),
}

PLAIN: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mla_update": (
        mla_cache_update,
        (LATENTS, array((T, 512), jnp.bfloat16), array((T, 64), jnp.bfloat16), ids(T)),
    ),
    "read": (read_states, (PAGES, ids(S))),
    "write": (write_states, (PAGES, ids(S), array((S, *PAGES.shape[1:]), jnp.bfloat16))),
}


def lowered(function: Callable[..., Any], arguments: tuple[Any, ...], platform: str) -> str:
    return str(jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text())


@pytest.mark.parametrize("name", KERNELS)
def test_a_tpu_gets_kernels_and_others_do_not(name: str) -> None:
    function, arguments = KERNELS[name]
    with listening():
        assert "tpu_custom_call" in lowered(function, arguments, "tpu")
    for platform in ("cpu", "cuda"):
        assert "custom_call" not in lowered(function, arguments, platform).replace("@Sharding", "")


@pytest.mark.parametrize("name", PLAIN)
def test_what_no_kernel_takes_is_plain_everywhere(name: str) -> None:
    function, arguments = PLAIN[name]
    with listening():
        assert "tpu_custom_call" not in lowered(function, arguments, "tpu")
