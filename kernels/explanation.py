"""The public function that says which kernel runs."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from .choices import Served, listening
from .dispatch import calls_in, who_serves

__all__ = ["explain"]

_PLATFORMS = {"tpu": "tpu", "cuda": "cuda", "cpu": None, "rocm": None}


def explain(function: Callable[..., Any], *arguments: Any, platform: str, **options: Any) -> tuple[Served, ...]:
    """Which kernels run where a function is compiled for a platform, and why the others don't. Takes seconds.

    The answer comes from the code that chooses kernels when a program is compiled: the function is traced, and each
    call in it of one of our functions once more for the platform. No device is needed, and nothing is compiled. For
    GPUs it depends on which are in sight (`gpu.hopper`); within `jax.shard_map` it is about the part of one device.

    Args:
        function: one of the public functions over pages, or any function that calls them: a layer, a whole step.
        arguments: what it is called with: arrays, or `jax.ShapeDtypeStruct` in their place, in any pytree.
        platform: ``"tpu"``, ``"cuda"``, ``"rocm"`` or ``"cpu"``.
        options: its keyword arguments.

    Returns:
        One record for each kernel that there is for the platform and the function, in the order of the calls: that it
        is part of the program, or why not. A call without a kernel that runs is XLA's; one without tokens, or without
        pages to copy, has no record, as there is nothing to do. Of kernels that are part of a program, lengths decide
        on the device which are launched in a step.

    Raises:
        TypeError: if the platform is no string [R1].
        ValueError: if there is no such platform; else what the function raises [R1].
    """
    if not isinstance(platform, str):
        raise TypeError(f"platform must be a string, not {type(platform).__name__} [R1]")
    if platform not in _PLATFORMS:
        raise ValueError(f"{platform=} must be one of {', '.join(_PLATFORMS)} [R1]")
    arrays = {name: option for name, option in options.items() if _is_array(option)}
    static = {name: option for name, option in options.items() if name not in arrays}
    traced = jax.make_jaxpr(lambda *given, **named: function(*given, **named, **static))(*arguments, **arrays)
    with listening() as told:
        for call, types in calls_in(traced.jaxpr):
            who_serves(call, types, _PLATFORMS[platform])
    return tuple(told)


def _is_array(value: Any) -> bool:
    return isinstance(value, (jax.Array, np.ndarray, jax.ShapeDtypeStruct))
