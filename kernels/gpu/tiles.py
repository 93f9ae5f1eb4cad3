"""How keys are cut into tiles, and tiles into copies: the arithmetic of pages of any size, as plain functions.

The tensor cores contract over 64 keys at least. A tile has room for 64 or 128 of them; several small pages fill one,
and a large page is cut into several. Nothing is copied that straddles the end of a page, so where the page size neither
divides the tile nor is divided by it some rows of every tile stay dead: of pages of 33 slots a tile holds one. A page
of 67 slots, which nothing divides, is copied slot by slot, as are pages of one.

Where each slot and head has a scale, scales are copied with the keys that they belong to. They stand slot by slot, and
of a slot head by head, where the tensor cores' scores want those of one head side by side: a consumer turns them.
"""

from dataclasses import dataclass

__all__ = ["ScaleRows", "Tiles", "cut", "scale_rows"]

TILE_KEYS = 64
"""The least that a tile has room for."""


_LINE_FLOATS = 32
"""Numbers of 32 bits in 128 bytes: what one copy brings is a multiple of that."""

_LEAST_FLOATS = 4
"""Those in 16 bytes: what a row of a copy is a multiple of, and what the rows of an array that is copied from begin at.
"""

_MOST_FLOATS = 256
"""The most numbers of a row that one copy brings."""


@dataclass(frozen=True)
class Tiles:
    """The tiles of a sequence: tile i holds the keys from ``i * live`` to ``(i + 1) * live``.

    Attributes:
        keys: room of a tile, in keys: rows in shared memory.
        page_size: slots of a page.
        rows: keys that one copy brings: a page, or a part of one.
        pieces: copies that fill a tile.
    """

    keys: int
    page_size: int
    rows: int
    pieces: int

    @property
    def live(self) -> int:
        """Keys that a tile holds; the rows behind them are never written."""
        return self.rows * self.pieces

    @property
    def full(self) -> bool:
        """Whether no row of a tile is dead by arithmetic alone."""
        return self.live == self.keys

    @property
    def per_page(self) -> int:
        """Copies that bring a whole page."""
        return self.page_size // self.rows


def cut(page_size: int, keys: int = TILE_KEYS) -> Tiles:
    """How pages of a size are cut into tiles with room for a number of keys. O(keys).

    Pages up to a tile's size are copied whole, as many as fit. Larger ones are copied in equal parts, of the largest
    size that divides the page and fits; parts of whole eights first, since the tiles in shared memory have eight rows.
    As many parts as fit fill a tile, of one page or of two.

    Args:
        page_size: slots of a page, at least 1.
        keys: room of a tile.

    Returns:
        The tiles; ``live`` is more than half of ``keys``.
    """
    if page_size <= keys:
        return Tiles(keys, page_size, page_size, keys // page_size)
    divisors = [rows for rows in range(1, keys + 1) if page_size % rows == 0]
    rows = max(divisors, key=lambda rows: (rows % 8 == 0, rows))
    return Tiles(keys, page_size, rows, keys // rows)


@dataclass(frozen=True)
class ScaleRows:
    """How the scales of a page, `f32[page, 2H]`, are copied: as rows of one slot or of two.

    Attributes:
        slots: slots of a row.
        columns: scales of a slot that are copied: those of a head, and of others beside it.
    """

    slots: int
    columns: int


def scale_rows(rows: int, num_kv_heads: int) -> ScaleRows | None:
    """How scales are copied, the fewest at once; None where no copy can bring them. O(log heads).

    Of an odd number of heads two slots fill 16 bytes, one doesn't; all heads are copied then. Of an even number those
    are that stand in the same 16 bytes, or in more of them, where a copy has so few slots that it would have no 128.

    Args:
        rows: slots of a copy, as `cut` has them.
        num_kv_heads: H.
    """
    if rows * num_kv_heads * 2 % _LINE_FLOATS:
        return None
    if num_kv_heads % 2:
        return ScaleRows(2, 2 * num_kv_heads) if 4 * num_kv_heads <= _MOST_FLOATS else None
    columns = _LEAST_FLOATS
    while rows * columns % _LINE_FLOATS:
        columns *= 2
    return ScaleRows(1, columns)
