"""From the host's page table and token counts to the arrays of a step (TAB-7)."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from .arguments import flag, integer, listed, naturals, refusal
from .page_table import PageTable, cdiv
from .ragged_metadata import RaggedPagesMetadata, read_version
from .slots import slot_mapping, update_slices
from .table_rows import Ids

__all__ = ["MetadataBuilder"]

_STEP = 4
_LEAST_TOKENS = 16
_MOST_SIZES = 6


class MetadataBuilder:
    """Makes the metadata of each step from the host's page table and how many tokens each row has.

    Batches come in few sizes, so that few programs are compiled: T is the least of `token_sizes` that holds the
    step's tokens. Nothing is kept from step to step: each step's arrays have memory of their own, which nothing that
    the host does later changes. Not thread-safe.

    Args:
        page_size: tokens in a page.
        max_num_reqs: rows of the page table (S).
        max_pages: entries of a row (W).
        max_num_tokens: the most tokens of a step.
        version: the cache's layout, ``"v2"`` or ``"v3"``.
        token_sizes: the sizes that a batch may have, ascending, the last at least ``max_num_tokens``; None: by
            fours down from ``max_num_tokens`` to 16, six at most.
        slices: whether to say where tokens go by slices instead of token by token.

    Attributes:
        token_sizes: the sizes that a batch may have, ascending.
    """

    def __init__(
        self,
        page_size: int,
        max_num_reqs: int,
        max_pages: int,
        max_num_tokens: int,
        version: str = "v3",
        token_sizes: Iterable[int] | None = None,
        slices: bool = False,
    ) -> None:
        self.page_size = integer("page_size", page_size, minimum=1)
        self.max_num_reqs = integer("max_num_reqs", max_num_reqs, minimum=1)
        self.max_pages = integer("max_pages", max_pages, minimum=1)
        self.max_num_tokens = integer("max_num_tokens", max_num_tokens, minimum=1)
        self.version = read_version(version)
        self.token_sizes = _token_sizes(self.max_num_tokens, token_sizes)
        self.slices = flag("slices", slices)

    def build(self, page_table: PageTable, num_computed_tokens: Ids, num_scheduled_tokens: Ids) -> RaggedPagesMetadata:
        """Commits the rows of a step and makes its metadata. O(rows and tokens), without waiting for the device.

        The sequences are the first n rows of the table, in their order.

        Args:
            page_table: the table; its first n rows are committed. Its device copy is part of what is returned, and
                as good: until the next commit (TAB-4).
            num_computed_tokens: tokens of each row that are in the cache, `[n]`.
            num_scheduled_tokens: tokens of each row that this step adds, `[n]`; 0 is none.

        Raises:
            TypeError: ``page_table`` is no PageTable, or a count is no integer.
            IndexError: a row has no page for one of its tokens (TAB-7).
            ValueError: the table has other sizes, there are more rows or tokens than it was made for, or a count is
                negative (R1). Nothing was committed.
        """
        self._check_table(page_table)
        computed = naturals("num_computed_tokens", num_computed_tokens)
        scheduled = naturals("num_scheduled_tokens", num_scheduled_tokens)
        num_seqs = len(computed)
        if num_seqs != len(scheduled):
            raise refusal(
                ValueError, "R1", f"num_computed_tokens names {num_seqs} rows, num_scheduled_tokens {len(scheduled)}"
            )
        if num_seqs > self.max_num_reqs:
            raise refusal(
                ValueError, "R1", f"num_computed_tokens names {num_seqs} rows, max_num_reqs={self.max_num_reqs}"
            )
        self._check_room(page_table, computed, scheduled)
        ends = np.cumsum(scheduled)
        num_tokens = int(ends[-1]) if num_seqs else 0
        padded = next(size for size in self.token_sizes if size >= num_tokens)

        starts = ends - scheduled
        rows = np.repeat(np.arange(num_seqs), scheduled)
        positions = np.arange(num_tokens) + (computed - starts)[rows]
        arrays: dict[str, NDArray[np.int32]] = {
            "context_lens": _padded(computed + scheduled, self.max_num_reqs, 0),
            "query_start_loc": _padded(np.concatenate([[0], ends]), self.max_num_reqs + 1, num_tokens),
            "num_seqs": np.array([num_seqs], np.int32),
            "position_ids": _padded(positions, padded, 0),
            "request_distribution": _distribution(scheduled),
        }
        host, counts = page_table.page_table_cpu, page_table.num_pages_per_row
        if self.slices:
            columns = update_slices(host, counts, padded, np.arange(num_seqs), computed, scheduled, self.page_size)
            arrays["slot_mapping"] = columns
            arrays["num_kv_update_slices"] = np.array([np.count_nonzero(columns[2] > 0)], np.int32)
        else:
            arrays["slot_mapping"] = slot_mapping(host, counts, padded, rows, positions, self.page_size)

        page_table.commit(num_seqs)
        # Every array above is new and nobody else's: JAX may go on reading it for as long as it likes. One by one
        # takes two thirds of what `device_put` takes for all; a program that splits one array would be faster still,
        # and be another to compile for each size.
        on_device: dict[str, Any] = {name: jnp.asarray(array) for name, array in arrays.items()}
        return RaggedPagesMetadata(
            pages_tables=page_table.page_table, version=self.version, page_size=self.page_size, **on_device
        )

    # -- Inside -----------------------------------------------------------------------------------

    def _check_table(self, page_table: object) -> None:
        if not isinstance(page_table, PageTable):
            raise refusal(TypeError, "R1", f"page_table={type(page_table).__name__} must be a PageTable")
        shape = page_table.max_num_reqs, page_table.max_num_pages_per_req
        if shape != (self.max_num_reqs, self.max_pages):
            raise refusal(
                ValueError, "R1", f"page_table is of {list(shape)} entries, not {[self.max_num_reqs, self.max_pages]}"
            )

    def _check_room(self, table: PageTable, computed: NDArray[np.int64], scheduled: NDArray[np.int64]) -> None:
        # Compared one by one with what there is room for: no sum overflows.
        room = table.num_pages_per_row[: len(computed)].astype(np.int64) * self.page_size
        if bool((scheduled > self.max_num_tokens).any()) or int(scheduled.sum()) > self.max_num_tokens:
            total = sum(map(int, scheduled))
            raise refusal(
                ValueError, "R1", f"num_scheduled_tokens: {total} tokens exceed max_num_tokens={self.max_num_tokens}"
            )
        short = np.flatnonzero(computed > room - scheduled)
        if short.size:
            row = int(short[0])
            raise refusal(
                IndexError,
                "TAB-7",
                f"num_computed_tokens: row {row} has pages for {room[row]} tokens, "
                f"not {computed[row]} + {scheduled[row]}",
            )


def _token_sizes(max_num_tokens: int, token_sizes: Iterable[int] | None) -> tuple[int, ...]:
    if token_sizes is not None:
        sizes = tuple(integer("token_sizes", size, minimum=1) for size in listed("token_sizes", token_sizes))
        ascend = all(low < high for low, high in pairwise(sizes))
        if not sizes or not ascend or sizes[-1] < max_num_tokens:
            raise refusal(ValueError, "R1", f"token_sizes={list(sizes)} must ascend to at least {max_num_tokens}")
        return sizes
    falling = [max_num_tokens]
    while len(falling) < _MOST_SIZES and falling[-1] > _LEAST_TOKENS:
        falling.append(max(_LEAST_TOKENS, cdiv(falling[-1], _STEP)))
    return tuple(reversed(falling))


def _padded(values: NDArray[np.int64], size: int, padding: int) -> NDArray[np.int32]:
    """A new array of a fixed size: the values, then padding."""
    padded = np.full(size, padding, np.int32)
    padded[: len(values)] = values
    return padded


def _distribution(scheduled: NDArray[np.int64]) -> NDArray[np.int32]:
    """The ends of the leading rows with one token, of those with a fixed chunk, and of all rows."""
    several = np.flatnonzero(scheduled != 1)
    leading = int(several[0]) if several.size else len(scheduled)
    return np.array([leading, leading, len(scheduled)], np.int32)
