"""The levels at which a backend is held against the specification."""

from typing import Literal

__all__ = ["CHECK_LEVELS", "LEVELS", "Level"]

Level = Literal["exact", "safe", "sound"]
"""``exact``: the same pages in the same order as the specification gives, refusals by the same kinds of error.

``safe``: what a correct backend with another eviction policy still holds: who owns which page, what pages hold, hits
that are right and the longest that are resident, accounting. Any exception is a refusal.

``sound``: what a caller who makes no mistakes can notice: compared as at ``safe``, no bad input is given, and clauses
about order, refusals and the interface are not looked at.
"""

LEVELS: tuple[Level, ...] = ("exact", "safe")
"""The ways to compare, the stricter one first."""

CHECK_LEVELS: tuple[Level, ...] = (*LEVELS, "sound")
"""All levels of a check, the strictest one first."""
