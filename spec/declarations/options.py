"""The options of pools, managers and attention: each one's name, type, default and meaning, declared here once.

A call takes them as ``**options: Unpack[PoolOptions]`` under `takes_options`, and hands them on as they are: an option
that is added here is taken by pools, managers, shards and engines.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypedDict, TypeVar, cast, get_args, get_type_hints

from .eviction import EvictionPolicy
from .extra_keys import HashFunction, sha256

__all__ = ["AttentionOptions", "ManagerOptions", "PoolOptions", "defaults_of", "pool_options", "takes_options"]

Called = TypeVar("Called", bound=Callable[..., Any])


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
        eviction: the order in which free pages are evicted (EVICT-1): ``lru``, the least recently freed first;
            ``reuse``, what was hit later than what was not; ``adaptive``, the rule of several that hits most.
        max_pinned_pages: the most pages that can be pinned at once, on each shard (PIN-1).
        max_pinned_pages_per_salt: the most of them that carry the same cache salt, and the most that carry none;
            None: no bound but ``max_pinned_pages`` (PIN-1).
    """

    hash_seed: Annotated[bytes | None, None]
    hash_function: Annotated[HashFunction, sha256]
    unhashed_first: Annotated[bool, False]
    enable_events: Annotated[bool, False]
    counter_sampling: Annotated[int, 64]
    eviction: Annotated[EvictionPolicy, "lru"]
    max_pinned_pages: Annotated[int, 0]
    max_pinned_pages_per_salt: Annotated[int | None, None]


class ManagerOptions(PoolOptions, total=False):
    """The keywords of `CacheManager` and `ShardedCacheManager`: those of the pool, and the manager's own.

    Attributes:
        num_host_pages: the pages that host memory has room for, on each shard; 0: no request is swapped out (SWAP-1).
        retention_interval: tokens from one length at which hits can end to the next, in groups that need only part of a
            prefix (windows, chunks, states): a multiple of every page size. 0: hits end where prompts and requests
            ended and where prompts part ways; None: at every length, for which all pages are kept (RET-1).
        match_unit: tokens of which the lengths of hits are multiples, a divisor of every page size; a hit may then end
            amid a page, whose first tokens are copied. None: hits end where pages of all groups do (MAN-17).
    """

    num_host_pages: Annotated[int, 0]
    retention_interval: Annotated[int | None, 0]
    match_unit: Annotated[int | None, None]


class AttentionOptions(TypedDict, total=False):
    """The keywords of `ragged_paged_attention` and `fused_ragged_paged_attention`.

    Attributes:
        scale: factor of the product of query and key; None: ``D ** -0.5``.
        causal: whether a query reads no key after its own position.
        window: number of positions that a query reads at most, its own the last; None: no window.
        chunk: length of the chunks of positions; a query reads no key before its own chunk; None: no chunks.
        soft_cap: bound c of logits s, which become c * tanh(s / c); None: no bound.
        sinks: additional logit of each query head, neither scaled nor capped, in the denominator only, `f32[Hq]`;
            None: no sinks.
        q_scale: factor of queries; None: 1.
        k_scale: factor of stored keys, by which new keys are divided when they are written; None: 1.
        v_scale: factor of stored values, by which new values are divided when they are written; None: 1.
        num_kv_heads: H; None: that of the new keys, else the number that the rows of the pages have room for, which is
            too large if rows are padded.
        v_head_dim: Dv; None: that of the new values, else D.
        kv_dtype: element type of the pages where they hold bits (`u16`, `u8`); else None or their dtype.
        version: name of the layout of the pages, which ``seq_on_lane`` needs; None: v2 or v3, as they have four
            dimensions or five.
        decode_block: number of keys that a kernel of a TPU works on at a time where it decodes: a power of two, at
            least 128, and whole pages; None: the kernel's own choice. What is computed does not depend on it.
        prefill_block: numbers of query tokens and of keys that it works on at a time elsewhere: query tokens that are a
            multiple of 16 rows (one for each query head of a KV head), and whole pages; None: its own choice.
        validate: whether the values of lengths, bounds and page ids are checked, too, and that no two tokens are
            written to one slot.
    """

    scale: Annotated[float | None, None]
    causal: Annotated[bool, True]
    window: Annotated[int | None, None]
    chunk: Annotated[int | None, None]
    soft_cap: Annotated[float | None, None]
    sinks: Annotated[Any, None]
    q_scale: Annotated[float | None, None]
    k_scale: Annotated[float | None, None]
    v_scale: Annotated[float | None, None]
    num_kv_heads: Annotated[int | None, None]
    v_head_dim: Annotated[int | None, None]
    kv_dtype: Annotated[Any, None]
    version: Annotated[str | None, None]
    decode_block: Annotated[int | None, None]
    prefill_block: Annotated[tuple[int, int] | None, None]
    validate: Annotated[bool, False]


def pool_options(options: ManagerOptions) -> PoolOptions:
    """Those of a manager's options that are its pool's."""
    return cast(PoolOptions, {name: value for name, value in options.items() if name in PoolOptions.__annotations__})


def defaults_of(declared: type) -> dict[str, Any]:
    """The default of each option of a declaration."""
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(declared, include_extras=True).items()}


def takes_options(called: Called, **own: Any) -> Called:
    """A call whose ``**options: Unpack[...]`` hold every declared option: one that is not passed has its default.

    Its signature shows each option as a keyword with its default.

    Args:
        called: the call.
        own: defaults of this call, in place of those declared.

    Raises:
        TypeError: a keyword that is not declared was passed; as if the call took the options one by one.
    """
    signature = inspect.signature(called)
    *named, options = signature.parameters.values()
    (declared,) = get_args(options.annotation)
    defaults, types = {**defaults_of(declared), **own}, get_type_hints(declared)
    known = {*defaults, *(parameter.name for parameter in named)}

    @functools.wraps(called)
    def completing(*arguments: Any, **given: Any) -> Any:
        if not known.issuperset(given):
            unknown = next(name for name in given if name not in known)
            raise TypeError(f"{called.__qualname__}() got an unexpected keyword argument {unknown!r}")
        return called(*arguments, **{**defaults, **given})

    shown = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
        for name, default in defaults.items()
    ]
    completing.__signature__ = signature.replace(parameters=[*named, *shown])  # type: ignore[attr-defined]
    return cast(Called, completing)
