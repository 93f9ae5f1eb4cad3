from collections.abc import Sequence
from types import SimpleNamespace

import pytest

import kvproof.spec
from kvproof.conformance.backends.loading import Backend, load_backend
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.binding import BOUND_OF_LATENTS
from kvproof.conformance.oracle.relations import RELATIONS
from kvproof.conformance.report.coverage import coverage_json, coverage_lines, coverage_of, pair_lines, pairs_of
from kvproof.conformance.report.document import machine_from_json, machine_json
from kvproof.conformance.search.runner import MachineReport, Report, check, run, run_machine
from kvproof.spec import CLAUSES, CacheGroupSpec, CacheManager, CachePages, Request

from .broken import BROKEN, backend

SPEC = Backend("kvproof.spec", kvproof.spec)


@pytest.fixture(scope="module")
def itself() -> dict[str, MachineReport]:
    """What every machine finds when the specification is held against itself; a life of the soak is a long example."""
    others = [machine for machine in MACHINES.values() if machine.name != "soak" and "exact" in machine.levels]
    reports = [*run(SPEC, 2, machines=others, examples=9), run_machine(MACHINES["soak"], SPEC, 2, examples=2)]
    return {found.name: found for found in reports}


@pytest.mark.parametrize("machine", [name for name, machine in MACHINES.items() if "exact" in machine.levels])
def test_the_specification_conforms_to_itself(itself: dict[str, MachineReport], machine: str) -> None:
    found = itself[machine]
    assert not found.deviations
    assert not found.undeclared, "a step compares by a clause that it does not declare"
    assert found.steps >= 5 * found.examples
    assert found.wasted <= 0.15 * found.steps
    assert bool(found.steps) == (machine != "kernels"), "the specification has all but kernels"


def test_every_clause_is_compared(itself: dict[str, MachineReport]) -> None:
    report = Report("kvproof.spec", 2, tuple(CLAUSES), list(itself.values()))
    asked = {relation.clause for relation in RELATIONS.values()}  # of whole engines, by the oracle
    assert [clause for clause in CLAUSES if clause not in asked and report.verdict(clause) != "conforms"] == []


@pytest.mark.parametrize(("machine", "broken", "clause"), BROKEN, ids=[broken.name for _, broken, _ in BROKEN])
def test_a_fault_is_charged_to_its_clause(machine: str, broken: Backend, clause: str) -> None:
    clauses = set()
    for seed in (3, 4, 5, 6):  # a fault may break two clauses: which is seen first depends on what is drawn
        found = run_machine(MACHINES[machine], broken, seed, shrinking=0.0)
        assert not found.undeclared
        clauses = {deviation.clause for deviation in found.deviations}
        if clause in clauses:
            break
    assert clause in clauses


def test_what_a_deviation_shows() -> None:
    broken = load_backend("kvproof.conformance.catalogue:count_below_zero")
    found = run_machine(MACHINES["pool"], broken, seed=3, clauses=["POOL-5"], shrink_seconds=30.0).deviations[0]
    assert "POOL-5" in found.expected
    assert "no refusal" in found.observed
    assert "free_pages" in found.calls[-1]
    assert {"ref_cnt", "free pages", "cached map"} <= found.before.keys()
    assert found.before.items() <= found.after.items(), "a refused call changes nothing"
    # the pool's own check was not called before, and is shown as it fails now
    assert found.after.keys() - found.before.keys() <= {"check()"}
    assert "POOL-5" in found.observed_after["check()"]


def test_a_clause_that_is_not_looked_at_is_not_charged() -> None:
    broken = next(broken for _, broken, _ in BROKEN if broken.name == "FreesBackwards")
    found = run_machine(MACHINES["pool"], broken, seed=3, clauses=["POOL-10"], examples=40)
    assert not found.deviations
    assert set(found.tried) == {"POOL-10"}


def test_the_same_seed_makes_the_same_calls() -> None:
    first, second = (run_machine(MACHINES["queue"], SPEC, seed=7, examples=20) for _ in range(2))
    assert (first.steps, first.tried) == (second.steps, second.tried)
    assert first.tried != run_machine(MACHINES["queue"], SPEC, seed=8, examples=20).tried


def test_what_a_backend_lacks_is_not_offered() -> None:
    class Bare(kvproof.spec.PageTable):
        slot_mapping = property()
        update_slices = property()

    alone = Backend("alone", type("Alone", (), {"PageTable": Bare}))
    report = check(alone, seed=1, machines=[MACHINES["pool"], MACHINES["table"]], examples=20)
    assert report.machines[0].missing == ["PagePool"]
    assert report.machines[1].lacks == ["cdiv", "table.slot_mapping", "table.update_slices"]
    assert report.verdict("POOL-6") == "not offered"
    assert report.verdict("TAB-7") == "not offered"
    assert report.verdict("TAB-2") == "conforms"
    assert not report.deviates


class Plain:
    """A manager that serves what the seeds have: one group, no batches, events, pins or snapshots."""

    def __init__(
        self,
        num_pages: int,
        kv_cache_groups: Sequence[CacheGroupSpec],
        max_model_len: int,
        enable_caching: bool = True,
        *,
        hash_seed: bytes | None = None,
    ) -> None:
        manager = CacheManager(num_pages, kv_cache_groups, max_model_len, enable_caching, hash_seed=hash_seed)
        self._manager = manager
        self.page_pool = manager.page_pool
        self.get_computed_pages = manager.get_computed_pages
        self.allocate_slots = manager.allocate_slots
        self.cache_pages = manager.cache_pages
        self.free_page_hashes = manager.free_page_hashes
        self.reset_prefix_cache = manager.reset_prefix_cache
        self.get_page_ids = manager.get_page_ids
        self.get_num_common_prefix_pages = manager.get_num_common_prefix_pages

    @property
    def usage(self) -> float:
        return self._manager.usage

    def free(self, request: Request) -> None:
        self._manager.free(request)


def test_a_plain_manager_is_not_charged_for_what_it_lacks() -> None:
    plain = Backend("plain", SimpleNamespace(CacheManager=Plain, CachePages=CachePages))
    report = check(plain, seed=1, examples=20)
    ran = {machine.name: machine.lacks for machine in report.machines if not machine.missing}
    lacking = ("get_junction", "get_num_hit_tokens", "req_to_page_hashes", "snapshot")
    assert ran["manager"] == [f"manager.{method}" for method in lacking]
    assert set(ran) == {"manager", "secrets"}
    assert {machine.name: machine.missing for machine in report.machines}["batch"][-1] == "MultiGroupPageTable"
    assert not report.deviates
    assert report.verdict("MAN-3") == "conforms"
    assert {report.verdict(clause) for clause in ("MAN-9", "MAN-11", "MAN-12", "MAN-13", "PIN-1")} == {"not offered"}


def test_after_a_deviation_the_rest_is_undecided() -> None:
    broken = backend("broken", PagePool=next(b for _, b, _ in BROKEN if b.name == "CountsNullInUse").get("PagePool"))
    report = check(broken, seed=1, clauses=["POOL-6", "POOL-10"], machines=[MACHINES["pool"]], examples=20)
    assert report.verdict("POOL-10") == "deviates"
    assert report.verdict("POOL-6") == "undecided"


def test_every_method_that_the_tables_have_is_drawn(itself: dict[str, MachineReport]) -> None:
    """A tenth of a default check calls each; that leaves out rare faults, which a whole one draws."""
    covered = coverage_of(Report("kvproof.spec", 2, tuple(CLAUSES), list(itself.values())), SPEC)
    assert [f"{row.table}.{row.method}" for row in covered if not row.calls and not row.why] == []
    assert {row.table for row in covered if row.calls} >= {"queue", "page", "pool", "table", "tables", "keys"}


def test_what_was_not_drawn_is_told() -> None:
    report = run_machine(MACHINES["queue"], SPEC, seed=0, examples=1)
    covered = coverage_of(Report("kvproof.spec", 0, tuple(CLAUSES), [report]), SPEC)
    undrawn = [name for row in covered for name in row.undrawn]
    assert any(name.startswith("page.") for name in undrawn), "a sequence of fifty calls"
    pool = next(row for row in covered if (row.table, row.method) == ("pool", "touch"))
    assert (pool.calls, pool.why) == (0, "no machine that ran draws it from this table")
    lines = list(coverage_lines(covered))
    assert len(lines) == len(covered) + 2
    assert lines[-1].startswith("never drawn: ")
    assert coverage_json(covered)["undrawn"] == undrawn
    assert machine_from_json(machine_json(report)).drawn == report.drawn


def test_pairs_are_told_of_the_machines_that_draw_them() -> None:
    report = run_machine(MACHINES["latents"], SPEC, seed=0, examples=1)
    pairs = pairs_of(Report("kvproof.spec", 0, tuple(CLAUSES), [report]))
    assert pairs.keys() == set(BOUND_OF_LATENTS)
    never = [name for name, count in pairs.items() if not count]
    assert list(pair_lines(pairs))[-1] == f"never together: {', '.join(never) or 'no pair'}"
    assert len(list(pair_lines(pairs))) == len(pairs) + 2
    assert list(pair_lines({})) == []
