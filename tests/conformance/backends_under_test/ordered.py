"""A correct backend that is built otherwise: page objects in an `OrderedDict`, one group of full attention."""

from .ordered_keys import (
    PageHash,
    PageHashWithGroupId,
    hash_page_tokens,
    hash_request_tokens,
    init_none_hash,
    sha256,
)
from .ordered_manager import CacheManager, CachePages
from .ordered_pool import PagePool
from .ordered_tables import MultiGroupPageTable, PageTable

__all__ = [
    "CacheManager",
    "CachePages",
    "MultiGroupPageTable",
    "PageHash",
    "PageHashWithGroupId",
    "PagePool",
    "PageTable",
    "hash_page_tokens",
    "hash_request_tokens",
    "init_none_hash",
    "kvproof_lacks",
    "sha256",
]

kvproof_lacks = ("groups", "events", "counters", "batch", "pins", "snapshots", "shards", "caches", "kernels")
"""What this backend does not have."""
