"""The steps of all manager machines: requests arrive, hit, run, are preempted, resumed and freed, as engines do it."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from kvproof.spec.declarations import EngineRequestStatus

from ..calls.datum import Call, Ref
from .base import Both, Nothing
from .draws import Drawing
from .manager_base import MANAGER_REF, POOL_REF
from .manager_faults import ManagerFaults
from .properties import step

__all__ = ["ManagerSteps"]


class ManagerSteps(ManagerFaults):
    """What requests do, whatever the groups."""

    # -- The end of a sequence of calls ---------------------------------------------------------------------

    def wind_up(self) -> None:
        """See `Machine.wind_up`: all requests go, in every other sequence before their tokens were written.

        Those that come again are handed pages of other prompts. Then every prefix is forgotten.
        """
        written = 0 if self.session.examples % 2 and self.free_takes_written() else None
        for name in self.names_of(live=True):
            self.free_request(name, written)
        for name in self.names_of(live=False):
            self.hit_siblings(name)
        self.reset()

    # -- Requests come ------------------------------------------------------------------------------------

    @step(when=lambda self: self.unused())
    def arrive(self, data: Drawing) -> None:
        """A request comes, perhaps under the id of one that went, with other tokens or extra keys; it is looked up."""
        self.arrived(data)

    @step("MAN-3", when=lambda self: self.unused(), weight=3)
    def admit(self, data: Drawing) -> None:
        """A waiting request gets slots, with the hits of a fresh look-up, of an old one, some of them, or none."""
        self.admitted(data)

    def can_part(self) -> bool:
        """Whether there are ids and tokens enough for three prompts of two pages."""
        return bool(self.world.groups) and len(self.unused()) >= 3 and 2 * self.unit < self.max_model_len

    @step("MAN-3", "MAN-5", when=can_part)
    def part_ways(self, data: Drawing) -> None:
        """Two prompts differ in their first page: what the one goes on with is not the other's, though alike."""
        one, other = data.one_of([self.world.alphabet, self.world.alphabet[::-1]])
        size = self.unit
        rest = data.draw(st.lists(st.sampled_from(self.world.alphabet), min_size=size, max_size=size))
        first, second, third = self.unused()[:3]
        for name, tokens in ((first, [*[one] * size, *rest, one]), (second, [*[other] * size, one])):
            self.bring(name, tokens)
            self.admit_with(name, len(tokens))
            if self.cases[name].live:
                self.free_request(name, None)
        self.bring(third, [*[other] * size, *rest, one])
        self.look_up(third)

    @step("HIT-1", "MAN-3", "MAN-5", when=lambda self: self.unused())
    def come_again(self, data: Drawing) -> None:
        """A request is served at once and goes; its tokens and one more hit what it left, nobody coming between."""
        name = self.arrived(data)
        self.admit_with(name, self.cases[name].request.num_tokens)
        if not self.cases[name].live:
            raise Nothing  # there was no room for it
        self.free_request(name, None)
        case = self.cases[name]
        self.bring(
            name, [*case.tokens, data.one_of(self.world.alphabet)][: self.max_model_len], case.request.extra_keys
        )
        self.hit_again(name)

    def hit_again(self, name: str) -> None:
        """Looks up a request that comes again: it hits as many tokens as the specification finds."""
        call = self.call_of("get_computed_pages", MANAGER_REF, request=Ref(name))
        self.make_call(replace(call, about="HIT-1"))

    @step("MAN-3", "MAN-5", when=can_part)
    def cache_again(self, data: Drawing) -> None:
        """What a look-up found goes to another, and is cached again by whose it was: what counts is what it holds."""
        rest = data.draw(st.lists(st.sampled_from(self.world.alphabet), min_size=1, max_size=self.unit))
        tokens = [*[data.one_of(self.world.alphabet)] * self.unit, *rest]
        first, second, third = self.unused()[:3]
        self.bring(first, tokens)
        self.bring(second, tokens)
        self.bring(third, tokens[::-1])
        most = self.max_model_len - len(tokens)
        for turn, name in enumerate((first, third, first)):
            self.admit_with(name, len(tokens), num_lookahead_tokens=most if name == third else 0)
            if self.cases[name].live:
                self.free_request(name, None)
            if not turn:
                self.look_up(second)
        found = self.cases[second].found
        hits = found.spec[1] if found is not None else 0
        self.admit_with(second, len(tokens) - hits, hits)

    # -- Requests run ---------------------------------------------------------------------------------------

    def unfinished_any(self) -> bool:
        """Whether a live request can go on."""
        return bool(self.unfinished())

    @step("MAN-3", "MAN-8", when=lambda self: self.unfinished() or self.unused(), weight=2)
    def advance(self, data: Drawing) -> None:
        """A live request computes the next chunk of its prompt, or decodes a token, some drafts rejected."""
        name = data.one_of(self.unfinished()) if self.unfinished() else self.admitted(data)
        if not self.cases[name].live:
            raise Nothing
        self.go_on(data, name)
        self.probe()

    def go_on(self, data: Drawing, name: str) -> None:
        """See `Admission.go_on`: what is beyond the tokens that were promised is not published, slots or not."""
        super().go_on(data, name)
        case = self.cases[name]
        if self.is_exact and case.live and case.slots > case.given and self.offers("manager", "cache_pages"):
            self.call_badly(
                self.call_of("cache_pages", MANAGER_REF, request=Ref(name), num_computed_tokens=case.given + 1)
            )

    @step("MAN-3", "MAN-8", when=lambda self: self.world.groups and self.unused())
    def generate(self, data: Drawing) -> None:
        """A request comes, has its prompt computed, and generates a page of tokens."""
        name = self.arrived(data)
        request = self.cases[name].request
        self.admit_with(name, request.num_tokens)
        room = self.max_model_len - request.num_tokens
        if not self.cases[name].live or room < 1:
            return
        computed, new = request.num_tokens, min(self.unit, room)
        self.grow(name, [data.one_of(self.world.alphabet)] * new)
        self.continue_with(name, computed, new)
        self.probe()

    @step("MAN-3", "MAN-8", when=unfinished_any)
    def ask_again(self, data: Drawing) -> None:
        """A live request asks for all that it can, and where that does not fit for what comes next."""
        name = data.one_of(self.unfinished())
        computed, new = self.next_chunk(data, name)
        if not new:
            raise Nothing
        most = self.max_model_len - computed
        self.continue_with(name, computed, most)
        if self.cases[name].given < computed + most:
            self.continue_with(name, computed, new)

    @step("MAN-3", when=lambda self: self.offers("manager", "cache_pages"))
    def cache_pages(self, data: Drawing) -> None:
        """Publishes what was delayed; publishing less than before, or again, does nothing."""
        name = self.some_live(data)
        given = self.cases[name].given
        self.publish(name, data.draw(st.integers(0, given)) if data.rarely() else given)
        self.probe()

    def publish(self, name: str, count: int) -> None:
        """Publishes the full pages of a live request's first tokens."""
        self.call_manager("cache_pages", request=Ref(name), num_computed_tokens=count)

    def note_cache_pages(self, name: str, call: Call, _: Both) -> None:
        """Notes that tokens are written: drafts may have been accepted."""
        self.write(name, call.arguments["num_computed_tokens"])

    @step("MAN-3", "MAN-10", when=lambda self: self.offers("manager", "get_num_common_prefix_pages"))
    def get_num_common_prefix_pages(self, data: Drawing) -> None:
        """Counts the pages that all running requests share, told the right number of them or a wrong one."""
        name = self.some_live(data)
        status = data.one_of([EngineRequestStatus.RUNNING] * 3 + [EngineRequestStatus.PREEMPTED])
        if status is not self.cases[name].request.status:
            self.set_status(name, status)
        running = self.running()
        if not running:
            return
        asked = data.one_of(running)
        right = self.num_running(asked)
        self.count_common(asked, data.one_of([right, right, right, data.draw(st.integers(0, 4))]))

    def set_status(self, name: str, status: EngineRequestStatus) -> None:
        """The engine sets a request's status."""
        self.make_call(self.call_of("status", Ref(name), value=status))

    def count_common(self, asked: str, count: int) -> None:
        """Counts the pages that all running requests share, told how many run."""
        self.call_manager("get_num_common_prefix_pages", request=Ref(asked), num_scheduled_requests=count)

    # -- Requests go ----------------------------------------------------------------------------------------

    @step("MAN-3", "MAN-4", "MAN-5", weight=2)
    def free(self, data: Drawing) -> None:
        """A request finishes, is aborted before its last step, or is preempted; one that went already goes again."""
        gone = self.names_of(live=False)
        name = data.one_of(gone) if gone and data.rarely() else self.some_live(data)
        if data.rarely():
            self.free_a_namesake(name)
        case = self.cases[name]
        written = data.draw(st.integers(0, case.given)) if data.one_of([True, False]) else None
        if not self.free_takes_written():
            written = None
        after = data.one_of(["preempted", "finished", "finished, keys dropped"])
        self.free_request(name, written)
        case.request.status = EngineRequestStatus.PREEMPTED if after == "preempted" else EngineRequestStatus.FINISHED
        if after == "finished, keys dropped":
            self.drop_keys(name)
        if data.rarely() and not self.cases[name].live:
            self.admitted(data)  # whoever has the pages by then
            if not self.cases[name].live:
                self.free_request(name, None)
        self.probe()

    @step("POOL-9", "POOL-11", "MAN-3", "MAN-8")
    def forget(self, data: Drawing) -> None:
        """Forgets every cached prefix while no page is in use; or evicts some pages, held or free."""
        self.turn(data)
        if data.one_of([True, False]) or not self.can_evict():
            self.reset()
        else:
            self.forget_some(data)
        self.probe()

    def forget_some(self, data: Drawing) -> None:
        """Evicts some pages, as a rule cached ones; then a live request goes on, or one is looked up."""
        page = data.likely(self.cached_pages() or [0], self.page_numbers())
        self.evict([page, *([data.one_of(self.page_numbers())] if data.rarely() else [])])
        goes_on: bool = data.one_of([True, False])
        if self.unfinished() and goes_on:
            self.go_on(data, data.one_of(self.unfinished()))
        elif self.sought():
            self.look_up(data.one_of(self.sought()))

    def can_evict(self) -> bool:
        """Whether the hashes of pages can be dropped."""
        return self.offers("pool", "evict_pages")

    def sought(self) -> list[str]:
        """The requests that may be looked up, waiting or live."""
        return list(self.cases)

    def reset(self) -> None:
        """Forgets every cached prefix."""
        self.call_manager("reset_prefix_cache")

    def evict(self, pages: list[int]) -> None:
        """Drops the hashes of some pages."""
        self.make_call(self.call_of("evict_pages", POOL_REF, page_ids=pages))

    # -- Looking --------------------------------------------------------------------------------------------

    @step("HASH-3", when=lambda self: self.cases)
    def look_around(self, data: Drawing) -> None:
        """Looks up a request, waiting or live; adds what look-ups found; reads the requests' keys."""
        acts: list[Callable[[Drawing], None]] = [self.look_up_any]
        acts += [] if self.lacks("views") else [self.add_pages]
        if hasattr(self.spec.manager, "req_to_page_hashes") and not self.lacks("keys"):
            acts += [self.read_keys] if self.offers("manager", "req_to_page_hashes") else []
        data.one_of(acts)(data)

    def look_up_any(self, data: Drawing) -> None:
        """Looks up a request, waiting or live."""
        self.look_up(data.one_of(list(self.cases)))

    def read_keys(self, _: Drawing) -> None:
        """The keys of the full pages of every request looked up or admitted, as far as its tokens go."""
        self.call_manager("req_to_page_hashes")

    def add_pages(self, data: Drawing) -> None:
        """Adds what look-ups found, group by group, and lists what of it has no hash."""
        found = []
        for _ in range(2):
            name = data.one_of(list(self.cases))
            self.look_up(name)
            found.append(Ref(self.cases[name].found_by, (0,)))
        both = self.call_of("__add__", found[0], other=found[1])
        self.make_call(both)
        for method in ("new_empty", "get_page_ids", "get_unhashed_page_ids"):
            self.make_call(self.call_of(method, Ref(both.number)))
