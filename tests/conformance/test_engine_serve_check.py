"""``kvproof serve-check``: random schedules against dense attention, how faults are told, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.conformance.calls.deviation import Deviation
from kvproof.conformance.cli import main
from kvproof.conformance.commands import serve_check
from kvproof.conformance.engine.judging import output_fault
from kvproof.conformance.engine.sampler import GREEDY
from kvproof.conformance.engine.schedules import Add, draw_schedule
from kvproof.conformance.engine.serving import Output
from kvproof.conformance.report.redacting import redacted
from kvproof.conformance.report.redaction import Redaction
from kvproof.conformance.report.verdicts import MachineReport, Report

BUG = "kvproof.conformance.catalogue:scheduled_gives_way"


def test_the_fast_backend_conforms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """ENG-1, ENG-2, SWAP-1."""
    file = tmp_path / "report.json"
    options = ["--seed", "1", "--schedules", "2", "--model", "full", "--host-pages", "20", "--json", str(file)]
    assert main(["serve-check", *options]) == 0
    said = capsys.readouterr().out
    assert "ENG-1, ENG-2: conforms" in said
    report = json.loads(file.read_text())
    assert (report["schedules"], report["seed"], report["fault"]) == (2, 1, None)
    assert min(report[name] for name in ("requests", "steps", "rows", "tokens", "preemptions", "hits")) > 0
    assert report["preemptions"] == report["swaps_out"] >= report["swaps_in"] > 0
    assert f"{report['swaps_out']} of them to host memory, {report['swaps_in']} back" in " ".join(said.split())
    assert 0 < report["worst_error"] < 1e-4


def test_it_conforms_on_a_mesh_and_in_the_other_layout() -> None:
    """ENG-1, CACHE-5, POOL-12."""
    more = ["--mesh", "2x2", "--layout", "v2", "--model", "window:6+cap+sinks"]
    assert main(["serve-check", "--seed", "2", "--schedules", "1", *more]) == 0


def test_a_fault_is_told_as_a_short_schedule(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENG-2."""
    monkeypatch.setattr(serve_check, "_TRIES", 20)
    assert main(["serve-check", "--backend", BUG, "--seed", "1", "--schedules", "30", "--model", "full"]) == 1
    said = capsys.readouterr().out
    assert "ENG-2: expected a step in which somebody goes on, and nobody scheduled gives way, observed" in said
    assert said.count("engine.add_request(") <= 3
    again = said.split("again: ")[1].split()
    assert main(["serve-check", "--backend", BUG, "--model", "full", *again]) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model", "full,odd"], "--model full,odd: kind='odd' must be one of"),
        (["--model", "window"], "extent=0 of kind window must be at least 1"),
        (["--model", "full+hat"], "+hat is unknown"),
        (["--schedules", "0"], "--schedules 0 must be at least 1"),
        (["--host-pages", "-1"], "--host-pages -1 must be at least 0"),
        (["--host-pages", "4", "--mesh", "2x1"], "num_host_pages=4 must be 0 with 2 data shards"),
        (["--mesh", "2"], "--mesh 2 must be like 2x4"),
        (["--mesh", "4x9"], "--mesh 4x9 needs 36 devices"),
        (["--mesh", "1x8"], "CACHE-5"),
        (["--platform", "interpret", "--model", "mla"], "platform='interpret' takes one device"),
        (["--checkpoint", "/no/such/folder"], "--checkpoint /no/such/folder"),
        (["--json", "/no/such/folder/report.json"], "/no/such/folder/report.json"),
        (["--backend", "no_such_backend"], "no_such_backend"),
        (["--relations", "warm"], "--relations warm says nothing without --engine or --url"),
        (["--first"], "--first says nothing without --engine or --url"),
        (["--checkpoint", "x", "--model", "full"], "--model full says nothing with --checkpoint"),
    ],
)
def test_what_makes_no_sense_is_refused(options: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve-check", *options]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1


@given(st.integers(0, 2**32), st.integers(2, 40))
def test_a_schedule_is_drawn_from_its_seed_and_can_be_served(seed: int, most: int) -> None:
    schedule = draw_schedule(seed, 5, most, [9, 11], [0, 7])
    assert schedule == draw_schedule(seed, 5, most, [9, 11], [0, 7])
    assert schedule.num_host_pages in (0, 7)
    added = [action for action in schedule.actions if isinstance(action, Add)]
    assert len({action.name for action in added}) == len(added) >= 3
    for action in added:
        assert action.prompt
        assert all(0 <= token < 5 for token in action.prompt)
        assert len(action.prompt) + action.max_tokens <= most
        assert str(action).startswith(f"engine.add_request({action.name!r}, [")


def output(logits: Any, token: int | None) -> Output:
    return Output("a", token, False, 1, np.array(logits, np.float32))


def test_errors_beyond_the_tolerance_are_faults_and_so_are_tokens_that_cannot_be() -> None:
    """ENG-1."""
    right = np.array([[0.0, 0.0], [3.0, 1.0], [1.0, 1.005]])

    def tolerance() -> Any:
        return np.array([0.1, 0.1, 0.1])

    assert output_fault(output([[3.05, 1.0], [1.0, 1.0]], 0), GREEDY, right, tolerance) is None
    assert output_fault(output([[3.05, 1.0]], None), GREEDY, right, tolerance) is None
    for logits, token, says in (
        ([[3.2, 1.0]], None, "position 1 within 0.1"),
        ([[3.0, 1.0], [np.nan, 1.0]], None, "position 2"),
        ([[3.0, 1.0]], 1, "token 0 of 'a' at position 2"),
    ):
        fault = output_fault(output(logits, token), GREEDY, right, tolerance)
        assert fault is not None
        assert (fault.clause, says in fault.expected) == ("ENG-1", True)


def test_tokens_of_a_schedule_are_redacted() -> None:
    """SEC-2."""
    calls = ("engine.add_request('a', [7, 8], max_tokens=7, extra_keys=(CacheSalt(...),))  # None", "engine.step()")
    found = Deviation("ENG-1", "sampled token 7 of 'a' at position 2", "sampled token 8", calls, {}, {})
    key = Redaction(b"key")
    seven, eight = key.token(7), key.token(8)
    report = Report("b", 0, ("ENG-1",), [MachineReport("engine", frozenset({"ENG-1"}), deviations=[found])])
    told = redacted(report, key).machines[0].deviations[0]
    assert told.calls[0] == calls[0].replace("[7, 8]", f"[{seven}, {eight}]")
    assert told.expected == f"sampled token {seven} of 'a' at position 2"
    assert told.observed == f"sampled token {eight}"
