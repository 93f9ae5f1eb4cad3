"""MAN-7: the rules of each kind of cache group: which pages of a request it needs.

A request has a page list in every group. A *place* is an index in it. In an attention group, place i is for the tokens
``[i * page_size, (i + 1) * page_size)``; in a state group, for the state after at most ``(i + 1) * page_size`` tokens.
Where a group needs no page, its list has the null page.
"""

from collections.abc import Callable, Mapping, Sequence

from ..declarations import (
    CacheGroupSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from ..reading.arguments import flag, integer, listed, refusal
from ..table.page_table import cdiv
from .group_fields import read_attention, read_layers, read_states

__all__ = [
    "AlignedStates",
    "ChunkedLocal",
    "EveryPosition",
    "GroupRules",
    "OneState",
    "SlidingWindow",
    "read_groups",
    "read_unit",
    "rules_of",
]


class GroupRules:
    """The rules of one group; each kind overrides the methods in which it differs.

    Args:
        group_id: the group's number.
        page_size: tokens in a page.
        is_eagle: whether a hit must be followed by one more cached unit in this group (MAN-9).
        unit: the number of tokens of which the length of a hit is a multiple in this group: the page size, or in
            attention groups ``match_unit`` if there is one (MAN-17). A state is not copied amid a page.
    """

    keeps_prefix = False
    """Whether a request keeps all its pages in this group; only then are common prefix pages counted (MAN-10)."""

    needs_part = False
    """Whether a hit needs only part of a prefix's pages; they are then judged when they are let go (RET-1)."""

    holds_states = False
    """Whether a page holds a state instead of keys and values (MAN-13)."""

    copies_states = False
    """Whether a state stays in its page and the next one is advanced from a copy in a new page (MAN-13)."""

    def __init__(self, group_id: int, page_size: int, is_eagle: bool = False, unit: int | None = None) -> None:
        self.group_id = group_id
        self.page_size = page_size
        self.is_eagle = is_eagle
        self.unit = page_size if unit is None else unit

    def first_place(self, num_computed: int) -> int:
        """The first place whose page a step after ``num_computed`` computed tokens can read (MAN-8)."""
        raise NotImplementedError

    def num_places(self, promised: int, slots: int) -> int:  # noqa: ARG002 - the states look at `promised`
        """The length that a page list must have (MAN-2).

        Args:
            promised: computed and new tokens.
            slots: computed, new and look-ahead tokens.
        """
        return cdiv(slots, self.page_size)

    def num_pages(self, num_places: int) -> int:
        """How many of ``num_places`` new places get a page: the last ones; the places before them get null pages."""
        return num_places

    def num_publishable(self, num_tokens: int) -> int:
        """How many leading places may be published once ``num_tokens`` tokens are computed and known (MAN-3)."""
        return num_tokens // self.page_size

    def is_publishable(self, place: int, states: Mapping[int, int]) -> bool:  # noqa: ARG002 - see `AlignedStates`
        """Whether the page at a place that may be published is published; else it stays private (MAN-13).

        Args:
            place: the place.
            states: the number of tokens that each place's state covers, by place; see `GroupPages`.
        """
        return True

    def reach(self, length: int, with_eagle: bool = True) -> int:
        """The tokens that the group must hold for a hit: with Eagle a unit more than it has (MAN-9).

        Args:
            length: number of tokens of the hit, a multiple of the unit.
            with_eagle: whether an Eagle group must hold the unit after the hit as well.
        """
        return length + self.unit * (with_eagle and self.is_eagle)

    def is_served(
        self, length: int, cached: Sequence[object | None], with_eagle: bool, part: Callable[[int], object | None]
    ) -> bool:
        """Whether this group can serve a prefix from its cached pages (MAN-1).

        Args:
            length: number of tokens of the prefix, a multiple of the unit.
            cached: the cached page for each place that known tokens fill; None where none is cached.
            with_eagle: see `reach`.
            part: finds the page that holds the last tokens of a prefix that ends amid a page, by the prefix's length;
                None: none does (MAN-17).
        """
        reach = self.reach(length, with_eagle)
        end, amid = divmod(reach, self.page_size)
        is_whole = end <= len(cached) and None not in cached[self.first_place(length) : end]
        return is_whole and (amid == 0 or part(reach) is not None)

    def needed(self, length: int) -> range:
        """The places whose pages a hit needs (MAN-1); none for no tokens.

        Args:
            length: number of tokens of the hit, a multiple of the unit.
        """
        return range(self.first_place(length), cdiv(self.reach(length), self.page_size)) if length else range(0)


class EveryPosition(GroupRules):
    """Full attention and MLA: a position reads every earlier one."""

    keeps_prefix = True

    def first_place(self, num_computed: int) -> int:  # noqa: ARG002 - all is read
        """The first of all places; see `GroupRules`."""
        return 0


class SlidingWindow(GroupRules):
    """Sliding window: position p reads the positions ``j > p - window``."""

    needs_part = True

    def __init__(self, group_id: int, page_size: int, is_eagle: bool, unit: int | None, window: int) -> None:
        super().__init__(group_id, page_size, is_eagle, unit)
        self.window = window

    def first_place(self, num_computed: int) -> int:
        """The place at which the first new position's window begins; see `GroupRules`."""
        return max(num_computed - self.window + 1, 0) // self.page_size


class ChunkedLocal(GroupRules):
    """Chunked local attention: position p reads the positions ``j >= p // chunk * chunk``."""

    needs_part = True

    def __init__(self, group_id: int, page_size: int, is_eagle: bool, unit: int | None, chunk: int) -> None:
        super().__init__(group_id, page_size, is_eagle, unit)
        self.chunk = chunk

    def first_place(self, num_computed: int) -> int:
        """The place at which the first new position's chunk begins; see `GroupRules`."""
        return num_computed // self.chunk * self.chunk // self.page_size


class OneState(GroupRules):
    """States of mode ``none``: one page a request, advanced in place and therefore never published (MAN-13)."""

    holds_states = True

    def first_place(self, num_computed: int) -> int:  # noqa: ARG002 - the page is read and written by each step
        """The one place; see `GroupRules`."""
        return 0

    def num_places(self, promised: int, slots: int) -> int:  # noqa: ARG002 - one page is for all
        """Always 1; see `GroupRules`."""
        return 1

    def num_publishable(self, num_tokens: int) -> int:  # noqa: ARG002 - see the class
        """Always 0; see `GroupRules`."""
        return 0


class AlignedStates(GroupRules):
    """States of mode ``align``: those at page boundaries on which a step ended are published (MAN-13)."""

    needs_part = True
    holds_states = True
    copies_states = True

    def first_place(self, num_computed: int) -> int:
        """The place of the state after ``num_computed`` tokens; see `GroupRules`."""
        return max(cdiv(num_computed, self.page_size) - 1, 0)

    def num_places(self, promised: int, slots: int) -> int:  # noqa: ARG002 - look-ahead never enters a state
        """The number of places up to that of the state after ``promised`` tokens; see `GroupRules`."""
        return cdiv(promised, self.page_size)

    def num_pages(self, num_places: int) -> int:
        """1 for the state that the step ends with, as states within a step are not kept; see `GroupRules`."""
        return min(num_places, 1)

    def is_publishable(self, place: int, states: Mapping[int, int]) -> bool:
        """True of a state at the end of its place, which no later step advances; see `GroupRules`."""
        return states.get(place) == (place + 1) * self.page_size


# -- Reading groups (R1) --------------------------------------------------------------------------


def read_groups(kv_cache_groups: object) -> tuple[CacheGroupSpec, ...]:
    """Reads cache groups (R1, MAN-7).

    Raises:
        TypeError: one is no `CacheGroupSpec` of a declared kind, or a field has the wrong type.
        ValueError: a size below 1, an unknown mode, shapes and dtypes that don't go together, a padded size
            below the state's, a group without layers, or a layer that is named twice.
    """
    groups = tuple(listed("kv_cache_groups", kv_cache_groups))
    layers: list[str] = []
    for group in groups:
        if not isinstance(group, CacheGroupSpec):
            raise refusal(TypeError, "R1", f"kv_cache_groups has {group!r}, which is no CacheGroupSpec")
        flag("kv_cache_groups is_eagle_group", group.is_eagle_group)
        spec = group.kv_cache_spec
        match spec:
            case FullAttentionSpec() | SlidingWindowSpec() | ChunkedLocalAttentionSpec() | MLAAttentionSpec():
                read_attention(spec)
            case MambaSpec():
                read_states(spec)
            case _:
                raise refusal(TypeError, "R1", f"kv_cache_groups has a group of {spec!r}, which is no declared kind")
        layers += read_layers(group.layer_names)
    for layer in layers:
        if layers.count(layer) > 1:
            raise refusal(ValueError, "MAN-7", f"kv_cache_groups layer_names: {layer!r} is named twice")
    return groups


def read_unit(groups: Sequence[CacheGroupSpec], match_unit: object) -> int | None:
    """Reads the argument ``match_unit`` (R1, MAN-17).

    Raises:
        TypeError: it is no int.
        ValueError: it is below 1, or does not divide a group's page size.
    """
    if match_unit is None:
        return None
    unit = integer("match_unit", match_unit, minimum=1, clause="MAN-17")
    for group_id, group in enumerate(groups):
        size = int(group.kv_cache_spec.page_size)
        if size % unit:
            raise refusal(
                ValueError, "MAN-17", f"match_unit={unit} must divide the {size} tokens in a page of group {group_id}"
            )
    return unit


def rules_of(groups: Sequence[CacheGroupSpec], use_eagle: bool, unit: int | None = None) -> tuple[GroupRules, ...]:
    """The rules of each group.

    Eagle groups are the flagged ones; if none is flagged, all attention groups (MAN-9). Without Eagle, flags have no
    effect.

    Args:
        groups: groups that `read_groups` has read.
        use_eagle: whether an Eagle draft model runs.
        unit: the argument ``match_unit``, read.

    Raises:
        ValueError: with Eagle, a state group is flagged.
    """
    flagged = [group.is_eagle_group for group in groups]
    rules: list[GroupRules] = []
    for group_id, group in enumerate(groups):
        spec = group.kv_cache_spec
        size = int(spec.page_size)
        is_eagle = use_eagle and (flagged[group_id] or not any(flagged))
        match spec:
            case SlidingWindowSpec():
                rules.append(SlidingWindow(group_id, size, is_eagle, unit, int(spec.sliding_window)))
            case ChunkedLocalAttentionSpec():
                rules.append(ChunkedLocal(group_id, size, is_eagle, unit, int(spec.attention_chunk_size)))
            case MambaSpec():
                if use_eagle and flagged[group_id]:
                    raise refusal(
                        ValueError, "MAN-9", f"kv_cache_groups[{group_id}]: a state group with is_eagle_group"
                    )
                rules.append((AlignedStates if spec.mamba_cache_mode == "align" else OneState)(group_id, size))
            case _:
                rules.append(EveryPosition(group_id, size, is_eagle, unit))
    return tuple(rules)
