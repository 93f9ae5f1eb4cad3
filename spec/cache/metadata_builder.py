"""TAB-7: builds the metadata of a step from host page tables and token counts."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..declarations.cache_metadata import read_version
from ..reading.arguments import flag, integer, listed, refusal
from ..table.multi_group_table import MultiGroupPageTable
from ..table.page_table import PageTable, cdiv
from .ragged_metadata import RaggedPagesMetadata

__all__ = ["MetadataBuilder", "MultiGroupMetadataBuilder"]

_LEAST_SIZE = 16
_MOST_SIZES = 6
_RATIO = 4


class MetadataBuilder:
    """Builds the metadata of steps.

    The number of token rows T of a step is padded to one of a few sizes, so that a backend compiles few programs.

    Args:
        page_size: tokens in a page.
        max_num_reqs: number of rows of the page table.
        max_pages: number of entries of a row.
        max_num_tokens: the most tokens of a step.
        version: the caches' layout, ``v2`` or ``v3``.
        token_sizes: the allowed values of T, ascending, the last at least ``max_num_tokens``; None: ``max_num_tokens``,
            a quarter of it, a quarter of that, and so on down to 16, at most 6 sizes.
        slices: whether the metadata has update slices instead of a slot for each token.

    Attributes:
        token_sizes: allowed values of T, ascending.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: an argument out of its bounds (R1).
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
        self.slices = flag("slices", slices)
        self.token_sizes = self._default_sizes() if token_sizes is None else self._read_sizes(token_sizes)

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
        self._require_table(page_table)
        return self._checked(page_table, *self._read_counts(num_computed_tokens, num_scheduled_tokens))()

    def _checked(
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
        table = page_table.page_table_cpu
        slots = [
            int(table[row, position // self.page_size]) * self.page_size + position % self.page_size
            for row, position in zip(rows, positions, strict=True)
        ]
        if max(slots, default=0) >= 2**31:
            raise refusal(ValueError, "TAB-7", f"slot {max(slots)} does not fit an int32")
        if not self.slices:
            return _filled(slots, size, -1), None
        columns: list[list[int]] = []
        for token, (row, position, slot) in enumerate(zip(rows, positions, slots, strict=True)):
            if token and rows[token - 1] == row and position % self.page_size:
                columns[-1][2] += 1
            else:
                columns.append([slot, token, 1])
        slices = np.full((3, min(2 * self.max_num_reqs + size // self.page_size, size)), -1, np.int32)
        for place, column in enumerate(columns):
            slices[:, place] = column
        return slices, _filled([len(columns)], 1, 0)

    # -- Reading arguments ------------------------------------------------------------------------

    def _require_table(self, page_table: object) -> None:
        if not isinstance(page_table, PageTable):
            raise refusal(TypeError, "R1", f"page_table must be a PageTable, not {type(page_table).__name__}")
        entries = page_table.max_num_reqs, page_table.max_num_pages_per_req
        if entries != (self.max_num_reqs, self.max_pages):
            raise refusal(
                ValueError, "R1", f"page_table has {entries} entries, not {(self.max_num_reqs, self.max_pages)}"
            )

    def _read_counts(
        self, num_computed_tokens: Iterable[int], num_scheduled_tokens: Iterable[int]
    ) -> tuple[list[int], list[int]]:
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

    def _default_sizes(self) -> tuple[int, ...]:
        sizes = [self.max_num_tokens]
        while sizes[0] > _LEAST_SIZE and len(sizes) < _MOST_SIZES:
            sizes.insert(0, max(_LEAST_SIZE, cdiv(sizes[0], _RATIO)))
        return tuple(sizes)

    def _read_sizes(self, token_sizes: object) -> tuple[int, ...]:
        sizes = tuple(integer("token_sizes", size, minimum=1) for size in listed("token_sizes", token_sizes))
        ascending = all(low < high for low, high in pairwise(sizes))
        if not sizes or not ascending or sizes[-1] < self.max_num_tokens:
            raise refusal(ValueError, "R1", f"token_sizes={list(sizes)} must ascend to {self.max_num_tokens} or more")
        return sizes


class MultiGroupMetadataBuilder:
    """Builds the metadata of steps for several cache groups, with a `MetadataBuilder` for each.

    Args:
        page_sizes: tokens in a page, for each group.
        max_num_reqs: number of rows of the page tables.
        max_pages: number of entries of a row, for each group.
        max_num_tokens: see `MetadataBuilder`.
        version: see `MetadataBuilder`.
        token_sizes: see `MetadataBuilder`.
        slices: see `MetadataBuilder`.

    Attributes:
        builders: builder of each group's metadata.
        token_sizes: allowed values of T, ascending.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: an argument out of its bounds, no group, or ``page_sizes`` and ``max_pages`` of different lengths
            (R1).
    """

    def __init__(
        self,
        page_sizes: Iterable[int],
        max_num_reqs: int,
        max_pages: Iterable[int],
        max_num_tokens: int,
        version: str = "v3",
        token_sizes: Iterable[int] | None = None,
        slices: bool = False,
    ) -> None:
        sizes, widths = listed("page_sizes", page_sizes), listed("max_pages", max_pages)
        if not sizes or len(sizes) != len(widths):
            raise refusal(ValueError, "R1", f"page_sizes={sizes} and max_pages={widths} must name the same groups")
        lengths = None if token_sizes is None else listed("token_sizes", token_sizes)
        self.builders = [
            MetadataBuilder(size, max_num_reqs, width, max_num_tokens, version, lengths, slices)
            for size, width in zip(sizes, widths, strict=True)
        ]
        self.token_sizes = self.builders[0].token_sizes

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
        if not isinstance(page_tables, MultiGroupPageTable):
            raise refusal(
                TypeError, "R1", f"page_tables must be a MultiGroupPageTable, not {type(page_tables).__name__}"
            )
        if len(page_tables) != len(self.builders):
            raise refusal(
                ValueError, "R1", f"page_tables has {len(page_tables)} groups, page_sizes {len(self.builders)}"
            )
        each = [(builder, page_tables[group]) for group, builder in enumerate(self.builders)]
        for builder, table in each:
            builder._require_table(table)
        counts = self.builders[0]._read_counts(num_computed_tokens, num_scheduled_tokens)
        return [committed() for committed in [builder._checked(table, *counts) for builder, table in each]]


def _filled(values: Sequence[int], size: int, padding: int) -> NDArray[np.int32]:
    """`i32[size]`: the values, then padding."""
    return np.array([*values, *[padding] * (size - len(values))], np.int32)
