"""Dynamic checks: what ``validate=True`` looks at in arrays that are concrete, before anything is computed (R1).

They read the arrays on the host, O(their size), and are meant for tests and for finding faults.
"""

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

__all__ = ["check_batch", "check_copies", "check_page_ids", "check_slices", "check_slots", "written_slots"]

_Ints = NDArray[np.int64]


def _concrete(**arrays: Any) -> list[_Ints]:
    for name, value in arrays.items():
        if isinstance(value, jax.core.Tracer):
            raise ValueError(f"{name} is traced: validate=True needs concrete arrays, outside of jit [R1]")
    return [np.asarray(value).astype(np.int64) for value in arrays.values()]


def check_batch(
    kv_lens: Any,  # i32[S]
    page_table: Any,  # i32[S, pages_per_seq]
    cu_q_lens: Any,  # i32[S + 1]
    num_seqs: Any,  # i32[1]
    num_tokens: int,
    num_pages: int,
    page_size: int,
) -> None:
    """Checks the lengths of a ragged batch and the live entries of its page table. O(S * pages_per_seq).

    Args:
        kv_lens: `i32[S]`.
        page_table: `i32[S, pages_per_seq]`; id 0 is a page like others (a released one, left of a window).
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`.
        num_tokens: T.
        num_pages: P.
        page_size: slots of a page.

    Raises:
        IndexError: if a live entry names no page.
        ValueError: if the lengths don't agree with each other or with the shapes, or an array is traced.
    """
    lens, table, starts, count = _concrete(
        kv_lens=kv_lens, page_table=page_table, cu_q_lens=cu_q_lens, num_seqs=num_seqs
    )
    n = int(count[0])
    if not 0 <= n <= len(lens):
        raise ValueError(f"num_seqs={n} must be in [0, {len(lens)}] [R1]")
    if starts[0] != 0:
        raise ValueError(f"cu_q_lens[0]={starts[0]} must be 0 [R1]")
    longest = table.shape[1] * page_size
    for i in range(n):
        q_len, kv_len = int(starts[i + 1] - starts[i]), int(lens[i])
        if q_len < 0:
            raise ValueError(f"cu_q_lens[{i + 1}]={starts[i + 1]} must not be below cu_q_lens[{i}]={starts[i]} [R1]")
        if starts[i + 1] > num_tokens:
            raise ValueError(f"cu_q_lens[{i + 1}]={starts[i + 1]} must not be above the {num_tokens} query rows [R1]")
        if not 0 <= kv_len <= longest:
            raise ValueError(f"kv_lens[{i}]={kv_len} must be in [0, {longest}], what a row of the table names [R1]")
        if q_len > kv_len:
            raise ValueError(f"kv_lens[{i}]={kv_len} must be at least the {q_len} query tokens of cu_q_lens [R1]")
        ids = table[i, : -(-kv_len // page_size)]
        wrong = np.flatnonzero((ids < 0) | (ids >= num_pages))
        if len(wrong):
            j = int(wrong[0])
            raise IndexError(f"page_table[{i}, {j}]={ids[j]} must be in [0, {num_pages}) at sequence {i} [R1]")


def written_slots(
    kv_lens: Any,  # i32[S]
    page_table: Any,  # i32[S, pages_per_seq]
    cu_q_lens: Any,  # i32[S + 1]
    num_seqs: Any,  # i32[1]
    page_size: int,
) -> _Ints:
    """The slots that a fused update of a checked batch writes, in the order of the tokens. O(T)."""
    lens, table, starts, count = _concrete(
        kv_lens=kv_lens, page_table=page_table, cu_q_lens=cu_q_lens, num_seqs=num_seqs
    )
    parts = [np.zeros(0, np.int64)]
    for i in range(int(count[0])):
        position = np.arange(lens[i] - (starts[i + 1] - starts[i]), lens[i])
        parts.append(table[i, position // page_size] * page_size + position % page_size)
    return np.concatenate(parts)


def check_slots(
    slot_mapping: Any,  # i32[T]
    num_slots: int,
    name: str = "slot_mapping",
) -> None:
    """Checks that slots exist, negative ones apart, and that none is written twice. O(T log T).

    Args:
        slot_mapping: `i32[T]`.
        num_slots: P * page.
        name: what to call the array.

    Raises:
        IndexError: if a slot does not exist.
        ValueError: if one is written twice, or the array is traced.
    """
    (slots,) = _concrete(**{name: slot_mapping})
    wrong = np.flatnonzero(slots >= num_slots)
    if len(wrong):
        raise IndexError(f"{name}[{wrong[0]}]={slots[wrong[0]]} must be below {num_slots} [R1]")
    _check_distinct(name, slots)


def check_slices(
    slot_mapping: Any,  # i32[3, n]
    num_slices: Any,  # i32[1]
    num_tokens: int,
    num_pages: int,
    page_size: int,
) -> None:
    """Checks that slices stay inside a page and inside the rows, and that none overlaps another. O(tokens in them).

    Args:
        slot_mapping: `i32[3, n]`: first slot, first row, length.
        num_slices: `i32[1]`.
        num_tokens: T.
        num_pages: P.
        page_size: slots of a page.

    Raises:
        IndexError: if a slot or a row does not exist.
        ValueError: if a slice is empty, crosses a page's end or overlaps another, or an array is traced.
    """
    slices, count = _concrete(slot_mapping=slot_mapping, num_slices=num_slices)
    n = int(count[0])
    if not 0 <= n <= slices.shape[1]:
        raise ValueError(f"num_slices={n} must be in [0, {slices.shape[1]}] [R1]")
    written = [np.zeros(0, np.int64)]
    for i in range(n):
        start, row, length = (int(number) for number in slices[:, i])
        if not 0 <= start < num_pages * page_size:
            raise IndexError(f"slot_mapping[0, {i}]={start} must be in [0, {num_pages * page_size}) [R1]")
        if not 0 < length <= page_size - start % page_size:
            raise ValueError(
                f"slot_mapping[2, {i}]={length} must be at least 1 and end within the page of {start} [R1]"
            )
        if not 0 <= row <= num_tokens - length:
            raise IndexError(f"slot_mapping[1, {i}]={row}, {length} rows, must lie in the {num_tokens} given [R1]")
        written.append(np.arange(start, start + length))
    _check_distinct("slot_mapping", np.concatenate(written))


def check_page_ids(
    name: str,
    page_ids: Any,  # i32[n]
    num_pages: int,
) -> None:
    """Checks that pages exist, negative ids apart, and that none is named twice. O(n log n).

    Args:
        name: the argument.
        page_ids: `i32[n]`.
        num_pages: P.

    Raises:
        IndexError: if a page does not exist.
        ValueError: if one is named twice, or the array is traced.
    """
    (ids,) = _concrete(**{name: page_ids})
    _check_exist(name, ids, num_pages)
    _check_distinct(name, ids)


def check_copies(
    sources: Any,  # i32[n]
    destinations: Any,  # i32[n]
    num_pages: int,
) -> None:
    """Checks that copies can run in any order. O(n log n).

    Args:
        sources: `i32[n]`.
        destinations: `i32[n]`.
        num_pages: P.

    Raises:
        IndexError: if a page does not exist; negative ids are padding.
        ValueError: if a destination is named twice or is a source too, or an array is traced.
    """
    reads, writes = _concrete(sources=sources, destinations=destinations)
    _check_exist("sources", reads, num_pages)
    _check_exist("destinations", writes, num_pages)
    pairs = (reads >= 0) & (writes >= 0)
    _check_distinct("destinations", writes[pairs])
    both = np.intersect1d(reads[pairs], writes[pairs])
    if len(both):
        raise ValueError(f"destinations names page {both[0]}, which is a source too [R1]")


def _check_exist(name: str, ids: _Ints, num_pages: int) -> None:
    wrong = np.flatnonzero(ids >= num_pages)
    if len(wrong):
        raise IndexError(f"{name}[{wrong[0]}]={ids[wrong[0]]} must be below {num_pages} [R1]")


def _check_distinct(name: str, numbers: _Ints) -> None:
    found, counts = np.unique(numbers[numbers >= 0], return_counts=True)
    twice = found[counts > 1]
    if len(twice):
        raise ValueError(f"{name} writes {twice[0]} more than once [R1]")
