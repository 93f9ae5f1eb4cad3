"""What a batched step gives: who was granted slots, and the new pages of each group in one array."""

import numpy as np
from numpy.typing import NDArray

from .arguments import index

__all__ = ["SlotBatch"]


class SlotBatch:
    """The result of `CacheManager.allocate_slots_batch` for n requests (MAN-11).

    Args:
        granted: see the attribute.
        page_ids: see the attribute.
        offsets: see the attribute.

    Attributes:
        granted: whether each request was given slots, `bool[n]`.
        page_ids: for each group the new pages of all requests in order, `i32[total]`; null pages where a state
            group's list was filled up (MAN-13).
        offsets: for each group where each request's begin, and at last the total, `i64[n + 1]`.
    """

    __slots__ = ("granted", "offsets", "page_ids")

    def __init__(
        self,
        granted: NDArray[np.bool_],
        page_ids: tuple[NDArray[np.int32], ...],
        offsets: tuple[NDArray[np.int64], ...],
    ) -> None:
        self.granted = granted
        self.page_ids = page_ids
        self.offsets = offsets

    @property
    def num_granted(self) -> int:
        """How many requests were given slots. O(n)."""
        return int(np.count_nonzero(self.granted))

    def get_page_ids(self, place: int) -> tuple[list[int], ...]:
        """The new pages of one request, a list for each group; empty lists where it was given none. O(its pages).

        Args:
            place: its place in the batch.

        Raises:
            IndexError: there is no such place.
        """
        place = index("place", place, len(self.granted), "MAN-11")
        return tuple(
            pages[starts[place] : starts[place + 1]].tolist()
            for pages, starts in zip(self.page_ids, self.offsets, strict=True)
        )

    def __repr__(self) -> str:
        return (
            f"SlotBatch({self.num_granted} of {len(self.granted)} granted, new pages {list(map(len, self.page_ids))})"
        )
