"""MAN-7: reading cache groups, and which of a request's pages each kind of group needs.

A *place* is an index in a request's page list. Every kind answers two questions: the first place still needed once some
tokens are computed, and the length of the list that a step needs. Both are asked for one request or for arrays of them.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import (
    CacheGroupSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from ..reading.arguments import flag, integer, listed, refusal

__all__ = [
    "NEVER",
    "ChunkRule",
    "FullRule",
    "GroupRule",
    "OneStateRule",
    "StatesRule",
    "WindowRule",
    "read_groups",
    "read_unit",
    "rule_of",
]

NEVER = 1 << 40
"""A number of tokens above that of any request."""

_OF_A_PACKAGE = 2
"""The value of numpy's `dtype.isbuiltin` for types that a package registers, such as the narrow floats of ml_dtypes."""

Number = TypeVar("Number", int, NDArray[np.int64])
"""A count of tokens or pages, or an array of them: the rules are written once for both."""


@dataclass(frozen=True)
class GroupRule:
    """Which pages a kind of group needs; this one keeps every page.

    Attributes:
        page_size: tokens in a page.
    """

    page_size: int

    gives_back = False
    """True if pages are freed while a request is live (MAN-8)."""

    shares_prefixes = True
    """True if all of a request's pages stay in its list, so that common prefixes can be counted (MAN-10)."""

    publishes = True
    """True if pages are ever published (MAN-13)."""

    has_states = False
    """True if a page stores a state in place of its tokens' keys and values (MAN-13)."""

    def first_place(self, computed: Number) -> Number:
        """The first place that the mask of position ``computed`` can read (MAN-8)."""
        return computed * 0

    def gives_back_at(self, given_back: Number) -> Number:
        """The number of computed tokens from which `first_place` exceeds ``given_back``; `NEVER` or more: none does."""
        return given_back * 0 + NEVER

    def end(self, promised: Number, slots: Number) -> Number:  # noqa: ARG002 - states depend on the promised tokens
        """The length that the list must have for ``promised`` tokens, and ``slots`` with look-ahead (MAN-2)."""
        return -(-slots // self.page_size)

    def full_at(self, length: Number) -> Number:
        """The number of slots, in a state group of promised tokens, from which `end` exceeds ``length``."""
        return length * self.page_size + 1

    def states(self, computed: int, promised: int) -> list[tuple[int, int]]:  # noqa: ARG002 - see `StatesRule`
        """The states of a live request that may outlive a step: (place, number of tokens before it), in order."""
        return []


class FullRule(GroupRule):
    """Full attention and MLA: every earlier position is read."""


@dataclass(frozen=True)
class WindowRule(GroupRule):
    """Sliding window: position p reads j > p - window."""

    window: int

    gives_back = True
    shares_prefixes = False

    def first_place(self, computed: Number) -> Number:
        """See `GroupRule`."""
        first = computed - (self.window - 1)
        return first * (first > 0) // self.page_size

    def gives_back_at(self, given_back: Number) -> Number:
        """See `GroupRule`."""
        return (given_back + 1) * self.page_size + (self.window - 1)


@dataclass(frozen=True)
class ChunkRule(GroupRule):
    """Chunked local: position p reads j >= p // chunk * chunk."""

    chunk: int

    gives_back = True
    shares_prefixes = False

    def first_place(self, computed: Number) -> Number:
        """See `GroupRule`."""
        return computed // self.chunk * self.chunk // self.page_size

    def gives_back_at(self, given_back: Number) -> Number:
        """See `GroupRule`."""
        return -(-(given_back + 1) * self.page_size // self.chunk) * self.chunk


class StatesRule(GroupRule):
    """State layers in mode ``align``: the state after c tokens stands at place ceil(c / page_size) - 1."""

    gives_back = True
    shares_prefixes = False
    has_states = True

    def first_place(self, computed: Number) -> Number:
        """See `GroupRule`: the place of the state after ``computed`` tokens."""
        return (computed - 1) * (computed > 0) // self.page_size

    def gives_back_at(self, given_back: Number) -> Number:
        """See `GroupRule`."""
        return (given_back + 1) * self.page_size + 1

    def end(self, promised: Number, slots: Number) -> Number:  # noqa: ARG002 - drafts never enter a state
        """See `GroupRule`."""
        return -(-promised // self.page_size)

    def states(self, computed: int, promised: int) -> list[tuple[int, int]]:
        """See `GroupRule`: the states at the beginning and at the end of the last step, perhaps in one page."""
        return list({self.first_place(tokens): tokens for tokens in (computed, promised) if tokens}.items())


class OneStateRule(GroupRule):
    """State layers in mode ``none``: one page a request."""

    shares_prefixes = False
    publishes = False
    has_states = True

    def end(self, promised: Number, slots: Number) -> Number:  # noqa: ARG002 - the same for all tokens
        """See `GroupRule`."""
        return promised * 0 + 1

    def full_at(self, length: Number) -> Number:
        """See `GroupRule`: the one page is always enough."""
        return (length > 0) * NEVER


def rule_of(spec: object) -> GroupRule:
    """The rule of a validated group."""
    match spec:
        case SlidingWindowSpec():
            return WindowRule(int(spec.page_size), min(int(spec.sliding_window), NEVER))
        case ChunkedLocalAttentionSpec():
            return ChunkRule(int(spec.page_size), min(int(spec.attention_chunk_size), NEVER))
        case MambaSpec():
            return (StatesRule if spec.mamba_cache_mode == "align" else OneStateRule)(int(spec.page_size))
        case FullAttentionSpec() | MLAAttentionSpec():
            return FullRule(int(spec.page_size))
    raise TypeError(f"{type(spec).__name__} is no kind of cache group")


def read_unit(rules: Sequence[GroupRule], match_unit: object) -> int | None:
    """Reads ``match_unit``, a divisor of every page size, or None (R1, MAN-17).

    Raises:
        TypeError: it is no int.
        ValueError: it is below 1, or no such divisor.
    """
    if match_unit is None:
        return None
    unit = integer("match_unit", match_unit, minimum=1, clause="MAN-17")
    for group, rule in enumerate(rules):
        if rule.page_size % unit:
            raise refusal(
                ValueError,
                "MAN-17",
                f"match_unit={unit} divides no page of {rule.page_size} tokens, as group {group} has",
            )
    return unit


# -- Reading (R1) ---------------------------------------------------------------------------------


def read_groups(kv_cache_groups: object, use_eagle: bool) -> tuple[CacheGroupSpec, ...]:
    """Reads cache groups and refuses contradictory ones (R1, MAN-7).

    Args:
        kv_cache_groups: `CacheGroupSpec`s.
        use_eagle: True if they are to serve an Eagle draft model.

    Raises:
        TypeError: an element is not a group, or a field has the wrong type.
        ValueError: a size below 1, an unknown dtype or mode, no layers, a layer in two groups, padding below a
            state's bytes, or a state group that is flagged as an Eagle group.
    """
    groups = listed("kv_cache_groups", kv_cache_groups)
    named: set[str] = set()
    for place, group in enumerate(groups):
        name = f"kv_cache_groups[{place}]"
        if not isinstance(group, CacheGroupSpec):
            raise refusal(TypeError, "R1", f"{name}={group!r} must be a CacheGroupSpec")
        eagle = flag(f"{name}.is_eagle_group", group.is_eagle_group)
        spec = group.kv_cache_spec
        match spec:
            case FullAttentionSpec() | SlidingWindowSpec() | ChunkedLocalAttentionSpec() | MLAAttentionSpec():
                _read_attention(name, spec)
            case MambaSpec():
                _read_states(name, spec)
                if eagle and use_eagle:
                    raise refusal(ValueError, "MAN-9", f"{name}.is_eagle_group=True: a state group can't be one")
            case _:
                raise refusal(TypeError, "R1", f"{name}.kv_cache_spec={spec!r} is no kind of cache group")
        _read_layers(f"{name}.layer_names", group.layer_names, named)
    return tuple(groups)


def _read_attention(
    name: str, spec: FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec | MLAAttentionSpec
) -> None:
    for field in ("page_size", "num_kv_heads", "head_size", "sliding_window", "attention_chunk_size"):
        if hasattr(spec, field):
            _read_size(f"{name}.{field}", getattr(spec, field))
    if getattr(spec, "head_size_v", None) is not None:
        _read_size(f"{name}.head_size_v", getattr(spec, "head_size_v"))  # noqa: B009
    _read_dtype(f"{name}.dtype", spec.dtype)


def _read_states(name: str, spec: MambaSpec) -> None:
    _read_size(f"{name}.page_size", spec.page_size)
    if not isinstance(spec.mamba_cache_mode, str):
        raise refusal(TypeError, "R1", f"{name}.mamba_cache_mode={spec.mamba_cache_mode!r} must be a str")
    if spec.mamba_cache_mode not in ("none", "align"):
        raise refusal(
            ValueError, "MAN-13", f"{name}.mamba_cache_mode={spec.mamba_cache_mode!r} must be 'none' or 'align'"
        )
    shapes, dtypes = listed(f"{name}.shapes", spec.shapes), listed(f"{name}.dtypes", spec.dtypes)
    if not shapes or len(shapes) != len(dtypes):
        raise refusal(ValueError, "MAN-7", f"{name} has {len(shapes)} shapes and {len(dtypes)} dtypes")
    for shape in shapes:
        for size in listed(f"{name}.shapes", shape):
            _read_size(f"{name}.shapes", size)
    for dtype in dtypes:
        _read_dtype(f"{name}.dtypes", dtype)
    if spec.page_size_padded is not None:
        _read_size(f"{name}.page_size_padded", spec.page_size_padded, minimum=spec.state_bytes)


def _read_size(name: str, size: object, minimum: int = 1) -> None:
    """Refuses a size that is no int, is too small, or does not fit into a snapshot (MAN-14)."""
    integer(name, size, minimum=minimum, clause="MAN-7", below=2**63)


def _read_dtype(name: str, dtype: object) -> None:
    """Refuses anything but a type of numbers: numpy would accept strings, objects and records, and None for float64."""
    try:
        with warnings.catch_warnings(action="error"):  # names that numpy deprecates
            kind: np.dtype[Any] | None = None if dtype is None else np.dtype(dtype)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError, Warning):
        kind = None
    if kind is None or not (kind.kind in "biufc" or kind.isbuiltin == _OF_A_PACKAGE):
        raise refusal(TypeError, "R1", f"{name}={dtype!r} is no dtype of numbers")


def _read_layers(name: str, layers: Sequence[str] | None, named: set[str]) -> None:
    """Reads a group's layers and adds them to those of the groups before."""
    if layers is None:
        return
    given = listed(name, layers)
    if not given:
        raise refusal(ValueError, "MAN-7", f"{name}={layers!r} has no layers")
    for layer in given:
        if not isinstance(layer, str):
            raise refusal(TypeError, "R1", f"{name} has {layer!r}, which is no str")
        if layer in named:
            raise refusal(ValueError, "MAN-7", f"{name}: layer {layer!r} is named twice")
        named.add(layer)
