"""The index machine judges indices that are not ours: told events one by one, asked for the cached part of a prompt."""

from ast import literal_eval
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.conformance.backends.levels import Level
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.search.runner import MachineReport, run_machine
from kvproof.spec import CacheCleared, CacheEvent, PageRemoved, PageStored


class Digests:
    """A foreign index: which pages a digest has, and which digest comes behind one with some tokens."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.told: dict[int, PageStored] = {}

    def apply(self, event: CacheEvent) -> None:
        match event:
            case PageStored():
                self.told[event.page_id] = event
            case PageRemoved():
                if event.page_id in self.told and self.told[event.page_id].page_hash == event.page_hash:
                    del self.told[event.page_id]
            case CacheCleared():
                self.told.clear()
            case _:
                raise TypeError(f"{event!r} is no event")

    def counts(self, event: PageStored) -> bool:
        """Whether a page is one that prompts match."""
        return event.group_id == 0 and not event.extra_keys

    def match(self, tokens: list[int]) -> int:
        behind = {(event.parent_hash, event.token_ids): event for event in self.told.values() if self.counts(event)}
        parent, matched = None, 0
        while True:
            page = behind.get((parent, tuple(tokens[matched : matched + self.page_size])))
            if page is None:
                return matched
            parent, matched = page.page_hash, matched + self.page_size


class AnyGroup(Digests):
    """Pages of windows count as those that are kept."""

    def counts(self, event: PageStored) -> bool:
        return not event.extra_keys


class Forgetful(Digests):
    """A cache that is cleared is not forgotten."""

    def apply(self, event: CacheEvent) -> None:
        if not isinstance(event, CacheCleared):
            super().apply(event)


class Trusting(Digests):
    """What is no event is passed over in silence."""

    def apply(self, event: CacheEvent) -> None:
        if isinstance(event, PageStored | PageRemoved | CacheCleared):
            super().apply(event)


class Counting(Digests):
    """A page that is told of twice is there twice."""

    def __init__(self, page_size: int) -> None:
        super().__init__(page_size)
        self.twice: list[PageStored] = []

    def apply(self, event: CacheEvent) -> None:
        if isinstance(event, PageStored) and event.page_id in self.told:
            self.twice.append(event)
        super().apply(event)
        if isinstance(event, PageRemoved) and self.twice:
            again = self.twice.pop()
            self.told.setdefault(again.page_id, again)


def report_on(index: Callable[[int], Digests], seed: int = 0, level: Level = "exact") -> MachineReport:
    return run_machine(MACHINES["index"], Backend("foreign", SimpleNamespace(EventIndex=index)), seed, level=level)


@pytest.mark.parametrize("level", ["exact", "safe"])
@pytest.mark.parametrize("seed", range(3))
def test_a_foreign_index_conforms(level: Level, seed: int) -> None:
    report = report_on(Digests, seed, level)
    assert not report.missing
    assert not report.deviations, [str(found) for found in report.deviations]
    assert report.tried["MAN-12"] > 500


@pytest.mark.parametrize(
    ("index", "clause"), [(AnyGroup, "MAN-12"), (Forgetful, "MAN-12"), (Trusting, "R1"), (Counting, "MAN-12")]
)
def test_a_faulty_index_is_found(index: Callable[[int], Digests], clause: str) -> None:
    assert clause in {found.clause for found in report_on(index).deviations}


def test_a_backend_without_events_is_not_asked() -> None:
    report = run_machine(MACHINES["index"], Backend("bare", SimpleNamespace()), 0)
    assert (report.missing, report.steps) == (["EventIndex"], 0)


class Rootless(Digests):
    """A page whose parent is not cached counts as the first of a prompt."""

    def match(self, tokens: list[int]) -> int:
        told = dict(self.told)
        digests = {event.page_hash for event in told.values()}
        for page, event in told.items():
            if event.parent_hash not in digests:
                self.told[page] = event._replace(parent_hash=None)
        matched = super().match(tokens)
        self.told = told
        return matched


@pytest.mark.parametrize("index", [AnyGroup, Forgetful, Rootless])
def test_the_calls_of_a_report_can_be_made_again(index: Callable[[int], Digests]) -> None:
    """MAN-12: events stand in it with their tokens, and come to another index where that is what was done."""
    (found,) = (found for found in report_on(index).deviations if found.clause == "MAN-12")
    names: dict[str, Any] = {event.__name__: event for event in (PageStored, PageRemoved, CacheCleared)}
    names["EventIndex"] = index
    exec("\n".join(found.calls), names)
    asked: Digests = names["late" if "late.apply" in found.calls[-1] else "index"]
    matched = literal_eval(found.observed_after["matched tokens"])
    assert {tokens: asked.match(list(tokens)) for tokens in matched} == matched
    assert matched != literal_eval(found.after["matched tokens"])
