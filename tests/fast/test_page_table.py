"""The ways that large tables go, slots, and what only a device copy can get wrong; else see the machines of tables."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.fast.reading.arguments import flag, id_array, id_lists, plain_array
from kvproof.fast.table import multi_group_table, page_table, table_lag
from kvproof.kernels import staging_sizes, write_cells
from kvproof.spec.clauses import clause_of_message

ROWS, WIDTH, TOKENS = 4, 6, 12


@pytest.fixture(autouse=True)
def _strict_jax() -> Iterator[None]:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


# -- The ways -------------------------------------------------------------------------------------


@contextmanager
def _limits(few: int, long: int) -> Iterator[None]:
    """Lets small tables go the ways that large ones go."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (multi_group_table, page_table):
            patch.setattr(module, "FEW", few)
        patch.setattr(table_lag, "_LONG", long)
        yield


limits = st.tuples(st.sampled_from([page_table.FEW, 0, 1]), st.sampled_from([128, 2]))


def _outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the class and the clause by which it was refused."""
    try:
        result = call()
    except (TypeError, IndexError, ValueError) as error:
        return type(error), clause_of_message(str(error))
    return result.tolist() if isinstance(result, np.ndarray) else result


def _called(backend: Any, name: str, *arguments: Any) -> Any:
    return _outcome(lambda: getattr(backend, name)(*arguments))


def _shown(table: Any) -> tuple[Any, ...]:
    return (
        table.get_cpu_tensor().tolist(),
        table.num_pages_per_row.tolist(),
        np.array(table.get_device_tensor()).tolist(),
        table.cpu_version,
    )


def _together(ours: Any, theirs: Any, tables: list[tuple[Any, Any]], call: tuple[Any, ...]) -> None:
    before = [_shown(table) for table, _ in tables]
    expected = _called(theirs, *call)
    assert _called(ours, *call) == expected
    ours.check()
    for (table, other), state in zip(tables, before, strict=True):
        assert _shown(table) == _shown(other)
        if isinstance(expected, tuple):  # R1: a refused call changed nothing
            assert _shown(table) == state


good_row = st.integers(0, ROWS - 1)
few_pages = st.lists(st.integers(1, 9), max_size=2)
sound_calls = st.one_of(
    *[
        st.lists(st.tuples(few_pages, good_row), max_size=5).map(
            lambda pairs: ("append_rows_batch", [each for each, _ in pairs], [row_idx for _, row_idx in pairs])
        )
    ]
    * 2,
    st.lists(good_row, max_size=4).map(
        lambda rows: ("append_rows_batch", np.arange(1, len(rows) + 1).reshape(-1, 1), np.array(rows, np.int32))
    ),
    st.tuples(st.just("append_row"), few_pages, good_row),
    st.tuples(st.just("add_row"), st.lists(st.integers(1, 9), max_size=WIDTH), good_row),
    st.tuples(st.just("clear_row"), good_row),
    *[st.tuples(st.sampled_from(["move_row", "swap_row"]), good_row, good_row)] * 2,
    *[st.tuples(st.just("commit"), st.integers(0, ROWS))] * 2,
)


def _for_groups(call: tuple[Any, ...]) -> tuple[Any, ...]:
    """A call of one table as one of two groups, whose rows get the same pages."""
    name, *arguments = call
    match name:
        case "append_rows_batch" if isinstance(arguments[0], np.ndarray):
            arguments[0] = np.stack([arguments[0]] * 2, 1)
        case "append_rows_batch":
            arguments[0] = [[each, each] for each in arguments[0]]
        case "append_row" | "add_row":
            arguments[0] = [arguments[0]] * 2
    return name, *arguments


@pytest.mark.parametrize("in_groups", [False, True], ids=["one group", "two groups"])
@settings(max_examples=200, deadline=None)
@given(calls=st.lists(sound_calls, min_size=5, max_size=20), limits=limits)
def test_large_tables_go_the_ways_of_small_ones(
    in_groups: bool, calls: list[tuple[Any, ...]], limits: tuple[int, int]
) -> None:
    """TAB-1 to TAB-4: calls that are refused for want of room at most, in one of two groups or both (R1)."""
    ours: Any = fast.PageTable(ROWS, WIDTH, TOKENS)
    theirs: Any = spec.PageTable(ROWS, WIDTH, TOKENS)
    tables = [(ours, theirs)]
    if in_groups:
        ours, theirs = (package.MultiGroupPageTable(ROWS, 12, TOKENS, [2, 4]) for package in (fast, spec))
        tables = list(zip(ours.page_tables, theirs.page_tables, strict=True))
    with _limits(*limits):
        for call in calls:
            _together(ours, theirs, tables, _for_groups(call) if in_groups else call)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize(("page_id", "page_size"), [(2**31 - 1, 1), (2**30 - 1, 2), (2**30, 2), (2**24, 2**40)])
def test_the_largest_slot(page_id: int, page_size: int, last: int) -> None:
    """TAB-7: slot 2**31 - 1 is given, the next one refused."""
    tables: list[Any] = [fast.PageTable(2, 2, 4), spec.PageTable(2, 2, 4)]
    position = min(page_size - 1, 2) * last
    for table in tables:
        table.append_row([page_id], 1)
    for call in (("slot_mapping", [1], [position], page_size), ("update_slices", [1], [0], [position + 1], page_size)):
        mine, other = (_called(table, *call) for table in tables)
        assert mine == other
        assert isinstance(mine, tuple) == (page_id * page_size >= 2**31)


def test_a_sharding_is_one() -> None:
    """R1: what is no sharding is refused by name."""
    wrong: Any = "cpu"
    with pytest.raises(TypeError, match=r"sharding='cpu' .* \[R1\]$"):
        fast.PageTable(2, 2, 2, sharding=wrong)


# -- Reading arguments ----------------------------------------------------------------------------


@given(st.lists(st.one_of(st.integers(-(2**33), 2**33), st.integers(-2, 300), st.sampled_from([True, 1.5, "a"]))))
def test_lists_become_arrays_only_if_all_are_ints(values: list[Any]) -> None:
    """R1: the fast way takes no bool, float or text for an int, and loses no bit."""
    plain = all(type(value) is int and -(2**31) <= value < 2**31 for value in values)
    numbers = plain_array(values)
    assert (numbers is not None) == plain
    assert numbers is None or (numbers.dtype == np.int64 and numbers.tolist() == values)


@given(st.integers(1, 8).flatmap(lambda n: st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n))))
def test_lists_of_lists_are_read_as_they_stand(lists: list[list[int]]) -> None:
    """R1: flattened in order, whatever bytes their numbers have."""
    flat, lengths, num = id_lists("page_ids", lists, 2**31)
    assert flat.tolist() == [value for each in lists for value in each]
    assert np.broadcast_to(lengths, num).tolist() == [len(each) for each in lists]


@pytest.mark.parametrize(
    "lists",
    [
        [[1], [[]]],  # each of these takes as many bytes when marshalled as a list of plain ints would
        [[1, 2], [3, []]],
        [[1, 2], [3, ()]],
        [[1, 2], ["", 3]],
        [[1], [True]],
        [[1], [2.0]],
        [[1], b"i\x01\x00\x00\x00"],
        [[1], {2: 3}.items()],
        [[1], 2],
    ],
)
def test_nothing_passes_for_a_list_of_ints(lists: Any) -> None:
    """R1: whatever its elements' bytes look like."""
    with pytest.raises(TypeError, match=r"^page_ids=.* \[R1\]$"):
        id_lists("page_ids", lists, 2**31)


@pytest.mark.parametrize(
    "lists", [[[1], [2, 3], []], [[1], [], [2, 3]], [[1], (2,)], [[1], {2: 3}], [[], [1]], [[], []]]
)
def test_lists_of_other_forms_are_read(lists: Any) -> None:
    """R1: ragged lists, tuples and other iterables say what they say."""
    flat, lengths, num = id_lists("page_ids", lists, 2**31)
    assert flat.tolist() == [value for each in lists for value in each]
    assert np.broadcast_to(lengths, num).tolist() == [len(each) for each in lists]


def test_the_first_wrong_element_is_named() -> None:
    """R1: name, value and label are in the message."""
    with pytest.raises(IndexError, match=r"^x=7 must be in \[0, 5\) \[TAB-2\]$"):
        id_array("x", [1, 7, -1, True], 5, "TAB-2")
    with pytest.raises(TypeError, match=r"^x=True must be an int \[R1\]$"):
        id_array("x", [1, True, -1], 5, "TAB-2")
    assert flag("y", np.bool_(True)) is True
    with pytest.raises(TypeError, match=r"^y=1 must be a bool \[R1\]$"):
        flag("y", 1)


# -- The device -----------------------------------------------------------------------------------


def test_the_host_never_shows_on_the_device_before_a_commit() -> None:
    """TAB-4: not even in the instant after a commit, when its program may still have to run."""
    table = fast.PageTable(8, 512, 16)
    for step in range(20):
        for row_idx in range(8):
            table.add_row(np.arange(step, step + 512), row_idx)
        table.commit(8)
        table.add_row([7] * 512, 3)
        table.move_row(3, 4)
        table.clear_row(5)
        assert (np.asarray(table.page_table) == np.arange(step, step + 512)[None, :]).all()


def test_a_commit_waits_for_no_reader() -> None:
    """TAB-4: a step that still reads the table sees it as it was; the commit has long returned."""

    @jax.jit
    def step(pages: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = jax.lax.fori_loop(0, 30, lambda _, factor: factor @ factor / 640.0, weights)
        return pages.sum() + (weights[0, 0] == 0).astype(np.int32), weights

    table = fast.PageTable(8, 512, 16)
    table.add_row([3] * 500, 1)
    table.commit(8)
    weights = jax.numpy.ones((640, 640), np.float32)
    step(table.page_table, weights)[0].block_until_ready()
    table.append_row([3], 1)
    table.commit(8)  # of a size whose program is compiled now
    total, done = step(table.page_table, weights)
    table.append_row([4], 1)
    table.commit(8)
    assert not done.is_ready()
    assert int(total) == 1503
    table.check()


def test_rows_not_committed_stay_dirty() -> None:
    """TAB-4: rows from n on keep what the device had, until a commit reaches them."""
    table = fast.PageTable(4, 4, 16)
    table.append_rows_batch([[1], [2], [3], [4]], range(4))
    table.commit(2)
    table.check()
    assert np.array(table.page_table)[:, 0].tolist() == [1, 2, 0, 0]
    table.swap_row(0, 3)
    table.commit(1)
    table.check()
    assert np.array(table.page_table)[:, 0].tolist() == [4, 2, 0, 0]
    table.commit(4)
    assert np.array(table.page_table)[:, 0].tolist() == [4, 2, 3, 1]
    table.clear_row(2)
    table.clear_row(3)
    table.commit(3)
    table.check()
    assert np.array(table.page_table)[:, 0].tolist() == [4, 2, 0, 1]
    table.commit(4)
    assert np.array(table.page_table)[:, 0].tolist() == [4, 2, 0, 0]


def test_old_handles_raise_or_keep_their_values() -> None:
    """TAB-4: a handle, and a numpy view of one, never show another commit's values."""
    table = fast.PageTable(4, 4, 16)
    empty = table.get_device_tensor()
    table.append_row([5], 0)
    table.commit(4)
    with pytest.raises(RuntimeError, match="deleted"):
        np.asarray(empty)
    view = np.asarray(table.page_table)
    handle = table.page_table
    table.add_row([6], 0)
    table.commit(4)
    assert view[0, 0] == 5
    assert np.array(table.page_table)[0, 0] == 6
    kept = table.page_table
    table.clear()
    assert np.array(kept)[0, 0] == 6
    assert not np.array(table.page_table).any()
    del handle


def test_a_commit_without_changes_leaves_the_handle() -> None:
    """TAB-5: nothing dirty, nothing moved."""
    table = fast.PageTable(4, 4, 16)
    table.append_row([5], 3)
    table.commit(4)
    before = table.page_table
    table.append_row([], 2)
    table.commit(4)
    table.clear_row(2)
    table.commit(0)
    assert table.page_table is before


def test_programs_are_compiled_once() -> None:
    """TAB-5: at most 4 programs, whatever n and however many entries a commit sends."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration" and duration_secs >= 0:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        table = fast.PageTable(37, 501, 16)
        for num in [*range(38), 37, 5]:  # up to 17,797 entries: all sizes of staging
            for row_idx in range(num):
                table.add_row(range(num * 13), row_idx)
            table.commit(num)
        table.clear()
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert 1 <= len(compiled) <= 4


@given(st.integers(0, 10**6))
def test_staging_is_bounded_by_what_is_sent(num_cells: int) -> None:
    """TAB-5: the arrays hold all cells and at most 16 times as many, or one small array."""
    sizes = staging_sizes(num_cells)
    assert num_cells <= sum(sizes) <= max(256, 16 * num_cells)
    assert (num_cells == 0) == (not sizes)


def test_a_commit_sends_the_entries_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """TAB-5: not the row's others, and each once however often it changed."""
    sent: list[int] = []

    def spy(table: jax.Array, cells: Any, *rest: Any) -> jax.Array:
        sent.append(cells.shape[1])
        return write_cells(table, cells, *rest)

    monkeypatch.setattr(page_table, "write_cells", spy)
    table = fast.PageTable(64, 300, 16)
    for _ in range(2):
        table.append_rows_batch([[3] * 100] * 64, range(64))
        table.commit(64)
    table.append_rows_batch(np.full((64, 1), 9), np.arange(64))
    table.append_rows_batch([[1, 2], [3]], [5, 2])
    table.append_row([1], 2)
    table.commit(64)
    table.add_row([4], 7)  # sends its 201 entries: one page and 200 zeros
    table.add_row([4, 5], 7)
    table.commit(64)
    table.move_row(7, 8)
    table.commit(8)
    table.commit(64)
    assert sent == [6400, 6400, 68, 201, 201]
    table.check()


def _num_calls(call: Callable[..., Any], *arguments: Any) -> int:
    """Python functions, and functions and methods of C, that a call calls."""
    events: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: events.append(event))
    try:
        call(*arguments)
    finally:
        sys.setprofile(None)
    return sum(event in ("call", "c_call") for event in events)


def test_a_step_looks_at_the_rows_that_grew_alone() -> None:
    """TAB-5: what is called does not grow with the rows, nor with pages that are not sent; a step's bound on it."""
    calls = []
    for num_rows, length in ((64, 16), (64, 512), (1024, 512)):
        tables = fast.MultiGroupPageTable(num_rows, 16 * 600, 16, [16])
        tables.append_rows_batch(np.ones((num_rows, 1, length), np.int32), np.arange(num_rows))
        tables.commit(num_rows)
        for _ in range(3):
            appending = _num_calls(tables.append_rows_batch, [([7],)] * 4, [5, 2, 60, 33])
            committing = _num_calls(tables.commit, num_rows)
        calls.append((appending, committing, _num_calls(tables.commit, num_rows)))
        tables.check()
    assert len(set(calls)) == 1
    assert all(made <= bound for made, bound in zip(calls[0], (40, 30, 15), strict=True))


def test_rows_beyond_a_commit_are_found_by_a_later_one() -> None:
    """TAB-4: whether few changed or many, before the commit of fewer rows or after it."""
    for many in (False, True):
        table = fast.PageTable(40, 8, 16)
        table.append_rows_batch([[1]] * 40, list(range(40)))
        for num in (12, 3, 20, 40):
            table.append_rows_batch([[2]] * (30 if many else 1), list(range(7, 37 if many else 8)))
            table.clear_row(39)
            table.commit(num)
            table.check()
            assert (np.array(table.page_table)[:num] == table.page_table_cpu[:num]).all()
            table.clear_row(8)


def test_host_views_are_live_and_read_only() -> None:
    """TAB-6: the views show later changes and can't be written."""
    table = fast.PageTable(2, 3, 4)
    host, counts = table.get_cpu_tensor(), table.num_pages_per_row
    table.append_row([4, 5], 1)
    assert host.tolist() == [[0, 0, 0], [4, 5, 0]]
    assert counts.tolist() == [0, 2]
    table.clear()
    assert not host.any()
    assert not counts.any()
    for view in (host, counts):
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1


def test_arrays_given_are_not_kept() -> None:
    """TAB-1: what a caller does with an array after the call is the caller's own."""
    given_pages, given_rows = np.array([[1], [2]]), np.array([0, 1])
    table = fast.PageTable(2, 3, 4)
    table.append_rows_batch(given_pages, given_rows)
    table.add_row(given_pages[0], 0)
    given_pages[:] = 9
    given_rows[:] = 1
    table.commit(2)
    assert np.array(table.page_table)[:, 0].tolist() == [1, 2]


@pytest.mark.parametrize("replicated", [True, False])
def test_a_sharded_table_stays_where_it_is(replicated: bool) -> None:
    """TAB-4: commits and clear keep the sharding given."""
    num = len(jax.devices())
    mesh = jax.make_mesh((num,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    partition: Any = jax.sharding.PartitionSpec
    sharding = jax.sharding.NamedSharding(mesh, partition() if replicated else partition("x"))
    groups = fast.MultiGroupPageTable(2 * num, 8, 4, [2, 4], sharding=sharding)
    for step in range(3):
        groups.append_row([[step + 1]] * 2 if step < 2 else [[], []], 1)
        groups.commit(2 * num)
        assert groups[0].page_table.sharding.is_equivalent_to(sharding, 2)
        groups.check()
    assert np.array(groups[0].page_table)[1].tolist() == [1, 2, 0, 0]
    groups.clear()
    assert groups[1].page_table.sharding.is_equivalent_to(sharding, 2)


@pytest.mark.parametrize(
    ("name", "place", "value", "label"),
    [
        ("_host", (1, 2), 3, "TAB-1"),
        ("_host", (1, 0), -3, "TAB-1"),
        ("_host", (1, 0), 3, "TAB-4"),
        ("_counts", 0, 7, "TAB-2"),
        ("synced", 1, 2, "TAB-4"),
        ("device_counts", 1, 0, "TAB-4"),
    ],
)
def test_check_shows_the_state_that_is_broken(name: str, place: Any, value: int, label: str) -> None:
    """TAB-1, TAB-2, TAB-4: each redundancy is verified, and the message shows all rows."""
    table = fast.PageTable(2, 3, 4)
    table.append_rows_batch([[5], [6]], [0, 1])
    table.commit(2)
    table.check()
    holder = table if hasattr(table, name) else table._lag
    getattr(holder, name)[place] = value
    with pytest.raises(AssertionError, match=rf"\[{label}\]\nrow 0: .*\nrow 1: "):
        table.check()
