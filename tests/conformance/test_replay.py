"""Replays: what they count, what lockstep catches, and how the command ends."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kvproof import spec
from kvproof.conformance import LogError, replay_log
from kvproof.conformance.cli import main
from kvproof.conformance.replay.engine import DeviationError, num_slots
from kvproof.conformance.replay.traces import synthetic_trace, write_trace

from .replays import Backends, replayed, request

# -- Counting -------------------------------------------------------------------------------------


def test_a_prompt_that_comes_again_is_found() -> None:
    report = replayed([request(1024, 1), request(1024, 1)], num_pages=200, live=1)
    assert (report.requests, report.refused, report.steps) == (2, 0, 2)
    assert (report.input_tokens, report.output_tokens) == (2048, 2)
    assert (report.looked_up_tokens, report.hit_tokens) == (2048, 63 * 16)  # the last token is left to compute
    assert report.hit_rate == 63 * 16 / 2048
    assert (report.published_pages, report.evictions) == (64 + 1, 0)
    assert report.peak_usage == 64 / 199


def test_the_last_generated_token_needs_no_slot() -> None:
    assert num_slots(request(16, 1)) == 16
    assert num_slots(request(16, 0)) == 16
    report = replayed([request(16, 1), request(16, 0, 1), request(16, 17, 2)], num_pages=200, live=1)
    assert (report.served, report.output_tokens, report.steps) == (3, 18, 1 + 1 + 17)
    assert report.published_pages == 1 + 1 + 2


def test_pages_taken_again_are_evictions() -> None:
    trace = [request(64, 1, first_id) for first_id in range(3)]
    assert replayed(trace, num_pages=1 + 12, live=1).evictions == 0
    assert replayed(trace, num_pages=1 + 10, live=1).evictions == 2
    assert replayed(trace, num_pages=1 + 4, live=1).evictions == 8


def test_the_request_admitted_last_gives_way() -> None:
    """Two requests of 2 pages that grow to 3 each, in a pool of 4."""
    report = replayed([request(32, 10, 0), request(32, 10, 1)], num_pages=1 + 4, lockstep=True)
    assert (report.served, report.preemptions, report.peak_usage) == (2, 1, 1.0)
    # one step together, then nine of the first alone; the second goes on with its second token
    assert report.steps == 1 + 9 + 9
    assert report.output_tokens == 20
    # its 33 tokens are looked up again; its second page was freed first, and taken
    assert (report.looked_up_tokens, report.hit_tokens) == (32 + 32 + 33, 16)
    assert report.published_pages == 2 + 2 + 1


def test_a_request_that_never_fits_is_refused() -> None:
    trace = [request(100, 5), request(5000, 5), request(100, 5), request(600, 2000)]
    report = replayed(trace, num_pages=100, lockstep=True)
    assert (report.requests, report.served, report.refused) == (4, 2, 2)
    report = replayed([request(5000, 5)], num_pages=2)
    assert (report.requests, report.served, report.refused, report.output_tokens) == (1, 0, 1, 0)


@pytest.mark.parametrize(("page_size", "num_pages", "live"), [(16, 600, 8), (16, 260, 64), (64, 80, 5), (7, 900, 3)])
def test_a_short_pool_serves_all(page_size: int, num_pages: int, live: int) -> None:
    trace = synthetic_trace(25, seed=page_size)
    report = replayed(trace, num_pages=num_pages, live=live, page_size=page_size, lockstep=True)
    fitting = [one for one in trace if num_slots(one) <= (num_pages - 1) * page_size]
    assert report.served == len(fitting) > 20
    assert report.output_tokens == sum(one.output_length for one in fitting)
    assert report.evictions
    assert report.hit_rate > 0.1


def test_time_is_counted_by_part() -> None:
    report = replayed(synthetic_trace(5), num_pages=2000)
    fields = report.to_json()
    parts = fields["library_nanoseconds"]
    assert set(parts) == {"look_up", "admit", "decode", "free", "tables", "total"}
    assert all(nanoseconds > 0 for nanoseconds in parts.values())
    assert parts["total"] == sum(nanoseconds for part, nanoseconds in parts.items() if part != "total")
    assert 0 < fields["library_share"] < 1
    assert fields["library_microseconds_per_request"]["total"] == pytest.approx(parts["total"] / 5e3)


# -- Backends that deviate ------------------------------------------------------------------------


class ReversedPool(spec.PagePool):
    """Hands out the right pages in the wrong order."""

    def get_new_pages(self, num_pages: int) -> spec.PageList:
        return spec.PageList(reversed(super().get_new_pages(num_pages)))


class HeadFirstPool(spec.PagePool):
    """Takes pages back in the wrong order, which shows only when they are handed out again."""

    def give_back(self, pages: Iterable[int]) -> None:
        super().give_back(reversed(list(pages)))


def with_pool(pool_class: type[spec.PagePool]) -> type[spec.CacheManager]:
    class Manager(spec.CacheManager):
        def __init__(self, *args: Any, hash_seed: bytes) -> None:
            super().__init__(*args, hash_seed=hash_seed)
            self.page_pool.__class__ = pool_class  # the coordinator has it already

    return Manager


class BlindManager(spec.CacheManager):
    """Finds nothing."""

    def get_computed_pages(self, request: spec.EngineRequest) -> tuple[spec.CachePages, int]:
        super().get_computed_pages(request)
        return self.create_empty_page_list(), 0


class MiserlyManager(spec.CacheManager):
    """Says it has no pages at the third decode call."""

    calls = 0

    def allocate_slots(self, request: spec.EngineRequest, num_new_tokens: int, *args: Any) -> spec.CachePages | None:
        self.calls += not args
        return None if self.calls == 3 and not args else super().allocate_slots(request, num_new_tokens, *args)


class FailingManager(spec.CacheManager):
    """Raises at a decode call, with a message of many lines that looks like markup."""

    def allocate_slots(self, request: spec.EngineRequest, num_new_tokens: int, *args: Any) -> spec.CachePages | None:
        if not args:
            raise OSError("[bold]broken[/bold]\nand more")
        return super().allocate_slots(request, num_new_tokens, *args)


class LeakingManager(spec.CacheManager):
    """Keeps what it should free."""

    def free(self, request: spec.EngineRequest, num_written: int | None = None) -> list[str]:
        return []


class MeddlingManager(spec.CacheManager):
    """Writes to the request, which is the engine's."""

    def get_computed_pages(self, request: Any) -> tuple[spec.CachePages, int]:
        found = super().get_computed_pages(request)
        request.num_computed_tokens += 1
        return found


class UnbuildableManager(spec.CacheManager):
    """Refuses to be built."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("no such pool")


class ForgetfulTables(spec.MultiGroupPageTable):
    """Drops a row's last page when the row moves."""

    def move_row(self, src: int, tgt: int) -> None:
        super().move_row(src, tgt)
        rows = [table.page_table_cpu[src, : table.num_pages_per_row[src] - 1].tolist() for table in self.page_tables]
        self.add_row(rows, tgt)


class LazyTables(spec.MultiGroupPageTable):
    """Commits nothing."""

    def commit(self, num_reqs: int) -> None:
        pass


REVERSED = Backends(with_pool(ReversedPool))
HEAD_FIRST = Backends(with_pool(HeadFirstPool))
BLIND = Backends(BlindManager)
MISERLY = Backends(MiserlyManager)
FAILING = Backends(FailingManager)
LEAKING = Backends(LeakingManager)
MEDDLING = Backends(MeddlingManager)
UNBUILDABLE = Backends(UnbuildableManager)
FORGETFUL = Backends(tables=ForgetfulTables)
LAZY = Backends(tables=LazyTables)


DEVIATIONS = {
    "reversed": (REVERSED, 1, "manager.allocate_slots('request 0'", "[[1, 2, 3", "[[111, 110", "MAN-2"),
    "head first": (HEAD_FIRST, None, "manager.free", "free pages", "the first difference at place ", "POOL-3"),
    "blind": (BLIND, None, "manager.get_computed_pages", "[[[1, 2", "[[[]], 0]", "MAN-1"),
    "miserly": (MISERLY, 2, "manager.allocate_slots('request 2', num_new_tokens=1)", "[[", "None", "MAN-2"),
    "failing": (FAILING, 2, "manager.allocate_slots('request 0', num_new_tokens=1)", "[[", "raised OSError", "MAN-2"),
    "leaking": (LEAKING, None, "manager.free", "free pages", "missing [", "POOL-3"),
    "meddling": (MEDDLING, 1, "the request's token counts after get_computed_pages", ", 0)", ", 1)", ""),
    "forgetful": (FORGETFUL, None, "manager.", "pages in a row = ", "pages in a row = ", "TAB-1"),
    "lazy": (LAZY, None, "manager.", "device rows = [[[1, 2, 3", "device rows = [[[0, 0, 0", "TAB-4"),
    "unbuildable": (UNBUILDABLE, 0, "CacheManager, MultiGroup", "both built", "NotImplementedError: no such", ""),
}


@pytest.mark.parametrize(
    ("backend", "step", "call", "expected", "observed", "clause"), DEVIATIONS.values(), ids=DEVIATIONS
)
def test_lockstep_catches(
    backend: object, step: int | None, call: str, expected: str, observed: str, clause: str
) -> None:
    with pytest.raises(DeviationError) as caught:
        replayed(synthetic_trace(20), num_pages=500, backend=backend, lockstep=True)
    verdict = caught.value
    assert verdict.call.startswith(call)
    assert expected in verdict.expected
    assert observed in verdict.observed
    assert "\n" not in verdict.observed
    assert step is None or verdict.step == step
    assert (verdict.request_id or "request 0").startswith("request ")
    assert verdict.clause == clause
    assert any("in allocate_slots" in frame for frame in verdict.raised) == (backend is FAILING)


def test_what_is_recorded_in_lockstep_is_a_test_when_it_is_short(tmp_path: Path) -> None:
    """A trace, the log of its calls up to the first difference, two calls that show it, and a test of them."""
    backend = "kvproof.conformance.catalogue:deferred_free_reversed"
    log, test = tmp_path / "a.log", tmp_path / "test_it.py"
    command = ["--synthetic", 12, "--num-pages", 600, "--backend", backend, "--record", log]
    assert kvproof(*command, "--lockstep", "--eviction", "reuse") == 1
    found = replay_log(log)
    assert found.wrong is not None
    assert main(["shrink", str(log), "--backend", backend, "--emit", str(test)]) == 1
    emitted = test.read_text()
    assert emitted.count("manager.allocate_slots") == 1
    assert emitted.count("manager.free(") == 1
    assert kvproof(*command) == 0  # alone nobody sees it
    assert replay_log(log).wrong is not None


@pytest.mark.parametrize("policy", ["reuse", "adaptive"])
@pytest.mark.parametrize("option", [[], ["--lockstep"]])
def test_a_recorded_replay_evicts_as_the_specification_does(policy: str, option: list[str], tmp_path: Path) -> None:
    """EVICT-1: the log has the tokens and the seed of the keys, by which pages are evicted."""
    log = tmp_path / "a.log"
    command = ["--synthetic", 60, "--num-pages", 500, "--live", 8, "--eviction", policy, "--record", log, *option]
    assert kvproof(*command) == 0
    result = replay_log(log)
    assert result.wrong is None
    assert result.operations > 1000
    assert result.cut is None
    without = tmp_path / "without.log"
    without.write_text(re.sub(r',"hash_seed":"[0-9a-f]*"', "", log.read_text()))
    with pytest.raises(LogError, match=f"operation .* differs, which decides nothing: .* evicts by '{policy}'"):
        replay_log(without)
    assert main(["shrink", str(without)]) == 2


def test_pages_that_never_come_back_are_seen_without_the_specification() -> None:
    with pytest.raises(DeviationError, match=r"usage after the last request: expected 0\.0"):
        replayed(synthetic_trace(5), num_pages=2000, backend=LEAKING)


def test_a_backend_without_a_seed_is_given_none() -> None:
    class Seedless(spec.CacheManager):
        def __init__(self, num_pages: int, groups: list[spec.CacheGroupSpec], max_model_len: int) -> None:
            super().__init__(num_pages, groups, max_model_len)

    report = replayed(synthetic_trace(5), num_pages=2000, backend=Backends(Seedless), lockstep=True)
    assert report.served == 5


# -- The command ----------------------------------------------------------------------------------


def kvproof(*words: object) -> int:
    return main(["replay", *map(str, words)])


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    write_trace(path, synthetic_trace(6))
    return path


def test_a_report_is_printed_and_written(trace_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_path = tmp_path / "report.json"
    assert kvproof(trace_path, "--backend", "kvproof.spec", "--limit", 4, "--json", report_path) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for words in ("kvproof.spec: 200,000 pages of 16", "hit rate", "pages evicted", "in the library", "tables"):
        assert words in printed.out
    report = json.loads(report_path.read_text())
    assert (report["kvproof"], report["version"], report["deviation"]) == ("replay report", 1, None)
    assert (report["requests"], report["page_size"], report["num_pages"]) == (4, 16, 200_000)
    assert kvproof(report_path) == 2
    assert "a replay report, version 1: this version replays traces only" in capsys.readouterr().err


def test_a_synthetic_trace_is_saved_and_replays_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, reports = tmp_path / "saved.jsonl", [tmp_path / "first.json", tmp_path / "second.json"]
    common = ["--backend", "kvproof.spec", "--page-size", 32, "--num-pages", 100, "--lockstep", "--json"]
    assert kvproof("--synthetic", 12, "--seed", 5, "--save", saved, *common, reports[0]) == 0
    assert kvproof(saved, "--seed", 5, *common, reports[1]) == 0  # the keys' seed, by which ghosts find their slots
    assert "in lockstep with the specification" in capsys.readouterr().out
    first, second = (json.loads(path.read_text()) for path in reports)
    timed = {"wall_seconds", "library_nanoseconds", "library_microseconds_per_request", "library_share"}
    assert {name: first[name] for name in first.keys() - timed} == {name: second[name] for name in first.keys() - timed}
    assert first["lockstep"] is True


def test_a_deviation_is_a_verdict(trace_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_path = tmp_path / "report.json"
    assert kvproof(trace_path, "--backend", f"{__name__}:FAILING", "--json", report_path) == 1
    printed = capsys.readouterr().out
    assert f"{__name__}:FAILING deviates in step 2, request 0" in printed
    assert "observed  OSError: [bold]broken[/bold]" in printed
    told = json.loads(report_path.read_text())["deviation"]
    assert "test_replay.py" in told.pop("raised")[-1]
    assert told == {
        "step": 2,
        "request_id": "request 0",
        "call": "allocate_slots(request, 1)",
        "expected": "pages or None",
        "clause": "",
        "observed": "OSError: [bold]broken[/bold]",
    }
    assert kvproof(trace_path, "--backend", f"{__name__}:REVERSED", "--num-pages", 999, "--lockstep") == 1
    assert "deviates in step 1, request 0" in capsys.readouterr().out
    assert kvproof(trace_path, "--backend", f"{__name__}:UNBUILDABLE") == 1
    assert "deviates before the first step" in capsys.readouterr().out


class Tableless:
    CacheManager = spec.CacheManager


BAD_COMMANDS = {
    "no trace": ([], "name a TRACE or ask for one with --synthetic"),
    "two traces": (["t.jsonl", "--synthetic", 5], "name a TRACE or ask for one with --synthetic"),
    "missing file": (["nowhere.jsonl"], "nowhere.jsonl: No such file or directory"),
    "page size": (["--synthetic", "--page-size", 0], "--page-size 0 must be at least 1"),
    "pages": (["--synthetic", "--num-pages", 1], "--num-pages 1 must be at least 2"),
    "too many pages": (["--synthetic", "--num-pages", 2**28], "more slots than an int32 counts"),
    "unit": (["--synthetic", "--match-unit", 0], "--match-unit 0 must be at least 1"),
    "unit of no page": (
        ["--synthetic", "--groups", "full:16,full:6", "--match-unit", 4],
        "--match-unit 4 must divide the tokens in a page of every group: [16, 6]",
    ),
    "live": (["--synthetic", "--live", 0], "--live 0 must be at least 1"),
    "limit": (["--synthetic", "--limit", 0], "--limit 0 must be at least 1"),
    "synthetic": (["--synthetic", 0], "--synthetic 0 must be at least 1"),
    "save": (["t.jsonl", "--save", "u.jsonl"], "--save goes with --synthetic"),
    "of a log": (["--synthetic", "--redact"], "--redact says nothing with a trace"),
    "of serving": (["--synthetic", "--limits", "--eagle"], "--eagle says nothing with --limits"),
    "save nowhere": (["--synthetic", "--save", "no/where.jsonl"], "no/where.jsonl: No such file or directory"),
    "json nowhere": (["--synthetic", "--json", "no/where.json"], "no/where.json: No such file or directory"),
    "no backend": (["--synthetic", "--backend", "kvproof.none"], "kvproof.none"),
    "no attribute": (["--synthetic", "--backend", "kvproof.spec:NOTHING"], "NOTHING"),
    "no tables": (["--synthetic", "--backend", f"{__name__}:Tableless"], "MultiGroupPageTable"),
}


@pytest.mark.parametrize(("words", "reason"), BAD_COMMANDS.values(), ids=BAD_COMMANDS)
def test_what_cannot_run_is_said_in_a_line(
    words: list[object],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert kvproof("--backend", "kvproof.spec", *words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("kvproof replay: ")
    assert printed.err.count("\n") == 1
    assert reason in printed.err
