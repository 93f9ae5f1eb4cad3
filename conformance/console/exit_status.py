"""What the commands' exit statuses mean."""

import sys

from .terminal import visible

__all__ = ["COULD_NOT_RUN", "DEVIATES", "FINE", "CannotRunError", "could_not_run"]

FINE = 0
"""No deviation was seen."""

DEVIATES = 1
"""The backend deviates from the specification."""

COULD_NOT_RUN = 2
"""Bad input, or somebody interrupted it before a deviation was seen: the backend is not known to conform."""


class CannotRunError(Exception):
    """Ends a command, which could not run; the message is one line that says why. `main` prints it."""


def could_not_run(command: str, reason: str) -> int:
    """Says in one line why a command could not run (SEC-4: whatever stands in the reason); returns its exit status."""
    print(visible(f"kvproof {command}: {reason}"), file=sys.stderr)
    return COULD_NOT_RUN
