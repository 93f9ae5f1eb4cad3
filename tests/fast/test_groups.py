"""MAN-1: fast's search for the longest hit of several groups."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvproof import spec
from kvproof.fast.groups.cache_group import CacheGroup
from kvproof.fast.groups.group_rules import rule_of
from kvproof.fast.groups.longest_hit import longest_hit
from kvproof.fast.index.prefix_index import PrefixIndex
from kvproof.fast.reading.extra_keys import PLAIN

from ..strategies import group_mixes


def _first_key(group: spec.CacheGroupSpec, position: int) -> int:
    """The first position that the mask lets ``position`` read, by the definition of each kind."""
    match group.kv_cache_spec:
        case spec.SlidingWindowSpec(sliding_window=window):
            return next(j for j in itertools.count() if j > position - window)
        case spec.ChunkedLocalAttentionSpec(attention_chunk_size=chunk):
            return position - position % chunk
    return 0


def _needed(group: spec.CacheGroupSpec, length: int) -> set[int]:
    """The places whose pages a request must have to go on behind ``length`` tokens."""
    size = group.kv_cache_spec.page_size
    if isinstance(group.kv_cache_spec, spec.MambaSpec):
        return {length // size - 1}
    return {position // size for position in range(_first_key(group, length), length)}


@given(
    mix=group_mixes,
    num_tokens=st.integers(1, 24),
    missing=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 23)), max_size=8),
    eagle=st.booleans(),
    data=st.data(),
)
def test_man_1_the_hit_is_the_longest_that_every_group_can_serve(
    mix: list[spec.CacheGroupSpec], num_tokens: int, missing: list[tuple[int, int]], eagle: bool, data: st.DataObject
) -> None:
    """Against the definition, tried for every length from the longest down."""
    index, values = PrefixIndex(200), np.arange(num_tokens, dtype=np.int32)
    groups, cached = [], []
    fresh = itertools.count(1)
    for number, group in enumerate(mix):
        size = group.kv_cache_spec.page_size
        tree = index.tree(number, size)
        flagged = eagle and not isinstance(group.kv_cache_spec, spec.MambaSpec) and data.draw(st.booleans())
        groups.append(CacheGroup(number, rule_of(group.kv_cache_spec), tree, flagged))
        pages = [0 if (number, place) in missing else next(fresh) for place in range(num_tokens // size)]
        index.publish(tree, values[: len(pages) * size].tobytes(), PLAIN, np.array(pages, np.int64))
        cached.append(pages)
    hits, length, _ = longest_hit(index, groups, values.tobytes(), [PLAIN] * len(mix), num_tokens - 1, eagle)

    def serves(length: int) -> bool:
        for group, at_work, pages in zip(mix, groups, cached, strict=True):
            size = group.kv_cache_spec.page_size
            if length % size or not all(pages[place] for place in _needed(group, length)):
                return False
            if at_work.is_eagle and (length // size >= len(pages) or not pages[length // size]):
                return False
        never = any(getattr(group.kv_cache_spec, "mamba_cache_mode", "") == "none" for group in mix)
        return not never and any(_needed(group, length) for group in mix)

    assert length == next((tried for tried in range(num_tokens - 1, 0, -1) if serves(tried)), 0)
    for group, pages, own in zip(mix, cached, hits, strict=True):
        places = range(length // group.kv_cache_spec.page_size)
        wanted = _needed(group, length) if length else set()
        assert own.tolist() == [pages[place] if place in wanted else 0 for place in places]
