"""MAN-8: which pages a step of the specification reads, against what the masks read."""

from collections.abc import Sequence
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.spec import (
    ChunkedLocalAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvproof.spec.groups.group_rules import rules_of

from ..cache_groups import chunked, group_lists, window


def _needed(group: spec.CacheGroupSpec, length: int) -> set[int] | None:
    """The places that a step from position ``length`` on reads, read off the masks (ATT-1); None: it can't be had."""
    kind: Any = group.kv_cache_spec
    match kind:
        case SlidingWindowSpec():
            read = [j for j in range(length) if j > length - kind.sliding_window]
        case ChunkedLocalAttentionSpec():
            read = [j for j in range(length) if j // kind.attention_chunk_size == length // kind.attention_chunk_size]
        case MambaSpec():
            return {length // kind.page_size - 1} if kind.mamba_cache_mode == "align" else None
        case _:
            read = list(range(length))
    return {j // kind.page_size for j in read}


@given(groups=group_lists, computed=st.integers(0, 30))
@example(groups=[window(3, 1), chunked(2, 5)], computed=0)
def test_pages_are_needed_from_the_first_on_that_the_mask_reads(groups: Sequence[Any], computed: int) -> None:
    """MAN-8: no earlier place is read, and the first one is, but where only new tokens are read."""
    for group, rules in zip(groups, rules_of(groups, use_eagle=False), strict=True):
        first, size = rules.first_place(computed), rules.page_size
        if isinstance(group.kv_cache_spec, MambaSpec):
            aligned = group.kv_cache_spec.mamba_cache_mode == "align"
            assert first * size < max(computed, 1) <= (first + 1) * size or not aligned
            assert first == 0 or aligned
        else:
            needed = _needed(group, computed)
            assert needed is not None
            assert first == min(needed, default=computed // size)
