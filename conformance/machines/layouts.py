"""How keys and values lie in a page, told from the documents alone: neither side is asked.

Layout v2 is ``[P, page, rows, Dp]`` and v3 ``[P, page, rows // packing, packing, Dp]``: the key of head h in row 2h,
its value in row 2h + 1, each padded to 128 columns; v3 with heads of 64 has both in one row, the key first. Layout
seq_on_lane is ``[P, rows, Dp, page]``, its scales ``[P, rows, page]``: rows as in v2, padded to 8 words only. A latent
cache is ``[P, page, columns]``: the latent and behind it the rotary key, each padded to 128.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends.loading import Backend
from .arrays import Array, bits, exact, poisoned
from .base import SPEC

__all__ = ["LatentLayout", "Layout", "takes_version"]

_LANES = 128

_WORDS = 8


def _aligned(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def takes_version(names: Backend, version: str) -> bool:
    """Whether a backend has a layout: seq_on_lane if the function that writes a cache can be told which it is."""
    if version != "seq_on_lane":
        return True
    return names.offers("kv_cache_update") and names.accepts("kv_cache_update", "version")


@dataclass(frozen=True)
class Layout:
    """What a cache holds and how.

    Attributes:
        version: ``v2``, ``v3`` or ``seq_on_lane``.
        dtype: the type of what is stored.
        heads: KV heads.
        dims: the sizes of a key's and a value's head.
        page_size: slots in a page.
        num_pages: pages.
        scaled: whether each slot has scales of its own, beside the pages.
        as_bits: whether the pages are an array of unsigned integers.
        scales: what keys and values are divided by, for all slots; None for the one that is not named.
    """

    version: str = "v3"
    dtype: str = "float32"
    heads: int = 2
    dims: tuple[int, int] = (16, 16)
    page_size: int = 4
    num_pages: int = 12
    scaled: bool = False
    as_bits: bool = False
    scales: tuple[float | None, float | None] = (None, None)

    @property
    def packing(self) -> int:
        """Rows of a slot that lie together."""
        return 4 // np.dtype(self.dtype).itemsize if self.version == "v3" else 1

    @property
    def slots_last(self) -> bool:
        """Whether a slot is a column of its page."""
        return self.version == "seq_on_lane"

    @property
    def shares_rows(self) -> bool:
        """Whether a head's key and value lie in one row."""
        return self.version == "v3" and self.dims == (64, 64)

    @property
    def is_padded(self) -> bool:
        """Whether slots have rows of no head."""
        return self.rows != self.heads * (1 if self.shares_rows else 2)

    @property
    def rows(self) -> int:
        """Rows of a slot, padding rows counted."""
        return _aligned(self.heads if self.shares_rows else 2 * self.heads, self.packing)

    @property
    def columns(self) -> int:
        """Columns of a row, padding columns counted."""
        multiple = _WORDS * 4 // np.dtype(self.dtype).itemsize if self.slots_last else _LANES
        return _aligned(max(self.dims), multiple)

    @property
    def slot_shape(self) -> tuple[int, ...]:
        """The shape of a slot."""
        rows = (self.rows // self.packing, self.packing) if self.version == "v3" else (self.rows,)
        return (*rows, self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the pages."""
        if self.slots_last:
            return (self.num_pages, *self.slot_shape, self.page_size)
        return (self.num_pages, self.page_size, *self.slot_shape)

    @property
    def largest(self) -> float:
        """The largest number that the type holds: as that a slot's largest value is stored where slots have scales."""
        return {"int8": 127.0, "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}.get(self.dtype, np.inf)

    @property
    def num_slots(self) -> int:
        """Slots of the whole cache."""
        return self.num_pages * self.page_size

    @property
    def options(self) -> dict[str, Any]:
        """The keywords that say what the numbers of a cache stand for, and how they lie."""
        named: dict[str, Any] = {"kv_dtype": self.dtype} if self.as_bits else {}
        named |= {"version": self.version} if self.slots_last else {}
        named |= {
            name: scale for name, scale in zip(("k_scale", "v_scale"), self.scales, strict=True) if scale is not None
        }
        return named

    @property
    def divisors(self) -> Array:
        """What keys and values are divided by, f32[2]."""
        return np.array([scale or 1.0 for scale in self.scales], np.float32)

    @property
    def update(self) -> str:
        """The name of the function that writes such a cache."""
        return "kv_cache_update"

    def tokens(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """What that function takes of keys and values."""
        return keys, values

    def given_to(self, names: Backend, pages: Any) -> Any:
        """The same pages for another side, whose ``ScaledPages`` are of its own."""
        return names.get("ScaledPages")(*pages) if self.scaled else pages

    def slots_first(self, part: Any) -> Array:
        """Pages, or their scales, as a numpy array whose second axis are slots."""
        array = np.asarray(part)
        return np.ascontiguousarray(np.moveaxis(array, -1, 1) if self.slots_last else array)

    def laid_out(self, part: Array) -> Array:
        """The way back from `slots_first`."""
        return np.ascontiguousarray(np.moveaxis(part, 1, -1)) if self.slots_last else part

    # -- Slots ------------------------------------------------------------------------------------------------

    def put(self, rows: Array, keys: Array, values: Array) -> None:
        """Lays keys `[n, heads, D]` and values `[n, heads, Dv]` into rows `[n, rows, columns]`."""
        of_keys, of_values = self.dims
        if self.shares_rows:
            rows[:, : self.heads] = np.concatenate([keys, values], -1)
        else:
            rows[:, 0 : 2 * self.heads : 2, :of_keys] = keys
            rows[:, 1 : 2 * self.heads : 2, :of_values] = values

    def take(self, rows: Array) -> tuple[Array, Array]:
        """The keys and values that lie in rows; see `put`."""
        of_keys, of_values = self.dims
        if self.shares_rows:
            return rows[:, : self.heads, :of_keys], rows[:, : self.heads, of_keys : of_keys + of_values]
        return rows[:, 0 : 2 * self.heads : 2, :of_keys], rows[:, 1 : 2 * self.heads : 2, :of_values]

    def filled(self, slots: Array, keys: Array, values: Array) -> Any:
        """A cache of the specification with some slots written, padding 0, and poison everywhere else.

        Args:
            slots: the slots, `[n]`.
            keys: `[n, heads, D]`.
            values: `[n, heads, Dv]`.
        """
        scales = np.tile(self.divisors, (len(slots), self.heads))
        if self.scaled:
            greatest = np.stack([np.abs(keys).max(-1), np.abs(values).max(-1)], -1).reshape(len(slots), 2 * self.heads)
            scales = np.where(greatest > 0, greatest / self.largest, 1.0).astype(np.float32)
        rows = np.zeros((len(slots), self.rows, self.columns), np.float32)
        self.put(rows, keys / scales[:, 0::2, None], values / scales[:, 1::2, None])
        if not exact(self.dtype):
            rows = np.clip(rows, -self.largest, self.largest)
        pages = poisoned((self.num_slots, self.rows, self.columns), self.dtype)
        pages[slots] = (np.rint(rows) if self.dtype == "int8" else rows).astype(self.dtype)
        stored = self.laid_out(pages.reshape(self.num_pages, self.page_size, *self.slot_shape))
        stored = bits(stored) if self.as_bits else stored
        if not self.scaled:
            return stored
        every = poisoned((self.num_slots, 2 * self.heads), "float32")
        every[slots] = scales
        scales = self.laid_out(every.reshape(self.num_pages, self.page_size, 2 * self.heads))
        return SPEC.get("ScaledPages")(stored, scales)

    def empty(self) -> Any:
        """A cache of the specification that holds poison."""
        nothing = [np.zeros((0, self.heads, size), np.float32) for size in self.dims]
        return self.filled(np.zeros(0, np.int64), *nothing)

    def read(self, pages: Any, slots: Any = slice(None)) -> tuple[Array, Array]:
        """The keys `[slots, heads, D]` and values `[slots, heads, Dv]` of every slot, or of some, in float64."""
        scales = self.scales_of(pages, slots).astype(np.float64)[..., None]
        keys, values = self.take(self.rows_of(pages, slots).astype(np.float64))
        with np.errstate(invalid="ignore"):  # a wrong backend's scale may be infinite
            return keys * scales[:, 0::2], values * scales[:, 1::2]

    def rows_of(self, pages: Any, slots: Any = slice(None)) -> Array:
        """The rows of every slot, or of some, `[slots, rows, columns]`."""
        values = self.slots_first(pages[0] if self.scaled else pages)
        rows: Array = values.view(self.dtype).reshape(self.num_slots, self.rows, self.columns)[slots]
        return rows

    def scales_of(self, pages: Any, slots: Any = slice(None)) -> Array:
        """The scales of every slot, or of some, `[slots, 2 * heads]`: its own, or those of all."""
        every = np.tile(self.divisors, (self.num_slots, self.heads))
        if self.scaled:
            every = self.slots_first(pages[1]).reshape(self.num_slots, 2 * self.heads)
        scales: Array = every[slots]
        return scales

    def padding(self, pages: Any, slots: Any) -> Array:
        """The entries of some slots that belong to no head, `[slots, entries]`."""
        used = np.zeros((1, self.rows, self.columns), bool)
        self.put(used, *(np.ones((1, self.heads, size), bool) for size in self.dims))
        return self.rows_of(pages, slots)[:, ~used[0]].astype(np.float64)


@dataclass(frozen=True)
class LatentLayout(Layout):
    """A latent cache: one head, whose value is its key but for the rotary part.

    Attributes:
        dims: the size of the latent with its rotary key, and without.
    """

    heads: int = 1

    @property
    def rank(self) -> int:
        """The size of the latent."""
        return self.dims[1]

    @property
    def rows(self) -> int:
        """See `Layout.rows`."""
        return 1

    @property
    def is_padded(self) -> bool:
        """See `Layout.is_padded`."""
        return False

    @property
    def columns(self) -> int:
        """See `Layout.columns`."""
        return _aligned(self.rank, _LANES) + _aligned(self.dims[0] - self.rank, _LANES)

    @property
    def slot_shape(self) -> tuple[int, ...]:
        """See `Layout.slot_shape`."""
        return (self.columns,)

    @property
    def update(self) -> str:
        """See `Layout.update`."""
        return "mla_cache_update"

    def tokens(self, keys: Array, values: Array) -> tuple[Array, Array]:  # noqa: ARG002 - they are in the keys
        """The latents `[n, rank]` and the rotary keys."""
        return keys[:, 0, : self.rank], keys[:, 0, self.rank :]

    def put(self, rows: Array, keys: Array, values: Array) -> None:  # noqa: ARG002 - they are in the keys
        """See `Layout.put`; the values are in the keys."""
        behind = _aligned(self.rank, _LANES)
        rows[:, :, : self.rank] = keys[..., : self.rank]
        rows[:, :, behind : behind + self.dims[0] - self.rank] = keys[..., self.rank :]

    def take(self, rows: Array) -> tuple[Array, Array]:
        """See `Layout.take`."""
        behind = _aligned(self.rank, _LANES)
        rotary = rows[:, :, behind : behind + self.dims[0] - self.rank]
        return np.concatenate([rows[:, :, : self.rank], rotary], -1), rows[:, :, : self.rank]
