"""HASH-3, R2: the keys of a sequence's full pages, and ids for their contents in which no hash is involved."""

from collections.abc import Iterable, Sequence
from typing import Any

from ..declarations import ExtraKey, HashFunction
from .hashing import PageHash, hash_page_tokens, page_extra_keys

__all__ = ["Content", "PageKeys"]

Content = tuple[int | None, tuple[int, ...], tuple[Any, ...] | None]
"""The content of a full page: (content id of the page before, its tokens, its extra keys)."""


class PageKeys:
    """Computes the keys of a pool's pages and the ids of their contents.

    Args:
        hash_function: the hash of the keys.
        none_hash: the root of every chain of keys (HASH-1).

    Attributes:
        contents: every content that has an id; the id is its place among them.
        content_of_id: the contents in the order of their ids.
    """

    def __init__(self, hash_function: HashFunction, none_hash: bytes) -> None:
        self.hash_function = hash_function
        self.none_hash = none_hash
        self.contents: dict[Content, int] = {}
        self.content_of_id: list[Content] = []

    def content_id(self, parent: int | None, tokens: Sequence[int], extra_keys: tuple[Any, ...] | None) -> int:
        """The id of a full page's content: equal ids if and only if the contents are equal (R2)."""
        content = parent, tuple(tokens), extra_keys
        if content not in self.contents:
            self.contents[content] = len(self.content_of_id)
            self.content_of_id.append(content)
        return self.contents[content]

    def following(
        self, before: tuple[PageHash, int] | None, tokens: Sequence[int], extra_keys: tuple[Any, ...] | None
    ) -> tuple[PageHash, int]:
        """Key and content id of a full page.

        Args:
            before: those of the page before; None for a first page.
            tokens: the page's tokens.
            extra_keys: the extra keys that touch the page; None if there are none.
        """
        parent, content = (before[0].hash_value, before[1]) if before is not None else (None, None)
        key = hash_page_tokens(self.hash_function, parent, tokens, extra_keys, none_hash=self.none_hash)
        return key, self.content_id(content, tokens, extra_keys)

    def extend_chain(
        self,
        chain: list[tuple[PageHash, int]],
        tokens: Sequence[int],
        extra_keys: Iterable[ExtraKey],
        page_size: int,
        num_pages: int,
    ) -> list[tuple[PageHash, int]]:
        """Extends a sequence's chain of (key, content id), an entry a full page, to ``num_pages`` pages (HASH-3, R2).

        Args:
            chain: the entries of the sequence's first pages; extended in place.
            tokens: the tokens of the whole sequence.
            extra_keys: the extra keys of the whole sequence.
            page_size: tokens in a page.
            num_pages: length of the chain after the call.

        Returns:
            The chain.
        """
        for start in range(len(chain) * page_size, num_pages * page_size, page_size):
            touching = page_extra_keys(extra_keys, start, start + page_size)
            before = chain[-1] if chain else None
            chain.append(self.following(before, tokens[start : start + page_size], touching))
        return chain
