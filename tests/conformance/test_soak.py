"""The soak: long lives at the sizes of engines, without Hypothesis; features that meet in them."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import kvproof.fast
import kvproof.spec
from kvproof.conformance.backends.levels import Level
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.machines.meetings import FEATURES, PAIRS, SAFE_PAIRS, Meetings, pair
from kvproof.conformance.machines.safe.soak import SafeSoak
from kvproof.conformance.machines.session import Session, TracedStep
from kvproof.conformance.machines.soak import SMALL_LIVES, Soak
from kvproof.conformance.machines.soak_lives import Chance, Life
from kvproof.conformance.machines.worlds import Group, World
from kvproof.conformance.search.runner import run_machine
from kvproof.spec.clauses import CLAUSES

_LIVES = 6
"""Large lives, and four times as many small ones: a third of a check's, as CI's main job lives all of them."""

_SEEDS_OF_PAIRS = (0, 1)
"""The seeds of which the small lives of a default check let every pair meet; those of one seed let nearly all."""


def backend_with(**names: Any) -> Backend:
    public = {name: getattr(kvproof.fast, name) for name in kvproof.fast.__all__}
    return Backend("spoilt", SimpleNamespace(**(public | names)))


def born(rows: int) -> Soak:
    """A soak at the beginning of a life: two pages for each of some requests."""

    class Bound(Soak):
        session = Session(Backend("kvproof.fast", kvproof.fast), CLAUSES, repeats=True)

    soak = Bound()
    world = World(2 * rows + 1, (Group("full", 4),), 64)
    soak.repeat_step(TracedStep("construct", {"world": world, "rows": rows}))
    return soak


def test_sizes_are_log_uniform_and_follow_from_the_seed() -> None:
    sizes = [Chance(str(seed)).size(2000) for seed in range(400)]
    assert sizes == [Chance(str(seed)).size(2000) for seed in range(400)]
    assert 1 <= min(sizes) <= 3
    assert 1900 < max(sizes) <= 2000
    assert 120 < sum(size < 32 for size in sizes) < 280, "as many below 32 as above"


def test_lives_have_the_sizes_of_engines() -> None:
    for seed in range(4):
        lives = [Life(seed, number, 120) for number in range(Soak.examples)]
        assert sum(life.rows >= 150 for life in lives) >= 4
        listed = [life.world.max_model_len // life.world.groups[0].page_size for life in lives]
        assert sum(pages >= 1000 for pages in listed) >= 2, "in each life that is about long lists"
        assert 3000 < max(life.world.num_pages for life in lives) <= 4096


def test_lives_end_without_a_deviation() -> None:
    """The clauses that `Soak.always` lists."""
    found = run_machine(Soak, Backend("kvproof.fast", kvproof.fast), 0, examples=_LIVES)
    assert [str(deviation) for deviation in found.deviations] == []
    assert (found.examples, found.undeclared, found.ended) == ((1 + SMALL_LIVES) * _LIVES, [], True)
    assert found.wasted < found.steps * 0.15


@pytest.mark.parametrize(("machine", "level"), [(Soak, "exact"), (SafeSoak, "safe")], ids=["exact", "safe"])
def test_every_two_features_meet_in_a_scene(machine: type[Soak], level: Level) -> None:
    """What of them can meet does; where a pair does not, the list says which seed let each other one meet last."""

    class Small(machine):  # type: ignore[valid-type,misc]
        @classmethod
        def lives(cls, seed: int, count: int) -> Iterator[Life]:
            return itertools.islice(super().lives(seed, count), SMALL_LIVES * count)

    pairs = PAIRS if level == "exact" else SAFE_PAIRS
    last_met = dict.fromkeys(pairs, -1)
    for seed in _SEEDS_OF_PAIRS:
        found = run_machine(Small, Backend("kvproof.fast", kvproof.fast), seed, examples=Soak.examples, level=level)
        assert [str(deviation) for deviation in found.deviations] == []
        last_met |= dict.fromkeys([name for name in found.drawn if name in pairs], seed)
        if min(last_met.values()) >= 0:
            break
    assert [name for name, seed in last_met.items() if seed < 0] == [], last_met


def test_features_that_cannot_meet_are_no_pair() -> None:
    """A manager of shards has no method for them."""
    apart = {other for other in FEATURES if other != "shards" and pair(other, "shards") not in PAIRS}
    assert apart == {"batch", "pin", "priority", "restore", "events", "export", "import"}
    for method in ("allocate_slots_batch", "pin_prefix", "set_prefix_priority", "restore", "take_events"):
        assert hasattr(kvproof.spec.CacheManager, method)
        assert not hasattr(kvproof.spec.ShardedCacheManager, method)
    assert not hasattr(kvproof.spec.ShardedCacheManager, "receive_pages")


def test_what_a_life_costs_is_bounded_by_the_pages_that_it_touches() -> None:
    """No clock ends it: the same seed lives the same life on any machine."""
    for number in range(3):
        life = Life(0, number, 10_000)
        assert life.work == Life(0, 0, 120).work * (10_000 // 120)
        assert Life(0, number, 10_000).world == life.world


def test_a_fault_past_so_many_requests_is_found_and_told_in_few_calls() -> None:
    """Past 40 live requests; the other machines have four."""

    class Crowded(kvproof.fast.CacheManager):
        def free(self, request: Any, *more: Any) -> Any:
            held = super().free(request, *more)
            if len(self.coordinator.live.slot_of) > 40 and not more:
                self.page_pool.evict_pages([1])
            return held

    for seed in range(6):
        found = run_machine(Soak, backend_with(CacheManager=Crowded), seed, examples=4, shrinking=1.0)
        if found.deviations:
            break
    assert found.deviations
    assert found.deviations[0].num_calls <= 15, "\n".join(found.deviations[0].calls)


def test_a_step_of_many_requests_costs_as_much_as_many_steps() -> None:
    """By what it costs is bounded how long counterexamples are made shorter: with 300 requests for fewer tries."""
    soak, costs = born(300), []
    for name, arguments in (("come", (1, [[5, 1]])), ("come_many", (2, 100, 1, 0)), ("come_many", (200, 199, 1, 0))):
        step = TracedStep(name, (*arguments, {}), is_operation=True)
        soak.repeat_step(step)
        costs.append(soak.cost_of(step))
    one, hundred, two_hundred = costs
    assert len(soak.running()) == 299
    assert one < 0.5
    assert hundred > 100 * one
    assert 1.9 < two_hundred / hundred < 2.5


def test_hundreds_of_requests_that_grow_are_told_in_a_line() -> None:
    soak = born(8)
    soak.repeat_step(TracedStep("come_many", (1, 5, 3, 0, {}), is_operation=True))
    soak.repeat_step(TracedStep("step", (5, 2, 0, False, False, {}), is_operation=True))
    assert [call for call in soak.calls if "grow" in call] == [
        "# 5 of the requests grow by 2 tokens of their own each, or by as many as there is room for"
    ]


def test_features_meet_within_a_scene() -> None:
    met = Meetings()
    met.note(["pin"], 1)
    met.note(["swap", "hit"], 20)
    met.note(["batch"], 100)
    assert sorted(met.names()) == sorted([pair("pin", "swap"), pair("hit", "pin"), pair("hit", "swap")])
    assert set(met.names()) <= set(PAIRS)
