"""Logs made short: what is left deviates as the whole did, as a log, and as a pytest file that fails by itself."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kvproof.fast
from kvproof.conformance import LogError, catalogue, record, replay_log
from kvproof.conformance.backends.loading import Backend, load_backend
from kvproof.conformance.backends.raising import Interrupted
from kvproof.conformance.cli import main
from kvproof.conformance.log.reading_calls import entries_of
from kvproof.conformance.log.shrinking import shrink
from kvproof.conformance.log.shrinking_calls import shorten
from kvproof.conformance.trying.trial import Trial
from kvproof.spec.declarations import Request

from .small_engine import full
from .test_log import recorded

MOST_CALLS = 12

LEAKY = """
import random, sys
from kvproof import fast
from kvproof.conformance import record

MultiGroupPageTable = fast.MultiGroupPageTable
CachePages = fast.CachePages


class CacheManager(fast.CacheManager):
    def free(self, request):
        if request.request_id == "r30" and len(self.get_page_ids("r30")[0]) > 4:
            self.page_pool.get_new_pages(1)  # which nobody gives back
        return super().free(request)


def serve(path, steps):
    draw = random.Random(0)
    layers = fast.FullAttentionSpec(page_size=4, num_kv_heads=1, head_size=8, dtype="float32")
    manager = record(CacheManager(400, [fast.CacheGroupSpec(layers)], 256), path, states_every=50)
    tables = record(fast.MultiGroupPageTable(16, 256, 512, [4]), manager)
    running, count = [], 0
    with manager:
        for _ in range(steps):
            while len(running) < 16:
                count += 1
                request = fast.Request(f"r{count}", [draw.randrange(50) for _ in range(draw.choice([3, 10, 30]))])
                pages, hit = manager.get_computed_pages(request)
                manager.allocate_slots(request, request.num_tokens - hit, hit, pages)
                request.num_computed_tokens = request.num_tokens
                running.append(request)
            for row, request in enumerate(running):
                tables.add_row(manager.get_page_ids(request.request_id), row)
                request.append(draw.randrange(50))
                tables.append_row(manager.allocate_slots(request, 1).get_page_ids(), row)
                request.num_computed_tokens += 1
            tables.commit(len(running))
            for request in [request for request in running if draw.random() < 0.05]:
                manager.free(request)
                manager.free_page_hashes(request)
                running.remove(request)


if __name__ == "__main__":
    serve("engine.log", int(sys.argv[1]))
"""
"""An engine whose manager leaks a page when one of its requests ends, after some 60 steps of 60 calls each."""

KVPROOF = [sys.executable, "-m", "kvproof.conformance"]

BUGS = ("deferred_free_reversed", "hash_kept_on_eviction", "salt_ignored")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A log of each of the bugs, with its states."""
    folder = tmp_path_factory.mktemp("logs")
    found = {}
    for name in BUGS:
        for seed in range(20):
            path = recorded(folder / f"{name}.log", getattr(catalogue, name), seed, states_every=1)
            if replay_log(path).wrong is not None:
                break
        found[name] = path
    return found


@pytest.mark.parametrize("name", BUGS)
def test_a_log_becomes_short(logs: dict[str, Path], name: str) -> None:
    """R1: and nothing in it is refused that was not refused before."""
    backend = load_backend(f"kvproof.conformance.catalogue:{name}")
    shortened = shorten(logs[name], backend)
    assert shortened.left < shortened.operations
    assert shortened.left <= MOST_CALLS - 1  # the construction is a call, too
    assert shortened.said.clause in catalogue.SEEDED_BUGS[name].clauses | {"MAN-3"}
    again = list(Trial(backend, "exact").run(entries_of(shortened.calls, show_tokens=False)))
    assert not any(said.refused for said in again)


@pytest.mark.parametrize("name", BUGS)
def test_without_a_backend_what_is_left_has_the_recorded_results(
    logs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    before = replay_log(logs[name]).wrong
    assert main(["shrink", str(logs[name]), "-o", str(tmp_path / "small.log"), "--json", str(tmp_path / "s.json")]) == 1
    result = replay_log(tmp_path / "small.log")
    assert before is not None
    assert result.wrong is not None
    assert (result.wrong.clause, result.wrong.expected) == (before.clause, before.expected)
    assert result.wrong.observed == before.observed
    assert result.operations <= before.number
    assert json.loads((tmp_path / "s.json").read_text())["left"] == result.operations


def test_the_file_fails_by_itself_and_passes_on_the_backend_behind_the_bug(
    logs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "deferred_free_reversed"
    emitted, small, right = tmp_path / "test_emitted.py", tmp_path / "small.log", tmp_path / "test_right.py"
    arguments = ["shrink", str(logs[name]), "--backend", f"kvproof.conformance.catalogue:{name}"]
    assert main([*arguments, "--emit", str(emitted), "-o", str(small)]) == 1  # the file was seen to fail
    assert "deviates from MAN-5" in capsys.readouterr().out
    wrong = replay_log(small).wrong
    assert wrong is not None
    assert wrong.clause == "MAN-5"
    source = emitted.read_text()
    right.write_text(source.replace(f"from kvproof.conformance.catalogue import {name}", "from kvproof import fast"))
    with pytest.raises(AssertionError):
        runpy.run_path(str(emitted))["test_man_5"]()
    runpy.run_path(str(right))["test_man_5"]()


@pytest.mark.parametrize("name", list(BUGS)[:1])
@pytest.mark.parametrize("with_backend", [True, False])
def test_what_was_left_out_before_an_interruption_stays_out(
    logs: dict[str, Path], name: str, with_backend: bool
) -> None:
    def interrupt(left: int, _: int) -> None:
        seen.append(left)
        if left < seen[0] or with_backend:
            raise Interrupted

    seen: list[int] = []
    if with_backend:
        shortened = shorten(logs[name], load_backend(f"kvproof.conformance.catalogue:{name}"), progress=interrupt)
        assert shortened.interrupted
        assert shortened.left < shortened.operations
    else:
        shrunk = shrink(logs[name], progress=interrupt)
        assert shrunk.interrupted
        assert len(shrunk.last.played) < shrunk.operations


def test_steps_and_tables_are_made_short_too(tmp_path: Path) -> None:
    """TAB-2: a table that loses what is appended, in a log of batched steps and of pages by hand."""

    class Tables(kvproof.fast.MultiGroupPageTable):
        def append_row(self, page_ids: Any, row_idx: int) -> None:
            if row_idx == 0:
                super().append_row(page_ids, row_idx)

    class Holder:
        CacheManager, MultiGroupPageTable = kvproof.fast.CacheManager, Tables
        CachePages = kvproof.fast.CachePages

    manager = record(Holder.CacheManager(20, [full(2)], 16), tmp_path / "a.log", states_every=1)
    tables = record(Holder.MultiGroupPageTable(3, 16, 16, [2]), manager)
    with manager:
        requests = [Request(name, [1, 2, 3]) for name in "abc"]
        for row, request in enumerate(requests):
            tables.add_row(manager.allocate_slots(request, 3).get_page_ids(), row)
            request.append(4)
        slots = [manager.slot_of(name) for name in "abc"]
        manager.allocate_slots_batch(slots, [3, 3, 3], 1, tables=tables, rows=[0, 1, 2])
        pages = manager.page_pool.get_new_pages(2)
        manager.page_pool.free_pages(pages)
        tables.append_row([[7]], 0)
        tables.append_row([[8]], 1)
    shortened = shorten(tmp_path / "a.log", Backend("holder", Holder))
    assert [call.method for call in shortened.calls] == ["MultiGroupPageTable", "append_row"]
    assert shortened.said.clause == "TAB-2"


class UsedManager(kvproof.fast.CacheManager):
    """Says that a share is in use that is not."""

    usage = 0.25


class ShiftedManager(kvproof.fast.CacheManager):
    """Tells of other pages than a step was given."""

    def allocate_slots_batch(self, *args: Any, **options: Any) -> Any:
        batch = super().allocate_slots_batch(*args, **options)
        batch.page_ids = tuple(pages + 1 for pages in batch.page_ids)
        return batch


class LenientPool(kvproof.fast.PagePool):
    """Refuses no page that is mentioned twice."""

    def free_pages(self, ordered_pages: Any) -> None:
        super().free_pages(dict.fromkeys(ordered_pages))


class Used:
    CacheManager, PagePool = UsedManager, kvproof.fast.PagePool


class Shifted:
    CacheManager, PagePool = ShiftedManager, kvproof.fast.PagePool


class Lenient:
    CacheManager, PagePool = kvproof.fast.CacheManager, LenientPool


@pytest.mark.parametrize(
    ("holder", "last"),
    [
        (Used, "assert manager_usage(manager) == 0.0"),
        (Shifted, "assert (result.granted.tolist(), [result.get_page_ids(place) for place in "),
        (Lenient, "    pool.free_pages([new[0], new[0]])"),
    ],
)
def test_every_sort_of_wrong_answer_becomes_a_test(holder: Any, last: str, tmp_path: Path) -> None:
    manager = record(holder.CacheManager(20, [full(2)], 16), tmp_path / "a.log")
    pool = record(holder.PagePool(8, True), manager)
    with manager:
        request = Request("a", [1, 2])
        manager.allocate_slots(request, 2)
        request.append(3)
        manager.allocate_slots_batch([manager.slot_of("a")], [2], [1])
        manager.free(request)
        _ = manager.usage
        pages = pool.get_new_pages(1)
        with suppress(ValueError):
            pool.free_pages([pages[0], pages[0]])
    name = f"{__name__}:{holder.__name__}"
    assert main(["shrink", str(tmp_path / "a.log"), "--backend", name, "--emit", str(tmp_path / "test_a.py")]) == 1
    assert f"\n    {last}" in (tmp_path / "test_a.py").read_text()


def test_what_can_not_be_made_short_is_said(
    logs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    right = recorded(tmp_path / "right.log")
    with pytest.raises(LogError, match="nothing to shrink"):
        shrink(right)
    path = str(logs["salt_ignored"])
    assert main(["shrink", path, "--emit", str(tmp_path / "test_a.py")]) == 2
    assert main(["shrink", path, "--seconds", "0"]) == 2
    assert main(["shrink", path, "--backend", "kvproof.fast"]) == 2
    assert main(["shrink", str(tmp_path / "none.log")]) == 2
    assert capsys.readouterr().err.count("\n") == 4


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the leaky engine and of its log."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "my_engine.py").write_text(LEAKY)
    subprocess.run([sys.executable, "my_engine.py", "70"], cwd=folder, check=True)
    return folder


def test_a_leak_in_an_engines_log_becomes_short(engine: Path) -> None:
    """MAN-5: of 1,764 operations the leak needs an admission and a free."""
    files = ["--json", "short.json", "-o", "short.log", "--emit", "test_leak.py"]
    command = [*KVPROOF, "shrink", "engine.log", "--backend", "my_engine", *files]
    done = subprocess.run(command, cwd=engine, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    found = json.loads((engine / "short.json").read_text())
    assert found["operations"] > 1_500
    assert found["left"] <= 20
    assert found["tries"] < 1_000
    assert (engine / "short.log").stat().st_size < 20_000
    assert len(done.stdout.splitlines()) < 60


def test_without_a_backend_the_calls_are_told_of_which_one_went_wrong(
    engine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A state is recorded after every 50 calls: the leak is in the calls since the last one that is right."""
    assert main(["shrink", str(engine / "engine.log"), "--seconds", "1", "--json", str(engine / "right.json")]) == 1
    found = json.loads((engine / "right.json").read_text())
    assert 0 < len(found["suspects"]) == found["operations"] - found["right_after"] <= 50
    assert any(call.startswith("manager.free('r30'") for call in found["suspects"])
    said = capsys.readouterr().out
    assert f"the state after operation {found['right_after']:,} is right, one of the calls since then is not:" in said
    assert said.endswith("".join(f"    {call}\n" for call in found["suspects"]))


def test_options_of_traces_are_refused_with_a_log(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--page-size", "8"], ["--limits", "20"], ["--limits"], ["--eviction", "lru"]):
        assert main(["replay", str(engine / "engine.log"), *option]) == 2
        assert f"{' '.join(option)} says nothing with a log" in capsys.readouterr().err


def test_an_interrupted_search_tells_what_it_found(engine: Path) -> None:
    """Without a backend less can go, and it takes longer; ^C ends the search, and nothing is lost."""
    small = engine / "small.log"
    assert main(["replay", str(engine / "engine.log")]) == 1
    command = [*KVPROOF, "shrink", "engine.log", "-o", "small.log", "--seconds", "1000"]
    ours, its = os.openpty()  # to a terminal it says how far it is
    running = subprocess.Popen(command, cwd=engine, stdout=subprocess.PIPE, stderr=its, text=True)
    os.close(its)
    errors = ""
    while not re.search(r"operations left after [1-9]\d", errors):
        errors += os.read(ours, 1000).decode()
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=600)
    errors += os.read(ours, 1000).decode()
    os.close(ours)
    assert running.returncode == 1, errors
    assert "interrupted; this is what was found up to there" in errors
    assert re.match(r"[\d,]+ operations, \d+ of them left after [\d,]+ tries\ndeviates from ", said)
    assert len(said.splitlines()) < 100
    assert replay_log(small).wrong is not None
