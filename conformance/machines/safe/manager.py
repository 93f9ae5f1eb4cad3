"""The manager machines of level safe: one group of full attention; groups of any kinds."""

from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from ..draws import EXTRA_KEYS, Drawing
from ..groups import MIXED
from ..hash import weak
from ..manager_admission import IDS
from ..properties import start, step
from ..worlds import World, worlds
from .manager_calls import SafeCalls

__all__ = ["SafeAmid", "SafeGroups", "SafeManager"]


_OPTIONS: tuple[dict[str, Any], ...] = ({}, {}, {}, {"hash_function": weak})

_MOST_STEPS = 4

_NOTHING, _SALT, _EMPTY, _ADAPTER, _VERSION, _ITEM, _OTHER, _FURTHER, _TWO, _EMBEDDINGS, _BOTH, _TURNED = EXTRA_KEYS

_ALIKE = (
    *((_NOTHING, _SALT), (_NOTHING, _EMPTY), (_NOTHING, _ADAPTER), (_NOTHING, _VERSION)),
    *((_NOTHING, _ITEM), (_NOTHING, _EMBEDDINGS), (_SALT, _EMPTY), (_SALT, _ADAPTER)),
    *((_ADAPTER, _VERSION), (_ITEM, _EMBEDDINGS), (_ITEM, _OTHER), (_ITEM, _FURTHER)),
    *((_OTHER, _TWO), (_SALT, _BOTH), (_ADAPTER, _BOTH), (_BOTH, _TURNED)),
)
"""Extra keys that are alike but for one thing: one is there or not, its kind, its text, its place; or their order."""

_AMID_KINDS = ("full", "full", "full", "window", "chunk", "mla", "aligned")


class Scenes(SafeCalls):
    """What requests do, as engines do it: they arrive, hit, run, are preempted, come back and finish."""

    def takes_interval(self) -> bool:
        """See `ManagerMachine.takes_interval`: how much is kept is policy (RET-1)."""
        return False

    def can_keep_parts(self) -> bool:
        """See `GroupSteps.can_keep_parts`; this too is policy (RET-4)."""
        return False

    def copies_states(self) -> bool:
        """See `GroupSteps.copies_states`: they are taken with the pages that they are for."""
        return False

    @step()
    def empty(self, data: Drawing) -> None:
        """All requests go: every page is free again, and the next request may take them all."""
        for name in self.names_of(live=True):
            self.finish(name)
        name = self.arrived(data)
        self.admit_with(name, self.cases[name].request.num_tokens, num_lookahead_tokens=self.max_model_len)

    @step(when=lambda self: self.names_of(live=False))
    def look_around(self, data: Drawing) -> None:
        """Looks up a waiting request."""
        self.look_up(data.one_of(self.names_of(live=False)))

    # -- What random calls seldom come upon -------------------------------------------------------------

    def can_come(self) -> bool:
        """Whether there is an id for one more request."""
        return bool(self.unused())

    def unused(self) -> list[str]:
        """The ids that are not live."""
        return [name for name in IDS if name not in self.names_of(live=True)]

    def some_tokens(self, data: Drawing) -> list[int]:
        """The tokens of a prompt of a page or two."""
        tokens = st.lists(st.sampled_from(self.world.alphabet), min_size=self.unit + 1, max_size=2 * self.unit + 1)
        return data.draw(tokens)[: self.max_model_len]

    def take_all(self, data: Drawing, name: str) -> None:
        """A request comes that gets every free page."""
        self.bring(name, self.some_tokens(data))
        most = self.most_tokens()
        if most:
            self.admit_with(name, 1, num_lookahead_tokens=most - 1)

    @step(when=can_come, weight=2)
    def come_again(self, data: Drawing) -> None:
        """A request is served and goes; one with its tokens, and more, hits what it left, nobody coming between."""
        name = data.one_of(self.unused())
        self.arrive_like(data, name)
        tokens = self.cases[name].tokens
        self.admit_with(name, data.draw(st.integers(1, len(tokens))))
        while self.cases[name].live and self.cases[name].given < len(tokens):
            before = self.cases[name].given
            self.continue_with(name, before, len(tokens) - before)
            if self.cases[name].given == before:
                break
        self.finish(name)
        keys = self.cases[name].request.extra_keys
        more = [data.one_of(self.world.alphabet) for _ in range(data.draw(st.integers(0, 2)))]
        other = data.one_of(self.unused())
        self.bring(other, [*tokens, *more][: self.max_model_len], keys)
        self.look_up(other)

    def arrive_like(self, data: Drawing, name: str) -> None:
        """A request comes with tokens of its own, or those of an earlier one."""
        earlier = [case.tokens for case in self.cases.values()]
        tokens = data.one_of([self.some_tokens(data), *earlier])
        self.bring(name, tokens, data.one_of(self.extra_keys))

    @step(when=lambda self: self.cases and self.can_come())
    def begin_in_the_middle(self, data: Drawing) -> None:
        """A request begins like an earlier one goes on after some pages: those pages are not its own."""
        tokens = self.cases[data.one_of(list(self.cases))].tokens
        place = data.draw(st.integers(1, max((len(tokens) - 1) // self.unit, 1))) * self.unit
        name = data.one_of(self.unused())
        self.bring(name, [*tokens[place:], data.one_of(self.world.alphabet)][: self.max_model_len])
        self.look_up(name)

    @step(when=can_come, weight=2)
    def tell_apart(self, data: Drawing) -> None:
        """Two requests have the same tokens and other extra keys: what the one leaves is not the other's."""
        turns, place = divmod(4 * data.draw(st.integers(0, len(EXTRA_KEYS) - 1)) + data.one_of(range(4)), len(_ALIKE))
        keys = _ALIKE[place][:: -1 if turns % 2 else 1]
        ids = self.unused()
        name, tokens = data.one_of(ids), self.some_tokens(data)
        prompt = data.one_of([len(tokens), data.draw(st.integers(1, len(tokens)))])  # the rest is generated
        self.bring(name, tokens[:prompt], keys[0])
        self.admit_with(name, prompt)
        if self.cases[name].live:
            if prompt < len(tokens):
                self.grow(name, tokens[prompt:])
                self.continue_with(name, prompt, len(tokens) - prompt)
            self.finish(name)
        other = data.one_of([known for known in ids if known != name] or ids)
        self.bring(other, tokens, keys[1])
        self.look_up(other)

    @step(when=lambda self: len(self.unused()) > 1, weight=2)
    def outrun(self, data: Drawing) -> None:
        """A request hits what one like it left; another takes all free pages, and then it is admitted with that hit."""
        name, other = self.unused()[:2]
        tokens = self.some_tokens(data)
        self.bring(name, tokens)
        self.admit_with(name, len(tokens))
        self.finish(name)
        self.bring(name, [*tokens, data.one_of(self.world.alphabet)][: self.max_model_len])
        found = self.look_up(name)
        self.take_all(data, other)
        length = found.spec[1]
        self.admit_with(name, self.chunk(data, length, self.cases[name].request.num_tokens), length)

    @step(when=lambda self: len(self.unused()) > 1, weight=2)
    def fork(self, data: Drawing) -> None:
        """A request shares the first pages of one that goes on; then another takes all free pages."""
        name, other = self.unused()[:2]
        live = self.names_of(live=True)
        if live:
            tokens = self.cases[data.one_of(live)].tokens
            tokens = tokens[: data.draw(st.integers(1, len(tokens)))]
        else:
            tokens = self.some_tokens(data)
        self.bring(name, [*tokens, data.one_of(self.world.alphabet)][: self.max_model_len])
        length = self.look_up(name).spec[1]
        self.admit_with(name, self.chunk(data, length, self.cases[name].request.num_tokens), length)
        self.take_all(data, other)

    def can_orphan(self) -> object:
        """Whether the hash of a page can be dropped, and there are ids for two requests."""
        return len(self.unused()) > 1 and self.can_evict()

    @step(when=can_orphan)
    def orphan(self, data: Drawing) -> None:
        """The first page of a prefix is forgotten, what follows it is not; others take the pages, and it comes back."""
        name, other = self.unused()[:2]
        tokens = self.some_tokens(data)
        for taking in (True, False):
            self.bring(name, tokens)
            self.admit_with(name, len(tokens) if taking else min(self.unit, len(tokens)))
            self.finish(name)
            if taking:
                found = self.look_up(name).spec[0]
                first = [page for pages in found.get_page_ids() for page in pages if page][:1]
                if first:
                    self.evict(first)
                self.take_all(data, other)
                self.finish(other)
        self.bring(name, [*tokens, data.one_of(self.world.alphabet)][: self.max_model_len])
        self.look_up(name)


@st.composite
def _worlds_with_units(draw: DrawFn) -> World:
    """A world whose hits may end amid a page: its unit divides every page size."""
    world = draw(worlds(_AMID_KINDS, counts=(1, 1, 2, 2, 3), room=(1, 4), ample=True, eagle=True, options=_OPTIONS))
    return replace(world, options={**world.options, "match_unit": draw(st.sampled_from(world.match_units))})


class SafeManager(Scenes):
    """Few requests over two tokens in a small pool, so that prefixes are shared, duplicated and evicted."""

    name = "safe-manager"
    examples = 120

    @start(world=worlds(["full"], counts=(1,) * 9 + (0,), options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of no or one group, with one hash function or another, perhaps probed after every call."""
        self.build_managers(world)


class SafeGroups(Scenes):
    """One to three groups of any kinds, each with a page size of its own."""

    name = "safe-groups"
    examples = 80
    capability = "groups"
    needs: ClassVar[tuple[str, ...]] = (
        *Scenes.needs,
        *("CacheGroupSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec", "MLAAttentionSpec", "MambaSpec"),
    )
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9"})
    always = Scenes.always | labels | {"MAN-13"}

    @start(world=worlds(MIXED, counts=(1, 2, 2, 3), room=(1, 4), ample=True, eagle=True, options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of some groups."""
        self.build_managers(world)


class SafeAmid(Scenes):
    """One to three groups with a unit: hits may end amid a page, and the first tokens of that page are copied."""

    name = "safe-amid"
    examples = 40
    capability = "groups"
    needs: ClassVar[tuple[str, ...]] = (
        *SafeGroups.needs,
        *("CacheManager(match_unit)", "CacheManager.take_page_copies"),
    )
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9", "MAN-17"})
    always = Scenes.always | labels | {"MAN-13"}

    @start(world=_worlds_with_units())
    def construct(self, world: World) -> None:
        """A manager of some groups with a unit."""
        self.build_managers(world)
