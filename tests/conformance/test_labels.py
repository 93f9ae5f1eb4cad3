"""R1: the specification and the fast backend refuse one bad call by one clause, and say which argument is wrong.

The suite compares the kinds of errors only, as a backend of somebody else's need not know the labels of clauses, nor
the names of arguments. Here its machines make every fault of each argument, and compare the labels and messages of our
own two packages, too.
"""

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from kvproof import fast, spec
from kvproof.conformance.backends.loading import load_backend
from kvproof.conformance.calls.interfaces import INTERFACES
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.replay.groups import read_groups
from kvproof.conformance.search.runner import MachineReport, run_machine
from kvproof.spec.clauses import clause_of_message
from kvproof.spec.declarations import Request

from .spoiling import Spoilt, spoiling

REFUSING: Mapping[str, int] = {
    **dict.fromkeys(("queue", "pool", "pool_pins", "hash", "table", "multi_table", "cache", "views"), 12),
    **dict.fromkeys(("manager", "window", "chunk", "state", "hybrid", "batch", "events", "pins", "swap"), 12),
    "snapshots": 30,
    "shards": 40,
    "sizing": 100,
    "attention": 1,
    "latents": 1,
}
"""The machines that make bad calls on both packages, each with a number of examples that reaches most methods."""

MOST_SEEDS = 3
"""Runs of a machine at most: one whose draws seldom come to some method is run with another seed."""


class Run(NamedTuple):
    """What a machine found, and how every fault that it made was refused."""

    report: MachineReport
    found: list[Spoilt]


@functools.cache
def run_of(name: str, seed: int) -> Run:
    """A run of a machine that makes every fault of each argument that it spoils."""
    machine = spoiling(MACHINES[name], times=1 if REFUSING[name] == 1 else 2)
    backend = load_backend("kvproof.fast")
    return Run(run_machine(machine, backend, seed, examples=REFUSING[name], shrink_seconds=5), machine.found)


@pytest.mark.parametrize("name", REFUSING)
def test_r1_the_machines_see_no_fault_refused_by_two_clauses(name: str) -> None:
    assert [(str(found), found.calls) for found in run_of(name, 0).report.deviations] == []


@pytest.mark.parametrize("name", REFUSING)
def test_r1_a_refusal_names_the_argument_and_its_value_and_changes_nothing(name: str) -> None:
    wrong = {(made.argument, made.wrong): made for made in run_of(name, 0).found if made.wrong}
    assert [(made.call, made.package, made.message, made.wrong) for made in wrong.values()] == []


def test_r1_every_fault_of_every_argument_was_made_and_refused_by_both_packages() -> None:
    """All that the tables say can be wrong; what cannot is listed with its reason, see `UNSPOILT`."""
    wanted = {
        (f"{table.name}.{row.name}({name})", package)
        for table in INTERFACES
        for row in table
        for name, kind in row.kinds.items()
        if kind.fault is not None
        for package in ("spec", "fast")
    }
    made: set[tuple[str, str]] = set()
    for seed in range(MOST_SEEDS):
        for name in REFUSING:
            missing = {interface_of(argument) for argument, _ in wanted - made}
            if seed and not missing & {interface_of(found.argument) for found in run_of(name, 0).found}:
                continue
            run = run_of(name, seed)
            assert [(str(found), found.calls) for found in run.report.deviations] == []
            made |= {(found.argument, found.package) for found in run.found}
    assert wanted == made


def interface_of(argument: str) -> str:
    """The interface of an argument, as `Spoilt` names it."""
    return argument.split(".", 1)[0]


# -- Faults that the machines seldom draw ---------------------------------------------------------


class Used:
    """A manager of two groups with a cached prefix; ``live`` runs, ``away`` is swapped out, ``going`` on its way."""

    def __init__(self, package: ModuleType) -> None:
        self.package = package
        self.manager = package.CacheManager(40, read_groups("full:2,window:2:3", 1), 32, num_host_pages=20)
        self.requests = {name: Request(name, list(range(7))) for name in ("live", "away", "going", "waiting")}
        for name in ("live", "away", "going"):
            self.manager.allocate_slots(self.requests[name], 7)
            self.requests[name].num_computed_tokens = 7
        self.manager.swap_done(self.manager.swap_out(self.requests["away"]).swap_id)
        self.manager.swap_out(self.requests["going"])

    def namesake(self, name: str) -> Request:
        """Another object of a request's id."""
        return Request(name, list(range(7)))

    def pages(self, *lists: list[int]) -> Any:
        return self.package.CachePages([[self.manager.page_pool.pages[page] for page in own] for own in lists])

    def admit(self, *lists: list[int], tokens: int = 4) -> Any:
        return self.manager.allocate_slots(self.requests["waiting"], 1, tokens, self.pages(*lists))


def null_pages_alone(at: Used) -> Any:
    """A hit of which a window needs no page: it would be a hit on nothing."""
    manager = at.package.CacheManager(10, read_groups("window:2:1", 1), 32)
    null = manager.page_pool.pages[0]
    return manager.allocate_slots(at.requests["waiting"], 1, 4, at.package.CachePages([[null, null]]))


def call_with(method: str, kind: str, name: str, *more: int) -> Callable[[Used], Any]:
    """A call with a request of the engine's, or with another object of its id."""

    def call(at: Used) -> Any:
        request = at.namesake(name) if kind == "another" else at.requests[name]
        return getattr(at.manager, method)(request, *more)

    return call


CALLS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("get_computed_pages", "free", "swap_out", "swap_in", "pin_prefix", "free_page_hashes"), ()),
    **dict.fromkeys(("allocate_slots", "get_num_common_prefix_pages", "set_prefix_priority"), (1,)),
    "cache_pages": (2,),
    "receive_pages": (4,),
}
"""Calls about a request, with what else they are given."""

FAULTS: dict[str, Callable[[Used], Any]] = {
    "null pages alone": null_pages_alone,
    "null pages where some are needed": lambda at: at.admit([0, 0], [0, 0]),
    "pages of one group": lambda at: at.admit([1, 2]),
    "fewer tokens than pages": lambda at: at.admit([1, 2], [0, 5], tokens=2),
    "pages where none are needed": lambda at: at.admit([1, 2], [5, 6]),
    "pages of another group": lambda at: at.admit([5, 6], [0, 2]),
    "hits of no number of tokens": lambda at: at.admit([1, 2], [0, 5], tokens=-1),
    "hits for a live request": lambda at: at.manager.allocate_slots(at.requests["live"], 1, 2, at.pages([1], [5])),
    **{
        f"{method} of {kind} {name}": call_with(method, kind, name, *more)
        for name in ("live", "away", "going", "waiting")
        for kind in ("the", "another")
        for method, more in CALLS.items()
    },
    "a step after a negative number of tokens": lambda at: at.manager.allocate_slots_batch(
        np.array([at.manager.slot_of("live")]), np.array([-1]), np.array([1])
    ),
    "the slot of nobody": lambda at: at.manager.slot_of("nobody"),
    "the slot of who is away": lambda at: at.manager.slot_of("away"),
    "the end of no plan": lambda at: at.manager.swap_done(7),
    "a snapshot with somebody away": lambda at: at.manager.snapshot(),
    "a pin that is none": lambda at: at.manager.unpin_prefix(3),
}


def _refused(package: ModuleType, fault: str) -> object:
    """How a fault is refused; nothing of what a call returns that is served."""
    used = Used(package)
    try:
        FAULTS[fault](used)
    except (TypeError, ValueError, IndexError) as error:
        return type(error).__name__, clause_of_message(str(error))
    return "served"


@pytest.mark.parametrize("fault", FAULTS)
def test_r1_a_fault_is_refused_by_one_clause(fault: str) -> None:
    assert _refused(spec, fault) == _refused(fast, fault)


def test_r1_null_pages_and_a_swapped_id() -> None:
    """The labels themselves: null pages alone are no hit, an id is live for one object at a time."""
    assert _refused(fast, "null pages alone") == ("ValueError", "MAN-1")
    assert _refused(fast, "allocate_slots of another away") == ("ValueError", "MAN-6")
    assert _refused(fast, "allocate_slots of the away") == ("ValueError", "SWAP-1")
