"""Ways out of a state, and how taking one may end."""

from typing import Any, NamedTuple

from ...calls.datum import Call

__all__ = ["COMPARING", "GLANCING", "PASSING_OVER", "Move", "UndecidedError", "UnlikeError", "Way"]

PASSING_OVER, GLANCING, COMPARING = "passing over", "glancing", "comparing"
"""With how much care a way is taken; see `SmallWorld.take`."""


class Way(NamedTuple):
    """A call, or a few that belong together: the world's step that makes them, and its arguments.

    Attributes:
        name: the step's name.
        arguments: what it is given; ids are those of the objects at hand.
    """

    name: str
    arguments: tuple[Any, ...] = ()


Move = Way | Call
"""What leads from one state to another: a call, or the step of a world that makes some."""


class UndecidedError(Exception):
    """What a way leads to is unlike on both sides, by a clause that is not looked at."""


class UnlikeError(Exception):
    """A call that was not compared with full care came out unlike on both sides."""
