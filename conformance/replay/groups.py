"""The cache groups of a replay: from the words of the command line, and back into words; and where their steps end.

A state is kept only where a step ended (MAN-13), so that steps must end where states are worth keeping.
"""

from collections.abc import Callable, Sequence
from math import lcm
from typing import Any

import numpy as np

from kvproof.spec.declarations import (
    CacheGroupSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from ..console.exit_status import CannotRunError

__all__ = [
    *("GroupsError", "StepEnds", "copies_states", "holds_states", "junction_of", "keeps_all_pages"),
    *("named", "read_groups"),
]


Kind = FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec | MLAAttentionSpec | MambaSpec

_MOST = 2**31 - 1


class GroupsError(CannotRunError):
    """The words name no cache groups; the message is one line."""


# -- From words -----------------------------------------------------------------------------------
# Nothing is stored in a replay: the layers are as small as they can be.


def read_groups(text: str, page_size: int) -> tuple[CacheGroupSpec, ...]:
    """Reads the cache groups that a comma-separated list of ``kind[:page_size[:argument]]`` names.

    Args:
        text: such as ``full:16,window:16:4096,mamba:64:align``.
        page_size: tokens in a page of a group that names no number of its own.

    Raises:
        GroupsError: a kind is unknown, a number is none, or an argument is missing or one too many.
    """
    groups = []
    for place, words in enumerate(text.split(",")):
        try:
            spec = _read_group(words.strip(), page_size)
        except GroupsError as error:
            raise GroupsError(f"--groups, {words.strip()!r}: {error}") from error
        groups.append(CacheGroupSpec(spec, (f"layer {place}",)))
    return tuple(groups)


def _read_group(words: str, page_size: int) -> Kind:
    kind, *rest = words.split(":")
    read = _KINDS.get(kind)
    if read is None:
        raise GroupsError(f"the kind must be one of {', '.join(_KINDS)}")
    if len(rest) > 2:
        raise GroupsError("there is more than kind:page_size:argument")
    size = _number("the page size", rest[0]) if rest and rest[0] else page_size
    return read(size, rest[1] if len(rest) == 2 else None)


def _full(page_size: int, argument: str | None) -> FullAttentionSpec:
    _no_argument(argument)
    return FullAttentionSpec(page_size, 1, 1, np.float32)


def _mla(page_size: int, argument: str | None) -> MLAAttentionSpec:
    _no_argument(argument)
    return MLAAttentionSpec(page_size, 1, 1, np.float32)


def _window(page_size: int, argument: str | None) -> SlidingWindowSpec:
    if argument is None:
        raise GroupsError("the window is missing, as in window:16:4096")
    return SlidingWindowSpec(page_size, 1, 1, np.float32, _number("the window", argument))


def _chunk(page_size: int, argument: str | None) -> ChunkedLocalAttentionSpec:
    if argument is None:
        raise GroupsError("the chunk is missing, as in chunk:16:8192")
    return ChunkedLocalAttentionSpec(page_size, 1, 1, np.float32, _number("the chunk", argument))


def _mamba(page_size: int, argument: str | None) -> MambaSpec:
    match argument:
        case "align":
            return MambaSpec(page_size, ((1,),), (np.float32,), "align")
        case None | "none":
            return MambaSpec(page_size, ((1,),), (np.float32,), "none")
    raise GroupsError(f"the mode must be none or align, not {argument!r}")


_KINDS: dict[str, Callable[[int, str | None], Kind]] = {
    "full": _full,
    "window": _window,
    "chunk": _chunk,
    "mla": _mla,
    "mamba": _mamba,
}


def _no_argument(argument: str | None) -> None:
    if argument is not None:
        raise GroupsError(f"this kind has a page size and nothing behind it, not {argument!r}")


def _number(name: str, text: str) -> int:
    # longer ones lie beyond the bound, and Python refuses to read them
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and 1 <= int(text) <= _MOST):
        raise GroupsError(f"{name} must be a number in [1, {_MOST}], not {text!r}")
    return int(text)


# -- What a group is ------------------------------------------------------------------------------


def named(group: CacheGroupSpec) -> str:
    """A group in the words that name it, page size and argument included."""
    spec = group.kv_cache_spec
    match spec:
        case SlidingWindowSpec():
            return f"window:{spec.page_size}:{spec.sliding_window}"
        case ChunkedLocalAttentionSpec():
            return f"chunk:{spec.page_size}:{spec.attention_chunk_size}"
        case MambaSpec():
            return f"mamba:{spec.page_size}:{spec.mamba_cache_mode}"
        case MLAAttentionSpec():
            return f"mla:{spec.page_size}"
        case FullAttentionSpec():
            return f"full:{spec.page_size}"


def holds_states(groups: Sequence[CacheGroupSpec]) -> bool:
    """Whether a group holds states, which no step can take back (MAN-13)."""
    return any(isinstance(group.kv_cache_spec, MambaSpec) for group in groups)


def copies_states(groups: Sequence[CacheGroupSpec]) -> bool:
    """Whether a group keeps states at page boundaries and goes on from copies of them (MAN-13)."""
    return any(
        isinstance(group.kv_cache_spec, MambaSpec) and group.kv_cache_spec.mamba_cache_mode == "align"
        for group in groups
    )


def keeps_all_pages(groups: Sequence[CacheGroupSpec]) -> bool:
    """Whether a request keeps every page of every group until it leaves, one for each stretch of its tokens."""
    return all(isinstance(group.kv_cache_spec, FullAttentionSpec | MLAAttentionSpec) for group in groups)


# -- Where steps end --------------------------------------------------------------------------------------------------


class StepEnds:
    """The lengths at which steps end: resume points, and boundaries of pages (RET-1, RET-2).

    Args:
        groups: the cache groups. Where none keeps states, a step ends anywhere.
        interval: the manager's ``retention_interval``.
        unit: its ``match_unit``: then a hit ends at a multiple of it where a state can be kept (MAN-17).
    """

    def __init__(self, groups: Sequence[CacheGroupSpec], interval: int | None, unit: int | None = None) -> None:
        sizes = [group.kv_cache_spec.page_size if unit is None or copies_states([group]) else unit for group in groups]
        self._unit = lcm(*sizes) if copies_states(groups) else 0
        self._interval = interval

    def end(self, start: int, most: int, num_tokens: int, junction: int) -> int:
        """How many tokens of a request are computed when a step ends.

        Args:
            start: how many were when it began.
            most: how many there could be: ``start`` and all that the step has room for, at most ``num_tokens``.
            num_tokens: its tokens that are known.
            junction: its junction; 0 if it has none.
        """
        if not self._unit:
            return most
        stops = [junction, (num_tokens - 1) // self._unit * self._unit]  # the longest that a prompt like it can hit
        if self._interval:
            stops.append((start // self._interval + 1) * self._interval)
        ahead = [stop for stop in stops if start < stop <= most]
        if ahead:
            return min(ahead)
        aligned = most // self._unit * self._unit
        return aligned if start < aligned and most < num_tokens else most


def junction_of(manager: Any, request: Any) -> int:
    """The junction of a request that is to be admitted (RET-2); 0 where a manager knows of none."""
    return int(manager.get_junction(request)) if hasattr(manager, "get_junction") else 0
