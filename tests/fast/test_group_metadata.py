"""The arrays of a step for all cache groups, against the specification's and against one group at a time (TAB-7)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast, spec

from .cache_pairs import outcome, plain_step, refused

ROWS, LENGTH, TOKENS = 4, 24, 20
SIZES = (2, 4, 3)
WIDTHS = tuple(-(-LENGTH // size) for size in SIZES)

counts = st.lists(st.integers(0, 9), max_size=ROWS + 1)


def both(pages: list[list[int]], **options: Any) -> list[tuple[Any, Any]]:
    """A builder and its tables, of each package; each row names as many pages in each group."""
    made = []
    for names in (fast, spec):
        tables: Any = names.MultiGroupPageTable(ROWS, LENGTH, TOKENS, SIZES)
        for row, ids in enumerate(pages):
            tables.append_row([ids[: 3 + group] for group in range(len(SIZES))], row)
        made.append((names.MultiGroupMetadataBuilder(SIZES, ROWS, WIDTHS, TOKENS, **options), tables))
    return made


def committed(tables: Any) -> list[Any]:
    return [np.asarray(table.page_table).tolist() for table in tables.page_tables]


@given(
    pages=st.lists(st.lists(st.integers(0, 2**30), min_size=3, max_size=5), max_size=ROWS),
    steps=st.lists(st.tuples(counts, counts), min_size=1, max_size=3),
    slices=st.booleans(),
)
def test_steps_are_the_specifications(
    pages: list[list[int]], steps: list[tuple[list[int], list[int]]], slices: bool
) -> None:
    """TAB-4, TAB-7, R1: all groups' metadata and tables, or a refusal after which no table was committed."""
    (ours, tables), (theirs, others) = both(pages, slices=slices, version="v2")
    assert ours.token_sizes == theirs.token_sizes
    for computed, scheduled in steps:
        scheduled = scheduled[: len(computed)] + [0] * (len(computed) - len(scheduled))
        before = committed(tables)
        made = outcome(lambda c=computed, s=scheduled: ours.build(tables, c, s))  # type: ignore[misc]
        wanted = outcome(lambda c=computed, s=scheduled: theirs.build(others, c, s))  # type: ignore[misc]
        if refused(wanted):
            assert made == wanted
            assert committed(tables) == before
        else:
            assert [plain_step(step) for step in made] == [plain_step(step) for step in wanted]
        assert committed(tables) == committed(others)


@given(computed=st.lists(st.integers(0, 3), min_size=1, max_size=2), slices=st.booleans())
def test_each_group_has_what_its_own_builder_makes(computed: list[int], slices: bool) -> None:
    """TAB-7: and what is the same for all groups is one array on the device."""
    (builder, tables), (theirs, others) = both([[5, 6, 7], [8, 9, 10]], slices=slices)
    scheduled = [2] * len(computed)
    steps = builder.build(tables, computed, scheduled)
    for group, step in enumerate(steps):
        alone = builder.builders[group].build(tables[group], computed, scheduled)
        assert plain_step(step) == plain_step(alone)
        for name in ("context_lens", "query_start_loc", "num_seqs", "position_ids", "request_distribution"):
            assert getattr(step, name) is getattr(steps[0], name)
    alone = [own.build(others[group], computed, scheduled) for group, own in enumerate(theirs.builders)]
    assert [plain_step(step) for step in theirs.build(others, computed, scheduled)] == list(map(plain_step, alone))


def test_a_group_without_room_keeps_all_tables_as_they_are() -> None:
    """R1, TAB-7: the last group's row has pages for fewer tokens than the first one's."""
    for names in (fast, spec):
        tables: Any = names.MultiGroupPageTable(2, 8, 8, (2, 2))
        tables.append_row([[1, 2, 3], [4, 5]], 0)
        builder = names.MultiGroupMetadataBuilder((2, 2), 2, (4, 4), 8)
        with pytest.raises(IndexError, match=r"row 0 has .* 4 tokens, not .*4 \+ 1 \[TAB-7\]"):
            builder.build(tables, [4], [1])
        assert committed(tables) == [[[0] * 4] * 2] * 2


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
def test_builders_refuse_what_the_specification_refuses(options: dict[str, Any]) -> None:
    """R1."""
    given: dict[str, Any] = {"page_sizes": SIZES, "max_num_reqs": ROWS, "max_pages": WIDTHS, "max_num_tokens": TOKENS}
    made = outcome(lambda: fast.MultiGroupMetadataBuilder(**given | options))
    assert refused(made)
    assert made == outcome(lambda: spec.MultiGroupMetadataBuilder(**given | options))


def test_tables_of_other_groups_are_refused() -> None:
    """R1: one group's table, tables of fewer groups, tables of another width; nothing is committed."""
    (ours, tables), (theirs, others) = both([[1, 2, 3]])
    wrong: list[tuple[Any, Any]] = [(tables[0], others[0])]
    for sizes, length in ((SIZES[:2], LENGTH), (SIZES, 3 * LENGTH)):
        wrong.append(tuple(names.MultiGroupPageTable(ROWS, length, TOKENS, sizes) for names in (fast, spec)))
    for mine, other in wrong:
        made = outcome(lambda given=mine: ours.build(given, [0], [1]))  # type: ignore[misc]
        assert refused(made)
        assert made == outcome(lambda given=other: theirs.build(given, [0], [1]))  # type: ignore[misc]
