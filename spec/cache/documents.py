"""SEC-3: caches and their metadata as JSON, in one format that every implementation writes and reads.

::

    format      1
    kind        RaggedPagesCacheMetaData, RaggedPagesMetadata, RaggedPagesCacheView or RaggedPagesCache
    and beside these the fields of the class by name:
        a number, a text or null    as it is
        an array                    {dtype: its name in numpy, shape: [int], data: base64 of its bytes}, the bytes
                                    little-endian, the last axis fastest
        ScaledPages                 {values: array, scales: array}
        AxisRules                   {pages: mesh axis or null, kv_heads: mesh axis or null}
        metadata of a view          its document
        views of a cache            [the document of each]

A mesh is not in it: devices are not saved. Pages hold numbers, also where a backend keeps their bits. A document
has these fields and no others, and an array's bytes are as many as its shape says: anything else is refused.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..layout.cache_dtypes import CODES, ScaledPages
from ..reading.arguments import refusal
from .partitions import AxisRules

__all__ = [
    "array_from_json",
    "array_to_json",
    "pages_from_json",
    "pages_to_json",
    "parsed",
    "read_document",
    "read_fields",
    "rules_from_json",
    "rules_to_json",
    "written_document",
]

FORMAT = 1
_MOST_AXES, _BEYOND = 8, 2**40  # no cache has so many axes, nor so many entries, axes without any counted as one
_DTYPES = {dtype.name: dtype for dtype in (*CODES.values(), np.dtype(np.int32))}


def written_document(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a kind, with the fields given."""
    return {"format": FORMAT, "kind": kind, **fields}


def read_document(kind: str, data: object, names: Sequence[str]) -> dict[str, Any]:
    """The fields of a document (SEC-3).

    Args:
        kind: what it must be.
        data: the document.
        names: the fields that it must have.

    Raises:
        TypeError: it is no mapping.
        ValueError: it is of another format or kind, or has other fields.
    """
    if not isinstance(data, Mapping):
        raise refusal(TypeError, "R1", f"data must be a mapping, not {type(data).__name__}")
    fields = read_fields("data", data, ["format", "kind", *names])
    number, own = fields.pop("format"), fields.pop("kind")
    if type(number) is not int or number != FORMAT or own != kind:
        raise refusal(ValueError, "SEC-3", f"data is no {kind} of format {FORMAT}")
    return fields


def read_fields(name: str, value: object, names: Sequence[str]) -> dict[str, Any]:
    """The fields of an object that must have exactly those named (SEC-3)."""
    if not isinstance(value, Mapping):
        raise refusal(ValueError, "SEC-3", f"{name} must be an object, not {type(value).__name__}")
    lacking = [field for field in names if field not in value]
    if lacking or len(value) != len(names):
        raise refusal(ValueError, "SEC-3", f"{name} must have the fields {', '.join(names)} and no others")
    return dict(value)


def parsed(json_str: object) -> Any:
    """Reads a text as JSON (SEC-3).

    Raises:
        TypeError: it is no str.
        ValueError: it is no JSON.
    """
    if not isinstance(json_str, str):
        raise refusal(TypeError, "R1", f"json_str must be a str, not {type(json_str).__name__}")
    try:
        return json.loads(json_str)
    except (ValueError, RecursionError):
        raise refusal(ValueError, "SEC-3", "json_str is no JSON") from None


# -- Arrays ---------------------------------------------------------------------------------------


def array_to_json(array: NDArray[Any]) -> dict[str, Any]:
    """An array as an object."""
    little = array.astype(array.dtype.newbyteorder("<"))
    data = base64.b64encode(little.tobytes()).decode("ascii")
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": data}


def array_from_json(name: str, value: object, dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    """An array from an object (SEC-3).

    Args:
        name: where it stands, for messages.
        value: the object.
        dtype: what it must be; None: any that a cache has, or int32.

    Raises:
        ValueError: it is damaged.
    """
    fields = read_fields(name, value, ("dtype", "shape", "data"))
    allowed = _DTYPES if dtype is None else {dtype.name: dtype}
    if not isinstance(fields["dtype"], str) or fields["dtype"] not in allowed:
        raise refusal(ValueError, "SEC-3", f"{name}.dtype must be {' or '.join(allowed)}")
    shape = fields["shape"]
    if not isinstance(shape, list) or len(shape) > _MOST_AXES:
        raise refusal(ValueError, "SEC-3", f"{name}.shape must be a list of at most {_MOST_AXES} sizes")
    if not all(type(size) is int and size >= 0 for size in shape) or prod(max(size, 1) for size in shape) >= _BEYOND:
        raise refusal(ValueError, "SEC-3", f"{name}.shape must hold sizes of at least 0, fewer than 2**40 entries")
    try:
        data = base64.b64decode(fields["data"], validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise refusal(ValueError, "SEC-3", f"{name}.data is no base64") from None
    own = allowed[fields["dtype"]]
    if len(data) != prod(shape) * own.itemsize:
        raise refusal(ValueError, "SEC-3", f"{name}.data has {len(data)} bytes, its shape {shape} asks for others")
    return np.frombuffer(data, own.newbyteorder("<")).astype(own).reshape(shape)


def pages_to_json(pages: NDArray[Any] | ScaledPages) -> dict[str, Any]:
    """Pages as an object."""
    if isinstance(pages, ScaledPages):
        return {"values": array_to_json(pages.values), "scales": array_to_json(pages.scales)}
    return array_to_json(pages)


def pages_from_json(name: str, value: object) -> NDArray[Any] | ScaledPages:
    """Pages from an object (SEC-3)."""
    if isinstance(value, Mapping) and "values" in value:
        fields = read_fields(name, value, ("values", "scales"))
        return ScaledPages(
            array_from_json(f"{name}.values", fields["values"]),
            array_from_json(f"{name}.scales", fields["scales"], CODES["f32"]),
        )
    return array_from_json(name, value)


# -- Partition managers ---------------------------------------------------------------------------


def rules_to_json(partition_manager: object) -> dict[str, Any]:
    """The rules of a partition manager.

    Raises:
        TypeError: it is no `AxisRules`: nothing is known of others.
    """
    if not isinstance(partition_manager, AxisRules):
        kind = type(partition_manager).__name__
        raise refusal(TypeError, "R1", f"partition_manager must be AxisRules to be saved, not {kind}")
    return {"pages": partition_manager.pages, "kv_heads": partition_manager.kv_heads}


def rules_from_json(name: str, value: object) -> AxisRules:
    """The rules of a partition manager from an object (SEC-3)."""
    fields = read_fields(name, value, ("pages", "kv_heads"))
    for key, axis in fields.items():
        if axis is not None and not isinstance(axis, str):
            raise refusal(ValueError, "SEC-3", f"{name}.{key} must be a text or null")
    return AxisRules(**fields)
