"""SWAP-2: exporting a cached prefix from a cache and importing it into another: its pages, their keys and order.

The pages of a group are those that a hit of ``num_tokens`` tokens needs, in the order of their places. An exported
prefix has no token ids and no salts (SEC-2). `declarations.prefix_files` describes the format of its file.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cache.ragged_cache import RaggedPagesCache
from ..cache.state_pages import StatePages
from ..declarations import EngineRequest
from ..declarations.prefix_files import ExportedPrefix, in_common, require_in_common
from ..manager.cache_manager import CacheManager
from ..pool.hashing import hash_request_tokens
from ..reading.arguments import integer, refusal

__all__ = ["export_prefix", "import_prefix"]

_KINDS = RaggedPagesCache, StatePages


def export_prefix(
    manager: CacheManager, request: EngineRequest, caches: Sequence[Any], model: str
) -> ExportedPrefix | None:
    """Exports the longest cached prefix of a request; the cache keeps it.

    Args:
        manager: the manager of the cache.
        request: the request; its last token is never part of the prefix, as in every hit.
        caches: the pages of each group: a `RaggedPagesCache`, or the `StatePages` of each layer.
        model: a fingerprint of the model.

    Returns:
        The prefix; None if nothing is cached (MAN-1).

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: not a cache for each group, or a cache of several page shards.
    """
    common = in_common(manager, caches, model, _KINDS)
    pages, num_tokens = manager.get_computed_pages(request)
    if num_tokens == 0:
        return None
    keys = _keys(manager, request, num_tokens)
    arrays = {}
    for group, cache in enumerate(caches):
        ids = [page for page in pages.get_page_ids()[group] if page != 0]
        for layer, parts in enumerate(_layers(cache)):
            for part, array in enumerate(parts):
                arrays[f"{group}.{layer}.{part}"] = array[ids].view(f"u{array.dtype.itemsize}")
    return ExportedPrefix.of(common, num_tokens, keys, arrays)


def import_prefix(
    manager: CacheManager, request: EngineRequest, caches: Sequence[Any], model: str, exported: ExportedPrefix
) -> list[Any] | None:
    """Imports an exported prefix into a cache, where later requests hit it like any cached prefix.

    Args:
        manager: the manager of the cache.
        request: a request that begins with the prefix; not live.
        caches: the pages of each group, as for `export_prefix`.
        model: a fingerprint of the model.
        exported: the prefix.

    Returns:
        The caches after the import; None if too few pages are free: then nothing has changed.

    Raises:
        TypeError: an argument of a wrong type.
        ValueError: another model, hash seed, page size, layout or dtype; another prefix than the request's; arrays of
            other shapes than the caches' pages; or what `CacheManager.receive_pages` refuses.
    """
    require_in_common(exported, in_common(manager, caches, model, _KINDS))
    num_tokens = integer("exported.num_tokens", exported.header["num_tokens"], minimum=1)
    if num_tokens > request.num_tokens or any(num_tokens % rules.page_size for rules in manager.coordinator.rules):
        raise refusal(ValueError, "SWAP-2", f"exported.num_tokens={num_tokens} is no whole prefix of the request")
    keys = _keys(manager, request, num_tokens)
    if exported.header["keys"] != keys:
        raise refusal(ValueError, "SWAP-2", "exported.keys are not those of the request's prefix")
    wanted = {
        f"{group}.{layer}.{part}": ((len(keys[group]), *array.shape[1:]), f"u{array.dtype.itemsize}", array.dtype)
        for group, cache in enumerate(caches)
        for layer, parts in enumerate(_layers(cache))
        for part, array in enumerate(parts)
    }
    found = {name: (array.shape, array.dtype) for name, array in exported.arrays.items()}
    if found != {name: (shape, np.dtype(kind)) for name, (shape, kind, _) in wanted.items()}:
        raise refusal(ValueError, "SWAP-2", "exported.arrays are not the pages of these caches")
    plan = manager.receive_pages(request, num_tokens)
    if plan is None:
        return None
    after: list[Any] = []
    before = 0
    for group, cache in enumerate(caches):
        copies = [copy for copy in plan.copies if copy.group_id == group]
        rows = [copy.host_page - before for copy in copies]
        before += len(keys[group])
        ids = np.array([copy.device_page for copy in copies], np.int32)
        layers = [
            [
                exported.arrays[name].view(wanted[name][2])[rows]
                for name in (f"{group}.{layer}.{part}" for part in range(len(parts)))
            ]
            for layer, parts in enumerate(_layers(cache))
        ]
        if isinstance(cache, RaggedPagesCache):
            kinds = [type(view.kv_pages) for view in cache.views]
            given = [
                kind(*parts) if issubclass(kind, tuple) else parts[0] for kind, parts in zip(kinds, layers, strict=True)
            ]
            after.append(cache.import_pages(ids.tolist(), given))
        else:
            after.append([own.write(ids, parts) for own, parts in zip(cache, layers, strict=True)])
    manager.swap_done(plan.swap_id)
    return after


def _layers(cache: Any) -> list[list[NDArray[Any]]]:
    """The arrays of each layer, `[P, ...]`."""
    if isinstance(cache, RaggedPagesCache):
        pages = [view.kv_pages for view in cache.views]
        return [list(own) if isinstance(own, tuple) else [own] for own in pages]
    return [list(own.pages) for own in cache]


def _keys(manager: CacheManager, request: EngineRequest, num_tokens: int) -> list[list[str]]:
    """The digests of the pages that a hit of ``num_tokens`` tokens needs, for each group."""
    pool, keys = manager.page_pool, []
    for rules in manager.coordinator.rules:
        chain = hash_request_tokens(pool.hash_function, rules.page_size, request, none_hash=pool.none_hash)
        needed = chain[rules.first_place(num_tokens) : num_tokens // rules.page_size]
        keys.append([key.hash_value.hex() for key in needed])
    return keys
