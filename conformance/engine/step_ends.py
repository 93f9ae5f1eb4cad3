"""Where an engine's steps end: a state is kept only where one ended (MAN-13), so that they end where it is worth it."""

from collections.abc import Sequence
from math import lcm
from typing import Any

from kvproof.spec.declarations import CacheGroupSpec, MambaSpec

__all__ = ["StepEnds", "copies_states", "junction_of"]


def copies_states(groups: Sequence[CacheGroupSpec]) -> bool:
    """Whether a group keeps states at page boundaries and goes on from copies of them (MAN-13)."""
    return any(
        isinstance(group.kv_cache_spec, MambaSpec) and group.kv_cache_spec.mamba_cache_mode == "align"
        for group in groups
    )


class StepEnds:
    """The lengths at which steps end: resume points, and boundaries of pages (RET-1, RET-2).

    Args:
        groups: the cache groups. Where none keeps states, a step ends anywhere.
        interval: the manager's ``retention_interval``.
        unit: its ``match_unit``: then a hit ends at a multiple of it where a state can be kept (MAN-17).
    """

    def __init__(self, groups: Sequence[CacheGroupSpec], interval: int | None, unit: int | None = None) -> None:
        sizes = [group.kv_cache_spec.page_size if unit is None or copies_states([group]) else unit for group in groups]
        self._unit = lcm(*sizes) if copies_states(groups) else 0
        self._interval = interval

    def end(self, start: int, most: int, num_tokens: int, junction: int) -> int:
        """How many tokens of a request are computed when a step ends.

        Args:
            start: how many were when it began.
            most: how many there could be: ``start`` and all that the step has room for, at most ``num_tokens``.
            num_tokens: its tokens that are known.
            junction: its junction; 0 if it has none.
        """
        if not self._unit:
            return most
        stops = [junction, (num_tokens - 1) // self._unit * self._unit]  # the longest that a prompt like it can hit
        if self._interval:
            stops.append((start // self._interval + 1) * self._interval)
        ahead = [stop for stop in stops if start < stop <= most]
        if ahead:
            return min(ahead)
        aligned = most // self._unit * self._unit
        return aligned if start < aligned and most < num_tokens else most


def junction_of(manager: Any, request: Any) -> int:
    """The junction of a request that is to be admitted (RET-2); 0 where a manager knows of none."""
    return int(manager.get_junction(request)) if hasattr(manager, "get_junction") else 0
