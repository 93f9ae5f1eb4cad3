"""How long a check takes: profiles by name."""

import math
from dataclasses import dataclass

from .runner import GOING_ON, SHRINKING, Search

__all__ = ["PROFILES", "Profile"]


@dataclass(frozen=True)
class Profile:
    """How much is tried, and how long deviations are pursued.

    Attributes:
        about: what it is for.
        effort: sequences of calls, as a multiple of what a machine has by default.
        shrinking: steps for making each counterexample shorter, as a multiple of those that a machine takes by default.
        going_on: steps after which a machine does not go on after another deviation, in the same unit.
    """

    about: str
    effort: float
    shrinking: float
    going_on: float

    def search(self, first: bool) -> Search:
        """The options of `runner.run_machine`.

        Args:
            first: whether the first deviation ends the run.
        """
        seconds = 0.0 if first else math.inf
        return {"effort": self.effort, "shrinking": self.shrinking, "going_on": self.going_on, "seconds": seconds}


PROFILES = {
    "quick": Profile("half a minute: after every change", 0.1, SHRINKING / 4, GOING_ON / 6),
    "default": Profile("a minute or two", 1.0, SHRINKING, GOING_ON),
    "deep": Profile("hours: the default check again and again, each time with another seed", 1.0, SHRINKING, GOING_ON),
}
"""Every profile by its name."""
