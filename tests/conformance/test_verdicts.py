"""Verdicts, and how they are told: printed, as JSON, as JUnit's XML, against expected deviations, redacted."""

import io
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvproof.conformance.calls.deviation import Deviation, is_call
from kvproof.conformance.console.terminal import visible
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.report.document import as_json, machine_from_json, machine_json
from kvproof.conformance.report.junit import junit_xml
from kvproof.conformance.report.redacting import redacted
from kvproof.conformance.report.redaction import Redaction
from kvproof.conformance.report.text import print_report, verdict_lines
from kvproof.conformance.report.verdicts import MachineReport, Report
from kvproof.conformance.report.xfails import Xfails, XfailsError, read_xfails
from kvproof.conformance.search.runner import run_machine
from kvproof.spec import CLAUSES, CacheManager

from .broken import backend

HOSTILE = "\x1b[2J\x9b1m\u202e</failure>&\x00"

DEVIATION = Deviation(
    "POOL-3",
    "free pages = [1, 2]",
    f"free pages = [2, 1] {HOSTILE}",
    ("a = Request('a', [7, 8, 7])", "pool = PagePool(3, True)", "a grows by [8]", "pool.free_pages([1, 2])  # None"),
    {"free pages": "[]", "usage": "1.0", "keys": "{1: (b'\\x01', (7, 8), None)}"},
    {"free pages": "[1, 2]", "usage": "0.0", "keys": "{1: (b'\\x01', (7, 8), None)}"},
    observed_after={"free pages": "[2, 1]", "usage": "0.0", "keys": "{1: (b'\\x01', (7, 8), None)}"},
)


def machine(name: str, tried: dict[str, int], *deviations: Deviation, **more: object) -> MachineReport:
    found = MachineReport(name, frozenset(tried), tried=Counter(tried), deviations=list(deviations), steps=9)
    return MachineReport(**{**vars(found), **more})


def report(*machines: MachineReport) -> Report:
    labels = ("POOL-3", "POOL-4", "POOL-5", "POOL-6", "POOL-10")
    return Report("a backend", 3, labels, list(machines), without=("keys",))


FOUND = report(
    machine("pool", {"POOL-3": 9, "POOL-4": 19, "POOL-5": 20, "POOL-10": 0}, DEVIATION),
    machine("table", {"POOL-6": 0}, missing=["PageTable"]),
)


def printed(found: Report, xfails: Xfails | None = None) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_report(found, console, xfails or Xfails())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# -- Verdicts ---------------------------------------------------------------------------------------


def test_every_verdict() -> None:
    verdicts = {clause: FOUND.verdict(clause) for clause in FOUND.clauses}
    assert verdicts == {
        "POOL-3": "deviates",
        "POOL-4": "undecided",  # hardly compared, beside a deviation
        "POOL-5": "conforms",
        "POOL-6": "not offered",
        "POOL-10": "undecided",
    }


def test_what_ended_early_decides_less() -> None:
    early = machine("pool", {"POOL-3": 9, "POOL-5": 199, "POOL-6": 200}, DEVIATION, ended=False)
    assert [early.decides(clause) for clause in ("POOL-5", "POOL-6")] == [False, True]
    assert not machine("pool", {"POOL-5": 5}, ended=False).decides("POOL-5"), "a call did not return"
    assert machine("pool", {"POOL-5": 5}).decides("POOL-5")


def test_what_is_lacking_is_not_undecided() -> None:
    going_on = machine("pool", {"POOL-3": 9, "POOL-6": 0}, DEVIATION, lacks=["queue"])
    assert report(going_on).verdict("POOL-6") == "not offered"
    early = machine("pool", {"POOL-3": 9, "POOL-6": 0}, DEVIATION, lacks=["queue"], ended=False)
    assert report(early).verdict("POOL-6") == "undecided"
    at_once = machine("pool", {"POOL-3": 9, "POOL-6": 0}, DEVIATION, lacks=["queue"], examples=9, steps=9)
    assert report(at_once).verdict("POOL-6") == "undecided", "each sequence ended with its first step"


def test_calls_are_those_on_the_backend() -> None:
    assert DEVIATION.num_calls == 2
    assert [is_call(line) for line in ("# a note", "a.status = RUNNING", "manager.free(a)")] == [False, False, True]
    assert DEVIATION.size[:2] == (2, 4)


# -- As printed -------------------------------------------------------------------------------------


def test_a_deviation_shows_both_states() -> None:
    text = "\n".join(verdict_lines(DEVIATION))
    assert CLAUSES["POOL-3"].sentence in text
    assert "calls, 2 on the backend" in text
    state = text.partition("state, as far as it changes or differs")[2]
    assert re.findall(r"(before|after).*?  +(\S.*)", state) == [
        *(("before", "[]"), ("after", "[1, 2]"), ("after", "[2, 1]")),
        *(("before", "1.0"), ("after", "0.0")),
    ]
    assert "by both" in state
    assert "keys" not in state, "what stays as it was is left out"


def test_nothing_commands_a_terminal() -> None:
    """SEC-4."""
    text = printed(FOUND)
    assert "\\x1b[2J" in text
    assert all(character.isprintable() or character == "\n" for character in text)


@given(st.text())
def test_what_is_visible(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()


def test_a_report_counts_its_verdicts() -> None:
    assert "5 clauses: 1 conforms, 1 deviates, 2 undecided, 1 not offered" in printed(FOUND)


# -- As JSON and XML --------------------------------------------------------------------------------


def test_json_describes_itself() -> None:
    document = json.loads(json.dumps(as_json(FOUND, Xfails())))
    assert (document["kvproof"], document["version"]) == ("report", 1)
    assert {"kvproof_version", "python", "numpy", "jax", "platform", "date", "level", "seed", "profile"} <= set(
        document
    )
    assert (document["without"], document["deviates"], document["unexpected"]) == (["keys"], True, True)
    found = document["machines"][0]["deviations"][0]
    assert (found["num_calls"], found["observed_after"]) == (2, DEVIATION.observed_after)


def test_a_machine_is_read_back() -> None:
    """SEC-3: what is read back is what was written, or is refused."""
    document = json.loads(json.dumps(machine_json(FOUND.machines[0])))
    again = machine_from_json(document)
    assert machine_json(again) == document
    assert vars(again.deviations[0]) == vars(DEVIATION)
    for name, wrong in (("steps", "9"), ("tried", {"NO-1": 1}), ("ended", 1), ("missing", [1]), ("deviations", [{}])):
        with pytest.raises(ValueError, match=r"\w"):
            machine_from_json({**document, name: wrong})


def test_junit_has_a_case_for_each_clause() -> None:
    suite = ElementTree.fromstring(junit_xml(FOUND, Xfails()))
    assert (suite.get("name"), suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (
        *("kvproof.exact", "5", "1", "3"),
    )
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    failure = cases["POOL-3"].find("failure")
    assert failure is not None
    assert failure.text is not None
    assert "pool.free_pages([1, 2])" in failure.text
    reasons = {name: case[0].get("message", "") for name, case in cases.items() if len(case) and name != "POOL-3"}
    assert reasons["POOL-6"] == "not offered: PageTable"
    assert reasons["POOL-4"] == "undecided: compared in 19 steps"
    assert len(cases["POOL-5"]) == 0


# -- Expected deviations ----------------------------------------------------------------------------


def xfails(tmp_path: Path, text: str) -> Xfails:
    file = tmp_path / "known.txt"
    file.write_text(text)
    return read_xfails(file, CLAUSES, ["pool", "table"])


def test_expected_deviations(tmp_path: Path) -> None:
    expected = xfails(
        tmp_path, "# ours\n\npool:POOL-3  # counts the null page\nPOOL-5 # out of date\nPOOL-6\nPOOL-10\n"
    )
    assert not expected.unexpected(FOUND)
    assert expected.stale(FOUND) == [
        f"{tmp_path / 'known.txt'}:4: POOL-5 is expected to deviate and does not: the line is out of date"
    ], "what is not offered, or undecided, was not looked at"
    text = printed(FOUND, expected)
    assert "1 expected to deviate" in text
    assert "broken as expected (counts the null page)" in text
    skipped = ElementTree.fromstring(junit_xml(FOUND, expected)).find("testcase[@name='POOL-3']/skipped")
    assert skipped is not None
    assert skipped.get("message") == "expected to deviate: counts the null page"
    document = as_json(FOUND, expected)
    assert (document["deviates"], document["unexpected"], len(document["stale_xfails"])) == (True, False, 1)


def test_another_machines_deviation_is_not_expected(tmp_path: Path) -> None:
    expected = xfails(tmp_path, "table:POOL-3\n")
    assert expected.unexpected(FOUND)
    assert expected.stale(FOUND) == [], "the machine did not run"


@pytest.mark.parametrize(
    ("text", "said"), [("POOL-99\n", ":1: no clause 'POOL-99'"), ("\npools:POOL-3", ":2: no machine 'pools'")]
)
def test_a_line_that_makes_no_sense(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(XfailsError, match=re.escape(said)):
        xfails(tmp_path, text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(XfailsError, match="No such file"):
        read_xfails(tmp_path / "none", CLAUSES, [])
    (tmp_path / "bits").write_bytes(b"\xff")
    with pytest.raises(XfailsError, match="no UTF-8"):
        read_xfails(tmp_path / "bits", CLAUSES, [])


# -- Redacted ---------------------------------------------------------------------------------------


def test_tokens_are_redacted_and_stay_equal() -> None:
    """SEC-2."""
    key = Redaction(b"key")
    found = redacted(FOUND, key).machines[0].deviations[0]
    seven, eight = key.token(7), key.token(8)
    assert found.calls[0] == f"a = Request('a', [{seven}, {eight}, {seven}])"
    assert found.calls[2] == f"a grows by [{eight}]"
    assert found.calls[3] == DEVIATION.calls[3], "page ids are no tokens"
    assert f"({seven}, {eight})" in found.before["keys"]
    assert "x01" not in found.before["keys"], "who guesses tokens could compare digests"
    assert found.before["free pages"] == "[]"


def test_a_token_that_a_request_changes_is_redacted() -> None:
    """SEC-2: machine secrets does that to one that is swapped out."""
    call = "request.all_token_ids[0] = 1987654321"
    found = replace(
        FOUND, machines=[replace(FOUND.machines[0], deviations=[Deviation("MAN-6", "", "", (call,), {}, {})])]
    )
    key = Redaction(b"key")
    (line,) = redacted(found, key).machines[0].deviations[0].calls
    assert line == f"request.all_token_ids[0] = {key.token(1_987_654_321)}"


class Losing(CacheManager):
    """Says that it looked up less than it found."""

    def get_computed_pages(self, request: Any) -> Any:
        pages, hit = super().get_computed_pages(request)
        return pages, max(hit - 1, 0)


def test_no_token_of_a_machine_is_left() -> None:
    """SEC-2, with tokens that nothing else is taken for."""
    found = run_machine(MACHINES["secrets"], backend("losing", CacheManager=Losing), 3, shrink_seconds=0.2)
    shown = json.dumps(machine_json(found))
    assert found.deviations
    assert any(str(token) in shown for token in (1_234_567_891, 1_987_654_321))
    again = json.dumps(machine_json(redacted(report(found), Redaction()).machines[0]))
    assert not any(str(token) in again for token in (1_234_567_891, 1_987_654_321))
    assert again.count("Request(") == shown.count("Request(")
