"""The page that maps other packages' names onto ours: every name of ours on it exists, and so does every clause."""

import inspect
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvproof import fast, spec
from kvproof.spec import CLAUSES

PAGE = Path(__file__).parents[2] / "conformance" / "adapters" / "NAMES.md"
ROWS = [
    cells
    for line in PAGE.read_text().splitlines()
    if line.startswith("|") and len(cells := [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]) == 3
]
OURS = sorted({name for _, ours, _ in ROWS for name in re.findall(r"`([^`]+)`", ours)})
OF_FAST = {
    "EventPublisher",
    "EventSubscriber",
    "fused_ragged_paged_attention",
    "kv_cache_update",
    "mla_cache_update",
    "mla_paged_attention",
    "ragged_paged_attention",
}


def _has(package: ModuleType, name: str) -> bool:
    """Whether a package has ``Name``, ``Name.member`` or ``Name.call(argument)``."""
    path, argument = re.fullmatch(r"([\w.]+)(?:\((\w+)\))?", name).groups()  # type: ignore[union-attr]
    first, *rest = path.split(".")
    if not hasattr(package, first):
        return False
    found: Any = getattr(package, first)
    for member in rest:
        if not hasattr(found, member):
            return argument is None and any(_keeps(kind, member) for kind in found.__mro__[:-1])
        found = getattr(found, member)
    return argument is None or argument in inspect.signature(found).parameters


def _keeps(kind: type, member: str) -> bool:
    """Whether a class says that its objects have an attribute, which only they have."""
    return member in inspect.get_annotations(kind) or f"self.{member}" in inspect.getsource(kind)


@pytest.mark.parametrize("name", OURS)
def test_a_name_of_ours_exists(name: str) -> None:
    packages = [fast] if re.split(r"[(.]", name)[0] in OF_FAST else [spec, fast]
    assert all(_has(package, name) for package in packages)


def test_a_name_that_does_not_exist_is_told() -> None:
    for name in ("PagePools", "PagePool.get_new_blocks", "CacheManager(use_eagles)", "PageTable.commit(n)"):
        assert not _has(fast, name)


def test_the_page_has_three_columns_and_clauses_that_exist() -> None:
    assert len(ROWS) > 80
    cited = set(re.findall(r"\b[A-Z]{2,5}-\d+\b|\bR[12]\b", PAGE.read_text()))
    assert cited <= CLAUSES.keys() | {"SHA-256"}
    assert len(cited) > 40
