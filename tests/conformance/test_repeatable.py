"""What a seed finds depends on no clock, on no module that happens to be imported, and not on a backend's whims."""

import importlib.util
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st

import kvproof.spec
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.calls.datum import simpler
from kvproof.conformance.cli import main
from kvproof.conformance.machines import MACHINES, Machine, session
from kvproof.conformance.machines.base import Field
from kvproof.conformance.machines.draws import Drawing
from kvproof.conformance.machines.properties import start, step
from kvproof.conformance.report.verdicts import MachineReport
from kvproof.conformance.search import runner, shortening
from kvproof.conformance.search.runner import PROFILES, run_machine
from kvproof.spec import CacheManager, PagePool

from .backends_under_test import ordered, radix
from .backends_under_test.ordered_pool import Page, Pages
from .backends_under_test.ordered_pool import PagePool as OrderedPool
from .backends_under_test.ordered_reading import number
from .broken import backend


def told(found: MachineReport) -> tuple[Any, ...]:
    """What a report says that may not depend on time."""
    deviations = [(str(deviation), deviation.calls) for deviation in found.deviations]
    return found.examples, found.steps, found.tried, found.ended, found.note, deviations


# -- Clocks -----------------------------------------------------------------------------------------


class Clock:
    """A clock that somebody else advances."""

    def __init__(self) -> None:
        self.late = 0.0
        self._right = time.monotonic

    def monotonic(self) -> float:
        return self._right() + self.late


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "monotonic", made.monotonic)
    for module in (session, shortening):
        monkeypatch.setattr(module, "monotonic", made.monotonic)
    return made


def faulty(clock: Clock, seconds: float) -> Backend:
    """A pool with three faults, and a call that takes that long by the clock."""

    class Slow(PagePool):
        def get_new_pages(self, num_pages: int) -> Any:
            clock.late += seconds
            return super().get_new_pages(num_pages)

        def get_usage(self) -> float:
            return 1 - self.get_num_free_pages() / self.num_pages

        def evict_pages(self, page_ids: Any) -> None:
            ids = list(page_ids)
            super().evict_pages(ids[:1] if len(ids) > 1 and ids[0] else ids)

        def reset_prefix_cache(self) -> bool:
            return super().reset_prefix_cache() or self.get_num_free_pages() > 1

    return backend("slow", PagePool=Slow)


def test_a_busy_machine_draws_and_finds_what_a_quiet_one_does(clock: Clock) -> None:
    search = PROFILES["quick"].search(first=False)
    for seed in range(8):  # what a seed draws changes with the machine: one that goes on after a deviation, twice
        quiet = run_machine(MACHINES["pool"], faulty(clock, 0.0), seed, **search)
        if len(quiet.deviations) > 2:
            break
    assert len(quiet.deviations) > 2
    assert told(quiet) == told(run_machine(MACHINES["pool"], faulty(clock, 100.0), seed, **search))


def test_a_limit_of_time_is_told_where_it_ended_something(clock: Clock) -> None:
    slow = faulty(clock, 100.0)
    cut = run_machine(MACHINES["pool"], slow, 1, examples=60, shrink_seconds=50.0, seconds=100.0)
    assert "not to the end" in cut.note
    assert "did not go on after 100 s" in cut.note
    assert not cut.ended
    few = run_machine(MACHINES["pool"], slow, 1, examples=60, going_on=0.0, seconds=1e9)
    assert "did not go on after" in few.note


# -- Modules ----------------------------------------------------------------------------------------


def test_a_seed_draws_the_same_beside_other_modules(tmp_path: Path) -> None:
    """Hypothesis draws constants of the modules that are imported: of the engine's own, for one."""
    before = run_machine(MACHINES["queue"], Backend("spec", kvproof.spec), 3, examples=30)
    file = tmp_path / "constants_of_an_engine.py"
    file.write_text("SIZES = [2, 3, 5, 6, 7]\n")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[file.stem] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        after = run_machine(MACHINES["queue"], Backend("spec", kvproof.spec), 3, examples=30)
    finally:
        del sys.modules[file.stem]
    assert told(before) == told(after)


# -- Backends that answer otherwise the second time ---------------------------------------------------


class AnyPageFirst(OrderedPool):
    """Evicts at random, by the system's numbers."""

    def get_new_pages(self, num_pages: int) -> Pages:
        count = number(num_pages)
        for page_id in random.SystemRandom().sample(list(self.free), min(count, len(self.free))):
            self.free.move_to_end(page_id, last=False)
        return super().get_new_pages(num_pages)


class ByTheClock(radix.CacheManager):
    """Takes the pages last freed or those first freed, as the clock has it."""

    def take(self, request: Any, count: int, hits: list[int]) -> list[int] | None:
        if time.perf_counter_ns() // 64 % 2:
            self.free_ids.reverse()
        return super().take(request, count, hits)


class NameInASet:
    """Hashes as a string does in another process: by a random number.

    Each of its bits is random: the low ones of a random float's hash are 0, so that small sets of them keep the order
    in which they were filled.
    """

    def __init__(self) -> None:
        self.number = random.SystemRandom().getrandbits(60)

    def __hash__(self) -> int:
        return self.number


class ByASet(radix.CacheManager):
    """Takes free pages in the order in which a set gives names."""

    def take(self, request: Any, count: int, hits: list[int]) -> list[int] | None:
        names = {NameInASet(): page for page in self.free_ids}
        self.free_ids = [names[name] for name in set(names)]
        return super().take(request, count, hits)


RANDOM_POOL = SimpleNamespace(PagePool=AnyPageFirst, kvproof_lacks=ordered.kvproof_lacks)
BY_THE_CLOCK, BY_A_SET = (
    SimpleNamespace(CacheManager=made, CachePages=radix.CachePages, kvproof_lacks=radix.kvproof_lacks)
    for made in (ByTheClock, ByASet)
)


@pytest.mark.parametrize(
    ("machine", "holder"),
    [("safe-pool", RANDOM_POOL), ("safe-manager", BY_THE_CLOCK), ("safe-manager", BY_A_SET)],
    ids=["system's random numbers", "clock", "set"],
)
def test_a_backend_that_is_not_deterministic_conforms_and_is_told(machine: str, holder: Any) -> None:
    found = run_machine(MACHINES[machine], Backend("random", holder), 1, examples=48, level="safe")
    assert [str(deviation) for deviation in found.deviations] == []
    assert found.ended
    assert "when all calls were made again" in found.unrepeated


def test_the_other_machines_go_on(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    names = SimpleNamespace(**vars(RANDOM_POOL), PageTable=kvproof.spec.PageTable)
    monkeypatch.setitem(sys.modules, "an_engine", SimpleNamespace(cache=names))
    given = ["--level", "safe", "--seed", "1", "--examples", "24", "--jobs", "1", "--step-timeout", "0", "--full"]
    assert main(["check", "--backend", "an_engine:cache", "--machines", "safe-pool,table", *given]) == 0
    printed = capsys.readouterr().out
    assert "\n\nnot deterministic, seen by machine safe-pool" in printed
    assert r"\n" not in printed, "lines are broken, not escaped"
    assert "table: 24 sequences" in printed


def test_a_deviation_that_does_not_come_again_is_told() -> None:
    class Once(CacheManager):
        told = False

        @property
        def usage(self) -> float:
            right = super().usage
            if right > 0.5 and not Once.told:
                Once.told = True
                return right + 1
            return right

    found = run_machine(MACHINES["manager"], backend("once", CacheManager=Once), 1, examples=20)
    assert [deviation.clause for deviation in found.deviations] == ["POOL-10"]
    assert found.unrepeated == "the calls that broke POOL-10 did not deviate when they were made again"


def test_a_page_is_a_page() -> None:
    assert isinstance(AnyPageFirst(3, True).get_new_pages(1)[0], Page)


# -- Making a counterexample shorter ------------------------------------------------------------------


def test_numbers_far_from_zero_are_made_simpler_one_by_one() -> None:
    """A list of all numbers between -2**31 and 8 takes 23 GB."""

    class Far(Machine):
        name = "far"
        examples = 40

        @start()
        def construct(self) -> None:
            """Nothing."""
            self.calls.append("nothing()")

        @step("R1")
        def take(self, data: Drawing) -> None:
            """A number that is wrong from -1000 down."""
            drawn = data.draw(st.integers(-(2**31), 8))
            self.calls.append(f"take({drawn})")
            if drawn <= -1000:
                self.differ("R1", "a larger one", str(drawn))

    found = run_machine(Far, Backend("spec", kvproof.spec), 1)
    assert found.deviations[0].calls[:-1] == ("nothing()",)
    assert -(2**30) < int(found.deviations[0].calls[-1].partition("(")[2][:-1]) <= -1000


def test_making_shorter_is_bounded_by_steps() -> None:
    broken = backend("broken", PagePool=type("Wrong", (PagePool,), {"get_usage": lambda _: 0.5}))
    none, few = (run_machine(MACHINES["pool"], broken, 1, shrinking=share) for share in (0.0, 1.0))
    assert few.deviations[0].num_calls <= none.deviations[0].num_calls
    assert runner.SHRINKING <= 5


def test_the_smallest_number_that_will_do_is_found_in_few_tries() -> None:
    """Of up to 2,000 requests or pages; going down one by one would take as many tries as there are numbers."""
    for least in (1, 2, 3, 65, 256, 999, 1000, 1001, 1999):
        number, tries, changed = 2000, 0, True
        while changed:
            changed = False
            for less in simpler(number):
                tries += 1
                if less >= least:
                    number, changed = less, True
                    break
        assert number == least
        assert tries <= 80


def test_what_a_comparison_takes_is_taken_while_a_counterexample_is_made_shorter() -> None:
    """Events that are read are gone; where they were not read, as in a hurry, other calls deviate."""

    class Taking(Machine):
        name = "taking"
        examples = 40

        @start()
        def construct(self) -> None:
            """Nothing waits."""
            self.calls.append("nothing()")
            self.waiting: list[int] = []
            self.threes = 0
            self.watch(Field("events", "R1", lambda _: self.waiting.clear()))

        @step("R1")
        def take(self, data: Drawing) -> None:
            """An event, which the next comparison takes: the sixth 3 is wrong, if none waits beside it."""
            drawn = data.draw(st.integers(0, 3))
            self.calls.append(f"take({drawn})")
            self.waiting.append(drawn)
            self.threes += drawn == 3
            if self.threes > 5 and self.waiting == [3] and self.backend.names.offers("faulty"):
                self.differ("R1", "an event", str(drawn))
            self.compare_states({})

    faulty = Backend("faulty", SimpleNamespace(faulty=True))
    none, found = (run_machine(Taking, faulty, 1, shrinking=share) for share in (0.0, 3.0))
    assert none.deviations[0].num_calls > 15
    assert found.deviations[0].num_calls == 1 + 6
