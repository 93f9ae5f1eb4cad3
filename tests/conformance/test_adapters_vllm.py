"""The adapter of vLLM: what runs everywhere, and what its parts show where vLLM is installed."""

import importlib
import sys
import warnings
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import pytest

from kvproof.conformance import BackendError, load_backend
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.worlds import Group, World
from kvproof.conformance.search.runner import run_machine
from kvproof.spec.declarations import CacheSalt, FullAttentionSpec, LoraAdapter, MultimodalItem, Request

_NAME = "kvproof.conformance.adapters.vllm"

with_vllm = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vLLM is not installed: it is a package of its own, see docs/guides/hold.md"
)


def test_the_adapter_is_imported_without_vllm() -> None:
    before = set(sys.modules)
    importlib.import_module(_NAME)
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} & {"vllm", "torch"}
    assert not load_backend(_NAME).offers("no such name")


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_one_line_says_how_to_install_it() -> None:
    backend = load_backend(_NAME)
    for ask in (backend.offers, backend.get):
        with pytest.raises(BackendError, match=r"^vllm is not installed: pip install vllm==0\.33\.0 [^\n]*$"):
            ask("PagePool")


def test_groups_that_vllm_does_not_mix_come_next_to_those_that_were_drawn() -> None:
    names = load_backend(_NAME)

    def near(groups: Iterable[Group], use_eagle: bool = False) -> tuple[list[tuple[str, int]], bool]:
        world = World(9, tuple(groups), 16, True, use_eagle).within(names)
        return [(group.kind, group.page_size) for group in world.groups], world.use_eagle

    assert near([Group("full", 2), Group("window", 4, 3)], True) == ([("full", 2), ("window", 4)], True)
    assert near([Group("full", 2), Group("aligned", 2)], True) == ([("full", 2), ("aligned", 2)], True)
    assert near([Group("chunk", 2, 4)], True) == ([("chunk", 2)], False)
    assert near([Group("full", 2), Group("chunk", 2, 4)]) == ([("full", 2), ("chunk", 2)], False)
    assert near([Group("full", 2), Group("chunk", 4, 4)]) == ([("full", 2), ("full", 2)], False)
    assert near([Group("state", 2)]) == ([("full", 2)], False)
    assert near([]) == ([("full", 1)], False)


@pytest.fixture(scope="module")
def vllm() -> Any:
    backend = load_backend(_NAME)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what other packages warn of while they are imported
        for name in ("PagePool", "CacheManager", "PageTable"):
            backend.get(name)
    return backend


@with_vllm
def test_a_request_is_found_by_its_tokens_and_extra_keys(vllm: Any) -> None:
    """HASH-2, MAN-1: what vLLM has places for arrives there."""
    layers = FullAttentionSpec(2, num_kv_heads=1, head_size=8, dtype="float32")
    manager = vllm.get("CacheManager")(20, [vllm.get("CacheGroupSpec")(layers, ("layer",))], 16)
    keys: list[tuple[Any, ...]] = [(), (CacheSalt("a"),), (LoraAdapter("a"),), (MultimodalItem(b"a", 0, 1),)]
    for number, extra_keys in enumerate(keys):
        first = Request(f"first {number}", [1, 2, 3], extra_keys)
        assert manager.get_computed_pages(first)[1] == 0
        assert manager.allocate_slots(first, 3) is not None
        pages, hit = manager.get_computed_pages(Request(f"second {number}", [1, 2, 4], extra_keys))
        assert hit == 2
        assert pages.get_page_ids()[0] == manager.get_page_ids(f"first {number}")[0][:1]


@with_vllm
@pytest.mark.parametrize(
    ("machine", "deviating", "conforming"),
    [
        ("table", "TAB-6", {"TAB-5"}),
        ("pool", "POOL-5", {"POOL-9", "POOL-10"}),
        ("manager", "R1", {"R2", "MAN-1"}),
    ],
)
def test_what_the_report_says_of_vllm_is_seen(vllm: Any, machine: str, deviating: str, conforming: set[str]) -> None:
    """The table in CONFORMANCE.md, in few examples."""
    found = run_machine(MACHINES[machine], vllm, 1, {deviating}, examples=50, shrink_seconds=0.2)
    assert not found.missing
    assert [deviation.clause for deviation in found.deviations] == [deviating]
    assert not run_machine(MACHINES[machine], vllm, 1, conforming, examples=25).deviations
