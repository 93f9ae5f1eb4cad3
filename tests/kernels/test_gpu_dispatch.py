"""Who serves on a GPU: kernels where it is a Hopper, else XLA, which is said once; no other platform sees any of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from kvproof.kernels import (
    KernelsUnavailable,
    ScaledPages,
    choices,
    explain,
    kv_cache_update,
    ragged_paged_attention,
)
from kvproof.kernels.gpu import hopper
from kvproof.kernels.xla import update as xla

from .gpu_aot import CALL, on_gpu

P, PAGE, H, D, T, S, WIDTH = 32, 16, 8, 128, 16, 4, 5

array: Callable[..., Any] = jax.ShapeDtypeStruct


def ids(*shape: int) -> Any:
    return array(shape, jnp.int32)


def slices(pages: Any, keys: Any, values: Any, mapping: Any, count: Any) -> Any:
    return kv_cache_update(pages, keys, values, mapping, num_slices=count)


LENGTHS = (ids(S), ids(S, WIDTH), ids(S + 1), ids(1))
ROWS = array((T, H, D), jnp.bfloat16)
PAGES = array((P, PAGE, H, 2, D), jnp.bfloat16)
SCALED = ScaledPages(array((P, PAGE, H // 2, 4, D), jnp.int8), array((P, PAGE, 2 * H), jnp.float32))

UPDATES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "update": (kv_cache_update, (PAGES, ROWS, ROWS, ids(T))),
    "update_of_slices": (slices, (PAGES, ROWS, ROWS, ids(3, T), ids(1))),
    "update_with_scales": (kv_cache_update, (SCALED, ROWS, ROWS, ids(T))),
}
"""What the GPU's kernels take and is lowered in no time."""

HOPPERS = ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 NVL", "NVIDIA GH200 480GB", "NVIDIA H20", "NVIDIA H800"]
OTHERS = ["NVIDIA A100-SXM4-80GB", "NVIDIA B200", "NVIDIA GB200", "NVIDIA L40S", "Tesla V100-SXM2-16GB"]
TAKEN = ["update", "update_of_slices"]


def traced(name: str, kind: str | None) -> Any:
    """A call of `UPDATES`, traced where GPUs of a kind are in sight, or none: once for each kind in a process."""
    function, arguments = UPDATES[name]
    if kind is None:
        return jax.jit(function).trace(*arguments)
    with on_gpu(kind):
        return jax.jit(function).trace(*arguments)


def text(program: Any, *platforms: str) -> str:
    return str(program.lower(lowering_platforms=platforms).as_text())


@pytest.mark.parametrize("name", TAKEN)
def test_a_hopper_gets_kernels_and_other_platforms_do_not(name: str) -> None:
    pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")
    program = traced(name, HOPPERS[0])
    assert CALL in text(program, "cuda")
    assert "tpu_custom_call" not in text(program, "cuda")
    for platform in ("cpu", "tpu"):
        assert CALL not in text(program, platform)


@pytest.mark.parametrize("name", TAKEN)
def test_a_mapped_update_is_xlas(name: str) -> None:
    """CACHE-3: under `vmap` no kernel changes what it is given, on any platform; what XLA does is the same."""
    pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")
    function, arguments = UPDATES[name]
    pages, *others = jax.tree.map(lambda leaf: array((2, *leaf.shape), leaf.dtype), arguments)
    with on_gpu(HOPPERS[0]):
        every = jax.jit(jax.vmap(function)).trace(pages, *others)
        one = jax.jit(jax.vmap(function, in_axes=(0, *(None for _ in others)))).trace(pages, *arguments[1:])
    for program in (every, one):
        assert program.out_info.shape == pages.shape
        assert CALL not in text(program, "cpu")
        with choices.listening() as told:
            assert CALL not in text(program, "cuda")
        assert [said.reason for said in told] == ["no kernel is mapped by jax.vmap"]


def test_attention_is_by_kernels_for_hoppers_only() -> None:
    """Lowering it takes seconds, and is for those who compile it."""
    pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")
    arguments = (array((T, 32, D), jnp.float16), array((P, PAGE, 2 * H, D), jnp.float16), *LENGTHS)
    told = explain(ragged_paged_attention, *arguments, platform="cuda")
    assert [said.kernel for said in told] == ["paged_prefill", "paged_combine", "paged_decode"]
    assert all("no GPU is in sight" in str(said) for said in told)
    with on_gpu(HOPPERS[0]):
        assert all(said.runs for said in explain(ragged_paged_attention, *arguments, platform="cuda"))
        single = (array((1, 32, D), jnp.float16), *arguments[1:])
        prefill, combine, decode = explain(ragged_paged_attention, *single, platform="cuda")
    assert decode.runs
    assert combine.runs
    assert prefill.reason == "one token: no sequence has several"


@pytest.mark.parametrize("name", TAKEN)
def test_nothing_changes_where_no_gpu_is_in_sight(name: str) -> None:
    """No warning and no Mosaic, alone or in a program for several platforms."""
    program = traced(name, None)
    assert CALL not in text(program, "cuda")
    assert CALL not in text(program, "cpu", "cuda")


@pytest.mark.parametrize("name", TAKEN)
def test_a_program_for_several_platforms_has_the_kernels_of_each(name: str) -> None:
    pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")
    program = text(traced(name, HOPPERS[0]), "cpu", "tpu", "cuda")
    assert CALL in program
    assert "tpu_custom_call" in program


def test_what_is_not_a_hopper_is_served_by_xla_which_is_said_once() -> None:
    programs = [traced(name, "NVIDIA A100 of a test") for name in TAKEN]
    with pytest.warns(KernelsUnavailable, match=r"XLA serves: they are for Hopper .* not for NVIDIA A100") as told:
        texts = [text(program, "cuda") for program in programs]
    assert len(told) == 1
    assert not any(CALL in each for each in texts)


def test_scales_that_xla_writes_beside_the_kernel_are_no_fall() -> None:
    """CACHE-4: whoever compiles an update of ScaledPages is warned where XLA writes their values, and only there."""
    pytest.importorskip("absl", reason="absl-py, which Mosaic GPU needs, is not installed")
    assert CALL in text(traced("update_with_scales", HOPPERS[0]), "cuda")
    heads = 260
    large: Any = ScaledPages(array((2, 2, 2 * heads, D), jnp.int8), array((2, 2, 2 * heads), jnp.float32))
    rows = array((T, heads, D), jnp.bfloat16)
    with on_gpu(HOPPERS[0]):
        program = jax.jit(kv_cache_update).trace(large, rows, rows, array((T,), jnp.int32))
    with pytest.warns(KernelsUnavailable, match="slots of 66560 numbers of 1 bytes are too large") as told:
        assert CALL not in text(program, "cuda")
    assert len(told) == 1


def test_what_can_not_be_imported_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "_MOSAIC", "kvproof.kernels.gpu.nothing")
    programs = [traced(name, "NVIDIA H100 of a test") for name in TAKEN]
    with pytest.warns(KernelsUnavailable, match="can't be imported: No module named") as told:
        texts = [text(program, "cuda") for program in programs]
    assert len(told) == 1
    assert not any(CALL in each for each in texts)


@pytest.mark.parametrize("kind", HOPPERS + OTHERS)
def test_a_kind_is_known_by_its_name(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper, "_MOSAIC", "json")
    with on_gpu(kind):
        assert hopper.in_sight()
        assert (hopper.unavailable() is None) is (kind in HOPPERS)


class Device:
    """What JAX knows of a device that is here."""

    def __init__(self, kind: str, capability: str) -> None:
        self.device_kind, self.compute_capability = kind, capability


@pytest.mark.parametrize(
    ("capabilities", "served"), [(["9.0"], True), (["9.0", "9.0"], True), (["8.0"], False), (["9.0", "10.0"], False)]
)
def test_devices_that_are_here_are_asked(
    capabilities: list[str], served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them must be Hoppers; their names don't count."""
    monkeypatch.setattr(hopper, "_MOSAIC", "json")
    monkeypatch.setattr(hopper, "_cuda_devices", lambda: [Device(f"some {c}", c) for c in capabilities])
    assert hopper.in_sight()
    assert (hopper.unavailable() is None) is served
    with on_gpu("some 9.0"):
        assert (hopper.unavailable() is None) is ("9.0" in capabilities)


def test_a_mesh_of_another_platform_hides_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is how a program for several platforms is exported where a Hopper is."""
    monkeypatch.setattr(hopper, "_cuda_devices", lambda: [Device("some", "9.0")])
    cpu = AbstractDevice(platform="cpu", device_kind="cpu", num_cores=None)
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=cpu)):
        assert not hopper.in_sight()
        assert "no GPU is in sight" in str(hopper.unavailable())


def test_distinct_slots_are_written_like_others() -> None:
    """CACHE-3: what XLA is told for GPUs changes nothing but how, mapped or not, whatever is mapped."""
    rng = np.random.default_rng(0)
    pages, rows = (jnp.asarray(rng.standard_normal((*shape, 4)), jnp.float32) for shape in ((3, 4), (6,)))
    slots = jnp.asarray([11, -1, 0, 12, 5, -(2**31)], jnp.int32)
    slices = jnp.asarray([[1, 9, 4], [0, 1, 4], [3, 2, 1]], jnp.int32)
    update = jax.jit(xla.update, static_argnames="distinct")
    for mapping in ((slots,), (slices, jnp.asarray([3], jnp.int32))):
        plain, told = (update(pages, rows, *mapping, distinct=distinct) for distinct in (False, True))
        np.testing.assert_array_equal(plain, told)
        both, twice = jnp.stack([rows, -rows]), (jnp.stack([array, array]) for array in mapping)
        mapped = jax.vmap(partial(update, distinct=True))(jnp.stack([pages, -pages]), both, *twice)
        np.testing.assert_array_equal(mapped, jnp.stack([plain, -plain]))
        mapped = jax.vmap(lambda new, mapping=mapping: update(pages, new, *mapping, distinct=True))(both)
        np.testing.assert_array_equal(mapped, jnp.stack([plain, update(pages, -rows, *mapping)]))
