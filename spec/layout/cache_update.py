"""CACHE-3: writing the keys and values of a step into named slots."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..reading.arguments import INT32, array_of, flag, refusal
from .cache_dtypes import FLOATS
from .open_pages import OpenPages

__all__ = ["Write", "kv_cache_update", "read_keys_values", "read_writes", "require_writes"]


class Write(NamedTuple):
    """One token to be written into one slot.

    Attributes:
        token: number of the token in the step.
        slot: slot to write, page times page size plus offset; one that the cache doesn't have is not written.
    """

    token: int
    slot: int


def kv_cache_update(
    kv_pages: Any,
    keys: Any,
    values: Any,
    slot_mapping: Any,
    *,
    num_slices: Any = None,
    kv_dtype: Any = None,
    k_scale: float | None = None,
    v_scale: float | None = None,
    version: str | None = None,
    validate: bool = False,
) -> Any:
    """Writes keys and values into slots of the cache (CACHE-2, CACHE-3, CACHE-4). O(cache), as the cache is copied.

    Exactly the named slots change; their padding becomes 0. For slots that are negative or past the cache nothing is
    written. Slots must be disjoint.

    Args:
        kv_pages: `[P, page, 2H, Dp]` (v2), `[P, page, groups, packing, Dp]` (v3), `[P, 2H, Dp, page]` (seq_on_lane),
            or `ScaledPages` of them.
        keys: `[T, H, D]`: f32, bf16 or f16.
        values: `[T, H, Dv]`: f32, bf16 or f16.
        slot_mapping: the slot of each token, `i32[T]`; or slices, `i32[3, n]`: in each column a first slot, a
            first token and a length. A slice stays within its page and the step's tokens; its length is 1 to ``page``.
            Without ``validate`` it is not said what one that does not writes.
        num_slices: number of columns that are used, `i32[1]`; None if ``slot_mapping`` has no slices.
        kv_dtype: element type of ``kv_pages`` where it holds bits (`u16`, `u8`); else None or its dtype.
        k_scale: factor of stored keys, by which new keys are divided when they are written; None: 1.
        v_scale: factor of stored values, by which new values are divided when they are written; None: 1.
        version: name of the layout, which ``seq_on_lane`` needs; None: v2 or v3, as ``kv_pages`` has four dimensions
            or five.
        validate: whether the values of slots and slices are checked, too.

    Returns:
        The cache after the update, of the same kind as ``kv_pages``, which is not changed.

    Raises:
        TypeError: an argument is no array, or of a wrong dtype.
        ValueError: a wrong shape; with ``validate`` a slice that is none, or a slot named twice.
        IndexError: with ``validate``: a slot past the cache, or tokens past ``keys``.
    """
    keys, values = read_keys_values(keys, values)
    pages = OpenPages(kv_pages, keys.shape[2], values.shape[2], keys.shape[1], kv_dtype, k_scale, v_scale, version)
    writes = read_writes(
        slot_mapping, num_slices, len(keys), pages.num_pages, pages.page_size, flag("validate", validate)
    )
    pages.copy_to_write()
    for token, slot in writes:
        pages.write(slot, keys[token], values[token])
    return pages.pages


def read_keys_values(keys: Any, values: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Reads the keys `[T, H, D]` and values `[T, H, Dv]` of a step (R1)."""
    keys = array_of("keys", keys, ("T", "H", "D"), FLOATS)
    values = array_of("values", values, (*keys.shape[:2], "Dv"), FLOATS)
    for name, array in (("keys", keys), ("values", values)):
        if 0 in array.shape[1:]:
            raise refusal(ValueError, "R1", f"{name}.shape={array.shape} must have heads of at least one element")
    return keys, values


def read_writes(
    slot_mapping: Any, num_slices: Any, num_tokens: int, num_pages: int, page_size: int, validate: bool
) -> list[Write]:
    """Reads a slot mapping or update slices (R1, TAB-7).

    Args:
        slot_mapping: `i32[num_tokens]` or `i32[3, n]`.
        num_slices: None or `i32[1]`.
        num_tokens: T.
        num_pages: P.
        page_size: slots in a page.
        validate: whether their values are checked, too.
    """
    if num_slices is None:
        slots = array_of("slot_mapping", slot_mapping, (num_tokens,), (INT32,)).tolist()
        writes = [Write(token, slot) for token, slot in enumerate(slots) if slot >= 0]
        where: Callable[[int], str] = lambda place: f"slot_mapping[{writes[place].token}]"  # noqa: E731
    else:
        columns = array_of("slot_mapping", slot_mapping, (3, "n"), (INT32,))
        count = int(array_of("num_slices", num_slices, (1,), (INT32,))[0])
        if validate:
            _require_slices(columns, count, num_tokens, page_size)
        writes = [
            Write(token + place, slot + place)
            for slot, token, length in columns[:, : max(0, count)].T.tolist()
            for place in range(length)
            if 0 <= token + place < num_tokens and slot >= 0
        ]
        where = lambda place: f"slot_mapping: token {writes[place].token}"  # noqa: E731
    if validate:
        require_writes(writes, num_pages, page_size, where)
    return writes


def _require_slices(columns: NDArray[np.int32], count: int, num_tokens: int, page_size: int) -> None:
    """Refuses slices that are empty, leave their page, or have tokens that the step doesn't (R1)."""
    if not 0 <= count <= columns.shape[1]:
        raise refusal(ValueError, "R1", f"num_slices={count} must be in [0, {columns.shape[1]}]")
    for place, (slot, token, length) in enumerate(columns[:, :count].T.tolist()):
        name = f"slot_mapping[:, {place}]={[slot, token, length]}"
        if not 1 <= length <= page_size:
            raise refusal(ValueError, "R1", f"{name} must have a length in [1, {page_size}]")
        if slot < 0:
            raise refusal(IndexError, "R1", f"{name} must have a slot of at least 0")
        if slot % page_size + length > page_size:
            raise refusal(ValueError, "R1", f"{name} must stay within a page of {page_size} slots")
        if not 0 <= token <= num_tokens - length:
            raise refusal(IndexError, "R1", f"{name} must take tokens in [0, {num_tokens})")


def require_writes(writes: list[Write], num_pages: int, page_size: int, where: Callable[[int], str]) -> None:
    """Refuses slots that the cache doesn't have, and two tokens for one slot (R1, CACHE-3).

    Args:
        writes: the tokens to be written, with their slots.
        num_pages: P.
        page_size: slots in a page.
        where: the name of the write at a place of ``writes``, for messages.
    """
    first_of: dict[int, int] = {}
    for place, (token, slot) in enumerate(writes):
        if not 0 <= slot < num_pages * page_size:
            raise refusal(IndexError, "R1", f"{where(place)}={slot} must be in [0, {num_pages * page_size})")
        if slot in first_of:
            raise refusal(ValueError, "R1", f"{where(place)}={slot} is the slot of token {first_of[slot]}, too")
        first_of[slot] = token
