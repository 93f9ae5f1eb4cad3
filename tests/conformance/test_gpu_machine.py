"""ATT-1, ATT-3, ATT-6, CACHE-3: the machine that holds interpreted GPU kernels, which runs only where it is named."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kvproof.fast
import kvproof.spec
from kvproof.conformance.backends.loading import Backend, load_backend
from kvproof.conformance.cli import main
from kvproof.conformance.machines import EVERY_MACHINE, MACHINES, ON_REQUEST
from kvproof.conformance.search.runner import run_machine

MACHINE = ON_REQUEST["gpu-kernels"]

SEEDS = range(4)
"""A run is a sample of a few calls, each of which takes ten seconds on real kernels: any of them is to find a fault."""


def attend(*arguments: Any, **options: Any) -> Any:
    """Attention that accepts page ids that do not exist, as kernels do; the specification refuses them."""
    output = kvproof.fast.ragged_paged_attention(*arguments, **options)
    return SimpleNamespace(output=output, minds="")


def update(*arguments: Any) -> Any:
    return SimpleNamespace(output=kvproof.spec.kv_cache_update(*arguments), minds="")


def without_window(*arguments: Any, window: int, **options: Any) -> Any:
    del window
    return attend(*arguments, **options)


def clipped(queries: Any, kv_pages: Any, kv_lens: Any, page_table: Any, *rest: Any, **options: Any) -> Any:
    """A page id that does not exist is taken for the nearest that does."""
    return attend(queries, kv_pages, kv_lens, np.clip(page_table, 0, len(kv_pages) - 1), *rest, **options)


def racing(*arguments: Any, **options: Any) -> Any:
    return SimpleNamespace(output=attend(*arguments, **options).output, minds="RACE DETECTED")


def everywhere(pages: Any, keys: Any, values: Any, slots: Any) -> Any:
    """Tokens without a slot are written into the first one."""
    return update(pages, keys, values, np.maximum(slots, 0))


def racing_update(*arguments: Any) -> Any:
    return SimpleNamespace(output=update(*arguments).output, minds="RACE DETECTED")


def held(seed: int, **kernels: Any) -> set[str]:
    """The clauses that made-up kernels break."""
    holder = SimpleNamespace(gpu_kernels=SimpleNamespace(**{"attend": attend, "update": update, **kernels}))
    report = run_machine(MACHINE, Backend("made up", holder), seed, shrink_seconds=0.2)
    assert report.steps > 0
    assert not report.undeclared
    return {found.clause for found in report.deviations}


@pytest.mark.parametrize("seed", SEEDS)
def test_right_kernels_conform(seed: int) -> None:
    assert held(seed) == set()


@pytest.mark.parametrize(
    ("kernels", "clause"),
    [
        ({"attend": without_window}, "ATT-1"),
        ({"attend": clipped}, "ATT-3"),
        ({"attend": racing}, "ATT-6"),
        ({"update": everywhere}, "CACHE-3"),
        ({"update": racing_update}, "CACHE-3"),
    ],
    ids=["no window", "page ids clipped", "a race", "a slot that nobody named", "a race in updates"],
)
def test_wrong_kernels_are_found(kernels: dict[str, Any], clause: str) -> None:
    assert all(clause in held(seed, **kernels) for seed in SEEDS)


def test_ours_conform() -> None:
    report = run_machine(MACHINE, load_backend("kvproof.fast"), 3, examples=1)
    assert report.steps > 1
    assert not report.deviations


def test_it_runs_only_where_it_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert MACHINE.name not in MACHINES
    assert EVERY_MACHINE[MACHINE.name] is MACHINE
    arguments = ["check", "--backend", "kvproof.spec", "--examples", "1", "--seed", "3", "--jobs", "1", "--full"]
    assert main([*arguments, "--machines", "queue,gpu-kernels", "--clauses", "POOL-2,ATT-6"]) == 0
    assert MACHINE.name in capsys.readouterr().out
    assert main([*arguments, "--machines", "queue", "--clauses", "POOL-2"]) == 0
    assert MACHINE.name not in capsys.readouterr().out
