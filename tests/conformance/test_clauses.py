import json
from pathlib import Path

import pytest

from kvproof.conformance import load_backend
from kvproof.conformance.catalogue import SEEDED_BUGS
from kvproof.conformance.cli import main
from kvproof.conformance.commands.clauses import clause_list, implementations
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.properties import declared_clauses
from kvproof.conformance.oracle.relations import RELATIONS
from kvproof.conformance.report.clause_examples import COMMANDS, EXAMPLES
from kvproof.conformance.trying.script import read_script
from kvproof.conformance.trying.trial import Trial
from kvproof.spec import CLAUSES


def test_every_clause_is_implemented_in_the_specification() -> None:
    written = implementations()
    assert [clause for clause in CLAUSES if not written[clause]] == []


def test_code_is_found_by_its_qualified_name() -> None:
    written = implementations()
    assert "kvproof.spec.pool.page_pool:PagePool.free_pages" in written["POOL-5"]
    assert "kvproof.spec.table.page_table:PageTable.slot_mapping" in written["TAB-7"]


def test_every_clause_is_checked_by_a_property() -> None:
    """Those of what whole engines answer by a relation of the oracle, all others by a machine."""
    checked = declared_clauses(MACHINES.values())
    asked = {relation.clause for relation in RELATIONS.values()}
    assert checked.keys() | asked == set(CLAUSES)
    assert not checked.keys() & asked


def test_every_property_says_what_it_does() -> None:
    properties = {found.name: found for checked in declared_clauses(MACHINES.values()).values() for found in checked}
    assert all(found.sentence.endswith(".") for found in properties.values())


def test_the_command_lists_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "clauses.json"
    assert main(["clauses", "--json", str(file)]) == 0
    listed = {entry["clause"]: entry for entry in json.loads(file.read_text())}
    assert listed.keys() == CLAUSES.keys()
    assert "pool.free_pages" in listed["POOL-5"]["checked"]
    assert main(["clauses"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CLAUSES)
    assert any(CLAUSES["POOL-5"].sentence[:40] in line for line in lines)


def test_the_command_tells_all_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["clauses", "POOL-5"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    for part in (CLAUSES["POOL-5"].sentence, SEEDED_BUGS["double_mention"].says, "# refused", "pool.free_pages"):
        assert " ".join(part.split()) in told
    assert main(["clauses", "PIN", "R1"]) == 0
    assert "PIN-2 (order)" in capsys.readouterr().out
    assert main(["clauses", "pool-5"]) == 2
    assert "did you mean POOL-5?" in capsys.readouterr().err


def test_each_clause_has_an_example() -> None:
    examples = {clause["clause"]: clause["example"] for clause in clause_list()}
    assert all(examples.values())
    assert examples["ENG-3"].count("ask for 2 tokens: ") == 3
    assert not COMMANDS.keys() & EXAMPLES.keys()
    assert COMMANDS.keys() | EXAMPLES.keys() | {relation.clause for relation in RELATIONS.values()} == CLAUSES.keys()


@pytest.mark.parametrize("label", EXAMPLES)
def test_an_example_of_a_clause_is_refused_where_it_says_so(label: str) -> None:
    text = EXAMPLES[label]
    refused = {place for place, line in enumerate(text.splitlines(), 1) if line.endswith("# refused")}
    seen = set()
    for said in Trial(load_backend("kvproof.fast"), "exact").run(read_script(text)):
        assert said.verdict != "deviates", said
        if said.expected.startswith("raised"):
            seen.add(int(said.entry.place.removeprefix("line ")))
            assert said.expected.endswith(f"[{label}]")
    assert seen == refused
