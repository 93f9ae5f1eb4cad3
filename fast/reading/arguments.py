"""R1: how this package reads arguments. Every public call reads all of its arguments before it changes anything.

Single values are read as in the specification, by the functions of its declarations.

Lists of numbers are read as a whole, and element by element only if that fails: to name the first faulty element, or
because the elements are of an unusual type (numpy integers).
"""

import marshal
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.reading import attribute, flag, index, instance, integer, listed, real, refusal, shown

__all__ = [
    "all_below",
    "attribute",
    "flag",
    "id_array",
    "id_lists",
    "index",
    "instance",
    "integer",
    "listed",
    "materialised",
    "naturals",
    "plain_array",
    "plain_cells",
    "real",
    "refusal",
    "shown",
]


def materialised(name: str, values: object) -> NDArray[Any] | list[Any]:
    """Materialises an iterable as `listed` does, but leaves arrays and lists as they are (R1). O(n).

    Raises:
        TypeError: the value is not iterable, or is a string.
    """
    if type(values) is list or (isinstance(values, np.ndarray) and values.ndim):
        return values
    return listed(name, values)


# A list of ints becomes an array by way of `marshal`, in which such an int is a tag byte and four
# bytes: one pass in C reads the values, and the tags prove that each was an int and no bool, float or
# subclass. For 256 ints that takes 11 us; `array("q", values)` with a look at every element's type takes 24,
# `np.array(values)` with it 27. Where a tag is any other (which a later format of Python's would show in
# the same way) the list is read element by element. Version 2 of the format knows no back references.
_MARSHAL_VERSION = 2
_HEADER = 5  # the tag of a list and its length
_CELL = 5  # the tag of an int and its value
_BEYOND = 1 << 63
_SIX_BYTES = np.uint64(2**48 - 1)


def _marshalled(values: list[Any]) -> bytes:
    try:
        return marshal.dumps(values, _MARSHAL_VERSION)
    except ValueError:  # holds something that marshal does not know, such as a numpy integer
        return b""


def plain_array(values: object) -> NDArray[np.int64] | None:
    """Reads a list of Python ints that fit an int32, or a one-dimensional integer array, as an array. O(n).

    Args:
        values: the numbers; an array of another shape or dtype and a list with anything else in it are left
            to the caller, who then reads element by element.

    Returns:
        The numbers, `i64[n]` (perhaps the very array given), or None where they are not of either kind.
    """
    if isinstance(values, np.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "iu":
            return None
        if values.dtype == np.int64:
            return values
        if values.dtype.kind == "u" and values.dtype.itemsize == 8 and values.size and values.max() >= 2**63:
            return None
        return np.asarray(values, np.int64)
    cells = plain_cells(values) if type(values) is list else None
    return None if cells is None else cells.astype(np.int64)


def plain_cells(values: list[Any]) -> NDArray[np.int32] | None:
    """Python ints that fit an int32, little-endian, as they lie in what `marshal` makes of their list. O(n).

    Returns:
        The numbers, `i32[n]`, which are not contiguous; None where anything else is among them.
    """
    data = _marshalled(values)
    size = len(values)
    if len(data) != _HEADER + _CELL * size or data[_HEADER::_CELL].count(b"i") != size:
        return None
    return np.ndarray(size, "<i4", data, _HEADER + 1, (_CELL,)) if size else np.empty(0, "<i4")


def all_below(numbers: NDArray[np.int64], size: int) -> bool:
    """True if all numbers are in [0, size). O(n)."""
    # A negative number is a huge one when its bits are read as unsigned: one pass instead of two.
    return not numbers.size or int(np.maximum.reduce(numbers.view(np.uint64))) < size


def id_array(name: str, values: object, size: int, clause: str = "R1") -> NDArray[np.int64]:
    """Reads the numbers of things of which ``size`` exist (R1). O(n), 11 us for a list of 256 ints.

    Args:
        name: the name of the argument.
        values: an integer array `[n]`, or any iterable of ints; a list of Python ints is read fast.
        size: the number of things that exist.
        clause: the label of the clause that other numbers violate.

    Returns:
        The numbers, `i64[n]`; may share memory with an array given as ``values``, so it is not to be
        written and not to be kept.

    Raises:
        TypeError: ``values`` is not iterable, or an element is not an integer.
        IndexError: an element is negative or not below ``size``.
    """
    given = materialised(name, values)
    numbers = plain_array(given)
    if numbers is None or not all_below(numbers, size):
        # The first element that is wrong decides what is raised. Where none is, the kind was unusual.
        return np.array([index(name, value, size, clause) for value in given], np.int64)
    return numbers


def naturals(name: str, values: object, clause: str = "R1") -> NDArray[np.int64]:
    """Reads numbers of at least 0, each of which fits an int64 (R1). O(n).

    Args:
        name: the name of the argument.
        values: an integer array `[n]`, or any iterable of ints; a list of Python ints is read fast.
        clause: the label of the clause that other numbers violate.

    Returns:
        The numbers, `i64[n]`; may share memory with an array given as ``values``.

    Raises:
        TypeError: ``values`` is not iterable, or an element is not an integer.
        ValueError: an element is negative, or too large.
    """
    given = materialised(name, values)
    numbers = plain_array(given)
    if numbers is None or not all_below(numbers, _BEYOND):
        read = [integer(name, value, clause=clause) for value in given]
        too_large = [value for value in read if value >= _BEYOND]
        if too_large:
            raise refusal(ValueError, clause, f"{name}={too_large[0]} must be below 2**63")
        return np.array(read, np.int64)
    return numbers


def _equal_lists(lists: list[Any]) -> NDArray[np.int64] | None:
    # A list of lists, all of one length and of plain ints, in one pass: for 256 lists of one int 18 us, where
    # flattening and reading them one after the other takes 45. See `plain_array`.
    width = len(lists[0]) if type(lists[0]) is list else 0
    if not width:
        return None
    stride = _HEADER + _CELL * width
    size = len(lists)
    data = _marshalled(lists)
    if len(data) != _HEADER + stride * size:
        return None
    # Tags are proved from the front: if a list and its ints stand where they must, the next one begins where it
    # must. A list's tag, its length and the tag of its first int are the first six bytes of an unsigned 64-bit.
    heads: NDArray[np.uint64] = np.ndarray(size, "<u8", data, _HEADER, (stride,))
    expected = ord("[") | width << 8 | ord("i") << 40
    if not np.logical_and.reduce(heads & _SIX_BYTES == expected):
        return None
    if width > 1:
        tags: NDArray[np.uint8] = np.ndarray((size, width), np.uint8, data, 2 * _HEADER, (stride, _CELL))
        if not (tags == ord("i")).all():
            return None
    cells: NDArray[np.int32] = np.ndarray((size, width), "<i4", data, 2 * _HEADER + 1, (stride, _CELL))
    return cells.astype(np.int64).reshape(-1)


def id_lists(
    name: str, values: object, size: int, clause: str = "R1"
) -> tuple[NDArray[np.int64], NDArray[np.int64] | int, int]:
    """Reads lists of numbers of things of which ``size`` exist (R1). O(n), 24 us for 256 lists of one int.

    Args:
        name: the name of the argument.
        values: an integer array `[m, k]`, or any iterable of what `id_array` reads.
        size: the number of things that exist.
        clause: the label of the clause that other numbers violate.

    Returns:
        All numbers in order, `i64[n]`; the lists' lengths, `i64[m]` or one int if they are equal; and ``m``.

    Raises:
        TypeError: ``values`` or an element of it is no iterable, or a number is no integer.
        IndexError: a number is negative or not below ``size``.
    """
    if isinstance(values, np.ndarray) and values.ndim == 2 and values.dtype.kind in "iu":
        return id_array(name, values.reshape(-1), size, clause), values.shape[1], values.shape[0]
    lists = values if type(values) is list else listed(name, values)
    if not lists:
        return np.empty(0, np.int64), 0, 0
    flat = _equal_lists(lists)
    if flat is not None and all_below(flat, size):
        return flat, len(lists[0]), len(lists)
    if set(map(type, lists)) <= {list, tuple}:
        flat = id_array(name, list(chain.from_iterable(lists)), size, clause)
        return flat, np.array(list(map(len, lists)), np.int64), len(lists)
    arrays = [id_array(name, each, size, clause) for each in lists]
    return np.concatenate(arrays), np.array(list(map(len, arrays)), np.int64), len(lists)
