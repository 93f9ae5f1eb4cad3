"""Both packages take the same arguments: what an engine calls of the one it can call of the other."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvproof import fast, spec

from .test_seed_names import CALLABLES, DIFFERENCES

COORDINATORS = (
    "CacheCoordinator",
    "CacheCoordinatorNoPrefixCache",
    "HybridCacheCoordinator",
    "UnitaryCacheCoordinator",
)

OWN = {
    **dict.fromkeys(COORDINATORS, "the inside of a manager: each package cuts its work as it likes"),
    "SlotBatch": "made by `allocate_slots_batch`; each package keeps the answer as it finds it",
    "StatePages": "made by `StatePages.init`; what lies behind it is the device's or the host's",
}
"""Classes whose constructor, or for coordinators whose methods, are each package's own, and why."""

SEED_COORDINATOR = {
    "find_longest_cache_hit": ["page_hashes", "max_cache_hit_length"],
    "get_num_pages_to_allocate": ["request_id", "num_tokens", "new_computed_pages"],
    "allocate_new_pages": ["request_id", "num_tokens"],
    "cache_pages": ["request", "page_hashes", "num_computed_tokens"],
}
"""Calls that the seed's manager makes on its coordinator, with what it hands over."""

NAMES = (Path(__file__).parents[1] / "conformance" / "adapters" / "NAMES.md").read_text()


def _parameters(called: Any) -> list[tuple[str, str, str]]:
    """Name, kind and default of each parameter; of a default that is drawn or is a function, what it is."""
    return [
        (parameter.name, parameter.kind.name, _shown(parameter.default))
        for parameter in inspect.signature(called).parameters.values()
    ]


def _shown(default: Any) -> str:
    if isinstance(default, bytes):
        return "bytes"
    return default.__name__ if inspect.isfunction(default) else repr(default)


def _callables() -> Iterator[str]:
    """The functions and classes that both packages export, and the methods that both classes have."""
    for name in sorted(set(spec.__all__) & set(fast.__all__)):
        ours = getattr(spec, name)
        if ours is getattr(fast, name) or not callable(ours):
            continue
        if name not in OWN:
            yield name
        if inspect.isclass(ours) and name not in COORDINATORS:
            members = dict.fromkeys(member for owner in ours.__mro__ for member in sorted(vars(owner)))
            shared = (member for member in members if not member.startswith("_") and callable(getattr(ours, member)))
            yield from (f"{name}.{member}" for member in shared if hasattr(getattr(fast, name), member))


def _found(package: Any, name: str) -> Any:
    owner, _, member = name.partition(".")
    return getattr(getattr(package, owner), member) if member else getattr(package, owner)


@pytest.mark.parametrize("name", list(_callables()))
def test_a_callable_takes_the_same_arguments_in_both_packages(name: str) -> None:
    assert _parameters(_found(fast, name)) == _parameters(_found(spec, name))


@pytest.mark.parametrize("name", sorted(OWN))
def test_what_is_a_packages_own_still_differs(name: str) -> None:
    own, other = getattr(fast, name), getattr(spec, name)
    methods = [method for method in SEED_COORDINATOR if name in COORDINATORS]
    pairs = [(getattr(own, method), getattr(other, method)) for method in methods] or [(own, other)]
    assert OWN[name]
    assert any(_parameters(called) != _parameters(twin) for called, twin in pairs)


@pytest.mark.parametrize("name", COORDINATORS)
def test_a_class_of_a_seeds_name_with_other_arguments_has_a_line(name: str) -> None:
    kind = getattr(fast, name)
    others = [
        method
        for method, given in SEED_COORDINATOR.items()
        if list(inspect.signature(getattr(kind, method)).parameters)[1:] != given
    ]
    assert not others or f"`{name}`" in NAMES, f"{name}.{others} take other arguments than the seeds'"


@pytest.mark.parametrize("name", sorted(name for name in CALLABLES if name in DIFFERENCES and "." not in name))
def test_a_function_of_a_seeds_name_that_means_something_else_has_a_line(name: str) -> None:
    assert f"`{name}`" in NAMES
