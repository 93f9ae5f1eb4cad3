"""TAB-7: the builders of the arrays of a step: what they are made of, and the tables that they take."""

from abc import abstractmethod
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, ClassVar, Generic, TypeVar

from .cache_metadata import read_version
from .reading import flag, instance, integer, listed, refusal
from .showing import ShownBuilder, ShownBuilders

__all__ = ["GroupBuilders", "StepBuilder"]

Builder = TypeVar("Builder", bound="StepBuilder")


class StepBuilder(ShownBuilder):
    """Builds the metadata of steps from the host's page table and the numbers of tokens of its rows.

    The number of token rows T of a step is padded to one of a few sizes, so that few programs are compiled. Nothing is
    kept from step to step. Not thread-safe.

    Args:
        page_size: tokens in a page.
        max_num_reqs: number of rows of the page table (S).
        max_pages: number of entries of a row (W).
        max_num_tokens: the most tokens of a step.
        version: the caches' layout, ``v2`` or ``v3``.
        token_sizes: the allowed values of T, ascending, the last at least ``max_num_tokens``; None: ``max_num_tokens``,
            and quarters of it down to 16, at most 6 sizes.
        slices: whether the metadata has update slices instead of a slot for each token.

    Attributes:
        token_sizes: allowed values of T, ascending.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: an argument out of its bounds (R1).
    """

    _table: ClassVar[type[Any]]
    """The class of page tables of the package."""

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

    @abstractmethod
    def _default_sizes(self) -> tuple[int, ...]:
        """The values of T where none are named."""

    def _read_sizes(self, token_sizes: object) -> tuple[int, ...]:
        sizes = tuple(integer("token_sizes", size, minimum=1) for size in listed("token_sizes", token_sizes))
        ascending = all(low < high for low, high in pairwise(sizes))
        if not sizes or not ascending or sizes[-1] < self.max_num_tokens:
            raise refusal(ValueError, "R1", f"token_sizes={list(sizes)} must ascend to {self.max_num_tokens} or more")
        return sizes

    def require_table(self, page_table: Any) -> None:
        """Refuses a page table of other sizes than the builder's (R1).

        Raises:
            TypeError: it is no table.
            ValueError: it has other sizes.
        """
        table = instance("page_table", page_table, self._table, "a PageTable")
        entries = table.max_num_reqs, table.max_num_pages_per_req
        if entries != (self.max_num_reqs, self.max_pages):
            raise refusal(
                ValueError, "R1", f"page_table has {entries} entries, not {(self.max_num_reqs, self.max_pages)}"
            )


class GroupBuilders(ShownBuilders, Generic[Builder]):
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

    _builder: type[Builder]
    """The class of builders of the package."""

    _tables: ClassVar[type[Any]]
    """The class of the tables of all groups of the package."""

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
            self._builder(size, max_num_reqs, width, max_num_tokens, version, lengths, slices)
            for size, width in zip(sizes, widths, strict=True)
        ]
        self.token_sizes = self.builders[0].token_sizes

    def read_tables(self, page_tables: Any) -> list[Any]:
        """Reads the tables of the groups, one for each builder (R1).

        Raises:
            TypeError: they are no tables of several groups.
            ValueError: their number is not that of the groups, or one has other sizes.
        """
        tables = instance("page_tables", page_tables, self._tables, "a MultiGroupPageTable")
        if len(tables) != len(self.builders):
            raise refusal(ValueError, "R1", f"page_tables has {len(tables)} groups, page_sizes {len(self.builders)}")
        own = [tables[group] for group in range(len(tables))]
        for builder, table in zip(self.builders, own, strict=True):
            builder.require_table(table)
        return own
