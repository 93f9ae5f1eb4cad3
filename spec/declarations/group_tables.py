"""TAB: the page tables of several cache groups: what they are made of, and the calls that go to each table."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from .reading import index, integer, listed, refusal
from .showing import ShownTables

__all__ = ["GroupTables"]


class AnyPageTable(Protocol):
    """The calls of a page table that go to the tables of all groups as they are."""

    def clear_row(self, row_idx: int) -> None: ...
    def move_row(self, src: int, tgt: int) -> None: ...
    def swap_row(self, src: int, tgt: int) -> None: ...
    def commit(self, num_reqs: int) -> None: ...
    def clear(self) -> None: ...
    def check(self) -> None: ...


Table = TypeVar("Table", bound=AnyPageTable)


class GroupTables(ShownTables, Generic[Table]):
    """The page tables of several cache groups; a request has the same row in all of them. Not thread-safe.

    Args:
        max_num_reqs: number of rows.
        max_model_len: the most tokens of a request; the rows of every table have room for them.
        max_num_batched_tokens: the most tokens of one step.
        page_sizes: tokens in a page, for each group.
        sharding: the sharding of the device tables; see `PageTable`.

    Attributes:
        page_tables: the groups' tables.
        page_sizes: tokens in a page, for each group.
    """

    def __init__(
        self,
        max_num_reqs: int,
        max_model_len: int,
        max_num_batched_tokens: int,
        page_sizes: Sequence[int],
        *,
        sharding: Any = None,
    ) -> None:
        length = integer("max_model_len", max_model_len, minimum=1, below=2**31)
        self.page_sizes = [integer("page_sizes", size, minimum=1) for size in listed("page_sizes", page_sizes)]
        if not self.page_sizes:
            raise refusal(ValueError, "R1", "page_sizes=[] names no group")
        self.page_tables: list[Table] = [
            self._table(max_num_reqs, length, size, max_num_batched_tokens, sharding) for size in self.page_sizes
        ]

    @staticmethod
    @abstractmethod
    def _table(
        max_num_reqs: int, max_model_len: int, page_size: int, max_num_batched_tokens: int, sharding: Any
    ) -> Any:
        """The table of a group, whose rows have room for ``max_model_len`` tokens."""

    def __getitem__(self, group: int) -> Table:
        """The table of one group."""
        return self.page_tables[index("group", group, len(self.page_tables))]

    def __len__(self) -> int:
        return len(self.page_tables)

    def clear_row(self, row_idx: int) -> None:
        """Empties a row in every group; errors as in `PageTable`."""
        for table in self.page_tables:  # all have the same rows, so only the first can refuse
            table.clear_row(row_idx)

    def move_row(self, src: int, tgt: int) -> None:
        """Copies row ``src`` over row ``tgt`` in every group (TAB-3); errors as in `PageTable`."""
        for table in self.page_tables:
            table.move_row(src, tgt)

    def swap_row(self, src: int, tgt: int) -> None:
        """Exchanges two rows in every group (TAB-3); errors as in `PageTable`."""
        for table in self.page_tables:
            table.swap_row(src, tgt)

    def commit(self, num_reqs: int) -> None:
        """Commits the first ``num_reqs`` rows of every group (TAB-4); errors as in `PageTable`."""
        for table in self.page_tables:
            table.commit(num_reqs)

    def clear(self) -> None:
        """Empties every row of every group, on host and device (TAB-6)."""
        for table in self.page_tables:
            table.clear()

    def check(self) -> None:
        """Verifies every table's state; raises AssertionError with the whole state of the first that is broken."""
        for table in self.page_tables:
            table.check()

    def require_groups(self, name: str, lists: Sequence[Any]) -> None:
        """Refuses a number of lists of pages that is not that of the groups (TAB-2)."""
        if len(lists) != len(self.page_tables):
            raise refusal(ValueError, "TAB-2", f"{name} has {len(lists)} lists for {len(self.page_tables)} groups")
