"""The tables of the interface, held against the specification; calls as data."""

import inspect
from typing import Any

import pytest

import kvproof.fast
import kvproof.spec
from kvproof.conformance.calls.arrays import ATTENTION, CACHE, SCHEDULER, VIEW
from kvproof.conformance.calls.datum import (
    Call,
    Prompt,
    Ref,
    Spelled,
    exchange,
    larger,
    mended,
    refs,
    resolve,
    simpler,
    written,
)
from kvproof.conformance.calls.follower import FOLLOWER
from kvproof.conformance.calls.interfaces import INTERFACES
from kvproof.conformance.calls.manager import MANAGER, PAGE_LISTS, SHARDS
from kvproof.conformance.calls.method import Method, Table
from kvproof.conformance.calls.pool import POOL
from kvproof.conformance.calls.queue import PAGE, QUEUE
from kvproof.conformance.calls.source import Source
from kvproof.conformance.calls.spelling import Spelling
from kvproof.conformance.calls.table import TABLE, TABLES
from kvproof.conformance.calls.unspoilt import UNSPOILT, unspoilt
from kvproof.conformance.engine.scheduler import Scheduler
from kvproof.spec import CLAUSES, CacheSalt

OF_SPEC = (QUEUE, PAGE, POOL, TABLE, TABLES, MANAGER, SHARDS, PAGE_LISTS, FOLLOWER, CACHE, VIEW)
OF_FUNCTIONS = tuple(table for table in INTERFACES if not table.owner)
EVERY = INTERFACES


def owner_of(table: Table) -> Any:
    return Scheduler if table is SCHEDULER else getattr(kvproof.spec, table.owner)


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def interface(table: Table) -> set[str]:
    """The names that both packages offer: what one of them has alone is how it is built."""
    names = public(owner_of(table))
    return names if table is SCHEDULER else names & public(getattr(kvproof.fast, table.owner))


@pytest.mark.parametrize("table", [*OF_SPEC, SCHEDULER], ids=lambda table: table.name)
def test_no_method_of_the_interface_is_missing(table: Table) -> None:
    described = {row.name for row in table} | table.inner.keys()
    assert {name for name in described - {table.owner} if not name.startswith("__")} == interface(table)
    assert table.owner in described, "how it is constructed"


def test_no_function_of_the_interface_is_missing() -> None:
    functions = {name for name in public(kvproof.spec) if inspect.isfunction(getattr(kvproof.spec, name))}
    assert {row.name for table in OF_FUNCTIONS for row in table} | ATTENTION.inner.keys() == functions


def rows() -> list[tuple[Table, Method]]:
    return [(table, row) for table in EVERY for row in table]


@pytest.mark.parametrize(("table", "row"), rows(), ids=[f"{table.name}-{row.name}" for table, row in rows()])
def test_a_row_has_the_arguments_of_the_specification(table: Table, row: Method) -> None:
    holder = kvproof.spec if table in OF_FUNCTIONS else owner_of(table)
    method: Any = holder if row.form == "build" else inspect.getattr_static(holder, row.name)
    if row.form in ("get", "set"):
        assert isinstance(method, property)
        assert (method.fset is not None) or row.form == "get"
        return
    function = method.__func__ if isinstance(method, classmethod | staticmethod) else method
    parameters = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in ("self", "cls") and parameter.kind is not parameter.VAR_KEYWORD
    ]
    given = [*row.arguments, *(name for name in row.by_name if name not in row.arguments)]
    assert given[: len(row.arguments)] == parameters[: len(row.arguments)] or table is SCHEDULER
    assert set(parameters) - set(given) <= {"hash_function", "hash_seed", "sharding"} or row.form == "build"


@pytest.mark.parametrize("table", EVERY, ids=lambda table: table.name)
def test_rows_name_clauses_that_there_are(table: Table) -> None:
    assert len(table.by_name) == len(table.rows), "each method stands in one row"
    for row in table:
        assert row.labels <= CLAUSES.keys()


def test_r1_every_argument_has_a_fault_or_a_reason() -> None:
    """A reason that stands for nothing is one too many."""
    reasons = {name: [reason for reason in names if reason in UNSPOILT] for *names, name in map(_named, unspoilt())}
    assert [name for name, found in reasons.items() if len(found) != 1] == []
    assert {found[0] for found in reasons.values()} == UNSPOILT.keys()


def _named(argument: tuple[str, str, str]) -> tuple[str, str, str, str]:
    return (*argument, argument[-1])


class Least(Source):
    """The simplest of everything."""

    def integer(self, least: int, most: int) -> int:
        return least


def test_the_first_option_is_the_simplest() -> None:
    source = Least()
    assert source.one_of([3, 4]) == 3
    assert source.some([5, 6], most=2, least=1) == [5]
    assert source.several([7], most=3) == []
    assert source.likely([1], [2]) == 1
    assert source.spelling((Spelling.TUPLE,), iterables=False) is Spelling.LIST


POOL_REF = Ref("pool")
TAKE = Call(POOL_REF, "get_new_pages", {"num_pages": 2}, 1)
FREE = Call(POOL_REF, "free_pages", {"ordered_pages": Spelled(Spelling.TUPLE, (Ref(1, (0,)), Ref("pages", (3,))))}, 2)


def test_a_call_is_written_as_python() -> None:
    assert written(FREE.arguments["ordered_pages"]) == "(r1[0], pages[3])"
    assert written(Spelled(Spelling.INT32, (1, 2))) == "np.array([1, 2], np.int32)"
    assert "secret" not in written(Prompt((1, 2), (CacheSalt("secret"),)))
    assert str(Ref(3, (0, ".page_id"))) == "r3[0].page_id"


def test_what_is_left_out_takes_its_mentions_with_it() -> None:
    assert mended([TAKE, FREE]) == (TAKE, FREE)
    (left,) = mended([FREE])
    assert left.arguments["ordered_pages"].values == (Ref("pages", (3,)),)
    whole = Call(POOL_REF, "free_pages", {"ordered_pages": Ref(1)}, 3)
    assert mended(["a step", whole]) == ("a step",)


def test_a_list_is_a_new_one_whenever_it_is_given() -> None:
    """EasyDeL's pool enters the keys that it computes in the caller's list, which was empty: another call had them."""
    holder: Any = None  # nothing here is one side's own
    given: list[Any]
    for given in ([], [1, 2], [[]]):
        assert (made := resolve(given, holder)) == given
        assert made is not given
    assert resolve(given, holder)[0] is not given[0]


def test_two_things_change_places() -> None:
    _, changed = exchange([TAKE, FREE], Ref(1, (0,)), Ref("pages", (3,)))
    assert changed.arguments["ordered_pages"].values == (Ref("pages", (3,)), Ref(1, (0,)))
    assert list(refs(changed)) == [POOL_REF, Ref("pages", (3,)), Ref(1, (0,))]


def test_calls_become_simpler_or_larger() -> None:
    assert [call.arguments["num_pages"] for call in simpler(TAKE)] == [0, 1]
    assert [call.arguments["num_pages"] for call in larger(TAKE, 5)] == [3, 4]
    assert next(simpler(FREE)).arguments["ordered_pages"].how is Spelling.LIST
    assert list(simpler(True)) == [False]
