"""CACHE-1: how many pages of fast's caches fit, and the memory of its devices; else see the machine `sizing`."""

import os
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from kvproof.conformance.calls.arrays import Memory
from kvproof.fast.cache import pool_size
from kvproof.fast.layout import cache_layout


def test_page_bytes_by_hand() -> None:
    """CACHE-1: the cases in which a sizing without padding takes too much memory."""
    assert cache_layout.get_page_size_bytes(16, 8, 96, jnp.bfloat16) == 16 * 2 * 8 * 128 * 2
    assert cache_layout.get_page_size_bytes(16, 8, 32, jnp.float32) == 16 * 2 * 8 * 128 * 4
    assert cache_layout.get_page_size_bytes(16, 1, 128, jnp.float8_e4m3fn) == 16 * 4 * 128
    assert cache_layout.get_page_size_bytes(16, 3, 64, jnp.bfloat16) == 16 * 4 * 128 * 2


def test_where_no_devices_are_named_it_is_those_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """CACHE-1: what each device leaves, the machine `sizing` draws."""
    devices = [Memory(5000, 1000), Memory(3000, 1000)]
    monkeypatch.setattr(pool_size, "jax", SimpleNamespace(local_devices=lambda: devices))
    assert pool_size.per_device_hbm_budget_bytes(0.5, safety_margin=0) == 1000


def test_devices_that_do_not_tell_share_the_hosts_memory() -> None:
    """CACHE-1: eight devices on one CPU must not each count all of its memory."""
    budget = pool_size.per_device_hbm_budget_bytes(safety_margin=0)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < budget * len(jax.local_devices()) <= memory
