"""Calls on a manager with one fault each: both sides refuse them, and nothing has changed."""

from typing import Any

from kvproof.spec.declarations import EngineRequestStatus, Request

from ..properties import step
from .base import Side
from .draws import NO_INTS, Drawing, likely, one_of
from .manager_admission import Admission
from .manager_base import found_pages, page_lists

__all__ = ["ManagerFaults"]


class ManagerFaults(Admission):
    """The steps of the manager machine that must be refused."""

    @step("MAN-3", "MAN-4", "MAN-8", "MAN-10", weight=2)
    def misuse(self, data: Drawing) -> None:
        """Allocates, publishes, frees or counts with one fault; constructs a manager badly."""
        often = [
            self.go_on_badly,
            self.go_on_badly,
            self.allocate_badly,
            self.hit_badly,
            self.publish_badly,
            self.count_badly,
        ]
        likely(data, often, [self.free_badly, self.call_with_no_request, self.construct_badly])(data)

    def construct_badly(self, data: Drawing) -> None:
        """A manager needs 2 pages, a length, flags, and groups that are groups."""
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
        name = one_of(data, list(calls))
        self.call(f"manager.{name}({request!r})", calls[name], "R1")
        wrong = one_of(data, [None, 1])
        self.call(f"manager.get_page_ids({wrong})", lambda side: side.manager.get_page_ids(wrong), "R1")

    def allocate_badly(self, data: Drawing) -> None:
        """Numbers of tokens that are none, negative, or beyond the longest request; a flag that is none."""
        name = self.some_case(data)
        request = self.cases[name].request
        beyond = self.max_model_len - int(request.num_computed_tokens) + 1
        new, options = likely(
            data,
            [(0, {}), (-1, {}), (beyond, {}), (1, {"num_new_computed_tokens": self.page_size})],
            [
                *((wrong, {}) for wrong in NO_INTS),
                *((1, {"num_lookahead_tokens": wrong}) for wrong in (-1, *NO_INTS)),
                *((1, {"num_new_computed_tokens": wrong}) for wrong in (-1, *NO_INTS)),
                (1, {"delay_cache_pages": 1}),
                (1, {"new_computed_pages": [[]]}),
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
        gaps: list[Any] = [self.max_model_len + 1, case.slots + 1, *([0] if computed else [])]
        wrong = likely(data, [*gaps, "another object"], [-1, *NO_INTS[:2]])
        if wrong == "another object":
            stranger = Request(name, case.tokens, case.request.extra_keys)
            self.call(
                f"manager.get_computed_pages(<another request {name!r}>)",
                lambda side: side.manager.get_computed_pages(stranger),
                "MAN-6",
                found_pages,
            )
            self.call(
                f"manager.allocate_slots(<another request {name!r}>, 1)",
                lambda side: side.manager.allocate_slots(stranger, 1),
                "MAN-6",
                page_lists,
            )
            return
        live: Any = case.request
        live.num_computed_tokens = wrong
        try:
            self.call(
                f"manager.allocate_slots({name}, 1)  [num_computed_tokens={wrong!r}]",
                lambda side: side.manager.allocate_slots(case.request, 1),
                "MAN-8",
                page_lists,
            )
        finally:
            case.request.num_computed_tokens = computed

    def hit_badly(self, data: Drawing) -> None:
        """Pages as hits that are another request's, too many, of another pool, or given to a live request."""
        name = self.some_case(data)
        case = self.cases[name]
        if case.request.num_computed_tokens:
            return
        options = [page for page in sorted(self.spec.pages) if not self.is_prefix(case.tokens, page, name)]
        page: Any = one_of(data, [*options, "another manager's page"])

        def act(side: Side) -> Any:
            given = self.strange_page(side) if isinstance(page, str) else side.pages[page]
            pages = side.names.get("CachePages")(([given],) if self.grouped else ())
            return side.manager.allocate_slots(case.request, 1, self.page_size, pages)

        self.call(f"manager.allocate_slots({name}, 1, {self.page_size}, CachePages([[{page}]]))", act, "MAN-2")

    def is_prefix(self, tokens: list[int], page: int, name: str) -> bool:
        """Whether a page holds the first page of a request."""
        contents = self.contents(tokens, self.cases[name].request.extra_keys)[:1]
        return self.spec.pool.content_of(self.spec.pages[page]) in contents

    def strange_page(self, side: Side) -> Any:
        """A page of another pool."""
        return side.names.get("PagePool")(3, True).get_new_pages(1)[0]

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
