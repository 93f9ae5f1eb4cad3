"""The suite's strength as the command tells it, and counterexamples that become short."""

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from kvproof import fast
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.backends.raising import Interrupted, interruptible
from kvproof.conformance.calls.deviation import is_call
from kvproof.conformance.catalogue import SEEDED_BUGS, SERVED_BUGS, strength
from kvproof.conformance.catalogue.patching import with_pool
from kvproof.conformance.catalogue.strength import Finding, Strength
from kvproof.conformance.cli import main
from kvproof.conformance.commands import strength as strength_command
from kvproof.conformance.machines.draws import Drawing, UnrepeatableError


def test_bugs_are_caught_and_told_in_few_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "strength.json"
    bugs = "zero_parent_is_root,salt_ignored,salts_left_out"
    status = main(["strength", "--bugs", bugs, "--jobs", "1", "--json", str(file)])
    assert status == 0
    found = json.loads(file.read_text())
    assert (found["kvproof"], found["version"], found["caught"], found["of"]) == ("strength", 1, 2, 2)
    for bug in found["bugs"]:
        assert bug["clause"] in SEEDED_BUGS[bug["bug"]].clauses
        assert bug["calls"] == sum(map(is_call, bug["sequence"])) <= 5
    (of_engine,) = found["engines"]["bugs"]
    assert (found["engines"]["caught"], of_engine["relation"]) == (1, "keys")
    assert of_engine["clause"] in SERVED_BUGS["salts_left_out"].clauses
    assert 1 < of_engine["requests"] <= 3
    printed = capsys.readouterr().out
    assert "2 of 2 caught" in printed
    assert "1 of 1 faults of whole engines caught" in printed


def test_what_was_found_before_an_interruption_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(names: Sequence[str], *_: int) -> Iterator[Finding]:
        yield Finding(names[0], 1, "R1", "pool", 3, (), 1, 0.5, 2.0)
        raise Interrupted

    monkeypatch.setattr(strength_command, "find_bugs", cut)
    file = tmp_path / "strength.json"
    assert main(["strength", "--bugs", "salt_ignored,zero_parent_is_root", "--json", str(file)]) == 2
    found = json.loads(file.read_text())
    assert (found["caught"], found["of"], found["interrupted"]) == (1, 1, True)
    told = capsys.readouterr()
    assert "1 of 1 caught" in told.out
    assert told.err.endswith("kvproof strength: interrupted; 1 of 2 seeded bugs are told\n")


def test_who_interrupts_while_processes_are_started_does_not_wait_for_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    """^C that comes meanwhile is heard right after: a bug takes a quarter of a minute and more."""

    class Pressed(ProcessPoolExecutor):
        count = 0

        def submit(self, *given: Any, **named: Any) -> Any:
            submitted = super().submit(*given, **named)
            self.count += 1
            if self.count == 20:
                os.kill(os.getpid(), signal.SIGINT)
            return submitted

    monkeypatch.setattr(strength, "ProcessPoolExecutor", Pressed)
    began = time.monotonic()
    with interruptible(signal.SIGINT), pytest.raises(Interrupted):
        list(strength.find_bugs(["page_ids_of_16_bits", "heads_past_16_are_left_out"] * 20, 0, 2))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "options",
    [["--bugs", "no_such_bug"], ["--bugs", ","], ["--jobs", "0"], ["--seed", "-1"], ["--json", "/no/such/folder/file"]],
)
def test_bad_input_is_one_line(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strength", *options]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("kvproof strength: ")
    assert told.err.count("\n") == 1


def test_sums_are_over_what_was_caught() -> None:
    caught = [Finding(name, 1, "R1", "pool", calls, (), 1, 0.5, 2.0) for name, calls in (("a", 2), ("b", 5))]
    missed = Finding("c", 2, "", "", 0, (), 9, 3.0, 3.0)
    found = Strength((*caught, missed))
    assert (found.caught, found.median_calls, found.longest_calls, found.seconds) == (2, 3.5, 5, 7.0)
    assert Strength((missed,)).median_calls == 0


def test_a_draw_that_is_taken_again_stays_within_what_can_be_drawn() -> None:
    again = Drawing(None, [9, 0, "no number"])
    assert (again.draw(st.integers(1, 3)), again.draw(st.integers(1, 3))) == (3, 1)
    with pytest.raises(UnrepeatableError):
        again.draw(st.integers(1, 3))
    assert again.drawn == [3, 1]


def test_a_bug_that_goes_round_for_ever_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some do where what they broke is made short (room_made_list_by_list at seed 0)."""

    def free_pages(self: Any, ordered_pages: Any) -> None:
        while True:
            self.usage = ordered_pages

    monkeypatch.setattr(strength, "load_backend", lambda _: Backend("endless", with_pool(fast, free_pages=free_pages)))
    monkeypatch.setattr(strength, "_SECONDS", 0.3)
    found = strength.find_bug("double_mention", 0)
    assert (found.caught, found.clause) == (True, "POOL-5")
