"""A manager of the specification, driven through every call of an engine that keeps its word."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from kvproof import spec
from kvproof.spec import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from ..strategies import PlainRequest, few_extra_keys

__all__ = ["DrivenManager", "cache_groups", "chunked", "full", "group_lists", "latent", "states", "weak", "window"]

IDS = "abcd"
MAX_MODEL_LEN = 20


def full(page_size: int, is_eagle: bool = False) -> spec.CacheGroupSpec:
    return spec.CacheGroupSpec(FullAttentionSpec(page_size, 1, 1, "float32"), None, is_eagle)


def latent(page_size: int, is_eagle: bool = False) -> spec.CacheGroupSpec:
    return spec.CacheGroupSpec(MLAAttentionSpec(page_size, 1, 4, "bfloat16"), None, is_eagle)


def window(page_size: int, size: int, is_eagle: bool = False) -> spec.CacheGroupSpec:
    return spec.CacheGroupSpec(SlidingWindowSpec(page_size, 1, 1, "float16", size), None, is_eagle)


def chunked(page_size: int, size: int, is_eagle: bool = False) -> spec.CacheGroupSpec:
    return spec.CacheGroupSpec(ChunkedLocalAttentionSpec(page_size, 1, 1, np.int8, size), None, is_eagle)


def states(page_size: int, mode: Any = "align") -> spec.CacheGroupSpec:
    return spec.CacheGroupSpec(MambaSpec(page_size, ((2, 3), (4,)), ("float32", "float16"), mode))


_sizes = st.sampled_from([1, 2, 2, 4])

cache_groups: st.SearchStrategy[spec.CacheGroupSpec] = st.one_of(
    st.builds(full, _sizes, st.booleans()),
    st.builds(latent, _sizes, st.booleans()),
    st.builds(window, _sizes, st.integers(1, 6), st.booleans()),
    st.builds(chunked, _sizes, st.integers(1, 6), st.booleans()),
    st.builds(states, _sizes),
    st.builds(states, _sizes, st.sampled_from(["align", "align", "none"])),
)
"""One group of any kind, its page size a power of two so that hits of several groups are short."""

group_lists = st.lists(cache_groups, min_size=1, max_size=3)


def weak(message: bytes) -> bytes:
    """A hash function with four values: many contents have one key (R2)."""
    return bytes([sum(message) % 4])


class DrivenManager(RuleBasedStateMachine):
    """An engine with one manager.

    Requests are few and of two tokens, so that they share prefixes; pools are small, so that pages are evicted.
    """

    manager: Any

    @initialize(
        groups=group_lists,
        num_pages=st.integers(6, 40),
        use_eagle=st.sampled_from([False, False, True]),
        hash_function=st.sampled_from([spec.sha256, spec.sha256, weak]),
        caching=st.sampled_from([True] * 7 + [False]),
        options=st.fixed_dictionaries(
            {
                "unhashed_first": st.booleans(),
                "enable_events": st.sampled_from([True, True, False]),
                "counter_sampling": st.integers(1, 3),
                "max_pinned_pages": st.integers(0, 8),
                "max_pinned_pages_per_salt": st.sampled_from([None, None, 2]),
            }
        ),
    )
    def build(
        self,
        groups: list[spec.CacheGroupSpec],
        num_pages: int,
        use_eagle: bool,
        hash_function: Any,
        caching: bool,
        options: dict[str, Any],
    ) -> None:
        options |= {"hash_seed": b"s", "hash_function": hash_function}
        self.manager = spec.CacheManager(num_pages, groups, MAX_MODEL_LEN, caching, use_eagle, **options)
        self.groups = groups
        self.requests: dict[str, PlainRequest] = {}
        self.promised: dict[str, int] = {}
        """Of live requests: computed and new tokens of the last call that was granted."""
        self.pins: list[int] = []
        self.now = 0
        self.begin()

    def begin(self) -> None:
        """What a test does at first."""

    # -- What an engine knows -------------------------------------------------------------------------

    @property
    def has_states(self) -> bool:
        return any(isinstance(group.kv_cache_spec, MambaSpec) for group in self.groups)

    def call(self, act: Callable[[Any], Any]) -> Any:
        """Makes a call; returns what it gives, or None where it is refused."""
        refused, given = "", None
        try:
            given = act(self.manager)
        except ValueError as error:
            refused = str(error)
        self.manager.check()
        self.after_call()
        assert not refused or self.may_refuse(refused), refused
        return given

    def may_refuse(self, error: str) -> bool:
        """Only pins can be one too many; all else is an engine's that keeps its word."""
        return error.endswith("[PIN-1]")

    def admitted(self, request: PlainRequest, found: int) -> None:
        """What a test does when a request was admitted with so many tokens found."""

    def dispatched(self, steps: list[tuple[str, int, int]]) -> None:
        """What a test does when requests were granted slots: each one's id, its tokens before and after the step."""

    def after_call(self) -> None:
        """What a test does after every call."""

    # -- Requests -------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.promised) < len(IDS))
    @rule(data=st.data(), hitting=st.sampled_from([True, True, True, False]), late=st.booleans())
    def come(self, data: st.DataObject, hitting: bool, late: bool) -> None:
        """A request comes, or one that was freed comes again; it is looked up and admitted."""
        name = data.draw(st.sampled_from([name for name in IDS if name not in self.promised]))
        if name not in self.requests or data.draw(st.booleans()):
            self.requests[name] = self.draw_request(data, name)
        request = self.requests[name]
        request.num_computed_tokens = 0
        found = self.call(lambda manager: manager.get_computed_pages(request)[1]) if hitting else 0
        new = self.draw_new(data, found, request.num_tokens)
        ahead = data.draw(st.sampled_from([0, 0, 1, 3]))

        def act(manager: Any) -> Any:
            pages = manager.get_computed_pages(request)[0] if found else None
            given = manager.allocate_slots(request, new, found, pages, ahead, late)
            return given and given.get_page_ids()

        if self.call(act) is not None:
            self.promised[name] = found + new
            request.num_computed_tokens = found
            self.admitted(request, found)
            self.dispatched([(name, found, found + new)])

    def draw_request(self, data: st.DataObject, name: str) -> PlainRequest:
        """A request that goes on where an earlier one stood at some time, or begins anew."""
        earlier = list(self.requests.values())
        tokens, extra_keys = [], data.draw(st.one_of(st.just(()), few_extra_keys))
        if earlier and data.draw(st.sampled_from([True, True, True, False])):
            other = data.draw(st.sampled_from(earlier))
            tokens = list(other.all_token_ids)[: data.draw(st.sampled_from([8, 12, MAX_MODEL_LEN]))]
            extra_keys = data.draw(st.sampled_from([other.extra_keys, other.extra_keys, extra_keys]))
        tokens = [*tokens, *data.draw(st.lists(st.integers(0, 1), max_size=8))]
        return PlainRequest(name, tokens[: MAX_MODEL_LEN - 2] or [0], extra_keys)

    def draw_new(self, data: st.DataObject, computed: int, num_tokens: int) -> int:
        """New tokens: all that there are, or fewer; often up to a page's end, as states are cached there."""
        most = max(min(num_tokens, MAX_MODEL_LEN) - computed, 1)
        return data.draw(st.sampled_from([most, min(4 - computed % 4, most), data.draw(st.integers(1, most))]))

    def step_of(self, data: st.DataObject, name: str) -> tuple[int, int, int]:
        """What a live request asks for next: computed, new and look-ahead tokens; it may have grown."""
        request, promised = self.requests[name], self.promised[name]
        rejected = 0 if self.has_states else data.draw(st.sampled_from([0, 0, 0, 1, 2]))
        computed = max(promised - rejected, request.num_computed_tokens)
        if computed >= request.num_tokens:
            short = computed + 1 - request.num_tokens
            most = min(short + 1, MAX_MODEL_LEN - request.num_tokens)
            request.grow(data.draw(st.lists(st.integers(0, 1), min_size=short, max_size=most)))
        new = self.draw_new(data, computed, request.num_tokens)
        return computed, new, data.draw(st.sampled_from([0, 0, 1, 3]))

    def going_on(self) -> list[str]:
        """Live requests that have room for one more token."""
        return [name for name, promised in self.promised.items() if promised < MAX_MODEL_LEN]

    @precondition(lambda self: self.going_on())
    @rule(data=st.data(), late=st.sampled_from([False, False, True]))
    def advance(self, data: st.DataObject, late: bool) -> None:
        name = data.draw(st.sampled_from(self.going_on()))
        request = self.requests[name]
        computed, new, ahead = self.step_of(data, name)
        request.num_computed_tokens = computed

        def act(manager: Any) -> Any:
            given = manager.allocate_slots(request, new, num_lookahead_tokens=ahead, delay_cache_pages=late)
            return given and given.get_page_ids()

        if self.call(act) is not None:
            self.promised[name] = computed + new
            self.dispatched([(name, computed, computed + new)])

    @precondition(lambda self: self.going_on())
    @rule(data=st.data(), late=st.sampled_from([False, False, True]))
    def advance_many(self, data: st.DataObject, late: bool) -> None:
        names = data.draw(st.lists(st.sampled_from(self.going_on()), min_size=1, unique=True))
        steps = [self.step_of(data, name) for name in names]
        asked, asked_new, ahead = (list(column) for column in zip(*steps, strict=True))

        def act(manager: Any) -> Any:
            slots = [manager.slot_of(name) for name in names]
            return manager.allocate_slots_batch(slots, asked, asked_new, ahead, delay_cache_pages=late).granted

        run = []
        for name, (computed, new, _), given in zip(names, steps, self.call(act), strict=True):
            self.requests[name].num_computed_tokens = computed
            if given:
                self.promised[name] = computed + new
                run.append((name, computed, computed + new))
        self.dispatched(run)

    @precondition(lambda self: self.promised)
    @rule(data=st.data(), all_written=st.booleans(), drops=st.booleans())
    def free(self, data: st.DataObject, all_written: bool, drops: bool) -> None:
        """A request goes, and with it those that hold what it withdraws."""
        name = data.draw(st.sampled_from(list(self.promised)))
        self.let_go(name, None if all_written else data.draw(st.integers(0, self.promised[name])))
        if drops:
            self.drop(name)

    def drop(self, name: str) -> None:
        self.call(lambda manager: manager.free_page_hashes(self.requests[name]))

    def let_go(self, name: str, written: int | None) -> None:
        del self.promised[name]
        for other in self.call(lambda manager: manager.free(self.requests[name], written)):
            if other in self.promised:
                self.let_go(other, 0)

    # -- All else -------------------------------------------------------------------------------------

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def tend(self, data: st.DataObject) -> None:
        """One of the calls that an engine makes now and then."""
        calls = [self.pin, self.prioritise, self.pass_time, self.evict, self.take]
        calls += [self.unpin] if self.pins else []
        calls += [self.cache_pages] if self.promised else []
        data.draw(st.sampled_from(calls))(data)

    def some_request(self, data: st.DataObject) -> PlainRequest:
        return self.requests[data.draw(st.sampled_from(list(self.requests)))]

    def cache_pages(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.promised)))
        count = data.draw(st.sampled_from([self.promised[name], self.promised[name], 0]))
        self.call(lambda manager: manager.cache_pages(self.requests[name], count))

    def pin(self, data: st.DataObject) -> None:
        request, most = self.some_request(data), data.draw(st.sampled_from([None, None, 3]))

        def act(manager: Any) -> Any:
            pin = manager.pin_prefix(request, most)
            return pin and (pin.pin_id, pin.num_tokens, pin.pages.get_page_ids())

        pin = self.call(act)
        if pin is not None:
            self.pins.append(pin[0])

    def unpin(self, data: st.DataObject) -> None:
        pin_id = data.draw(st.sampled_from(self.pins))
        self.pins.remove(pin_id)
        self.call(lambda manager: manager.unpin_prefix(pin_id))

    def prioritise(self, data: st.DataObject) -> None:
        request, priority = self.some_request(data), data.draw(st.integers(-1, 2))
        end = data.draw(st.sampled_from([None, self.now + 1, self.now + 2]))
        self.call(lambda manager: manager.set_prefix_priority(request, priority, None, end))

    def pass_time(self, _: st.DataObject) -> None:
        self.now += 1
        self.call(lambda manager: manager.advance_time(self.now))

    def evict(self, data: st.DataObject) -> None:
        """Evicts all if no page is in use, else one."""
        page_id = data.draw(st.integers(1, self.manager.num_pages - 1))
        if data.draw(st.booleans()) or not self.call(lambda manager: manager.reset_prefix_cache()):
            self.call(lambda manager: manager.evict_pages([page_id]))

    def take(self, _: st.DataObject) -> None:
        """Takes what is handed out once."""
        self.call(lambda manager: (manager.take_page_copies(), manager.take_events()))
