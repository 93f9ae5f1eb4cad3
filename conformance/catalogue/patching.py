"""How a fault gets into the fast backend: by a subclass with a few methods replaced, made when it is asked for.

The suite imports no backend, so that classes are derived at run time, and whatever belongs to a backend is `Any`.
"""

from collections.abc import Callable
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

__all__ = [
    "backend_with",
    "derived",
    "whole",
    "with_coordinator",
    "with_manager",
    "with_part",
    "with_policy",
    "with_pool",
    "with_pools",
    "with_queue",
    "with_table",
]


def whole(value: object) -> bool:
    """Whether a value is an integer as the contract has it (R1): faults are about numbers, the rest is refused."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def derived(base: Any, members: dict[str, Any]) -> Any:
    """A subclass of ``base``, under the same name, with some members replaced."""
    return type(base.__name__, (base,), members)


def backend_with(fast: ModuleType, **replaced: Any) -> SimpleNamespace:
    """A backend: the public names of ``fast``, some of them replaced."""
    return SimpleNamespace(**{name: getattr(fast, name) for name in fast.__all__} | replaced)


def with_queue(fast: ModuleType, **members: Any) -> SimpleNamespace:
    """A backend whose free queue has some members replaced."""
    return backend_with(fast, FreeCachePageQueue=derived(fast.FreeCachePageQueue, members))


def with_manager(fast: ModuleType, **members: Any) -> SimpleNamespace:
    """A backend whose manager has some members replaced."""
    return backend_with(fast, CacheManager=derived(fast.CacheManager, members))


def with_part(fast: ModuleType, part: str, **members: Any) -> SimpleNamespace:
    """A backend whose manager has a part with some members replaced; `part` is the attribute, or attributes, to it."""

    def build_manager(self: Any, *args: Any, **options: Any) -> None:
        fast.CacheManager.__init__(self, *args, **options)
        # The manager makes its parts itself: the object stays, its class changes.
        own = attrgetter(part)(self)
        own.__class__ = derived(type(own), members)

    return with_manager(fast, __init__=build_manager)


def with_coordinator(fast: ModuleType, **members: Any) -> SimpleNamespace:
    """A backend whose manager's coordinator, of any kind, has some members replaced."""
    return with_part(fast, "coordinator", **members)


def with_pool(fast: ModuleType, **members: Any) -> SimpleNamespace:
    """A backend whose page pool has some members replaced, its manager's pool included."""
    pool_class = derived(fast.PagePool, members)

    def build_manager(self: Any, *args: Any, **options: Any) -> None:
        fast.CacheManager.__init__(self, *args, **options)
        # The manager makes its pool itself and may have noted parts of it: the object stays, its class changes.
        self.page_pool.__class__ = pool_class

    return backend_with(fast, PagePool=pool_class, CacheManager=derived(fast.CacheManager, {"__init__": build_manager}))


def with_policy(fast: ModuleType, **members: Any) -> SimpleNamespace:
    """A backend whose pools' eviction policy has some members replaced."""

    def spoil(pool: Any) -> None:
        if pool.policy is not None:
            pool.policy.__class__ = derived(type(pool.policy), {"__slots__": (), **members})

    return with_pools(fast, spoil)


def with_pools(fast: ModuleType, spoil: Callable[[Any], None]) -> SimpleNamespace:
    """A backend whose pools, those of managers included, are spoilt once they are made."""

    def build_pool(self: Any, *args: Any, **options: Any) -> None:
        fast.PagePool.__init__(self, *args, **options)
        spoil(self)

    def build_manager(self: Any, *args: Any, **options: Any) -> None:
        fast.CacheManager.__init__(self, *args, **options)
        spoil(self.page_pool)

    pool = derived(fast.PagePool, {"__init__": build_pool})
    return backend_with(fast, PagePool=pool, CacheManager=derived(fast.CacheManager, {"__init__": build_manager}))


def with_table(fast: ModuleType, **members: Any) -> SimpleNamespace:
    """A backend whose page table has some members replaced, the tables of several groups included."""
    table_class = derived(fast.PageTable, members)

    def build_tables(self: Any, *args: Any, **options: Any) -> None:
        fast.MultiGroupPageTable.__init__(self, *args, **options)
        for table in self.page_tables:
            table.__class__ = table_class

    several = derived(fast.MultiGroupPageTable, {"__init__": build_tables})
    return backend_with(fast, PageTable=table_class, MultiGroupPageTable=several)
