"""How a fault gets into the fast backend: by a subclass with a few methods replaced, made when it is asked for.

The suite imports no backend, so that classes are derived at run time, and whatever belongs to a backend is `Any`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ..engine.scheduler import Scheduler

__all__ = [
    "Fault",
    "SeenRequest",
    "Way",
    "backend_with",
    "derived",
    "fresh",
    "replaced",
    "scheduled",
    "whole",
    "with_coordinator",
    "with_groups",
    "with_manager",
    "with_part",
    "with_policy",
    "with_pool",
    "with_pools",
    "with_queue",
    "with_requests",
    "with_scheduler",
    "with_snapshots",
    "with_table",
]


Fault = Callable[..., Any]

Way = Callable[[ModuleType, Fault], SimpleNamespace]
"""How a fault gets into a backend: makes one of the fast one, with a function that does what is wrong."""


def whole(value: object) -> bool:
    """Whether a value is an integer as the contract has it (R1): faults are about numbers, the rest is refused."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def fresh(make: Callable[[], Any]) -> Any:
    """A member that each object has for itself, made when it is first asked for, such as ``fresh(dict)``."""
    return functools.cached_property(lambda _: make())


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
        own.__class__ = derived(type(own), {"__slots__": (), **members})

    return with_manager(fast, __init__=build_manager)


def with_groups(fast: ModuleType, **members: Any) -> SimpleNamespace:
    """A backend whose managers' groups have some members replaced."""

    def build_manager(self: Any, *args: Any, **options: Any) -> None:
        fast.CacheManager.__init__(self, *args, **options)
        for group in self.coordinator.groups:
            group.__class__ = derived(type(group), {"__slots__": (), **members})

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


def with_scheduler(fast: ModuleType, **members: Any) -> SimpleNamespace:
    """A backend that offers a scheduler of its own: the suite's, some members replaced."""
    return backend_with(fast, Scheduler=derived(Scheduler, members))


class SeenRequest:
    """A request as a manager sees it that reads its tokens in another way.

    Args:
        request: the request.
        read: makes of it the tokens that are seen.
    """

    def __init__(self, request: Any, read: Callable[[Any], Any]) -> None:
        self._request, self._read = request, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._request, name)

    @property
    def all_token_ids(self) -> Any:
        """The tokens that are seen."""
        return self._read(self._request)


def with_requests(fast: ModuleType, read: Callable[[Any, Any], Any], **members: Any) -> SimpleNamespace:
    """A backend whose manager sees other tokens than a request has.

    Args:
        fast: the fast backend.
        read: makes of the manager and a request the tokens that are seen.
        members: other members of the manager that are replaced.
    """

    def through(name: str) -> Any:
        def call(self: Any, request: Any, *args: Any, **options: Any) -> Any:
            if hasattr(request, "all_token_ids"):
                new = SeenRequest(request, functools.partial(read, self)), request  # which keeps its id from others
                request = self.seen.setdefault(id(request), new)[0]
            return getattr(fast.CacheManager, name)(self, request, *args, **options)

        return call

    names = ("get_computed_pages", "allocate_slots", "cache_pages", "get_num_common_prefix_pages", "free")
    return with_manager(fast, seen=fresh(dict), **{name: through(name) for name in names}, **members)


def with_snapshots(fast: ModuleType, change: Callable[[Mapping[str, Any]], Any]) -> SimpleNamespace:
    """A backend whose manager restores other snapshots than it is given: what ``change`` makes of them."""

    def restore(cls: type[Any], /, snapshot: Any, requests: Any = (), **options: Any) -> Any:
        given = change(snapshot) if isinstance(snapshot, Mapping) else snapshot
        return super(manager, cls).restore(given, requests, **options)

    backend = with_manager(fast, restore=classmethod(restore))
    manager = backend.CacheManager
    return backend


# -- One method, or one function --------------------------------------------------------------------------------------

_WITH: Mapping[str, Callable[..., SimpleNamespace]] = {
    "CacheCoordinator": with_coordinator,
    "CacheManager": with_manager,
    "FreeCachePageQueue": with_queue,
    "PagePool": with_pool,
    "PageTable": with_table,
    "group": with_groups,
    "policy": with_policy,
}
"""What replaces members of a class, where it is more than the class among the public names."""


def replaced(place: str) -> Way:
    """A way in which a function takes the place of one of the fast backend's own.

    The function is given the fast backend, to call what it replaces, and behind it what that is called with.

    Args:
        place: ``function``, ``Class.method``, ``policy.method`` of the pools' eviction policy, ``group.method`` of a
            manager's groups, or ``part.method``, where the part is the attribute, or attributes, by which a manager
            has it.
    """
    owner, _, name = place.rpartition(".")

    def build(fast: ModuleType, fault: Fault) -> SimpleNamespace:
        def call(*arguments: Any, **options: Any) -> Any:
            return fault(fast, *arguments, **options)

        signature = inspect.signature(fault)
        _, *parameters = signature.parameters.values()
        call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        if not owner:
            return backend_with(fast, **{name: call})
        if owner in _WITH:
            return _WITH[owner](fast, **{name: call})
        if owner[0].isupper():
            return backend_with(fast, **{owner: derived(getattr(fast, owner), {name: call})})
        return with_part(fast, owner, **{name: call})

    return build


def scheduled(name: str) -> Way:
    """A way in which a function takes the place of a method of the suite's scheduler."""

    def build(fast: ModuleType, fault: Fault) -> SimpleNamespace:
        return with_scheduler(fast, **{name: fault})

    return build
