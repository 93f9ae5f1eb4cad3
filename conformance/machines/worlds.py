"""The worlds that the manager machines draw: which cache groups, how many pages, which options."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from math import gcd, lcm
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from ..backends.loading import Backend
from ..calls.datum import Holder, smaller
from ..calls.spelling import TOKENS, Spelling
from .base import SPEC
from .draws import token_lists

__all__ = ["ATTENTION", "KINDS", "STATES", "Declared", "Group", "World", "counted_times", "worlds"]

_CLASSES = {
    "full": "FullAttentionSpec",
    "window": "SlidingWindowSpec",
    "chunk": "ChunkedLocalAttentionSpec",
    "mla": "MLAAttentionSpec",
    "state": "MambaSpec",
    "aligned": "MambaSpec",
}
_EXTENTS = {"window": "sliding_window", "chunk": "attention_chunk_size"}

KINDS = tuple(_CLASSES)
"""Every kind of cache group; ``state`` is of mode none, ``aligned`` of mode align."""

ATTENTION = ("full", "window", "chunk", "mla")
"""The kinds that keep something for every token."""

STATES = ("state", "aligned")
"""The kinds that keep a state (MAN-13)."""

_SPELLINGS: tuple[tuple[Spelling, ...], ...] = (TOKENS[:1], TOKENS[:1], (Spelling.LIST,), TOKENS, TOKENS)
"""How engines spell the tokens of their requests: all alike as a rule, and often as a list."""

_MOST_LENGTH = 14
_MOST_FEWER = 16


@dataclass(frozen=True)
class Group:
    """A cache group that was drawn.

    Attributes:
        kind: one of `KINDS`.
        page_size: tokens in a page.
        extent: the window or the chunk, in tokens.
        flagged: whether it is flagged as an Eagle group.
    """

    kind: str
    page_size: int
    extent: int = 1
    flagged: bool = False

    @property
    def keeps_states(self) -> bool:
        """Whether it is a state group."""
        return self.kind in STATES

    @property
    def gives_back(self) -> bool:
        """Whether it gives pages back while a request is live."""
        return self.kind in ("window", "chunk", "aligned")

    def first_place(self, computed: int) -> int:
        """The first place whose page a step that begins after ``computed`` tokens can read (MAN-8)."""
        if self.kind == "window":
            return max(computed - self.extent + 1, 0) // self.page_size
        if self.kind == "chunk":
            return computed // self.extent * self.extent // self.page_size
        if self.kind == "aligned":
            return max(-(-computed // self.page_size) - 1, 0)
        return 0

    def declared(self, number: int, names: Backend, others: Backend, dtype: Any = "float32") -> Any:
        """The declaration of it, with the classes of a backend, or of another where it lacks them.

        Args:
            number: the group's number.
            names: the backend.
            others: the other.
            dtype: what attention stores.
        """
        offered = names.offers("CacheGroupSpec") and names.offers(_CLASSES[self.kind])
        classes = names if offered else others
        if self.keeps_states:
            mode = "align" if self.kind == "aligned" else "none"
            shape: dict[str, Any] = {"shapes": ((2, 2),), "dtypes": ("float32",), "mamba_cache_mode": mode}
        else:
            shape = {"num_kv_heads": 1, "head_size": 8, "dtype": dtype}
            shape |= {_EXTENTS[self.kind]: self.extent} if self.kind in _EXTENTS else {}
        spec = classes.get(_CLASSES[self.kind])(page_size=self.page_size, **shape)
        flag = {"is_eagle_group": True} if self.flagged else {}
        return classes.get("CacheGroupSpec")(spec, (f"layer {number}",), **flag)

    def simpler(self) -> Iterator["Group"]:
        """Groups that are simpler: smaller ones, or without a flag."""
        if self.flagged:
            yield replace(self, flagged=False)
        for name in ("page_size", "extent"):
            less: Iterator[Any] = smaller(getattr(self, name))
            yield from (replace(self, **{name: number}) for number in less if number > 0)

    def __str__(self) -> str:
        more = f", {_EXTENTS[self.kind]}={self.extent}" if self.kind in _EXTENTS else ""
        return f"{self.kind}({self.page_size}{more}{', is_eagle_group' if self.flagged else ''})"


@dataclass(frozen=True)
class Declared:
    """A cache group, as a call is given it.

    Attributes:
        group: the group.
        number: the number of its layer.
        dtype: what attention stores.
    """

    group: Group
    number: int
    dtype: Any = "float32"

    def made_on(self, holder: Holder) -> Any:
        """Its declaration by a side's own classes."""
        return self.group.declared(self.number, holder.names, SPEC, self.dtype)

    def __str__(self) -> str:
        return f"{self.group} of layer {self.number}" + (f", {self.dtype!r}" if self.dtype != "float32" else "")


@dataclass(frozen=True)
class World:
    """What a sequence of calls begins with.

    Attributes:
        num_pages: pages of the pool.
        groups: the cache groups.
        max_model_len: the most tokens of a request.
        caching: whether prefixes are cached and found.
        use_eagle: whether an Eagle draft model runs.
        options: the manager's keywords, as far as a backend knows them.
        alphabet: the tokens of prompts.
        text: tokens of the longest prompt; others begin like it.
        probing: whether every waiting request is looked up after every change, where anything can be found.
        spellings: how the tokens of requests are handed over: each request's in one of these ways.
    """

    num_pages: int
    groups: tuple[Group, ...]
    max_model_len: int
    caching: bool = True
    use_eagle: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    alphabet: tuple[int, int] = (0, 1)
    text: tuple[int, ...] = ()
    probing: bool = False
    spellings: tuple[Spelling, ...] = TOKENS[:1]

    def within(self, names: Backend) -> "World":
        """The same, or what comes next to it that a backend takes.

        A backend that lacks groups takes one of full attention. One that takes some, and not all of them together, says
        so by ``kvproof_takes_groups(groups, use_eagle)``; else it takes the kinds whose declarations it has.
        """
        if "groups" in names.lacks:
            return self.plain()
        own = "kvproof_takes_groups"
        takes = names.get(own) if names.offers(own) else functools.partial(_has_kinds, names)
        known = [replace(group, flagged=False) for group in self.groups]
        known += [replace(group, kind="state") for group in known if group.kind == "aligned"]
        behind_full = [(Group("full", group.page_size), group) for group in known] if len(self.groups) > 1 else []
        nearest = [self.groups, *permutations(known, 2), *behind_full, *((group,) for group in known)]
        for groups, eagle in product(nearest, (self.use_eagle, False)):
            if takes(groups, eagle):
                return replace(self, groups=tuple(groups), use_eagle=eagle)
        return self.plain()

    def plain(self) -> "World":
        """The same with one group of full attention, for a backend that knows no others."""
        size = self.groups[0].page_size if self.groups else 1
        return replace(self, groups=(Group("full", size),), use_eagle=False)

    def without_eagle(self) -> "World":
        """The same for a backend that knows no Eagle: no group is flagged for it."""
        return replace(self, use_eagle=False, groups=tuple(replace(group, flagged=False) for group in self.groups))

    @property
    def flags(self) -> tuple[bool, ...]:
        """What a manager is told by position: whether it caches, and that there is an Eagle model if there is one."""
        return (self.caching, True) if self.use_eagle else (self.caching,)

    @property
    def unit(self) -> int:
        """Tokens of which every hit of whole pages is a multiple."""
        return lcm(*(group.page_size for group in self.groups))

    @property
    def match_units(self) -> list[int]:
        """The units that a manager can be given: the numbers of tokens that divide every page size (MAN-17)."""
        most = gcd(*(group.page_size for group in self.groups))
        return [size for size in range(1, most + 1) if most % size == 0]

    @property
    def has_states(self) -> bool:
        """Whether there is a state group."""
        return any(group.keeps_states for group in self.groups)

    @property
    def gives_back(self) -> bool:
        """Whether there is a group that gives pages back while a request is live."""
        return any(group.gives_back for group in self.groups)

    @property
    def eagle_groups(self) -> list[int]:
        """The groups that must hold the page after a hit (MAN-9)."""
        flagged = [place for place, group in enumerate(self.groups) if group.flagged]
        attention = [place for place, group in enumerate(self.groups) if not group.keeps_states]
        return (flagged or attention) if self.use_eagle else []

    def simpler(self) -> Iterator["World"]:
        """Worlds that a shorter counterexample may do with: with less in them, or smaller."""
        plain: dict[str, Any] = {"probing": False, "use_eagle": False, "options": {}, "text": (), "alphabet": (0, 1)}
        plain["spellings"] = TOKENS[:1]
        for name, value in plain.items():
            if getattr(self, name) != value:
                yield replace(self, **{name: value})
        if len(self.groups) > 1:
            for place in range(len(self.groups)):
                yield replace(self, groups=self.groups[:place] + self.groups[place + 1 :])
        for place, group in enumerate(self.groups):
            for other in group.simpler():
                yield replace(self, groups=(*self.groups[:place], other, *self.groups[place + 1 :]))
        for name in ("num_pages", "max_model_len"):
            fewer: Iterator[Any] = smaller(getattr(self, name))
            yield from (replace(self, **{name: number}) for number in fewer if number > 1)

    def tighter(self) -> Iterator["World"]:
        """Worlds with a few pages fewer."""
        fewest = max(self.num_pages - _MOST_FEWER, 2)
        yield from (replace(self, num_pages=number) for number in range(self.num_pages - 1, fewest - 1, -1))


def _has_kinds(names: Backend, groups: Sequence[Group], _: bool) -> bool:
    """Whether a backend has the declarations of some groups; every manager knows full attention."""
    return all(group.kind == "full" or names.offers(_CLASSES[group.kind]) for group in groups)


def _sizes(count: int, multiples: Sequence[int]) -> list[tuple[int, ...]]:
    """Page sizes of some groups whose common multiple a prompt can reach; equal ones are the simplest."""
    every = sorted(product(range(1, 5), repeat=count), key=lambda sizes: (len(set(sizes)), sizes))
    alike = [sizes for sizes in every if len(set(sizes)) <= 1]
    return alike * 2 + [sizes for most in multiples for sizes in every if lcm(*sizes) <= most]


def counted_times(number: int) -> dict[str, Any]:
    """The option by which the times of pages are counted (MAN-12): of all for an odd number, of some for every fourth.

    No page of a small pool is counted without it, and wrong times show in nothing. A number that a world has anyway
    decides, so that all else is drawn as it would be without.
    """
    return {"counter_sampling": 1} if number % 2 else {"counter_sampling": 3} if number % 4 else {}


@st.composite
def worlds(
    draw: DrawFn,
    kinds: Sequence[str],
    counts: Sequence[int] = (1,),
    room: tuple[int, int] = (0, 2),
    ample: bool = False,
    eagle: bool = False,
    options: Sequence[dict[str, Any]] = ({},),
    lists: tuple[int, int] | None = None,
) -> World:
    """Draws a world: few pages, short requests, windows and chunks smaller and larger than the page.

    Args:
        draw: Hypothesis'.
        kinds: the kinds of the groups, each as often as it is among them.
        counts: numbers of groups, one of them is drawn.
        room: at least and at most how many of the longest requests fit into the pool; it may be a little more.
        ample: whether prompts may be as long as a request can be.
        eagle: whether an Eagle draft model may run.
        options: the manager's keywords, one of them is drawn.
        lists: at least and at most how many pages the longest request has, of one token each; None for few pages.
    """
    use_eagle = eagle and draw(st.booleans())
    count = draw(st.sampled_from(counts))
    sizes = (1,) * count if lists else draw(st.sampled_from(_sizes(count, (2, 4) if use_eagle else (4, 4, 6))))
    groups = []
    for size in sizes:
        kind = draw(st.sampled_from(kinds))
        extent = draw(st.sampled_from([*range(1, size), *range(1, 2 * size + 3)])) if kind in _EXTENTS else 1
        flagged = use_eagle and kind in ATTENTION and draw(st.sampled_from([False, False, True]))
        groups.append(Group(kind, size, extent, flagged))
    unit = lcm(*sizes)
    known = dict(draw(st.sampled_from(options)))
    if any(group.gives_back for group in groups):
        intervals = ({"retention_interval": tokens} for tokens in (unit, 2 * unit, None))
        known = draw(st.sampled_from([{}, {}, *intervals])) | known
    length = draw(st.integers(*(lists or (max(unit + 2, 4), max(min(3 * unit + 3, _MOST_LENGTH), 8)))))
    whole = sum(2 if group.keeps_states else -(-length // group.page_size) for group in groups)
    alphabet = draw(token_lists)
    text = draw(st.tuples(*[st.sampled_from(alphabet)] * (length if ample else 0)))
    cached = draw(st.sampled_from([True] * 11 + [False]))
    serves_hits = cached and all(group.kind != "state" for group in groups)
    num_pages = draw(st.integers(max(room[0] * whole, whole // 2, 2) + 1, max(room[1] * whole, 4) + 2))
    return World(
        num_pages,
        tuple(groups),
        length,
        cached,
        use_eagle,
        counted_times(num_pages) | known,
        alphabet,
        text,
        serves_hits and draw(st.sampled_from([False] * (3 if ample else 1) + [True])),
        draw(st.sampled_from(_SPELLINGS)),
    )
