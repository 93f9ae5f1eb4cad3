"""What only arrays and a device's copy can get wrong of the metadata of a step (TAB-4, TAB-7)."""

import json
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.fast.cache import metadata_builder as fast
from kvproof.fast.cache.ragged_metadata import RaggedPagesMetadata

from .cache_pairs import PAGE, outcome, plain_step, tables

ROWS, WIDTH, TOKENS = 5, 4, 24


def builders(**options: Any) -> tuple[Any, Any]:
    arguments = {"page_size": PAGE, "max_num_reqs": ROWS, "max_pages": WIDTH, "max_num_tokens": TOKENS} | options
    return (
        outcome(lambda: fast.MetadataBuilder(**arguments)),
        outcome(lambda: spec.MetadataBuilder(**arguments)),
    )


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


GOOD = RaggedPagesMetadata.create_empty(4, 2, 3).to_dict()


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
