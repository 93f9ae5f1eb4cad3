"""The backend of ``kvproof demo``: a pool with one mistake."""

from collections.abc import Iterable

from kvproof import spec

__all__ = ["PagePool"]


class PagePool(spec.PagePool):
    """The specification's pool, but for the order in which pages are given back."""

    def free_pages(self, ordered_pages: Iterable[spec.CachePage]) -> None:
        """Gives pages back: the last one first, which is wrong."""
        super().free_pages(list(ordered_pages)[::-1])
