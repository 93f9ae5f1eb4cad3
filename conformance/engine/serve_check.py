"""Drives the engine through a schedule and holds what comes out; makes a schedule that goes wrong short."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.raising import Ending, frames
from ..calls.simplest import simplest
from .config import ModelConfig
from .dense import dense_logits, tolerance
from .judging import Fault, output_fault, plan_fault, told
from .model import Params
from .sampler import Sampling
from .schedules import Abort, Action, Add, Schedule
from .serving import Engine, Output

__all__ = ["Served", "Trial", "check_schedule", "shortened"]

Make = Callable[[int, int], Engine]
"""Makes an engine with numbers of pages and of host pages; it keeps logits."""


@dataclass
class Served:
    """A request of a schedule, as it is known from outside.

    Attributes:
        tokens: its tokens so far.
        sampling: how they are drawn.
        outputs: what came of it.
    """

    tokens: list[int]
    sampling: Sampling
    outputs: list[Output] = field(default_factory=list)


@dataclass
class Trial:
    """What came of a schedule.

    Attributes:
        lines: the calls and what they did.
        requests: requests that were served.
        refused: requests that were refused, as they must be: they can never fit the pool.
        steps: steps taken.
        rows: logits `[V]` that were compared.
        tokens: tokens that were generated.
        preemptions: how often a request gave way.
        swaps_out: how often it went to host memory then.
        swaps_in: how often one came back.
        hits: tokens that were found and not computed.
        worst: the largest error of a logit.
        fault: what went wrong; None if nothing did.
    """

    lines: list[str] = field(default_factory=list)
    requests: int = 0
    refused: int = 0
    steps: int = 0
    rows: int = 0
    tokens: int = 0
    preemptions: int = 0
    swaps_out: int = 0
    swaps_in: int = 0
    hits: int = 0
    worst: float = 0.0
    fault: Fault | None = None


class _WrongError(Exception):
    """Ends a trial with a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault)
        self.fault = fault


def check_schedule(model: tuple[ModelConfig, Params], make: Make, schedule: Schedule) -> Trial:
    """Does what a schedule says with a new engine, then serves all to their ends (ENG-1, ENG-2).

    Logits and tokens of a request are held against dense attention when it ends: a pass over its tokens in float64,
    and some more for the tolerance where an error is large. Whatever the engine raises is a fault.
    """
    trial = Trial()
    try:
        _Driver(model, make(schedule.num_pages, schedule.num_host_pages), trial).run(schedule)
    except _WrongError as wrong:
        trial.fault = wrong.fault
    return trial


class _Driver:
    """One engine under a schedule."""

    def __init__(self, model: tuple[ModelConfig, Params], engine: Engine, trial: Trial) -> None:
        self._config, self._params = model
        self._engine, self._trial = engine, trial
        self._served: dict[str, Served] = {}

    def run(self, schedule: Schedule) -> None:
        for action in schedule.actions:
            self._act(action)
        left = 8 + 3 * sum(len(served.tokens) + self._config.max_model_len for served in self._served.values())
        while self._served and left:
            self._step()
            left -= 1
        if self._served:
            waiting = ", ".join(map(repr, self._served))
            raise _WrongError(Fault("ENG-2", "all to finish", f"{waiting} still waiting, though nobody came"))

    def _act(self, action: Action) -> None:
        match action:
            case Add():
                self._add(action)
            case Abort():
                self._trial.lines.append(str(action))
                self._called("ENG-2", lambda: self._engine.abort(action.name))
                served = self._served.pop(action.name, None)
                if served is not None:
                    self._hold(served)
            case _:
                if self._served:
                    self._step()

    def _add(self, action: Add) -> None:
        self._trial.lines.append(str(action))
        try:
            self._engine.add_request(
                action.name,
                action.prompt,
                max_tokens=action.max_tokens,
                sampling=action.sampling,
                priority=action.priority,
                extra_keys=action.extra_keys,
            )
        except ValueError as error:
            if not str(error).endswith("[ENG-2]"):
                raise _WrongError(Fault("R1", "the request to be taken", _brief(error), frames(error))) from error
            self._trial.refused += 1
            self._trial.lines[-1] += "  # refused: it can never fit the pool"
        except Ending:
            raise
        except BaseException as error:
            raise _WrongError(Fault("R1", "the request to be taken", _brief(error), frames(error))) from error
        else:
            self._trial.requests += 1
            self._served[action.name] = Served(list(action.prompt), action.sampling)

    def _step(self) -> None:
        engine, trial = self._engine, self._trial
        trial.lines.append("engine.step()")
        trial.steps += 1
        begun = {name for name, served in self._served.items() if served.outputs}
        plans = self._called("ENG-2", engine.schedule)
        trial.lines[-1] += f"  {told(plans)}"
        fault = plan_fault(engine, plans)
        if fault is not None:
            raise _WrongError(fault)
        trial.preemptions += sum(len(plan.preempted) for plan in plans)
        ways = [swap.direction for plan in plans for swap in plan.swaps]
        trial.swaps_out += ways.count("out")
        trial.swaps_in += ways.count("in")
        first = [chunk for plan in plans for chunk in plan.chunks if chunk.served.request.request_id not in begun]
        trial.hits += sum(chunk.start for chunk in first)
        for output in self._called("ENG-1", lambda: engine.execute(plans)):
            served = self._served[output.request_id]
            served.outputs.append(output)
            if output.token is not None:
                served.tokens.append(output.token)
                trial.tokens += 1
            if output.is_finished:
                self._hold(self._served.pop(output.request_id))

    def _hold(self, served: Served) -> None:
        """Holds all that came of a request."""
        right = dense_logits(self._params, self._config, served.tokens)

        def bound() -> NDArray[np.float64]:
            return tolerance(self._params, self._config, served.tokens)

        for output in served.outputs:
            fault = output_fault(output, served.sampling, right, bound)
            if fault is not None:
                raise _WrongError(fault)
            assert output.logits is not None
            rows = right[output.start : output.start + len(output.logits)]
            self._trial.rows += len(rows)
            self._trial.worst = max(self._trial.worst, float(np.abs(output.logits - rows).max()))

    def _called(self, clause: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Ending:
            raise
        except BaseException as error:
            raise _WrongError(Fault(clause, "no error", _brief(error), frames(error))) from error


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def shortened(
    model: tuple[ModelConfig, Params], make: Make, schedule: Schedule, trial: Trial, tries: int
) -> tuple[Schedule, Trial]:
    """A schedule as short as it gets in some tries that breaks the same clause, and what came of it.

    Args:
        model: the model.
        make: makes engines.
        schedule: a schedule that goes wrong.
        trial: what came of it.
        tries: how many schedules may be tried.
    """
    assert trial.fault is not None
    clause = trial.fault.clause

    def shows(shorter: Schedule) -> Trial | None:
        tried = check_schedule(model, make, shorter)
        return tried if tried.fault is not None and tried.fault.clause == clause else None

    return simplest(schedule, trial, _shorter, shows, tries)


def _shorter(schedule: Schedule) -> Iterator[Schedule]:
    """Schedules without host memory; with runs of actions left out, long ones first; then with simpler requests."""
    if schedule.num_host_pages:
        yield replace(schedule, num_host_pages=0)
    actions = schedule.actions
    size = len(actions) // 2
    while size:
        for place in range(0, len(actions), size):
            yield replace(schedule, actions=(*actions[:place], *actions[place + size :]))
        size //= 2
    for place, action in enumerate(actions):
        if isinstance(action, Add):
            simpler = [
                Add(action.name, action.prompt, action.max_tokens),
                replace(action, prompt=action.prompt[: len(action.prompt) // 2]),
                replace(action, prompt=action.prompt[:-1]),
                replace(action, max_tokens=action.max_tokens // 2),
            ]
            for other in simpler:
                if other != action and other.prompt and other.max_tokens:
                    yield replace(schedule, actions=(*actions[:place], other, *actions[place + 1 :]))
