"""Runs of machines, logged: a recorded backend does as it does without a log, and its log replays without a fault."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof import fast
from kvproof.conformance import record, replay_log
from kvproof.conformance.backends.levels import Level
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.calls.deviation import attempt
from kvproof.conformance.calls.spelling import ReadOnlyList
from kvproof.conformance.machines import EVERY_MACHINE
from kvproof.conformance.search.runner import run_machine

CLASSES = ("PagePool", "CacheManager", "PageTable", "MultiGroupPageTable")
"""What can be recorded."""


class Recorder:
    """A backend whose objects are recorded: tables in the log of the manager before them.

    Args:
        folder: where the logs are.
    """

    def __init__(self, folder: Path) -> None:
        self.logs: list[Path] = []
        self.opened: list[Any] = []
        self._folder = folder
        public = {name: getattr(fast, name) for name in fast.__all__}
        recorded = {name: self._recorded(public[name]) for name in CLASSES}
        self.backend = Backend("recorded", SimpleNamespace(**public | recorded))

    def _recorded(self, own: type) -> Any:
        def made(_: type, *arguments: Any, **options: Any) -> Any:
            thing = own(*arguments, **options)
            if own.__name__ == "MultiGroupPageTable" and self.opened:
                return record(thing, self.opened[-1])
            self.logs.append(self._folder / f"{len(self.logs)}.log")
            self.opened.append(record(thing, self.logs[-1]))
            return self.opened[-1]

        return functools.wraps(own, updated=())(type(own.__name__, (own,), {"__new__": made}))


@pytest.mark.parametrize("name", ["small-pool", "small-full", "table", "multi_table", "batch"])
def test_a_machine_can_be_logged(name: str, tmp_path: Path) -> None:
    """Drawn ones and small worlds; lists are iterators and views of lists as well, and some calls are refused (R1).

    Left out are machines whose hash functions collide: a log keeps none, and that by which it is replayed does not.
    """
    recorder = Recorder(tmp_path)
    report = run_machine(EVERY_MACHINE[name], recorder.backend, seed=3, examples=8)
    assert not report.deviations
    for thing in recorder.opened:
        thing.close()
    logs = [path for path in recorder.logs if '["call"' in path.read_text()]
    results = [replay_log(path, "kvproof.spec") for path in logs]
    assert [result.wrong for result in results if result.wrong] == []
    assert sum(result.operations for result in results) > 100
    safely = [attempt(functools.partial(replay_log, path, level="safe")) for path in logs]
    assert [outcome.value.wrong for outcome in safely if outcome.value and outcome.value.wrong] == []
    assert all("was given by no call" in str(outcome.error) for outcome in safely if outcome.error)
    assert sum(outcome.error is None for outcome in safely) >= len(safely) / 2


@pytest.mark.parametrize("level", ["exact", "safe"])
def test_r1_true_is_no_number_of_computed_tokens_and_1_is_one_after_it(level: Level, tmp_path: Path) -> None:
    """A replay says of a request what the engine said, though Python holds the two for the same."""
    layers = fast.FullAttentionSpec(page_size=2, num_kv_heads=1, head_size=8, dtype="float32")
    manager = record(fast.CacheManager(8, [fast.CacheGroupSpec(layers)], 16), tmp_path / "engine.log")
    request = fast.Request("a", [1, 2, 3, 4])
    assert manager.allocate_slots(request, 1) is not None
    request.num_computed_tokens = True
    with pytest.raises(TypeError):
        manager.allocate_slots(request, 3)
    request.num_computed_tokens = 1
    assert manager.allocate_slots(request, 3) is not None
    manager.close()
    assert replay_log(tmp_path / "engine.log", level=level).wrong is None


def test_r1_what_is_no_number_is_refused_through_a_record(tmp_path: Path) -> None:
    """None, False and 0.0 are not the 0 by which a call says that there are no hits."""
    layers = fast.FullAttentionSpec(page_size=2, num_kv_heads=1, head_size=8, dtype="float32")
    manager = record(fast.CacheManager(8, [fast.CacheGroupSpec(layers)], 16), tmp_path / "engine.log")
    request = fast.Request("a", [1, 2, 3, 4])
    assert manager.allocate_slots(request, 2) is not None
    request.num_computed_tokens = 2
    for wrong in (None, False, 0.0):
        with pytest.raises(TypeError, match=r"num_new_computed_tokens.*\[R1\]"):
            manager.allocate_slots(request, 1, wrong)
    manager.close()
    assert replay_log(tmp_path / "engine.log", "kvproof.spec").wrong is None


def test_r1_a_log_has_lists_as_they_are_read(tmp_path: Path) -> None:
    """A list may be a view of a list, a range or the values of a dict, and hold iterators."""
    pool = record(fast.PagePool(8, True), tmp_path / "engine.log")
    pages = pool.get_new_pages(4)
    pool.touch({0: pages[:2], 1: pages[1:3]}.values())
    pool.touch(ReadOnlyList([iter(pages[:1]), ReadOnlyList(list(pages))]))
    pool.evict_pages(range(1, 5))
    pool.close()
    assert replay_log(tmp_path / "engine.log", "kvproof.spec").wrong is None
