"""The arrays of a step, against the specification's (TAB-7), and what only a device copy can get wrong (TAB-4)."""

import json
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.fast.cache import metadata_builder as fast
from kvproof.fast.cache.ragged_metadata import RaggedPagesMetadata
from kvproof.fast.table.page_table import PageTable

from .cache_pairs import PAGE, outcome, plain_step, refused, tables

ROWS, WIDTH, TOKENS = 5, 4, 24

counts = st.integers(0, 9)
odd_counts = counts | st.sampled_from([-1, True, 2.0, None, 2**40, 2**70])


def builders(**options: Any) -> tuple[Any, Any]:
    arguments = {"page_size": PAGE, "max_num_reqs": ROWS, "max_pages": WIDTH, "max_num_tokens": TOKENS} | options
    return (
        outcome(lambda: fast.MetadataBuilder(**arguments)),
        outcome(lambda: spec.MetadataBuilder(**arguments)),
    )


@given(
    pages=st.lists(st.lists(st.integers(0, 2**31 // PAGE), min_size=3, max_size=WIDTH), min_size=ROWS, max_size=ROWS),
    steps=st.lists(st.lists(st.tuples(counts, st.integers(0, 5)), max_size=ROWS), min_size=1, max_size=3),
    slices=st.booleans(),
    sizes=st.sampled_from([None, [3, 24], [40]]),
    form=st.sampled_from([list, np.array]),
)
def test_steps_are_the_specifications(
    pages: list[list[int]], steps: list[list[tuple[int, int]]], slices: bool, sizes: Any, form: Any
) -> None:
    """TAB-7: tables, lengths, starts, slots or slices, positions; the table is committed with them (TAB-4)."""
    ours, theirs = builders(slices=slices, token_sizes=sizes, version="v2")
    assert ours.token_sizes == theirs.token_sizes
    table, other = tables(ROWS, WIDTH, TOKENS, pages)
    for step in steps:
        computed, scheduled = form([a for a, _ in step]), form([b for _, b in step])
        if form is np.array:
            computed, scheduled = computed.astype(np.int32), scheduled.astype(np.int64)
        made = outcome(partial(ours.build, table, computed, scheduled))
        assert plain_step(made) == plain_step(outcome(partial(theirs.build, other, computed, scheduled)))
        assert np.asarray(table.page_table).tolist() == np.asarray(other.page_table).tolist()


@given(
    computed=st.lists(odd_counts, max_size=6) | st.sampled_from(["12", 7]),
    scheduled=st.lists(odd_counts, max_size=6) | st.just(np.array([1.5])),
)
def test_what_does_not_fit_is_refused_and_nothing_is_committed(computed: Any, scheduled: Any) -> None:
    """R1, TAB-7: by the specification's errors; the device's table is as it was."""
    ours, theirs = builders()
    table, other = tables(ROWS, WIDTH, TOKENS, [[1, 2], [3], [], [4, 5, 6]])
    before = table.page_table
    made = outcome(lambda: ours.build(table, computed, scheduled))
    wanted = outcome(lambda: theirs.build(other, computed, scheduled))
    assert refused(made) == refused(wanted)
    if refused(made):
        assert table.page_table is before
    else:
        assert plain_step(made) == plain_step(wanted)


@pytest.mark.parametrize(
    ("computed", "scheduled"),
    [
        ([9], [0]),
        ([8], [1]),
        ([0, 0, 1], [1, 1, 0]),
        ([0], [25]),
        ([0] * 6, [0] * 6),
        ([0], [1, 1]),
        ([-1], [1]),
        ([True], [1]),
        ([0.0], [1]),
        (["0"], [1]),
        (3, [1]),
        ([2**62], [1]),
    ],
)
def test_each_fault_is_refused_as_the_specification_refuses_it(computed: Any, scheduled: Any) -> None:
    """R1: one fault at a time, by its class and clause."""
    ours, theirs = builders()
    table, other = tables(ROWS, WIDTH, TOKENS, [[1, 2], [3]])
    made = outcome(lambda: ours.build(table, computed, scheduled))
    assert refused(made)
    assert made == outcome(lambda: theirs.build(other, computed, scheduled))


def test_a_count_beyond_all_bounds_is_refused() -> None:
    """R1: the specification's integers have no bounds, an array's have."""
    ours, _ = builders()
    table, _ = tables(ROWS, WIDTH, TOKENS, [[1, 2]])
    with pytest.raises(ValueError, match=r"num_computed_tokens=1180591620717411303424 .* \[R1\]$"):
        ours.build(table, [2**70], [0])


def test_a_slot_that_no_int32_holds_is_refused() -> None:
    """TAB-7."""
    ours, theirs = builders()
    table, other = tables(ROWS, WIDTH, TOKENS, [[2**31 // PAGE]])
    made = outcome(lambda: ours.build(table, [0], [1]))
    assert made == outcome(lambda: theirs.build(other, [0], [1])) == (ValueError, "TAB-7")


@pytest.mark.parametrize(
    "options",
    [
        {"page_size": 0},
        {"max_num_reqs": True},
        {"max_pages": 1.0},
        {"max_num_tokens": -4},
        {"version": "v1"},
        {"version": 3},
        {"slices": 1},
        {"token_sizes": []},
        {"token_sizes": [24, 24]},
        {"token_sizes": [23]},
        {"token_sizes": [0, 24]},
        {"token_sizes": 24},
    ],
)
def test_builders_refuse_what_the_specification_refuses(options: dict[str, Any]) -> None:
    """R1."""
    ours, theirs = builders(**options)
    assert refused(ours)
    assert ours == theirs


@pytest.mark.parametrize("table", [None, [[1]], PageTable(ROWS, WIDTH + 1, TOKENS), PageTable(ROWS - 1, WIDTH, TOKENS)])
def test_other_tables_are_refused(table: Any) -> None:
    """R1."""
    ours, _ = builders()
    with pytest.raises((TypeError, ValueError), match=r"page_table.* \[R1\]$"):
        ours.build(table, [0], [0])


@pytest.mark.parametrize("most", [1, 15, 16, 17, 64, 100, 8192, 100_000])
def test_sizes_are_few(most: int) -> None:
    """A step's tokens come in at most six sizes, each at most four times the next one's below."""
    ours, theirs = builders(max_num_tokens=most)
    sizes = ours.token_sizes
    assert sizes == theirs.token_sizes
    assert len(sizes) <= 6
    assert sizes[-1] == most


# -- What the host does afterwards ----------------------------------------------------------------


def test_nothing_that_the_host_does_later_shows() -> None:
    """TAB-4: arguments that are changed, rows that are changed and steps that are built leave an earlier step alone."""
    ours, _ = builders()
    table, _ = tables(ROWS, WIDTH, TOKENS, [[page, page + 1, page + 2] for page in range(1, 2 + 3 * ROWS, 3)][:ROWS])
    kept = []
    for step in range(30):
        computed, scheduled = np.full(ROWS, step % 6), np.arange(ROWS) % 5
        made = ours.build(table, computed, scheduled)
        kept.append((made, plain_step(made)))
        computed[:], scheduled[:] = 7, 1
        table.add_row([step + 1, step + 2, step + 3], step % ROWS)
    for made, then in kept:
        arrays = jax.tree.leaves(made.replace(pages_tables=made.context_lens))
        now = plain_step(made.replace(pages_tables=made.context_lens))[0]
        assert arrays
        assert {name: told for name, told in now.items() if name != "pages_tables"} == {
            name: told for name, told in then[0].items() if name != "pages_tables"
        }


def test_the_table_of_a_step_is_good_until_the_next_commit() -> None:
    """TAB-4: then it raises, or keeps its values."""
    ours, _ = builders()
    table, _ = tables(ROWS, WIDTH, TOKENS, [[1, 2]])
    made = ours.build(table, [3], [1])
    table.append_row([9], 0)
    assert made.pages_tables[0].tolist() == [1, 2, 0, 0]
    ours.build(table, [3], [1])
    with pytest.raises(RuntimeError, match="deleted"):
        made.pages_tables.block_until_ready()


# -- The metadata itself --------------------------------------------------------------------------


@given(
    num_tokens=st.integers(-1, 9) | st.just(True),
    rows=st.integers(0, 4),
    pages=st.integers(0, 4),
    page_size=st.sampled_from([0, 16, 2.5]),
    version=st.sampled_from(["v2", "v3", ""]),
)
def test_empty_metadata_is_the_specifications(
    num_tokens: int, rows: int, pages: int, page_size: Any, version: str
) -> None:
    arguments = (num_tokens, rows, pages, page_size, version)
    ours = plain_step(outcome(lambda: RaggedPagesMetadata.create_empty(*arguments)))
    theirs = plain_step(outcome(lambda: spec.RaggedPagesMetadata.create_empty(*arguments)))
    assert ours == theirs or (refused(ours) and refused(theirs))


@given(computed=st.lists(st.integers(0, 7), min_size=2, max_size=2), slices=st.booleans())
def test_steps_are_stacked_taken_apart_and_written_as_the_specifications(computed: list[int], slices: bool) -> None:
    """CACHE-5, SEC-3: the arrays of several data shards behind each other; one JSON format for both packages."""
    ours, theirs = builders(slices=slices)
    pairs = []
    for count in computed:
        table, other = tables(ROWS, WIDTH, TOKENS, [[1, 2], [3]])
        pairs.append((ours.build(table, [count], [1]), theirs.build(other, [count], [1])))
    stacked = RaggedPagesMetadata.stack([pair[0] for pair in pairs])
    wanted = spec.RaggedPagesMetadata.stack([pair[1] for pair in pairs])
    assert plain_step(stacked) == plain_step(wanted)
    for number in range(2):
        assert plain_step(stacked.shard(number, 2)) == plain_step(pairs[number][0])
    assert json.loads(stacked.to_json()) == json.loads(wanted.to_json())
    assert plain_step(RaggedPagesMetadata.from_json(wanted.to_json())) == plain_step(wanted)
    assert plain_step(spec.RaggedPagesMetadata.from_json(stacked.to_json())) == plain_step(wanted)


def test_stacks_and_shards_that_do_not_fit_are_refused() -> None:
    """R1, CACHE-5."""
    one, other = RaggedPagesMetadata.create_empty(4, 2, 3), RaggedPagesMetadata.create_empty(5, 2, 3)
    with pytest.raises(ValueError, match=r"shards=\[\] .* \[R1\]$"):
        RaggedPagesMetadata.stack([])
    with pytest.raises(ValueError, match=r"shards\[1\] .* \[R1\]$"):
        RaggedPagesMetadata.stack([one, other])
    with pytest.raises(ValueError, match=r"shards\[1\] .* \[R1\]$"):
        RaggedPagesMetadata.stack([one, one.replace(version="v2")])
    with pytest.raises(TypeError, match=r"shards\[0\] must be RaggedPagesMetadata, not str \[R1\]$"):
        RaggedPagesMetadata.stack(["x"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"query_start_loc.shape=\(3,\) .* \[CACHE-5\]$"):
        one.shard(0, 2)
    with pytest.raises(IndexError, match=r"number=1 .* \[R1\]$"):
        one.shard(1, 1)


GOOD = RaggedPagesMetadata.create_empty(4, 2, 3).to_dict()


@pytest.mark.parametrize(
    "damage",
    [
        {"context_lens": None},
        {"context_lens": GOOD["context_lens"] | {"data": "AAAA"}},
        {"context_lens": GOOD["context_lens"] | {"data": "*"}},
        {"context_lens": GOOD["context_lens"] | {"data": 3}},
        {"context_lens": GOOD["context_lens"] | {"dtype": "object"}},
        {"context_lens": GOOD["context_lens"] | {"shape": [-2]}},
        {"context_lens": GOOD["context_lens"] | {"shape": [2.0]}},
        {"context_lens": GOOD["context_lens"] | {"more": 1}},
        {"page_size": 0},
        {"page_size": None},
        {"version": "v9"},
        {"num_slices_per_kv_cache_update_page": "8"},
        {"kind": "View"},
        {"more": 0},
    ],
)
def test_damaged_documents_are_refused(damage: dict[str, Any]) -> None:
    """SEC-3."""
    made = outcome(lambda: RaggedPagesMetadata.from_dict(GOOD | damage))
    assert refused(made)
    assert made == outcome(lambda: spec.RaggedPagesMetadata.from_dict(GOOD | damage))


@pytest.mark.parametrize("shape", [[0, 10**30], [0] * 100, [1] * 100])
def test_shapes_that_no_array_has_are_refused(shape: list[int]) -> None:
    """SEC-3: also where no element is asked for."""
    data = "" if 0 in shape else "AAAAAA=="
    with pytest.raises(ValueError, match=r"context_lens.shape .* \[SEC-3\]$"):
        RaggedPagesMetadata.from_dict(GOOD | {"context_lens": {"dtype": "int32", "shape": shape, "data": data}})


def test_metadata_is_a_pytree() -> None:
    """Arrays are leaves, all else is static: programs are compiled for it."""
    one = RaggedPagesMetadata.create_empty(4, 2, 3)
    traced = []

    @jax.jit
    def double(step: RaggedPagesMetadata) -> RaggedPagesMetadata:
        traced.append(step.page_size)
        doubled: RaggedPagesMetadata = jax.tree.map(lambda array: array * 2, step)
        return doubled

    assert double(one).slot_mapping.tolist() == [-2] * 4
    double(one.replace(context_lens=one.context_lens + 1))
    double(one.replace(page_size=64))
    assert traced == [128, 64]
    assert jax.eval_shape(double, one).pages_tables.shape == (2, 3)
