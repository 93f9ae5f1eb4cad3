"""TAB-7: the cache slots of a step's tokens, computed from a page table's host rows.

A cache slot is the number of the place of one token in a cache: page times page size plus offset. Both functions here
read their arguments as a whole and work on arrays; they go through the tokens one by one only to name the first faulty
one, or if the page size is so large that 64-bit products could overflow.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..reading.arguments import id_array, index, integer, materialised, plain_array, refusal

__all__ = ["slot_mapping", "update_slices"]

# Below this page size no product of a page id, a count or a column with it leaves 64 bits.
_LARGE_PAGE = 2**31
_SLOTS = 2**31
_FAR = 2**62  # past every token of such pages


def slot_mapping(
    host: NDArray[np.int32],
    counts: NDArray[np.int32],
    max_num_batched_tokens: int,
    req_indices: object,
    positions: object,
    page_size: object,
) -> NDArray[np.int32]:
    """The cache slot of each token of a step; see `PageTable.slot_mapping` for what follows ``counts`` (TAB-7).

    Args:
        host: the host's rows, `i32[max_num_reqs, max_num_pages_per_req]`.
        counts: the number of pages of each row, `i32[max_num_reqs]`.
        max_num_batched_tokens: the length of the result.
        req_indices: the row of each token.
        positions: the position of each token in its row.
        page_size: tokens in a page.
    """
    size = integer("page_size", page_size, minimum=1)
    rows = id_array("req_indices", req_indices, len(counts), "TAB-2")
    given = materialised("positions", positions)
    if len(rows) != len(given):
        raise refusal(ValueError, "TAB-7", f"req_indices names {len(rows)} tokens, positions {len(given)}")
    if len(rows) > max_num_batched_tokens:
        message = f"req_indices names {len(rows)} tokens, which exceed max_num_batched_tokens={max_num_batched_tokens}"
        raise refusal(ValueError, "TAB-7", message)
    mapping = np.full(max_num_batched_tokens, -1, np.int32)
    if len(rows):
        slots = _slots(host, counts, rows, plain_array(given), size)
        mapping[: len(rows)] = _slots_one_by_one(host, counts, rows, given, size) if slots is None else slots
    return mapping


def update_slices(
    host: NDArray[np.int32],
    counts: NDArray[np.int32],
    max_num_batched_tokens: int,
    req_indices: object,
    starts: object,
    lengths: object,
    page_size: object,
) -> NDArray[np.int32]:
    """The runs of slots that a step's tokens fill; see `PageTable.update_slices` for what follows ``counts`` (TAB-7).

    Args:
        host: the host's rows, `i32[max_num_reqs, max_num_pages_per_req]`.
        counts: the number of pages of each row, `i32[max_num_reqs]`.
        max_num_batched_tokens: the most tokens of a step.
        req_indices: the rows, each once.
        starts: the position of each row's first token in the step.
        lengths: the number of tokens of each row in the step.
        page_size: tokens in a page.
    """
    size = integer("page_size", page_size, minimum=1)
    rows = id_array("req_indices", req_indices, len(counts), "TAB-2")
    first_given, first = _naturals("starts", starts)
    given, num = _naturals("lengths", lengths)
    if not len(rows) == len(first) == len(num):
        raise refusal(
            ValueError, "TAB-7", f"req_indices names {len(rows)} rows, starts {len(first)}, lengths {len(num)}"
        )
    if len(rows) > 1 and len(np.unique(rows)) < len(rows):
        raise refusal(ValueError, "TAB-7", f"req_indices={rows.tolist()} names a row twice")
    # The largest is checked first, so that the sum can't overflow.
    if len(num) and (int(num.max()) > max_num_batched_tokens or int(num.sum()) > max_num_batched_tokens):
        raise refusal(
            ValueError,
            "TAB-7",
            f"lengths: {sum(map(int, given))} tokens exceed max_num_batched_tokens={max_num_batched_tokens}",
        )
    most = min(2 * len(counts) + max_num_batched_tokens // size, max_num_batched_tokens)
    slices = np.full((3, most), -1, np.int32)
    some = np.flatnonzero(num)  # rows without tokens have no run, and their starts are not checked
    if some.size:
        runs = _runs(host, counts, rows[some], first[some], num[some], size)
        if runs is None:
            firsts = [int(first_given[place]) for place in some]
            runs = _runs_one_by_one(host, counts, rows[some], firsts, num[some], size)
        slices[:, : runs.shape[1]] = runs
    return slices


# -- On arrays ------------------------------------------------------------------------------------


def _naturals(name: str, values: object) -> tuple[NDArray[Any] | list[Any], NDArray[np.int64]]:
    """Reads numbers of at least 0: as passed, and as an array in which huge ones are replaced by a large one."""
    given = materialised(name, values)
    numbers = plain_array(given)
    if numbers is None or (numbers.size and int(numbers.min()) < 0):
        given = [integer(name, value) for value in given]
        numbers = np.array([min(value, _FAR) for value in given], np.int64)
    return given, np.minimum(numbers, _FAR)


def _slots(
    host: NDArray[np.int32],
    counts: NDArray[np.int32],
    rows: NDArray[np.int64],
    positions: NDArray[np.int64] | None,
    size: int,
) -> NDArray[np.int64] | None:
    """The slots of tokens; None if one is to be refused or numbers are too large for array arithmetic."""
    if positions is None or size >= _LARGE_PAGE:
        return None
    if int(positions.min()) < 0 or bool((positions >= counts[rows].astype(np.int64) * size).any()):
        return None
    columns, offsets = np.divmod(positions, size)
    slots: NDArray[np.int64] = host[rows, columns].astype(np.int64) * size + offsets
    return None if int(slots.max()) >= _SLOTS else slots


def _runs(
    host: NDArray[np.int32],
    counts: NDArray[np.int32],
    rows: NDArray[np.int64],
    first: NDArray[np.int64],
    num: NDArray[np.int64],
    size: int,
) -> NDArray[np.int64] | None:
    """The runs of rows that have tokens, or None as in `_slots`."""
    if size >= _LARGE_PAGE:
        return None
    past = first + num
    if bool((past > counts[rows].astype(np.int64) * size).any()):
        return None
    first_column = first // size
    num_runs = (past - 1) // size - first_column + 1
    # From here on arrays have an entry for each run: its row's numbers, and its column in the row.
    of_row = np.repeat(np.arange(len(rows)), num_runs)
    earlier_runs = np.cumsum(num_runs) - num_runs
    column = np.arange(len(of_row)) - (earlier_runs - first_column)[of_row]
    begin = np.maximum(first[of_row], column * size)
    end = np.minimum(past[of_row], (column + 1) * size)
    slot = host[rows[of_row], column].astype(np.int64) * size + begin % size
    token = (np.cumsum(num) - num - first)[of_row] + begin
    length = end - begin
    return None if int((slot + length).max()) > _SLOTS else np.stack([slot, token, length])


# -- Token by token -------------------------------------------------------------------------------


def _slots_one_by_one(
    host: NDArray[np.int32],
    counts: NDArray[np.int32],
    rows: NDArray[np.int64],
    positions: Iterable[object],
    size: int,
    name: str = "positions",
) -> list[int]:
    """The slots of tokens; refuses the first token that has none, and calls its position by a name."""
    slots = []
    for row, position in zip(rows.tolist(), positions, strict=True):
        column, offset = divmod(index(name, position, int(counts[row]) * size, "TAB-7"), size)
        slot = int(host[row, column]) * size + offset
        if slot >= _SLOTS:
            raise refusal(ValueError, "TAB-7", f"{name}={position}: slot {slot} does not fit an int32")
        slots.append(slot)
    return slots


def _runs_one_by_one(
    host: NDArray[np.int32],
    counts: NDArray[np.int32],
    rows: NDArray[np.int64],
    first: list[int],
    num: NDArray[np.int64],
    size: int,
) -> NDArray[np.int64]:
    """The runs of rows that have tokens; refuses the first token that has no slot."""
    token_rows = np.repeat(rows, num)
    positions = [start + place for start, length in zip(first, num.tolist(), strict=True) for place in range(length)]
    slots = _slots_one_by_one(host, counts, token_rows, positions, size, "starts: position")
    begins = [
        token
        for token, position in enumerate(positions)
        if position % size == 0 or not token or token_rows[token] != token_rows[token - 1]
    ]
    return np.array([[slots[token] for token in begins], begins, np.diff([*begins, len(slots)])], np.int64)
