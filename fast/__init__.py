"""The production backend: what an inference engine imports.

The names and meanings are the specification's (`kvproof.spec`), each room under the same name; the code shares
nothing with it but the declarations of requests and cache groups.
"""

from kvproof.spec.declarations import (
    CacheGroupSpec,
    CacheSalt,
    EngineRequest,
    EngineRequestStatus,
    ExtraKey,
    FullAttentionSpec,
    HashFunction,
    LoraAdapter,
    MultimodalItem,
    PromptEmbeddings,
    Request,
    SamplingParams,
    WeightsVersion,
)

from .cache_manager import CacheManager, CachePages
from .follower import CacheFollower
from .free_queue import FreeCachePageQueue
from .hashing import (
    NONE_HASH,
    PageHash,
    PageHashes,
    PageHashWithGroupId,
    hash_page_tokens,
    hash_request_tokens,
    init_none_hash,
    sha256,
)
from .page_pool import PagePool
from .page_table import MultiGroupPageTable, PageTable, cdiv
from .pages import CachePage, PageList

__all__ = [
    "NONE_HASH",
    "CacheFollower",
    "CacheGroupSpec",
    "CacheManager",
    "CachePage",
    "CachePages",
    "CacheSalt",
    "EngineRequest",
    "EngineRequestStatus",
    "ExtraKey",
    "FreeCachePageQueue",
    "FullAttentionSpec",
    "HashFunction",
    "LoraAdapter",
    "MultiGroupPageTable",
    "MultimodalItem",
    "PageHash",
    "PageHashWithGroupId",
    "PageHashes",
    "PageList",
    "PagePool",
    "PageTable",
    "PromptEmbeddings",
    "Request",
    "SamplingParams",
    "WeightsVersion",
    "cdiv",
    "hash_page_tokens",
    "hash_request_tokens",
    "init_none_hash",
    "sha256",
]
