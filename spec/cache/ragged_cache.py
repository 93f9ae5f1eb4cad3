"""CACHE: the pages of all layers of a model."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from ..declarations.documents import SavedOnMesh, document, layers_of
from ..declarations.showing import ShownCache
from ..layout.cache_dtypes import ScaledPages
from ..layout.states import copy_pages, export_pages, write_states
from ..reading.arguments import instance, listed, refusal
from .cache_metadata import RaggedPagesCacheMetaData
from .cache_view import RaggedPagesCacheView
from .state_pages import global_ids, slot_counts

__all__ = ["RaggedPagesCache"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RaggedPagesCache(ShownCache, SavedOnMesh):
    """The pages of all layers of a model. A cache is immutable: writes return a new one.

    Attributes:
        views: the view of each layer, in order.
    """

    views: list[RaggedPagesCacheView]

    @classmethod
    def init_cache(
        cls,
        mesh: Any,
        metadata: RaggedPagesCacheMetaData,
        partition_manager: Any,
        quantizer: Callable[..., Any] | None = None,
    ) -> Self:
        """The pages of all layers, all zero; see `RaggedPagesCacheView.init`, also for what is refused.

        Args:
            mesh: the mesh of devices; None: one device.
            metadata: the static description of the cache.
            partition_manager: what decides how the pages are split over the mesh.
            quantizer: see `RaggedPagesCacheView.init`.
        """
        layers = range(instance("metadata", metadata, RaggedPagesCacheMetaData).num_hidden_layers)
        return cls([RaggedPagesCacheView.init(mesh, metadata, layer, partition_manager, quantizer) for layer in layers])

    @classmethod
    def init_empty(cls, *args: Any, **kwargs: Any) -> None:
        """Returns None, as a cache of this kind always has pages; for callers that know EasyDeL."""

    @property
    def metadata(self) -> RaggedPagesCacheMetaData | None:
        """The static description that all views share; None if there is no view."""
        return self.views[0].metadata if self.views else None

    def copy_pages(self, sources: Any, destinations: Any, num_slots: Any = None) -> Self:
        """Copies pages onto others, in every layer: whole ones, or their first slots (MAN-13, MAN-17).

        Every source is read before any destination is written; a pair with an id that no page has is skipped.

        Args:
            sources: page ids, `[n]`; with several page shards `[shards, n]`, a row for each shard's own ids. An i32
                array on the device is taken as well.
            destinations: ids of the pages to write, of the same shape; none twice, and none that is a source.
            num_slots: number of leading slots of each page that are copied, of the same shape; the others stay as
                they are. None: all.

        Returns:
            The cache after the copies.

        Raises:
            TypeError: an id or a number of slots is no integer.
            ValueError: one that no int32 holds, or shapes that don't fit each other or the shards (R1).
        """
        metadata = self.metadata
        if metadata is None:
            return self
        froms = global_ids("sources", sources, metadata.num_page_shards, metadata.num_pages)
        tos = global_ids("destinations", destinations, metadata.num_page_shards, metadata.num_pages)
        slots = None if num_slots is None else slot_counts(num_slots, metadata.num_page_shards, len(froms))
        pages = [view.kv_pages for view in self.views]
        copied = copy_pages(pages, froms, tos, slots, version=metadata.version)
        return self.replace(views=[view.replace(kv_pages=new) for view, new in zip(self.views, copied, strict=True)])

    # -- To and from host memory ------------------------------------------------------------------

    def export_pages(self, page_ids: Any, num_slots: Any) -> list[Any]:
        """Copies of pages of every layer to take to the host, dead slots zeroed (SWAP-2).

        Args:
            page_ids: page ids, `[n]`; with several page shards `[shards, n]`, a row for each shard's own ids; for -1
                the result is zeros. An i32 array on the device is taken as well.
            num_slots: the number of leading slots of each page that are live, of the same shape.

        Returns:
            The pages of each layer, of the view's kind, `[shards * n, ...]`.

        Raises:
            TypeError: an id is no integer.
            ValueError: an id that no int32 holds, or shapes that don't fit each other or the shards (R1).
        """
        metadata = self.metadata
        if metadata is None:
            return []
        ids = global_ids("page_ids", page_ids, metadata.num_page_shards, metadata.num_pages)
        slots = slot_counts(num_slots, metadata.num_page_shards, len(ids))
        pages = [view.kv_pages for view in self.views]
        return list(export_pages(pages, ids, slots, version=metadata.version))

    def import_pages(self, page_ids: Any, block: Sequence[Any]) -> Self:
        """Writes exported pages onto pages of every layer (SWAP-2).

        Args:
            page_ids: ids of the pages to write, none twice, as in `export_pages`; for -1 nothing is written.
            block: the pages of each layer, as `export_pages` returned them: `[shards * k, ...]` with k >= n, of
                which the first n of each shard are read.

        Returns:
            The cache after the writes.

        Raises:
            TypeError: an id is no integer, or a layer's pages are of another kind or dtype.
            ValueError: an id that no int32 holds, or shapes that don't fit; another number of layers (R1).
        """
        metadata = self.metadata
        layers = listed("block", block)
        if len(layers) != len(self.views):
            raise refusal(ValueError, "SWAP-2", f"block has {len(layers)} layers, the cache {len(self.views)}")
        if metadata is None:
            return self
        ids = global_ids("page_ids", page_ids, metadata.num_page_shards, metadata.num_pages)
        shards = metadata.num_page_shards

        def first_rows(array: Any) -> Any:
            if not hasattr(array, "shape"):
                raise refusal(TypeError, "R1", f"block must hold arrays, not {type(array).__name__}")
            if not array.ndim or array.shape[0] % shards or array.shape[0] < len(ids):
                raise refusal(ValueError, "SWAP-2", f"block.shape={array.shape} has no {len(ids)} pages")
            rows = np.asarray(array).reshape(shards, -1, *array.shape[1:])
            return rows[:, : len(ids) // shards].reshape(len(ids), *array.shape[1:])

        fitting = [
            ScaledPages(*map(first_rows, own)) if isinstance(own, ScaledPages) else first_rows(own) for own in layers
        ]
        pages = write_states([view.kv_pages for view in self.views], ids, fitting)
        return self.replace(views=[view.replace(kv_pages=new) for view, new in zip(self.views, pages, strict=True)])

    # -- Documents --------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The cache as a document; see `documents`."""
        return document("RaggedPagesCache", {"views": [view.to_dict() for view in self.views]})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], mesh: Any = None) -> Self:
        """Reads a document; see `SavedOnMesh.from_dict`."""
        return cls(layers_of(data, lambda view: RaggedPagesCacheView.from_dict(view, mesh)))
