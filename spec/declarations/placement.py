"""POOL-12: what a placement reads of each shard, and the placements that have names; no decisions."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

from .reading import refusal, shown

__all__ = ["Placement", "ShardLoad", "read_placement"]


class ShardLoad(NamedTuple):
    """A shard as a placement sees it when a request is to be placed.

    Attributes:
        num_to_compute: tokens of the request behind its longest cached prefix on the shard.
        num_waiting: known tokens of the shard's live requests that were not computed at the last call for each.
        num_free_pages: free pages of the shard's pool.
    """

    num_to_compute: int
    num_waiting: int
    num_free_pages: int


PlacementName = Literal["cost", "prefix"]

Placement = PlacementName | Callable[[Sequence[ShardLoad]], int]
"""Chooses the number of a shard by all shards' loads.

``cost`` takes the shard where the fewest tokens are computed before the request is: those that wait there and its own.
``prefix`` takes the one with the longest cached prefix, of several the one with the most free pages. Of equals the
lowest number is taken.
"""


def read_placement(placement: object) -> Placement:
    """Reads the argument ``placement``.

    Raises:
        TypeError: it is neither a str nor callable.
        ValueError: it is no placement's name.
    """
    if callable(placement):
        return placement
    if not isinstance(placement, str):
        raise refusal(TypeError, "POOL-12", f"placement={shown(placement)} must be a str or callable")
    for name in get_args(PlacementName):
        if placement == name:
            return name  # type: ignore[no-any-return]
    names = ", ".join(map(repr, get_args(PlacementName)))
    raise refusal(ValueError, "POOL-12", f"placement={placement!r} must be one of {names}, or callable")
