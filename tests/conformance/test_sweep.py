"""Holes of the suite that `sweep` found on backends of ours, and a few of its runs."""

from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

import kvproof.spec
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.calls.deviation import TracedStep
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.base import Machine
from kvproof.conformance.machines.draws import Drawing
from kvproof.conformance.machines.ragged import draw_batch
from kvproof.conformance.machines.safe.manager import SafeManager
from kvproof.conformance.machines.session import Session
from kvproof.conformance.machines.swap import Swap
from kvproof.conformance.machines.worlds import Group, World
from kvproof.spec import CLAUSES

from .sweep import QUICK, sweep

Made = TypeVar("Made", Swap, SafeManager)


def machine_of(kind: type[Made]) -> Made:
    """A machine on the specification, with three pages of two tokens."""
    bound = type(kind.__name__, (kind,), {"session": Session(Backend("spec", kvproof.spec), CLAUSES)})
    machine: Made = bound()
    options: dict[str, Any] = {"num_host_pages": 12} if kind is Swap else {}
    drawn: dict[str, Any] = {"restoring": False} if kind is Swap else {}
    world = World(4, (Group("full", 2),), 12, options=options)
    machine.repeat_step(TracedStep("construct", {"world": world, **drawn}))
    return machine


def operate(machine: Machine, name: str, *arguments: object) -> None:
    machine.repeat_step(TracedStep(name, (*arguments, {}), is_operation=True))


@pytest.mark.parametrize("asks", [True, False], ids=["and asks for slots that there are not", "and goes"])
def test_accepted_drafts_are_known_without_new_slots(asks: bool) -> None:
    """R2: what a request has computed comes back with it, drafts included, though no call has given slots since."""
    machine = machine_of(Swap)
    operate(machine, "bring", "a", [0, 0])
    operate(machine, "admit_with", "a", 2)
    operate(machine, "grow", "a", [0])
    operate(machine, "continue_with", "a", 2, 3)  # one token, and two drafts
    operate(machine, "grow", "a", [1, 1])
    if asks:
        operate(machine, "continue_with", "a", 5, 3)
        assert machine.calls[-1].endswith("# None")
    operate(machine, "go_out", "a", 5)
    for act in ("end_copies", "come_in", "end_copies"):
        operate(machine, act, *([max(machine.flights)] if act == "end_copies" else ["a"]))
    assert machine.cases["a"].live


def test_a_call_has_one_fault() -> None:
    """R1: which of two faults a refusal names is said nowhere; a request that is swapped out is one already."""
    machine = machine_of(Swap)
    operate(machine, "bring", "a", [0, 0])
    operate(machine, "admit_with", "a", 2)
    operate(machine, "go_out", "a", 2)
    operate(machine, "bring", "b", [0, 0])
    assert {machine.some_case(Drawing(None, (draw,))) for draw in range(4)} == {"b"}


@pytest.mark.parametrize("page", range(3))
def test_a_request_of_one_page_has_no_hit_to_be_refused(page: int) -> None:
    """MAN-2: a hit is shorter than its request, so that pages of its whole prompt are nobody's fault."""
    machine = machine_of(SafeManager)
    for name in "ab":
        operate(machine, "bring", name, [0, 0])
    operate(machine, "admit_with", "a", 2)
    before = len(machine.calls)
    machine.hit_badly(Drawing(None, (0, page, 0, 0, 0, page + 1)))
    assert [call.partition("(")[0] for call in machine.calls[before:]] == ["manager.get_computed_pages"]


@given(st.data())
def test_large_scores_are_exact(data: DataObject) -> None:
    """ATT-6: with a scale that is no power of two large scores are rounded by more than the bound."""
    assert draw_batch(Drawing(data), "plain with causal, q_scale, scale").content == "normal"


def test_a_backend_of_ours_conforms() -> None:
    assert [found for *_, found in sweep("kvproof.fast", ["queue", "safe-groups"], range(100, 101), effort=0.1)] == [
        ""
    ] * 2


def test_the_sweep_names_machines_that_there_are() -> None:
    assert set(QUICK) < set(MACHINES)
