"""Calls on a manager with one fault each: both sides refuse them, and nothing has changed."""

import functools
from typing import Any

from hypothesis import strategies as st

from kvproof.spec.declarations import EngineRequestStatus, Request

from .base import Both, Side
from .draws import NO_INTS, Drawing, likely, one_of
from .manager_admission import Admission
from .properties import step
from .worlds import Group

__all__ = ["ManagerFaults"]


NO_NUMBERS: tuple[Any, ...] = ("O", "U5", "f4,f4", "M8[s]", None, "a type", 1)
"""What is no dtype of numbers, though numpy takes most of it for a dtype (R1)."""


class ManagerFaults(Admission):
    """The steps of the manager machines that must be refused."""

    @step("MAN-3", "MAN-4", "MAN-8", "MAN-10", weight=2)
    def misuse(self, data: Drawing) -> None:
        """Allocates, publishes, frees or counts with one fault; constructs a manager badly."""
        often = [
            self.go_on_badly,
            self.go_on_badly,
            self.allocate_badly,
            self.hit_badly,
            *([self.publish_badly] if self.offers("manager", "cache_pages") else []),
            *([self.count_badly] if self.offers("manager", "get_num_common_prefix_pages") else []),
        ]
        likely(data, often, [self.free_badly, self.call_with_no_request, self.construct_badly])(data)

    def construct_badly(self, data: Drawing) -> None:
        """A manager needs 2 pages, a length, flags, and groups that are groups, of numbers."""
        if self.session.backend.offers("CacheGroupSpec") and one_of(data, [False, True]):
            dtype = one_of(data, NO_NUMBERS)
            self.call(
                f"CacheManager(4, [CacheGroupSpec(FullAttentionSpec(1, 1, 1, {dtype!r}))], 8)",
                functools.partial(_made_of, dtype),
                "R1",
            )
            return
        arguments: tuple[Any, ...] = one_of(
            data, [(1, [], 8), (True, [], 8), (4, [], 0), (4, [], "8"), (4, 1, 8), (4, ["group"], 8), (4, [], 8, 1)]
        )
        self.call(f"CacheManager{arguments}", lambda side: side.names.get("CacheManager")(*arguments), "R1")

    def call_with_no_request(self, data: Drawing) -> None:
        """What is no request, or has no fit id or tokens."""
        nameless: Any = Request("x", [0])
        nameless.request_id = 1
        request: Any = one_of(data, [None, "a", nameless])
        calls = {
            "get_computed_pages": lambda side: side.manager.get_computed_pages(request),
            "allocate_slots": lambda side: side.manager.allocate_slots(request, 1),
            "free": lambda side: side.manager.free(request),
            "free_page_hashes": lambda side: side.manager.free_page_hashes(request),
        }
        name = one_of(data, [name for name in calls if self.offers("manager", name)])
        self.call(f"manager.{name}({request!r})", calls[name], "R1")
        wrong = one_of(data, [None, 1])
        self.call(f"manager.get_page_ids({wrong})", lambda side: side.manager.get_page_ids(wrong), "R1")

    def allocate_badly(self, data: Drawing) -> None:
        """Numbers of tokens that are none, negative, or beyond the longest request; a flag that is none."""
        name = self.some_case(data)
        case = self.cases[name]
        request = case.request
        if case.live:  # else that were a fault as well
            least = max(case.least, int(request.num_computed_tokens))
            request.num_computed_tokens = case.given if self.world.has_states else least
        beyond = self.max_model_len - int(request.num_computed_tokens) + 1
        new, options = likely(
            data,
            [(0, {}), (-1, {}), (beyond, {}), (1, {"num_new_computed_tokens": self.unit})],
            [
                *((wrong, {}) for wrong in NO_INTS),
                *((1, {"num_lookahead_tokens": wrong}) for wrong in (-1, *NO_INTS)),
                *((1, {"num_new_computed_tokens": wrong}) for wrong in (-1, *NO_INTS)),
                (1, {"delay_cache_pages": 1}),
                *([] if case.live else [(1, {"new_computed_pages": [[]]})]),  # none for who holds pages already
            ],
        )
        if request.num_computed_tokens >= self.max_model_len and new == 1:
            return  # that would be two faults
        self.allocate(name, new, **options)

    def go_on_badly(self, data: Drawing) -> None:
        """Computed tokens that were never given slots, fell, or are no number; another object under a live id."""
        name = self.some_live(data)
        case = self.cases[name]
        computed = case.request.num_computed_tokens
        wrong = likely(data, [*self.impossible_counts(name), "another object"], [-1, *NO_INTS[:2]])
        if wrong == "another object":
            stranger = Request(name, case.tokens, case.request.extra_keys)
            self.call(
                f"manager.get_computed_pages(<another request {name!r}>)",
                lambda side: side.manager.get_computed_pages(stranger),
                "MAN-6",
                self.found_pages,
            )
            self.call(
                f"manager.allocate_slots(<another request {name!r}>, 1)",
                lambda side: side.manager.allocate_slots(stranger, 1),
                "MAN-6",
                self.page_lists,
            )
            return
        live: Any = case.request
        live.num_computed_tokens = wrong
        try:
            self.call(
                f"manager.allocate_slots({name}, 1)  [num_computed_tokens={wrong!r}]",
                lambda side: side.manager.allocate_slots(case.request, 1),
                "MAN-8",
                self.page_lists,
            )
        finally:
            case.request.num_computed_tokens = computed

    def hit_badly(self, data: Drawing) -> None:
        """Pages as hits that are not the request's own: others, too few, of another group or pool, null pages."""
        self.turn(data)
        name = self.some_case(data)
        case = self.cases[name]
        if case.request.num_computed_tokens or not self.world.groups:
            return
        found = self.look_up(name) if not case.live else None
        length = found.spec[1] if found is not None and found.spec[1] else self.unit
        pages: list[list[Any]] = [list(group) for group in found.spec[0].get_page_ids()] if found is not None else []
        if found is None or not found.spec[1]:
            pages = [self.some_pages(data, group, length) for group in self.world.groups]
        group = data.draw(st.integers(0, len(pages) - 1))
        strange = [] if self.lacks("groups") else ["another manager's page"]  # a manager without groups makes it
        fault = one_of(data, ["page", "page", "page", "null", *strange, "short", "group"])
        if fault == "short":
            pages[group] = pages[group][1:]
        elif fault == "group":
            pages = [*pages[:group], *pages[group + 1 :]] if one_of(data, [True, False]) else [*pages, []]
        else:
            place = data.draw(st.integers(0, len(pages[group]) - 1))
            pages[group][place] = {"page": one_of(data, sorted(self.spec.pages)), "null": 0}.get(fault, fault)

        def given(side: Side) -> Any:
            def view(page: Any) -> Any:
                return self.strange_page(side) if isinstance(page, str) else side.pages[page]

            return side.names.get("CachePages")([[view(page) for page in held] for held in pages]), length

        self.allocate(name, 1, Both(given(self.spec), given(self.backend)))

    def some_pages(self, data: Drawing, group: Group, length: int) -> list[Any]:
        """Some pages in the places of a prefix where a group needs pages."""
        first = group.first_place(length)
        return [
            one_of(data, sorted(self.spec.pages)[1:]) if place >= first else 0
            for place in range(length // group.page_size)
        ]

    def strange_page(self, side: Side) -> Any:
        """A page of another pool."""
        return side.names.get("CacheManager")(3, [], 8, False).page_pool.get_new_pages(1)[0]

    def publish_badly(self, data: Drawing) -> None:
        """Publishes more than the request was given slots for, or for a request that is not live."""
        name = self.some_live(data)
        case = self.cases[name]
        stranger = Request("z", [0])
        numbers = [(case.request, wrong) for wrong in (-1, *NO_INTS)]
        request, count = likely(data, [(case.request, case.given + 1), (stranger, 0)], numbers)
        self.call(
            f"manager.cache_pages({request.request_id}, {count!r})",
            lambda side: side.manager.cache_pages(request, count),
            "MAN-3",
        )

    def free_badly(self, data: Drawing) -> None:
        """What was written is a number."""
        case = self.cases[self.some_case(data)]
        wrong = one_of(data, [-1, *NO_INTS[:-1]])
        if self.backend.names.accepts("CacheManager.free", "num_written"):
            self.call(
                f"manager.free({case.request.request_id}, {wrong!r})",
                lambda side: side.manager.free(case.request, wrong),
                "MAN-4",
            )

    def count_badly(self, data: Drawing) -> None:
        """Counts common pages for a request that is not live or does not run, or is told no number."""
        case = self.cases[self.some_live(data)]
        stranger = Request("z", [0])
        stranger.status = EngineRequestStatus.RUNNING
        request, count = likely(data, [(stranger, 1)], [(case.request, wrong) for wrong in (-1, *NO_INTS)])
        status = request.status
        one_fault = request is stranger or status is EngineRequestStatus.RUNNING
        self.call(
            f"manager.get_num_common_prefix_pages({request.request_id}, {count if one_fault else 1!r})",
            lambda side: side.manager.get_num_common_prefix_pages(request, count if one_fault else 1),
            "MAN-10",
        )


def _made_of(dtype: Any, side: Side) -> Any:
    """A side's manager of one group of a dtype."""
    layers = side.names.get("FullAttentionSpec")(1, 1, 1, dtype)
    return side.names.get("CacheManager")(4, [side.names.get("CacheGroupSpec")(layers)], 8)
