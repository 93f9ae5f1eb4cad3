"""Replays that serve each step in one call (MAN-11): as the single calls do, and held to them."""

from functools import partial
from typing import Any

import pytest

from kvproof import fast
from kvproof.conformance.cli import main
from kvproof.conformance.replay.engine import DeviationError, Engine
from kvproof.conformance.replay.report import Report
from kvproof.conformance.replay.traces import synthetic_trace

from .replays import Backends, replayed, request


class Counting(fast.CacheManager):
    """Counts calls that serve a step, and single ones amid a request's life."""

    batches = singles = 0

    def allocate_slots_batch(self, *args: Any, **options: Any) -> Any:
        type(self).batches += 1
        return super().allocate_slots_batch(*args, **options)

    def allocate_slots(self, request: Any, num_new_tokens: int, *args: Any, **options: Any) -> Any:
        type(self).singles += not args
        return super().allocate_slots(request, num_new_tokens, *args, **options)


@pytest.fixture
def counting() -> type[Counting]:
    Counting.batches = Counting.singles = 0
    return Counting


def told(report: Report) -> dict[str, Any]:
    """What a report says apart from times."""
    return {name: value for name, value in vars(report).items() if name not in ("timings", "wall_seconds")}


@pytest.mark.parametrize("groups", ["full", "full:16,window:8:40", "mamba:16:align,chunk:32:512"])
def test_batched_steps_are_the_single_calls(groups: str) -> None:
    """MAN-11: the same requests served, hits, evictions, preemptions; every result as the specification's."""
    options: dict[str, Any] = {"num_pages": 600, "groups": groups, "backend": fast}
    # of states and chunks few pages are kept, so that a smaller pool is short of pages
    options |= {"prefill_chunk": 256, "num_pages": 150} if "mamba" in groups else {"use_eagle": True}
    trace = synthetic_trace(16)
    single = replayed(trace, **options)
    batched = replayed(trace, **options, engine=partial(Engine, batched=True), lockstep=True)
    assert told(single) == told(batched)
    assert single.evictions


def test_short_of_pages_requests_are_served_one_by_one(counting: type[Counting]) -> None:
    """MAN-2, MAN-11: who gives way is asked request by request; with room for all there is one call a step."""
    trace = [request(32, 100, 0), request(32, 100, 1)]
    options: dict[str, Any] = {"backend": Backends(counting, fast.MultiGroupPageTable)}
    report = replayed(trace, num_pages=1 + 12, **options, engine=partial(Engine, batched=True), lockstep=True)
    assert report.preemptions > 0
    assert counting.batches > 0 < counting.singles
    singles = counting.singles
    roomy = replayed(trace, num_pages=100, **options, engine=partial(Engine, batched=True))
    assert roomy.preemptions == 0
    assert counting.singles == singles


class Greedy(fast.CacheManager):
    """Gives the last request of a step nothing."""

    def allocate_slots_batch(self, *args: Any, **options: Any) -> Any:
        batch = super().allocate_slots_batch(*args, **options)
        batch.granted[-1] = False
        return batch


def test_a_batch_that_refuses_with_pages_at_hand_deviates() -> None:
    with pytest.raises(DeviationError, match=r"allocate_slots_batch: expected slots for all.* granted$"):
        replayed(
            synthetic_trace(3),
            num_pages=9000,
            backend=Backends(Greedy, fast.MultiGroupPageTable),
            engine=partial(Engine, batched=True),
        )


def test_lockstep_sees_what_a_batch_tells_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    """MAN-11: a seeded bug of the batched step, by the command; single calls don't show it."""
    command = ["replay", "--synthetic", "4", "--num-pages", "2000", "--lockstep", "--backend"]
    command.append("kvproof.conformance.catalogue:pages_told_of_others")
    assert main([*command, "--batched"]) == 1
    assert "call      manager.allocate_slots_batch" in capsys.readouterr().out
    assert main(command) == 0


class Single:
    """A manager that knows no batches."""


SINGLE = Backends(Single)


def test_a_manager_without_batches_can_not_be_batched(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--synthetic", "4", "--batched", "--backend", f"{__name__}:SINGLE"]) == 2
    assert "--batched: " in (text := capsys.readouterr().err)
    assert "CacheManager has no allocate_slots_batch and slot_of" in text
