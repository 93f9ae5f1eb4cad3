"""R1: how a refused call is told: the error's kind, the argument and its value, and the clause that refuses it."""

import numpy as np

__all__ = ["MOST_BITS", "refusal", "shown"]

MOST_BITS = 8192
"""Of a longer int a message shows the length: Python writes none of more than 4,300 digits, and raises instead."""


def refusal(kind: type[Exception], clause: str, message: str) -> Exception:
    """The error to raise for a refused call: ``message`` with the clause's label behind it."""
    return kind(f"{message} [{clause}]")


def shown(value: object) -> str:
    """A value as a message shows it; of what may hold token ids only the type (SEC-2)."""
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f"<an int of {value.bit_length()} bits>"
    plain = value is None or isinstance(value, int | float | str | bytes | np.generic)
    return repr(value) if plain else f"<{type(value).__name__}>"
