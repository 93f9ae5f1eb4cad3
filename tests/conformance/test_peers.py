"""What an adapter says where the package that it adapts is missing, broken, or of a version that it does not know."""

import importlib
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvproof.conformance import BackendError, load_backend
from kvproof.conformance.adapters.peers import unknown_version
from kvproof.conformance.cli import main

_BACKEND = """\
from kvproof import fast
from kvproof.conformance.adapters.peers import Peer

kvproof_made_for = Peer("kvproof_peer", ("1.0", "1.1"), "pip install kvproof-peer==1.1")


class PagePool(fast.PagePool):
    def __init__(self, *arguments, **options):
        kvproof_made_for.module("kvproof_peer.pool")
        super().__init__(*arguments, **options)
"""
_CHECK = ["check", "--backend", "kvproof_peered", "--machines", "pool", "--profile", "quick", "--examples", "3"]

Install = Callable[[str], None]


@pytest.fixture(name="install")
def _install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a version of a package, and a backend that adapts it, where Python finds them, also in other processes."""
    (tmp_path / "kvproof_peered.py").write_text(_BACKEND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("kvproof_peer")]:
        monkeypatch.delitem(sys.modules, name)

    def install(version: str) -> None:
        (tmp_path / "kvproof_peer").mkdir()
        for name in ("__init__.py", "pool.py"):
            (tmp_path / "kvproof_peer" / name).touch()
        told = tmp_path / f"kvproof_peer-{version}.dist-info"
        told.mkdir()
        (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: kvproof-peer\nVersion: {version}\n")
        importlib.invalidate_caches()

    return install


@pytest.mark.parametrize("name", ["vllm", "easydel", "transformers", "sglang", "tpu_inference", "ejkernel", "kvcached"])
def test_what_an_adapter_says_to_install_stands_in_the_page_on_its_package(name: str) -> None:
    """The command is whole: who has the wheel alone needs no page."""
    adapter = importlib.import_module(f"kvproof.conformance.adapters.{name}")
    page = (Path(__file__).parents[2] / "CONFORMANCE.md").read_text()
    install: str = adapter.kvproof_made_for.install
    assert ".md" not in install
    packages = [
        word.strip("(),") for part in install.split("pip install ")[1:] for word in part.partition("&&")[0].split()
    ]
    assert len(packages) > 0
    assert [package for package in packages if package not in page] == []


@pytest.mark.parametrize("command", [_CHECK, ["try", "calls.py", "--backend", "kvproof_peered"]])
@pytest.mark.usefixtures("install")
def test_a_missing_package_is_no_deviation(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """One line says how to install it, and the exit status is that of a check that could not run."""
    Path("calls.py").write_text("pool = PagePool(4, True)\n")
    assert main(command) == 2
    captured = capsys.readouterr()
    said = f"kvproof {command[0]}: kvproof_peer is not installed: pip install kvproof-peer==1.1\n"
    assert (captured.out, captured.err) == ("", said)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_package_that_lacks_what_it_imports_is_no_deviation(
    jobs: str, install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it needs may be found to be missing only when a call imports it: that is no verdict on the package."""
    install("1.1")
    (tmp_path / "kvproof_peer" / "pool.py").write_text("import kvproof_no_such_module\n")
    assert main([*_CHECK, "--jobs", jobs]) == 2
    said = "kvproof check: kvproof_peer.pool cannot be imported: No module named 'kvproof_no_such_module'; made for"
    assert said in capsys.readouterr().err


@pytest.mark.skipif(find_spec("ejkernel") is not None, reason="ejkernel is installed")
def test_kernels_of_a_missing_package_are_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    """They are functions of ours that call it: all names are there, and each call would fail."""
    assert main(["check", "--backend", "kvproof.conformance.adapters.ejkernel", "--machines", "attention"]) == 2
    assert capsys.readouterr().err == "kvproof check: ejkernel is not installed: pip install ejkernel==0.0.78\n"


@pytest.mark.parametrize("version", ["1.0", "1.1", "1.1+cpu"])
def test_a_known_version_is_not_spoken_of(install: Install, version: str) -> None:
    install(version)
    assert unknown_version(load_backend("kvproof_peered")) == ""
    assert unknown_version(load_backend("kvproof.fast")) == ""


def test_an_unknown_version_is_told_and_judged(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """In the report's head, on the standard error, and in what programs read."""
    install("1.2")
    assert main([*_CHECK, "--seed", "1", "--json", "report.json", "--junit", "report.xml"]) == 0
    captured = capsys.readouterr()
    said = (
        "the adapter does not know kvproof_peer 1.2, a deviation may be its own; "
        "it is made for kvproof_peer 1.0, 1.1: pip install kvproof-peer==1.1"
    )
    head = captured.out.strip().splitlines()
    assert head[1:4][-2:] == ["kvproof_peered conforms, at level exact, seed 1", f"warning: {said}"]
    assert captured.err == f"kvproof check: {said}\n"
    assert json.loads(Path("report.json").read_text())["warning"] == said
    properties = ElementTree.parse("report.xml").getroot().iter("property")
    assert {found.get("name"): found.get("value") for found in properties}["warning"] == said


def test_an_unknown_version_is_told_to_those_who_try(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("2.0")
    Path("calls.py").write_text("pool = PagePool(4, True)\n")
    assert main(["try", "calls.py", "--backend", "kvproof_peered"]) == 0
    assert capsys.readouterr().err.startswith("kvproof try: the adapter does not know kvproof_peer 2.0")


def test_a_module_that_another_version_lacks(install: Install, tmp_path: Path) -> None:
    """What was made for one version may not be in another: the line names both."""
    install("2.0")
    (tmp_path / "kvproof_peer" / "pool.py").unlink()
    peer = load_backend("kvproof_peered").get("kvproof_made_for")
    said = "kvproof_peer.pool cannot be imported: .*; made for kvproof_peer 1.0, 1.1: pip install kvproof-peer==1.1"
    with pytest.raises(BackendError, match=said):
        peer.module("kvproof_peer.pool")
