"""ATT-1: the ragged batch of an attention call: the query rows of each sequence, and its pages.

There are T query rows and S sequences, of which the first ``num_seqs`` are used. Sequence s has ``kv_lens[s]`` tokens
in the cache, those of this step included. Its query rows ``[cu_q_lens[s], cu_q_lens[s + 1])`` are its last ``q_len``
tokens: query t of them stands at position p = kv_len - q_len + t.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..reading.arguments import INT32, array_of, refusal
from ..table.page_table import cdiv

__all__ = ["QueryRow", "RaggedBatch", "read_batch"]


class QueryRow(NamedTuple):
    """One query row that belongs to a sequence.

    Attributes:
        token: place among the T rows.
        sequence: number of the sequence.
        position: position in the sequence; negative if the sequence has fewer tokens than queries.
    """

    token: int
    sequence: int
    position: int


@dataclass(frozen=True)
class RaggedBatch:
    """A ragged batch whose arguments were read.

    Attributes:
        num_tokens: T.
        kv_lens: tokens of each sequence in the cache, `[S]`.
        page_table: `i32[S, pages_per_seq]`.
        starts: bounds of the sequences' rows, `[S + 1]`: sequence s has ``[starts[s], starts[s + 1])``.
        num_seqs: number of sequences that are used.
        num_pages: P.
        page_size: slots in a page.
    """

    num_tokens: int
    kv_lens: list[int]
    page_table: NDArray[np.int32]
    starts: list[int]
    num_seqs: int
    num_pages: int
    page_size: int

    def rows(self) -> Iterator[QueryRow]:
        """The rows that belong to sequences; nothing is computed for any other (ATT-4)."""
        for sequence in range(min(self.num_seqs, len(self.kv_lens))):
            start, end = self.starts[sequence : sequence + 2]
            for token in range(max(0, start), min(end, self.num_tokens)):
                yield QueryRow(token, sequence, self.kv_lens[sequence] - (end - token))

    def slot_of(self, sequence: int, position: int) -> int:
        """The slot that the page table has for a position (TAB-7); -1 if it has no page for it."""
        place, offset = divmod(position, self.page_size)
        if not 0 <= place < self.page_table.shape[1]:
            return -1
        page = int(self.page_table[sequence, place])
        return page * self.page_size + offset if 0 <= page < self.num_pages else -1

    def slots_of(self, sequence: int, positions: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The page and the offset of each position that is read (TAB-7).

        Raises:
            IndexError: the table has no page of the cache for a position (R1).
        """
        slots = [self.slot_of(sequence, position) for position in positions]
        if -1 in slots:
            position = positions[slots.index(-1)]
            raise refusal(
                IndexError, "R1", f"page_table has no page of {self.num_pages} for position {position} of {sequence=}"
            )
        pages, offsets = np.divmod(np.array(slots, np.int64), self.page_size)
        return pages, offsets


def read_batch(
    kv_lens: Any,
    page_table: Any,
    cu_q_lens: Any,
    num_seqs: Any,
    num_tokens: int,
    num_pages: int,
    page_size: int,
    validate: bool,
) -> RaggedBatch:
    """Reads the arguments that describe the batch (R1).

    Args:
        kv_lens: `i32[S]`.
        page_table: `i32[S, pages_per_seq]`.
        cu_q_lens: `i32[S + 1]`.
        num_seqs: `i32[1]`, or `i32[S]`, of which the first entry is read.
        num_tokens: T.
        num_pages: P.
        page_size: slots in a page.
        validate: whether the values of lengths, bounds and page ids are checked, too.
    """
    lens = array_of("kv_lens", kv_lens, ("S",), (INT32,))
    table = array_of("page_table", page_table, (len(lens), "pages_per_seq"), (INT32,))
    starts = array_of("cu_q_lens", cu_q_lens, (len(lens) + 1,), (INT32,))
    sizes = (len(lens),) if getattr(num_seqs, "shape", None) == lens.shape else (1,)
    count = int(array_of("num_seqs", num_seqs, sizes, (INT32,))[0])
    batch = RaggedBatch(num_tokens, lens.tolist(), table, starts.tolist(), count, num_pages, page_size)
    if validate:
        _require_valid(batch)
    return batch


def _require_valid(batch: RaggedBatch) -> None:
    """Refuses impossible lengths, bounds and page ids (R1)."""
    if not 0 <= batch.num_seqs <= len(batch.kv_lens):
        raise refusal(ValueError, "R1", f"num_seqs={batch.num_seqs} must be in [0, {len(batch.kv_lens)}]")
    if batch.starts[0] != 0:
        raise refusal(ValueError, "R1", f"cu_q_lens[0]={batch.starts[0]} must be 0")
    most = batch.page_table.shape[1] * batch.page_size
    for i in range(batch.num_seqs):
        start, end, kv_len = batch.starts[i], batch.starts[i + 1], batch.kv_lens[i]
        if not start <= end <= batch.num_tokens:
            raise refusal(
                ValueError, "R1", f"cu_q_lens[{i + 1}]={end} must be in [{start}, {batch.num_tokens}] at sequence {i}"
            )
        if not 0 <= kv_len <= most:
            raise refusal(ValueError, "R1", f"kv_lens[{i}]={kv_len} must be in [0, {most}] at sequence {i}")
        if end - start > kv_len:
            raise refusal(
                ValueError, "R1", f"kv_lens[{i}]={kv_len} must be at least q_len={end - start} at sequence {i}"
            )
        for j in range(cdiv(kv_len, batch.page_size)):
            page = int(batch.page_table[i, j])
            if not 0 <= page < batch.num_pages:
                raise refusal(
                    IndexError, "R1", f"page_table[{i}, {j}]={page} must be in [0, {batch.num_pages}) at sequence {i}"
                )
