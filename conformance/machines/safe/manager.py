"""The manager machines of level safe: one group of full attention; groups of any kinds."""

from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import EngineRequestStatus, Request

from ..base import Nothing
from ..draws import Drawing, one_of, rarely
from ..groups import MIXED
from ..hash import weak
from ..operations import operation
from ..properties import start, step
from ..worlds import World, worlds
from .scenes import Scenes

__all__ = ["SafeGroups", "SafeManager"]

_OPTIONS: tuple[dict[str, Any], ...] = ({}, {}, {}, {"hash_function": weak})

_MOST_STEPS = 4


class Serving(Scenes):
    """What requests do, as engines do it: they arrive, hit, run, are preempted, come back and finish."""

    def can_run(self) -> object:
        """Whether a live request can go on, or one can be admitted that then does."""
        return self.unfinished() or self.can_come()

    # -- Requests come ------------------------------------------------------------------------------------

    @step("MAN-1", "HASH-2", "MAN-6", when=Scenes.can_come)
    def arrive(self, data: Drawing) -> None:
        """A request comes, perhaps under the id of one that went, with other tokens or extra keys; it is looked up."""
        name = self.arrived(data)
        if self.cases[name].found is None:
            self.look_up(name)

    @step("MAN-1", "MAN-2", "HASH-2", "MAN-6", when=Scenes.can_come, weight=4)
    def admit(self, data: Drawing) -> None:
        """A waiting request gets slots, with the hits of a fresh look-up, of an old one, some of them, or none."""
        self.admitted(data)

    # -- Requests run -------------------------------------------------------------------------------------

    @step("MAN-1", "MAN-2", "MAN-8", "HASH-2", "MAN-6", when=can_run, weight=3)
    def advance(self, data: Drawing) -> None:
        """A live request computes the next chunk of its prompt, or decodes a token, some drafts rejected."""
        name = one_of(data, self.unfinished()) if self.unfinished() else self.admitted(data)
        if not self.cases[name].live:
            raise Nothing
        self.go_on(data, name)
        self.probe()

    @step("MAN-1", "MAN-2", "MAN-5", "MAN-8", "HASH-2", "MAN-6", when=Scenes.can_come, weight=2)
    def serve(self, data: Drawing) -> None:
        """A request is served from its admission to its end, step by step; one like it hits what it left."""
        name = self.admitted(data)
        case = self.cases[name]
        for _ in range(_MOST_STEPS):
            if not case.live or case.given >= min(case.request.num_tokens, self.max_model_len):
                break
            self.go_on(data, name)
        if case.live:
            self.free_request(name)
            self.leave(name, EngineRequestStatus.FINISHED)
        self.probe()

    @step("MAN-1", "MAN-2", "HASH-2", "MAN-6", when=lambda self: self.takes_pages_late())
    def cache_pages(self, data: Drawing) -> None:
        """Publishes what was delayed; publishing less than before, or again, does nothing."""
        name = self.some_live(data)
        given = self.cases[name].given
        self.publish(name, data.draw(st.integers(0, given)) if rarely(data) else given)
        self.probe()

    @operation
    def publish(self, name: str, count: int) -> None:
        """Publishes a live request's pages up to some tokens; what was delayed has come."""
        case = self.cases[name]
        if not case.live or count > case.given:
            raise Nothing
        self.write(name, count)
        line = f"manager.cache_pages({name}, {count})"
        self.ask(line, "MAN-3", lambda side: side.manager.cache_pages(case.request, count))
        case.published = max(case.published, min(count, case.request.num_tokens))
        self.settle("MAN-3")

    def takes_pages_late(self) -> bool:
        """Whether pages can be published late."""
        return self.offers("manager", "cache_pages") and bool(self.names_of(live=True) or self.can_come())

    @step("MAN-10", when=lambda self: self.running() and self.offers("manager", "get_num_common_prefix_pages"))
    def get_num_common_prefix_pages(self, data: Drawing) -> None:
        """Counts the pages that all running requests share, told the right number of them or a wrong one."""
        running = self.running()
        asked = one_of(data, running)
        count = one_of(data, [len(running)] * 3 + [data.draw(st.integers(0, 4))])
        counts = [0 for _ in self.world.groups]
        for number, group in enumerate(self.world.groups):
            for pages in zip(*(self.lists[name][number] for name in running), strict=False):
                if group.kind not in ("full", "mla") or len(set(pages)) > 1 or count != len(running):
                    break
                counts[number] += 1
        answer = self.ask(
            f"manager.get_num_common_prefix_pages({asked}, {count})",
            "MAN-10",
            lambda side: side.manager.get_num_common_prefix_pages(self.cases[asked].request, count),
            lambda found: list(map(int, found)),
        )
        self.hold("MAN-10", answer == counts, f"{counts}, as {self.lists} are held", f"{answer}")

    # -- Requests go --------------------------------------------------------------------------------------

    @step("MAN-1", "MAN-2", "MAN-4", "MAN-5", "HASH-2", "MAN-6", weight=2)
    def free(self, data: Drawing) -> None:
        """A request finishes, is aborted before its last step, or is preempted; one that went already goes again."""
        gone = self.names_of(live=False)
        name = one_of(data, gone) if gone and rarely(data) else self.some_live(data)
        case = self.cases[name]
        if rarely(data):
            stranger = Request(name, case.tokens)
            line = f"manager.free(<another request {name!r}>)"
            self.ask(line, "MAN-5", lambda side: side.manager.free(stranger), lambda held: held or [])
            self.unchanged("MAN-5", "another object with that id is not that request")
        aborted = one_of(data, [True, False]) and self.free_takes_written()
        least = self.reached.get(name, 0)
        written = data.draw(st.integers(least, max(case.given, least))) if aborted else None
        self.free_request(name, written)
        after = one_of(data, ["preempted", "finished", "finished, keys dropped"])
        preempted = after == "preempted"
        self.leave(name, EngineRequestStatus.PREEMPTED if preempted else EngineRequestStatus.FINISHED)
        if after.endswith("dropped") and self.offers("manager", "free_page_hashes"):
            line = f"manager.free_page_hashes({name})"
            self.ask(line, "MAN-6", lambda side: side.manager.free_page_hashes(case.request))
            self.unchanged("MAN-6", "dropped keys change nothing else")
        self.probe()

    @step("MAN-1", "MAN-2", "MAN-5", "HASH-2", "MAN-6")
    def empty(self, data: Drawing) -> None:
        """All requests go: every page is free again, and the next request may take them all."""
        for name in self.names_of(live=True):
            self.free_request(name)
            self.leave(name, EngineRequestStatus.FINISHED)
        name = self.arrived(data)
        self.admit_with(name, self.cases[name].request.num_tokens, num_lookahead_tokens=self.max_model_len)

    @step("POOL-9", "POOL-11", "MAN-1", "MAN-5", "HASH-2", "MAN-6")
    def forget(self, data: Drawing) -> None:
        """Forgets every cached prefix while no page is in use; or evicts some pages, held or free."""
        acts: list[str] = ["reset"] * 2 if self.offers("manager", "reset_prefix_cache") else []
        acts += ["evict"] if self.backend.pages and self.offers("pool", "evict_pages") else []
        if not acts:
            raise Nothing
        if one_of(data, acts) == "evict":
            self.evict(data.draw(st.lists(st.sampled_from(sorted(self.backend.pages)), min_size=1, max_size=2)))
        else:
            if bool(self.names_of(live=True)) and one_of(data, [True, False, False]):
                for name in self.names_of(live=True):
                    self.free_request(name)
                    self.leave(name)
            self.reset()
        self.probe()

    @operation
    def reset(self) -> None:
        """Forgets everything, if no page is held."""
        idle = self.num_free == self.world.num_pages - 1
        done = self.ask("manager.reset_prefix_cache()", "POOL-9", lambda side: side.manager.reset_prefix_cache(), bool)
        self.hold("POOL-9", done == idle, f"{idle}, as {self.lists} are held", f"{done}")
        if not done:
            self.unchanged("POOL-9", "a reset that did nothing")
            return
        self.ghost.contents.clear()
        self.kept.clear()
        self.settle("POOL-9")
        if self.resident is not None:
            self.hold("POOL-9", not self.resident, "no cached page", f"cached pages {self.resident}")
        for name in self.names_of(live=False):
            self.look_up(name)

    @step("MAN-1", "HASH-2", "MAN-6", when=lambda self: self.names_of(live=False))
    def look_around(self, data: Drawing) -> None:
        """Looks up a waiting request."""
        self.look_up(one_of(data, self.names_of(live=False)))


class SafeManager(Serving):
    """Few requests over two tokens in a small pool, so that prefixes are shared, duplicated and evicted."""

    name = "safe-manager"
    examples = 120

    @start("MAN-2", world=worlds(["full"], counts=(1,) * 9 + (0,), options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of no or one group, with one hash function or another, perhaps probed after every call."""
        self.build_managers(world)


class SafeGroups(Serving):
    """One to three groups of any kinds, each with a page size of its own."""

    name = "safe-groups"
    examples = 80
    capability = "groups"
    needs: ClassVar[tuple[str, ...]] = (
        *Serving.needs,
        *("CacheGroupSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec", "MLAAttentionSpec", "MambaSpec"),
    )
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9"})
    always = Serving.always | labels | {"MAN-13"}

    @start("MAN-2", world=worlds(MIXED, counts=(1, 2, 2, 3), room=(1, 4), ample=True, eagle=True, options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of some groups."""
        self.build_managers(world)

    @step("MAN-1", "MAN-2", "MAN-8", "HASH-2", "MAN-6", when=lambda self: self.unfinished(), weight=2)
    def starve(self, data: Drawing) -> None:
        """Others take what is free: what a request gives back does not suffice for what it asks for, or just so."""
        name = one_of(data, self.unfinished())
        if self.can_come():
            self.take_all(data, self.unused()[0])
        computed, new = self.next_chunk(data, name)
        if not new:
            raise Nothing
        self.continue_with(name, computed, new, num_lookahead_tokens=one_of(data, [0, 1, self.max_model_len]))
        self.probe()

    @step("MAN-1", "MAN-2", "MAN-5", "HASH-2", "MAN-6", when=lambda self: self.can_come() and self.world.groups)
    def come_late(self, data: Drawing) -> None:
        """What a request's pages hold comes in later steps, when some were given back: only then is it published."""
        name = self.unused()[0]
        tokens = [*self.world.text, *self.some_tokens(data)][: self.max_model_len]
        self.bring(name, tokens)
        self.admit_with(name, min(self.unit, len(tokens)), delay_cache_pages=True)
        case = self.cases[name]
        while case.live and case.given < len(tokens):
            before = case.given
            self.continue_with(name, before, min(self.unit, len(tokens) - before), delay_cache_pages=True)
            if case.given == before:
                break
        if case.live:
            if self.offers("manager", "cache_pages"):
                self.publish(name, case.given)
            self.free_request(name)
            self.leave(name, EngineRequestStatus.FINISHED)
        shorter = tokens[: data.draw(st.integers(1, len(tokens)))]
        self.bring(name, [*shorter, one_of(data, self.world.alphabet)][: self.max_model_len])
        self.look_up(name)
