"""Programs compiled for an H200 on a machine without a GPU.

JAX's plugin for CUDA, which exists for Linux only, compiles for a device that it is told of (`h200.txtpb`); nothing is
run, and neither a driver nor CUDA's libraries are needed. What such a compilation proves: the kernels lower, the shared
memory that they ask for exists, registers are not spilled, arrays that should be updated in place are.
"""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

# The plugin and JAX read these when they are loaded: no GPU is looked for, and none of CUDA's libraries.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")

import jax
import pytest
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, SingleDeviceSharding
from jax.stages import Compiled, Lowered

__all__ = [
    "CALL",
    "KIND",
    "Compilation",
    "Kernel",
    "available",
    "compile_for_gpu",
    "devices",
    "kernels_in",
    "kernels_of",
    "lower_for_gpu",
    "on_gpu",
    "require",
    "shape",
    "text_of",
    "unfenced",
]

CALL = "mosaic_gpu"
"""How a lowered or compiled module names a Pallas kernel for Hopper, among other words of the name."""

KIND = "NVIDIA H200"
"""What JAX calls the device."""

_PLUGIN = "jax_cuda13_plugin"
_NEEDED = (_PLUGIN, "absl")
_TARGET = Path(__file__).with_name("h200.txtpb")

_DUMPS = ("MOSAIC_GPU_DUMP_PTXAS", "MOSAIC_GPU_DUMP_PTX")
_STDOUT = 1

_BEGINS = re.compile(r"Compiling entry function '([^']*)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_MEMORY = re.compile(r"\b(st\.shared|stmatrix|fence\.proxy\.async|wgmma\.mma_async|cp\.async\.bulk|mbarrier\.arrive)")
_ENTRY = ".visible .entry"
_HASH = re.compile(r'kernel_hash = "((?:[^"\\]|\\.)*)"')

_seen: set[str] = set()
"""The hashes of the kernels that this process has compiled."""

shape: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct

Shapes = Any
"""A pytree of `jax.ShapeDtypeStruct`."""


class Kernel(NamedTuple):
    """What ptxas, the last of the compilers, says of a kernel.

    Attributes:
        name: the kernel's.
        registers: of a thread.
        stack: bytes of a thread's stack.
        spilled: bytes that a thread stores and loads because registers don't suffice.
    """

    name: str
    registers: int
    stack: int
    spilled: int


class Compilation(NamedTuple):
    """A program that was compiled, and what is known of it.

    Attributes:
        compiled: the program, which can't be run here.
        kernels: its Pallas kernels, in the order in which they were compiled, each once, but for those that this
            process had compiled before: of them the compiler may print nothing.
        alias_bytes: of the results that lie where an argument lay.
        temp_bytes: needed beside arguments and results.
        unfenced: as the function of this name has it, of the same kernels.
    """

    compiled: Compiled
    kernels: tuple[Kernel, ...]
    alias_bytes: int
    temp_bytes: int
    unfenced: tuple[str, ...]


def available() -> bool:
    """Whether the plugin, and what Pallas needs for such kernels, are installed."""
    return all(find_spec(name) is not None for name in _NEEDED)


def require() -> None:
    """Skips the test, or the module, where programs can't be compiled for GPUs."""
    if not available():
        pytest.skip(
            "jax-cuda13-plugin and absl-py, which compile for GPUs, are not installed (they exist for Linux only)",
            allow_module_level=True,
        )


@cache
def devices(count: int) -> tuple[Any, ...]:
    """H200s of one host to compile for; they can't run anything.

    Args:
        count: how many.
    """
    target = _TARGET.read_text()
    topology = topologies.get_topology_desc(platform="cuda", target_config=target, topology=f"1x1x{count}")
    return tuple(topology.devices)


@contextmanager
def on_gpu(kind: str = KIND) -> Iterator[None]:
    """Within, what is traced sees a GPU of this kind, whether or not there is a compiler for it.

    Args:
        kind: what JAX calls such a device.
    """
    abstract = AbstractDevice(platform="cuda", device_kind=kind, num_cores=None)
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=abstract)
    with jax.sharding.use_abstract_mesh(mesh):
        yield


def lower_for_gpu(function: Callable[..., Any], *shapes: Shapes, donate: Sequence[int] = ()) -> Lowered:
    """Traces and lowers a function for an H200; see `compile_for_gpu`."""
    sharding = SingleDeviceSharding(devices(1)[0])
    placed = jax.tree.map(lambda leaf: shape(leaf.shape, leaf.dtype, sharding=sharding), shapes)
    with on_gpu():
        return jax.jit(function, donate_argnums=tuple(donate)).lower(*placed)


def compile_for_gpu(function: Callable[..., Any], *shapes: Shapes, donate: Sequence[int] = ()) -> Compilation:
    """Compiles a function for an H200. Takes half a second to several, most of it the kernels.

    Args:
        function: a function of arrays, not yet jitted.
        shapes: its arguments, pytrees of `jax.ShapeDtypeStruct`.
        donate: the arguments whose memory the result may take.

    Raises:
        jax.errors.JaxRuntimeError: the compiler refuses it: more shared memory than there is, for one.
        ValueError: Mosaic refuses it.
    """
    lowered = lower_for_gpu(function, *shapes, donate=donate)
    with on_gpu(), _printed() as said:
        compiled = lowered.compile()
    memory = compiled.memory_analysis()
    assert memory is not None, "the compiler gives no account of memory"
    printed, sizes = "".join(said), (memory.alias_size_in_bytes, memory.temp_size_in_bytes)
    kernels = kernels_of(printed)
    assert printed.count(_ENTRY) >= len(kernels), "not all programs were printed"
    return Compilation(compiled, kernels, *sizes, unfenced(printed))


def kernels_in(compiled: Compiled) -> int:
    """How many Pallas kernels a compiled program calls."""
    return len(_HASH.findall(text_of(compiled)))


def text_of(compiled: Compiled) -> str:
    text = compiled.as_text()
    assert text is not None, "the compiler gives no text of the module"
    return text


def kernels_of(printed: str) -> tuple[Kernel, ...]:
    """The kernels of which ptxas printed something. O(characters).

    Raises:
        AssertionError: a kernel's entry is there and its figures are not.
    """
    kernels = []
    begins = list(_BEGINS.finditer(printed))
    for at, begin in enumerate(begins):
        said = printed[begin.end() : begins[at + 1].start() if at + 1 < len(begins) else None]
        spills, used = _SPILLS.search(said), _USED.search(said)
        assert spills, f"ptxas printed no figures of {begin[1]}: {said!r}"
        assert used, f"ptxas printed no figures of {begin[1]}: {said!r}"
        stack, stored, loaded = map(int, spills.groups())
        kernels.append(Kernel(begin[1], int(used[1]), stack, stored + loaded))
    return tuple(kernels)


def unfenced(printed: str) -> tuple[str, ...]:
    """The instructions that may come upon what threads wrote to shared memory and no fence let through to them.

    Copies and products see what threads wrote after a fence only, which the threads that wrote must pass. The
    interpreter of JAX 0.10 knows nothing of it. O(characters).

    Args:
        printed: programs in PTX, in whose text each step of a kernel stands behind those before it.

    Returns:
        Copies, products and arrivals at barriers that follow a write with no fence between.
    """
    found, written = [], False
    for line in printed.splitlines():
        operation = _MEMORY.search(line)
        if operation is None:
            continue
        if operation[1] in ("st.shared", "stmatrix"):
            written = True
        elif operation[1] == "fence.proxy.async":
            written = False
        elif written:
            found.append(line.strip())
    return tuple(found)


@contextmanager
def _printed() -> Iterator[list[str]]:
    """Has kernels printed as PTX, and what ptxas makes of them, and catches that: it is no Python that prints.

    Yields:
        A list, which holds the text afterwards.
    """
    said: list[str] = []
    before = {name: os.environ.get(name) for name in _DUMPS}
    sys.stdout.flush()
    kept = os.dup(_STDOUT)
    with tempfile.TemporaryFile() as file:
        os.environ.update(dict.fromkeys(_DUMPS, "1"))
        os.dup2(file.fileno(), _STDOUT)
        try:
            yield said
        finally:
            os.dup2(kept, _STDOUT)
            os.close(kept)
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
            file.seek(0)
            said.append(file.read().decode(errors="replace"))
