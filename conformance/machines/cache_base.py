"""What the cache machine holds an update against: the slots that it names, and all others bit for bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .arrays import Array, bits, exact
from .base import Machine, Side
from .layouts import LatentLayout, Layout

__all__ = ["LAYOUTS", "CacheMachine", "rounding"]

LAYOUTS = (
    Layout(),
    Layout("v2", heads=3, dims=(24, 24), page_size=3, num_pages=5),
    Layout("v3", "bfloat16", heads=3, dims=(64, 64), page_size=2, num_pages=4),
    Layout("v3", "bfloat16", heads=1, dims=(80, 16), page_size=4, num_pages=4, as_bits=True),
    Layout("v2", "float16", heads=2, dims=(64, 64), page_size=1, num_pages=7),
    Layout("v3", "int8", heads=3, page_size=4, num_pages=4, scaled=True),
    Layout("v3", "float8_e4m3fn", heads=1, dims=(64, 64), page_size=4, num_pages=4, as_bits=True, scales=(0.5, 2.0)),
    Layout("v2", "float8_e5m2", heads=2, dims=(16, 16), page_size=4, num_pages=4, scaled=True, as_bits=True),
    Layout("seq_on_lane", "bfloat16", heads=3, dims=(40, 24), page_size=3, num_pages=5),
    Layout("seq_on_lane", "int8", heads=2, dims=(16, 16), page_size=4, num_pages=4, scaled=True),
    Layout("v2", "int8", heads=1, dims=(96, 96), page_size=4, num_pages=4, scales=(0.03125, 0.25)),
    LatentLayout("v2", "bfloat16", dims=(40, 24), page_size=2, num_pages=5, as_bits=True),
    LatentLayout("v2", "float8_e4m3fn", dims=(136, 130), page_size=3, num_pages=4),
)
"""The caches that are drawn; the first is the simplest."""

_ROUNDING = {"int8": (0.0, 0.5), "float8_e4m3fn": (2.0**-4, 2.0**-10), "float8_e5m2": (2.0**-3, 2.0**-17)}
"""CACHE-4: how far off a stored number may be: by a part of itself, and of its scale."""


def rounding(dtype: str, numbers: Array, scales: Array) -> Array:
    """How far off stored numbers may be (CACHE-4).

    Args:
        dtype: the type that they are stored as.
        numbers: the numbers.
        scales: what they are divided by, of a shape that fits.
    """
    part, whole = _ROUNDING[dtype]
    allowed: Array = (np.abs(numbers) * part + scales * whole) * (1 + 2.0**-16)
    return allowed


class CacheMachine(Machine):
    """Two caches side by side. A side has its ``pages``; both hold poison at first.

    Attributes:
        layout: what they hold and how.
    """

    layout: Layout

    def build_cache(self, layout: Layout) -> None:
        """Fills both caches with poison: what is not written never changes."""
        self.layout = layout
        empty = layout.empty()
        self.build(
            f"pages = {layout}, all NaN",
            "CACHE-3",
            lambda side: {"pages": layout.given_to(side.names, empty), "scaled": layout.scaled},
        )

    def parts(self, pages: Any) -> tuple[Array, ...]:
        """The bits of everything in a cache, a row for each slot."""
        parts = tuple(pages) if self.layout.scaled else (pages,)
        return tuple(bits(self.layout.slots_first(part)).reshape(self.layout.num_slots, -1) for part in parts)

    def described(self, pages: Any, _: Side) -> object:
        """An update's result, but for what it holds."""
        parts = tuple(pages) if self.layout.scaled else (pages,)
        return [(tuple(part.shape), str(part.dtype)) for part in parts]

    def hold_update(self, before: Any, after: Any, slots: Sequence[int], keys: Array, values: Array) -> None:
        """Holds an update against what it names.

        Args:
            before: the backend's cache before it.
            after: its cache after it.
            slots: the slots named, all of them different.
            keys: what was to be written there, in their order.
            values: likewise.
        """
        old, new = self.parts(before), self.parts(after)
        changed = np.any([np.any(one != other, axis=1) for one, other in zip(old, new, strict=True)], axis=0)
        self.compared("CACHE-3")
        strange = sorted(set(np.flatnonzero(changed).tolist()) - set(slots))
        if strange:
            self.differ("CACHE-3", f"slots {sorted(slots)} change", f"slots {strange} change as well")
        lost = sorted(set(slots) - set(np.flatnonzero(changed).tolist()))
        if lost and not self._holds(after, lost, slots, keys, values):
            self.differ("CACHE-3", f"slots {sorted(slots)} are written", f"slots {lost} are as they were")
        if slots and np.any(self.layout.padding(after, list(slots)) != 0):
            self.differ("CACHE-3", "padding rows and columns of a written slot are 0", "others")
        self.hold_values(after, slots, keys, values)

    def _holds(self, pages: Any, some: Sequence[int], slots: Sequence[int], keys: Array, values: Array) -> bool:
        """Whether some of the slots hold what was to be written there, which they may have held before."""
        places = [list(slots).index(slot) for slot in some]
        return all(
            np.all(np.abs(seen[list(some)] - wanted[places]) <= bound[places])
            for seen, (wanted, bound) in zip(
                self.layout.read(pages), self.wanted(pages, slots, keys, values), strict=True
            )
        )

    def hold_values(self, pages: Any, slots: Sequence[int], keys: Array, values: Array) -> None:
        """Holds what slots hold against what was written there (CACHE-2, CACHE-4)."""
        clause = "CACHE-2" if exact(self.layout.dtype) else "CACHE-4"
        self.compared(clause)
        if self.layout.scaled:
            self._hold_scales(pages, slots, keys, values)
        found = self.layout.read(pages)
        for what, seen, (wanted, bound) in zip(
            ("key", "value"), found, self.wanted(pages, slots, keys, values), strict=True
        ):
            off = ~(np.abs(seen[list(slots)] - wanted) <= bound)
            if off.any():
                at = tuple(np.argwhere(off)[0].tolist())
                place = f"{what} of slot {slots[at[0]]}, head {at[1]}, column {at[2]}: "
                self.differ(
                    clause, f"{place}{wanted[at]:.7g} within {bound[at]:.3g}", f"{seen[slots[at[0]]][at[1:]]:.7g}"
                )

    def wanted(self, pages: Any, slots: Sequence[int], keys: Array, values: Array) -> list[tuple[Array, Array]]:
        """For keys and values what slots must hold, and how far off each number may be."""
        dtype, limits = self.layout.dtype, []
        scales = self.layout.scales_of(pages)
        for what, numbers in enumerate((keys, values)):
            if exact(dtype):
                rounded = numbers.astype(dtype).astype(np.float64)
                limits.append((rounded, np.zeros(rounded.shape)))
                continue
            scale = scales[list(slots), what::2, None].astype(np.float64)
            cut = np.clip(numbers, -self.layout.largest * scale, self.layout.largest * scale)
            limits.append((cut, rounding(dtype, cut, scale)))
        return limits

    def _hold_scales(self, pages: Any, slots: Sequence[int], keys: Array, values: Array) -> None:
        """A slot's scale depends on that slot alone (CACHE-4)."""
        scales = self.layout.scales_of(pages)
        largest = np.stack([np.abs(keys).max(-1), np.abs(values).max(-1)], -1).reshape(
            len(slots), 2 * self.layout.heads
        )
        wanted = np.where(largest > 0, largest.astype(np.float64) / self.layout.largest, 1.0)
        seen = scales[list(slots)].astype(np.float64)
        off = ~(np.abs(seen - wanted) <= wanted * 2.0**-20)
        if off.any():
            slot, head = np.argwhere(off)[0].tolist()
            place = f"scale {head} of slot {slots[slot]}: "
            self.differ("CACHE-4", f"{place}{wanted[slot, head]:.7g}", f"{seen[slot, head]:.7g}")
