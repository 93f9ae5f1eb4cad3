"""The seeded bugs: faults that real systems had, or may come to have, each in a small variant of the fast backend.

The suite is worth what it catches. Here stands, for each line of the project's list of known faults that the machines
can reach, one variant of ``kvproof.fast`` with that fault and no other, and some for faults of our own and for those
that clauses foresee; the tests hold that the suite reports every one of them, by the clause that it breaks. `served`
has faults that show only in what a whole engine answers: the oracle has to find those, and no machine. A variant is
made when it is asked for, from the fast backend as it is, by replacing a few methods; nothing of it ships in ``fast``.
Each is a backend of its own name::

    kvproof check --backend kvproof.conformance.catalogue:double_mention
"""

import importlib
from types import SimpleNamespace

from .registry import SEEDED_BUGS, SERVED_BUGS, SeededBug

__all__ = ["SEEDED_BUGS", "SERVED_BUGS", "SeededBug"]

_MODULES = (
    *("amid", "attention", "batches", "cached_map", "caches", "events", "eviction", "extra_keys", "hits", "keys"),
    *(
        "manager",
        "null_pages",
        "ownership",
        "publishing",
        "queue_and_pool",
        "refusals",
        "retention",
        "served",
        "served_keys",
    ),
    *("size", "spellings", "swaps", "tables"),
)

for _module in _MODULES:  # each enters its bugs when it is imported
    importlib.import_module(f".{_module}", __name__)


def __getattr__(name: str) -> SimpleNamespace:
    """The backend with the seeded bug of that name: the fast backend's public names, the faulty ones among them."""
    bug = (SEEDED_BUGS | SERVED_BUGS).get(name)
    if bug is None:
        raise AttributeError(f"module {__name__} has no {name}")
    backend = bug.build(importlib.import_module("kvproof.fast"))
    globals()[name] = backend
    return backend
