"""Whether an engine did what it must: its plans by ENG-2, its logits and tokens against dense attention by ENG-1."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .plans import Plan
from .sampler import Sampling, sample, sure_token
from .serving import Engine, Output

__all__ = ["SMALL", "Fault", "output_fault", "plan_fault", "told"]

SMALL = 1e-4
"""Errors up to this are not looked into: float32 makes some 1e-5, and ATT-6 allows a hundred times that."""


class Fault(NamedTuple):
    """What an engine did wrong.

    Attributes:
        clause: the clause that it breaks.
        expected: what must be.
        observed: what is.
        raised: where the engine raised, frame by frame, if that is what is wrong.
    """

    clause: str
    expected: str
    observed: str
    raised: tuple[str, ...] = ()


def plan_fault(engine: Engine, plans: Sequence[Plan]) -> Fault | None:
    """What is wrong with the plans of a step, while requests are unfinished (ENG-2).

    Somebody must compute something, and whoever does must hold its pages: nobody scheduled has given way.
    """
    expected = "a step in which somebody goes on, and nobody scheduled gives way"
    if not any(plan.chunks for plan in plans):
        return Fault("ENG-2", expected, f"{engine.num_unfinished} wait and nobody computes anything")
    for plan, scheduler in zip(plans, engine.schedulers, strict=True):
        gone = [served.request.request_id for served in plan.preempted]
        sizes = [group.kv_cache_spec.page_size for group in scheduler.limits.groups]
        for chunk in plan.chunks:
            name = chunk.served.request.request_id
            held = scheduler.manager.get_page_ids(name)
            short = any(len(own) * size < chunk.end for own, size in zip(held, sizes, strict=True))
            if name in gone or short:
                observed = f"{name!r} is scheduled for tokens {chunk.start} to {chunk.end - 1} and was preempted"
                return Fault("ENG-2", expected, observed)
    return None


def output_fault(
    output: Output,
    sampling: Sampling,
    right: NDArray[np.float64],
    tolerance: Callable[[], NDArray[np.float64]],
) -> Fault | None:
    """What is wrong with the logits or the token of an output (ENG-1).

    Args:
        output: the output, of an engine that keeps logits.
        sampling: how the request's tokens are drawn.
        right: the logits by dense attention after each of the request's tokens, `f64[n, V]`, n at least up to the
            output's last row.
        tolerance: works out how far logits may be off at each position, `f64[n]`; asked where it matters.
    """
    assert output.logits is not None
    name, end = output.request_id, output.start + len(output.logits)
    errors = np.abs(output.logits - right[output.start : end]).max(axis=1)
    if not (errors <= SMALL).all():
        bound = np.maximum(tolerance()[output.start : end], SMALL)
        wrong = np.flatnonzero(~(errors <= bound))
        if wrong.size:
            first = int(wrong[0])
            position = output.start + first
            expected = f"logits of {name!r} at position {position} within {bound[first]:.2g} of dense attention's"
            return Fault("ENG-1", expected, f"off by {errors[first]:.2g}")
    drawn = right[end - 1], sampling, end
    if output.token is not None and output.token != sample(*drawn):
        must = sure_token(*drawn, max(float(tolerance()[end - 1]), SMALL))
        if must is not None:
            return Fault(
                "ENG-1", f"sampled token {must} of {name!r} at position {end}", f"sampled token {output.token}"
            )
    return None


def told(plans: Sequence[Plan]) -> str:
    """The plans of a step in a line, as a note of a counterexample."""
    chunks = [
        f"{chunk.served.request.request_id} {chunk.start}-{chunk.end - 1}" for plan in plans for chunk in plan.chunks
    ]
    gone = [served.request.request_id for plan in plans for served in plan.preempted]
    moved = [
        f"{swap.request_id} {'went to host memory' if swap.direction == 'out' else 'came back'}"
        for plan in plans
        for swap in plan.swaps
    ]
    gave_way = [f"{', '.join(gone)} gave way"] if gone else []
    return f"# computes {'; '.join([', '.join(chunks) or 'nothing', *gave_way, *moved])}"
