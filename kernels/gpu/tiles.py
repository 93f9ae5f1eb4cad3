"""How keys are cut into tiles, and tiles into copies: the arithmetic of pages of any size, as plain functions.

The tensor cores contract over 64 keys at least. A tile has room for 64 or 128 of them; several small pages fill one,
and a large page is cut into several. Nothing is copied that straddles the end of a page, so where the page size neither
divides the tile nor is divided by it some rows of every tile stay dead: of pages of 33 slots a tile holds one. A page
of 67 slots, which nothing divides, is copied slot by slot, as are pages of one.
"""

from dataclasses import dataclass

__all__ = ["Tiles", "cut"]

TILE_KEYS = 64
"""The least that a tile has room for."""


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
