"""The kinds of coordinators, and the choice of one for given cache groups."""

from collections.abc import Sequence
from typing import Unpack

from kvproof.spec.declarations import CacheGroupSpec, ManagerOptions

from ..reading.extra_keys import ExtraSegment
from ..reading.tokens import TokenBytes
from .coordinator import CacheCoordinator
from .group_rules import read_groups
from .longest_hit import Hits, none_hit

__all__ = [
    "CacheCoordinatorNoPrefixCache",
    "HybridCacheCoordinator",
    "UnitaryCacheCoordinator",
    "get_kv_cache_coordinator",
]


class CacheCoordinatorNoPrefixCache(CacheCoordinator):
    """No prefix is cached or found: caching is off, or there is no group."""

    def find_longest_cache_hit(
        self,
        tokens: TokenBytes,  # noqa: ARG002 - nothing is ever found
        segments: Sequence[Sequence[ExtraSegment]],  # noqa: ARG002
        max_cache_hit_length: int,  # noqa: ARG002
        *,
        eagle: bool = True,  # noqa: ARG002
    ) -> tuple[Hits, int]:
        """No pages, and 0 tokens."""
        return none_hit(self.groups), 0


class UnitaryCacheCoordinator(CacheCoordinator):
    """One group. If it keeps all of its pages, a hit is one walk, without candidates to compare."""

    def find_longest_cache_hit(
        self,
        tokens: TokenBytes,
        segments: Sequence[Sequence[ExtraSegment]],
        max_cache_hit_length: int,
        *,
        eagle: bool = True,
    ) -> tuple[Hits, int]:
        """See `CacheCoordinator.find_longest_cache_hit`."""
        group = self.groups[0]
        if group.rule.gives_back or not group.rule.publishes or self.match_unit is not None:
            return super().find_longest_cache_hit(tokens, segments, max_cache_hit_length, eagle=eagle)
        size = group.page_size
        most = limit = max_cache_hit_length // size
        after = eagle and group.is_eagle
        if after:
            limit = min(most + 1, len(tokens) // (4 * size))
        hits = self.page_pool.index.match(group.tree, tokens, segments[0], limit)
        if after and len(hits):
            hits = hits[: min(len(hits) - 1, most)]
        return [hits], len(hits) * size


class HybridCacheCoordinator(CacheCoordinator):
    """Several groups: the hit is the longest length that all of them can serve (MAN-7)."""


def get_kv_cache_coordinator(
    num_pages: int,
    kv_cache_groups: Sequence[CacheGroupSpec],
    max_model_len: int,
    use_eagle: bool,
    enable_caching: bool,
    **options: Unpack[ManagerOptions],
) -> CacheCoordinator:
    """The coordinator that fits the groups: without a prefix cache, of one group, or of several.

    Args:
        num_pages: pages of the pool, the null page included.
        kv_cache_groups: the cache groups.
        max_model_len: the most tokens that a request can have.
        use_eagle: whether an Eagle draft model is served (MAN-9).
        enable_caching: whether prefixes are cached and found.
        options: see `ManagerOptions`.

    Raises:
        TypeError: an element is not a cache group.
        ValueError: groups are contradictory (MAN-7).
    """
    groups = read_groups(kv_cache_groups, use_eagle)
    kind: type[CacheCoordinator] = HybridCacheCoordinator
    if not enable_caching or not groups:
        kind, enable_caching = CacheCoordinatorNoPrefixCache, False
    elif len(groups) == 1:
        kind = UnitaryCacheCoordinator
    return kind(num_pages, groups, max_model_len, use_eagle, enable_caching, **options)
