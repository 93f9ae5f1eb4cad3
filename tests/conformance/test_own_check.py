"""What a backend's own ``check()`` finds is reported last: only where nothing that a user sees differs."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import kvproof.fast as fast
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.search.runner import MachineReport, run_machine


def checked(**members: Callable[..., Any]) -> MachineReport:
    """A run of the pool machine on a pool some of whose methods are others."""
    pool = type("PagePool", (fast.PagePool,), members)
    holder = SimpleNamespace(**{name: getattr(fast, name) for name in fast.__all__} | {"PagePool": pool})
    return run_machine(MACHINES["pool"], Backend("checked", holder), 0, examples=20, shrink_seconds=60)


def complain(_: Any) -> None:
    raise AssertionError("the books are wrong")


def test_what_a_user_sees_goes_first() -> None:
    def usage(self: Any) -> float:
        return fast.PagePool.get_usage(self) / 2

    found = checked(get_usage=usage, check=complain).deviations
    assert {deviation.clause for deviation in found} == {"POOL-10"}
    assert found[0].expected.startswith("usage = ")


def test_check_is_told_where_nothing_else_differs() -> None:
    found = checked(check=complain).deviations
    assert [deviation.clause for deviation in found] == ["POOL-2"]
    assert found[0].expected.startswith("check() = ")
    assert "the books are wrong" in found[0].observed
    assert found[0].num_calls == 1


def test_a_state_that_no_call_shows_is_told_by_snapshots() -> None:
    """In the machine of managers nothing is swapped out: only a snapshot has the number of the next plan."""

    class Jumping(fast.CacheManager):
        def free(self, request: Any, num_written: int | None = None) -> list[str]:
            self.coordinator.swapped.next_id += 1
            return super().free(request, num_written)

    names = {name: getattr(fast, name) for name in fast.__all__} | {"CacheManager": Jumping}
    backend = Backend("jumping", SimpleNamespace(**names))
    found = run_machine(MACHINES["manager"], backend, 0, examples=8, shrinking=0.2).deviations
    assert [deviation.clause for deviation in found] == ["MAN-14"]
    assert found[0].expected.startswith("snapshot = ")
    assert found[0].calls[-1].startswith("manager.free(")
    assert found[0].num_calls <= 4


def test_a_call_is_charged_though_check_is_not_called_after_each() -> None:
    """With the call by which it began to fail, wherever in the sequence that was."""

    def touch(self: Any, pages: Any) -> None:
        fast.PagePool.touch(self, pages)
        self.touched = True

    def check(self: Any) -> None:
        assert not hasattr(self, "touched"), "touched"

    report = checked(touch=touch, check=check)
    assert not report.unrepeated
    (found,) = report.deviations
    assert (found.clause, found.inner) == ("POOL-2", True)
    assert "touch(" in found.calls[-1]
    assert not any("touch(" in call for call in found.calls[:-1])


def test_what_a_check_does_is_not_done_after_each_call() -> None:
    """A backend that puts work off, and does it in ``check()``, is seen with work that several calls have put off."""
    calls: list[str] = []

    def free_pages(self: Any, pages: Any) -> None:
        calls.append("free")
        fast.PagePool.free_pages(self, pages)

    def check(self: Any) -> None:
        calls.append("check")
        fast.PagePool.check(self)

    assert not checked(free_pages=free_pages, check=check).deviations
    assert "free free free" in " ".join(calls)
    assert calls.count("check") > 20
