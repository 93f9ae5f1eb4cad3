"""Where Hypothesis draws from: random numbers that follow from the seed and the number of the example alone.

Hypothesis' own way of drawing depends on more. It goes on from earlier examples, and stops where a backend answers the
same calls in another way than before; and it draws the constants of those modules that happen to be imported, so that
a seed means something else in another process. A backend whose answers are random ends no search here, and changes
nothing in the examples that come after.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

__all__ = ["seeded_draws"]

_NAME = "kvproof"


@contextmanager
def seeded_draws(seed: int, part: int) -> Iterator[str]:
    """Enters this way of drawing in Hypothesis' list.

    Args:
        seed: the seed.
        part: the number of the part of a run, each of which draws other examples.

    Yields:
        Its name, for the setting ``backend``.
    """
    numbers = count()

    class Draws(HypothesisProvider):
        """The draws of one example."""

        def __init__(self, data: Any, /) -> None:
            super().__init__(data)
            self._random = Random(f"{seed}/{part}/{next(numbers)}")

        def _maybe_draw_constant(self, *_: Any, **__: Any) -> None:
            """Draws no constants of modules."""

    AVAILABLE_PROVIDERS[_NAME] = Draws
    try:
        yield _NAME
    finally:
        del AVAILABLE_PROVIDERS[_NAME]
