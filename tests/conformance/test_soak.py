"""The soak: long lives at the sizes of engines, without Hypothesis; features that meet in them."""

from types import SimpleNamespace
from typing import Any

import kvproof.fast
import kvproof.spec
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.machines.meetings import PAIRS, Meetings, pair
from kvproof.conformance.machines.soak import Soak
from kvproof.conformance.machines.soak_lives import Chance, Life
from kvproof.conformance.search.runner import run_machine


def backend_with(**names: Any) -> Backend:
    public = {name: getattr(kvproof.fast, name) for name in kvproof.fast.__all__}
    return Backend("spoilt", SimpleNamespace(**(public | names)))


def test_sizes_are_log_uniform_and_follow_from_the_seed() -> None:
    sizes = [Chance(str(seed)).size(2000) for seed in range(400)]
    assert sizes == [Chance(str(seed)).size(2000) for seed in range(400)]
    assert 1 <= min(sizes) <= 3
    assert 1900 < max(sizes) <= 2000
    assert 120 < sum(size < 32 for size in sizes) < 280, "as many below 32 as above"


def test_lives_have_the_sizes_of_engines() -> None:
    lives = [Life(Chance(f"{seed}"), 120) for seed in range(60)]
    assert max(life.rows for life in lives) == 300
    assert max(life.world.max_model_len // life.world.groups[0].page_size for life in lives) >= 2000
    assert max(life.world.num_pages for life in lives) == 4096


def test_a_life_on_the_fast_backend_ends_without_a_deviation() -> None:
    """The clauses that `Soak.always` lists."""
    found = run_machine(Soak, Backend("kvproof.fast", kvproof.fast), 1, examples=3)
    assert [str(deviation) for deviation in found.deviations] == []
    assert (found.examples, found.undeclared, found.ended) == (3, [], True)
    assert found.steps > 100
    assert found.wasted < found.steps / 3
    assert any(name.startswith("met: ") for name in found.drawn)


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


def test_features_meet_within_a_scene() -> None:
    met = Meetings()
    met.note(["pin"], 1)
    met.note(["swap", "hit"], 20)
    met.note(["batch"], 100)
    assert sorted(met.names()) == sorted([pair("pin", "swap"), pair("hit", "pin"), pair("hit", "swap")])
    assert set(met.names()) <= set(PAIRS)
