"""SEC-2, SEC-3, SEC-4: the suite sees who tells tokens or salts, trips over an id, or reads what is no document."""

from collections.abc import Callable
from typing import Any

import pytest

from kvproof import fast, spec
from kvproof.conformance.backends.loading import load_backend
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.search.runner import run_machine
from kvproof.spec.declarations import CacheSalt, Request

LEAKY = "tests.conformance.leaky_managers:"


@pytest.mark.parametrize(
    ("backend", "machine", "clause"),
    [
        ("tokens_in_errors", "secrets", "SEC-2"),
        ("fingerprints_in_errors", "secrets", "SEC-2"),
        ("raw_ids_in_errors", "secrets", "SEC-4"),
        ("ids_in_ascii", "secrets", "SEC-4"),
        ("any_document", "secrets", "SEC-3"),
    ],
)
def test_leaks_are_seen(backend: str, machine: str, clause: str) -> None:
    for seed in range(4):
        report = run_machine(MACHINES[machine], load_backend(LEAKY + backend), seed, [clause], shrink_seconds=0.2)
        if report.deviations:
            break
    assert [found.clause for found in report.deviations] == [clause]


@pytest.mark.parametrize("level", ["exact", "safe"])
def test_ours_tell_nothing(level: str) -> None:
    report = run_machine(MACHINES["secrets"], load_backend("kvproof.fast"), 1, examples=6, level=level)  # type: ignore[arg-type]
    assert [str(found) for found in report.deviations] == []
    assert report.undeclared == []
    assert report.lacks == []


@pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])
def test_keys_and_tokens_in_a_wrong_place_are_not_shown(package: Any) -> None:
    """SEC-2: a key given as a page, a key set on a page, token ids that are nested or floats."""
    pool = package.PagePool(3, True)
    manager = package.CacheManager(3, [], 8)
    key = package.PageHash(b"digest", (123454321,), (CacheSalt("a"),))
    page = pool.get_new_pages(1)[0]
    strange = Request("r", [1])
    calls: list[Callable[[], Any]] = [
        lambda: pool.free_pages([key]),
        lambda: setattr(page, "page_hash", package.PageHashWithGroupId(key, 0)),
        lambda: package.PageList([key]) if hasattr(package, "PageList") else pool.free_pages([key]),
        lambda: manager.allocate_slots(strange, [123454321]),
        lambda: manager.allocate_slots([123454321], 1),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError)) as refused:
            call()
        assert "123454321" not in str(refused.value)
        assert "digest" not in str(refused.value)
