"""TAB-7: the arrays of a step for all cache groups: each group has what its own builder makes."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast

from ..fast.cache_pairs import plain_step

ROWS, LENGTH, TOKENS = 4, 24, 20
SIZES = (2, 4, 3)
WIDTHS = tuple(-(-LENGTH // size) for size in SIZES)


def _tables(package: ModuleType, pages: list[list[int]], sizes: tuple[int, ...] = SIZES, length: int = LENGTH) -> Any:
    """Tables whose rows name as many pages in each group, but one more in the second and two more in the third."""
    tables = package.MultiGroupPageTable(ROWS, length, TOKENS, sizes)
    for row, ids in enumerate(pages):
        tables.append_row([ids[: 3 + group] for group in range(len(sizes))], row)
    return tables


def _builder(package: ModuleType, **options: Any) -> Any:
    given: dict[str, Any] = {"page_sizes": SIZES, "max_num_reqs": ROWS, "max_pages": WIDTHS, "max_num_tokens": TOKENS}
    return package.MultiGroupMetadataBuilder(**given | options)


def _committed(tables: Any) -> list[Any]:
    return [np.asarray(table.page_table).tolist() for table in tables.page_tables]


@given(
    steps=st.lists(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=3), min_size=1, max_size=2
    ),
    slices=st.booleans(),
    version=st.sampled_from(["v2", "v3"]),
)
def test_each_group_has_what_its_own_builder_makes(
    package: ModuleType, steps: list[list[tuple[int, int]]], slices: bool, version: str
) -> None:
    """And every table is committed; what is the same for all groups is one array on fast's device."""
    tables = _tables(package, [[5, 6, 7, 1, 2], [8, 9, 10, 3, 4], [11, 12, 13, 14, 15]])
    builder = _builder(package, slices=slices, version=version)
    for rows in steps:
        computed, scheduled = [row[0] for row in rows], [row[1] for row in rows]
        made = builder.build(tables, computed, scheduled)
        for table in tables.page_tables:
            assert np.array_equal(table.page_table[: len(rows)], table.get_cpu_tensor()[: len(rows)])
        for group, step in enumerate(made):
            alone = builder.builders[group].build(tables[group], computed, scheduled)
            assert plain_step(step) == plain_step(alone)
            for name in ("context_lens", "query_start_loc", "num_seqs", "position_ids", "request_distribution"):
                own, shared = getattr(step, name), getattr(made[0], name)
                assert own is shared if package is fast else np.array_equal(own, shared)


def test_a_group_without_room_keeps_all_tables_as_they_are(package: ModuleType) -> None:
    """R1, TAB-7: the last group's row has pages for fewer tokens than the first one's."""
    tables: Any = package.MultiGroupPageTable(2, 8, 8, (2, 2))
    tables.append_row([[1, 2, 3], [4, 5]], 0)
    builder = package.MultiGroupMetadataBuilder((2, 2), 2, (4, 4), 8)
    with pytest.raises(IndexError, match=r"row 0 has .* 4 tokens, not .*4 \+ 1 \[TAB-7\]"):
        builder.build(tables, [4], [1])
    assert _committed(tables) == [[[0] * 4] * 2] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"page_sizes": (), "max_pages": ()},
        {"page_sizes": (2, 4)},
        {"page_sizes": (2, 4, 0)},
        {"max_pages": 7},
        {"max_num_reqs": 0},
        {"token_sizes": [3]},
        {"version": "v9"},
    ],
)
def test_builders_that_can_not_be_are_refused(package: ModuleType, options: dict[str, Any]) -> None:
    """R1."""
    with pytest.raises((TypeError, ValueError), match=r"\[[A-Z]+-?\d+\]$"):
        _builder(package, **options)


def test_tables_of_other_groups_are_refused(package: ModuleType) -> None:
    """R1: one group's table, tables of fewer groups, tables of another width; nothing is committed."""
    pages = [[1, 2, 3]]
    few, wide = _tables(package, pages, SIZES[:2]), _tables(package, pages, SIZES, 3 * LENGTH)
    for wrong in (_tables(package, pages)[0], few, wide):
        with pytest.raises((TypeError, ValueError), match=r"\[[A-Z]+-?\d+\]$"):
            _builder(package).build(wrong, [0], [1])
    for tables in (few, wide):
        assert not any(np.asarray(table.page_table).any() for table in tables.page_tables)
