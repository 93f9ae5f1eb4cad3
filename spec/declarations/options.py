"""The options of pools and managers: each one's name, type, default and meaning, declared here for both packages.

A constructor takes them as ``**options: Unpack[PoolOptions]`` under `takes_options`, and hands them on as they are:
an option that is added here is taken by pools, managers, shards and engines.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, TypeVar, cast, get_args, get_type_hints

from .extra_keys import HashFunction, sha256

__all__ = ["ManagerOptions", "PoolOptions", "defaults_of", "pool_options", "takes_options"]

Constructor = TypeVar("Constructor", bound=Callable[..., None])


class PoolOptions(TypedDict, total=False):
    """The keywords of `PagePool`: ``Annotated[type, default]``.

    Attributes:
        hash_seed: the seed of the keys; None draws one (HASH-1). Shards share one seed.
        hash_function: the hash of the keys, bytes in, bytes out.
        unhashed_first: freed pages that carry no hash go to the front of the queue (POOL-13).
        enable_events: whether events are kept for `take_events`, until they are taken (MAN-12). Caching a page then
            computes its digest.
        counter_sampling: the histograms of `counters` count the pages whose id is a multiple of this, at least 1
            (MAN-12).
        max_pinned_pages: the most pages that can be pinned at once, on each shard (PIN-1).
        max_pinned_pages_per_salt: the most of them that carry the same cache salt, and the most that carry none;
            None: no bound but ``max_pinned_pages`` (PIN-1).
    """

    hash_seed: Annotated[bytes | None, None]
    hash_function: Annotated[HashFunction, sha256]
    unhashed_first: Annotated[bool, False]
    enable_events: Annotated[bool, False]
    counter_sampling: Annotated[int, 64]
    max_pinned_pages: Annotated[int, 0]
    max_pinned_pages_per_salt: Annotated[int | None, None]


class ManagerOptions(PoolOptions, total=False):
    """The keywords of `CacheManager` and `ShardedCacheManager`: those of the pool, and the manager's own.

    Attributes:
        num_host_pages: the pages that host memory has room for, on each shard; 0: no request is swapped out (SWAP-1).
    """

    num_host_pages: Annotated[int, 0]


def pool_options(options: ManagerOptions) -> PoolOptions:
    """Those of a manager's options that are its pool's."""
    return cast(PoolOptions, {name: value for name, value in options.items() if name in PoolOptions.__annotations__})


def defaults_of(declared: type) -> dict[str, Any]:
    """The default of each option of a declaration."""
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(declared, include_extras=True).items()}


def takes_options(constructor: Constructor) -> Constructor:
    """A constructor whose ``**options: Unpack[...]`` hold every declared option: what is not passed, at its default.

    Its signature shows each option as a keyword with its default.

    Raises:
        TypeError: a keyword that is not declared was passed; as if the constructor took the options one by one.
    """
    signature = inspect.signature(constructor)
    *named, options = signature.parameters.values()
    (declared,) = get_args(options.annotation)
    defaults, types = defaults_of(declared), get_type_hints(declared)
    known = {*defaults, *(parameter.name for parameter in named)}

    @functools.wraps(constructor)
    def completing(*arguments: Any, **given: Any) -> None:
        if not known.issuperset(given):
            unknown = next(name for name in given if name not in known)
            raise TypeError(f"{constructor.__qualname__}() got an unexpected keyword argument {unknown!r}")
        constructor(*arguments, **{**defaults, **given})

    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
        for name, default in defaults.items()
    ]
    completing.__signature__ = signature.replace(parameters=[*named, *shown])  # type: ignore[attr-defined]
    return cast(Constructor, completing)
