"""The suite catches every seeded bug, by the clause that it breaks.

That it finds nothing in the backend behind them is held by CI's main job, a whole check, and by `test_labels`.
"""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

import kvproof.fast
from kvproof.conformance import catalogue
from kvproof.conformance.backends.loading import BackendError, load_backend
from kvproof.conformance.calls.deviation import Deviation
from kvproof.conformance.calls.source import Nth
from kvproof.conformance.catalogue import SEEDED_BUGS, SeededBug
from kvproof.conformance.catalogue.registry import FORESEEN, OWN, seeded, served
from kvproof.conformance.machines import MACHINES, Machine
from kvproof.conformance.machines.attention import Attention, RaggedMachine
from kvproof.conformance.machines.calling import Calls
from kvproof.conformance.machines.draws import Drawing
from kvproof.conformance.machines.properties import step
from kvproof.conformance.search.runner import MachineReport, run_machine
from kvproof.spec import CLAUSES

BUGS = [pytest.param(bug, id=bug.name) for bug in SEEDED_BUGS.values()]

LINES = {
    **dict.fromkeys((2, 3, 4, 5, 10, 11, 15, 17, 19, 20, 21, 25, 27, 28, 31, 34, 38, 39, 41, 42, 51, 54), 1),
    OWN: 10,
    **dict.fromkeys((1, 6, 9, 13, 16, 18, 22, 23, 24, 26, 29, 30, 32, 33, 35, 37, 40, 45, 53, 55), 2),
    **dict.fromkeys((7, 8, 14, 36, 43, 44, 46, 47, 49, 50, 52), 3),
    **dict.fromkeys((12, 48), 4),
    FORESEEN: 98,
}
"""How many variants each line of the list of known faults has, and how many are our own."""

SEEDS = range(8)
"""A run is a sample: what one seed misses the next may find."""

SOONEST = {
    "common_if_held_as_often": 1,
    "common_if_held_often_enough": 1,
    "first_rows_of_all_shards": 1,
    "groups_allocated_one_by_one": 1,
    "groups_are_learned_of_in_turn": 1,
    "lengths_of_64_bits": 1,
    "multimodal_without_offset": 1,
    "page_lost_but_counted": 1,
    "pages_taken_alone_leave_no_ghosts": 1,
    "restored_under_anothers_prefix": 1,
    "retry_fails_after_a_rollback": 1,
    "room_made_list_by_list": 1,
    "shared_pages_are_not_kept": 1,
    "the_end_of_a_prompt_outlives_others": 1,
    "dropped_hash_comes_back": 2,
    "copies_inherit_the_key": 3,
    "freed_slots_go_on": 3,
    "hit_beyond_full_attention": 3,
    "hits_before_the_last_gap_alone": 3,
    "page_ids_are_truncated": 3,
    "rows_not_waited_for": 3,
    "what_waits_for_a_copy_is_swapped_out": 3,
    "hits_count_once": 4,
    "joined_across_extra_keys": 4,
    "null_page_is_cached": 4,
    "what_is_received_is_to_be_scheduled_again": 4,
    "back_in_part_of_a_page": 5,
    "drafts_enter_states": 5,
    "freed_on_the_first_shard": 5,
    "holders_of_the_last_page_only": 5,
    "restore_mends_lists": 5,
    "smaller_count_raises": 5,
    "the_last_slot_is_not_copied": 5,
    "withdrawn_pages_are_cached_anew": 5,
    "freed_before_the_count_is_read": 6,
    "what_was_computed_before_its_copies_is_swapped_out": 6,
    "a_batch_frees_at_its_begin": 8,
    "orphan_keeps_its_content": 8,
}
"""Bugs that take a rare call, with a seed at which it comes early: tried first, which saves time and nothing else."""

MOST_CALLS = 12


def report_on(bug: SeededBug, shrink_seconds: float) -> MachineReport:
    """What the first seed found that shows a bug, by its clause where nothing that users see differs."""
    machine, backend = machine_for(bug), load_backend(f"kvproof.conformance.catalogue:{bug.name}")
    for seed in dict.fromkeys((SOONEST.get(bug.name, 0), *SEEDS)):
        report = run_machine(machine, backend, seed, shrink_seconds=shrink_seconds)
        told = [found for found in report.deviations if not found.inner]
        if told or bug.clauses & {found.clause for found in report.deviations}:
            break
    return report


def machine_for(bug: SeededBug) -> type[Machine]:
    """The machine that must catch a bug, with those of its programs only that can show it: each takes seconds."""
    machine = MACHINES[bug.machine]
    if not bug.setups:
        return machine
    assert issubclass(machine, RaggedMachine)
    known = {name: machine.known[name] for name in bug.setups}
    return type(machine.__name__, (machine,), {"known": known, "bases": ()})


@pytest.mark.parametrize("bug", BUGS)
def test_the_suite_catches(bug: SeededBug) -> None:
    report = report_on(bug, shrink_seconds=0.1)
    assert not report.missing
    assert report.deviations, f"{bug.machine} found nothing in {report.examples} examples, {report.steps} steps"
    assert report.unrepeated == "", "else no counterexample is made shorter"
    # what shrinking comes upon beside what was found first depends on the computer's speed
    assert bug.clauses & {found.clause for found in report.deviations}, [str(found) for found in report.deviations]
    assert not [found.observed for found in report.deviations if is_accident(found)]
    assert bug.machine != "soak" or report.unrepeated == "", "charged to another call when the calls are made again"


def is_accident(found: Deviation) -> bool:
    """Whether a seeded bug deviates as its own code is wrong Python, which would be charged to some clause as well."""
    wrong_python = found.observed.startswith(
        tuple(f"raised {error}" for error in ("Attribute", "Name", "Type", "Unbound"))
    )
    return wrong_python and f"{os.sep}catalogue{os.sep}" in found.raised[-1] and ": raise " not in found.raised[-1]


class Misuse(Attention):
    """Every call with a fault of the attention machine, and no other call."""

    examples, num_steps = 1, 2  # the first builds

    @step(when=lambda _: False)
    def attend(self, data: Drawing) -> None:
        """Left out."""

    @step(when=lambda _: False)
    def attend_fused(self, data: Drawing) -> None:
        """Left out."""

    @step(when=lambda self: self.simplest)
    def misuse(self, _: Drawing) -> Calls:
        """All of them, in their order."""
        row, self.checks_numbers = self.rows()[0], True
        for name, place in row.every_fault(self):
            given = row.spoilt(Nth(place), self, name)[1]
            yield replace(self.call_of(row.name, None, **given), fault=name)


@pytest.mark.parametrize(
    "name", [bug.name for bug in SEEDED_BUGS.values() if bug.machine in ("attention", "limits") and bug.clause != "R1"]
)
def test_r1_a_fault_of_results_refuses_what_is_refused_without_it(name: str) -> None:
    """Else R1 is found first, and whether the suite sees the fault itself is not tested."""
    report = run_machine(Misuse, load_backend(f"kvproof.conformance.catalogue:{name}"), 0, shrink_seconds=0)
    assert not report.deviations, [str(found) for found in report.deviations]
    assert report.steps > 1


@pytest.mark.parametrize("name", ["counted_before_refusal", "zero_parent_is_root", "stale_ids_after_add"])
def test_counterexamples_become_short(name: str) -> None:
    """Given time: how short they become in a second depends on the computer that runs the test."""
    bug = SEEDED_BUGS[name]
    report = report_on(bug, shrink_seconds=60)
    assert len(report.deviations[0].calls) <= MOST_CALLS, "\n".join(report.deviations[0].calls)


def test_each_line_has_its_variants() -> None:
    assert SOONEST.keys() <= SEEDED_BUGS.keys()
    lines = [bug.line for bug in SEEDED_BUGS.values()]
    assert {line: lines.count(line) for line in lines} == LINES


def test_bugs_name_clauses_and_machines_that_there_are() -> None:
    for name, bug in SEEDED_BUGS.items():
        assert name == bug.name
        assert bug.clauses <= CLAUSES.keys()
        assert bug.clause not in bug.also
        assert bug.machine in MACHINES
        assert bug.says.endswith(".")


def test_a_faulty_backend_offers_what_the_fast_one_offers() -> None:
    for name in SEEDED_BUGS:
        assert set(vars(getattr(catalogue, name))) - {"tpu_kernels", "Scheduler"} == set(kvproof.fast.__all__)


def test_the_managers_pool_and_the_groups_tables_are_faulty_too() -> None:
    pools = catalogue.double_mention
    assert type(pools.CacheManager(4, [], 8).page_pool) is pools.PagePool
    tables = catalogue.commit_of_minus_one
    assert {type(table) for table in tables.MultiGroupPageTable(1, 4, 8, [1, 2]).page_tables} == {tables.PageTable}


def test_a_backend_is_built_once() -> None:
    assert catalogue.fixed_root is catalogue.fixed_root


def test_a_bug_has_a_name_of_its_own() -> None:
    """Else one of the two backends is found by neither."""
    for list_of_bugs in (seeded, served):
        with pytest.raises(ValueError, match="two bugs named fixed_root"):
            list_of_bugs(1, "R1", "pool")(SEEDED_BUGS["fixed_root"].build)


def test_there_is_no_backend_for_an_unknown_bug() -> None:
    with pytest.raises(BackendError, match="no_such_bug"):
        load_backend("kvproof.conformance.catalogue:no_such_bug")


def test_importing_the_catalogue_imports_no_backend() -> None:
    code = "import sys, kvproof.conformance.catalogue; print([m for m in sys.modules if m in ('kvproof.fast', 'jax')])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"
