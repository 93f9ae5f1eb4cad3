"""R1: reading arguments. Every public call reads all its arguments with these functions before it changes anything."""

from typing import Any

import numpy as np

from ..declarations.reading import attribute, flag, index, instance, integer, listed, real, refusal, shown

__all__ = ["attribute", "flag", "index", "instance", "integer", "listed", "real", "refusal", "shown", "token_list"]


def token_list(name: str, tokens: object) -> list[int]:
    """Reads token ids: integers that fit an int32, in an iterable or a one-dimensional integer array (R1).

    Messages show none of them (SEC-2).
    """
    if isinstance(tokens, np.ndarray):
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise refusal(
                TypeError, "R1", f"{name} must be a 1-d integer array, not {tokens.dtype}{list(tokens.shape)}"
            )
        values: list[Any] = tokens.tolist()
        if tokens.dtype == np.int32:
            return values
    else:
        values = listed(name, tokens)
    for position, token in enumerate(values):
        if isinstance(token, bool | np.bool_) or not isinstance(token, int | np.integer):
            raise refusal(TypeError, "R1", f"{name}[{position}] must be an int, not a {type(token).__name__}")
        if not -(2**31) <= token < 2**31:
            raise refusal(ValueError, "R1", f"{name}[{position}]={token} does not fit an int32")
    return [int(token) for token in values]
