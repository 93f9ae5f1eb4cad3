import json
from pathlib import Path

import pytest

from kvproof.conformance.cli import main
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.properties import declared_clauses
from kvproof.conformance.oracle.relations import RELATIONS
from kvproof.conformance.report.clause_index import implementations
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
    assert CLAUSES["POOL-5"].sentence[:40] in capsys.readouterr().out
