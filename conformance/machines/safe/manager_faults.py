"""Calls on a manager with one fault each, at level safe: any exception refuses them, and nothing has changed."""

from typing import Any

from hypothesis import strategies as st

from kvproof.spec.declarations import EngineRequestStatus, Request

from ..draws import NO_INTS, Drawing
from ..properties import step
from .manager_calls import ManagerCalls

__all__ = ["ManagerFaults"]


class ManagerFaults(ManagerCalls):
    """The steps of the managers at level safe that must be refused (R1)."""

    @step(weight=2)
    def misuse(self, data: Drawing) -> None:
        """Allocates, publishes, frees or counts with one fault."""
        often = [self.ask_badly, self.go_on_badly, self.go_on_badly]
        often += [self.hit_badly] if self.names_of(live=False) else []
        often += [self.publish_badly] if self.offers("manager", "cache_pages") else []
        often += [self.count_badly] if self.offers("manager", "get_num_common_prefix_pages") else []
        data.likely(often, [self.free_badly, self.call_with_no_request, self.construct_badly])(data)

    def construct_badly(self, data: Drawing) -> None:
        """A manager needs 2 pages, a length, and groups that are groups."""
        arguments: tuple[Any, ...] = data.one_of([(1, [], 8), (True, [], 8), (4, [], 0), (4, [], "8"), (4, 1, 8)])
        line = f"CacheManager{arguments}"
        self.refuse(line, "R1", "one of them is wrong", lambda side: side.names.get("CacheManager")(*arguments))

    def call_with_no_request(self, data: Drawing) -> None:
        """An object that is not a request."""
        wrong: Any = data.one_of([None, "a", 1])
        name = data.one_of(["get_computed_pages", "allocate_slots", "free", "get_page_ids"])
        if name == "get_page_ids" and wrong == "a":
            return  # an id that may be live
        more = (1,) if name == "allocate_slots" else ()
        line = f"manager.{name}({', '.join(map(repr, (wrong, *more)))})"
        self.refuse(line, "R1", f"{wrong!r} is no request", lambda side: getattr(side.manager, name)(wrong, *more))

    def ask_badly(self, data: Drawing) -> None:
        """Numbers of tokens that are none, negative, or beyond the longest request; a flag that is none."""
        name = self.some_case(data)
        case = self.cases[name]
        if case.live:  # else that were a fault as well
            case.request.num_computed_tokens = (
                case.given if self.world.has_states else max(case.least, int(case.request.num_computed_tokens))
            )
        computed = int(case.request.num_computed_tokens)
        beyond = self.max_model_len - computed + 1
        options: list[dict[str, Any]] = [
            *({"num_lookahead_tokens": wrong} for wrong in (-1, *NO_INTS)),
            *({"num_new_computed_tokens": wrong} for wrong in (-1, *NO_INTS)),
            {"delay_cache_pages": 1},
        ]
        options = [given for given in options if self.takes(next(iter(given)))]
        bare: list[tuple[Any, dict[str, Any], str]] = [(0, {}, "R1"), (-1, {}, "R1"), (beyond, {}, "MAN-2")]
        bare.append((1, {"num_new_computed_tokens": self.unit}, "MAN-2"))
        seldom = [*((wrong, {}, "R1") for wrong in NO_INTS), *((1, given, "R1") for given in options)]
        new, given, clause = data.likely(bare, seldom)
        if computed >= self.max_model_len and new == 1:
            return  # that would be two faults
        more = "".join(f", {option}={value!r}" for option, value in given.items())
        self.refuse(
            f"manager.allocate_slots({name}, {new!r}{more})  [num_computed_tokens={computed}]",
            clause,
            f"{new!r} new tokens{more}, of at most {self.max_model_len} tokens in all",
            lambda side: side.manager.allocate_slots(case.request, new, **given),
        )

    def go_on_badly(self, data: Drawing) -> None:
        """Computed tokens that were never given slots, fell, or are no number; another object under a live id."""
        name = self.some_live(data)
        case = self.cases[name]
        computed = case.request.num_computed_tokens
        wrong = data.likely([*self.impossible_counts(name), "another object"], [-1, *NO_INTS[:2]])
        if wrong == "another object":
            stranger = Request(name, case.tokens, case.request.extra_keys)
            self.refuse(
                f"manager.allocate_slots(<another request {name!r}>, 1)",
                "MAN-6",
                f"{name} is live, and another object",
                lambda side: side.manager.allocate_slots(stranger, 1),
            )
            return
        live: Any = case.request
        live.num_computed_tokens = wrong
        try:
            self.refuse(
                f"manager.allocate_slots({name}, 1)  [num_computed_tokens={wrong!r}]",
                "MAN-8",
                f"{name} has slots for {case.slots} tokens, of which at least {case.least} were computed",
                lambda side: side.manager.allocate_slots(case.request, 1),
            )
        finally:
            case.request.num_computed_tokens = computed

    def hit_badly(self, data: Drawing) -> None:
        """Pages as hits that are not the request's own: others, too few, of no group, null pages."""
        if not self.world.groups or not self.backend.pages or not self.backend.names.offers("CachePages"):
            return
        name = data.one_of(self.names_of(live=False))
        case = self.cases[name]
        case.request.num_computed_tokens = 0
        if self.unit >= min(case.request.num_tokens, self.max_model_len):
            return  # a hit is shorter than the request
        pages: list[list[int]] = [
            [
                data.one_of(list(self.backend.pages)[1:]) if place >= group.first_place(self.unit) else 0
                for place in range(self.unit // group.page_size)
            ]
            for group in self.world.groups
        ]
        number = data.draw(st.integers(0, len(pages) - 1))
        fault = data.one_of(["page", "page", "null", "short", "group"])
        if fault == "short":
            pages[number] = pages[number][1:]
        elif fault == "group":
            pages = pages[:number] + pages[number + 1 :]
        elif fault == "null":
            pages[number][-1] = 0
        if fault in ("page", "null") and not (
            self.flaw_in_content(case, pages) or self.flaw_in_shape(case, pages, self.unit)
        ):
            return  # by chance the request's own
        self.refuse(
            f"manager.allocate_slots({name}, 1, {self.unit}, <pages {pages}>)",
            "MAN-2",
            "those pages do not hold the request's prefix",
            lambda side: side.manager.allocate_slots(
                case.request,
                1,
                self.unit,
                side.names.get("CachePages")(tuple([side.pages[page] for page in held] for held in pages)),
            ),
        )

    def publish_badly(self, data: Drawing) -> None:
        """Publishes more than the request was given slots for, or for a request that is not live."""
        name = self.some_live(data)
        case = self.cases[name]
        numbers = [(case.request, wrong, "R1") for wrong in (-1, *NO_INTS)]
        often = [(case.request, case.given + 1, "MAN-3"), (Request("z", [0]), 0, "R1")]
        request, count, clause = data.likely(often, numbers)
        self.refuse(
            f"manager.cache_pages({request.request_id}, {count!r})",
            clause,
            f"{name} is live and has slots for {case.given} tokens",
            lambda side: side.manager.cache_pages(request, count),
        )

    def free_badly(self, data: Drawing) -> None:
        """What was written is a number."""
        case = self.cases[self.some_case(data)]
        wrong = data.one_of([-1, *NO_INTS[:-1]])
        if self.free_takes_written():
            self.refuse(
                f"manager.free({case.request.request_id}, num_written={wrong!r})",
                "R1",
                "num_written is a number of tokens",
                lambda side: side.manager.free(case.request, wrong),
            )

    def count_badly(self, data: Drawing) -> None:
        """Counts common pages for a request that is not live, or is told no number."""
        case = self.cases[self.some_live(data)]
        stranger = Request("z", [0])
        stranger.status = EngineRequestStatus.RUNNING
        request, count = data.likely([(stranger, 1)], [(case.request, wrong) for wrong in (-1, *NO_INTS)])
        self.refuse(
            f"manager.get_num_common_prefix_pages({request.request_id}, {count!r})",
            "R1",
            "no number of requests, or no live request",
            lambda side: side.manager.get_num_common_prefix_pages(request, count),
        )
