"""The declarations that both backends share: requests, cache groups, options, events, documents, fields of caches.

Nothing here decides which page goes where. ``kvproof.fast`` imports these modules of the specification and no others.
"""

from .events import NUM_BUCKETS, CacheCleared, CacheCounters, CacheEvent, PageCopy, PageRemoved, PageStored, PartCopy
from .eviction import EvictionCounters, EvictionPolicy
from .extra_keys import (
    CacheSalt,
    ExtraKey,
    HashFunction,
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    WeightsVersion,
    sha256,
)
from .groups import (
    AttentionSpec,
    CacheGroupSpec,
    CacheSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from .options import AttentionOptions, ManagerOptions, PoolOptions, defaults_of, pool_options, takes_options
from .requests import EngineRequest, EngineRequestStatus, Request, SamplingParams, SupportsPromptLogprobs
from .swaps import SwapCopy, SwapPlan

__all__ = [
    "NUM_BUCKETS",
    "AttentionOptions",
    "AttentionSpec",
    "CacheCleared",
    "CacheCounters",
    "CacheEvent",
    "CacheGroupSpec",
    "CacheSalt",
    "CacheSpec",
    "ChunkedLocalAttentionSpec",
    "EngineRequest",
    "EngineRequestStatus",
    "EvictionCounters",
    "EvictionPolicy",
    "ExtraKey",
    "FullAttentionSpec",
    "HashFunction",
    "LoraAdapter",
    "MLAAttentionSpec",
    "MambaSpec",
    "ManagerOptions",
    "MultimodalItem",
    "PageCopy",
    "PageRemoved",
    "PageStored",
    "PartCopy",
    "PoolOptions",
    "PromptEmbeddings",
    "Request",
    "SamplingParams",
    "SlidingWindowSpec",
    "SupportsPromptLogprobs",
    "SwapCopy",
    "SwapPlan",
    "WeightsVersion",
    "defaults_of",
    "pool_options",
    "sha256",
    "takes_options",
]
