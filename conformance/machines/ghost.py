"""What each page holds, told from the calls alone (R2): by it hits and steps are judged, whatever keys say."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof.spec.declarations import ExtraKey, Request
from kvproof.spec.pool.hashing import page_extra_keys, request_extra_keys

from .worlds import Group

__all__ = ["Content", "Ghost"]

Pages = Sequence[Sequence[int]]
"""The ids of a request's pages, a list for each group."""


@dataclass(frozen=True)
class Content:
    """What a page holds, or is going to when the step that writes it is dispatched.

    Attributes:
        group: the cache group that it was written for.
        tokens: the request's tokens from the first on: the page holds the K/V of the last of them, as many as fill
            it, or the state after all of them.
        extra_keys: the extra keys that touch those tokens, page by page.
    """

    group: int
    tokens: tuple[int, ...]
    extra_keys: tuple[Any, ...]


class Ghost:
    """The content of every page of one pool.

    Args:
        groups: the cache groups.

    Attributes:
        contents: what is known of pages by id; the others hold nothing that anybody may read.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = groups
        self.contents: dict[int, Content] = {}
        self._made: dict[tuple[Any, ...], Content] = {}

    def content(self, group: int, end: int, tokens: Sequence[int], extra_keys: Iterable[ExtraKey]) -> Content:
        """What a page holds that is about the tokens of a request up to ``end``; each such content is made once."""
        asked = group, tuple(tokens[:end]), tuple(extra_keys)
        if asked not in self._made:
            size = self.groups[group].page_size
            ordered = request_extra_keys(Request("r", [], asked[2]))
            touching = tuple(page_extra_keys(ordered, start, start + size) for start in range(0, end, size))
            self._made[asked] = Content(group, asked[1], touching)
        return self._made[asked]

    def full(self, group: int, place: int, tokens: Sequence[int], extra_keys: Iterable[ExtraKey]) -> Content:
        """What the page at a place of a request holds when it is full."""
        return self.content(group, (place + 1) * self.groups[group].page_size, tokens, extra_keys)

    def write(self, pages: Pages, start: int, end: int, request: Request) -> None:
        """A request's pages hold its tokens ``[start, end)`` from now on, and nothing that is known beyond.

        Args:
            pages: the pages that the request holds.
            start: tokens that they held before, and that are not written any more.
            end: tokens that are written, none of them a draft.
            request: the request.
        """
        tokens = [int(token) for token in request.all_token_ids]
        for group_id, held in enumerate(pages):
            for place, end_of_page in self._written(group_id, held, start, end):
                if end_of_page is None:
                    self.contents.pop(held[place], None)
                elif held[place]:
                    self.contents[held[place]] = self.content(group_id, end_of_page, tokens, request.extra_keys)

    def _written(self, group_id: int, held: Sequence[int], start: int, end: int) -> Iterator[tuple[int, int | None]]:
        """The places that are written, each with the tokens that its page is about then; None for look-ahead."""
        size = self.groups[group_id].page_size
        if self.groups[group_id].keeps_states:
            yield len(held) - 1, end
            return
        for place in range(start // size, len(held)):
            yield place, min((place + 1) * size, end) if place * size < end else None

    def unread(self, pages: Pages, start: int, request: Request) -> list[tuple[int, int]]:
        """Where a step that begins after ``start`` tokens would read what is not the request's: (group, place).

        Args:
            pages: the pages that the request holds.
            start: its computed tokens.
            request: the request.
        """
        tokens, wrong = [int(token) for token in request.all_token_ids], []
        for group_id, (group, held) in enumerate(zip(self.groups, pages, strict=True)):
            first = group.first_place(start)
            ends = [(first, start)] if group.keeps_states and start else []
            if not group.keeps_states:
                ends = [(place, (place + 1) * group.page_size) for place in range(first, start // group.page_size)]
            for place, end in ends:
                right = self.content(group_id, end, tokens, request.extra_keys)
                if place >= len(held) or self.contents.get(held[place]) != right:
                    wrong.append((group_id, place))
        return wrong

    def withdraw(self, pages: Pages, start: int) -> None:
        """Steps that were to write a request's tokens from ``start`` on are not dispatched."""
        for group, held in zip(self.groups, pages, strict=True):
            for page in held[start // group.page_size :]:
                self.contents.pop(page, None)

    # -- What can be found ------------------------------------------------------------------------------------

    def is_full(self, page: int) -> bool:
        """Whether a page is known to be full, so that it may be found by its content."""
        content = self.contents.get(page)
        return content is not None and len(content.tokens) % self.groups[content.group].page_size == 0

    def begins_with(self, page: int, group: int, end: int, tokens: Sequence[int], keys: Iterable[ExtraKey]) -> bool:
        """Whether a page begins with a request's tokens from the last page boundary before ``end`` up to it (MAN-17).

        Args:
            page: the page.
            group: the cache group.
            end: number of tokens.
            tokens: the request's tokens.
            keys: its extra keys: those that touch the whole page count.
        """
        content, own = self.contents.get(page), self.content(group, end, tokens, keys)
        return (
            content is not None
            and (content.group, content.extra_keys) == (group, own.extra_keys)
            and content.tokens[:end] == own.tokens
        )
