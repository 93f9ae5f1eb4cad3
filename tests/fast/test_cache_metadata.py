"""CACHE-1: how many pages of fast's caches fit, and the memory of its devices; else see the machine `sizing`."""

import os
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.fast.cache import pool_size
from kvproof.fast.layout import cache_layout

from .cache_pairs import outcome


def test_page_bytes_by_hand() -> None:
    """CACHE-1: the cases in which a sizing without padding takes too much memory."""
    assert cache_layout.get_page_size_bytes(16, 8, 96, jnp.bfloat16) == 16 * 2 * 8 * 128 * 2
    assert cache_layout.get_page_size_bytes(16, 8, 32, jnp.float32) == 16 * 2 * 8 * 128 * 4
    assert cache_layout.get_page_size_bytes(16, 1, 128, jnp.float8_e4m3fn) == 16 * 4 * 128
    assert cache_layout.get_page_size_bytes(16, 3, 64, jnp.bfloat16) == 16 * 4 * 128 * 2


class Device(NamedTuple):
    limit: int
    used: int

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_limit": self.limit, "bytes_in_use": self.used}


@given(
    util=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, 1.1, True, "x"]),
    mode=st.sampled_from(["free", "total", "all", 1]),
    margin=st.sampled_from([-1, 0, 100, 5000]),
    devices=st.lists(st.builds(Device, st.integers(0, 1 << 20), st.integers(0, 5000)), min_size=1, max_size=3),
)
def test_budgets_are_the_specifications(util: Any, mode: Any, margin: int, devices: list[Device]) -> None:
    """CACHE-1: the device with the least counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_size, "jax", SimpleNamespace(local_devices=lambda: devices))
        ours = outcome(lambda: pool_size.per_device_hbm_budget_bytes(util, mode, margin))
    assert ours == outcome(lambda: spec.per_device_hbm_budget_bytes(util, mode, margin, devices=devices))


def test_devices_that_do_not_tell_share_the_hosts_memory() -> None:
    """CACHE-1: eight devices on one CPU must not each count all of its memory."""
    budget = pool_size.per_device_hbm_budget_bytes(safety_margin=0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < budget * len(jax.local_devices()) <= memory
