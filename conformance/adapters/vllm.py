"""vLLM 0.33.0, unmodified: its block pool, its KV-cache manager and its block tables, under our names.

Names and shapes are translated, nothing else: a block is a page, a group of blocks that a call takes or gives is a list
of pages, one of its own requests stands for each of ours. No fault is mended and none is added; what it does not check
stays unchecked. The modules beside this one hold the parts, and import vLLM when one of these names is first asked for.

It runs on a CPU. What it cannot show there, or does not have, is lacking: its keys are digests without token ids, its
events name no pages, its slot mapping is a kernel for a GPU, its page views are plain objects with public fields. Its
common prefix is left out: it is zeros, kept for the name's sake.
"""

import importlib
import logging
import os
from collections.abc import Sequence
from typing import Any

from .peers import Peer

__all__ = ["VLLM", "kvproof_lacks", "kvproof_made_for", "kvproof_takes_groups"]

VLLM = kvproof_made_for = Peer(
    "vllm",
    ("0.33.0",),
    "pip install vllm==0.33.0 (or, without a GPU, pip install torch==2.13.0 && pip install --no-deps vllm==0.33.0 && "
    "pip install aiohttp cachetools cbor2 cloudpickle fastapi llguidance msgspec openai openai-harmony "
    "partial-json-parser pillow prometheus-client psutil py-cpuinfo pybase64 pydantic pyzmq regex requests "
    "transformers urllib3 uvloop xgrammar)",
)

kvproof_lacks = ("keys", "views", "events", "counters", "batch", "pins", "snapshots", "shards", "caches", "kernels")
"""What it does not have, or shows in no way that can be compared."""

_PARTS = {
    "CachePage": "pages",
    "FreeCachePageQueue": "pages",
    "PagePool": "pool",
    "CacheGroupSpec": "groups",
    "ChunkedLocalAttentionSpec": "groups",
    "FullAttentionSpec": "groups",
    "MLAAttentionSpec": "groups",
    "MambaSpec": "groups",
    "SlidingWindowSpec": "groups",
    "CacheManager": "manager",
    "CachePages": "manager",
    "PageTable": "tables",
    "MultiGroupPageTable": "tables",
}
"""In which of the modules beside this one each name is."""


def __getattr__(name: str) -> Any:
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")  # else a machine without a GPU has no platform to it
    VLLM.module("vllm")
    logging.getLogger("vllm").setLevel(logging.ERROR)  # else it warns of each refused reset
    return getattr(importlib.import_module(f".vllm_{_PARTS[name]}", __package__), name)


def kvproof_takes_groups(groups: Sequence[Any], use_eagle: bool) -> bool:
    """Whether its manager takes some groups together: other mixes it refuses by assertions, some when first looked up.

    There is at least one group; states are of mode align; chunked local attention has pages as large as every other
    group's, and no Eagle draft model. States of mode align with pages of several sizes are left out: their hits end
    amid a page, which is another interface.

    Args:
        groups: what was drawn, each with its ``kind`` and ``page_size``.
        use_eagle: whether an Eagle draft model runs.
    """
    kinds = {group.kind for group in groups}
    if not kinds or "state" in kinds or ("chunk" in kinds and use_eagle):
        return False
    return len({group.page_size for group in groups}) == 1 or kinds.isdisjoint({"chunk", "aligned"})
