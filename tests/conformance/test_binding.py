"""Options of attention meet: any two are drawn in one call where both of them change what is right (ATT-1)."""

import numpy as np
import pytest

from kvproof.conformance.machines.attention import Attention, Latents, RaggedMachine
from kvproof.conformance.machines.base import SPEC
from kvproof.conformance.machines.binding import BOUND, BOUND_OF_LATENTS, bound_together
from kvproof.conformance.machines.ragged import OPTIONS, SETUPS, Batch, name_with, shared_out
from kvproof.conformance.search.runner import run_machine


@pytest.mark.parametrize(("machine", "names"), [(Attention, BOUND), (Latents, BOUND_OF_LATENTS)])
@pytest.mark.parametrize("seed", range(3))
def test_any_two_options_bind_together_in_each_run(
    machine: type[RaggedMachine], names: tuple[str, ...], seed: int
) -> None:
    """At default effort, masks in either order; a pair is counted where it is drawn first."""
    found = run_machine(machine, SPEC, seed)
    assert {name: count for name, count in found.drawn.items() if name in names} == dict.fromkeys(names, 1)


@pytest.mark.parametrize("count", range(1, 11))
def test_options_are_shared_out_so_that_any_two_meet_and_each_is_without_the_other(count: int) -> None:
    options = list(OPTIONS)[:count]
    setups = [set(setup) for setup in shared_out(options)]
    for one in options:
        for other in options:
            assert any({one, other} <= setup for setup in setups)
            assert one == other or any(one in setup and other not in setup for setup in setups)


def bound_of(batch: Batch) -> set[str]:
    """What binds together in a batch."""
    attend, arguments, keywords = SPEC.get("ragged_paged_attention"), batch.arguments(), batch.keywords()
    right = np.asarray(attend(*arguments, **keywords)).astype(np.float64)
    tolerance = batch.tolerance(right, arguments[1])
    return set(bound_together(batch.kind, (), keywords, right, tolerance, lambda named: attend(*arguments, **named)))


def test_a_mask_that_leaves_nothing_out_does_not_bind() -> None:
    """A window of 3 and chunks of 5: of six tokens the last reads its chunk only, the one before its window."""
    name = name_with("plain", ["window", "chunk", "v_scale"])
    masks = {
        length: bound_of(Batch(name, (queries,), (length,), ((1, 2, 3),), (0,)))
        for length, queries in ((2, 1), (5, 1), (6, 1), (6, 2))
    }
    assert masks == {2: set(), 5: {"bind: window + v_scale"}, 6: masks[6]}
    assert masks[6] == {"bind: window + chunk", "bind: window + v_scale", "bind: chunk + v_scale"}
    assert bound_of(Batch(name, (1,), (6,), ((1, 2, 3),), (0,))) == {"bind: chunk + v_scale"}


def test_a_window_that_is_wider_than_the_chunks_lets_these_bind() -> None:
    name = name_with("plain", ["wide window", "chunk"])
    assert SETUPS[name].options == {"window": 9, "chunk": 5}
    assert bound_of(Batch(name, (1,), (7,), ((1, 2, 3),), (0,))) == {"bind: a chunk within a window"}
