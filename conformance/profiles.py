"""How long a check takes: profiles by name."""

from dataclasses import dataclass

from .runner import Search

__all__ = ["PROFILES", "Profile"]


@dataclass(frozen=True)
class Profile:
    """How much is tried, and how long deviations are pursued.

    Attributes:
        about: what it is for.
        effort: sequences of calls, as a multiple of what a machine has by default.
        shrink_seconds: how long each counterexample may be made shorter.
        seconds: how long a machine may run in all when it goes on after deviations.
    """

    about: str
    effort: float
    shrink_seconds: float
    seconds: float

    def search(self, first: bool) -> Search:
        """The options of `runner.run_machine`.

        Args:
            first: whether the first deviation ends the run.
        """
        seconds = 0.0 if first else self.seconds
        return {"effort": self.effort, "shrink_seconds": self.shrink_seconds, "seconds": seconds}


PROFILES = {
    "quick": Profile("some 20 seconds: after every change", 0.1, 2.0, 6.0),
    "default": Profile("a minute or two", 1.0, 8.0, 40.0),
    "deep": Profile("hours: the default check again and again, each time with another seed", 1.0, 8.0, 40.0),
}
"""Every profile by its name."""
