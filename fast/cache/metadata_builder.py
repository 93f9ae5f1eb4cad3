"""From the host's page tables and token counts to the arrays of a step (TAB-7)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.reading import Ids
from kvproof.spec.declarations.step_builders import GroupBuilders, StepBuilder

from ..reading.arguments import naturals, refusal
from ..table.multi_group_table import MultiGroupPageTable
from ..table.page_table import PageTable, cdiv
from ..table.slots import slot_mapping, update_slices
from .ragged_metadata import RaggedPagesMetadata

__all__ = ["MetadataBuilder", "MultiGroupMetadataBuilder"]

_STEP = 4
_LEAST_TOKENS = 16
_MOST_SIZES = 6


class MetadataBuilder(StepBuilder):
    """Makes the metadata of each step; `StepBuilder` describes arguments and attributes.

    Each step's arrays have memory of their own, which later calls don't change.
    """

    _table = PageTable

    def _default_sizes(self) -> tuple[int, ...]:
        falling = [self.max_num_tokens]
        while len(falling) < _MOST_SIZES and falling[-1] > _LEAST_TOKENS:
            falling.append(max(_LEAST_TOKENS, cdiv(falling[-1], _STEP)))
        return tuple(reversed(falling))

    def build(self, page_table: PageTable, num_computed_tokens: Ids, num_scheduled_tokens: Ids) -> RaggedPagesMetadata:
        """Commits the rows of a step and makes its metadata. O(rows and tokens), without waiting for the device.

        The sequences are the first n rows of the table, in their order.

        Args:
            page_table: the table; its first n rows are committed. Its device copy is part of the result, which is valid
                until the next commit (TAB-4).
            num_computed_tokens: tokens of each row that are in the cache, `[n]`.
            num_scheduled_tokens: tokens of each row that this step adds, `[n]`; 0 is none.

        Raises:
            TypeError: ``page_table`` is not a PageTable, or a count is not an integer.
            IndexError: a row has no page for one of its tokens (TAB-7).
            ValueError: the table has other sizes, there are more rows or tokens than it was made for, or a count is
                negative (R1). Nothing was committed.
        """
        self.require_table(page_table)
        return _build([self], [page_table], num_computed_tokens, num_scheduled_tokens)[0]

    # -- Inside -----------------------------------------------------------------------------------

    def read_counts(self, num_computed_tokens: Ids, num_scheduled_tokens: Ids) -> "_TokenCounts":
        """Reads the numbers of tokens of a step's sequences, before it and in it (R1)."""
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
        if bool((scheduled > self.max_num_tokens).any()) or int(scheduled.sum()) > self.max_num_tokens:
            total = sum(map(int, scheduled))
            raise refusal(
                ValueError, "R1", f"num_scheduled_tokens: {total} tokens exceed max_num_tokens={self.max_num_tokens}"
            )
        return _TokenCounts(computed, scheduled)

    def _check_room(self, table: PageTable, step: "_TokenCounts") -> None:
        # Compared one by one with what there is room for: no sum overflows.
        computed, scheduled = step
        room = table.num_pages_per_row[: len(computed)].astype(np.int64) * self.page_size
        short = np.flatnonzero(computed > room - scheduled)
        if short.size:
            row = int(short[0])
            raise refusal(
                IndexError,
                "TAB-7",
                f"num_computed_tokens: row {row} has pages for {room[row]} tokens, "
                f"not {computed[row]} + {scheduled[row]}",
            )

    def arrays(self, step: "_TokenCounts") -> tuple[dict[str, NDArray[np.int32]], "_TokenPositions"]:
        """The arrays of a step that are independent of tables, and the rows and positions of its tokens."""
        computed, scheduled = step
        num_seqs, ends = len(computed), np.cumsum(scheduled)
        num_tokens = int(ends[-1]) if num_seqs else 0
        size = next(size for size in self.token_sizes if size >= num_tokens)
        rows = np.repeat(np.arange(num_seqs), scheduled)
        positions = np.arange(num_tokens) + (computed - (ends - scheduled))[rows]
        arrays = {
            "context_lens": _padded(computed + scheduled, self.max_num_reqs, 0),
            "query_start_loc": _padded(np.concatenate([[0], ends]), self.max_num_reqs + 1, num_tokens),
            "num_seqs": np.array([num_seqs], np.int32),
            "position_ids": _padded(positions, size, 0),
            "request_distribution": _distribution(scheduled),
        }
        return arrays, _TokenPositions(rows, positions, size)

    def places(self, table: PageTable, step: "_TokenCounts", tokens: "_TokenPositions") -> dict[str, NDArray[np.int32]]:
        """The slots of a step's tokens by one table; refused if it has no page for a token (TAB-7)."""
        self._check_room(table, step)
        host, counts = table.page_table_cpu, table.num_pages_per_row
        if not self.slices:
            return {
                "slot_mapping": slot_mapping(host, counts, tokens.size, tokens.rows, tokens.positions, self.page_size)
            }
        columns = update_slices(host, counts, tokens.size, np.arange(len(step.computed)), *step, self.page_size)
        num_slices = np.array([np.count_nonzero(columns[2] > 0)], np.int32)
        return {"slot_mapping": columns, "num_kv_update_slices": num_slices}


class MultiGroupMetadataBuilder(GroupBuilders[MetadataBuilder]):
    """Makes the metadata of each step for all cache groups; `GroupBuilders` describes the arguments.

    Five of six arrays are shared, so that a step of two groups costs little more than one of one group.
    """

    _builder, _tables = MetadataBuilder, MultiGroupPageTable

    def build(
        self, page_tables: MultiGroupPageTable, num_computed_tokens: Ids, num_scheduled_tokens: Ids
    ) -> list[RaggedPagesMetadata]:
        """Commits the rows of a step in every group and makes its metadata. O(groups * (rows and tokens)).

        Args:
            page_tables: the groups' tables, in the builder's order; see `MetadataBuilder.build`.
            num_computed_tokens: tokens of each row that are in the cache, `[n]`.
            num_scheduled_tokens: tokens of each row that this step adds, `[n]`; 0 is none.

        Returns:
            For each group its metadata. They share arrays: donate none of them.

        Raises:
            TypeError: ``page_tables`` is no MultiGroupPageTable, or a count is no integer.
            IndexError: a row has no page for one of its tokens in some group (TAB-7).
            ValueError: as `MetadataBuilder.build`; also where there are not as many tables as groups (R1). In all
                these cases no table was committed.
        """
        tables = self.read_tables(page_tables)
        return _build(self.builders, tables, num_computed_tokens, num_scheduled_tokens)


class _TokenCounts(NamedTuple):
    """The numbers of tokens of each row that are in the cache and that a step adds, `i64[n]` each."""

    computed: NDArray[np.int64]
    scheduled: NDArray[np.int64]


class _TokenPositions(NamedTuple):
    """Row and position of each token of a step, `i64[num_tokens]` each, and how many tokens it is padded to."""

    rows: NDArray[np.int64]
    positions: NDArray[np.int64]
    size: int


def _build(
    builders: Sequence[MetadataBuilder],
    tables: Sequence[PageTable],
    num_computed_tokens: Ids,
    num_scheduled_tokens: Ids,
) -> list[RaggedPagesMetadata]:
    """A step's metadata by each table, of builders that differ in their pages only. Commits all tables or none (R1)."""
    step = builders[0].read_counts(num_computed_tokens, num_scheduled_tokens)
    arrays, tokens = builders[0].arrays(step)
    places = [builder.places(table, step, tokens) for builder, table in zip(builders, tables, strict=True)]

    for table in tables:
        table.commit(len(step.computed))
    shared, each = _on_device((arrays, places))
    return [
        RaggedPagesMetadata(
            pages_tables=table.page_table, version=builder.version, page_size=builder.page_size, **shared, **own
        )
        for builder, table, own in zip(builders, tables, each, strict=True)
    ]


_Arrays = tuple[dict[str, Any], list[dict[str, Any]]]


@jax.jit
def _on_device(arrays: _Arrays) -> _Arrays:
    """A step's arrays as JAX's, all in one call of a program that does nothing.

    Each array is new and shared with nothing, so that JAX may read it at any later time. There is a program for each
    size of a step; `jnp.asarray`, one by one, compiles one for each shape, and takes four times as long.
    """
    return arrays


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
