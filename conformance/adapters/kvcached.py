"""kvcached 0.1.6's ``KVCacheManager`` over its ``PageAllocator``, unmodified and on the CPU, as a page pool.

Its blocks are our pages; its own pages, of 2 MiB that are mapped and unmapped together, hold one, two or four of them
here, as the number of ours is divisible by. Block 0 is reserved for padding, as its engines ask for. Its tensors lie on
the device ``cpu``, which its extension knows beside GPUs, and which maps nothing: what is looked at are its lists of
free pages and of free blocks in a page. Pages in reserve are mapped by a thread of its own at times that nobody
chooses; that is off, unless ``KVCACHED_PAGE_PREALLOC_ENABLED`` is set.

It counts no holds and knows no cache; its patches of vLLM and SGLang, which do, are not looked at.
"""

import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from .peers import Peer

__all__ = ["PagePool", "kvproof_lacks", "kvproof_made_for"]

kvproof_made_for = Peer(
    "kvcached",
    ("0.1.6",),
    "in a clone, pip install torch==2.13.0 numpy posix_ipc wrapt setuptools wheel ninja nvidia-cuda-runtime==13.0.96 "
    "nvidia-cuda-crt==13.0.88 && python -m tests.demonstrations.kvcached_build; "
    "with CUDA, pip install --no-build-isolation kvcached==0.1.6",
)

kvproof_lacks = (
    *("groups", "events", "counters", "batch", "pins", "snapshots", "swaps", "shards", "keys", "views"),
    *("queue", "tables", "caches", "kernels"),
)
"""What it does not have, or shows in no way that can be compared."""

_SETTINGS = {"KVCACHED_PAGE_PREALLOC_ENABLED": "false", "KVCACHED_LOG_LEVEL": "CRITICAL"}
_groups = itertools.count()
"""Each pool has tensors of its own, as its engines' pools of different layers have."""


class PagePool:
    """A ``KVCacheManager`` of one layer.

    Args:
        num_pages: see ``num_blocks``.
        enable_caching: it knows no cache.
    """

    def __init__(self, num_pages: Any, enable_caching: Any) -> None:
        del enable_caching
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        operations = kvproof_made_for.module("kvcached.vmm_ops")
        manager = kvproof_made_for.module("kvcached.kv_cache_manager")
        group, size = next(_groups), manager.PAGE_SIZE
        block = next(size // blocks for blocks in (4, 2, 1) if num_pages % blocks == 0)
        if not group:
            operations.init_kvcached("cpu", size, manager.CONTIGUOUS_LAYOUT)
        operations.create_kv_tensors(num_pages * block, 1, "cpu", 1, num_kv_buffers=1, group_id=group)
        with _quiet():
            self.manager = manager.KVCacheManager(
                num_pages, 1, block, 1, reserve_null_block=True, num_kv_buffers=1, group_id=group
            )
        self.manager.trim()  # waits until block 0 is reserved
        self.null_page = SimpleNamespace(page_id=0)

    def get_num_free_pages(self) -> int:
        """See ``available_size``."""
        return int(self.manager.available_size())

    def get_new_pages(self, num_pages: Any) -> list[Any]:
        """See ``alloc``, which gives None where there is no room."""
        blocks = self.manager.alloc(num_pages)
        if blocks is None:
            raise ValueError(f"num_pages={num_pages!r}: alloc gave None")
        return [SimpleNamespace(page_id=block) for block in blocks]

    def free_pages(self, ordered_pages: Iterable[Any]) -> None:
        """See ``free``, which is not told of block 0: its pool for vLLM leaves out the null block, too."""
        self.manager.free([page.page_id for page in ordered_pages if page.page_id])


@contextmanager
def _quiet() -> Iterator[None]:
    """Takes from the standard output what its extension writes there whenever an allocator is made."""
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
