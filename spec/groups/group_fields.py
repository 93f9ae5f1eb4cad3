"""MAN-7: reading the fields of a cache group's declaration (R1)."""

import warnings

import ml_dtypes  # noqa: F401 - numpy knows the names of its types (bfloat16, float8_e4m3fn, ...) once it is imported
import numpy as np

from ..declarations import AttentionSpec, MambaSpec
from ..reading.arguments import integer, listed, refusal

__all__ = ["read_attention", "read_layers", "read_states"]

_OF_A_PACKAGE = 2  # `numpy.dtype.isbuiltin` of a type that another package registered
_SIZES = ("page_size", "num_kv_heads", "head_size", "sliding_window", "attention_chunk_size")


def read_attention(spec: AttentionSpec) -> None:
    """Reads an attention group: its sizes must be at least 1, and numpy must know its dtype."""
    for name in _SIZES:
        if hasattr(spec, name):
            _size(name, getattr(spec, name))
    head_size_v = getattr(spec, "head_size_v", None)
    if head_size_v is not None:
        _size("head_size_v", head_size_v)
    _read_dtype("dtype", spec.dtype)


def read_states(spec: MambaSpec) -> None:
    """Reads a state group: a dtype for each shape, a known mode, no padded size below the state's (MAN-13)."""
    _size("page_size", spec.page_size)
    shapes = [tuple(listed("kv_cache_groups shapes", shape)) for shape in listed("kv_cache_groups shapes", spec.shapes)]
    for size in (size for shape in shapes for size in shape):
        _size("shapes", size)
    dtypes = listed("kv_cache_groups dtypes", spec.dtypes)
    for dtype in dtypes:
        _read_dtype("dtypes", dtype)
    if not shapes or len(shapes) != len(dtypes):
        raise refusal(ValueError, "MAN-7", f"kv_cache_groups has {len(shapes)} shapes and {len(dtypes)} dtypes")
    mode = spec.mamba_cache_mode
    if not isinstance(mode, str):
        raise refusal(TypeError, "R1", f"kv_cache_groups mamba_cache_mode={mode!r} must be a str")
    if mode not in ("none", "align"):
        raise refusal(ValueError, "MAN-13", f"kv_cache_groups mamba_cache_mode={mode!r} must be 'none' or 'align'")
    if spec.page_size_padded is not None:
        padded = _size("page_size_padded", spec.page_size_padded)
        if padded < spec.state_bytes:
            raise refusal(
                ValueError,
                "MAN-7",
                f"kv_cache_groups page_size_padded={padded} is below the state's {spec.state_bytes} bytes",
            )


def read_layers(layer_names: object) -> list[str]:
    """Reads a group's layer names; none for None, which stands for names that are not needed."""
    if layer_names is None:
        return []
    layers = listed("kv_cache_groups layer_names", layer_names)
    for layer in layers:
        if not isinstance(layer, str):
            raise refusal(TypeError, "R1", f"kv_cache_groups layer_names has {layer!r}, which is no str")
    if not layers:
        raise refusal(ValueError, "MAN-7", f"kv_cache_groups layer_names={layer_names!r} names no layer")
    return layers


def _size(name: str, value: object) -> int:
    """Reads a size: at least 1, and a number that a snapshot may hold (MAN-14)."""
    return integer(f"kv_cache_groups {name}", value, minimum=1, clause="MAN-7", below=2**63)


def _read_dtype(name: str, value: object) -> None:
    """Reads a dtype of numbers, numpy's or ml_dtypes'; refuses None, which numpy takes for float64."""
    try:
        with warnings.catch_warnings(action="error"):  # numpy warns of deprecated names
            dtype = np.dtype(value)  # type: ignore[call-overload]
            is_number = value is not None and (dtype.kind in "biufc" or dtype.isbuiltin == _OF_A_PACKAGE)
    except (TypeError, ValueError, SyntaxError, Warning):
        is_number = False
    if not is_number:
        raise refusal(TypeError, "R1", f"kv_cache_groups {name}={value!r} is no dtype of numbers")
