"""PIN-1: which pages are pinned, how often, and for which salt.

A page's pins are part of its reference count; they are counted here as well, so that only `PagePool.unpin` can remove
them. Nothing is allocated before the first pin.
"""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import CacheSalt

from ..index.prefix_index import PrefixIndex
from ..reading.arguments import refusal

__all__ = ["Pins"]


class Pins:
    """The pins of a pool's pages. The caller updates the pages' reference counts.

    Args:
        num_pages: pages of the pool.
        max_pages: the most pages that may be pinned.
        max_pages_per_salt: the most pages of one cache salt that may be pinned, pages without a salt counting as one
            salt; None: no such bound.
        index: the index of cached pages.

    Attributes:
        num_pinned: the number of distinct pinned pages.
    """

    __slots__ = (
        "_count_of",
        "_index",
        "_max_pages",
        "_max_per_salt",
        "_num_pages",
        "_per_salt",
        "_salts",
        "num_pinned",
    )

    def __init__(
        self,
        num_pages: int,
        max_pages: int,
        max_pages_per_salt: int | None,
        index: PrefixIndex,
    ) -> None:
        self._num_pages = num_pages
        self._max_pages = max_pages
        self._max_per_salt = max_pages_per_salt
        self._index = index
        self._count_of: NDArray[np.int64] | None = None
        self._salts: dict[int, CacheSalt | None] = {}
        self._per_salt: Counter[CacheSalt | None] = Counter()
        self.num_pinned = 0

    def counts(self) -> NDArray[np.int64]:
        """The number of pins of each page, `i64[num_pages]`; not to be written."""
        if self._count_of is None:
            self._count_of = np.zeros(self._num_pages, np.int64)
        return self._count_of

    def of(self, page: int) -> int:
        """The number of pins of a page. O(1)."""
        return int(self.counts()[page]) if self.num_pinned else 0

    def of_each(self, pages: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of pins of each of some pages, `i64[len(pages)]`. O(pages)."""
        return self.counts()[pages] if self.num_pinned else np.zeros(len(pages), np.int64)

    def add(self, pages: NDArray[np.int64]) -> None:
        """Adds one pin per mention, if the bounds allow it (R1). O(pages log pages).

        Args:
            pages: cached pages.

        Raises:
            ValueError: too many distinct pages would be pinned; nothing changes.
        """
        distinct = np.unique(pages)
        new = distinct[self.counts()[distinct] == 0].tolist()
        if self.num_pinned + len(new) > self._max_pages:
            raise refusal(
                ValueError,
                "PIN-1",
                f"pages={distinct.tolist()} would make {self.num_pinned + len(new)} pinned pages, "
                f"max_pinned_pages={self._max_pages}",
            )
        salts = {page: self._salt_of(page) for page in new}
        added = Counter(salts.values())
        for salt, count in added.items():  # the message names no salt (SEC-2)
            if self._max_per_salt is not None and self._per_salt[salt] + count > self._max_per_salt:
                raise refusal(
                    ValueError,
                    "PIN-1",
                    f"pages={distinct.tolist()} would make {self._per_salt[salt] + count} pinned pages of one salt, "
                    f"max_pinned_pages_per_salt={self._max_per_salt}",
                )
        np.add.at(self.counts(), pages, 1)
        self._salts.update(salts)
        self._per_salt.update(added)
        self.num_pinned += len(new)

    def remove(self, distinct: NDArray[np.int64], mentions: NDArray[np.int64]) -> None:
        """Removes pins, if each page has enough of them (R1). O(pages).

        Args:
            distinct: pages, each once.
            mentions: the number of pins to remove from each, at least 1.

        Raises:
            ValueError: a page has fewer pins; nothing changes.
        """
        counts = self.counts()
        left = counts[distinct] - mentions
        if left.size and left.min() < 0:
            worst = int(left.argmin())
            raise refusal(
                ValueError,
                "PIN-1",
                f"pages: page {distinct[worst]} mentioned {mentions[worst]} times, "
                f"pinned {counts[distinct[worst]]} times",
            )
        counts[distinct] = left
        gone = distinct[left == 0]
        self.num_pinned -= len(gone)
        self.forget_salts(gone)

    def _salt_of(self, page: int) -> CacheSalt | None:
        """A cached page's salt; None if it has none."""
        place = self._index.place(page)
        assert place is not None, f"page {page} is cached"
        return next((key for key in place[0].extra_keys or () if isinstance(key, CacheSalt)), None)

    def forget_salts(self, pages: NDArray[np.int64]) -> None:
        """Removes pages from the counts by salt, after they lost their hashes or their last pins. O(pages)."""
        for page in pages.tolist() if self._salts else ():
            if page in self._salts:
                salt = self._salts.pop(page)
                self._per_salt[salt] -= 1
                if not self._per_salt[salt]:
                    del self._per_salt[salt]

    def restore(self, counts: NDArray[np.int64], is_cached: NDArray[np.bool_]) -> None:
        """Sets the pins of all pages; `check` verifies the bounds (MAN-14).

        Args:
            counts: the number of pins of each page, `i64[num_pages]`.
            is_cached: True for each page that is cached, `bool[num_pages]`.
        """
        self._count_of = counts
        self.num_pinned = int(np.count_nonzero(counts))
        self._salts = {page: self._salt_of(page) for page in (counts.astype(bool) & is_cached).nonzero()[0].tolist()}
        self._per_salt = Counter(self._salts.values())

    def check(self, is_cached: NDArray[np.bool_]) -> None:
        """Verifies counts and bounds.

        Args:
            is_cached: True for each page that is cached, `bool[num_pages]`.

        Raises:
            AssertionError: they don't agree; the message shows the pins.
        """
        counts = self.counts()
        pinned = counts.nonzero()[0]

        def state() -> str:
            return (
                f"pins {dict(zip(pinned.tolist(), counts[pinned].tolist(), strict=True))}, salts of {list(self._salts)}"
            )

        assert counts.min() >= 0, f"PIN-1: {state()}"
        assert not counts[0], f"PIN-1: the null page is pinned: {state()}"
        assert self.num_pinned == len(pinned) <= self._max_pages, f"PIN-1: {self.num_pinned} pages: {state()}"
        salts = {page: self._salt_of(page) for page in pinned[is_cached[pinned]].tolist()}
        assert self._salts == salts, f"PIN-1: {state()}"
        assert self._per_salt == Counter(salts.values()), (
            f"PIN-1: counts by salt {sorted(self._per_salt.values())}: {state()}"
        )
        most = max(self._per_salt.values(), default=0)
        assert self._max_per_salt is None or most <= self._max_per_salt, f"PIN-1: {most} of one salt: {state()}"
