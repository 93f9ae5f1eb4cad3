"""Calls on a manager with one fault each: they are refused, and nothing has changed.

The machines of level safe make the same calls, but for those that a manager of another design may take.
"""

from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import EngineRequestStatus

from ..calls.datum import Call, Pages, Prompt, Ref, Saying
from ..calls.manager import StrangePage
from .base import Both
from .draws import NO_INTS, Drawing
from .manager_admission import Admission
from .manager_base import MANAGER_REF
from .properties import step
from .worlds import Declared, Group

__all__ = ["ManagerFaults"]


NO_NUMBERS: tuple[Any, ...] = ("O", "U5", "f4,f4", "M8[s]", None, "a type", 1)
"""Objects that are not dtypes of numbers, though numpy takes most of them for a dtype (R1)."""


class ManagerFaults(Admission):
    """The steps of the manager machines that must be refused.

    Attributes:
        is_exact: whether all that the specification refuses must be; at level safe other designs may take some of it.
    """

    is_exact: ClassVar[bool] = True

    def call_badly(self, call: Call, clause: str, why: str) -> None:
        """Makes a call that must be refused.

        Args:
            call: the call.
            clause: the label of the clause that refuses it, for machines that have no specification to ask.
            why: what is wrong with it, for the reports of those machines.
        """
        del clause, why
        self.make_call(call)

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
        data.likely(often, [self.free_badly, self.call_with_no_request, self.construct_badly])(data)

    def construct_badly(self, data: Drawing) -> None:
        """A manager needs 2 pages, a length, flags, and groups that are groups, of numbers."""
        if self.is_exact and self.session.backend.offers("CacheGroupSpec") and data.one_of([False, True]):
            groups = [Declared(Group("full", 1), 0, data.one_of(NO_NUMBERS))]
            self.construct_one(4, groups, 8)
            return
        bad: list[tuple[Any, ...]] = [(1, [], 8), (True, [], 8), (4, [], 0), (4, [], "8"), (4, 1, 8)]
        bad += [(4, ["group"], 8), (4, [], 8, 1)] if self.is_exact else []
        self.construct_one(*data.one_of(bad))

    def construct_one(self, *arguments: Any, **options: Any) -> None:
        """Constructs another manager, with one argument wrong."""
        names = ("num_pages", "kv_cache_groups", "max_model_len", "enable_caching", "use_eagle")
        given = dict(zip(names, arguments, strict=False)) | options
        self.call_badly(self.call_of("CacheManager", None, **given), "R1", "one of its arguments is wrong")

    def call_with_no_request(self, data: Drawing) -> None:
        """Objects that are not requests, or have no fit id or tokens."""
        nameless = Saying(Prompt((0,), request_id="x"), (("request_id", 1),))
        request: Any = data.one_of([None, "a", *([nameless] if self.is_exact else [])])
        calls: dict[str, dict[str, Any]] = {
            "get_computed_pages": {},
            "allocate_slots": {"num_new_tokens": 1},
            "free": {},
            **({"free_page_hashes": {}} if self.is_exact else {}),
        }
        name = data.one_of([name for name in calls if self.offers("manager", name)])
        call = self.call_of(name, MANAGER_REF, request=request, **calls[name])
        self.call_badly(call, "R1", f"{request!r} is no request")
        call = self.call_of("get_page_ids", MANAGER_REF, request_id=data.one_of([None, 1]))
        self.call_badly(call, "R1", "that is no id of a request")

    def allocate_badly(self, data: Drawing) -> None:
        """Numbers of tokens that are none, negative, or beyond the longest request; a flag that is none."""
        name = self.some_case(data)
        case = self.cases[name]
        request = case.request
        if case.live:  # else that were a fault as well
            least = max(case.least, int(request.num_computed_tokens))
            request.num_computed_tokens = case.given if self.world.has_states else least
        beyond = self.max_model_len - int(request.num_computed_tokens) + 1
        bare: list[tuple[Any, dict[str, Any], str]] = [(0, {}, "R1"), (-1, {}, "R1"), (beyond, {}, "MAN-2")]
        no_lists: list[tuple[Any, dict[str, Any], str]] = [(1, {"new_computed_pages": [[]]}, "R1")]
        new, options, clause = data.likely(
            [*bare, (1, {"num_new_computed_tokens": self.unit}, "MAN-2")],
            [
                *((wrong, {}, "R1") for wrong in NO_INTS),
                *((1, {"num_lookahead_tokens": wrong}, "R1") for wrong in (-1, *NO_INTS)),
                *((1, {"num_new_computed_tokens": wrong}, "R1") for wrong in (-1, *NO_INTS)),
                (1, {"delay_cache_pages": 1}, "R1"),
                *(no_lists if self.is_exact and not case.live else []),  # none for who holds pages already
            ],
        )
        if (request.num_computed_tokens >= self.max_model_len and new == 1) or not all(map(self.takes, options)):
            return  # that would be two faults, or none
        said = Saying(Ref(name), (("num_computed_tokens", request.num_computed_tokens),))
        call = self.call_of("allocate_slots", MANAGER_REF, request=said, num_new_tokens=new, **options)
        self.call_badly(call, clause, f"{new!r} new tokens, {options}, of at most {self.max_model_len} in all")

    def go_on_badly(self, data: Drawing) -> None:
        """Computed tokens that were never given slots, fell, or are no number; another object under a live id."""
        name = self.some_live(data)
        case = self.cases[name]
        wrong = data.likely([*self.impossible_counts(name), "another object"], [-1, *NO_INTS[:2]])
        if wrong == "another object":
            stranger = self.namesake(name, case.request.extra_keys)
            if self.is_exact:
                self.call_manager("get_computed_pages", request=stranger)
            call = self.call_of("allocate_slots", MANAGER_REF, request=stranger, num_new_tokens=1)
            self.call_badly(call, "MAN-6", f"{name} is live, and another object")
            return
        said = Saying(Ref(name), (("num_computed_tokens", wrong),))
        call = self.call_of("allocate_slots", MANAGER_REF, request=said, num_new_tokens=1)
        why = f"{name} has slots for {case.slots} tokens, of which at least {case.least} were computed"
        self.call_badly(call, "MAN-8", why)

    def hit_badly(self, data: Drawing) -> None:
        """Pages as hits that are not the request's own: others, too few, of another group or pool, null pages."""
        self.turn(data)
        self.spoil_hit(data, self.some_case(data))

    def spoil_hit(self, data: Drawing, name: str) -> None:
        """A request asks for slots behind what it hits, with a fault in it."""
        case = self.cases[name]
        if case.request.num_computed_tokens or not self.world.groups:
            return
        found = self.look_up(name) if not case.live else None
        length = found.spec[1] if found is not None and found.spec[1] else self.unit
        pages = self.lists_found(found) if found is not None else []
        if found is None or not found.spec[1]:
            pages = [self.some_pages(data, group, length) for group in self.world.groups]
        group = data.draw(st.integers(0, len(pages) - 1))
        strange = [] if self.lacks("groups") else ["another manager's page"]  # a manager without groups makes it
        fault = data.one_of(["page", "page", "page", "null", *strange, "short", "group"])
        if not pages[group]:
            fault = "group"  # the hit ends in the first page
        if fault == "short":
            pages[group] = pages[group][1:]
        elif fault == "group":
            pages = [*pages[:group], *pages[group + 1 :]] if data.one_of([True, False]) else [*pages, []]
        else:
            place = data.draw(st.integers(0, len(pages[group]) - 1))
            page = {"page": data.one_of(self.page_numbers()), "null": 0}.get(fault)
            pages[group][place] = StrangePage() if page is None else page
        self.hit_with(name, pages, length)

    def lists_found(self, found: Both) -> list[list[Any]]:
        """The pages that a look-up found, group by group, by their ids."""
        return [list(group) for group in found.spec[0].get_page_ids()]

    def hit_with(self, name: str, pages: list[list[Any]], length: int) -> None:
        """A request asks for a slot behind pages that are handed over as its hits, some of them by their ids."""
        lists = [[Ref("pages", (page,)) if isinstance(page, int) else page for page in held] for held in pages]
        request = Saying(Ref(name), (("num_computed_tokens", self.cases[name].request.num_computed_tokens),))
        hits = {"num_new_computed_tokens": length, "new_computed_pages": Pages(lists)}
        call = self.call_of("allocate_slots", MANAGER_REF, request=request, num_new_tokens=1, **hits)
        self.call_badly(call, "MAN-2", "those pages do not hold the request's prefix")

    def some_pages(self, data: Drawing, group: Group, length: int) -> list[Any]:
        """Some pages in the places of a prefix where a group needs pages."""
        first = group.first_place(length)
        return [
            data.one_of(self.page_numbers()[1:]) if place >= first else 0 for place in range(length // group.page_size)
        ]

    def publish_badly(self, data: Drawing) -> None:
        """Publishes more than the request was given slots for, or for a request that is not live."""
        name = self.some_live(data)
        case = self.cases[name]
        stranger = Prompt((0,), request_id="z")
        numbers = [(Ref(name), wrong, "R1") for wrong in (-1, *NO_INTS)]
        often = [(Ref(name), case.given + 1, "MAN-3"), (stranger, 0, "R1")]
        request, count, clause = data.likely(often, numbers)
        call = self.call_of("cache_pages", MANAGER_REF, request=request, num_computed_tokens=count)
        self.call_badly(call, clause, f"{name} is live and has slots for {case.given} tokens")

    def free_badly(self, data: Drawing) -> None:
        """What was written is a number."""
        name = self.some_case(data)
        wrong = data.one_of([-1, *NO_INTS[:-1]])
        if self.free_takes_written():
            call = self.call_of("free", MANAGER_REF, request=Ref(name), num_written=wrong)
            self.call_badly(call, "R1", "num_written is a number of tokens")

    def count_badly(self, data: Drawing) -> None:
        """Counts common pages for a request that is not live or does not run, or is told no number."""
        name = self.some_live(data)
        stranger = Saying(Prompt((0,), request_id="z"), (("status", EngineRequestStatus.RUNNING),))
        asked, count = data.likely([(stranger, 1)], [(Ref(name), wrong) for wrong in (-1, *NO_INTS)])
        one_fault = asked is stranger or self.cases[name].request.status is EngineRequestStatus.RUNNING
        if not one_fault and not self.is_exact:
            return
        given = {"num_scheduled_requests": count if one_fault else 1}
        call = self.call_of("get_num_common_prefix_pages", MANAGER_REF, request=asked, **given)
        self.call_badly(call, "R1", "no number of requests, or no live request")
