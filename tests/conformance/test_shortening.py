"""A counterexample is made shorter: whole requests go, and what is left of the calls goes on from where it is."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

from kvproof.conformance.backends.loading import Backend, load_backend
from kvproof.conformance.calls.datum import Call, Prompt, Ref, Saying, Slot, Spelled, growing, grown
from kvproof.conformance.calls.deviation import Deviation, TracedStep
from kvproof.conformance.calls.spelling import Spelling
from kvproof.conformance.machines import MACHINES, Machine, properties
from kvproof.conformance.machines.base import Nothing
from kvproof.conformance.machines.draws import Drawing
from kvproof.conformance.machines.properties import start
from kvproof.conformance.machines.session import Session
from kvproof.conformance.machines.worlds import Group, World
from kvproof.conformance.search.shortening import shorten
from kvproof.spec import CLAUSES

MANAGER = Ref("manager")
BUILT = TracedStep("construct", {"world": World(32, (Group("full", 1),), 12, caching=False), "seldom": False})


def come(number: int, name: str, tokens: int = 1) -> Call:
    return Call(None, "Request", {"prompt": Prompt((0,) * tokens, request_id=name)}, number)


def grow(number: int, name: str, token: int) -> Call:
    return Call(Ref(name), "append", {"token_id": token}, number)


def ask(number: int, name: str, computed: int, new: int) -> Call:
    asking = Saying(Ref(name), (("num_computed_tokens", computed),))
    return Call(MANAGER, "allocate_slots", {"request": asking, "num_new_tokens": new}, number)


def step(number: int, slots: Sequence[Any], computed: Sequence[int], new: Any, refused: bool = False) -> Call:
    given = {
        "slots": Spelled(
            Spelling.LIST, tuple(Slot(MANAGER, slot) if isinstance(slot, str) else slot for slot in slots)
        ),
        "num_computed_tokens": Spelled(Spelling.LIST, tuple(computed)),
        "num_new_tokens": new,
        "num_lookahead_tokens": 0,
    }
    return Call(MANAGER, "allocate_slots_batch", given, number, refused=refused)


def machine_on(backend: str) -> type[Machine]:
    session = Session(load_backend(backend), CLAUSES)
    return type("Batch", (MACHINES["batch"],), {"session": session})


def lines(*calls: Call) -> list[str]:
    """What a report shows of the last of some calls, requests that come and grow left out."""
    taken = machine_on("kvproof.spec")()
    taken.repeat_step(BUILT)
    for call in calls:
        taken.repeat_step(call)
    return [line.partition("  #")[0].removeprefix("manager.") for line in taken.calls[1:] if "manager." in line]


def test_what_a_queue_gets_is_no_token() -> None:
    """A queue has a method of the name by which requests get tokens."""
    appended = Call(Ref("pool", (".free_page_queue",)), "append", {"page": Ref(0, (0,))}, 1)
    assert grown([appended], ["pool"]) == (appended,)
    assert growing(appended) == ""


def test_requests_come_with_the_tokens_that_they_get_later() -> None:
    calls = [come(1, "a"), grow(2, "a", 7), come(3, "b"), grow(4, "b", 8), grow(5, "a", 9), come(6, "a"), "a step"]
    of_a = grown(calls, ["a"])
    assert [
        call.arguments["prompt"].tokens for call in of_a if isinstance(call, Call) and call.method == "Request"
    ] == [
        (0, 7, 9),
        (0,),
        (0,),
    ]
    assert of_a[2:] == (grow(4, "b", 8), come(6, "a"), "a step")
    assert len(grown(calls, ["a", "b"])) == 4


@pytest.mark.parametrize(
    ("calls", "last"),
    [
        ([ask(2, "a", 0, 2), ask(3, "a", 2, 1)], "allocate_slots(a, 1)  [num_computed_tokens=2]"),
        ([ask(3, "a", 2, 1)], "allocate_slots(a, 3)"),
        ([ask(2, "a", 0, 2), ask(3, "a", 5, 2)], "allocate_slots(a, 5)  [num_computed_tokens=2]"),
    ],
    ids=["as it was", "no slots before", "fewer slots before"],
)
def test_a_request_goes_on_from_where_it_is_to_where_it_went(calls: list[Call], last: str) -> None:
    assert lines(come(1, "a", 9), *calls)[-1] == last


def test_who_is_not_live_is_left_out_of_a_step() -> None:
    two = step(9, ["a", "b"], [1, 4], 1)
    here = [come(1, "a", 9), ask(2, "a", 0, 1), come(3, "b", 9), ask(4, "b", 0, 4)]
    assert lines(*here, two)[-1] == "allocate_slots_batch([slot of a, slot of b], [1, 4], 1, 0)"
    assert lines(*here[:3], two)[-1] == "allocate_slots_batch([slot of a], [1], 1, 0)"
    assert lines(here[0], here[2], two) == []
    fewer = lines(*here[:3], ask(4, "b", 0, 2), two)
    assert fewer[-1] == "allocate_slots_batch([slot of a, slot of b], [1, 2], [1, 3], 0)"


def test_the_columns_that_are_left_of_a_step_keep_their_spelling() -> None:
    two = step(9, ["a", "b"], [1, 4], 1)
    computed = replace(two.arguments["num_computed_tokens"], how=Spelling.INT32)
    left = lines(come(1, "a", 9), ask(2, "a", 0, 1), come(3, "b", 9), two.given(num_computed_tokens=computed))
    assert left[-1] == "allocate_slots_batch([slot of a], np.array([1], np.int32), 1, 0)"


def test_requests_go_with_all_their_calls() -> None:
    """Steps name several of them, a slot that was freed has another number without them, and they grow for long."""
    calls = [
        *(made for n, name in enumerate("abcd") for made in (come(2 * n, name), ask(2 * n + 1, name, 0, 1))),
        *(grow(10 + n, name, 0) for n in range(6) for name in "abcd"),
        *(step(40 + n, ["a", "b", "c", "d"], [n] * 4, 1) for n in range(1, 6)),
        Call(MANAGER, "free", {"request": Ref("d")}, 50),
        step(51, ["a", Ref("last_slots", (3,))], [6, 6], 1, refused=True),
    ]
    machine = machine_on("kvproof.conformance.catalogue:freed_slots_go_on")
    taken = machine()
    taken.repeat_step(BUILT)
    for call in calls[:-1]:
        taken.repeat_step(call)
    with pytest.raises(Deviation) as found:
        taken.repeat_step(calls[-1])
    assert found.value.num_calls == 12
    shorten(machine, machine.session, 1000)
    assert machine.session.shortest is not None
    assert machine.session.shortest.num_calls == 4, machine.session.shortest.calls


def test_calls_go_before_what_has_many_parts_is_made_simpler() -> None:
    class Long(Machine):
        name = "long"
        examples, num_steps = 4, 12

        @start()
        def construct(self) -> None:
            """Nothing was taken."""
            self.calls.append("nothing()")
            self.taken = 0

        @properties.step("R1")
        def take(self, data: Drawing) -> None:
            """Takes a long list, perhaps after a look; the sixth is wrong."""
            numbers = data.draw(st.lists(st.integers(5, 9), min_size=20, max_size=30))
            if len(numbers) < 20 or min(numbers) < 5:
                raise Nothing
            self.calls += ["look()"] * data.one_of([0, 1, 1])
            self.calls.append(f"take({numbers})")
            self.taken += 1
            if self.taken == 6 and self.backend.names.offers("faulty"):
                self.differ("R1", "no sixth", str(numbers))

    faulty = Backend("faulty", SimpleNamespace(faulty=True))
    machine: type[Machine] = type("Long", (Long,), {"session": Session(faulty, CLAUSES)})
    taken = machine()
    taken.repeat_step(TracedStep("construct", {}))
    for _ in range(5):
        taken.repeat_step(TracedStep("take", [list(range(5, 10)) * 5, 1]))
    with pytest.raises(Deviation):
        taken.repeat_step(TracedStep("take", [list(range(5, 10)) * 5, 1]))
    shorten(machine, machine.session, 600)
    assert machine.session.deviations["R1"].num_calls == 1 + 6
