"""The cache of a model: a view for each layer."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import jax
from jax.sharding import Mesh

from kvproof.spec.declarations.documents import SavedOnMesh, document, layers_of
from kvproof.spec.declarations.partitions import PartitionManager
from kvproof.spec.declarations.showing import ShownCache

from ..reading.arguments import instance, listed, refusal
from . import cache_programs as programs
from .cache_metadata import RaggedPagesCacheMetaData
from .cache_view import RaggedPagesCacheView
from .page_copies import PageIds, fitted, padded_rows, require_block
from .view_arguments import require_kept

__all__ = ["RaggedPagesCache"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RaggedPagesCache(ShownCache, SavedOnMesh):
    """The cache of a model: a pytree of views. Made by `init_cache`.

    A step replaces the views one by one, ``cache.views[layer] = cache.views[layer].concatenate_to_cache(...)``, or
    takes the cache as a donated argument of a jitted function and returns it.

    Attributes:
        views: the view of each layer, in order.
    """

    views: list[RaggedPagesCacheView]

    @classmethod
    def init_cache(
        cls,
        mesh: Mesh | None,
        metadata: RaggedPagesCacheMetaData,
        partition_manager: PartitionManager,
        quantizer: Callable[[Any], Any] | None = None,
    ) -> Self:
        """Allocates the pages of all layers; arguments and errors are those of the views' `init`. O(cache)."""
        layers = range(instance("metadata", metadata, RaggedPagesCacheMetaData).num_hidden_layers)
        return cls([RaggedPagesCacheView.init(mesh, metadata, layer, partition_manager, quantizer) for layer in layers])

    @classmethod
    def init_empty(cls, *args: Any, **kwargs: Any) -> None:
        """Returns None: a cache of this kind always has pages. Kept for compatibility."""

    @property
    def metadata(self) -> RaggedPagesCacheMetaData | None:
        """The metadata of the cache; None without layers."""
        return self.views[0].metadata if self.views else None

    def copy_pages(self, sources: PageIds, destinations: PageIds, num_slots: PageIds | None = None) -> Self:
        """Copies pages, or their first slots, onto others in every layer (MAN-13, MAN-17).

        In place, as with the views' calls that write. Every source is read before any destination is written. Pairs
        with a negative id do nothing. Ids that are on the host are padded, so that few programs are compiled.
        O(pages copied, over all layers).

        Args:
            sources: pages, `i32[n]`; with several data shards `[shards, n]`, in each row a shard's own ids.
            destinations: the pages to write, alike; none twice, and none that is a source.
            num_slots: number of leading slots of each page that are copied, of the same shape; the others stay as they
                are. None: all.

        Returns:
            The cache with the pages copied.

        Raises:
            TypeError: an id or a number of slots is no integer.
            ValueError: one does not fit an int32, or the shapes do not fit each other or the shards (R1); the pages
                were donated to an earlier call that wrote (CACHE-3).
        """
        metadata = self.metadata
        if metadata is None:
            return self
        named = {"sources": sources, "destinations": destinations}
        if num_slots is not None:
            named["num_slots"] = num_slots
        orders = padded_rows(metadata.num_page_shards, **named)
        pages = require_kept([view.kv_pages for view in self.views])
        copies = programs.copied(pages, orders, self.views[0].place, metadata.version)
        return self.replace(
            views=[view.replace(kv_pages=copied) for view, copied in zip(self.views, copies, strict=True)]
        )

    # -- To and from host memory ------------------------------------------------------------------

    def export_pages(self, page_ids: PageIds, num_slots: PageIds) -> list[Any]:
        """Starts copying pages of every layer to the host, unused slots zeroed (SWAP-2). O(pages exported).

        The copies are started, not waited for: `numpy.asarray` of the result waits. Pages may be written as soon as
        this returns, as programs dispatched later run after the gather. Ids are padded, so that few programs are
        compiled.

        Args:
            page_ids: `i32[n]`, with several data shards `[shards, n]`, in each row a shard's own; -1 gives zeros.
            num_slots: the number of leading slots in use of each page, of the same shape.

        Returns:
            For each layer pages as the view has them, `[shards * m, ...]`, m being n or the next of 16, 64, 256,
            ...: rows behind the n-th of each shard are zeros.

        Raises:
            TypeError: an id is no integer.
            ValueError: an id does not fit an int32, or the shapes do not fit each other or the shards (R1); the pages
                were donated to an earlier call that wrote (CACHE-3).
        """
        metadata = self.metadata
        if metadata is None:
            return []
        ids, slots = padded_rows(metadata.num_page_shards, page_ids=page_ids, num_slots=num_slots)
        pages = require_kept([view.kv_pages for view in self.views])
        block: list[Any] = programs.exported(pages, ids, slots, self.views[0].place, metadata.version)
        for array in jax.tree.leaves(block):
            if not isinstance(array, jax.core.Tracer):
                array.copy_to_host_async()
        return block

    def import_pages(self, page_ids: PageIds, block: Sequence[Any]) -> Self:
        """Writes exported pages onto pages of every layer, in place as with the views' calls that write (SWAP-2).

        Args:
            page_ids: the pages to write, none twice, as in `export_pages`; -1 writes nothing.
            block: for each layer pages `[shards * k, ...]` as `export_pages` gave them, on the host or on the
                device; rows behind the n-th of each shard are not read.

        Returns:
            The cache with the pages replaced. O(pages imported).

        Raises:
            TypeError: an id is no integer, or a layer's pages are of another kind or dtype.
            ValueError: an id does not fit an int32; the shapes do not fit; there are not as many layers (R1); the pages
                were donated to an earlier call that wrote (CACHE-3).
        """
        metadata = self.metadata
        layers = listed("block", block)
        if len(layers) != len(self.views):
            raise refusal(ValueError, "SWAP-2", f"block has {len(layers)} layers, the cache {len(self.views)}")
        if metadata is None:
            return self
        pages = require_kept([view.kv_pages for view in self.views])
        (ids,) = padded_rows(metadata.num_page_shards, page_ids=page_ids)
        fitting = [
            jax.tree.map(partial(fitted, metadata.num_page_shards, ids), own, given)
            for own, given in zip(pages, map(require_block, pages, layers), strict=True)
        ]
        written = programs.imported(pages, ids, fitting, self.views[0].place)
        return self.replace(views=[view.replace(kv_pages=new) for view, new in zip(self.views, written, strict=True)])

    # -- Documents --------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The cache as a JSON document; see `documents`. Waits for the device. O(cache)."""
        return document("RaggedPagesCache", {"views": [view.to_dict() for view in self.views]})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], mesh: Mesh | None = None) -> Self:
        """Reads a document; see `SavedOnMesh.from_dict`. O(cache)."""
        return cls(layers_of(data, lambda view: RaggedPagesCacheView.from_dict(view, mesh)))
