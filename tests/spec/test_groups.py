"""MAN-1, MAN-8, MAN-13: what the specification hits and what its states are, against what the masks read."""

from collections.abc import Sequence
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvproof import spec
from kvproof.spec import (
    ChunkedLocalAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from kvproof.spec.groups.group_rules import rules_of

from ..strategies import PlainRequest
from .driven_managers import DrivenManager, chunked, group_lists, window

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


class HitsAreLongest(DrivenManager):
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


class StatesAreAdvanced(DrivenManager):
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
