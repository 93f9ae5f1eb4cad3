"""Where a head's keys and values stand in a cache page: the three layouts, and the way in and out of them.

P pages of ``page`` slots; H KV heads with keys of size D and values of size Dv; C combined rows of Dp numbers,
in which key and value of head h are rows 2h and 2h + 1; Dp = max(D, Dv), rounded up to 128.

- v2: ``[P, page, 2H, Dp]``.
- v3: ``[P, page, groups, packing, Dp]``: ``packing = 32 // bits`` rows share the 32-bit words of a row of the
  device's memory; combined row r is lane r % packing of group r // packing, and C is rounded up to whole groups.
  Where D == Dv == 64, key and value of head h share the one 128-wide row h.
- seq_on_lane: ``[P, 2H, Dp, page]``: a slot is a column, so that tokens lie side by side in the device's lanes, as
  tpu-inference's stacked kernel reads them (its batched one reads the same numbers with Dp split in two); Dp is
  rounded up to 8 words, not to 128. Four dimensions as in v2, so that a call has to name it.

Numbers of a slot that belong to no head are padding: zero once the slot is written (CACHE-3). XLA doesn't read them;
the kernels for TPUs, and some for GPUs, multiply whole rows: the padding of keys with zeros in the queries, that of
values into columns that are cut off. So whoever writes pages by other means leaves neither NaN nor infinity in the
padding of a live slot's keys.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

__all__ = [
    "COLUMNS",
    "LANES",
    "CacheLayout",
    "layout_of",
    "pack_rows",
    "read_version",
    "round_up",
    "slot_axis",
    "unpack_keys",
    "unpack_values",
]

LANES = 128
"""Numbers in a row of the device's vector memory: what head sizes are rounded up to."""

COLUMNS = "layout seq_on_lane: a slot is a column of its page, and the kernels copy rows"
"""Why no kernel takes a cache of that layout."""

_SUBLANES = 8

_SHARED_HEAD_DIM = 64

_DIMENSIONS = {"v2": 4, "v3": 5, "seq_on_lane": 4}


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple that is at least ``number``. O(1)."""
    return -(-number // multiple) * multiple


def read_version(version: Any) -> str | None:
    """The layout that a call names, or None. O(1).

    Raises:
        TypeError: if it is no string [R1].
        ValueError: if there is no such layout [R1].
    """
    if version is not None and not isinstance(version, str):
        raise TypeError(f"version must be a string, not {type(version).__name__} [R1]")
    if version is not None and version not in _DIMENSIONS:
        raise ValueError(f"{version=} must be one of {', '.join(_DIMENSIONS)} [R1]")
    return version


def slot_axis(version: str | None) -> int:
    """Which axis of the pages of a layout runs over slots; that of their scales, too: the last, or else 1. O(1)."""
    return -1 if version == "seq_on_lane" else 1


@dataclass(frozen=True)
class CacheLayout:
    """How one slot of a cache is laid out; hashable, so that programs can be compiled for it.

    Attributes:
        version: ``"v2"``, ``"v3"`` or ``"seq_on_lane"``.
        num_kv_heads: H, on this device.
        head_dim: D, of the keys (and queries).
        v_head_dim: Dv, of the values.
        packing: 32 // bits of a stored number, which are the combined rows of a group in v3; 1 in v2.
    """

    version: str
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    packing: int

    @property
    def shares_rows(self) -> bool:
        """Whether a head's key and value share one row: v3 with both of size 64."""
        return self.version == "v3" and self.head_dim == self.v_head_dim == _SHARED_HEAD_DIM

    @property
    def rows_per_head(self) -> int:
        """1 where key and value share a row, else 2."""
        return 1 if self.shares_rows else 2

    @property
    def combined_rows(self) -> int:
        """C: rows of a slot, padding included."""
        if self.version == "seq_on_lane":
            return 2 * self.num_kv_heads
        return round_up(self.rows_per_head * self.num_kv_heads, self.packing)

    @property
    def groups(self) -> int:
        """Groups of ``packing`` rows."""
        return self.combined_rows // self.packing

    @property
    def storage_head_dim(self) -> int:
        """Dp: the numbers of a row, padding included."""
        return round_up(max(self.head_dim, self.v_head_dim), _SUBLANES * self.packing if self.slots_last else LANES)

    @property
    def column_tiles(self) -> int:
        """Parts of 128 numbers of a row."""
        return self.storage_head_dim // LANES

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one slot: ``(groups, packing, Dp)`` in v3, else ``(C, Dp)``."""
        if self.version == "v3":
            return (self.groups, self.packing, self.storage_head_dim)
        return (self.combined_rows, self.storage_head_dim)

    @property
    def slots_last(self) -> bool:
        """Whether slots are the last axis of pages, and of their scales; else they are axis 1."""
        return slot_axis(self.version) == -1

    @property
    def head_axis(self) -> int:
        """Which axis of pages, and of their scales, runs over heads: rows of them, or groups of rows."""
        return 1 if self.slots_last else 2

    def page_shape(self, page_size: int) -> tuple[int, ...]:
        """The shape of one page. O(1)."""
        return (*self.row_shape, page_size) if self.slots_last else (page_size, *self.row_shape)

    def sizes(self, pages: Any) -> tuple[int, int]:
        """P and the slots of a page, of pages of this layout. O(1)."""
        return pages.shape[0], pages.shape[slot_axis(self.version)]

    def slots_first(self, pages: jax.Array) -> jax.Array:
        """Pages, or their scales, with slots as axis 1, whatever the layout. O(P) where they are the last."""
        return jnp.moveaxis(pages, -1, 1) if self.slots_last else pages


def layout_of(
    pages: Any, head_dim: int, v_head_dim: int, num_kv_heads: int | None = None, version: str | None = None
) -> CacheLayout:
    """The layout of a cache, read off its shape, which must fit. O(1).

    Args:
        pages: `[P, page, C, Dp]` (v2), `[P, page, groups, packing, Dp]` (v3) or `[P, C, Dp, page]` (seq_on_lane):
            anything with shape and dtype.
        head_dim: D.
        v_head_dim: Dv.
        num_kv_heads: H; None: as many as fit into the rows, which is too many where C was rounded up.
        version: the layout's name; None: v2 or v3, by the number of dimensions.

    Returns:
        The layout, whose ``page_shape`` is ``pages.shape[1:]``.

    Raises:
        ValueError: if no such layout has this shape [R1].
    """
    shape = tuple(pages.shape)
    if len(shape) not in (4, 5):
        raise ValueError(f"kv_pages.shape={shape} must have 4 dimensions (v2) or 5 (v3) [R1]")
    if version is None:
        version = "v2" if len(shape) == 4 else "v3"
    if len(shape) != _DIMENSIONS[version]:
        raise ValueError(f"kv_pages.shape={shape} must have {_DIMENSIONS[version]} dimensions in {version} [R1]")
    packing = 1 if version == "v2" else 4 // jnp.dtype(pages.dtype).itemsize
    probe = CacheLayout(version, 1, head_dim, v_head_dim, packing)
    if num_kv_heads is None:
        rows = shape[2] * shape[3] if version == "v3" else shape[probe.head_axis]
        num_kv_heads = rows // probe.rows_per_head
    layout = CacheLayout(version, num_kv_heads, head_dim, v_head_dim, packing)
    wanted = layout.page_shape(layout.sizes(pages)[1])
    if num_kv_heads < 1 or shape[1:] != wanted:
        raise ValueError(
            f"kv_pages.shape={shape} must end in {wanted} for {num_kv_heads} KV heads of size "
            f"{head_dim}, values of size {v_head_dim}, {pages.dtype} [R1]"
        )
    return layout


def pack_rows(
    keys: jax.Array,  # [T, H, D]
    values: jax.Array,  # [T, H, Dv]
    layout: CacheLayout,
    dtype: Any,
) -> jax.Array:
    """Keys and values of T tokens as slots of a cache, padding zero (CACHE-3). O(T * C * Dp).

    Args:
        keys: `[T, H, D]`.
        values: `[T, H, Dv]`.
        layout: the cache's layout.
        dtype: what the numbers become, by a plain cast.

    Returns:
        `dtype[T, *layout.row_shape]`.
    """
    tokens = keys.shape[0]
    keys, values = keys.astype(dtype), values.astype(dtype)
    if layout.shares_rows:
        rows = jnp.concatenate([keys, values], axis=-1)
    else:
        width = layout.storage_head_dim
        pair = [jnp.pad(part, ((0, 0), (0, 0), (0, width - part.shape[-1]))) for part in (keys, values)]
        rows = jnp.stack(pair, axis=2).reshape(tokens, 2 * layout.num_kv_heads, width)
    rows = jnp.pad(rows, ((0, 0), (0, layout.combined_rows - rows.shape[1]), (0, 0)))
    return rows.reshape(tokens, *layout.row_shape)


def _combined(block: jax.Array, layout: CacheLayout) -> jax.Array:
    lead = block.shape[: block.ndim - len(layout.row_shape)]
    return block.reshape(*lead, layout.combined_rows, layout.storage_head_dim)


def unpack_keys(block: jax.Array, layout: CacheLayout) -> jax.Array:
    """The keys of slots. O(size of the block).

    Args:
        block: `[..., *layout.row_shape]`: slots, or whole pages of them (`CacheLayout.slots_first`).
        layout: the cache's layout.

    Returns:
        `[..., H, D]`, in the block's dtype.
    """
    step = layout.rows_per_head
    return _combined(block, layout)[..., 0 : step * layout.num_kv_heads : step, : layout.head_dim]


def unpack_values(block: jax.Array, layout: CacheLayout) -> jax.Array:
    """The values of slots: `[..., H, Dv]`, out of a block as `unpack_keys` takes it. O(size of the block)."""
    rows = _combined(block, layout)
    if layout.shares_rows:
        return rows[..., : layout.num_kv_heads, layout.head_dim :]
    return rows[..., 1 : 2 * layout.num_kv_heads : 2, : layout.v_head_dim]
