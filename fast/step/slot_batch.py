"""The result of a batched step: the requests that were granted slots, and the new pages of each group in one array."""

import numpy as np
from numpy.typing import NDArray

from ..reading.arguments import index

__all__ = ["SlotBatch"]


class SlotBatch:
    """The result of `CacheManager.allocate_slots_batch` for n requests (MAN-11).

    Args:
        granted: see the attribute.
        page_ids: see the attribute.
        places: see the attribute.
        counts: see the attribute.

    Attributes:
        granted: True for each request that was granted slots, `bool[n]`.
        page_ids: for each group the new pages of all requests in order, `i32[total]`; null pages where a state
            group's list was filled up (MAN-13).
        places: for each group the positions in the batch of the requests that have new pages, ascending, `i64[m]`.
        counts: for each group the number of new pages of each of these requests, `i64[m]`.
    """

    __slots__ = ("counts", "granted", "page_ids", "places")

    def __init__(
        self,
        granted: NDArray[np.bool_],
        page_ids: tuple[NDArray[np.int32], ...],
        places: tuple[NDArray[np.int64], ...],
        counts: tuple[NDArray[np.int64], ...],
    ) -> None:
        self.granted = granted
        self.page_ids = page_ids
        self.places = places
        self.counts = counts

    @property
    def offsets(self) -> tuple[NDArray[np.int64], ...]:
        """For each group the offset of each request's new pages in ``page_ids``, then the total, `i64[n + 1]`. O(n)."""
        all_offsets = []
        for places, counts in zip(self.places, self.counts, strict=True):
            offsets = np.zeros(len(self.granted) + 1, np.int64)
            offsets[places + 1] = counts
            all_offsets.append(offsets.cumsum())
        return tuple(all_offsets)

    @property
    def num_granted(self) -> int:
        """The number of requests that were granted slots. O(n)."""
        return int(np.count_nonzero(self.granted))

    def get_page_ids(self, place: int) -> tuple[list[int], ...]:
        """The new pages of one request, a list for each group; empty lists if it has none. O(total).

        Args:
            place: its position in the batch.

        Raises:
            IndexError: the batch has no such position.
        """
        place = index("place", place, len(self.granted), "MAN-11")
        found: list[list[int]] = []
        for pages, places, counts in zip(self.page_ids, self.places, self.counts, strict=True):
            at = int(places.searchsorted(place))
            if at == len(places) or places[at] != place:
                found.append([])
            else:
                start = int(counts[:at].sum())
                found.append(pages[start : start + int(counts[at])].tolist())
        return tuple(found)

    def __repr__(self) -> str:
        taken = list(map(len, self.page_ids))
        return f"SlotBatch({self.num_granted} of {len(self.granted)} granted, new pages {taken})"
