"""CACHE-5: the parts of a cache that is split over devices.

KV heads are split into ``num_head_shards`` parts, pages into ``num_page_shards`` pools; a part is one pool's pages with
one shard's heads. Each part has its own layout. A layer's array is all parts joined: pools along the first axis, heads
along the axis of rows, or in v3 of groups of rows. Each part is updated and read by itself, with its share of the
queries, keys, values and metadata, so that the result is that of one device.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..attention.attention_batch import read_batch
from ..layout.cache_dtypes import CODES, ScaledPages
from ..reading.arguments import array_of, refusal
from .cache_metadata import RaggedPagesCacheMetaData
from .ragged_metadata import RaggedPagesMetadata

__all__ = ["CachePart", "CacheParts", "require_pages"]


class CachePart(NamedTuple):
    """One part of a cache: the number of its pool, and the number of its head shard."""

    pool: int
    heads: int


class CacheParts:
    """Splits arrays into the parts of a cache, and joins them.

    Args:
        metadata: the static description of the cache.
    """

    def __init__(self, metadata: RaggedPagesCacheMetaData) -> None:
        self._metadata = metadata
        self._pools, self._head_axis = metadata.num_page_shards, metadata.shard_layout.head_axis
        self._heads = metadata.num_head_shards

    def __iter__(self) -> Iterator[CachePart]:
        """All parts."""
        return (CachePart(pool, heads) for pool in range(self._pools) for heads in range(self._heads))

    def step(self, step: RaggedPagesMetadata, part: CachePart) -> RaggedPagesMetadata:
        """The share of a step's metadata that belongs to a part's pool."""
        return step.shard(part.pool, self._pools)

    def batch(self, step: RaggedPagesMetadata, part: CachePart) -> tuple[Any, Any, Any, Any]:
        """The arguments of attention for a part: lengths, page table, bounds and number of sequences."""
        own = self.step(step, part)
        return own.context_lens, own.pages_tables, own.query_start_loc, own.num_seqs

    def slots(self, step: RaggedPagesMetadata, part: CachePart, num_tokens: int) -> NDArray[np.int32]:
        """The slot that the page table has for each of a part's tokens, by its position (TAB-7).

        Args:
            step: the step.
            part: the part.
            num_tokens: T of the part.

        Returns:
            `i32[T]`; -1 for rows that belong to no sequence, and where the table has no page.
        """
        sizes = self._metadata.num_pages, self._metadata.page_size
        batch = read_batch(*self.batch(step, part), num_tokens, *sizes, validate=False)
        slots = np.full(num_tokens, -1, np.int32)
        for token, sequence, position in batch.rows():
            slots[token] = batch.slot_of(sequence, position)
        return slots

    def tokens(self, array: NDArray[Any], part: CachePart) -> NDArray[Any]:
        """The rows and heads of `[T, H, D]` that belong to a part."""
        return self._of(array, part, axis=1)

    def sinks(self, sinks: Any, part: CachePart) -> NDArray[Any] | None:
        """The entries of `f32[Hq]` that belong to a part's heads; None if there are no sinks."""
        if sinks is None:
            return None
        return _split(array_of("sinks", sinks, ("Hq",), (CODES["f32"],)), 0, part.heads, self._heads)

    def pages(self, kv_pages: Any, part: CachePart) -> Any:
        """A part's pages, with their scales if the cache has scales."""
        if isinstance(kv_pages, ScaledPages):
            return ScaledPages(*(self._of(np.asarray(array), part, self._head_axis) for array in kv_pages))
        return self._of(np.asarray(kv_pages), part, self._head_axis)

    def joined(self, parts: Mapping[CachePart, NDArray[Any]], axis: int) -> NDArray[Any]:
        """Joins the arrays of all parts: pools along the first axis, heads along ``axis``."""
        pools = [[parts[CachePart(pool, heads)] for heads in range(self._heads)] for pool in range(self._pools)]
        return np.concatenate([np.concatenate(heads, axis) for heads in pools])

    def joined_pages(self, parts: Mapping[CachePart, Any]) -> Any:
        """Joins the pages of all parts."""
        axis = self._head_axis
        if isinstance(next(iter(parts.values())), ScaledPages):
            values = self.joined({part: pages.values for part, pages in parts.items()}, axis)
            return ScaledPages(values, self.joined({part: pages.scales for part, pages in parts.items()}, axis))
        return self.joined(parts, axis)

    def _of(self, array: NDArray[Any], part: CachePart, axis: int) -> NDArray[Any]:
        return _split(_split(array, 0, part.pool, self._pools), axis, part.heads, self._heads)


def _split(array: NDArray[Any], axis: int, number: int, parts: int) -> NDArray[Any]:
    """Part ``number`` of an array that is split evenly along an axis (R1)."""
    size = array.shape[axis]
    if size % parts:
        raise refusal(ValueError, "CACHE-5", f"an array of shape {array.shape} can't be split in {parts} along {axis=}")
    return np.take(array, range(number * size // parts, (number + 1) * size // parts), axis)


def require_pages(metadata: RaggedPagesCacheMetaData, pages: Any, clause: str) -> None:
    """Refuses pages of a layer that do not fit the metadata (CACHE-1, SEC-3).

    Args:
        metadata: the static description of the cache.
        pages: an array or `ScaledPages`.
        clause: the clause that refuses them.
    """
    shape = metadata.get_shape_and_axes()[0]
    scaled = isinstance(pages, ScaledPages)
    if scaled != metadata.slot_scales:
        raise refusal(ValueError, clause, f"kv_pages: ScaledPages or not, metadata.slot_scales={metadata.slot_scales}")
    values = pages.values if scaled else pages
    if getattr(values, "shape", None) != shape or values.dtype != metadata.kvdtype:
        raise refusal(ValueError, clause, f"kv_pages must be {metadata.kvdtype.name}{list(shape)}")
    last = (2 * metadata.num_kv_heads, metadata.page_size)
    wanted = (shape[0], *(last if metadata.shard_layout.slots_last else last[::-1]))
    if scaled and (pages.scales.shape != wanted or pages.scales.dtype != np.float32):
        raise refusal(ValueError, clause, f"kv_pages.scales must be float32{list(wanted)}")
