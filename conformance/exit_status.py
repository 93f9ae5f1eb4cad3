"""What the commands' exit statuses mean."""

__all__ = ["COULD_NOT_RUN", "DEVIATES", "FINE"]

FINE = 0
"""No deviation was seen."""

DEVIATES = 1
"""The backend deviates from the specification."""

COULD_NOT_RUN = 2
"""Bad input: nothing is said about the backend."""
