"""Updates for the kernels that write rows into slots: pages and rows, what names the slots, what must come out."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Array", "Updates", "as_bits", "numbers"]

Array = NDArray[Any]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Signed normal numbers, some of them NaN: what is moved is not looked at."""
    drawn = rng.standard_normal(shape)
    drawn[rng.random(shape[:1]) < 0.2] = np.nan
    return drawn.astype(dtype)


def as_bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")


@dataclass(frozen=True)
class Updates:
    """Updates of one size.

    Attributes:
        num_pages: pages of the pool.
        page_size: slots of a page.
        num_rows: rows that are written.
    """

    num_pages: int
    page_size: int
    num_rows: int

    @property
    def num_slots(self) -> int:
        return self.num_pages * self.page_size

    def arrays(self, rng: np.random.Generator, row: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Array, Array]:
        """Pages and rows."""
        pages = numbers(rng, (self.num_pages, self.page_size, *row), dtype)
        return pages, numbers(rng, (self.num_rows, *row), dtype)

    def by_slots(
        self, rng: np.random.Generator, row: tuple[int, ...], dtype: np.dtype[Any], share: float
    ) -> tuple[tuple[Array, ...], Array]:
        """Pages, rows and slots, of which about ``share`` exist, many in runs, and the pages after."""
        pages, rows = self.arrays(rng, row, dtype)
        most = 2**31
        none = [-1, -self.page_size, -most, self.num_slots, self.num_slots + self.page_size - 1, most - 1]
        slots = rng.choice(np.array(none), self.num_rows).astype(np.int32)
        named = np.flatnonzero(rng.random(self.num_rows) < share)
        cuts = np.flatnonzero(rng.random(self.num_slots) < rng.choice([0.1, 0.5, 1.0]))
        runs = np.split(np.arange(self.num_slots), cuts)
        slots[named] = np.concatenate([runs[at] for at in rng.permutation(len(runs))])[: len(named)]
        expected = pages.reshape(self.num_slots, *row).copy()
        expected[slots[named]] = rows[named]
        return (pages, rows, slots), expected.reshape(pages.shape)

    def by_slices(
        self, rng: np.random.Generator, row: tuple[int, ...], dtype: np.dtype[Any], num_slices: int
    ) -> tuple[tuple[Array, ...], Array]:
        """Pages, rows, slices, good and bad ones and others that don't count, how many do, and the pages after."""
        pages, rows = self.arrays(rng, row, dtype)
        good = self.slices(rng, num_slices)
        expected = pages.reshape(self.num_slots, *row).copy()
        for slot, begin, length in good.T:
            expected[slot : slot + length] = rows[begin : begin + length]
        bad = np.array(self.bad_slices(), np.int32).T
        counted = np.concatenate([good, bad], axis=1)
        counted = counted[:, rng.permutation(counted.shape[1])]
        ignored = self.slices(rng, self.num_pages)
        slices = np.concatenate([counted, ignored], axis=1)[:, : self.num_pages + bad.shape[1]]
        count = np.array([counted.shape[1]], np.int32)
        return (pages, rows, slices, count), expected.reshape(pages.shape)

    def slices(self, rng: np.random.Generator, num_slices: int) -> Array:
        """Disjoint slices, each within a page, whole pages and single slots among them; `i32[3, num_slices]`."""
        size = self.page_size
        slices = []
        for page in rng.permutation(self.num_pages)[:num_slices]:
            begin, end = sorted(rng.integers(0, size + 1, 2)) if rng.random() < 0.7 else (0, size)
            length = max(int(end - begin), 1)
            slot = int(page) * size + min(int(begin), size - length)
            slices.append((slot, int(rng.integers(0, self.num_rows - length + 1)), length))
        return np.array(slices, np.int32).reshape(-1, 3).T

    def bad_slices(self) -> list[tuple[int, int, int]]:
        """Slices that are dropped whole."""
        return [
            (-1, 0, 1),
            (self.num_slots, 0, 1),
            (self.page_size - 1, 0, 2),  # runs over its page's end
            (self.num_slots - 1, 0, 2),  # and the pool's
            (0, self.num_rows - 1, 2),  # runs over the rows' end
            (0, -1, 1),
            (0, 0, 0),
            (0, 0, -1),
            (0, 0, self.page_size + 1),
            (2**31 - 1, 2**31 - 1, 2**31 - 1),
            (-(2**31), -(2**31), -(2**31)),
        ]
