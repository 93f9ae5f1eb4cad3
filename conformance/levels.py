"""The two levels at which a backend is held against the specification."""

from typing import Literal, get_args

__all__ = ["LEVELS", "Level"]

Level = Literal["exact", "safe"]
"""``exact``: the same pages in the same order as the specification gives, refusals by the same kinds of error.

``safe``: what a correct backend with another eviction policy still holds: who owns which page, what pages hold, hits
that are right and the longest that are resident, accounting. Any exception is a refusal.
"""

LEVELS: tuple[Level, ...] = get_args(Level)
"""Both, the stricter one first."""
