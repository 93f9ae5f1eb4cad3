"""The manager machines: one group of full attention or none, each other kind of group alone, and several together."""

from typing import Any, ClassVar

from hypothesis import strategies as st

from .draws import Drawing
from .hash import weak
from .manager_base import ManagerMachine
from .manager_steps import ManagerSteps
from .properties import start, step
from .worlds import KINDS, STATES, Group, World, worlds

__all__ = ["MIXED", "Chunk", "GroupSteps", "Hybrid", "Latent", "Manager", "State", "Window"]


MIXED = ("full", "window", "chunk", "full", "window", "chunk", "aligned", "aligned", "mla") * 4 + ("state",)
"""The kinds of groups that are mixed: a state of mode none is seldom among them, as nothing is hit then."""

_OPTIONS: tuple[dict[str, Any], ...] = (
    *({}, {}, {}, {}, {"unhashed_first": True}, {"hash_function": weak}),
    {"eviction": "adaptive"},
)

_MOST_STEPS = 4


class GroupSteps(ManagerSteps):
    """What requests do with groups of any kind: beside the rest, states go on from copies."""

    needs: ClassVar[tuple[str, ...]] = (*ManagerMachine.needs, "CacheGroupSpec")

    def givers(self) -> list[str]:
        """The live requests that will give pages back when they go on, and may need new ones."""
        return [
            name
            for name in self.unfinished()
            if self.cases[name].slots < self.max_model_len
            and self.giving_back(name, min(self.cases[name].given, self.cases[name].request.num_tokens))
        ]

    @step("MAN-3", "MAN-8", when=givers, weight=3)
    def starve(self, data: Drawing) -> None:
        """Others take what is free: what a request gives back does not suffice for what it asks for, or just so."""
        name = data.one_of(self.givers())
        for _ in range(2):
            tokens = self.most_tokens()
            if tokens and self.unused():
                self.admit_with(self.arrived(data), 1, num_lookahead_tokens=tokens - 1)
        computed, new = self.next_chunk(data, name)
        self.continue_with(name, computed, new, num_lookahead_tokens=data.one_of([0, 1, self.max_model_len]))
        self.probe()

    @step("MAN-3", "MAN-5", when=lambda self: len(self.unused()) > 1, weight=2)
    def crowd(self, data: Drawing) -> None:
        """What one request left in the cache is all that another leaves free: the first one hits it and needs more."""
        name = self.arrived(data)
        before = self.num_free
        self.admit_with(name, self.cases[name].request.num_tokens)
        left = before - self.num_free
        if not self.cases[name].live:
            return  # there was no room for it
        self.free_request(name, None)
        other = next(unused for unused in self.unused() if unused != name)
        tokens = self.most_tokens(left)
        if tokens:
            self.bring(other, [data.one_of(self.world.alphabet)])
            self.admit_with(other, 1, num_lookahead_tokens=tokens - 1)
        hits = self.look_up(name).spec[1]
        self.admit_with(name, self.cases[name].request.num_tokens - hits, hits, **self.extras(data))
        self.probe()

    def can_publish_late(self) -> bool:
        """Whether pages can be given back before they are published."""
        takes = self.takes("delay_cache_pages") and self.offers("manager", "cache_pages")
        return takes and self.world.gives_back and bool(self.unused())

    @step("MAN-3", "MAN-5", "MAN-8", when=can_publish_late, weight=2)
    def publish_late(self, data: Drawing) -> None:
        """A request publishes only when it has given pages back; what it published is looked up."""
        name = self.arrived(data)
        case = self.cases[name]
        self.admit_with(name, min(self.unit, case.request.num_tokens), delay_cache_pages=True)
        for _ in range(_MOST_STEPS):
            if not case.live or case.given >= min(case.request.num_tokens, self.max_model_len):
                break
            computed, new = self.next_chunk(data, name)
            if new:
                self.continue_with(name, computed, new, delay_cache_pages=True)
        if not case.live:
            return  # there was no room for it
        self.publish(name, case.given)
        waiting = self.unused()
        if waiting:
            tokens = case.tokens[: data.draw(st.integers(1, len(case.tokens)))]
            self.bring(waiting[0], [*tokens, self.world.alphabet[0]][: self.max_model_len])
            self.look_up(waiting[0])

    def most_tokens(self, left: int = 0) -> int:
        """How many tokens of a request the free pages suffice for, ``left`` of them being left."""
        free = self.num_free - left
        for tokens in range(self.max_model_len, 0, -1):
            needed = (1 if group.keeps_states else -(-tokens // group.page_size) for group in self.world.groups)
            if sum(needed) <= free:
                return tokens
        return 0

    def copies_states(self) -> bool:
        """Whether pages are copied, and the backend says how: one may copy them in its steps, unasked."""
        copies = any(group.kind == "aligned" for group in self.world.groups) or bool(self.amid)
        return copies and self.offers("manager", "take_page_copies")

    @step("MAN-3", "MAN-5", "MAN-8", when=lambda self: self.unused(), weight=4)
    def serve(self, data: Drawing) -> None:
        """A request is served from its admission to its end, step by step, while others wait or run."""
        name = self.admitted(data)
        case = self.cases[name]
        for _ in range(_MOST_STEPS):
            if not case.live or case.given >= min(case.request.num_tokens, self.max_model_len):
                break
            self.go_on(data, name)
        if case.live and data.one_of([True, True, False]):
            self.free_request(name, None)
        self.probe()

    def can_keep_parts(self) -> bool:
        """Whether a hit needs only part of a prefix in some group, and there is an id for one more request."""
        return self.caching and self.world.gives_back and bool(self.unused())

    @step("MAN-3", "MAN-5", "RET-3", "RET-4", when=lambda self: self.can_keep_parts(), weight=3)
    def come_one_by_one(self, data: Drawing) -> None:
        """Prompts that begin alike are served one by one, steps ending where they part: later ones hit up to there."""
        tokens = st.sampled_from(self.world.alphabet)
        most = min(self.max_model_len, 3 * self.unit + 2)
        stem = data.draw(st.lists(tokens, min_size=1, max_size=most - 1))
        for rest in data.draw(st.lists(st.lists(tokens, max_size=self.unit + 1), min_size=2, max_size=4)):
            names = self.unused()
            if names:
                self.bring(names[0], [*stem, *rest, *stem[:1]][:most])
                self.look_up(names[0])
                self.serve_between(names[0], self.spec.manager.get_junction(self.cases[names[0]].request))
        self.probe()

    def serve_between(self, name: str, junction: int) -> None:
        """Serves a request that was looked up to its end, steps ending at a junction and at the last whole page."""
        case = self.cases[name]
        end, hits = case.request.num_tokens, case.found.spec[1] if case.found else 0
        stops = sorted({stop for stop in (junction, (end - 1) // self.unit * self.unit, end) if stop > hits})
        self.admit_with(name, stops[0] - hits, hits or None)
        for stop in stops[1:]:
            if case.live and case.given < stop:
                self.continue_with(name, case.given, stop - case.given)
        if case.live:
            self.free_request(name, None)
            self.compared("RET-3")  # what lost its hash, and where in the queue the rest went
            self.compared("RET-4")

    @step("RET-1", when=lambda self: bool(self.world.groups) and self.takes_interval())
    def keep_badly(self, data: Drawing) -> None:
        """An interval is None or a multiple of every page size, 0 among them."""
        size = max(group.page_size for group in self.world.groups)
        interval = data.one_of([-1, *([size + 1, 2 * size - 1] if size > 1 else [])])
        self.construct_one(enumerate(self.world.groups), retention_interval=interval)

    @step("MAN-13", when=lambda self: self.copies_states())
    def take_page_copies(self, data: Drawing) -> None:
        """The copies to be run before the step, those of requests that were freed meanwhile left out."""
        del data
        self.take_all_copies()

    def take_all_copies(self) -> None:
        """Takes the copies that are to be run."""
        self.call_manager("take_page_copies")


class Window(GroupSteps):
    """A sliding window, of one page or several, or a part of one."""

    name = "window"
    capability = "groups"
    examples = 32
    needs = (*GroupSteps.needs, "SlidingWindowSpec")
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9"})
    always = GroupSteps.always | labels

    @start(world=worlds(["window"], room=(1, 3), ample=True, eagle=True, options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of one sliding-window group."""
        self.build_managers(world)


class Chunk(GroupSteps):
    """Chunked local attention, the chunk no multiple of the page or the other way round."""

    name = "chunk"
    capability = "groups"
    examples = 42
    needs = (*GroupSteps.needs, "ChunkedLocalAttentionSpec")
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9"})
    always = GroupSteps.always | labels

    @start(world=worlds(["chunk"], room=(1, 3), ample=True, eagle=True, options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of one group of chunked local attention."""
        self.build_managers(world)


class Latent(GroupSteps):
    """Multi-head latent attention: like full attention."""

    name = "mla"
    capability = "groups"
    examples = 10
    needs = (*GroupSteps.needs, "MLAAttentionSpec")
    labels = frozenset({"MAN-7", "MAN-9"})
    always = GroupSteps.always | labels

    @start(world=worlds(["mla"], room=(1, 3), ample=True, eagle=True, options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of one group of latent attention."""
        self.build_managers(world)


class State(GroupSteps):
    """One state a request, or states at page boundaries that are kept and copied."""

    name = "state"
    capability = "groups"
    examples = 36
    needs = (*GroupSteps.needs, "MambaSpec")
    labels = frozenset({"MAN-7"})
    always = GroupSteps.always | labels | {"MAN-13"}

    @start(world=worlds(["state", "aligned", "aligned", "aligned"], room=(1, 3), ample=True, options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of one state group, of either mode."""
        self.build_managers(world)


class Hybrid(GroupSteps):
    """Two or three groups of any kinds, each with a page size of its own."""

    name = "hybrid"
    capability = "groups"
    examples = 60
    needs = (*GroupSteps.needs, "SlidingWindowSpec", "ChunkedLocalAttentionSpec", "MLAAttentionSpec", "MambaSpec")
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9"})
    always = GroupSteps.always | labels | {"MAN-13"}

    @start(world=worlds(MIXED, counts=(2, 2, 3), room=(1, 4), ample=True, eagle=True, options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of several groups."""
        self.build_managers(world)

    @step(when=lambda self: self.cases)
    def declare_badly(self, data: Drawing) -> None:
        """Groups with a size, a window or a chunk that is none, a layer in two groups, an Eagle group of states."""
        wrong: Any = data.one_of([0, -1, True, 1.5])
        kind = data.one_of(KINDS)
        numbered: list[tuple[int, Any]] = data.one_of(
            [
                [(0, Group("full", 2)), (1, Group(kind, wrong))],
                [(0, Group("full", 2)), (1, Group(data.one_of(["window", "chunk"]), 2, wrong))],
                [(0, Group("full", 2)), (0, Group(kind, 2))],
                [(0, Group("full", 2)), (1, Group(data.one_of(STATES), 2, flagged=True))],
                [(0, Group("full", 2)), (1, "group")],
            ],
        )
        self.construct_one(numbered, enable_caching=True, use_eagle=True)


_OF_ONE: tuple[dict[str, Any], ...] = (
    *({}, {}, {}, {"unhashed_first": True}, {"hash_function": weak}),
    *({"eviction": "reuse"}, {"eviction": "adaptive"}),
)


class Manager(ManagerSteps):
    """Few requests over two tokens in a small pool, so that prefixes are shared, duplicated and evicted."""

    name = "manager"
    examples = 120

    @start(world=worlds(["full"], counts=(1,) * 9 + (0,), options=_OF_ONE))
    def construct(self, world: World) -> None:
        """A manager of no or one group, with one hash function or another, perhaps probed after every call."""
        self.build_managers(world)
