"""Faults of what is read back: a damaged document is taken for a sound one."""

import importlib
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

from .patching import with_manager
from .registry import FORESEEN, seeded

__all__: list[str] = []


@seeded(FORESEEN, "MAN-14", "snapshots", also=("SEC-3",))
def restored_under_anothers_prefix(fast: ModuleType) -> SimpleNamespace:
    """A snapshot's requests are taken to hold what they say: a page that is cached with other tokens is theirs, too."""
    reading = importlib.import_module(f"{fast.__name__}.groups.request_states")

    def restore(cls: type[Any], /, snapshot: Any, requests: Any = (), **options: Any) -> Any:
        with mock.patch.object(reading, "_require_own_content", return_value=None):
            return super(manager, cls).restore(snapshot, requests, **options)

    backend = with_manager(fast, restore=classmethod(restore))
    manager = backend.CacheManager
    return backend


@seeded(FORESEEN, "MAN-14", "snapshots", also=("SEC-3",))
def restore_mends_lists(fast: ModuleType) -> SimpleNamespace:
    """Lists of a snapshot that are out of order or name something twice are put right, and the rest is believed."""

    def mended(entries: Any) -> Any:
        if not isinstance(entries, list) or not all(isinstance(entry, list) and entry for entry in entries):
            return entries
        if not all(type(entry[0]) is int for entry in entries):
            return entries
        return [entry for _, entry in sorted({entry[0]: entry for entry in entries}.items())]

    def restore(cls: type[Any], /, snapshot: Any, requests: Any = (), **options: Any) -> Any:
        if isinstance(snapshot, Mapping):
            sorted_ones = ("priorities", "stored_at", "freed_at")
            snapshot = {name: mended(own) if name in sorted_ones else own for name, own in snapshot.items()}
        return super(manager, cls).restore(snapshot, requests, **options)

    backend = with_manager(fast, restore=classmethod(restore))
    manager = backend.CacheManager
    return backend
