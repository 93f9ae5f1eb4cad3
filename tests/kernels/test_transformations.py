"""The public functions under whatever JAX wraps round them: x64, meshes, exports, `vmap`, `grad`; and with no tokens.

The kernels of other platforms must not be minded where they don't run, and must be there where they do.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType

from kvproof.kernels import (
    ScaledPages,
    choices,
    copy_pages,
    explain,
    export_pages,
    fused_ragged_paged_attention,
    kv_cache_update,
    mla_cache_update,
    mla_paged_attention,
    ragged_paged_attention,
    read_states,
    write_states,
)
from kvproof.kernels.layout import CacheLayout

Arrays = dict[str, Any]

P: Callable[..., Any] = jax.P
shape: Callable[..., Any] = jax.ShapeDtypeStruct
TOKENS, HEADS, PAGES, PAGE = 6, 4, 8, 4
_export: Callable[..., Any] = jax.export.export


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ids(*numbers: Any) -> Any:
    return np.array(numbers, np.int32)


LENGTHS: Arrays = {
    "kv_lens": ids(5, 9, 0),
    "page_table": ids([1, 2, -1], [3, 5, 7], [0, 0, 99]),
    "cu_q_lens": ids(0, 1, 6, 6),
    "num_seqs": ids(2),
}
QUERIES, ROWS = normal(0, TOKENS, 2 * HEADS, 128), normal(1, TOKENS, HEADS, 128)
CACHE = normal(2, PAGES, PAGE, 2 * HEADS, 128)
SCALED: Any = ScaledPages(
    jnp.ones((PAGES, PAGE, HEADS // 2, 4, 128), jnp.int8), jnp.full((PAGES, PAGE, 2 * HEADS), 0.1, jnp.float32)
)
LATENTS = normal(3, PAGES, 8, 256)
SLOTS = ids(3, -1, 9, 31, 32, 12)
SLICES: Arrays = {"slot_mapping": ids([0, 9], [0, 2], [2, 3]), "num_slices": ids(2)}

CALLS: dict[str, tuple[Callable[..., Any], Arrays]] = {
    "attention": (ragged_paged_attention, {"queries": QUERIES, "kv_pages": CACHE, **LENGTHS}),
    "fused": (
        fused_ragged_paged_attention,
        {"queries": QUERIES, "keys": ROWS, "values": ROWS, "kv_pages": CACHE, **LENGTHS},
    ),
    "update": (kv_cache_update, {"kv_pages": CACHE, "keys": ROWS, "values": ROWS, "slot_mapping": SLOTS}),
    "slices": (kv_cache_update, {"kv_pages": CACHE, "keys": ROWS, "values": ROWS, **SLICES}),
    "scaled": (kv_cache_update, {"kv_pages": SCALED, "keys": ROWS, "values": ROWS, "slot_mapping": SLOTS}),
    "mla": (
        partial(mla_paged_attention, scale=0.1),
        {
            "queries": normal(4, TOKENS, 8, 128),
            "rotary_queries": normal(5, TOKENS, 8, 64),
            "latent_pages": LATENTS,
            **LENGTHS,
        },
    ),
    "mla_update": (
        mla_cache_update,
        {
            "latent_pages": LATENTS,
            "latents": normal(6, TOKENS, 128),
            "rotary": normal(7, TOKENS, 64),
            "slot_mapping": SLOTS,
        },
    ),
    "copy": (copy_pages, {"pages": CACHE, "sources": ids(1, -1, 2), "destinations": ids(4, 5, 99)}),
    "export": (export_pages, {"pages": CACHE, "page_ids": ids(1, -1), "num_slots": ids(3, 4)}),
    "read": (read_states, {"pages": CACHE, "page_ids": ids(1, -1)}),
    "write": (write_states, {"pages": CACHE, "page_ids": ids(1, -1), "states": CACHE[:2]}),
}

KERNELS = {"attention": 1, "fused": 2, "update": 1, "slices": 1, "scaled": 1, "mla": 2, "copy": 1}
"""The calls that kernels for TPUs take, and how many of them."""

NAMES = list(CALLS)

KERNEL_NAME = re.compile(r'kernel_name = "([^"]*)"')


@cache
def plain(name: str) -> Any:
    """What a call gives with nothing round it: `of_arrays` is asked before there is anything."""
    function, arrays = CALLS[name]
    return jax.tree.map(np.asarray, function(**arrays))


def same(got: Any, name: str) -> None:
    """Holds that what came out is what comes out with nothing round it, in the same dtypes, but for rounding."""
    for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(plain(name)), strict=True):
        assert left.dtype == right.dtype
        np.testing.assert_allclose(np.asarray(left), right, rtol=2e-6, atol=2e-6)


def of_arrays(name: str) -> tuple[Callable[[Arrays], Any], Arrays]:
    """A call as a function of one pytree; what it gives by itself is worked out first."""
    function, arrays = CALLS[name]
    plain(name)
    return lambda given: function(**given), arrays


def kernels_in(program: Any) -> int:
    return str(program.as_text()).count("@tpu_custom_call")


@pytest.mark.parametrize("name", NAMES)
def test_with_numbers_of_64_bits_enabled(name: str) -> None:
    """ATT-1, CACHE-3: on all platforms; no number of the result has more bits for it."""
    call, arrays = of_arrays(name)
    with jax.enable_x64(True):
        same(jax.jit(call)(arrays), name)
        for platform in ("tpu", "cuda"):
            lowered = jax.jit(call).trace(arrays).lower(lowering_platforms=(platform,))
            assert kernels_in(lowered) == (KERNELS.get(name, 0) if platform == "tpu" else 0)


def test_bits_of_numbers_get_the_kernels_of_those_numbers() -> None:
    """CACHE-2: a bfloat16 cache that is declared as numbers of 16 bits."""
    pages = shape((PAGES, PAGE, 1, 2, 128), jnp.uint16)
    call = partial(ragged_paged_attention, kv_dtype=jnp.bfloat16)
    traced = jax.jit(call).trace(shape((1, 2, 128), jnp.bfloat16), pages, *LENGTHS.values())
    assert kernels_in(traced.lower(lowering_platforms=("tpu",))) > 0


def test_pages_of_64_bits_are_copied() -> None:
    """MAN-13: what is copied may be anything."""
    with jax.enable_x64(True):
        pages = jnp.arange(8, dtype=jnp.int64).reshape(4, 2, 1) + 2**40
        copied = copy_pages(pages, ids(0), ids(3))
        assert copied.dtype == np.int64
        np.testing.assert_array_equal(np.asarray(copied[3]), np.asarray(pages[0]))
        jax.jit(copy_pages).trace(pages, ids(0), ids(3)).lower(lowering_platforms=("tpu",))


@pytest.mark.parametrize(("name", "eager"), [*((name, False) for name in NAMES), ("attention", True), ("update", True)])
def test_within_shard_map(name: str, eager: bool) -> None:
    """CACHE-5: with the check of what varies, as it is by default; each device has a copy, all made to vary."""
    call, arrays = of_arrays(name)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))

    def varying(given: Arrays) -> Any:
        moved = jax.tree.map(lambda array: jax.lax.pcast(array, ("x",), to="varying"), given)
        return jax.tree.map(lambda array: array[None], call(moved))

    mapped = jax.shard_map(varying, mesh=mesh, in_specs=P(), out_specs=P("x"))
    both = mapped(arrays) if eager else jax.jit(mapped)(arrays)
    for place in range(2):
        same(jax.tree.map(lambda array, place=place: array[place], both), name)
    if not eager:
        lowered = jax.jit(mapped).trace(arrays).lower(lowering_platforms=("tpu",))
        assert kernels_in(lowered) == KERNELS.get(name, 0)


SPLIT: dict[str, Any] = {
    "queries": P(None, "x"),
    "keys": P(None, "x"),
    "values": P(None, "x"),
    "kv_pages": P(None, None, "x"),
    "rotary_queries": P(None, "x"),
}
"""Heads over the mesh, all else on each device."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, AxisType.Explicit) for name in ("attention", "fused", "update", "slices", "scaled", "mla")),
        ("attention", AxisType.Auto),
    ],
)
def test_arrays_on_a_mesh(name: str, kind: AxisType) -> None:
    """CACHE-5: XLA splits the program, wherever its arrays lie; on an Explicit mesh the result's type says how.

    On an Auto mesh machine sharded draws the calls.
    """
    call, arrays = of_arrays(name)
    mesh = jax.make_mesh((2,), ("x",), axis_types=(kind,))

    def placed(argument: str, tree: Any) -> Any:
        return jax.tree.map(lambda a: jax.device_put(a, jax.NamedSharding(mesh, SPLIT.get(argument, P()))), tree)

    given = {argument: placed(argument, tree) for argument, tree in arrays.items()}
    same(call(given), name)
    with jax.set_mesh(mesh):
        same(jax.jit(call)(given), name)
    if kind == AxisType.Explicit:
        like = given["queries"] if "queries" in given else jax.tree.leaves(given["kv_pages"])[0]
        out = jax.tree.leaves(jax.eval_shape(call, given))[0]
        assert out.sharding.spec[: len(SPLIT["queries"])] == like.sharding.spec[: len(SPLIT["queries"])]


def test_a_tpu_program_that_xla_splits_has_no_kernels_which_is_said() -> None:
    """JAX refuses to lower such a kernel; whoever wants it calls it within `shard_map`."""
    call, arrays = of_arrays("fused")
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Auto,))
    placed = jax.tree.map(lambda a: jax.device_put(a, jax.NamedSharding(mesh, P())), arrays)
    program = jax.jit(call).trace(placed)
    with pytest.warns(choices.KernelsUnavailable, match="call it within jax.shard_map") as told:
        assert kernels_in(program.lower(lowering_platforms=("tpu",))) == 0
    assert len(told) == 1


@pytest.mark.parametrize("name", NAMES)
def test_exported_for_several_platforms_at_once(name: str) -> None:
    """A TPU's kernels are in the program, and what runs on a CPU is what always does."""
    call, arrays = of_arrays(name)
    exported = _export(jax.jit(call), platforms=("cpu", "tpu"))(arrays)
    same(exported.call(arrays), name)
    assert exported.mlir_module().count("@tpu_custom_call") == KERNELS.get(name, 0)


@pytest.mark.parametrize("name", NAMES)
def test_mapped(name: str) -> None:
    """Each element is as if it were alone; on a TPU the kernels serve one after the other."""
    call, arrays = of_arrays(name)
    twice = jax.tree.map(lambda array: np.stack([array, array]), arrays)
    mapped = jax.jit(jax.vmap(call))
    both = mapped(twice)
    for place in range(2):
        same(jax.tree.map(lambda array, place=place: array[place], both), name)
    assert kernels_in(mapped.trace(twice).lower(lowering_platforms=("tpu",))) == KERNELS.get(name, 0)
    first = next(iter(arrays))
    some = jax.vmap(lambda part: call(arrays | {first: part}))(jax.tree.map(lambda a: np.stack([a, a]), arrays[first]))
    same(jax.tree.map(lambda array: array[1], some), name)


@pytest.mark.parametrize("name", ["attention", "fused", "update", "mla", "mla_update", "copy"])
def test_there_is_no_derivative_which_is_said(name: str) -> None:
    call, arrays = of_arrays(name)

    def loss(array: Any) -> Any:
        return jax.tree.leaves(call(arrays | {first: array}))[0].sum()

    first = next(iter(arrays))
    with pytest.raises(NotImplementedError, match=r"has no derivative: it is for inference"):
        jax.grad(loss)(arrays[first])


@pytest.mark.parametrize("name", NAMES)
def test_without_jit(name: str) -> None:
    call, arrays = of_arrays(name)
    with jax.disable_jit():
        same(call(arrays), name)


EMPTY = {"queries", "keys", "values", "rotary_queries", "latents", "rotary", "sources", "destinations", "page_ids"}
EMPTY |= {"num_slots", "states"}


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
@pytest.mark.parametrize("name", NAMES)
def test_no_tokens(name: str, platform: str) -> None:
    """ATT-2, CACHE-3: nothing to read or write is nothing to do, for every function on every platform."""
    call, arrays = of_arrays(name)
    none = {argument: tree[:0] if argument in EMPTY else tree for argument, tree in arrays.items()}
    if "num_slices" in none:
        none["slot_mapping"] = none["slot_mapping"][:, :0]
    elif "slot_mapping" in none:
        none["slot_mapping"] = none["slot_mapping"][:0]
    if platform != "cpu":
        jax.jit(call).trace(none).lower(lowering_platforms=(platform,))
        return
    made = call(none)
    pages = [leaf for leaf in jax.tree.leaves(made) if leaf.size]
    kept = [leaf for argument, tree in none.items() if "pages" in argument for leaf in jax.tree.leaves(tree)]
    for left, right in zip(pages, kept if pages else [], strict=True):
        np.testing.assert_array_equal(np.asarray(left), right)


@pytest.mark.parametrize("name", ["attention", "fused", "mla"])
def test_the_number_of_sequences_may_stand_first_among_as_many(name: str) -> None:
    """R1: `i32[1]` and `i32[S]`, of which the first counts; no other shape."""
    call, arrays = of_arrays(name)
    same(call(arrays | {"num_seqs": ids(2, -1, 77)}), name)
    with pytest.raises(ValueError, match=r"num_seqs\.shape=\(2,\) must be \[1\] or \[3\] \[R1\]"):
        call(arrays | {"num_seqs": ids(2, 2)})


def test_which_kernel_runs_is_said_by_the_dispatch_itself() -> None:
    for name, count in KERNELS.items():
        function, arrays = CALLS[name]
        told = explain(function, **arrays, platform="tpu")
        assert all(said.function == getattr(function, "func", function).__name__ for said in told)
        lowered = jax.jit(of_arrays(name)[0]).trace(arrays).lower(lowering_platforms=("tpu",))
        assert kernels_in(lowered) == count
        assert sorted(KERNEL_NAME.findall(str(lowered.as_text()))) == sorted(said.kernel for said in told if said.runs)
        assert explain(function, **arrays, platform="cpu") == ()
    (said,) = explain(mla_cache_update, **CALLS["mla_update"][1], platform="tpu")
    assert not said.runs
    assert str(said).startswith("mla_cache_update: kv_update does not run: kv_pages.ndim=3")
    with pytest.raises(ValueError, match=r"platform='abacus' must be one of .* \[R1\]"):
        explain(copy_pages, **CALLS["copy"][1], platform="abacus")


@settings(max_examples=3)
@given(
    tokens=st.sampled_from([0, 1, 3, 64]),
    seqs=st.sampled_from([1, 8]),
    page=st.sampled_from([4, 16, 24]),
    heads=st.sampled_from([(1, 1), (2, 8), (8, 16), (1, 32)]),
    dim=st.sampled_from([64, 128, 320]),
    dtype=st.sampled_from([jnp.bfloat16, jnp.float32, jnp.float16]),
    version=st.sampled_from(["v2", "v3"]),
)
def test_explain_names_the_kernels_that_are_launched(
    tokens: int, seqs: int, page: int, heads: tuple[int, int], dim: int, dtype: Any, version: str
) -> None:
    """For drawn shapes: its names are those in the program that is lowered for a TPU."""
    layout = CacheLayout(version, heads[0], dim, dim, 4 // jnp.dtype(dtype).itemsize if version == "v3" else 1)
    pages, ids = shape((40, *layout.page_shape(page)), dtype), shape((tokens,), jnp.int32)
    lengths = [shape(size, jnp.int32) for size in ((seqs,), (seqs, 16), (seqs + 1,), (1,))]
    queries, rows = shape((tokens, heads[1], dim), dtype), shape((tokens, heads[0], dim), dtype)
    calls: list[tuple[Callable[..., Any], list[Any]]] = [
        (partial(ragged_paged_attention, num_kv_heads=heads[0]), [queries, pages, *lengths]),
        (fused_ragged_paged_attention, [queries, rows, rows, pages, *lengths]),
        (kv_cache_update, [pages, rows, rows, ids]),
        (copy_pages, [pages, ids, ids]),
    ]
    for call, arrays in calls:
        with choices.listening():  # what is left to XLA is warned of elsewhere
            lowered = jax.jit(call).trace(*arrays).lower(lowering_platforms=("tpu",))
        launched = KERNEL_NAME.findall(str(lowered.as_text()))
        said = [told.kernel for told in explain(call, *arrays, platform="tpu") if told.runs]
        assert sorted(said) == sorted(launched), (call, arrays)


def test_a_copy_of_parts_is_explained() -> None:
    """MAN-17: a TPU's kernel copies whole pages."""
    pages, ids = shape((40, 16, 8, 2, 128), jnp.bfloat16), shape((3,), jnp.int32)
    (said,) = explain(copy_pages, pages, ids, ids, ids, platform="tpu")
    assert str(said) == "copy_pages: copy_pages does not run: num_slots: the kernel copies whole pages"


def test_a_whole_step_is_explained() -> None:
    """All calls of a function, in its order; nobody is warned."""
    pages = shape((PAGES, 16, 2, 2, 128), jnp.bfloat16)
    rows = shape((TOKENS, 2, 128), jnp.bfloat16)

    def step(pages: Any, rows: Any, table: Any) -> Any:
        lengths = (jnp.zeros(256, jnp.int32), table, jnp.zeros(257, jnp.int32), jnp.zeros(1, jnp.int32))
        written = kv_cache_update(pages, rows, rows, jnp.zeros(TOKENS, jnp.int32))
        return jax.jit(ragged_paged_attention)(rows, written, *lengths)

    def reasons(width: int) -> list[tuple[str, str]]:
        told = explain(step, pages, rows, shape((256, width), jnp.int32), platform="tpu")
        return [(said.kernel, said.reason or "") for said in told]

    drafts = "6 tokens, no more than rows of the page table: most sequences have one"
    kernels = [("kv_update", ""), ("ragged_attention", ""), ("paged_decode", ""), ("paged_decode_drafts", drafts)]
    assert reasons(64) == kernels
    update, attention = reasons(1024)
    assert update == ("kv_update", "")
    assert attention[0] == "ragged_attention"
    assert "scalar memory" in attention[1]


def test_a_fall_to_xla_on_a_tpu_is_warned_of_once() -> None:
    function, arrays = CALLS["attention"]
    wide = {**arrays, "page_table": np.zeros((3, 100_000), np.int32)}
    programs = [jax.jit(lambda given, s=scale: function(**given, scale=s)).trace(wide) for scale in (0.5, 0.25)]
    with pytest.warns(choices.KernelsUnavailable, match="TPU kernels are not used for ragged_paged_attention") as told:
        texts = [program.lower(lowering_platforms=("tpu",)).as_text() for program in programs]
    assert len(told) == 1
    assert not any("tpu_custom_call" in each for each in texts)
