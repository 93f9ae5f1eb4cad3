"""The adapters of packages beside vLLM: what runs everywhere, and more where a package is installed."""

import importlib
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from kvproof import spec
from kvproof.conformance import BackendError, load_backend
from kvproof.conformance.machines import MACHINES
from kvproof.conformance.machines.ragged import COMMON, LIMITS, NARROW, SETUPS, Batch
from kvproof.conformance.machines.safe import showing
from kvproof.conformance.machines.worlds import Group, World
from kvproof.conformance.search.runner import run_machine

_ADAPTERS = ("easydel", "ejkernel", "jax_kernels", "kvcached", "sglang", "tpu_inference", "transformers")


def _named(adapter: str) -> str:
    return f"kvproof.conformance.adapters.{adapter}"


@pytest.mark.parametrize("adapter", _ADAPTERS)
def test_an_adapter_is_imported_without_its_package(adapter: str) -> None:
    before = set(sys.modules)
    importlib.import_module(_named(adapter))
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert not loaded & {"easydel", "ejkernel", "jax", "kvcached", "sglang", "torch", "tpu_inference", "transformers"}
    assert not load_backend(_named(adapter)).offers("no such name")


@pytest.mark.skipif(find_spec("easydel") is not None, reason="EasyDeL is installed")
def test_without_easydel_one_line_says_how_to_install_it() -> None:
    backend = load_backend(_named("easydel"))
    for ask in (backend.offers, backend.get):
        with pytest.raises(BackendError, match=r"^easydel is not installed: pip install easydel==0\.3\.0 pillow$"):
            ask("PagePool")


@pytest.mark.skipif(find_spec("ejkernel") is not None, reason="ejkernel is installed")
def test_without_ejkernel_one_line_says_how_to_install_it() -> None:
    attend: Any = load_backend(_named("ejkernel")).get("ragged_paged_attention")
    with pytest.raises(BackendError, match=r"^ejkernel is not installed: pip install ejkernel==0\.0\.78$"):
        attend(*Batch("rows", (1,), (1,), ((1,),), (0,)).arguments())


def test_setups_are_those_that_the_kernels_have_options_for() -> None:
    def taken(adapter: str, function: str) -> set[str]:
        takes = load_backend(_named(adapter)).get("kvproof_takes_setup")
        return {name for name in (COMMON | LIMITS | NARROW) if takes(function, SETUPS[name])}

    rows = {"window", "uneven", "long", "rows", "rows, window", "rows, half"}
    assert taken("jax_kernels", "ragged_paged_attention") == rows
    assert taken("ejkernel", "ragged_paged_attention") == rows
    for adapter in ("ejkernel", "tpu_inference"):
        assert taken(adapter, "fused_ragged_paged_attention") == {"plain", "written, window"}
    assert taken("tpu_inference", "ragged_paged_attention") == rows


def test_groups_that_easydel_does_not_mix_come_next_to_those_that_were_drawn() -> None:
    names = load_backend(_named("easydel"))
    mixed = World(9, (Group("aligned", 2), Group("window", 4, 3, flagged=True), Group("chunk", 2, 5)), 16, True, True)
    near = mixed.within(names)
    assert [(group.kind, group.page_size) for group in near.groups] == [("full", 4), ("window", 4)]
    assert near.use_eagle
    assert not any(group.flagged for group in near.groups)
    assert [group.kind for group in World(9, (Group("aligned", 2),), 16).within(names).groups] == ["state"]
    assert mixed.within(load_backend("kvproof.fast")) == mixed


def test_jax_kernel_is_right_where_nothing_is_poisoned() -> None:
    """ATT-1, ATT-6: one tiny batch; the rest is a check by hand, as each shape takes seconds to compile."""
    batch = Batch("rows", (1, 2), (3, 5), ((1,), (2, 3)), (0, 0))
    arguments = batch.arguments(("slots", "padding"))
    out = load_backend(_named("jax_kernels")).get("ragged_paged_attention")(*arguments)
    right = spec.ragged_paged_attention(*arguments).astype(np.float64)
    error = np.abs(out[: batch.tokens] - right[: batch.tokens])
    assert (error <= batch.tolerance(right, arguments[1])[: batch.tokens]).all()


def test_easydel_is_held_to_the_pool_clauses() -> None:
    pytest.importorskip("easydel", reason="EasyDeL is not installed; its conformance is checked by hand")
    found = run_machine(MACHINES["pool"], load_backend(_named("easydel")), 0, seconds=30.0)
    assert {"POOL-1", "POOL-5", "POOL-10"} <= {deviation.clause for deviation in found.deviations}
    assert found.tried["POOL-3"] > 100


def test_blocks_of_kvcached_are_taken_and_given_back() -> None:
    """POOL-1, POOL-3: with one, two and four blocks in a page of its own."""
    pytest.importorskip("kvcached", reason="kvcached is not installed; its conformance is checked by hand")
    names = load_backend(_named("kvcached"))
    for number in (5, 6, 8):
        pool = names.get("PagePool")(number, True)
        pages = pool.get_new_pages(number - 1)
        assert sorted(page.page_id for page in pages) == list(range(1, number))
        with pytest.raises(ValueError, match="alloc gave None"):
            pool.get_new_pages(1)
        pool.free_pages([*pages, pool.null_page])
        assert pool.get_num_free_pages() == number - 1


@pytest.mark.parametrize(("package", "first", "hit"), [("transformers", [9], 4), ("sglang", [1], 4)])
def test_a_prefix_that_was_served_is_found_again(package: str, first: list[int], hit: int) -> None:
    """MAN-1, MAN-2: their requests come, go and hit as ours do."""
    pytest.importorskip(package, reason=f"{package} is not installed; its conformance is checked by hand")
    names = load_backend(_named(package))
    layers = spec.FullAttentionSpec(2, num_kv_heads=1, head_size=8, dtype="float32")
    manager = names.get("CacheManager")(10, [spec.CacheGroupSpec(layers)], 16)
    request = spec.Request("a", [1, 2, 3, 4, 5])
    new = manager.allocate_slots(request, 5)
    assert showing.ids_of(new) == list(manager.get_page_ids("a"))
    assert showing.ids_of(new)[0][:1] == first
    assert manager.page_pool.get_num_free_pages() == 6
    manager.free(request)
    assert (manager.page_pool.get_num_free_pages(), len(manager.resident_page_ids())) == (9, 2)
    again = spec.Request("b", [1, 2, 3, 4, 6])
    pages, length = manager.get_computed_pages(again)
    assert (showing.ids_of(pages), length) == ([showing.ids_of(new)[0][:2]], hit)
    assert manager.allocate_slots(again, 1, length, pages) is not None
    assert manager.get_page_ids("b")[0][:2] == showing.ids_of(new)[0][:2]
