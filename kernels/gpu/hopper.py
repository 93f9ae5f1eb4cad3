"""Whether what is traced is for a Hopper, the one generation of GPUs that the kernels are written for.

A program is lowered for a platform, ``cuda``, and not for a generation; so that is asked when it is traced:

| what is known | who serves |
|---|---|
| a mesh is in use whose devices are of a kind: `jax.set_mesh`, or an abstract mesh to compile for | as that kind is |
| else, CUDA devices of this process | the kernels where all of them are Hoppers |
| neither | XLA: a program that is exported for ``cuda`` where no GPU is, for one |

Where GPUs are in sight and the kernels don't serve, a `KernelsUnavailable` says why (`choices`).
"""

import re
from importlib import import_module
from typing import Any

import jax

__all__ = ["in_sight", "unavailable"]

_CAPABILITY = "9.0"
"""What CUDA calls Hopper."""

_KINDS = re.compile(r"\bG?H(20|100|200|800)\b")
"""How the names of Hoppers read, of which nothing but the name may be known."""

_MOSAIC = "jax.experimental.pallas.mosaic_gpu"


def in_sight() -> bool:
    """Whether what is traced now may come to run on a GPU, of whatever kind. O(devices)."""
    return bool(_kinds())


def unavailable() -> str | None:
    """Why kernels for Hopper can't be part of what is traced now, or None when they can. O(devices)."""
    kinds = _kinds()
    if not kinds:
        return "no GPU is in sight where this is lowered"
    others = sorted(kind for kind, is_hopper in kinds.items() if not is_hopper)
    if others:
        return f"they are for Hopper (compute capability {_CAPABILITY}), not for {', '.join(others)}"
    try:
        import_module(_MOSAIC)
    except ImportError as error:
        return f"{_MOSAIC} can't be imported: {error}"
    return None


def _kinds() -> dict[str, bool]:
    """The GPUs that are traced for: what JAX calls their kind, and whether that is a Hopper."""
    here = {str(device.device_kind): device.compute_capability == _CAPABILITY for device in _cuda_devices()}
    expected = jax.sharding.get_abstract_mesh().abstract_device
    if expected is None:
        return here
    if expected.platform not in ("gpu", "cuda"):
        return {}
    kind = expected.device_kind
    return {kind: here.get(kind, _KINDS.search(kind) is not None)}


def _cuda_devices() -> list[Any]:
    """This process's CUDA devices: none, where JAX has no such platform, which it says by raising."""
    try:
        return list(jax.local_devices(backend="cuda"))
    except RuntimeError:
        return []
