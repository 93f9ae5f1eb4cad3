"""Static checks: what is wrong with a call whatever its arrays hold, refused where it is traced (R1).

Each function takes arguments as the public functions name them, so that messages name them alike.
"""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from .storage import ScaledPages, page_values

__all__ = [
    "Array",
    "batch",
    "decode_block",
    "flag",
    "floats",
    "integers",
    "number",
    "option_within",
    "pair",
    "pool",
    "positive_integer",
    "prefill_block",
    "same",
    "slots",
]

Array = jax.Array | NDArray[Any]
"""What the public functions take as an array."""

FLOATS = (jnp.dtype(jnp.float32), jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
"""What queries, and new keys and values, may be."""

_MAX_SLOTS = 2**31

_LEAST_BLOCK = 128

_ROW_TILE = 16
"""Rows of 16-bit numbers in a register of a TPU."""


def array(name: str, value: Any, dims: int, legend: str) -> Any:
    """Refuses anything but an array of JAX or NumPy with a number of dimensions. O(1).

    Args:
        name: the argument.
        value: what was given; lists are refused.
        dims: dimensions.
        legend: the shape in words, for the message.

    Returns:
        The array, untouched: NumPy's of 64 bits would become 32 bits wide unseen, and must not.
    """
    if not isinstance(value, (jax.Array, np.ndarray)):
        raise TypeError(f"{name} must be an array, not {type(value).__name__} [R1]")
    if value.ndim != dims:
        raise ValueError(f"{name}.shape={tuple(value.shape)} must be {legend} [R1]")
    return value


def integers(name: str, value: Any, shape: Sequence[int | None], legend: str) -> None:
    """Refuses anything but an int32 array of a shape, in which None stands for any length. O(1)."""
    array(name, value, len(shape), legend)
    if value.dtype != jnp.int32:
        raise TypeError(f"{name} must be int32, not {value.dtype} [R1]")
    if any(want not in (None, got) for want, got in zip(shape, value.shape, strict=True)):
        raise ValueError(f"{name}.shape={tuple(value.shape)} must be {legend} [R1]")


def floats(name: str, value: Any, dims: int, legend: str) -> None:
    """Refuses anything but a float32, bfloat16 or float16 array with a number of dimensions. O(1)."""
    array(name, value, dims, legend)
    if value.dtype not in FLOATS:
        raise TypeError(f"{name} must be float32, bfloat16 or float16, not {value.dtype} [R1]")
    if 0 in value.shape[1:]:
        raise ValueError(f"{name}.shape={tuple(value.shape)} must be {legend}, not empty [R1]")


def same(name: str, got: Any, other: str, want: Any) -> None:
    """Refuses two arguments that differ where they must agree. O(1)."""
    if got != want:
        raise ValueError(f"{name}={got} must equal {other}={want} [R1]")


def number(name: str, value: Any, *, positive: bool = False) -> float:
    """A finite number known when tracing, as a float. O(1).

    Args:
        name: the argument.
        value: a Python or numpy number.
        positive: whether it must be above 0.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number known when the call is traced, not {type(value).__name__} [R1]")
    given = float(value)
    if not isfinite(given) or (positive and given <= 0):
        raise ValueError(f"{name}={given} must be {'positive and ' if positive else ''}finite [R1]")
    return given


def positive_integer(name: str, value: Any) -> int:
    """An int of at least 1. O(1)."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, not {type(value).__name__} [R1]")
    if value < 1:
        raise ValueError(f"{name}={value} must be at least 1 [R1]")
    return int(value)


def option_within(name: str, value: Any, longest: int) -> int | None:
    """A window or a chunk: None also where it is so long that it masks nothing. O(1).

    Args:
        name: the argument.
        value: an int of at least 1, or None.
        longest: the longest context that the page table can name.
    """
    if value is None:
        return None
    value = positive_integer(name, value)
    return None if value >= longest else value


def decode_block(value: Any, page_size: int) -> int | None:
    """Keys of a block of the kernel that decodes: a power of two from 128 on, in whole pages; or None. O(1)."""
    if value is None:
        return None
    keys = positive_integer("decode_block", value)
    if keys < _LEAST_BLOCK or keys & (keys - 1) or keys % page_size:
        raise ValueError(
            f"decode_block={keys} must be a power of two, at least {_LEAST_BLOCK}, and whole pages of {page_size} [R1]"
        )
    return keys


def prefill_block(value: Any, page_size: int, group: int) -> tuple[int, int] | None:
    """Query tokens and keys of a block of the general kernel: whole registers of rows, and whole pages; or None. O(1).

    Args:
        value: what was given: a pair of ints.
        page_size: slots of a page.
        group: query heads of a KV head: rows are query tokens times these.
    """
    if value is None:
        return None
    if not isinstance(value, tuple) or len(value) != 2:
        raise TypeError(f"prefill_block={value!r} must be a tuple of two ints, query tokens and keys [R1]")
    queries, keys = (positive_integer("prefill_block", part) for part in value)
    if queries * group % _ROW_TILE or keys % page_size:
        raise ValueError(
            f"prefill_block={(queries, keys)} must be query tokens that give a multiple of {_ROW_TILE} rows of {group} "
            f"query heads each, and whole pages of {page_size} keys [R1]"
        )
    return queries, keys


def flag(name: str, value: Any) -> bool:
    """A bool, or TypeError. O(1)."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__} [R1]")
    return bool(value)


def pool(name: str, kv_pages: Any, dims: Sequence[int], legend: str, slot_axis: int = 1) -> tuple[int, int]:
    """The number of pages and the slots of each: of arrays, or of ScaledPages with scales that fit them. O(1).

    Args:
        name: the argument.
        kv_pages: pages.
        dims: how many dimensions the array may have.
        legend: the shape in words.
        slot_axis: which axis runs over slots; 1, or -1 for the last.

    Returns:
        P and page.
    """
    values = page_values(kv_pages)
    part = f"{name}.values" if isinstance(kv_pages, ScaledPages) else name
    if not isinstance(values, (jax.Array, np.ndarray)):
        raise TypeError(f"{part} must be an array, not {type(values).__name__} [R1]")
    if values.ndim not in dims or 0 in values.shape:
        raise ValueError(f"{part}.shape={tuple(values.shape)} must be {legend} [R1]")
    num_pages, page_size = values.shape[0], values.shape[slot_axis]
    if num_pages * page_size >= _MAX_SLOTS:
        raise ValueError(f"{part}.shape={tuple(values.shape)} has 2^31 slots or more; slots are int32 [R1]")
    if isinstance(kv_pages, ScaledPages):
        scales = kv_pages.scales
        array(f"{name}.scales", scales, 3, "[P, page, 2H]" if slot_axis == 1 else "[P, 2H, page]")
        if scales.dtype != jnp.float32:
            raise TypeError(f"{name}.scales must be float32, not {scales.dtype} [R1]")
        axes = "[:2]" if slot_axis == 1 else "[::2]"
        sizes = (scales.shape[0], scales.shape[slot_axis])
        same(f"{name}.scales.shape{axes}", sizes, f"the pages and slots of {part}", (num_pages, page_size))
    return num_pages, page_size


def batch(kv_lens: Any, page_table: Any, cu_q_lens: Any, num_seqs: Any, page_size: int) -> None:
    """Refuses what are not the four int32 arrays that describe a ragged batch. O(1).

    Args:
        kv_lens: `i32[S]`.
        page_table: `i32[S, pages_per_seq]`.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`, or `i32[S]`, of which the first counts.
        page_size: slots of a page.
    """
    integers("page_table", page_table, (None, None), "[S, pages_per_seq]")
    rows, width = page_table.shape
    if rows < 1 or width < 1:
        raise ValueError(f"page_table.shape={tuple(page_table.shape)} must be [S, pages_per_seq], not empty [R1]")
    if width * page_size >= _MAX_SLOTS:
        raise ValueError(f"page_table.shape={tuple(page_table.shape)} names 2^31 tokens or more a row [R1]")
    integers("kv_lens", kv_lens, (rows,), f"[{rows}], as page_table has rows")
    integers("cu_q_lens", cu_q_lens, (rows + 1,), f"[{rows + 1}], one more than page_table has rows")
    integers("num_seqs", num_seqs, (None,), f"[1] or [{rows}]")
    if num_seqs.shape[0] not in (1, rows):
        raise ValueError(f"num_seqs.shape={tuple(num_seqs.shape)} must be [1] or [{rows}] [R1]")


def pair(names: tuple[str, str], first: Any, second: Any, dims: int, legends: tuple[str, str]) -> None:
    """Refuses two float arrays, keys and values say, unless they agree in all but their last size. O(1)."""
    floats(names[0], first, dims, legends[0])
    floats(names[1], second, dims, legends[1])
    if first.dtype != second.dtype:
        raise TypeError(f"{names[1]} must be {first.dtype} as {names[0]}, not {second.dtype} [R1]")
    same(f"{names[1]}.shape[:-1]", tuple(second.shape[:-1]), f"{names[0]}.shape[:-1]", tuple(first.shape[:-1]))


def slots(slot_mapping: Any, num_slices: Any, tokens: int) -> None:
    """Refuses what is neither a slot for each token nor slices with their number. O(1)."""
    if num_slices is None:
        integers("slot_mapping", slot_mapping, (tokens,), f"[{tokens}], one slot a token")
    else:
        integers("slot_mapping", slot_mapping, (3, None), "[3, n] with num_slices")
        integers("num_slices", num_slices, (1,), "[1]")
