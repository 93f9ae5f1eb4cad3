"""Lockstep: a live backend with the specification beside it."""

import functools
import inspect
from pathlib import Path
from typing import Any

import pytest

import kvproof.fast
from kvproof.conformance import Lockstep, LockstepError, catalogue, replay_log
from kvproof.conformance.backends.levels import Level
from kvproof.conformance.calls.deviation import attempt
from kvproof.spec.declarations import Request

from .small_engine import GROUPS, SmallEngine, full


@pytest.mark.parametrize("groups", GROUPS)
@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("level", ["exact", "safe"])
def test_the_fast_backend_goes_in_step(groups: str, every: int, level: Level) -> None:
    checked = Lockstep(kvproof.fast, every, level=level)
    SmallEngine(checked, 4, GROUPS[groups]).run(20)
    assert checked.comparisons > 100
    assert checked.strayed_at is None


def test_another_order_of_eviction_goes_in_step_at_level_safe() -> None:
    for seed in range(5):
        checked = Lockstep("kvproof.conformance.catalogue:deferred_free_reversed", level="safe")
        SmallEngine(checked, seed).run(25)
        assert checked.strayed_at is None
    with pytest.raises(ValueError, match="level='sound' must be one of"):
        Lockstep(kvproof.fast, level="sound")


@pytest.mark.parametrize("name", ["deferred_free_reversed", "hash_kept_on_eviction", "salt_ignored"])
def test_a_seeded_bug_is_caught_at_once(name: str) -> None:
    for seed in range(15):
        engine = SmallEngine(Lockstep(f"kvproof.conformance.catalogue:{name}"), seed)
        found = attempt(functools.partial(engine.run, 25)).error
        if found is not None:
            break
    assert isinstance(found, LockstepError)
    assert found.clause in catalogue.SEEDED_BUGS[name].clauses | {"MAN-3"}
    assert found.before
    assert found.after
    assert found.clause in str(found)


class _Pool(kvproof.fast.PagePool):
    def free_pages(self, ordered_pages: Any) -> None:
        super().free_pages(list(ordered_pages)[::-1])


class _Backend:
    PagePool = _Pool


@pytest.mark.parametrize("every", [1, 3])
def test_states_are_compared_as_often_as_asked(every: int) -> None:
    """POOL-5: pages that are given back in the wrong order show in the next comparison of states."""
    pool = Lockstep(_Backend, every).PagePool(6, True)
    pages = pool.get_new_pages(3)
    if every == 3:
        pool.free_pages(pages)
        wrong = attempt(pool.reset_prefix_cache).error
    else:
        wrong = attempt(lambda: pool.free_pages(pages)).error
    assert isinstance(wrong, LockstepError)
    assert wrong.clause == ("POOL-5" if every == 1 else "POOL-3")
    assert "free pages" in wrong.observed


def test_refusals_are_compared_and_passed_on() -> None:
    """R1."""
    manager = Lockstep(kvproof.fast).CacheManager(4, [full(2)], 8)
    with pytest.raises(ValueError, match="num_new_tokens"):
        manager.allocate_slots(Request("a", [1]), 0)
    with pytest.raises(TypeError, match="an_option_of_another_package"):
        manager.allocate_slots(Request("a", [1]), 1, an_option_of_another_package=1)
    assert manager.usage == 0.0
    assert isinstance(manager, kvproof.fast.CacheManager)
    with pytest.raises(ValueError, match="every"):
        Lockstep(kvproof.fast, every=0)


def test_no_token_is_in_what_is_raised() -> None:
    """SEC-2."""

    class Manager(kvproof.fast.CacheManager):
        def slot_of(self, request_id: str) -> int:
            raise KeyError("tokens 4321")

    class Backend:
        CacheManager = Manager

    manager = Lockstep(Backend).CacheManager(4, [full(2)], 8)
    manager.allocate_slots(Request("a", [4321, 4322, 4323]), 3)
    with pytest.raises(LockstepError) as caught:
        manager.slot_of("a")
    assert "4321" not in repr(vars(caught.value)) + str(caught.value)
    assert "KeyError" in caught.value.observed


class _Meter(kvproof.fast.PagePool):
    def get_num_free_pages(self) -> int:
        return super().get_num_free_pages() + bool(self.get_usage())


class _Metered:
    PagePool = _Meter


def test_free_pages_are_counted_after_every_call_that_changes_any() -> None:
    """POOL-2: long before the whole state is looked at."""
    pool = Lockstep(_Metered, every=1000).PagePool(6, True)
    with pytest.raises(LockstepError, match="numbers of free pages") as caught:
        pool.get_new_pages(3)
    assert caught.value.clause == "POOL-2"


def test_what_it_makes_is_called_as_the_backend_is() -> None:
    checked = Lockstep(kvproof.fast)
    for name in ("CacheManager", "PagePool", "PageTable", "MultiGroupPageTable"):
        assert inspect.signature(getattr(checked, name)) == inspect.signature(getattr(kvproof.fast, name))
    assert checked.FullAttentionSpec is kvproof.fast.FullAttentionSpec


def test_nothing_is_compared_after_the_end(tmp_path: Path) -> None:
    """The log of a life in step with the specification replays without a difference."""
    checked = Lockstep(_Backend, every=1000, file=tmp_path / "a.log")
    pool = checked.PagePool(6, True)
    pool.get_new_pages(3)
    checked.compare()
    count = checked.comparisons
    assert count > 1
    checked.close()
    pool.free_pages(pool.get_new_pages(2))
    assert checked.comparisons == count
    result = replay_log(tmp_path / "a.log")
    assert (result.operations, result.wrong, result.cut) == (1, None, None)
