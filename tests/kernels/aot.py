"""Programs compiled for TPUs on a machine without one.

libtpu, which exists for Linux on x86-64 only, compiles for a topology that it is told of; nothing is run. What such a
compilation proves: the kernel lowers, its buffers fit into VMEM, arrays that should be updated in place are.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

# libtpu and JAX read these when they are loaded: no TPU is looked for; libtpu must neither ask the cloud's metadata
# server which machine this is, nor refuse to be loaded beside another process that compiles.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import jax
import pytest
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding
from jax.stages import Compiled, Lowered

__all__ = [
    "CALL",
    "TOPOLOGIES",
    "available",
    "compile_for",
    "device",
    "kernels_in",
    "lower_for",
    "on_device",
    "require",
    "shape",
]

TOPOLOGIES = {"v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2", "7x": "tpu7x:2x2x1"}
"""The smallest topology of each generation that is compiled for."""

CALL = "tpu_custom_call"
"""How a compiled module names a Pallas kernel."""

shape: Callable[..., jax.ShapeDtypeStruct] = jax.ShapeDtypeStruct

Shapes = Any
"""A pytree of `jax.ShapeDtypeStruct`."""


def available() -> bool:
    """Whether libtpu is installed."""
    return find_spec("libtpu") is not None


def require() -> None:
    """Skips the test, or the module, where programs can't be compiled for TPUs."""
    if not available():
        pytest.skip(
            "libtpu, which compiles for TPUs, is not installed (it exists for Linux on x86-64)", allow_module_level=True
        )


@cache
def device(generation: str) -> Any:
    """A device of a generation, to compile for; it can't run anything.

    Args:
        generation: a key of `TOPOLOGIES`.
    """
    return topologies.get_topology_desc(platform="tpu", topology_name=TOPOLOGIES[generation]).devices[0]


@contextmanager
def on_device(target: Any) -> Iterator[None]:
    """Within, what is traced sees the generation of ``target`` (`pltpu.get_tpu_info`).

    Args:
        target: a device of `device`.
    """
    abstract = AbstractDevice(platform="tpu", device_kind=target.device_kind, num_cores=target.num_cores)
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=abstract)):
        yield


def lower_for(generation: str, function: Callable[..., Any], *shapes: Shapes, donate: Sequence[int] = ()) -> Lowered:
    """Traces and lowers a function for one device of a generation; see `compile_for`."""
    target = device(generation)
    sharding = SingleDeviceSharding(target)
    placed = jax.tree.map(lambda leaf: shape(leaf.shape, leaf.dtype, sharding=sharding), shapes)
    with on_device(target):
        return jax.jit(function, donate_argnums=tuple(donate)).lower(*placed)


def compile_for(generation: str, function: Callable[..., Any], *shapes: Shapes, donate: Sequence[int] = ()) -> Compiled:
    """Compiles a function for one device of a generation. Takes half a second to several, most of it the kernels.

    Args:
        generation: a key of `TOPOLOGIES`.
        function: a function of arrays, not yet jitted.
        shapes: its arguments, pytrees of `jax.ShapeDtypeStruct`.
        donate: the arguments whose memory the result may take.

    Raises:
        jax.errors.JaxRuntimeError: the compiler refuses it: buffers that don't fit into VMEM, for one.
    """
    lowered = lower_for(generation, function, *shapes, donate=donate)
    with on_device(device(generation)):
        return lowered.compile()


def kernels_in(compiled: Compiled) -> int:
    """How many Pallas kernels a compiled program calls."""
    text = compiled.as_text()
    assert text is not None, "the compiler gives no text of the module"
    return sum(f'custom_call_target="{CALL}"' in line for line in text.splitlines())
