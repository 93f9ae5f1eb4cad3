"""What happens in a life of the soak: its world, and one operation after another, drawn from chance alone."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import lcm
from typing import TYPE_CHECKING, Any, TypeVar

from ..calls.source import Source
from .worlds import Group, World, counted_times

if TYPE_CHECKING:
    from .soak import Soak

_ACTS = ("_tidy", "_forget", "_rank", "_move", "_go", "_mirror", "_return", "_carry", "_come_together", "_go_on")
"""What is done often in some lives, a few of these in each."""

_PAIRS_OF_ACTS = tuple(combinations(_ACTS, 2))
"""What is done often in the lives of one seed in turn, so that each of them meets each other one."""

_NEEDS = {
    "_tidy": "enable_events",
    "_rank": "max_pinned_pages",
    "_move": "num_host_pages",
    "_carry": "num_host_pages",
}
"""The options with which all of an act is possible."""

T = TypeVar("T")

__all__ = ["MOST_CALLS", "STEM", "STEPS", "WORK", "Chance", "Life", "first_token"]

MOST_CALLS = 300
"""The most requests that are live, and the most times that a prefix is ranked in one operation."""

_MOST_LISTED = 2000
_FEW_LIVE = 6
_MOST_PAGES = 4096
_MOST_STEPS = 10_000
STEPS = 120
"""The steps of a life by default, to which its work is measured."""
_SHORT = 16
"""The most tokens of a request in small worlds; few of them are so long."""

_MOST_RANKED = 500
"""Pages of a pool whose policy the specification can follow: it looks at all of them where it takes one."""

_MOST_TOKENS = 400_000
"""The most tokens that requests which come at once share, all of them together: the specification hashes each."""

_EVERYONE = 10_000

STEM = 1_500_000_000
"""Tokens from here on are those that requests share."""

WORK = 100_000
"""The pages that the calls of a life may touch, looks at its whole state included; see `SoakBase.count_work`."""

_GROUPS = (
    *("full", "full", "full", "mla", "window", "full window", "full window", "full chunk"),
    *("full aligned", "full aligned", "window aligned", "full full"),
)

_KEEPING = ("full", "mla", "full full", "full window")
"""Groups whose prefixes are hit however their steps were cut, so that many requests share them."""

_GIVING_BACK = ("window", "chunk", "full window", "full chunk")

_LETTING_GO = ("window", "full window", "full window", "full chunk", "full aligned", "full aligned", "window aligned")
"""Groups of which the last one lets go of pages while a request is live."""

_POLICIES: tuple[dict[str, Any], ...] = (*({},) * 3, *({"eviction": "reuse"}, {"eviction": "adaptive"}) * 2)
"""What chooses the pages that go first."""

_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"max_pinned_pages": 4096, "enable_events": True, "counter_sampling": 1, "num_host_pages": 4096},
    {"max_pinned_pages": 4096, "enable_events": True, "counter_sampling": 1, "num_host_pages": 4096},
    {"max_pinned_pages": 200, "max_pinned_pages_per_salt": 40, "num_host_pages": 300, "enable_events": True},
    {"unhashed_first": True, "max_pinned_pages": 50},
)


_OPTIONS_OF_SHARDS: tuple[dict[str, Any], ...] = (
    {},
    {"placement": "prefix"},
    {"num_host_pages": 300},
    {"placement": "prefix", "num_host_pages": 40},
)

_SHARDED = (False, False, False, True, False)
"""Whether the manager of a life has shards, in the lives of one seed in turn, where what is done often allows it."""


class Chance(Source):
    """Decisions by random numbers that follow from a seed.

    Args:
        seed: the seed.
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(f"soak/{seed}")

    def integer(self, least: int, most: int) -> int:
        """See `Source.integer`."""
        return self._random.randint(least, most)

    def size(self, most: int) -> int:
        """A number from 1 to ``most`` whose logarithm is uniform: as often between 1 and 2 as in the upper half."""
        least = 1 << self.integer(0, most.bit_length() - 1)
        return min(self.integer(least, 2 * least - 1), most)


def first_token(number: int) -> int:
    """The first of a request's own tokens, by its number: below `STEM`, and they come again after 1,500 requests."""
    return number % (STEM // 1_000_000) * 1_000_000


def _dealt(seed: int, number: int, options: Sequence[T]) -> T:
    """One of some options: in the lives of one seed each is chosen once before one is chosen again."""
    order = random.Random(f"soak/{seed}").sample(range(len(options)), len(options))
    return options[order[number % len(options)]]


class Life:
    """One life.

    Args:
        seed: the seed of a check.
        number: the life's number among those of the check.
        most: the most steps of it.
        is_small: whether it is about few pages and short requests of two tokens, which meet all the time.

    Attributes:
        world: what it begins with.
        rows: rows of the tables, and the most requests that are live.
        shards: the number of the manager's shards; 0 for a manager without.
        prompt: the number of tokens that all requests of this life begin with; 0 in most lives.
        length: the number of its steps.
        work: the number of pages that it may touch; it ends earlier where it has touched as many.
    """

    def __init__(self, seed: int, number: int, most: int, *, is_small: bool = False) -> None:
        self._chance = chance = Chance(f"{seed}/{number}")
        self._of_items = Chance(f"{seed}/{number}/items")
        self._shows = self._of_items.integer(0, 2) == 0  # some tokens stand for items, which are part of pages' keys
        self._seed, self._life = seed, number
        self._plans: list[tuple[str, tuple[Any, ...]]] = []
        self._texts: list[list[list[int]]] = []
        self._number = 0
        self._now = 0.0
        self._served = ""  # the request that came just now and is to go on alone, if there is one
        self._often = {*_dealt(seed, number, _PAIRS_OF_ACTS), *chance.some(_ACTS, 1)}
        self._theme = "small" if is_small else _dealt(seed, number, ["many", "long", "any", "decoding"])
        self._commits = self._theme == "long" and chance.one_of([True, False])  # which compiles a program each time
        self._decodes = self._theme == "decoding"  # a few requests, for long, whose windows leave pages behind
        self._serves = is_small and number % 5 < 2  # one request after another, page by page, in a pool without room
        self._steps = is_small and number % 5 > 2  # short prompts, which go on in batched steps and fill pages there
        self._shares = self._theme == "many" and number // 4 % 2 == 0  # whoever comes hits what the first one published
        if is_small:  # always the same number, as tables of each shape are compiled
            self.rows = _FEW_LIVE
        else:
            self.rows = chance.size(_FEW_LIVE) if self._decodes else self._sized("many", MOST_CALLS)
        self.rows = MOST_CALLS if self._shares else self.rows
        self.world = self._small_world() if is_small else self._world()
        is_sharded = self._often.isdisjoint(("_rank", "_carry")) and _dealt(seed, number, _SHARDED)
        self.shards = self._some_shards() if is_sharded else 0
        self.world = self._perhaps_with_unit(replace(self.world, options=counted_times(number) | self.world.options))
        has_prompt = self._theme not in ("many", "small") and chance.integer(0, 1)
        self.prompt = self._large(max(self.world.max_model_len // 2, 1)) if has_prompt else 0
        self.length = min(most // 2 + chance.size(most), _MOST_STEPS)
        self.work = WORK * max(most // STEPS, 1)

    def _world(self) -> World:
        chance = self._chance
        size = chance.one_of([1, 2, 4, 16, 16, 64])
        listed = chance.integer(32, 128) if self._decodes else self._sized("long", _MOST_LISTED)
        kinds = self._kinds().split()
        sizes = [size * chance.one_of([1, 1, 2]) for _ in kinds]
        farthest = 8 if self._decodes else max(listed // 2, 1)
        groups = tuple(
            Group(kind, own, chance.size(own * farthest) if kind in ("window", "chunk") else 1)
            for kind, own in zip(kinds, sizes, strict=True)
        )
        room = max(listed, self.rows) * chance.one_of([2, 4, 4, 8] if self._theme == "many" else [1, 1, 2, 4])
        room *= len(kinds)
        options = {} if self._decodes else self._options()
        if not (self._decodes or self._shares or self._theme == "long"):  # a policy's pool has no room for them
            options |= _dealt(self._seed, self._life, _POLICIES)
        if "eviction" in options:
            listed, room = min(listed, _MOST_RANKED // 8), min(room, _MOST_RANKED)
        if any(group.gives_back for group in groups) and (self._decodes or chance.integer(0, 1)):
            options["retention_interval"] = chance.one_of([None, 4 * max(sizes), 32 * max(sizes)])
        eagle = chance.rarely()
        length = max(listed * size + chance.integer(0, size), 2 * max(sizes) + 2)
        return World(min(max(room, 8), _MOST_PAGES), groups, length, True, eagle, options)

    def _perhaps_with_unit(self, world: World) -> World:
        """A world whose hits may end amid a page, or the same: in each fourth large life, in most small ones."""
        chance, is_small = Chance(f"{self._seed}/{self._life}/units"), self._theme == "small"
        often = 1
        if is_small:  # most often where imports and restores are to be met, which are rare enough
            often = 2 if self._often.isdisjoint(("_carry", "_tidy")) else 3
        if chance.integer(0, 3) >= often:
            return world
        options = world.options | {"match_unit": chance.one_of(world.match_units)}
        roomy = is_small and chance.integer(0, 1)  # room for what windows leave behind
        return replace(world, options=options, num_pages=(3 if roomy else 1) * world.num_pages)

    def _kinds(self) -> str:
        """The kinds of the groups."""
        if self._decodes:
            return self._chance.one_of(_GIVING_BACK)
        if self._shares:
            return self._chance.one_of(_KEEPING)
        return _dealt(self._seed, self._life, _GROUPS)

    def _small_world(self) -> World:
        """A world in which a request holds a few pages, and the pool has room for one or two of them."""
        chance = self._chance
        dealt = _dealt(self._seed, self._life, _GROUPS)
        kinds = (chance.one_of(_LETTING_GO) if self._serves else dealt).split()
        groups = tuple(self._small_group(kind, place == len(kinds)) for place, kind in enumerate(kinds, 1))
        held = sum(2 if self._serves and g.gives_back else -(-_SHORT // g.page_size) for g in groups)
        options = self._options() | _dealt(self._seed, self._life, _POLICIES)
        if self._steps and "_tidy" not in self._often:  # where nobody follows, a backend may publish in another way
            options = {
                name: value for name, value in options.items() if name not in ("enable_events", "counter_sampling")
            }
        if any(group.gives_back for group in groups) and chance.rarely():
            options["retention_interval"] = chance.one_of([None, 4 * lcm(*(group.page_size for group in groups))])
        least, most = (1, 3) if self._serves else (held, 2 * held) if self._steps else (2, held + 2)
        room = chance.integer(least, most)
        return World(held + room, groups, _SHORT, True, chance.rarely(), options)

    def _options(self) -> dict[str, Any]:
        """Some options, of those with which what is done often is possible."""
        needed = {_NEEDS[act] for act in self._often if act in _NEEDS}
        return dict(_dealt(self._seed, self._life, [given for given in _OPTIONS if needed <= given.keys()]))

    def _small_group(self, kind: str, is_last: bool) -> Group:
        """A group with small pages.

        Where requests are served one after another, the last group lets go of a page with each that it fills, and
        pages of the group before are larger, so that hits end at some of its own only (RET-3).
        """
        size = self._chance.integer(1, 3)
        if not self._serves:
            return Group(kind, size, self._chance.integer(1, 6))
        size = 1 if is_last else max(size, 2)
        return Group(kind, size, size + 1)

    def _some_shards(self) -> int:
        """Two or three shards, which share the pages of a large world; options that their managers have."""
        chance, world = self._chance, self.world
        count = chance.integer(2, 3)
        options = {name: value for name, value in world.options.items() if name == "retention_interval"}
        pages = world.num_pages if self._theme == "small" else max(world.num_pages // count, 8)
        self.world = replace(world, num_pages=pages, options=options | chance.one_of(_OPTIONS_OF_SHARDS))
        return count

    def _sized(self, theme: str, most: int) -> int:
        """A number from 1 to ``most``: a large one where this life is about it."""
        if self._theme != theme:
            return self._chance.size(most)
        return self._chance.one_of([most, self._chance.integer(most // 2, most)])

    def _large(self, most: int) -> int:
        """As much as there may be, as a rule."""
        return self._chance.one_of([most, most, self._chance.size(most)])

    def next(self, soak: "Soak") -> tuple[str, tuple[Any, ...]]:
        """The next operation and its arguments; what a life is about comes first."""
        if not self._number:
            (self._arrive_many if self._theme == "many" else self._arrive)(soak)
        while not self._plans:
            if self._served in soak.running():
                self._go_on_alone(soak)
            else:
                self._plan(soak)
        return self._plans.pop(0)

    def _plan(self, soak: "Soak") -> None:
        chance, running = self._chance, soak.running()
        acts = [self._arrive] * 4 + [self._arrive_many] * (1 if len(running) < self.rows else 0)
        acts += [self._come_together] + [self._return] * 2 * bool(soak.waiting())
        if running:
            acts += [self._step] * 8 + [self._go_on] * 3 + [self._go] * 3 + [self._go_many] + [self._mirror]
            acts += [self._decode] * 8 * (self._decodes or self._steps)
            acts += [self._count] * 3 * bool(self.prompt and soak.offers("manager", "get_num_common_prefix_pages"))
        acts += [self._serve] * 12 * self._serves
        if running and self._theme == "small" and "match_unit" in soak.options:
            acts += [self._thin_out] * 6
        acts += [self._tidy, self._forget]
        acts += [self._rank] * 2 if soak.has("pin_prefix") else []
        acts += [self._move] * 3 if soak.has("swap_out") else []
        acts += [self._carry] if soak.receives() else []
        acts += [act for act in acts if act.__name__ in self._often] * 3  # so that these meet
        chance.one_of(acts)(soak)

    def _some(self, names: list[str]) -> str:
        return self._chance.one_of(names)

    # -- Requests -----------------------------------------------------------------------------------------------

    def _text(self) -> list[list[int]]:
        """Ranges of tokens: what others began with, or went on with, and some of its own; see `Soak.come`."""
        chance, most = self._chance, self.world.max_model_len
        if self._theme == "small":
            known = chance.one_of(self._texts) if self._texts else []
            kept = known[: chance.integer(0, len(known))]
            count = chance.size(self.world.unit if self._steps else most)
            return [*kept, *([chance.integer(0, 1), 1, *self._item()] for _ in range(count))]
        item = self._item()
        own = [first_token(self._number), chance.size(max(min(most, 4 * self.world.unit), 1)), *item]
        kind = chance.integer(0, 3)
        if kind == 0:
            return [[own[0], self._large(most), *item]]
        if kind == 1 or not self._texts:
            return [[STEM + chance.integer(0, 2) * 1_000_000, self._large(most)], own]
        known = chance.one_of(self._texts)
        keep: int = self._large(max(sum(part[1] for part in known), 1))
        parts: list[list[int]] = []
        for first, count, *shown in known:
            parts.append([first, min(count, keep), *shown])
            keep -= parts[-1][1]
        return [*(part for part in parts if part[1] > 0), own]

    def _item(self) -> list[int]:
        """The number of an item for which a range of tokens stands, or nothing."""
        return [self._of_items.integer(1, 2)] if self._shows and self._of_items.integer(0, 1) else []

    def _arrive(self, soak: "Soak") -> None:
        del soak
        self._number += 1
        text = self._text()
        self._texts = [*self._texts[-30:], text]
        salts = ["", "a", "b"] if self._steps else ["", "", "", "", "", "a", "b"]
        salt = "" if self.prompt else self._chance.one_of(salts)
        self._plans.append(("come", (self._number, [[STEM, self.prompt], *text] if self.prompt else text, salt)))
        self._admit(f"q{self._number}")

    def _return(self, soak: "Soak") -> None:
        self._admit(self._some(soak.waiting()))

    def _come_together(self, soak: "Soak") -> None:
        """Requests with one prompt, or that begin alike, come in one step; delayed pages are published in any order."""
        del soak
        chance, text, names = self._chance, self._text(), []
        for place in range(chance.integer(2, 3)):
            self._number += 1
            names.append(f"q{self._number}")
            own = [[first_token(self._number), 1]] if place and chance.integer(0, 2) == 0 else []
            prompt = [[STEM, self.prompt]] if self.prompt else []
            self._plans.append(("come", (self._number, [*prompt, *text, *own], "")))
        self._texts = [*self._texts[-30:], text]
        new = 0 if chance.integer(0, 1) else chance.size(self.world.max_model_len)
        delay = bool(chance.integer(0, 1))
        self._plans.append(("together", (names, new, delay)))
        names = chance.some(names, len(names), len(names)) if delay else []
        self._plans += [("publish", (name,)) for name in names]

    def _admit(self, name: str) -> None:
        chance = self._chance
        new = 0 if chance.integer(0, 2) else chance.size(self.world.max_model_len)
        hits = bool(self.prompt) or chance.integer(0, 5) > 0
        self._plans.append(("admit", (name, new, hits, self._ahead(), chance.rarely())))
        if self._theme == "long" and chance.integer(0, 1):  # another leaves a long list somewhere within it
            self._plans.append(("mirror", (name, chance.integer(1, self.world.max_model_len))))

    def _ahead(self) -> int:
        return self._chance.size(64) if self._chance.rarely() else 0

    def _arrive_many(self, soak: "Soak") -> None:
        chance = self._chance
        opens = not self._number  # everyone comes at once, and behind the same prompt
        room = max(self.rows - len(soak.running()), 1)
        count = room if opens else self._large(room)
        shared = self._large(max(self.world.max_model_len // 2, 1)) if opens or chance.integer(0, 2) else 0
        shared = max(min(shared, _MOST_TOKENS // count), self.prompt)
        first = self._number + 1
        self._plans.append(("come_many", (first, count, chance.size(2 * self.world.unit), shared)))
        if soak.offers("manager", "get_num_common_prefix_pages") and chance.integer(0, 1):
            self._plans.append(("count_common", (f"m{first}",)))
        leaves = opens and self._shares and self._life < 8
        if leaves or chance.integer(0, 1 if opens else 2) == 0:
            self._plans.append(("go", (f"m{first}", self.world.max_model_len)))  # who published what all hit
        self._number += count

    # -- Running ------------------------------------------------------------------------------------------------

    def _step(self, soak: "Soak") -> None:
        chance, running = self._chance, soak.running()
        if not soak.offers("manager", "allocate_slots_batch"):
            self._go_on(soak)
            return
        for _ in range(chance.integer(1, 4)):
            count = chance.one_of([_EVERYONE, _EVERYONE, chance.size(len(running))])
            new = chance.one_of([1, 1, 1, chance.size(4 * self.world.unit)])
            mirrored = self._some(running) if chance.integer(0, 3) == 3 else ""
            tabled = bool(chance.integer(0, 1))
            self._plans.append(("step", (count, new, self._ahead(), tabled, chance.rarely(), mirrored)))

    def _decode(self, soak: "Soak") -> None:
        """Everyone goes on by a page at a time, and what was cached before those steps is looked up after them."""
        if soak.offers("manager", "allocate_slots_batch"):
            page = min(group.page_size for group in self.world.groups)
            left = self.world.max_model_len - min(soak.cases[name].given for name in soak.running())
            count = self._chance.size(self._chance.one_of([8, 64]))
            self._plans += [("step", (_EVERYONE, page, 0, False, False))] * min(count, left // page)
        self._mirror(soak)

    def _serve(self, soak: "Soak") -> None:
        """A request comes, as a rule when the others have gone; see `_go_on_alone`."""
        if soak.running() and self._chance.integer(0, 3):
            self._plans.append(("go_many", (_EVERYONE, False)))
        self._arrive(soak)
        self._served = f"q{self._number}"

    def _go_on_alone(self, soak: "Soak") -> None:
        """The request that came goes on by a page at a time, and goes as a rule."""
        chance, name, self._served = self._chance, self._served, ""
        page = min(group.page_size for group in self.world.groups)
        left = self.world.max_model_len - soak.cases[name].given
        self._plans += [("go_on", (name, page, 0, False))] * min(chance.size(_SHORT), left // page)
        if chance.integer(0, 3):
            self._plans.append(("go", (name, None)))

    def _go_on(self, soak: "Soak") -> None:
        chance = self._chance
        name, new = self._some(soak.running()), chance.size(max(self.world.max_model_len // 2, 1))
        self._plans.append(("go_on", (name, new, self._ahead(), chance.rarely())))

    def _mirror(self, soak: "Soak") -> None:
        length = self._chance.integer(1, self.world.max_model_len) if self._chance.integer(0, 1) else 0
        self._plans.append(("mirror", (self._some(soak.running()), length)))

    def _thin_out(self, soak: "Soak") -> None:
        """Some pages, far from each other as a rule, are cached no more; then some prefixes of one text are looked up.

        Where a window begins between them, a hit of it may end before the last of the gaps.
        """
        chance, name = self._chance, self._some(soak.running())
        last = self.world.num_pages - 1
        if soak.offers("pool", "evict_pages"):
            self._plans += [("evict", (chance.integer(1, last), 1)) for _ in range(chance.integer(1, last // 4 + 1))]
        self._plans += [("mirror", (name, chance.integer(1, self.world.max_model_len))) for _ in range(4)]

    def _count(self, soak: "Soak") -> None:
        self._plans.append(("count_common", (self._some(soak.running()),)))

    def _go(self, soak: "Soak") -> None:
        chance = self._chance
        running = soak.running()
        name = chance.one_of([running[0], self._some(running)])  # the oldest published what the others hit
        unwritten = self._large(self.world.max_model_len) if chance.integer(0, 2) == 2 else None
        self._plans.append(("go", (name, unwritten)))

    def _go_many(self, soak: "Soak") -> None:
        self._plans.append(("go_many", (self._chance.size(len(soak.running())), bool(self._chance.integer(0, 1)))))

    def _tidy(self, soak: "Soak") -> None:
        acts: list[tuple[str, tuple[Any, ...]]] = [("commit", ())] if self._commits else []
        is_still = not any(case.flights for case in soak.cases.values())  # host memory is in no snapshot
        acts += [("restore", ())] * (2 * (is_still and soak.offers("manager", "snapshot")))
        acts += [("take_copies", ())] if soak.offers("manager", "take_page_copies") else []
        acts += [("take_events", ())] * 2 if "enable_events" in soak.options else []
        if soak.running() and soak.offers("manager", "cache_pages"):
            acts.append(("publish", (self._some(soak.running()),)))
        self._plans += self._chance.some(acts, 2, 1)

    # -- What is cached -----------------------------------------------------------------------------------------

    def _forget(self, soak: "Soak") -> None:
        chance = self._chance
        if chance.integer(0, 2 if self._theme == "small" else 7) == 0:
            self._plans += [("go_many", (_EVERYONE, False)), *self._letting_go(soak), ("reset", ())]
        elif soak.offers("pool", "evict_pages"):
            first = chance.integer(1, self.world.num_pages - 1)
            self._plans.append(("evict", (first, chance.size(self.world.num_pages // 4 + 1))))

    def _letting_go(self, soak: "Soak") -> list[tuple[str, tuple[Any, ...]]]:
        """What holds pages beside live requests lets go of them, half of the time: else no prefix can be forgotten."""
        if self._chance.integer(0, 1):
            return []
        elsewhere = [name for name, case in soak.cases.items() if case.flights]
        acts: list[tuple[str, tuple[Any, ...]]] = [("go", (name, None)) for name in elsewhere]
        acts += [("fence", (flight,)) for flight in soak.flying()]
        return [*acts, *(("unpin", (pin,)) for pin in sorted(soak.pins))]

    def _rank(self, soak: "Soak") -> None:
        chance = self._chance
        self._now += chance.integer(0, 2)
        acts: list[tuple[str, tuple[Any, ...]]] = [("unpin", (chance.integer(0, 6),)), ("pass_time", (self._now,))]
        if soak.cases:
            name = self._some(list(soak.cases))
            tokens = chance.size(self.world.max_model_len) if chance.integer(0, 1) else None
            expires = self._now + chance.integer(1, 4) if chance.integer(0, 1) else None
            acts += [("pin", (name, tokens))] * 2
            acts += [("rank", (name, chance.one_of([1, 2, -1, 0, 1000]), expires))] * 2
            acts += [("rank_often", (name, chance.integer(-8, 8), chance.size(MOST_CALLS), expires))] * 2
        self._plans.append(chance.one_of(acts))

    def _carry(self, soak: "Soak") -> None:
        """Prefixes are exported and imported, or pages come from elsewhere while other things happen."""
        chance = self._chance
        acts: list[tuple[str, tuple[Any, ...]]] = [("fence", (flight,)) for flight in soak.flying()[:2]]
        if soak.exports():
            acts += [("export_prefix", (self._some(list(soak.cases)),))] if soak.cases else []
            if soak.carried:
                numbers = (len(soak.carried) - 1, 3, 3)
                acts += [("import_prefix", tuple(chance.integer(0, most) for most in numbers))] * 2
        if soak.waiting():
            acts.append(("receive", (self._some(soak.waiting()), chance.size(self.world.max_model_len))))
        if acts:
            self._plans.append(chance.one_of(acts))

    def _move(self, soak: "Soak") -> None:
        acts: list[tuple[str, tuple[Any, ...]]] = [("fence", (flight,)) for flight in soak.flying()[:4]]
        acts += [("swap_out", (self._some(soak.running()),))] * 2 if soak.running() else []
        acts += [("swap_in", (self._some(soak.away()),))] * 2 if soak.away() else []
        if acts:
            self._plans.append(self._chance.one_of(acts))
