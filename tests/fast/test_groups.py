"""MAN-1, MAN-7, MAN-9: what is hit over several groups, and which groups are refused."""

import itertools
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.fast.groups.cache_group import CacheGroup
from kvproof.fast.groups.group_rules import rule_of
from kvproof.fast.groups.longest_hit import longest_hit
from kvproof.fast.index.prefix_index import PrefixIndex
from kvproof.fast.reading.extra_keys import PLAIN

from ..strategies import group_mixes

PACKAGES = pytest.mark.parametrize("package", [spec, fast], ids=["spec", "fast"])

FULL: Any = spec.FullAttentionSpec(2, 1, 8, "float32")


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


@given(mix=group_mixes, max_model_len=st.integers(1, 30), batched=st.integers(1, 30), data=st.data())
def test_man_7_a_request_never_holds_more_than_its_groups_say(
    mix: list[spec.CacheGroupSpec], max_model_len: int, batched: int, data: st.DataObject
) -> None:
    manager = fast.CacheManager(200, mix, max_model_len)
    request = fast.Request("r", [data.draw(st.integers(0, 1)) for _ in range(max_model_len)])
    while request.num_computed_tokens < max_model_len:
        new = data.draw(st.integers(1, min(batched, max_model_len - request.num_computed_tokens)))
        assert manager.allocate_slots(request, new) is not None
        held = [sum(map(bool, pages)) for pages in manager.get_page_ids("r")]
        most = [group.kv_cache_spec.max_num_pages(max_model_len, batched) for group in mix]
        assert all(own <= limit for own, limit in zip(held, most, strict=True))
        request.num_computed_tokens += new


def test_man_7_bytes_of_a_page_and_of_a_request() -> None:
    full = spec.FullAttentionSpec(16, 8, 128, "float16", head_size_v=64)
    assert full.page_size_bytes == 16 * 8 * (128 + 64) * 2
    assert spec.MLAAttentionSpec(64, 1, 576, "float16").page_size_bytes == 64 * 576 * 2
    states = spec.MambaSpec(512, ((4, 3), (8, 16, 2)), ("float16", "float32"), "align")
    assert states.page_size_bytes == 12 * 2 + 256 * 4
    assert spec.MambaSpec(512, ((4, 3),), ("float16",), page_size_padded=4096).page_size_bytes == 4096
    window = spec.SlidingWindowSpec(16, 8, 128, "float16", 1024)
    assert window.max_num_pages(1 << 20, 512) == -(-(1023 + 512 + 15) // 16)
    assert spec.CacheGroupSpec(window, ("a", "b", "c")).max_memory_usage_bytes(1 << 20, 512) == (
        3 * window.max_num_pages(1 << 20, 512) * window.page_size_bytes
    )


@PACKAGES
@pytest.mark.parametrize(
    ("group", "kind", "clause"),
    [
        (spec.CacheGroupSpec(spec.SlidingWindowSpec(2, 1, 8, "float32", 0)), ValueError, "MAN-7"),
        (spec.CacheGroupSpec(spec.ChunkedLocalAttentionSpec(2, 1, 8, "float32", 0)), ValueError, "MAN-7"),
        (spec.CacheGroupSpec(FULL, ()), ValueError, "MAN-7"),
        (spec.CacheGroupSpec(FULL, ("a", "a")), ValueError, "MAN-7"),
        (spec.CacheGroupSpec(FULL, (1,)), TypeError, "R1"),  # type: ignore[arg-type]
        (spec.CacheGroupSpec(spec.FullAttentionSpec(0, 1, 8, "float32")), ValueError, "MAN-7"),
        (spec.CacheGroupSpec(spec.FullAttentionSpec(2, 0, 8, "float32")), ValueError, "MAN-7"),
        (spec.CacheGroupSpec(spec.MLAAttentionSpec(2, 1, 0, "float32")), ValueError, "MAN-7"),
        (spec.CacheGroupSpec(spec.FullAttentionSpec(2, 1, 8, "no dtype")), TypeError, "R1"),
        (spec.CacheGroupSpec(spec.MambaSpec(2, (), ())), ValueError, "MAN-7"),
        (spec.CacheGroupSpec(spec.MambaSpec(2, ((2,),), ())), ValueError, "MAN-7"),
        (spec.CacheGroupSpec(spec.MambaSpec(2, ((0,),), ("float32",))), ValueError, "MAN-7"),
        (spec.CacheGroupSpec(spec.MambaSpec(2, ((2,),), ("float32",), page_size_padded=4)), ValueError, "MAN-7"),
        (spec.CacheGroupSpec(spec.MambaSpec(2, ((2,),), ("float32",), "all")), ValueError, "MAN-13"),  # type: ignore[arg-type]
        (FULL, TypeError, "R1"),
        (spec.CacheGroupSpec("full"), TypeError, "R1"),  # type: ignore[arg-type]
    ],
)
def test_r1_contradictory_groups_are_refused(
    package: ModuleType, group: Any, kind: type[Exception], clause: str
) -> None:
    with pytest.raises(kind, match=rf"kv_cache_groups.*\[{clause}\]"):
        package.CacheManager(4, [spec.CacheGroupSpec(FULL), group], 8)


@PACKAGES
def test_man_9_a_state_group_is_no_eagle_group(package: ModuleType) -> None:
    group = spec.CacheGroupSpec(spec.MambaSpec(2, ((2,),), ("float32",)), is_eagle_group=True)
    with pytest.raises(ValueError, match=r"is_eagle_group.*\[MAN-9\]"):
        package.CacheManager(4, [group], 8, use_eagle=True)
    assert package.CacheManager(4, [group], 8).use_eagle is False


@PACKAGES
def test_the_coordinator_fits_the_groups(package: ModuleType) -> None:
    def kind(groups: list[Any], caching: bool = True) -> str:
        return type(package.get_kv_cache_coordinator(4, groups, 8, False, caching)).__name__

    full = spec.CacheGroupSpec(FULL)
    assert kind([full]) == "UnitaryCacheCoordinator"
    assert kind([full, full]) == "HybridCacheCoordinator"
    assert kind([full], caching=False) == kind([]) == "CacheCoordinatorNoPrefixCache"


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("seed", range(4))
def test_man_4_whoever_goes_names_all_who_hold_what_it_withdraws(seed: int, window: int | None) -> None:
    """Those who hit its pages last, those who hit what these published behind them, and nobody else."""
    rng = np.random.default_rng(seed)
    kinds: list[Any] = [FULL, *([] if window is None else [spec.SlidingWindowSpec(2, 1, 8, "float32", window)])]
    groups = [spec.CacheGroupSpec(kind) for kind in kinds]
    managers = [package.CacheManager(600, groups, 1_000) for package in (spec, fast)]
    live: list[fast.Request] = []
    shared = 0
    for number in range(120):
        if len(live) < 6 or rng.random() < 0.5:
            cut = int(rng.integers(2, 30))
            tokens = [0] * cut + [int(rng.integers(1, 3))] * int(rng.integers(1, 12))
            live.append(fast.Request(str(number), tokens))
            for manager in managers:
                pages, hit = manager.get_computed_pages(live[-1])
                assert manager.allocate_slots(live[-1], len(tokens) - hit, hit, pages) is not None
        else:
            going, written = live.pop(int(rng.integers(len(live)))), int(rng.integers(0, 12))
            expected, found = (manager.free(going, num_written=written) for manager in managers)
            assert found == expected
            shared += len(found)
            for request in [request for request in live if request.request_id in found]:
                live.remove(request)
                for manager in managers:
                    manager.free(request, num_written=0)
        managers[1].check()
    assert shared > 10
