"""The walk through small worlds sees every state, nearest first, and takes none for another that has another future."""

from collections import defaultdict
from itertools import combinations_with_replacement, permutations, product

import pytest

import kvproof.spec
from kvproof.conformance.backends.loading import Backend, load_backend
from kvproof.conformance.calls.deviation import is_call
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.exhaustive.managers import ManagerShape, ManagerWorld
from kvproof.conformance.machines.exhaustive.pools import PoolShape, PoolWorld
from kvproof.conformance.machines.exhaustive.tables import TableShape, TableWorld
from kvproof.conformance.machines.exhaustive.walk import GLANCING, PASSING_OVER, Move, Walk, Way, digest
from kvproof.conformance.machines.exhaustive.world import SmallWorld
from kvproof.conformance.machines.exhaustive.worlds import SMALLEST, WORLDS
from kvproof.conformance.machines.session import Session
from kvproof.conformance.machines.worlds import Group, World
from kvproof.conformance.search.runner import run_machine
from kvproof.spec import CLAUSES

SPEC = Backend("kvproof.spec", kvproof.spec)


class Pools(PoolWorld):
    shape = PoolShape(3, 1, ((0,), (1,)))


class Managers(ManagerWorld):
    shape = ManagerShape(World(3, (Group("window", 1, 1),), 2), ((0, 0), (1, 1)), ("hits", "one"))
    labels = frozenset({"MAN-7", "MAN-8"})


class Tables(TableWorld):
    shape = TableShape(2, (1,))


TINY: list[tuple[type[SmallWorld], int]] = [(Pools, 4), (Managers, 3), (Tables, 3)]
"""Worlds, and how many calls, construction included, are tried in every order."""


def bound(world: type[SmallWorld]) -> type[SmallWorld]:
    """A world in which the specification is held against itself."""
    return type(world.__name__, (world,), {"session": Session(SPEC, CLAUSES, repeats=True)})


def reach(world: type[SmallWorld], path: tuple[Move, ...]) -> SmallWorld:
    at = world()
    at.take(Way("begin"))
    for way in path:
        at.take(way)
    return at


def every_sequence(world: type[SmallWorld], most_calls: int) -> tuple[dict[bytes, int], dict[bytes, list[list[bytes]]]]:
    """Takes every sequence of moves, and takes no state for another.

    Returns:
        The fewest calls that lead to each state, and what the moves of each state that was met lead to, in the order
        in which they were listed, each time it was met.
    """
    nearest: dict[bytes, int] = {}
    futures: defaultdict[bytes, list[list[bytes]]] = defaultdict(list)
    waiting: list[tuple[Move, ...]] = [()]
    while waiting:
        path = waiting.pop()
        at = reach(world, path)
        key, calls = digest(at.key()), sum(map(is_call, at.calls))
        nearest[key] = min(calls, nearest.get(key, calls))
        if calls < most_calls:
            moves = at.moves()
            futures[key].append([digest(reach(world, (*path, move)).key()) for move in moves])
            waiting += [(*path, move) for move in moves]
    return nearest, futures


@pytest.mark.parametrize(("world", "most_calls"), TINY, ids=[world.__name__ for world, _ in TINY])
def test_states_taken_for_one_are_one(world: type[SmallWorld], most_calls: int) -> None:
    """Without it the walk through all sequences finds the same states, at the same distances, with the same futures.

    What a move leads to depends on its place in the list alone: a walk knows moves by it, whatever names things have.
    """
    nearest, futures = every_sequence(bound(world), most_calls)
    walk = Walk(bound(world), Session(SPEC, CLAUSES, repeats=True), 120)
    walked = walk.run()
    assert walked.closed or walked.distance >= most_calls
    found = walk.distances()
    within = {key for key, calls in found.items() if calls <= most_calls}
    assert within == {key for key, calls in nearest.items() if calls <= most_calls}
    assert all(found[key] == nearest[key] for key in within)
    assert any(len(met) > 1 for met in futures.values()), "states were met several times"
    for met in futures.values():
        assert all(leads_to == met[0] for leads_to in met)


@pytest.mark.parametrize("world", WORLDS, ids=[world.name for world in WORLDS])
def test_looks_change_nothing(world: type[SmallWorld]) -> None:
    made = bound(world)
    at = reach(made, ())
    for _ in range(4):
        way = at.moves()[0]
        at.take(way, PASSING_OVER)
        before = at.key()
        for look in at.looks():
            at.take(look, GLANCING)
            assert at.key() == before, look
        at.face()
    assert not made.session.undeclared, "a step compares by a clause that it does not declare"


def pools_but_for_names(num_pages: int) -> int:
    """How many states a pool has, by combinatorics alone: two tokens, texts of one or two of them, two holders a page.

    A page is free at a place, or held once or twice; it has one of six texts or none; pages of one text have an order.
    """
    hashes = [(), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1)]
    seen = set()
    for free in range(num_pages):
        for queue in product(hashes, repeat=free):
            for held in combinations_with_replacement(list(product((1, 2), hashes)), num_pages - 1 - free):
                pages = [(place, 0, text) for place, text in enumerate(queue)]
                pages += [(-1, count, text) for count, text in held]
                for order in permutations(range(len(pages))):
                    texts = [pages[at][2] for at in order]
                    ranks = {at: texts[:n].count(texts[n]) if texts[n] else 0 for n, at in enumerate(order)}
                    state = [(*page, ranks[at]) for at, page in enumerate(pages)]
                    swapped = [(*page[:2], tuple(1 - token for token in page[2]), page[3]) for page in state]
                    seen.add(min(tuple(sorted(state)), tuple(sorted(swapped))))
    return len(seen)


def test_a_closed_walk_found_every_state_there_is() -> None:
    smallest = next(world for world in WORLDS if world.name == "small-pool-2")
    assert pools_but_for_names(2) == 12
    assert run_machine(smallest, SPEC, 0).note == "closed: 12 states, 277 transitions, 4 calls deep"
    few = bound(next(world for world in SMALLEST if world.name == "small-pool"))
    walked = type("NoLooks", (few,), {"looks": lambda _: []})
    assert Walk(walked, few.session, 10_000).run().states == pools_but_for_names(3) == 144


def test_a_closed_walk_through_tables_found_every_state_there_is() -> None:
    """Each row names one of 3 lists on the host and one on the device; the ids of all may change places."""
    walked = Walk(Tables, bound(Tables).session, 10_000).run()
    assert walked.closed
    assert walked.states == (3**4 + 1) // 2
    assert not walked.behind + walked.undecided


def test_names_are_apart() -> None:
    names = [world.name for world in (*SMALLEST, *WORLDS)]
    assert len(set(names)) == len(names)
    assert {world.name for world in SMALLEST} <= MACHINES.keys()
    assert MACHINES.keys().isdisjoint(world.name for world in WORLDS)


def test_a_walk_says_how_far_it_came() -> None:
    table = MACHINES["small-table"]
    assert run_machine(table, SPEC, 0).note == "closed: 81 states, 2,754 transitions, 6 calls deep"
    cut = run_machine(table, SPEC, 0, examples=20)
    assert cut.note.startswith("cut after 2")
    assert cut.steps > 100
    assert not cut.deviations


@pytest.mark.parametrize(
    ("bug", "machine", "most_calls"),
    [
        ("double_mention", "small-pool", 4),
        ("duplicates_collapse", "small-pool", 5),
        ("deferred_free_reversed", "small-full", 4),
        ("page_lost_but_counted", "small-table", 3),
        ("stale_ids_after_add", "small-table", 3),
    ],
)
def test_a_shallow_fault_is_found_in_the_fewest_calls(bug: str, machine: str, most_calls: int) -> None:
    found = run_machine(MACHINES[machine], load_backend(f"kvproof.conformance.catalogue:{bug}"), 0, examples=60)
    shortest = found.deviations[0]
    assert shortest.num_calls <= most_calls, shortest.calls
    assert all((shortest.before, shortest.after, shortest.observed_after))
    assert shortest.trace[0].name == "begin"


def test_what_a_backend_lacks_is_not_walked() -> None:
    class Alone:
        PageTable = kvproof.spec.PageTable

    found = {world.name: run_machine(world, Backend("alone", Alone), 0, examples=5) for world in (*SMALLEST, *WORLDS)}
    walked = {name for name, report in found.items() if not report.missing}
    assert walked == {"small-table", "small-table-2x3"}
    assert not any(report.deviations for report in found.values())


@pytest.mark.parametrize("lacking", ["append_rows_batch", "clear_row"])
@pytest.mark.parametrize("machine", ["small-table", "table"])
def test_what_tables_may_lack_is_not_called(machine: str, lacking: str) -> None:
    """As vLLM's lack batches, and tpu-inference's `clear_row`: both are optional, and were called all the same."""

    class Rows:
        def __init__(self, max_num_reqs: int, max_num_pages_per_req: int, max_num_batched_tokens: int) -> None:
            self.own = kvproof.spec.PageTable(max_num_reqs, max_num_pages_per_req, max_num_batched_tokens)

        def __getattr__(self, name: str) -> object:
            if name == lacking:
                raise AttributeError(name)
            return getattr(self.own, name)

    class Holder:
        PageTable = Rows

    assert not run_machine(MACHINES[machine], Backend("rows", Holder), 0, examples=60).deviations


def test_a_backend_that_does_not_repeat_itself_is_no_crash() -> None:
    calls = iter(range(10**9))

    class Moody(kvproof.spec.PagePool):
        def free_pages(self, ordered_pages: object) -> None:
            pages = list(ordered_pages)  # type: ignore[call-overload]
            super().free_pages(pages if next(calls) % 50 else pages[::-1][:1])

    class Holder:
        PagePool = Moody

    found = run_machine(MACHINES["small-pool"], Backend("moody", Holder), 0, shrink_seconds=1, examples=60)
    assert found.deviations
