"""The classes of clauses, and level sound: what a caller who makes no mistakes can notice."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kvproof import fast
from kvproof.conformance.backends.loading import Backend, load_backend
from kvproof.conformance.catalogue.patching import with_manager, with_pool
from kvproof.conformance.cli import main
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.base import SPEC
from kvproof.conformance.machines.draws import UnrepeatableError
from kvproof.conformance.machines.session import Session
from kvproof.conformance.search.runner import machines_for, run_machine
from kvproof.spec.clauses import CLASSES, CLAUSES, SOUND

SOUND_CLAUSES = [label for label, clause in CLAUSES.items() if clause.kind in SOUND]


def test_every_clause_has_a_class() -> None:
    kinds = {label: clause.kind for label, clause in CLAUSES.items()}
    assert set(kinds.values()) == CLASSES.keys()
    assert (kinds["R1"], kinds["R2"], kinds["POOL-3"], kinds["ATT-1"]) == ("refusals", "content", "order", "content")
    assert list(CLASSES)[:3] == list(SOUND)


def lenient() -> Backend:
    """A pool that hands out pages in reverse and takes a page that is freed twice: sound for who does not do so."""

    def get_new_pages(self, num_pages):  # type: ignore[no-untyped-def]
        return list(fast.PagePool.get_new_pages(self, num_pages))

    def free_pages(self, ordered_pages):  # type: ignore[no-untyped-def]
        given = list(ordered_pages)
        try:
            fast.PagePool.free_pages(self, given[::-1])
        except ValueError:
            return

    return Backend("lenient", with_pool(fast, get_new_pages=get_new_pages, free_pages=free_pages))


def test_bad_input_is_not_given_at_level_sound() -> None:
    machine = MACHINES["safe-pool"]
    strict = run_machine(machine, lenient(), 1, shrink_seconds=0, level="safe", examples=10)
    assert {found.clause for found in strict.deviations} & {"R1", "POOL-5"}
    sound = run_machine(machine, lenient(), 1, clauses=SOUND_CLAUSES, shrink_seconds=0, level="sound", examples=10)
    assert sound.deviations == []
    assert sound.steps > 100


def fails(*_: object, **__: object) -> None:
    """A method that never answers."""
    raise RuntimeError("no device")


@pytest.mark.parametrize(
    ("machine", "method", "clause"),
    [
        ("safe-pool", "__init__", "POOL-2"),
        ("safe-pool", "get_new_pages", "POOL-2"),
        ("safe-manager", "__init__", "MAN-2"),
        ("safe-manager", "free", "MAN-2"),
    ],
)
def test_what_raises_is_told_at_level_sound(machine: str, method: str, clause: str) -> None:
    """POOL-3, POOL-4 and MAN-5 are not looked at there; who calls notices all the same."""
    made = (with_pool if machine == "safe-pool" else with_manager)(fast, **{method: fails})
    backend = Backend("raising", made)
    report = run_machine(
        MACHINES[machine], backend, 1, clauses=SOUND_CLAUSES, shrink_seconds=0, level="sound", examples=10
    )
    assert [found.clause for found in report.deviations][:1] == [clause]
    assert "no device" in report.deviations[0].observed


def test_requests_known_by_their_ids_alone_are_no_fault_at_level_sound() -> None:
    """No engine hands over another object with the id of a live request; at level safe it is MAN-5."""
    by_id: dict[str, Any] = {}

    def allocate_slots(self: Any, request: Any, *arguments: Any, **options: Any) -> Any:
        by_id[request.request_id] = request
        return fast.CacheManager.allocate_slots(self, request, *arguments, **options)

    def free(self: Any, request: Any, num_written: int | None = None) -> Any:
        return fast.CacheManager.free(self, by_id.get(getattr(request, "request_id", ""), request), num_written)

    backend = Backend("by id", with_manager(fast, allocate_slots=allocate_slots, free=free))
    machine = MACHINES["safe-manager"]
    sound = run_machine(machine, backend, 1, clauses=SOUND_CLAUSES, shrink_seconds=0, level="sound", examples=60)
    safe = run_machine(machine, backend, 1, shrink_seconds=0, level="safe", examples=60)
    assert not sound.deviations
    assert {found.clause for found in safe.deviations} == {"MAN-5"}


def test_a_pool_that_gives_too_few_pages_is_told_at_level_sound() -> None:
    def get_new_pages(self, num_pages):  # type: ignore[no-untyped-def]
        return fast.PagePool.get_new_pages(self, min(num_pages, 1))

    backend = Backend("few", with_pool(fast, get_new_pages=get_new_pages))
    report = run_machine(
        MACHINES["safe-pool"], backend, 1, clauses=SOUND_CLAUSES, shrink_seconds=0, level="sound", examples=40
    )
    assert [found.clause for found in report.deviations] == ["POOL-2"]
    assert "different pages" in report.deviations[0].expected


_NOTING = """

SIZES = []
_Pool = PagePool


class PagePool(_Pool):
    def __init__(self, num_pages, *more):
        SIZES.append(num_pages)
        super().__init__(num_pages, *more)
"""


def test_no_counterexample_of_level_sound_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that refuses nothing and touches wrongly is shown by calls that the specification takes, when shortened.

    What the specification would be charged with there is a clause that is not looked at (POOL-3), or known already.
    """
    monkeypatch.chdir(tmp_path)
    assert main(["new-adapter", "lenient_adapter.py"]) == 0
    file = Path("lenient_adapter.py")
    right = "if page.ref_cnt == 0:\n                self.free.remove"
    made = file.read_text()
    assert right in made
    file.write_text(made.replace(right, right.replace("== 0", "== 0 and page.page_hash is None")) + _NOTING)
    machine, backend = MACHINES["safe-pool"], load_backend("lenient_adapter")
    search: dict[str, Any] = {"examples": 20, "shrinking": 1.0, "seconds": 600.0}
    runs = [run_machine(machine, backend, seed, clauses=SOUND_CLAUSES, level="sound", **search) for seed in (1, 2)]
    assert all(run.deviations for run in runs)
    assert min(backend.get("SIZES")) > 1, "the backend was asked for it, too"
    for deviation in [found for run in runs for found in run.deviations]:
        session = Session(SPEC, CLAUSES, level="sound", repeats=True)
        itself = type("Itself", (machine,), {"session": session})()
        with suppress(UnrepeatableError):  # what the pool answered otherwise may be needed by a later step
            for step in deviation.trace:
                itself.repeat_step(step)


@pytest.mark.parametrize("machine", ["safe-manager", "secrets"])
def test_no_refusal_is_asked_for_at_level_sound(machine: str) -> None:
    """A manager that takes more tokens than a request may have is sound for who doesn't ask for them."""

    def allocate_slots(self, request, num_new_tokens, *more, **options):  # type: ignore[no-untyped-def]
        most = self.max_model_len - request.num_computed_tokens
        return fast.CacheManager.allocate_slots(self, request, min(num_new_tokens, most), *more, **options)

    generous = Backend("generous", with_manager(fast, allocate_slots=allocate_slots))
    run = run_machine(
        MACHINES[machine], generous, 1, clauses=SOUND_CLAUSES, shrink_seconds=0, level="sound", examples=10
    )
    assert run.deviations == []
    assert run.steps > 50


def test_machines_of_level_safe_run_at_level_sound() -> None:
    assert machines_for(CLAUSES, level="sound") == machines_for(CLAUSES, level="safe")


def test_the_report_leads_with_content_and_ownership(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "report.json"
    options = [
        "--machines",
        "safe-pool,table",
        "--seed",
        "1",
        "--examples",
        "8",
        "--jobs",
        "1",
        "--step-timeout",
        "0",
        "--full",
    ]
    assert main(["check", "--level", "sound", *options, "--json", str(file)]) == 0
    said = capsys.readouterr().out
    report = json.loads(file.read_text())
    assert report["level"] == "sound"
    assert {entry["class"] for entry in report["clauses"]} == set(SOUND)
    places = [said.index(f"\n{label} ") for label in ("R2", "TAB-7", "POOL-2", "POOL-10")]
    assert places == sorted(places)
    assert not any(f"\n{label} " in said for label in ("R1", "POOL-3", "TAB-2"))
