"""SWAP-2: a cached prefix exported to another process: content, keys and order in one file, validated on import.

For prefill and decode on different machines: one side computes a prompt and exports its pages, the other imports them,
where this request and others can hit them like any cached prefix.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from kvproof.kernels import ScaledPages
from kvproof.spec.declarations import EngineRequest
from kvproof.spec.declarations.prefix_files import ExportedPrefix, in_common, require_in_common

from ..cache.ragged_cache import RaggedPagesCache
from ..cache.state_pages import StatePages
from ..manager.cache_manager import CacheManager
from ..pool.hashing import hash_request_tokens
from ..reading.arguments import integer, refusal

__all__ = ["export_prefix", "import_prefix"]

_KINDS = RaggedPagesCache, StatePages

Caches = RaggedPagesCache | Sequence[StatePages]
"""The pages of a group: the cache of its attention layers, or the states of each layer."""


def export_prefix(
    manager: CacheManager, request: EngineRequest, caches: Sequence[Caches], model: str
) -> ExportedPrefix | None:
    """The longest cached prefix of a request, with what its pages hold (SWAP-2). Waits for the device. O(pages).

    Args:
        manager: the manager that has cached it.
        request: any request with its tokens and extra keys; usually live, so that its pages stay cached. A hit leaves
            one token to compute (MAN-1): a whole prompt is exported once the token behind it is known.
        caches: the pages of each group.
        model: a fingerprint of the model and its weights, which is not interpreted.

    Returns:
        The prefix; None if nothing is cached.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: there are not as many caches as groups, or a cache has several data shards.
    """
    common = in_common(manager, caches, model, _KINDS)
    pages, num_tokens = manager.get_computed_pages(request)
    if not num_tokens:
        return None
    ids = [[page for page in own if page] for own in pages.get_page_ids()]
    keys = _keys(manager, request, num_tokens, [len(own) for own in ids])
    arrays: dict[str, Any] = {}
    for group, (cache, own) in enumerate(zip(caches, ids, strict=True)):
        if isinstance(cache, RaggedPagesCache):
            assert cache.metadata is not None, "it was looked at"
            layers = cache.export_pages(own, [cache.metadata.page_size] * len(own))
            parts = [tuple(layer) if isinstance(layer, ScaledPages) else (layer,) for layer in layers]
        else:
            parts = [layer.read(np.array(own, np.int32)) for layer in cache]
        for layer, arrays_of_layer in enumerate(parts):
            for part, array in enumerate(arrays_of_layer):
                stored = np.ascontiguousarray(np.asarray(array)[: len(own)])
                arrays[f"{group}.{layer}.{part}"] = stored.view(f"u{stored.dtype.itemsize}")
    return ExportedPrefix.of(common, num_tokens, keys, arrays)


def import_prefix(
    manager: CacheManager, request: EngineRequest, caches: Sequence[Caches], model: str, exported: ExportedPrefix
) -> list[Caches] | None:
    """Puts an exported prefix into a cache, where it is hit like any other from then on (SWAP-2). O(pages).

    Copies are dispatched before this returns, and all that is dispatched later runs after them; see
    `CacheManager.receive_pages`.

    Args:
        manager: the manager that is to cache it.
        request: a request with the prefix's tokens and extra keys, not live.
        caches: the pages of each group, which are donated: they are written in place and invalid afterwards.
        model: the fingerprint of the model here.
        exported: the prefix.

    Returns:
        The caches with its pages; None if too few pages are free: then nothing has changed.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the prefix is of another model, hash seed, page size, layout or dtype, of other tokens or extra
            keys, or damaged; or what `receive_pages` refuses. Nothing has changed.
    """
    header = exported.header
    require_in_common(exported, in_common(manager, caches, model, _KINDS))
    num_tokens = integer("exported num_tokens", header["num_tokens"], minimum=1)
    if any(num_tokens % group.kv_cache_spec.page_size for group in manager.kv_cache_groups):
        raise refusal(ValueError, "SWAP-2", f"exported: num_tokens={num_tokens} must be a multiple of every page size")
    groups = manager.coordinator.groups
    counts = [num_tokens // group.rule.page_size - group.rule.first_place(num_tokens) for group in groups]
    if num_tokens > request.num_tokens or header["keys"] != _keys(manager, request, num_tokens, counts):
        raise refusal(ValueError, "SWAP-2", "exported: its keys are not those of the request's prefix")
    blocks = [_block(exported, number, cache, counts[number]) for number, cache in enumerate(caches)]
    if len(exported.arrays) != sum(len(parts) for block in blocks for parts in block):
        raise refusal(ValueError, "SWAP-2", "exported: it has arrays that belong to no layer")
    plan = manager.receive_pages(request, num_tokens)
    if plan is None:
        return None
    after: list[Caches] = []
    starts = np.cumsum([0, *counts]).tolist()
    for number, (cache, block) in enumerate(zip(caches, blocks, strict=True)):
        copies = [copy for copy in plan.copies if copy.group_id == number]
        rows = [copy.host_page - starts[number] for copy in copies]
        ids = [copy.device_page for copy in copies]
        moved = [tuple(part[rows] for part in parts) for parts in block]
        if not copies:
            after.append(cache)
        elif isinstance(cache, RaggedPagesCache):
            layers = [ScaledPages(*parts) if len(parts) > 1 else parts[0] for parts in moved]
            after.append(cache.import_pages(ids, layers))
        else:
            pages = np.array(ids, np.int32)
            after.append([layer.write(pages, parts) for layer, parts in zip(cache, moved, strict=True)])
    manager.swap_done(plan.swap_id)
    return after


def _keys(manager: CacheManager, request: EngineRequest, num_tokens: int, counts: Sequence[int]) -> list[list[str]]:
    """For each group the digests of the last ``counts[group]`` pages of a prefix."""
    pool = manager.page_pool
    keys = []
    for group, count in zip(manager.kv_cache_groups, counts, strict=True):
        size = group.kv_cache_spec.page_size
        chain = hash_request_tokens(pool.hash_function, size, request, none_hash=pool.none_hash)[: num_tokens // size]
        keys.append([key.hash_value.hex() for key in chain[len(chain) - count :]])
    return keys


def _block(exported: ExportedPrefix, group: int, cache: Caches, count: int) -> list[list[Any]]:
    """The ``count`` pages of one group as arrays of each layer."""
    if isinstance(cache, RaggedPagesCache):
        layers = [jax.tree.leaves(view.kv_pages) for view in cache.views]
        kinds = [[part.dtype for part in parts] for parts in layers]
    else:
        layers = [list(own.pages) for own in cache]
        kinds = [list(own.dtypes) for own in cache]
    block: list[list[Any]] = []
    for layer, (parts, dtypes) in enumerate(zip(layers, kinds, strict=True)):
        block.append([])
        for part, (pages, dtype) in enumerate(zip(parts, dtypes, strict=True)):
            array = exported.arrays.get(f"{group}.{layer}.{part}")
            stored = np.dtype(f"u{np.dtype(dtype).itemsize}")
            if array is None or array.dtype != stored or array.shape != (count, *pages.shape[1:]):
                raise refusal(
                    ValueError, "SWAP-2", f"exported: part {part} of layer {layer} of group {group} is damaged"
                )
            block[-1].append(array.view(dtype))
    return block
