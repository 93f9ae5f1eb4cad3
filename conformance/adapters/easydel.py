"""EasyDeL 0.3.0, unmodified: its page pool, cache manager and page tables, whose names are the original of ours.

The names are the package's own classes. Where a call takes a request, one of its own ``EngineRequest`` is given, which
is kept as ours is; where groups are declared, its own declarations are made. Nothing else is translated: no fault of
the package is mended, none is added. An ``EngineRequest`` has a place for multimodal content, and none for a salt, a
LoRA adapter or a version of the weights: those don't arrive.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from kvproof.spec.declarations import MultimodalItem, PromptEmbeddings, Request

from .peers import Peer

__all__ = ["EASYDEL", "kvproof_lacks", "kvproof_made_for", "kvproof_takes_groups"]

EASYDEL = kvproof_made_for = Peer("easydel", ("0.3.0",), "pip install easydel==0.3.0 pillow")
"""Its engine imports Pillow, which it does not name. To be installed before kvproof: it takes jax back to 0.9."""

kvproof_lacks = (
    *("events", "counters", "batch", "pins", "snapshots", "shards", "keys", "views", "iterables", "caches", "kernels"),
)
"""What it does not have. Its keys are made otherwise, so that only what is found by them is compared."""

_HOMES = {
    "CacheGroupSpec": "core.interface",
    "CachePage": "core.utils",
    "CachePages": "core.manager",
    "FreeCachePageQueue": "core.utils",
    "MultiGroupPageTable": "page_table",
    "PageHash": "core.utils",
    "PageHashWithGroupId": "core.utils",
    "PageTable": "page_table",
    "cdiv": "page_table",
}
"""Where the package's own names are, which are handed on as they are."""

_STATUS = {"WAITING": "WAITING", "RUNNING": "RUNNING", "PREEMPTED": "PREEMPTED", "FINISHED": "FINISHED_STOPPED"}


def kvproof_takes_groups(groups: Sequence[Any], use_eagle: bool) -> bool:
    """Whether its manager takes some groups together.

    It takes one group, or groups of full attention and of one other kind, all of the one before all of the other, the
    other's pages being of a multiple of the size. States are of mode none, no group is flagged as Eagle's, and chunks
    don't go with Eagle.

    Args:
        groups: what was drawn, each with its ``kind``, ``page_size``, ``extent`` and ``flagged``.
        use_eagle: whether an Eagle draft model runs.
    """
    if any(group.kind == "aligned" or group.flagged for group in groups):
        return False
    if use_eagle and any(group.kind == "chunk" for group in groups):
        return False
    if len(groups) < 2:
        return True
    is_full = [group.kind in ("full", "mla") for group in groups]
    full = {(group.kind, group.page_size) for group, flag in zip(groups, is_full, strict=True) if flag}
    other = {(g.kind, g.page_size, g.extent) for g, flag in zip(groups, is_full, strict=True) if not flag}
    if len(full) != 1 or len(other) != 1 or sum(map(bool.__ne__, is_full, is_full[1:])) != 1:
        return False
    return bool(next(iter(other))[1] % next(iter(full))[1] == 0)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(_module(_HOMES[name]), name)
    if name in _MADE:
        return _MADE[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _module(name: str) -> Any:
    # Its own switch. Else it adds flags for GPUs to XLA_FLAGS, at which the jaxlib of today ends the process.
    os.environ.setdefault("EASYDEL_AUTO", "0")
    os.environ.setdefault("LOGGING_LEVEL_ED", "ERROR")  # it tells of every reset of a cache
    return EASYDEL.module(f"easydel.inference.esurge.{name}")


# -- Requests -----------------------------------------------------------------------------------------------


class _Requests:
    """The package's requests, one for each of ours; other objects are left as they are."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Request, Any]] = {}

    def of(self, request: Any) -> Any:
        """The package's request for one of ours, brought up to date."""
        if not isinstance(request, Request):
            return request
        _, theirs = self._known.setdefault(id(request), (request, _new_request(request)))
        more = [int(token) for token in request.all_token_ids[theirs.num_tokens :]]
        theirs.append_output_token_ids(more)
        theirs.num_computed_tokens = request.num_computed_tokens
        theirs.status = getattr(_module("request").EngineRequestStatus, _STATUS[request.status.name])
        return theirs


def _new_request(request: Request) -> Any:
    params = EASYDEL.module("easydel.inference.sampling_params").SamplingParams
    types = _module("multimodal.types")
    features = [
        types.MultiModalFeature(
            key.content.hex(), "image", None, None, types.PlaceholderRange(key.offset, key.length, "image")
        )
        for key in request.extra_keys
        if isinstance(key, MultimodalItem | PromptEmbeddings)
    ]
    return _module("request").EngineRequest(
        request_id=request.request_id,
        prompt_token_ids=[int(token) for token in request.all_token_ids],
        sampling_params=params(prompt_logprobs=request.sampling_params.prompt_logprobs),
        eos_token_id=None,
        mm_features=features,
    )


# -- The pool and the manager -------------------------------------------------------------------------------


@functools.cache
def _page_pool() -> Any:
    module: Any = _module("core.page_pool")
    _module("core.utils").init_none_hash()  # its managers do so; a pool alone cannot cache before one was made

    class PagePool(module.PagePool):  # type: ignore[misc] # imported when needed
        """Its pool, given requests of its own."""

        def cache_full_pages(self, request: Any, *arguments: Any, **options: Any) -> Any:
            """See its own."""
            return super().cache_full_pages(_Requests().of(request), *arguments, **options)

    return PagePool


@functools.cache
def _cache_manager() -> Any:
    module: Any = _module("core.manager")

    class CacheManager(module.CacheManager):  # type: ignore[misc] # imported when needed
        """Its manager, given requests of its own."""

        @functools.cached_property
        def requests(self) -> _Requests:
            """Its own requests."""
            return _Requests()

        def get_computed_pages(self, request: Any) -> Any:
            """See its own."""
            return super().get_computed_pages(self.requests.of(request))

        def allocate_slots(self, request: Any, *arguments: Any, **options: Any) -> Any:
            """See its own."""
            return super().allocate_slots(self.requests.of(request), *arguments, **options)

        def free(self, request: Any) -> Any:
            """See its own."""
            return super().free(self.requests.of(request))

        def free_page_hashes(self, request: Any) -> Any:
            """See its own."""
            return super().free_page_hashes(self.requests.of(request))

        def cache_pages(self, request: Any, num_computed_tokens: Any) -> Any:
            """See its own."""
            return super().cache_pages(self.requests.of(request), num_computed_tokens)

        def get_num_common_prefix_pages(self, request: Any, num_scheduled_requests: Any) -> Any:
            """See its own."""
            return super().get_num_common_prefix_pages(self.requests.of(request), num_scheduled_requests)

    return CacheManager


# -- Groups -------------------------------------------------------------------------------------------------


@functools.cache
def _declaration(name: str, **more: Any) -> Any:
    made = getattr(_module("core.interface"), name)

    def declare(page_size: Any, num_kv_heads: Any, head_size: Any, dtype: Any, **options: Any) -> Any:
        return made(
            page_size=page_size, num_kv_heads=num_kv_heads, head_size=head_size, dtype=dtype,
            **{"use_mla": False} | more | options,
        )  # fmt: skip

    return declare


@functools.cache
def _mamba_spec() -> Any:
    made = _module("core.interface").MambaSpec

    def declare(page_size: Any, shapes: Any, dtypes: Any, mamba_cache_mode: str = "none") -> Any:
        if mamba_cache_mode != "none":
            raise ValueError(f"mamba_cache_mode {mamba_cache_mode!r} is none that EasyDeL has")
        return made(page_size=page_size, shapes=shapes, dtype=dtypes[0])

    return declare


_MADE: dict[str, Callable[[], Any]] = {
    "CacheManager": _cache_manager,
    "ChunkedLocalAttentionSpec": functools.partial(_declaration, "ChunkedLocalAttentionSpec"),
    "FullAttentionSpec": functools.partial(_declaration, "FullAttentionSpec"),
    "MLAAttentionSpec": functools.partial(_declaration, "FullAttentionSpec", use_mla=True),
    "MambaSpec": _mamba_spec,
    "PagePool": _page_pool,
    "SlidingWindowSpec": functools.partial(_declaration, "SlidingWindowSpec"),
}
"""What makes the names that translate."""
