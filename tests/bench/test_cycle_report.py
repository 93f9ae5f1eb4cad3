"""The report of bundles: its limits, and kernels of others that are not there."""

import sys
from pathlib import Path
from typing import Any

import pytest
from jax.experimental.pallas import tpu as pltpu

from ..kernels import aot
from . import cycle_peers, cycle_report
from .cycle_kernels import KERNELS, OURS
from .cycle_peers import FOLDER, PEERS, compile_mla_v2, compile_stacked, package_folders, tpu_inference
from .cycle_report import CHIPS, measure
from .cycle_turn import NotCounted


def write_package(folder: Path) -> Path:
    """A package that, as tpu-inference, can't be imported as a whole without what it depends on."""
    kernels = folder / "tpu_inference" / "kernels"
    kernels.mkdir(parents=True)
    (folder / "tpu_inference" / "__init__.py").write_text("raise ImportError('the package imports vLLM')\n")
    (folder / "tpu_inference" / "logger.py").write_text("import vllm_that_nobody_has\n")
    (kernels / "__init__.py").write_text("")
    (kernels / "good.py").write_text(
        "from jax.experimental.pallas import tpu as pltpu\n"
        "from tpu_inference.logger import init_logger\n"
        "logger, reciprocal = init_logger(__name__), pltpu.reciprocal\n"
    )
    (kernels / "lacking.py").write_text("import sympy_that_nobody_has\n")
    return folder


def test_hbm_and_mxu_limit_what_is_counted() -> None:
    v6e = CHIPS["v6e"]
    assert v6e.hbm_cycles(128 * 2 * 8 * 128 * 2) == pytest.approx(560, rel=0.01)
    # Half of a unit of 256 x 256 stays empty with heads of 128; latents of 512 + 64 fill it.
    assert v6e.mxu_cycles(32 * 128, 128, (128, 128)) == pytest.approx(1024, rel=0.01)
    assert v6e.mxu_cycles(128, 128, (576, 512)) == pytest.approx(128 * 128 * (576 + 512) / 2**18, rel=0.01)
    assert CHIPS["v5e"].mxu_cycles(32 * 128, 128, (128, 128)) == pytest.approx(2048, rel=0.01)


def test_kernels_of_others_have_names_of_their_own() -> None:
    assert not OURS.keys() & PEERS.keys()
    assert list(KERNELS) == [*OURS, *PEERS]


def test_kernels_of_a_folder_are_imported_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(write_package(tmp_path)))
    had = hasattr(pltpu, "reciprocal")
    with tpu_inference() as kernel:
        assert kernel("good").logger.name == "tpu_inference.kernels.good"
        with pytest.raises(NotCounted, match=r"lacking can't be imported: .*sympy_that_nobody_has"):
            kernel("lacking")
    assert not [name for name in sys.modules if name.startswith("tpu_inference")]
    assert hasattr(pltpu, "reciprocal") == had


def test_who_has_no_package_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(NotCounted, match=rf"{FOLDER}=.* has no folder tpu_inference/kernels"):
        package_folders()
    monkeypatch.delenv(FOLDER)
    monkeypatch.setattr(cycle_peers, "find_spec", lambda _: None)
    with pytest.raises(NotCounted, match=rf"not installed, and {FOLDER} names no folder"):
        package_folders()


def test_pages_that_a_kernel_does_not_take_are_a_reason() -> None:
    with pytest.raises(NotCounted, match="multiples of 128"):
        compile_stacked("v6e", 16)
    with pytest.raises(NotCounted, match="multiples of 128"):
        compile_mla_v2("v6e", 64, transposed=True)


def test_a_reason_is_a_line_and_no_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail_or_not(kernel: str, *_: Any) -> Any:
        raise NotCounted("nobody has it") if kernel == "mla-v2" else RuntimeError("VMEM is full")

    monkeypatch.setattr(cycle_report, "measure", fail_or_not)
    few = ["--devices", "v6e", "--pages", "64", "--kernels"]
    assert cycle_report.main([*few, "mla-v2"]) == 0
    assert "mla-v2              not counted: nobody has it\n" in capsys.readouterr().out
    assert cycle_report.main([*few, "mla-v2", "decode"]) == 1
    assert "decode              FAILED: VMEM is full\n" in capsys.readouterr().out


def test_the_reason_comes_from_the_process_that_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    aot.require()
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(NotCounted, match=FOLDER):
        measure("decode-rpa-v3", "v6e", 16)


def test_a_kernel_is_counted() -> None:
    aot.require()
    lines = measure("decode", "v6e", 64)
    assert [line.variant for line in lines] == ["full", "middle", "short"]
    for line in lines:
        assert line.sequence is not None
        assert line.bundles * line.turn_keys == pytest.approx(128 * line.turn_bundles, rel=0.001)
        assert line.bundles == pytest.approx(line.ratio * line.hbm_cycles, rel=0.01)
        assert line.bundles == pytest.approx(line.mxu_ratio * line.mxu_cycles, rel=0.02)
