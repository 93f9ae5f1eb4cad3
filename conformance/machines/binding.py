"""Options of attention that bind together: each of them changes what is right, in the same call."""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import combinations
from typing import Any

import numpy as np

from .arrays import Array
from .ragged import MASKS, Setup

__all__ = ["BOUND", "BOUND_OF_LATENTS", "bound_together"]

_OPTIONS = ("window", "chunk", "causal", "soft_cap", "sinks", "scale", "q_scale", "k_scale", "v_scale")
"""The options that a call can do without: what it gives then shows whether one binds."""

_OF_LATENTS = ("window", "causal", "soft_cap")

_WITHIN = "a chunk within a window"
"""How the pair of `MASKS` is called where the window is the wider one: then only the chunk can bind."""


def _name(one: str, other: str, of: str = "") -> str:
    """The name of two options that both bind, by which draws count them."""
    return f"bind{of}: {one} + {other}"


BOUND = (*(_name(*both) for both in combinations(_OPTIONS, 2)), f"bind: {_WITHIN}")
"""Every two options of attention, and the two masks in their other order."""

BOUND_OF_LATENTS = tuple(_name(*both, " latents") for both in combinations(_OF_LATENTS, 2))
"""Every two options of attention over latents."""


def bound_together(
    setup: Setup,
    known: Collection[str],
    keywords: Mapping[str, Any],
    right: Array,
    tolerance: Array,
    attend: Callable[[dict[str, Any]], Any],
) -> Iterable[str]:
    """The names of pairs of options that both bind in a call: without either one, another result would be right.

    Args:
        setup: the call's.
        known: names that are not asked for.
        keywords: the call's.
        right: its result.
        tolerance: how far off each entry may be.
        attend: makes the same call with other keywords, on the specification.
    """
    of, options = (" latents", _OF_LATENTS) if setup.is_latent else ("", _OPTIONS)
    given = [option for option in options if option in keywords]
    pairs = {_name(*both, of): both for both in combinations(given, 2)}
    window, chunk = (keywords.get(mask) for mask in MASKS)
    if window and chunk and chunk <= window:
        pairs[f"bind: {_WITHIN}"] = (MASKS[1], MASKS[1])
    pairs = {name: both for name, both in pairs.items() if name not in known}
    binding = set()
    for option in {option for both in pairs.values() for option in both}:
        less = np.asarray(attend({name: value for name, value in keywords.items() if name != option}))
        near = np.abs(less.astype(np.float64) - right) <= tolerance  # False for NaN: it read what it must not
        if not near.all():
            binding.add(option)
    return [name for name, both in pairs.items() if binding.issuperset(both)]
