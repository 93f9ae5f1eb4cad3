"""POOL-7, POOL-8: the cached map, from keys to pages, with the content of each cached page."""

from collections.abc import Sequence

from .hashing import PageHash, PageHashWithGroupId

__all__ = ["CachedMap"]


class CachedMap:
    """The cached pages, found by their keys. It trusts its caller.

    It also keeps the *ghost content* of each cached page, an id of `PageKeys.content_id`: equal ids mean equal content
    from the first token on. No hash is involved, so that hits are verified even with a weak hash function (R2).

    Attributes:
        pages_of: the pages cached under each key, in the order in which they were cached.
        key_of: the key of each cached page.
        content_of: the content id of each cached page.
    """

    def __init__(self) -> None:
        self.pages_of: dict[PageHashWithGroupId, list[int]] = {}
        self.key_of: dict[int, PageHashWithGroupId] = {}
        self.content_of: dict[int, int] = {}

    def under(self, page_hash: PageHash, group_id: int) -> Sequence[int]:
        """The pages cached under a key, in the order in which they were cached."""
        return self.pages_of.get(PageHashWithGroupId(page_hash, group_id), ())

    def add(self, page: int, key: PageHashWithGroupId, content: int) -> None:
        """Caches a page, behind those of the same key."""
        self.pages_of.setdefault(key, []).append(page)
        self.key_of[page] = key
        self.content_of[page] = content

    def remove(self, page: int) -> PageHashWithGroupId:
        """Removes a cached page; others under the same key stay, in order. Returns the key."""
        key = self.key_of.pop(page)
        del self.content_of[page]
        self.pages_of[key].remove(page)
        if not self.pages_of[key]:
            del self.pages_of[key]
        return key

    def check(self) -> None:
        """Verifies that pages by key, keys and contents agree."""
        mapped = {page: key for key, pages in self.pages_of.items() for page in pages}
        assert 0 not in self.key_of, "POOL-1: the null page is cached"
        assert self.key_of == mapped, "POOL-7: the cached map and the pages' hashes differ"
        assert len(mapped) == sum(map(len, self.pages_of.values())), "POOL-8: a page has two hashes"
        assert all(self.pages_of.values()), "POOL-7: a key without pages"
        assert self.content_of.keys() == mapped.keys(), "R2: content and hashes differ"
