"""SEC-3: the cache's classes as JSON: versioned documents, arrays in base64, nothing that could name code.

::

    format          1
    kind            the class
    the fields of the class, by name: numbers and texts as they are; another of the classes as a document;
    an array        {dtype: its name, shape: [int], data: base64 of its bytes, little-endian, last axis fastest}
    scaled pages    {values: array, scales: array}
    AxisRules       {pages: mesh axis or null, kv_heads: mesh axis or null}

The specification's documents are the same: either package reads the other's. Pages that a device holds as bits are
written as the numbers that the bits mean.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from math import prod
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import NDArray

from kvproof.kernels.storage import KV_DTYPES, ScaledPages, is_bits

from ..reading.arguments import refusal
from .partitions import AxisRules

__all__ = [
    "array_of",
    "array_to_json",
    "damaged",
    "document",
    "fields_of",
    "pages_of",
    "pages_to_json",
    "parsed",
    "rules_of",
    "rules_to_json",
]

FORMAT = 1
_MOST_AXES, _BEYOND = 8, 2**40
_DTYPES = {dtype.name: dtype for dtype in (*KV_DTYPES, np.dtype(np.int32))}


def damaged(name: str, problem: str) -> Exception:
    """The error for a part of a document that is not what it should be."""
    return refusal(ValueError, "SEC-3", f"{name} {problem}")


def document(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A document: its format and kind, then its fields. O(fields)."""
    return {"format": FORMAT, "kind": kind, **fields}


def fields_of(kind: str, data: object, names: tuple[str, ...]) -> dict[str, Any]:
    """Reads a document of a kind: its fields, exactly those named. O(fields).

    Raises:
        TypeError: ``data`` is no mapping.
        ValueError: it is of another format or kind, or has other fields (SEC-3).
    """
    if not isinstance(data, Mapping):
        raise refusal(TypeError, "R1", f"data={type(data).__name__} must be a mapping")
    if type(data.get("format")) is not int or data["format"] != FORMAT or data.get("kind") != kind:
        raise damaged("data", f"must be of format {FORMAT} and kind {kind!r}")
    return _members(kind, {key: value for key, value in data.items() if key not in ("format", "kind")}, names)


def parsed(text: object) -> Any:
    """Reads a JSON text. O(length).

    Raises:
        TypeError: it is no str.
        ValueError: it is no JSON (SEC-3).
    """
    if not isinstance(text, str):
        raise refusal(TypeError, "R1", f"json_str={type(text).__name__} must be a str")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise damaged("json_str", "must be JSON") from None


def _members(name: str, value: object, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, Mapping) or set(value) != set(names):
        raise damaged(name, f"must have the keys {list(names)}")
    return {key: value[key] for key in names}


# -- Arrays ---------------------------------------------------------------------------------------


def array_to_json(array: jax.Array | NDArray[Any]) -> dict[str, Any]:
    """An array as an object; waits for the device. O(size).

    Where other processes have parts of it, all of them are to make this call, and each gets the whole.
    """
    values = _on_host(array)
    data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    return {"dtype": values.dtype.name, "shape": list(values.shape), "data": base64.b64encode(data).decode("ascii")}


def _on_host(array: jax.Array | NDArray[Any]) -> NDArray[Any]:
    """All of an array; what only other processes have is gathered."""
    if isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated):
        array = multihost_utils.process_allgather(array, tiled=True)
    return np.asarray(array)


def array_of(name: str, value: object, dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    """Reads an array, read-only. O(size).

    Args:
        name: where it stands, for messages.
        value: what stands there.
        dtype: what it must be; None: any that a cache has, or int32.

    Raises:
        ValueError: it is none, or its data do not have the size that its shape says (SEC-3).
    """
    parts = _members(name, value, ("dtype", "shape", "data"))
    shape = parts["shape"]
    allowed = _DTYPES if dtype is None else {dtype.name: dtype}
    if not isinstance(parts["dtype"], str) or parts["dtype"] not in allowed:
        raise damaged(f"{name}.dtype", f"must be one of {sorted(allowed)}")
    if not isinstance(shape, list | tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise damaged(f"{name}.shape", "must be a list of integers of at least 0")
    if len(shape) > _MOST_AXES or prod(size or 1 for size in shape) >= _BEYOND:
        raise damaged(f"{name}.shape", f"must have at most {_MOST_AXES} axes, of fewer than {_BEYOND} entries together")
    if not isinstance(parts["data"], str):
        raise damaged(f"{name}.data", "must be base64")
    try:
        data = base64.b64decode(parts["data"], validate=True)
    except (binascii.Error, ValueError):
        raise damaged(f"{name}.data", "must be base64") from None
    own = allowed[parts["dtype"]]
    if len(data) != prod(shape) * own.itemsize:
        raise damaged(f"{name}.data", f"has {len(data)} bytes for {own}{list(shape)}")
    return np.frombuffer(data, own.newbyteorder("<")).astype(own, copy=False).reshape(shape)


def pages_to_json(kv_pages: jax.Array | ScaledPages, kv_dtype: np.dtype[Any]) -> dict[str, Any]:
    """Pages as an object: an array of numbers, or scaled ones. O(size).

    Args:
        kv_pages: the pages.
        kv_dtype: what the pages' bits mean, where they are bits.
    """
    if isinstance(kv_pages, ScaledPages):
        return {"values": _numbers(kv_pages.values, kv_dtype), "scales": array_to_json(kv_pages.scales)}
    return _numbers(kv_pages, kv_dtype)


def _numbers(pages: jax.Array, kv_dtype: np.dtype[Any]) -> dict[str, Any]:
    values = _on_host(pages)
    return array_to_json(values.view(kv_dtype) if is_bits(values.dtype) else values)


def pages_of(name: str, value: object, kv_dtype: np.dtype[Any], stored: np.dtype[Any]) -> NDArray[Any] | ScaledPages:
    """Reads pages into the dtype in which a device holds them. O(size).

    Args:
        name: where they stand.
        value: what stands there.
        kv_dtype: what their numbers must be.
        stored: the dtype of the device's array: ``kv_dtype``, or bits for it.

    Raises:
        ValueError: they are damaged, or of another dtype (SEC-3).
    """
    if isinstance(value, Mapping) and "values" in value:
        parts = _members(name, value, ("values", "scales"))
        scales: Any = array_of(f"{name}.scales", parts["scales"], np.dtype(np.float32))
        values: Any = _stored(f"{name}.values", parts["values"], kv_dtype, stored)
        return ScaledPages(values, scales)
    return _stored(name, value, kv_dtype, stored)


def _stored(name: str, value: object, kv_dtype: np.dtype[Any], stored: np.dtype[Any]) -> NDArray[Any]:
    values = array_of(name, value)
    if values.dtype != kv_dtype:
        raise damaged(f"{name}.dtype", f"must be {kv_dtype}")
    return values.view(stored)


# -- Partition managers ---------------------------------------------------------------------------


def rules_to_json(partition_manager: object) -> dict[str, Any]:
    """The rules of a partition manager.

    Raises:
        TypeError: it is no `AxisRules`: JSON can't tell of another's (R1).
    """
    if not isinstance(partition_manager, AxisRules):
        kind = type(partition_manager).__name__
        raise refusal(TypeError, "R1", f"partition_manager={kind} must be AxisRules to be written")
    return {"pages": partition_manager.pages, "kv_heads": partition_manager.kv_heads}


def rules_of(name: str, value: object) -> AxisRules:
    """Reads the rules of a partition manager.

    Raises:
        ValueError: they are none (SEC-3).
    """
    parts = _members(name, value, ("pages", "kv_heads"))
    for key, axis in parts.items():
        if axis is not None and not isinstance(axis, str):
            raise damaged(f"{name}.{key}", "must be a mesh axis or null")
    return AxisRules(**parts)
