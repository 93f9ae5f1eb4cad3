"""The script that compiles the whole grid for an H200: what it draws, prints and returns; the compiler is stood for."""

import json
from pathlib import Path

import pytest

from . import full_gpu_grid, gpu_aot
from .gpu_grid import FACTORS, USUAL, Account, Choice, one_at_a_time


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Choice]:
    """Stands for the compiler: with sinks something is wrong, int8 is left to XLA, and float16 spills."""
    done: list[Choice] = []

    def account(choice: Choice) -> Account:
        done.append(choice)
        if choice.sinks:
            raise ValueError("not lowered")
        kernels = (("decode", 168, 8 if choice.queries == "float16" else 0),)
        return Account("int8", (), "") if choice.cache == "int8" else Account(None, kernels, "")

    monkeypatch.setattr(full_gpu_grid, "account", account)
    monkeypatch.setattr(gpu_aot, "available", lambda: True)
    return done


def test_every_value_is_compiled(compiled: list[Choice], capsys: pytest.CaptureFixture[str]) -> None:
    assert full_gpu_grid.main([]) == 1
    assert compiled == list(one_at_a_time({}))
    for name, values in FACTORS.items():
        assert {getattr(choice, name) for choice in compiled} == set(values)
    assert len(compiled) == 1 + sum(len(values) - 1 for values in FACTORS.values())
    said = capsys.readouterr().out.splitlines()
    assert len(said) == len(compiled) + 1
    assert said[-1] == f"{len(compiled)} programs, 1 left to XLA, 1 with spills, 1 with faults"


def test_a_part_of_all_combinations(compiled: list[Choice], tmp_path: Path) -> None:
    out = tmp_path / "grid.json"
    only = ["--only", "head_dim=128", "sinks=False", "cache=same", "fused=True", "--json", str(out)]
    assert full_gpu_grid.main(["--sample", "5", "--seed", "3", *only]) == 0
    assert len(compiled) == 5
    assert all((choice.head_dim, choice.sinks, choice.cache) == (128, False, "same") for choice in compiled)
    assert [result["page_size"] for result in json.loads(out.read_text())] == [choice.page_size for choice in compiled]


@pytest.mark.usefixtures("compiled")
def test_spills_of_the_most_usual_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_gpu_grid, "account", lambda _: Account(None, (("decode", 255, 4),), ""))
    assert full_gpu_grid.main(["--only", *(f"{name}={getattr(USUAL, name)}" for name in FACTORS)]) == 1


@pytest.mark.usefixtures("compiled")
def test_unknown_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        full_gpu_grid.main(["--only", "size=3"])
    assert "no factors: size" in capsys.readouterr().err


def test_where_nothing_can_be_compiled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu_aot, "available", lambda: False)
    assert full_gpu_grid.main([]) == 2
    assert "not installed" in capsys.readouterr().err
