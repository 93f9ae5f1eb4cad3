"""What a backend must have, as types and as messages, is what the tables of the interface say."""

from types import SimpleNamespace

import pytest

from kvproof import fast, spec
from kvproof.conformance import Backend, ExactManager, ExactPool, SafeManager, SafePool, TableRows
from kvproof.conformance.backends.capabilities import ESSENTIALS
from kvproof.conformance.calls.manager import MANAGER
from kvproof.conformance.calls.method import Table
from kvproof.conformance.calls.pool import POOL
from kvproof.conformance.calls.table import TABLE
from kvproof.conformance.cli import main
from kvproof.conformance.machines import MACHINES

POOLS: list[type[ExactPool]] = [spec.PagePool, fast.PagePool]
MANAGERS: list[type[ExactManager]] = [spec.CacheManager, fast.CacheManager]
TABLES: list[type[TableRows]] = [spec.PageTable, fast.PageTable]
"""Held by the type checker."""

MADE_LATER = {"slot_of", "take_page_copies", "counters", "allocate_slots_batch", "snapshot", "restore"} | {
    name for name in MANAGER.by_name if name.startswith(("num_", "retention", "match"))
}
"""What a manager is asked for where it has it: machines of its own hold it."""


def members(protocol: type) -> set[str]:
    return {name for owner in protocol.__mro__[:-2] for name in vars(owner) if not name.startswith("_")}


@pytest.mark.parametrize(
    ("protocol", "table", "left"),
    [(ExactPool, POOL, set()), (ExactManager, MANAGER, MADE_LATER), (TableRows, TABLE, set())],
)
def test_the_types_have_what_every_backend_is_asked_for(protocol: type, table: Table, left: set[str]) -> None:
    asked = {
        row.name for row in table if row.form in ("call", "get") and not row.optional and row.capability == ""
    } - left
    assert members(protocol) == asked


@pytest.mark.parametrize(("protocol", "name"), [(SafePool, "PagePool"), (SafeManager, "CacheManager")])
def test_levels_safe_and_sound_ask_for_what_nothing_can_be_judged_without(protocol: type, name: str) -> None:
    assert {f"{name}.{member}" for member in members(protocol)} == {need for need in ESSENTIALS[name] if "." in need}


class Elsewhere:
    """Its constructor takes something else."""

    def __init__(self, size: int) -> None:
        self.size = size

    def get_new_pages(self, num_pages: int) -> None:
        """Has its name; all are looked for, none is called."""

    get_num_free_pages = free_pages = get_new_pages


class Optional(fast.PagePool):
    """Its constructor takes more, all of it by default."""

    def __init__(self, num_pages: int = 4, enable_caching: bool = True, more: int = 0) -> None:
        super().__init__(num_pages, enable_caching)


@pytest.mark.parametrize("machine", ["pool", "small-pool", "safe-pool"])
def test_a_constructor_that_takes_other_arguments_is_told(machine: str) -> None:
    backend = Backend("there", SimpleNamespace(PagePool=Elsewhere))
    assert MACHINES[machine].missing(backend) == ["PagePool(num_pages, enable_caching): its PagePool takes (size: int)"]
    assert not MACHINES[machine].missing(Backend("there", SimpleNamespace(PagePool=Optional)))


def test_what_shows_no_signature_is_judged_by_its_calls() -> None:
    """As before: what is no class at all deviates by its first call."""
    assert not MACHINES["pool"].missing(Backend("there", SimpleNamespace(PagePool=3)))


def test_what_is_missing_of_a_class_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--backend", f"{__name__}:Begun"]) == 2
    said = capsys.readouterr().err
    assert "it has no PagePool(num_pages, enable_caching): its PagePool takes (size: int)" in said
    assert "CacheManager" not in said


class Begun:
    """A backend of one class."""

    PagePool = Elsewhere
