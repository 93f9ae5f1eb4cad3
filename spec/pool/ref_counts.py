"""POOL-5, POOL-6: how often each page of a pool is referenced."""

from collections import Counter
from collections.abc import Iterable

from ..reading.arguments import refusal
from .pins import Pins

__all__ = ["RefCounts"]


class RefCounts:
    """The reference counts of a pool's pages, pins included. The caller moves pages into and out of the free queue.

    Args:
        num_pages: pages of the pool; all counts begin at 0.
        pins: the pins of each page.

    Attributes:
        of: the count of each page.
    """

    def __init__(self, num_pages: int, pins: Pins) -> None:
        self.of = [0] * num_pages
        self._pins = pins

    def set(self, page: int, count: int) -> None:
        """Sets the count of a page in use; the null page's stays 0 (POOL-1).

        Raises:
            ValueError: the page would leave or enter the free queue (POOL-2), or lose a pin's reference (PIN-1).
        """
        if page == 0:
            return
        held = self.of[page]
        if (count == 0) != (held == 0):
            raise refusal(ValueError, "POOL-2", f"ref_cnt={count} on page {page} at {held}: use touch or free_pages")
        if count < self._pins.of(page):
            raise refusal(ValueError, "PIN-1", f"ref_cnt={count} on page {page}: more pins hold it")
        self.of[page] = count

    def add(self, pages: Iterable[int]) -> list[int]:
        """Adds a reference for each mention; returns the pages that had none, in order."""
        free = []
        for page in pages:
            if self.of[page] == 0:
                free.append(page)
            self.of[page] += 1
        return free

    def remove(self, pages: Iterable[int]) -> list[int]:
        """Removes a reference for each mention; returns the pages left without, in the order of their last mentions."""
        freed = []
        for page in pages:
            self.of[page] -= 1
            if self.of[page] == 0:
                freed.append(page)
        return freed

    def require(self, pages: Iterable[int]) -> None:
        """Refuses more mentions of a page than it has references beside its pins (POOL-5)."""
        for page, mentions in Counter(pages).items():
            held = self.of[page] - self._pins.of(page)
            if mentions > held:
                raise refusal(
                    ValueError,
                    "POOL-5",
                    f"ordered_pages: page {page} mentioned {mentions} times, held {held} times but for pins",
                )
