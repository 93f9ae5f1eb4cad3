"""What the demonstrations do of themselves, without the packages that they show us in."""

import copy
import importlib
import sys
from types import ModuleType
from typing import Any

import pytest

HOME = "easydel.inference.esurge"
STAND_INS = ("easydel", "easydel.inference", HOME, *(f"{HOME}.{name}" for name in ("runners", "scheduler")))
PARTS = ((HOME, "request"), (f"{HOME}.runners", "sequence_buffer"), (f"{HOME}.scheduler", "scheduler"))


@pytest.fixture
def glue(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`easydel_glue`, with empty modules where it imports EasyDeL's."""
    made = {name: ModuleType(name) for name in STAND_INS}
    for home, name in PARTS:
        setattr(made[home], name, ModuleType(f"{home}.{name}"))
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "tests.demonstrations.easydel_glue", raising=False)
    yield importlib.import_module("tests.demonstrations.easydel_glue")
    sys.modules.pop("tests.demonstrations.easydel_glue", None)


def test_a_manager_that_was_not_made_says_so(glue: Any) -> None:
    """EasyDeL's tests make managers without `__init__`, as `copy` does: what they lack is no endless look-up."""
    unmade = object.__new__(glue.Manager)
    for name in ("ours", "get_page_ids", "page_pool"):
        with pytest.raises(AttributeError, match="was not made"):
            getattr(unmade, name)
    assert isinstance(copy.copy(unmade), glue.Manager)


def test_all_else_is_the_managers_own(glue: Any) -> None:
    made = glue.Manager(9, [], 8)
    assert made.num_pages == 9
    assert made.page_pool is made.ours.page_pool
    with pytest.raises(AttributeError):
        _ = made.no_such_name
