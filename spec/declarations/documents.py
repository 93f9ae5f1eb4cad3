"""SEC-3: caches, their metadata and events as JSON documents, which every implementation writes and reads.

::

    format      1
    kind        RaggedPagesCacheMetaData, RaggedPagesMetadata, RaggedPagesCacheView, RaggedPagesCache or CacheEvents
    and beside these the fields of the class by name:
        a number, a text or null    as it is
        an array                    {dtype: its name in numpy, shape: [int], data: base64 of its bytes}, the bytes
                                    little-endian, the last axis fastest
        ScaledPages                 {values: array, scales: array}
        AxisRules                   {pages: mesh axis or null, kv_heads: mesh axis or null}
        metadata of a view          its document
        views of a cache            [the document of each]
        events                      [{kind, the fields of the event by name}], as a snapshot has them

A mesh is not in it: devices are not saved. Pages hold numbers, also where a backend keeps their bits. A document
has these fields and no others, and an array's bytes are as many as its shape says: anything else is refused.
"""

import base64
import dataclasses
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from .cache_dtypes import CODES
from .codec import Part
from .reading import INT32, refusal

__all__ = [
    "Saved",
    "SavedOnMesh",
    "array_from_json",
    "array_to_json",
    "document",
    "fields_of",
    "layers_of",
    "page_arrays_from_json",
    "page_arrays_to_json",
    "parsed",
]

View = TypeVar("View")

FORMAT = 1
_MOST_AXES, _BEYOND = 8, 2**40  # more axes, and more entries, than any cache has; an axis of 0 entries counts as one
_DTYPES: dict[str, np.dtype[Any]] = {dtype.name: dtype for dtype in (*CODES.values(), INT32)}


def document(kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A document: its format and kind, then its fields. O(fields)."""
    return {"format": FORMAT, "kind": kind, **fields}


def fields_of(kind: str, data: object, names: Sequence[str]) -> dict[str, Part]:
    """Reads a document of a kind: its fields, exactly those named. O(fields).

    Raises:
        TypeError: ``data`` is no mapping.
        ValueError: it is of another format or kind, or has other fields (SEC-3).
    """
    if not isinstance(data, Mapping):
        raise refusal(TypeError, "R1", f"data must be a mapping, not {type(data).__name__}")
    whole = Part("data", data, "SEC-3")
    fields = whole.members(("format", "kind", *names))
    number, own = fields.pop("format").value, fields.pop("kind").value
    if type(number) is not int or number != FORMAT or own != kind:
        raise whole.damaged(f"is no {kind} of format {FORMAT}")
    return fields


def parsed(json_str: object) -> Any:
    """Reads a JSON text. O(length).

    Raises:
        TypeError: it is no str.
        ValueError: it is no JSON (SEC-3).
    """
    if not isinstance(json_str, str):
        raise refusal(TypeError, "R1", f"json_str must be a str, not {type(json_str).__name__}")
    try:
        return json.loads(json_str)
    except (ValueError, RecursionError):
        raise Part("json_str", json_str, "SEC-3").damaged("is no JSON") from None


# -- Arrays ---------------------------------------------------------------------------------------


def array_to_json(array: NDArray[Any]) -> dict[str, Any]:
    """An array as an object. O(size)."""
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    return {"dtype": array.dtype.name, "shape": list(array.shape), "data": base64.b64encode(data).decode("ascii")}


def array_from_json(part: Part, dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
    """Reads an array, read-only. O(size).

    Args:
        part: what stands where an array should.
        dtype: what it must be; None: any that a cache has, or int32.

    Raises:
        ValueError: it is none, or its data do not have the size that its shape says (SEC-3).
    """
    fields = part.members(("dtype", "shape", "data"))
    own = (_DTYPES if dtype is None else {dtype.name: dtype}).get(fields["dtype"].text())
    if own is None:
        raise fields["dtype"].damaged(f"must be {' or '.join(_DTYPES) if dtype is None else dtype.name}")
    shape = fields["shape"].integers().tolist()
    if len(shape) > _MOST_AXES:
        raise fields["shape"].damaged(f"must be a list of at most {_MOST_AXES} sizes")
    if prod(size or 1 for size in shape) >= _BEYOND:
        raise fields["shape"].damaged("must hold sizes of fewer than 2**40 entries")
    text = fields["data"].text()
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError:  # binascii.Error is one; letters beyond ASCII raise a plain one
        raise fields["data"].damaged("is no base64") from None
    if len(data) != prod(shape) * own.itemsize:
        raise fields["data"].damaged(f"has {len(data)} bytes, its shape {shape} asks for others")
    return np.frombuffer(data, own.newbyteorder("<")).astype(own, copy=False).reshape(shape)


def page_arrays_to_json(values: NDArray[Any], scales: NDArray[Any] | None = None) -> dict[str, Any]:
    """Pages as an object: an array of numbers, or the values and the scales of quantised ones. O(size)."""
    if scales is None:
        return array_to_json(values)
    return {"values": array_to_json(values), "scales": array_to_json(scales)}


def page_arrays_from_json(part: Part, dtype: np.dtype[Any] | None = None) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Reads pages: their values and, of quantised ones, the scales. O(size).

    Args:
        part: what stands where pages should.
        dtype: what the values must be; None: any that a cache has.

    Raises:
        ValueError: they are damaged (SEC-3).
    """
    if not (isinstance(part.value, Mapping) and "values" in part.value):
        return array_from_json(part, dtype), None
    fields = part.members(("values", "scales"))
    return array_from_json(fields["values"], dtype), array_from_json(fields["scales"], CODES["f32"])


# -- What is saved --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Saved:
    """A frozen dataclass that has a document."""

    def replace(self, **kwargs: Any) -> Self:
        """A copy with other values in the fields named. O(1).

        Raises:
            TypeError: there is no such field, or a value is of a wrong type.
            ValueError: a value is out of its bounds (R1).
        """
        return dataclasses.replace(self, **kwargs)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The document; see `documents`."""

    @classmethod
    @abstractmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Reads a document, of whichever package wrote it.

        Raises:
            TypeError: it is no mapping, or a field is of a wrong type.
            ValueError: it is damaged (SEC-3), or a field is out of its bounds (R1).
        """

    def to_json(self, **kwargs: Any) -> str:
        """The document as text; ``kwargs`` go to `json.dumps`. O(size)."""
        return json.dumps(self.to_dict(), **kwargs)

    @classmethod
    def from_json(cls, json_str: str) -> Self:
        """Reads what `to_json` wrote; errors are those of `from_dict`. O(size)."""
        return cls.from_dict(parsed(json_str))


@dataclasses.dataclass(frozen=True, eq=False)
class SavedOnMesh(Saved):
    """A frozen dataclass whose document holds pages, which are put on a mesh of devices when they are read."""

    @classmethod
    @abstractmethod
    def from_dict(cls, data: Mapping[str, Any], mesh: Any = None) -> Self:
        """Reads a document, of whichever package wrote it. O(cache).

        Args:
            data: the document.
            mesh: the mesh of devices, which documents do not hold; None: one device.

        Raises:
            TypeError: it is no mapping, or a field is of a wrong type.
            IndexError: it has no such layer.
            ValueError: it is damaged (SEC-3), or the mesh does not split the cache as it says (CACHE-5).
        """

    @classmethod
    def from_json(cls, json_str: str, mesh: Any = None) -> Self:
        """Reads what `to_json` wrote; arguments and errors are those of `from_dict`. O(cache)."""
        return cls.from_dict(parsed(json_str), mesh)


def layers_of(data: object, read: Callable[[Any], View]) -> list[View]:
    """Reads the views of a cache's document: the layers of one cache, in order. O(cache).

    Args:
        data: the document of the cache.
        read: the function that reads the document of a view.

    Raises:
        TypeError: ``data`` is no mapping, or a field is of a wrong type.
        ValueError: it is damaged (SEC-3), or what ``read`` refuses.
    """
    views = fields_of("RaggedPagesCache", data, ("views",))["views"]
    layers: list[Any] = [read(view.value) for view in views.items()]
    if any(view.metadata != layers[0].metadata or view.layer_index != layer for layer, view in enumerate(layers)):
        raise views.damaged("must be layers of one cache, in order")
    return layers
