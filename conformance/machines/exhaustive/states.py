"""States that a walk found: the moves that lead to each, which of its own were made, and to what they lead."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from ...calls.deviation import SpecificationError
from .ways import Move

__all__ = ["Node", "digest"]


@dataclass(slots=True, eq=False)
class Node:
    """A state that was found.

    Attributes:
        parent: the state before it; None for the first.
        place: which of the parent's moves leads to it.
        distance: calls from the beginning to it.
        lines: lines of a report that show them.
        way: that move, as it is named on the objects that the shortest sequence makes; None before it is needed.
        names: the names of its moves; None until they were listed.
        leads: what those of its moves that were made, from the first on, lead to; None: they deviate.
    """

    parent: "Node | None"
    place: int
    distance: int
    lines: int
    way: Move | None = None
    names: tuple[str, ...] | None = None
    leads: "list[Node | None]" = field(default_factory=list)

    @property
    def left(self) -> bool:
        """Whether all of its moves were made."""
        return self.names is not None and len(self.leads) == len(self.names)

    def list_moves(self, moves: Sequence[Move]) -> None:
        """Notes which moves there are, as some objects name them.

        Raises:
            SpecificationError: they are others than on other objects: the world's fault, which takes unlike states for
                one, or lists their moves by names.
        """
        names = tuple(way.name for way in moves)
        if self.names is None:
            self.names = names
        elif names != self.names:
            raise SpecificationError(f"one state has the moves {self.names} and {names}")

    def path(self) -> "Iterator[Node]":
        """The states from the first to this one."""
        nodes = []
        at: Node | None = self
        while at is not None:
            nodes.append(at)
            at = at.parent
        return reversed(nodes)

    def next_move(self, furthest: int, most_steps: int) -> int | None:
        """The place of the move that is made next in this state.

        Args:
            furthest: no move is made that was not made before in a state beyond so many calls.
            most_steps: how many moves that were made before may be made again.

        Returns:
            The place of one that was not made, or of the first on the way to one; None if there is none so near.
            Proportional to the moves within ``most_steps``.
        """
        if not self.left and self.distance <= furthest:
            return len(self.leads)
        seen, last = {self}, [(to, place) for place, to in enumerate(self.leads) if to is not None]
        for _ in range(most_steps):
            further = []
            for at, first in last:
                if at not in seen:
                    if not at.left and at.distance <= furthest:
                        return first
                    seen.add(at)
                    further += [(to, first) for to in at.leads if to is not None]
            last = further
        return None


def digest(key: Hashable) -> bytes:
    """A key in 16 bytes: a collision among a billion states is less likely than 1 in 10^20."""
    return blake2b(repr(key).encode(), digest_size=16).digest()
