"""PIN-1: which pages are pinned, and how often."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..declarations import CacheSalt
from ..reading.arguments import refusal
from .hashing import PageHashWithGroupId

__all__ = ["Pins"]


class Pins:
    """The pins of a pool's pages. A pin is a reference, too: the caller changes reference counts.

    Args:
        max_pages: the most pages that may be pinned.
        max_pages_per_salt: the most of them that carry the same salt, and the most that carry none; None: no bound.
        key_of: the key of each cached page, as the pool goes on to change it.
    """

    def __init__(
        self, max_pages: int, max_pages_per_salt: int | None, key_of: Mapping[int, PageHashWithGroupId]
    ) -> None:
        self._max_pages = max_pages
        self._max_per_salt = max_pages_per_salt
        self._key_of = key_of
        self._count: Counter[int] = Counter()
        """Number of pins of each pinned page."""

    @property
    def num_pinned(self) -> int:
        """How many pages are pinned."""
        return len(self._count)

    def of(self, page: int) -> int:
        """The number of pins of a page."""
        return self._count[page]

    def add(self, pages: Sequence[int]) -> None:
        """Pins cached pages, once for each mention; refused, with nothing changed, beyond the bounds."""
        excess = self._beyond_bounds({*self._count, *pages})
        if excess is not None:
            raise refusal(ValueError, "PIN-1", f"pages={pages}: {excess}")
        self._count.update(pages)

    def remove(self, pages: Iterable[int]) -> None:
        """Removes a pin for each mention; refused, with nothing changed, where a page has fewer."""
        removed = Counter(pages)
        for page, mentions in removed.items():
            if mentions > self.of(page):
                raise refusal(
                    ValueError, "PIN-1", f"pages: page {page} mentioned {mentions} times, pinned {self.of(page)} times"
                )
        self._count = self._count - removed

    def _beyond_bounds(self, pages: Iterable[int]) -> str | None:
        """What is wrong with having those pages pinned, if anything is.

        A page whose hash was withdrawn has no extra keys any more, so it counts for the first bound only.
        """
        pinned = list(pages)
        if len(pinned) > self._max_pages:
            return f"{len(pinned)} pinned pages, max_pinned_pages={self._max_pages}"
        salts = Counter(_salt(self._key_of[page]) for page in pinned if page in self._key_of)
        most = max(salts.values(), default=0)
        if self._max_per_salt is not None and most > self._max_per_salt:
            return f"{most} pinned pages of one salt, max_pinned_pages_per_salt={self._max_per_salt}"
        return None

    def restore(self, pages: Iterable[int]) -> None:
        """Sets the pins of a snapshot, one for each mention; `check` verifies the bounds (MAN-14)."""
        self._count = Counter(pages)

    def check(self, counts: Sequence[int]) -> None:
        """Verifies that each pin is a reference and that the bounds hold; ``counts``: reference counts by page."""
        for page, pins in self._count.items():
            assert 0 < page < len(counts), f"PIN-1: page {page} is pinned"
            assert 1 <= pins <= counts[page], f"PIN-1: pins of page {page} and its count"
        assert self._beyond_bounds(self._count) is None, f"PIN-1: {self._beyond_bounds(self._count)}"

    def __repr__(self) -> str:
        return f"pins: {dict(self._count)}"


def _salt(key: PageHashWithGroupId) -> CacheSalt | None:
    """The cache salt of a page, None if it has none."""
    return next((own for own in key.page_hash.extra_keys or () if isinstance(own, CacheSalt)), None)
