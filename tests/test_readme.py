"""What the README shows is true: its examples run."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.spec import CLAUSES

README = Path(__file__).parents[1] / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


def _run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(block, "README.md", "exec"), names)
    return names


def test_there_are_seven_examples() -> None:
    assert len(BLOCKS) == 7


def test_the_engine_example_runs() -> None:
    assert _run(BLOCKS[0])["manager"].usage == 0.0


def test_the_example_of_mixed_layers_runs() -> None:
    _run(BLOCKS[1])["manager"].check()


def test_the_device_example_runs() -> None:
    """It compares itself with the specification (ATT-6)."""
    assert _run(BLOCKS[2])["cache"].metadata.num_pages == 128


def test_pages_move_as_the_readme_says() -> None:
    _run(BLOCKS[3])["manager"].check()


def test_a_model_is_served_as_the_readme_says() -> None:
    assert sorted(_run(BLOCKS[4])["generated"]) == ["first", "second", "third"]


def test_the_swap_of_easydels_manager_is_the_demonstrations() -> None:
    (shown,) = re.findall(r"```py\n(.*?)```", README.read_text(), re.DOTALL)
    assert shown in (README.parent / "tests" / "demonstrations" / "easydel_glue.py").read_text()


def test_the_wrong_pool_is_caught_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """POOL-3 is what the pool of the sixth example breaks."""
    from kvproof.conformance.cli import main

    assert isinstance(_run(BLOCKS[5])["backend"], SimpleNamespace)
    (tmp_path / "my_engine.py").write_text(BLOCKS[5])
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["check", "--backend", "my_engine:backend", "--seed", "1"]) == 1
    assert "POOL-3" in capsys.readouterr().out


def test_the_recorded_engine_replays_and_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvproof.conformance.cli import main

    monkeypatch.chdir(tmp_path)
    _run(BLOCKS[6])
    assert main(["replay", "engine.log"]) == 0
    assert main(["show", "engine.log", "-o", "engine.html"]) == 0


def test_the_page_about_other_packages_names_clauses_that_there_are() -> None:
    page = README.with_name("CONFORMANCE.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ") and "exact | safe" not in line]
    labels = re.findall(r"\b(?:R[12]|[A-Z]+-\d+)\b", " ".join(rows))
    assert len(labels) > 60
    assert set(labels) <= set(CLAUSES)
