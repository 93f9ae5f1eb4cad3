"""Which token follows: the likeliest, or one drawn by a randomness that depends on seed and position only (ENG-1)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.reading.arguments import integer, listed, real, refusal

__all__ = ["GREEDY", "Sampling", "sample", "sure_token"]

_MOST_SEED = 2**64


@dataclass(frozen=True)
class Sampling:
    """How a request's tokens are drawn.

    Attributes:
        seed: of its randomness; from 0 to 2^64 - 1.
        temperature: what logits are divided by; 0 takes the likeliest token.
        top_k: number of likeliest tokens that are drawn from; 0 for all.
        stop_tokens: the request ends with the first of these.

    Raises:
        TypeError: an attribute of a wrong type [R1].
        ValueError: one out of its range [R1].
    """

    seed: int = 0
    temperature: float = 0.0
    top_k: int = 0
    stop_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if integer("seed", self.seed) >= _MOST_SEED:
            raise refusal(ValueError, "R1", f"seed={self.seed} must be below 2^64")
        if not 0 <= real("temperature", self.temperature) < float("inf"):
            raise refusal(ValueError, "R1", f"temperature={self.temperature} must be at least 0 and finite")
        integer("top_k", self.top_k)
        for token in listed("stop_tokens", self.stop_tokens):
            integer("stop_tokens", token)


GREEDY = Sampling()
"""The likeliest token, always."""


def sample(logits: NDArray[np.floating], sampling: Sampling, position: int) -> int:
    """The token that stands at a position, drawn from the logits of the one before it (ENG-1). O(V).

    It depends on these arguments alone, so that it is the same in whatever batch, after however many preemptions
    and in whatever chunks the logits were computed. The likeliest of equal ones is the lowest.

    Args:
        logits: `[V]`.
        sampling: how it is drawn.
        position: where it stands, counted from the request's first token.
    """
    return int(np.argmax(_scores(logits, sampling, position)))


def sure_token(
    logits: NDArray[np.float64], sampling: Sampling, position: int, tolerance: float | NDArray[np.float64]
) -> int | None:
    """The token that must stand at a position, whatever errors within a tolerance the logits have (ENG-1). O(V).

    Args:
        logits: `f64[V]`, the right ones.
        sampling: how it is drawn.
        position: where it stands.
        tolerance: how far computed logits may be from them, of all or of each.

    Returns:
        The token; None where the errors could make it another: where the best score leads by less than twice the
        tolerance, or so little divides the tokens that are drawn from and those that are not.
    """
    margin = 2 * float(np.max(tolerance))
    k = sampling.top_k
    if sampling.temperature > 0 and 0 < k < len(logits):
        inside, outside = np.partition(logits, (-k - 1, -k))[[-k, -k - 1]]
        if inside - outside <= margin:
            return None
    second, first = np.partition(_scores(logits, sampling, position), -2)[-2:] if len(logits) > 1 else (-np.inf, 0.0)
    scale = sampling.temperature or 1.0
    return sample(logits, sampling, position) if (first - second) * scale > margin else None


def _scores(logits: NDArray[np.floating], sampling: Sampling, position: int) -> NDArray[np.float64]:
    """What the token with the most of is taken: the logits, or what Gumbel noise makes of them, `f64[V]`."""
    wide = np.asarray(logits, np.float64)
    if sampling.temperature == 0:
        return wide
    scores = wide / sampling.temperature + noise(sampling.seed, position, len(wide))
    if 0 < sampling.top_k < len(wide):
        dropped = np.argsort(-wide, kind="stable")[sampling.top_k :]
        scores[dropped] = -np.inf
    return scores


def noise(seed: int, position: int, size: int) -> NDArray[np.float64]:
    """Gumbel noise `f64[size]` for a position: the largest of logits with such noise is a draw from their softmax.

    A counter-based generator is keyed by seed and position, so that no state is kept from position to position.
    """
    key = np.array([seed, position], np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).gumbel(size=size)
