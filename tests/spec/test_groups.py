"""MAN-1, MAN-7, MAN-8, MAN-9, MAN-13: what groups of every kind hold, serve, give back and publish."""

from collections.abc import Callable, Sequence
from math import lcm
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvproof import spec
from kvproof.spec import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    PageCopy,
    SlidingWindowSpec,
)
from kvproof.spec.groups.group_rules import rules_of

from ..strategies import PlainRequest
from .driven_managers import DrivenManagers, chunked, full, group_lists, latent, states, window


def _manager(*groups: spec.CacheGroupSpec, **options: Any) -> spec.CacheManager:
    return spec.CacheManager(
        options.pop("num_pages", 30), groups, 40, hash_seed=b"s", **({"retention_interval": None} | options)
    )


def _step(manager: spec.CacheManager, request: PlainRequest, computed: int, new: int, **more: Any) -> Any:
    """The ids of the pages that a request gets, None if there is no room."""
    request.num_computed_tokens = computed
    given = manager.allocate_slots(request, new, **more)
    manager.check()
    return given and given.get_page_ids()


# -- Any calls --------------------------------------------------------------------------------------


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


def _content(group: int, request: PlainRequest, end: int) -> tuple[Any, ...]:
    """What a page of a request holds whose last token is ``end - 1``: tokens and extra keys from the first on."""
    touching = [key for key in request.extra_keys or () if getattr(key, "offset", 0) < end]
    return group, tuple(request.all_token_ids[:end]), tuple(sorted(map(repr, touching)))


def _mark(page: spec.CachePage) -> Any:
    """What the pool knows of a cached page: its content, and for which group it is cached."""
    assert isinstance(page.pool, spec.PagePool)
    return page.pool.content_of(page), page.page_hash and page.page_hash.group_id


class HitsAreLongest(DrivenManagers):
    """A hit is what a search through all lengths finds in what pages hold, told by the calls and not by hashes."""

    def begin(self) -> None:
        self.holds: dict[int, tuple[Any, ...]] = {}
        """What each cached page holds."""
        self.marks: dict[int, Any] = {}
        """What the pool knows of it, by which one is told that was taken and cached anew in one call."""

    def after_call(self) -> None:
        pool = self.manager.page_pool
        self.holds = {page: held for page, held in self.holds.items() if _mark(pool.pages[page]) == self.marks[page]}
        for name, request in self.requests.items():
            for group, ids in enumerate(self.manager.get_page_ids(name)):
                size = self.groups[group].kv_cache_spec.page_size
                for place, page_id in enumerate(ids):
                    if page_id and pool.pages[page_id].page_hash is not None and page_id not in self.holds:
                        self.holds[page_id] = _content(group, request, (place + 1) * size)
                        self.marks[page_id] = _mark(pool.pages[page_id])

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        request = self.requests[data.draw(st.sampled_from(list(self.requests)))]
        pages, found = self.manager.get_computed_pages(request)
        assert found == self.longest(request, self.manager.use_eagle, request.num_tokens - 1)
        self.judge(request, pages, found)

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), most=st.integers(0, 20))
    def pin_and_unpin(self, data: st.DataObject, most: int) -> None:
        request = self.requests[data.draw(st.sampled_from(list(self.requests)))]
        longest = self.longest(request, False, min(most, request.num_tokens))
        try:
            pinned = self.manager.pin_prefix(request, most)
        except ValueError:
            assert longest > 0
            return
        assert (pinned.num_tokens if pinned else 0) == longest
        if pinned:
            self.judge(request, pinned.pages, longest)
            self.manager.unpin_prefix(pinned.pin_id)

    def judge(self, request: PlainRequest, pages: spec.CachePages, found: int) -> None:
        """Null pages stand where nothing is read; the others hold the request's content, the first cached one each."""
        for number, (group, own) in enumerate(zip(self.groups, pages.pages, strict=True)):
            size = group.kv_cache_spec.page_size
            assert len(own) * size == found
            for place, page in enumerate(own):
                assert page.is_null == (place not in (_needed(group, found) or set()))
                if page.page_hash is not None:
                    content = _content(number, request, (place + 1) * size)
                    alike = self.manager.page_pool.cached_under(page.page_hash.page_hash, number)
                    assert page == next(other for other in alike if self.holds[other.page_id] == content)

    def longest(self, request: PlainRequest, use_eagle: bool, most: int) -> int:
        flagged = any(group.is_eagle_group for group in self.groups)
        cached = set(self.holds.values())
        for length in range(most, 0, -1):
            total = 0
            for number, group in enumerate(self.groups):
                size = group.kv_cache_spec.page_size
                places = _needed(group, length)
                if length % size or places is None:
                    break
                total += len(places)
                is_state = isinstance(group.kv_cache_spec, MambaSpec)
                if use_eagle and not is_state and (group.is_eagle_group or not flagged):
                    places = places | {length // size}
                ends = [(place + 1) * size for place in places]
                if not all(end <= request.num_tokens and _content(number, request, end) in cached for end in ends):
                    break
            else:
                if total:
                    return length
        return 0


HitsAreLongestTest = HitsAreLongest.TestCase
HitsAreLongestTest.settings = settings(max_examples=100)


class StatesAreAdvanced(DrivenManagers):
    """An engine that runs the copies and then the step finds each state that it goes on from (MAN-13).

    Published ones are those at the ends of their places, and no step changes them (R2).
    """

    def begin(self) -> None:
        self.state: dict[tuple[int, int], Any] = {}
        """By group and page: what the state is of that the page holds."""

    def dispatched(self, steps: list[tuple[str, int, int]]) -> None:
        for copied in self.manager.take_page_copies():
            self.state[copied.group_id, copied.destination] = self.state[copied.group_id, copied.source]
        for name, before, after in steps:
            request = self.requests[name]
            for number, group in enumerate(self.groups):
                if isinstance(group.kv_cache_spec, MambaSpec):
                    page = self.manager.get_page_ids(name)[number][-1]
                    if before > 0:
                        assert self.state[number, page] == _content(number, request, before)
                    self.state[number, page] = _content(number, request, after)
        for name in self.promised:
            for number, ids in enumerate(self.manager.get_page_ids(name)):
                kind: Any = self.groups[number].kv_cache_spec
                for place, page in enumerate(ids if isinstance(kind, MambaSpec) else []):
                    if self.manager.page_pool.pages[page].page_hash is not None:
                        end = (place + 1) * kind.page_size
                        assert self.state[number, page] == _content(number, self.requests[name], end)


StatesAreAdvancedTest = StatesAreAdvanced.TestCase
StatesAreAdvancedTest.settings = settings(max_examples=80)


# -- What a step reads (MAN-8) --------------------------------------------------------------------


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


@given(data=st.data(), groups=group_lists, look_ahead=st.integers(0, 5))
def test_no_request_holds_more_than_its_groups_declare(data: st.DataObject, groups: Any, look_ahead: int) -> None:
    """MAN-8: `max_num_pages`, by which engines size their pools, bounds the pages held."""
    manager = _manager(*groups, num_pages=200)
    request = PlainRequest("r", list(range(40)))
    computed = 0
    while computed < 40:
        new = data.draw(st.integers(1, min(6, 40 - computed)))
        _step(manager, request, computed, new, num_lookahead_tokens=look_ahead)
        for group, ids in zip(groups, manager.get_page_ids("r"), strict=True):
            assert sum(map(bool, ids)) <= group.kv_cache_spec.max_num_pages(40, 6 + look_ahead)
        computed += new


def test_a_window_gives_its_pages_back_in_place_and_tail_first() -> None:
    """MAN-8: of position 6 a window of 3 reads 4 to 6: two pages of two go, and stand last in the queue."""
    manager = _manager(window(2, 3), num_pages=7)
    request = PlainRequest("r", list(range(12)))
    assert _step(manager, request, 0, 6) == ([1, 2, 3],)
    assert _step(manager, request, 6, 2) == ([4],)
    assert manager.get_page_ids("r") == ([0, 0, 3, 4],)
    assert [page.page_id for page in manager.page_pool.free_page_queue.get_all_free_pages()] == [5, 6, 2, 1]


def test_pages_are_given_back_also_where_there_is_no_room() -> None:
    """MAN-2, MAN-8: None is the answer, the released pages are free, and what was computed can't be fewer again."""
    manager = _manager(window(2, 3), num_pages=6)
    request = PlainRequest("r", list(range(40)))
    assert _step(manager, request, 0, 6) == ([1, 2, 3],)
    assert _step(manager, request, 6, 10) is None
    assert manager.get_page_ids("r") == ([0, 0, 3],)
    with pytest.raises(ValueError, match=r"fell from 6 \[MAN-8\]$"):
        _step(manager, request, 5, 1)
    assert _step(manager, request, 6, 8) == ([4, 5, 2, 1],)


def test_groups_give_back_one_after_the_other() -> None:
    """MAN-5: group by group, each tail first."""
    manager = _manager(full(2), latent(4), num_pages=9)
    request = PlainRequest("r", list(range(8)))
    assert _step(manager, request, 0, 8) == ([1, 2, 3, 4], [5, 6])
    manager.free(request)
    assert [page.page_id for page in manager.page_pool.free_page_queue.get_all_free_pages()] == [7, 8, 4, 3, 2, 1, 6, 5]


# -- Hits of several groups (MAN-1, MAN-7, MAN-9) -----------------------------------------------------


def _cached(manager: spec.CacheManager, tokens: Sequence[int], *steps: int) -> None:
    """A request computes tokens, a step each so many, and goes."""
    request = PlainRequest("before", list(tokens))
    computed = 0
    for step in steps or (len(tokens),):
        assert _step(manager, request, computed, step) is not None
        computed += step
    manager.free(request)


def _hit(manager: spec.CacheManager, tokens: Sequence[int]) -> tuple[Any, int]:
    pages, found = manager.get_computed_pages(PlainRequest("after", list(tokens)))
    return pages.get_page_ids(), found


def test_a_hit_is_a_multiple_of_every_page_size() -> None:
    """MAN-7: keys of one page size are never taken for those of another."""
    manager = _manager(full(2), full(3))
    _cached(manager, range(20))
    for length in range(1, 22):
        pages, found = _hit(manager, range(length))
        assert found == max(length - 1, 0) // 6 * 6
        assert list(map(len, pages)) == [found // 2, found // 3]


def test_null_pages_alone_are_no_hit() -> None:
    """MAN-1: at the beginning of a chunk nothing is read, and nothing is found."""
    manager = _manager(chunked(2, 4))
    assert _hit(manager, range(9)) == (([],), 0)
    _cached(manager, range(6))
    assert _hit(manager, range(9)) == (([0, 0, 3],), 6)
    with pytest.raises(ValueError, match=r"null pages alone \[MAN-1\]$"):
        manager.allocate_slots(
            PlainRequest("r", list(range(9))), 1, 4, spec.CachePages([[manager.page_pool.null_page] * 2])
        )


def test_the_chain_of_keys_runs_over_null_pages() -> None:
    """HASH-3: behind null pages a page is found by those who have the same tokens before it, and by no others."""
    manager = _manager(window(2, 2))
    _cached(manager, [1, 2, 3, 4, 5, 6], 2, 2, 2)
    manager.evict_pages([1, 2])
    assert _hit(manager, [1, 2, 3, 4, 5, 6, 7]) == (([0, 0, 3],), 6)
    assert _hit(manager, [9, 2, 3, 4, 5, 6, 7]) == (([],), 0)


def test_eagle_is_decided_once() -> None:
    """MAN-9: the page after the hit is demanded of the prefix that is returned, not dropped again and again."""
    groups = [full(2, is_eagle=True), window(4, 5), chunked(4, 8)]
    manager, plain = _manager(*groups, use_eagle=True), _manager(*groups)
    for each in (manager, plain):
        _cached(each, range(12))
    assert _hit(plain, range(13))[1] == 12
    assert _hit(manager, range(13))[1] == 8
    assert _hit(manager, range(10))[1] == 8, "the page after 8 tokens is cached, and its tokens are known"
    assert _hit(manager, range(9))[1] == 4, "its tokens are not known"


def test_without_a_flag_all_groups_of_attention_are_eagles() -> None:
    """MAN-9: state groups never are."""
    manager = _manager(full(2), latent(4), states(4), use_eagle=True)
    _cached(manager, range(12), 4, 4, 4)
    assert _hit(manager, range(13))[1] == 8
    assert [rules.is_eagle for rules in manager.coordinator.rules] == [True, True, False]


def test_only_full_attention_and_mla_have_common_prefixes() -> None:
    """MAN-10: windows, chunks and states count 0."""
    manager = _manager(full(2), window(2, 40), chunked(2, 40), latent(2), states(2))
    first, second = PlainRequest("a", [1, 2, 3, 4, 5]), PlainRequest("b", [1, 2, 3, 4, 6])
    _step(manager, first, 0, 4)
    pages, found = manager.get_computed_pages(second)
    assert found == 4
    _step(manager, second, 0, 1, num_new_computed_tokens=found, new_computed_pages=pages)
    assert manager.get_num_common_prefix_pages(first, 2) == [2, 0, 0, 2, 0]
    assert manager.get_num_common_prefix_pages(first, 1) == [0] * 5


HITS: dict[str, Callable[[Any, Any], list[list[Any]]]] = {
    "pages of the other group": lambda _, hits: [hits[1], hits[0]],
    "a page where the null page is due": lambda _, hits: [hits[0], [hits[0][0], hits[1][1]]],
    "a null page where one is read": lambda null, hits: [[null, hits[0][1]], hits[1]],
    "another order": lambda _, hits: [hits[0][::-1], hits[1]],
    "a shorter list": lambda _, hits: [hits[0], hits[1][:1]],
    "a group less": lambda _, hits: [hits[0]],
}


@pytest.mark.parametrize("fault", HITS)
def test_hits_that_are_not_the_requests_are_refused(fault: str) -> None:
    """MAN-2, R1: each group's list is held against the request, and nothing changes."""
    manager = _manager(full(2), window(2, 2))
    _cached(manager, range(4))
    request = PlainRequest("r", list(range(6)))
    hits = [list(pages) for pages in manager.get_computed_pages(request)[0].pages]
    assert [[page.page_id for page in pages] for pages in hits] == [[1, 2], [0, 4]]
    before = manager.snapshot()
    wrong = spec.CachePages(HITS[fault](manager.page_pool.null_page, hits))
    with pytest.raises(ValueError, match=r"new_computed_pages.*\[MAN-2\]$"):
        manager.allocate_slots(request, 1, 4, wrong)
    assert manager.snapshot() == before
    assert manager.allocate_slots(request, 1, 4, spec.CachePages(hits)) is not None


# -- States (MAN-13) --------------------------------------------------------------------------------


def test_states_at_page_boundaries_are_published_and_copied_on() -> None:
    """MAN-13: states after 4 and 8 tokens are cached, that after 6 is not; each goes on in a page of its own."""
    manager = _manager(states(4))
    request = PlainRequest("r", list(range(20)))
    assert _step(manager, request, 0, 4) == ([1],)
    assert manager.take_page_copies() == []
    assert _step(manager, request, 4, 2) == ([2],)
    assert manager.take_page_copies() == [PageCopy(0, 1, 2)]
    assert _step(manager, request, 6, 2) == ([],), "the state is advanced where it is"
    assert manager.take_page_copies() == []
    assert _step(manager, request, 8, 1) == ([3],)
    assert manager.take_page_copies() == [PageCopy(0, 2, 3)]
    assert manager.get_page_ids("r") == ([0, 2, 3],)
    assert [page.page_id for page in manager.page_pool.pages if page.page_hash] == [1, 2]
    assert _hit(manager, range(9)) == (([0, 2],), 8)
    assert _hit(manager, range(8)) == (([1],), 4)


def test_a_state_left_amid_a_page_is_never_published() -> None:
    """MAN-13: the step from 6 to 10 tokens passes 8 by."""
    manager = _manager(states(4))
    request = PlainRequest("r", list(range(20)))
    _step(manager, request, 0, 6)
    assert manager.get_page_ids("r") == ([0, 1],)
    assert _step(manager, request, 6, 4) == ([2],)
    assert _step(manager, request, 10, 6) == ([3],)
    manager.cache_pages(request, 16)
    assert [page.page_id for page in manager.page_pool.pages if page.page_hash] == [3]
    assert manager.take_page_copies() == [PageCopy(0, 1, 2), PageCopy(0, 2, 3)]


def test_a_hit_goes_on_from_a_copy() -> None:
    """MAN-13: the published state stays as it is for others."""
    manager = _manager(full(2), states(4))
    _cached(manager, range(8), 4, 4)
    request = PlainRequest("r", list(range(30)))
    pages, found = manager.get_computed_pages(request)
    assert (pages.get_page_ids(), found) == (([1, 2, 4, 5], [0, 6]), 8)
    manager.take_page_copies()
    assert _step(manager, request, 0, 9, num_new_computed_tokens=8, new_computed_pages=pages) == (
        [7, 8, 9, 10, 11],
        [0, 0, 12],
    )
    assert manager.take_page_copies() == [PageCopy(1, 6, 12)]


def test_copies_of_a_request_that_goes_are_dropped() -> None:
    """MAN-13: nobody advances its state; another request's copies stay."""
    manager = _manager(states(2))
    requests = [PlainRequest(name, list(range(10))) for name in "ab"]
    for request in requests:
        _step(manager, request, 0, 2)
        _step(manager, request, 2, 2)
    manager.free(requests[0], 2)
    assert manager.take_page_copies() == [PageCopy(0, 3, 4)]


def test_look_ahead_never_enters_a_state() -> None:
    """MAN-9, MAN-13: attention has slots for drafts, the state none; a draft that was rejected can't be undone."""
    manager = _manager(full(2), states(2))
    request = PlainRequest("r", list(range(20)))
    assert _step(manager, request, 0, 3, num_lookahead_tokens=4) == ([1, 2, 3, 4], [0, 5])
    for computed in (2, 4):
        with pytest.raises(ValueError, match=rf"num_computed_tokens={computed}: the states are after 3 .*\[MAN-13\]$"):
            _step(manager, request, computed, 1)
    assert _step(manager, request, 3, 1) == ([], [])


def test_mode_none_has_one_page_and_no_hits() -> None:
    """MAN-13: any mix with it hits nothing."""
    manager = _manager(full(2), states(4, "none"))
    request = PlainRequest("r", list(range(30)))
    assert _step(manager, request, 0, 9) == ([1, 2, 3, 4, 5], [6])
    assert _step(manager, request, 9, 9) == ([7, 8, 9, 10], [])
    assert manager.take_page_copies() == []
    assert _hit(manager, range(30)) == (([], []), 0)
    assert manager.free(request, 0) == []


def test_a_withdrawn_state_is_withdrawn_from_all_who_hit_it() -> None:
    """MAN-4, MAN-13: the state after 4 tokens was promised and is never written."""
    manager = _manager(full(4), states(4))
    first, second = PlainRequest("a", list(range(9))), PlainRequest("b", list(range(9)))
    _step(manager, first, 0, 4)
    pages, found = manager.get_computed_pages(second)
    assert found == 4
    _step(manager, second, 0, 5, num_new_computed_tokens=4, new_computed_pages=pages)
    assert manager.free(first, 3) == ["b"]
    assert _hit(manager, range(9))[1] == 0
    manager.check()


# -- Groups that contradict themselves (R1) -----------------------------------------------------------

GROUPS: dict[str, tuple[Any, type[Exception], str]] = {
    "no group": ("full", TypeError, "R1"),
    "a layer": (FullAttentionSpec(2, 1, 1, "float32"), TypeError, "R1"),
    "no kind": (spec.CacheGroupSpec(None), TypeError, "R1"),  # type: ignore[arg-type]
    "a page size of 0": (full(0), ValueError, "MAN-7"),
    "a page size of 2.0": (full(2.0), TypeError, "R1"),  # type: ignore[arg-type]
    "a page size that is a bool": (states(True), TypeError, "R1"),
    "no heads": (spec.CacheGroupSpec(FullAttentionSpec(2, 0, 1, "float32")), ValueError, "MAN-7"),
    "no head size": (spec.CacheGroupSpec(MLAAttentionSpec(2, 1, 0, "float32")), ValueError, "MAN-7"),
    "values of no size": (spec.CacheGroupSpec(FullAttentionSpec(2, 1, 1, "float32", 0)), ValueError, "MAN-7"),
    "an unknown dtype": (spec.CacheGroupSpec(FullAttentionSpec(2, 1, 1, "float33")), TypeError, "R1"),
    "no dtype": (spec.CacheGroupSpec(FullAttentionSpec(2, 1, 1, None)), TypeError, "R1"),  # type: ignore[arg-type]
    "bytes": (spec.CacheGroupSpec(FullAttentionSpec(2, 1, 1, "S4")), TypeError, "R1"),
    "a name that numpy is giving up": (spec.CacheGroupSpec(FullAttentionSpec(2, 1, 1, "a")), TypeError, "R1"),
    "no window": (window(2, 0), ValueError, "MAN-7"),
    "no chunk": (chunked(2, 0), ValueError, "MAN-7"),
    "no layers": (spec.CacheGroupSpec(full(2).kv_cache_spec, []), ValueError, "MAN-7"),
    "layers in a str": (spec.CacheGroupSpec(full(2).kv_cache_spec, "layer"), TypeError, "R1"),
    "a layer that is no str": (spec.CacheGroupSpec(full(2).kv_cache_spec, [1]), TypeError, "R1"),  # type: ignore[list-item]
    "a layer twice": (spec.CacheGroupSpec(full(2).kv_cache_spec, ["a", "a"]), ValueError, "MAN-7"),
    "a flag that is no bool": (spec.CacheGroupSpec(full(2).kv_cache_spec, None, 1), TypeError, "R1"),  # type: ignore[arg-type]
    "an unknown mode": (states(2, "all"), ValueError, "MAN-13"),
    "a mode that is no str": (states(2, None), TypeError, "R1"),
    "no states": (spec.CacheGroupSpec(MambaSpec(2, (), ())), ValueError, "MAN-7"),
    "a shape without a dtype": (spec.CacheGroupSpec(MambaSpec(2, ((1,),), ())), ValueError, "MAN-7"),
    "a size below 1": (spec.CacheGroupSpec(MambaSpec(2, ((0,),), ("float32",))), ValueError, "MAN-7"),
    "shapes that are ints": (spec.CacheGroupSpec(MambaSpec(2, (1,), ("float32",))), TypeError, "R1"),  # type: ignore[arg-type]
    "padding that cuts": (
        spec.CacheGroupSpec(MambaSpec(2, ((2,),), ("float32",), "align", 7)),
        ValueError,
        "MAN-7",
    ),
}


@pytest.mark.parametrize("fault", GROUPS)
def test_groups_that_contradict_themselves_are_refused(fault: str) -> None:
    """R1, MAN-7: before a pool is made."""
    group, kind, clause = GROUPS[fault]
    with pytest.raises(kind, match=rf"kv_cache_groups.*\[{clause}\]$"):
        _manager(full(1), group)


def test_a_layer_is_in_one_group() -> None:
    """R1, MAN-7."""
    groups = [spec.CacheGroupSpec(full(2).kv_cache_spec, names) for names in (["a", "b"], ["c", "a"])]
    with pytest.raises(ValueError, match=r"'a' is named twice \[MAN-7\]$"):
        _manager(*groups)


def test_a_state_group_is_no_eagles() -> None:
    """R1, MAN-9: with Eagle; without it flags mean nothing."""
    flagged = spec.CacheGroupSpec(states(2).kv_cache_spec, None, True)
    with pytest.raises(ValueError, match=r"kv_cache_groups\[1\].*\[MAN-9\]$"):
        _manager(full(2), flagged, use_eagle=True)
    assert _manager(full(2), flagged).coordinator.rules[1].is_eagle is False


@given(groups=group_lists, caching=st.booleans())
def test_the_coordinator_is_the_one_of_the_groups(groups: Sequence[Any], caching: bool) -> None:
    """MAN-7: none, one or several groups; the first one's page size is the manager's."""
    manager = _manager(*groups, enable_caching=caching)
    kinds = {1: spec.UnitaryCacheCoordinator} if caching else {}
    kind = kinds.get(len(groups), spec.HybridCacheCoordinator if caching else spec.CacheCoordinatorNoPrefixCache)
    assert type(manager.coordinator) is kind
    assert manager.page_size == (groups[0].kv_cache_spec.page_size if caching else None)
    assert manager.create_empty_page_list().get_page_ids() == tuple([] for _ in groups)
    assert type(_manager().coordinator) is spec.CacheCoordinatorNoPrefixCache


@given(group_lists)
def test_keys_are_shown_in_the_first_groups_page_size(groups: Sequence[Any]) -> None:
    """HASH-3: of the requests looked up or admitted, until they are dropped."""
    manager = _manager(*groups)
    request = PlainRequest("r", list(range(12)))
    manager.get_computed_pages(request)
    size = groups[0].kv_cache_spec.page_size
    assert [key.token_ids for key in manager.req_to_page_hashes["r"]] == [
        tuple(range(start, start + size)) for start in range(0, 12 - size + 1, size)
    ]
    manager.free_page_hashes(request)
    assert manager.req_to_page_hashes == {}
    assert lcm(*(rules.page_size for rules in manager.coordinator.rules)) >= size
