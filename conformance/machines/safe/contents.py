"""What pages hold (R2), as the machines of level safe need it: with the longest prefix that is resident."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from kvproof.spec.declarations import ExtraKey

from ..ghost import Content, Ghost
from ..worlds import Group, World

__all__ = ["Contents"]


class Contents(Ghost):
    """The content of every page of one pool; see `Ghost`.

    Args:
        groups: the cache groups.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        super().__init__(groups)
        self._made: dict[tuple[Any, ...], Content] = {}

    def content(self, group: int, end: int, tokens: Sequence[int], extra_keys: Iterable[ExtraKey]) -> Content:
        """See `Ghost`; the same contents are asked for after every call, and each is made once."""
        key = group, end, tuple(tokens[:end]), tuple(extra_keys)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = super().content(*key)
        return made

    def is_full(self, page: int) -> bool:
        """Whether a page is known to be full, so that it may be found by its content."""
        content = self.contents.get(page)
        return content is not None and len(content.tokens) % self.groups[content.group].page_size == 0

    def longest(
        self, world: World, resident: Collection[int], tokens: Sequence[int], extra_keys: Sequence[ExtraKey]
    ) -> int:
        """How long the longest prefix is that every group can serve from pages that are resident (MAN-1, MAN-9).

        Args:
            world: the groups, and whether an Eagle draft model runs on them.
            resident: the pages that can be found.
            tokens: a request's tokens, the last of which is to be computed.
            extra_keys: its extra keys.
        """
        found = {self.contents[page] for page in resident if page in self.contents}

        def places(number: int, length: int) -> list[int]:
            group = self.groups[number]
            return list(range(group.first_place(length), length // group.page_size))

        def serves(number: int, length: int) -> bool:
            end = length // self.groups[number].page_size
            behind = [end] if number in world.eagle_groups else []
            if behind and (end + 1) * self.groups[number].page_size > len(tokens):
                return False
            needed = [*places(number, length), *behind]
            return all(self.full(number, place, tokens, extra_keys) in found for place in needed)

        numbers = range(len(self.groups))
        for length in range((len(tokens) - 1) // world.unit * world.unit, 0, -world.unit):
            if any(places(number, length) for number in numbers) and all(serves(n, length) for n in numbers):
                return length
        return 0
