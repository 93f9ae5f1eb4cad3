"""TAB-7: builds the metadata of a step from host page tables and token counts."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..declarations.step_builders import GroupBuilders, StepBuilder
from ..reading.arguments import integer, listed, refusal
from ..table.multi_group_table import MultiGroupPageTable
from ..table.page_table import PageTable, cdiv
from .ragged_metadata import RaggedPagesMetadata

__all__ = ["MetadataBuilder", "MultiGroupMetadataBuilder"]

_LEAST_SIZE = 16
_MOST_SIZES = 6
_RATIO = 4


class MetadataBuilder(StepBuilder):
    """Builds the metadata of steps; `StepBuilder` describes arguments and attributes."""

    _table = PageTable

    def _default_sizes(self) -> tuple[int, ...]:
        sizes = [self.max_num_tokens]
        while sizes[0] > _LEAST_SIZE and len(sizes) < _MOST_SIZES:
            sizes.insert(0, max(_LEAST_SIZE, cdiv(sizes[0], _RATIO)))
        return tuple(sizes)

    def build(
        self, page_table: PageTable, num_computed_tokens: Iterable[int], num_scheduled_tokens: Iterable[int]
    ) -> RaggedPagesMetadata:
        """Commits the first rows of the table, a row for each sequence, and builds the step's metadata (TAB-4).

        Args:
            page_table: the host's table.
            num_computed_tokens: tokens of each sequence before the step, `[n]`.
            num_scheduled_tokens: tokens of each sequence in the step, `[n]`; 0 is allowed.

        Returns:
            The metadata: positions past the step's tokens are 0, slots past them -1.

        Raises:
            TypeError: no table, or a count that is no integer.
            IndexError: a sequence has more tokens than its row has room for (TAB-7).
            ValueError: a table of another size, too many sequences or tokens, or a negative count. In all these cases
                nothing is committed (R1).
        """
        self.require_table(page_table)
        return self.checked(page_table, *self.read_counts(num_computed_tokens, num_scheduled_tokens))()

    def checked(
        self, page_table: PageTable, computed: list[int], scheduled: list[int]
    ) -> Callable[[], RaggedPagesMetadata]:
        """Checks a step; returns a function that commits the table and builds the metadata (R1)."""
        self._require_room(page_table, computed, scheduled)
        num_tokens, num_seqs = sum(scheduled), len(scheduled)
        size = next(size for size in self.token_sizes if size >= num_tokens)
        positions: list[int] = []
        rows: list[int] = []
        starts = [0]
        for row in range(num_seqs):
            positions += range(computed[row], computed[row] + scheduled[row])
            rows += [row] * scheduled[row]
            starts.append(len(positions))
        leading = next((row for row in range(num_seqs) if scheduled[row] != 1), num_seqs)
        mapping, count = self._where(page_table, rows, positions, size)

        def committed() -> RaggedPagesMetadata:
            page_table.commit(num_seqs)
            return RaggedPagesMetadata(
                pages_tables=page_table.page_table,
                context_lens=_filled(
                    [before + new for before, new in zip(computed, scheduled, strict=True)], self.max_num_reqs, 0
                ),
                query_start_loc=_filled(starts, self.max_num_reqs + 1, num_tokens),
                num_seqs=_filled([num_seqs], 1, 0),
                slot_mapping=mapping,
                position_ids=_filled(positions, size, 0),
                request_distribution=_filled([leading, leading, num_seqs], 3, 0),
                num_kv_update_slices=count,
                version=self.version,
                page_size=self.page_size,
            )

        return committed

    def _where(
        self, page_table: PageTable, rows: list[int], positions: list[int], size: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int32] | None]:
        """The slots of a step's tokens, `i32[T]`, and None; or its slices, `i32[3, n]`, and their number (TAB-7)."""
        places = list(zip(rows, positions, strict=True))
        if not self.slices:
            slots = [page_table.slot_of(row, position, self.page_size) for row, position in places]
            return _filled(slots, size, -1), None
        most = min(2 * self.max_num_reqs + size // self.page_size, size)
        slices = page_table.slices_of(places, self.page_size, most)
        return slices, _filled([int(np.count_nonzero(slices[2] > 0))], 1, 0)

    def read_counts(
        self, num_computed_tokens: Iterable[int], num_scheduled_tokens: Iterable[int]
    ) -> tuple[list[int], list[int]]:
        """Reads the numbers of tokens of a step's sequences, before it and in it (R1)."""
        computed, scheduled = (
            [integer(name, count) for count in listed(name, counts)]
            for name, counts in (
                ("num_computed_tokens", num_computed_tokens),
                ("num_scheduled_tokens", num_scheduled_tokens),
            )
        )
        if len(computed) != len(scheduled) or len(computed) > self.max_num_reqs:
            raise refusal(
                ValueError,
                "R1",
                f"num_computed_tokens names {len(computed)} rows and num_scheduled_tokens {len(scheduled)}, which must "
                f"be as many, and at most max_num_reqs={self.max_num_reqs}",
            )
        if sum(scheduled) > self.max_num_tokens:
            raise refusal(
                ValueError,
                "R1",
                f"num_scheduled_tokens: {sum(scheduled)} tokens exceed max_num_tokens={self.max_num_tokens}",
            )
        return computed, scheduled

    def _require_room(self, page_table: PageTable, computed: list[int], scheduled: list[int]) -> None:
        for row, (before, new) in enumerate(zip(computed, scheduled, strict=True)):
            room = int(page_table.num_pages_per_row[row]) * self.page_size
            if before + new > room:
                raise refusal(
                    IndexError,
                    "TAB-7",
                    f"num_computed_tokens: row {row} has room for {room} tokens, not for {before} + {new}",
                )


class MultiGroupMetadataBuilder(GroupBuilders[MetadataBuilder]):
    """Builds the metadata of steps for several cache groups; `GroupBuilders` describes the arguments."""

    _builder, _tables = MetadataBuilder, MultiGroupPageTable

    def build(
        self,
        page_tables: MultiGroupPageTable,
        num_computed_tokens: Iterable[int],
        num_scheduled_tokens: Iterable[int],
    ) -> list[RaggedPagesMetadata]:
        """Commits the tables of all groups, or none, and builds the step's metadata for each group (TAB-4, R1).

        Args:
            page_tables: the groups' tables.
            num_computed_tokens: tokens of each sequence before the step, `[n]`.
            num_scheduled_tokens: tokens of each sequence in the step, `[n]`; 0 is allowed.

        Raises:
            TypeError: no tables, or a count that is no integer.
            IndexError: a sequence has more tokens than its row has room for, in some group (TAB-7).
            ValueError: see `MetadataBuilder.build`; or not a table for each group.
        """
        tables = self.read_tables(page_tables)
        counts = self.builders[0].read_counts(num_computed_tokens, num_scheduled_tokens)
        steps = [builder.checked(table, *counts) for builder, table in zip(self.builders, tables, strict=True)]
        return [committed() for committed in steps]


def _filled(values: Sequence[int], size: int, padding: int) -> NDArray[np.int32]:
    """`i32[size]`: the values, then padding."""
    return np.array([*values, *[padding] * (size - len(values))], np.int32)
