"""POOL-7, POOL-8, MAN-1, MAN-2, R2: fast's index of cached pages against a dict of whole prefixes."""

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from kvproof.fast.index.prefix_index import PrefixIndex
from kvproof.fast.index.runs import Run, RunTree
from kvproof.fast.reading.extra_keys import ExtraSegment, extra_segments
from kvproof.fast.reading.tokens import token_view
from kvproof.spec.declarations import CacheSalt, MultimodalItem

Prefix = tuple[int, int, tuple[tuple[tuple[int, ...], Any], ...]]
"""The model's key: group, page size, and (tokens, extra keys) of each page from the first on."""

EXTRAS: list[Any] = [
    *[()] * 4,
    (CacheSalt("a"),),
    (MultimodalItem(b"a", 0, 1),),
    (MultimodalItem(b"a", 1, 2),),
    (MultimodalItem(b"a", 1, 1), MultimodalItem(b"b", 4, 2)),
]
POISON = -1
"""A token that no request has."""

SITUATIONS = (
    "branch amid a run",
    "branch that goes on above",
    "bulk eviction from the front",
    "bulk eviction of a tail",
    "duplicate",
    "eviction in any order",
    "eviction of a duplicate",
    "eviction through two runs",
    "hit",
    "hit behind a branch",
    "hole",
    "hole filled again",
    "hole walked over",
    "hit on a lone page",
    "lone page",
    "lone page evicted",
    "lone page given a run",
    "lone page joined",
    "no quick way",
    "null page published over",
    "publishing behind a cached page",
    "quick way",
    "reset",
    "run joined to a branch of its own",
    "run joined to the one above",
    "run number used again",
    "run that becomes a lone page",
    "several extra segments",
    "two groups",
    "two page sizes",
)


class World:
    """The index, the model, and what has happened so far."""

    def __init__(self, source: random.Random, num_pages: int, narrow: bool) -> None:
        self.source = source
        self.groups = [0] if narrow else [0, 0, 1]
        self.sizes = [1] if narrow else [1, 2, 2]
        self.extras = EXTRAS[:5] if narrow else EXTRAS
        self.index = PrefixIndex(num_pages)
        self.num_pages = num_pages
        self.model: dict[Prefix, list[int]] = {}
        self.happened: Counter[str] = Counter()
        self.numbers: set[int] = set()

    # -- The model --------------------------------------------------------------------------------

    def cached(self) -> dict[int, Prefix]:
        return {page: prefix for prefix, pages in self.model.items() for page in pages}

    def forget(self, page: int) -> None:
        prefix = self.cached()[page]
        self.model[prefix].remove(page)
        if not self.model[prefix]:
            del self.model[prefix]

    # -- Requests ---------------------------------------------------------------------------------

    def request(self) -> tuple[RunTree, list[int], Any]:
        """A group's tree, tokens that others have had too, and extra keys."""
        tree = self.index.tree(self.source.choice(self.groups), self.source.choice(self.sizes))
        values = [self.source.randrange(2) for _ in range(self.source.randrange(1, 7) * tree.page_bytes // 4)]
        if self.source.random() < 0.6:  # long common beginnings
            values[: len(values) * 3 // 4] = [0] * (len(values) * 3 // 4)
        return tree, values, self.source.choice(self.extras)

    def prefixes(self, tree: RunTree, values: list[int], extra: Any) -> list[Prefix]:
        size = tree.page_bytes // 4
        pages = []
        for start in range(0, len(values) - size + 1, size):
            touching = tuple(
                key
                for key in extra
                if isinstance(key, CacheSalt) or (key.offset < start + size and start < key.offset + key.length)
            )
            pages.append((tuple(values[start : start + size]), touching or None))
        return [(tree.group_id, size, tuple(pages[: end + 1])) for end in range(len(pages))]

    # -- Steps ------------------------------------------------------------------------------------

    def step(self) -> None:
        before, lone, cached = self._shape(), self._lone(), set(self.cached())
        acts = [self.publish, self.publish, self.evict, self.evict_one, self.look, self.look]
        act = self.source.choice(acts)
        act()
        if self.source.random() < 0.01:
            self.index.reset()
            self.model.clear()
            self.happened["reset"] += 1
        self._note(before, act == self.publish)
        self._note_lone(lone, cached, act in (self.evict, self.evict_one))
        self.verify()

    def publish(self) -> None:
        tree, values, extra = self.request()
        prefixes = self.prefixes(tree, values, extra)
        segments = extra_segments(extra, tree.page_bytes // 4)
        free = [page for page in range(1, self.num_pages) if page not in self.cached()]
        self.source.shuffle(free)
        start, after = self._place_of_start(prefixes)
        if after and self.source.random() < 0.5:  # decoding: just the next page
            prefixes = prefixes[: start + 1]
        pages = [free.pop() if free and self.source.random() < 0.85 else 0 for _ in range(len(prefixes) - start)]
        tokens = np.array(values, np.int32)
        data = token_view("tokens", tokens, start * tree.page_bytes // 4)
        if len(pages) == 1 and pages[0] and after and not extra:
            quick = self.index.publish_next(pages[0], after, start, data[: tree.page_bytes], b"")
            self.happened["quick way" if quick else "no quick way"] += 1
            if quick:
                self.model.setdefault(prefixes[start], []).append(pages[0])
                tokens[:] = POISON
                return
            self.verify()  # nothing has changed
        self.index.publish(tree, data, segments, np.array(pages, np.int64), start, after)
        tokens[:] = POISON  # what the index keeps is its own
        self.happened["publishing behind a cached page"] += after != 0
        self.happened["several extra segments"] += segments[0].end < len(prefixes)
        for place, page in enumerate(pages, start):
            if page:
                deeper = any(prefixes[place] != other and _below(prefixes[place], other) for other in self.model)
                same = self.model.setdefault(prefixes[place], [])
                self.happened["duplicate"] += len(same) == 1
                self.happened["hole filled again"] += not same and deeper
                same.append(page)
            else:
                self.happened["null page published over"] += any(pages[place - start :])

    def _place_of_start(self, prefixes: list[Prefix]) -> tuple[int, int]:
        """Where a request goes on: at its first page, or behind one of its pages that is cached."""
        cached = [place for place, prefix in enumerate(prefixes[:-1]) if prefix in self.model]
        if not cached or self.source.random() < 0.4:
            return 0, 0
        place = self.source.choice(cached)
        return place + 1, self.source.choice(self.model[prefixes[place]])

    def evict(self) -> None:
        cached = self.cached()
        some = self.source.sample(range(1, self.num_pages), self.source.randrange(1, min(7, self.num_pages)))
        if self.source.random() < 0.6 and cached:  # the tail of a request, last page first
            _, _, pages = prefix = self.source.choice(list(cached.values()))
            path = [(*prefix[:2], pages[: end + 1]) for end in range(len(pages))]
            some = [self.model[part][0] for part in reversed(path) if part in self.model][: self.source.randrange(1, 5)]
            if self.source.random() < 0.3:
                some.reverse()
                self.happened["bulk eviction from the front"] += len(some) > 1
            self.happened["bulk eviction of a tail"] += len(some) > 1
        else:
            self.happened["eviction in any order"] += len(some) > 1
        for page in some:
            if page in cached:
                self._note_eviction(page)
                self.forget(page)
        self.index.evict(np.array(some, np.int64))

    def evict_one(self) -> None:
        if self.cached():
            page = self.source.choice(sorted(self.cached()))
            self._note_eviction(page)
            self.index.evict_one(page)
            self.forget(page)

    def _note_eviction(self, page: int) -> None:
        same = self.model[self.cached()[page]]
        self.happened["eviction of a duplicate"] += len(same) > 1

    def look(self) -> None:
        tree, values, extra = self.request()
        prefixes = self.prefixes(tree, values, extra)
        segments = extra_segments(extra, tree.page_bytes // 4)
        limit = self.source.randrange(len(prefixes) + 1)
        hits = []
        for prefix in prefixes[:limit]:
            if prefix not in self.model:
                break
            hits.append(self.model[prefix][0])
        data = token_view("tokens", np.array(values, np.int32))
        assert self.index.match(tree, data, segments, limit).tolist() == hits, "MAN-1"
        self.happened["hit"] += bool(hits)
        self.happened["hit on a lone page"] += bool(hits) and hits[-1] in self._lone()
        self.happened["hit behind a branch"] += self._runs_of(hits) > 1
        self.happened["hole walked over"] += any(prefix in self.model for prefix in prefixes[len(hits) : limit])
        asked = [
            self.source.choice(self.model.get(prefix, [self.source.randrange(self.num_pages)]))
            if self.source.random() < 0.8
            else self.source.randrange(self.num_pages)
            for prefix in prefixes
        ]
        holds = self.index.holds(tree, data, segments, np.array(asked, np.int64))
        expected = [page in self.model.get(prefix, []) for page, prefix in zip(asked, prefixes, strict=True)]
        assert holds.tolist() == expected, "MAN-2"

    def _runs_of(self, pages: list[int]) -> int:
        return len({self.index.run_cell[page] for page in pages})

    # -- What is said and what happened -----------------------------------------------------------

    def _lone(self) -> set[int]:
        return set(self.index._lone)

    def verify(self) -> None:
        """The index says what the model says, agrees with itself, and has no more runs than that takes."""
        self.index.check()
        assert sum(1 for _ in self._runs()) + len(self._lone()) == _num_ends(self.model), "runs"
        assert {_prefix(run, place): pages for run, place, pages in self.index.places()} == self.model, "POOL-7"
        everything = np.arange(self.num_pages)
        assert np.flatnonzero(self.index.cached(everything)).tolist() == sorted(self.cached()), "POOL-8"
        for page, prefix in self.cached().items():
            place = self.index.place(page)
            assert place is not None
            assert _prefix(*place) == prefix, "POOL-8"

    def _runs(self) -> Iterator[Run]:
        for group in (0, 1):
            for size in (1, 2):
                waiting = [self.index.tree(group, size).root]
                while waiting:
                    run = waiting.pop()
                    waiting += [child for _, _, child in run.branches() if isinstance(child, Run)]
                    if run.parent is not None:
                        yield run

    def _note_lone(self, lone: set[int], cached: set[int], evicts: bool) -> None:
        left = {page for page in lone - self._lone() if self.index.run_cell[page]}
        self.happened["lone page"] += len(self._lone() - lone) > 0
        self.happened["lone page given a run"] += bool(left) and not evicts
        self.happened["lone page joined"] += bool(left) and evicts
        self.happened["lone page evicted"] += any(not self.index.run_cell[page] for page in lone - self._lone())
        self.happened["run that becomes a lone page"] += bool((self._lone() - lone) & cached)

    def _shape(self) -> dict[int, tuple[Run, int]]:
        return {run.number: (run, run.start) for run in self._runs()}

    def _note(self, before: dict[int, tuple[Run, int]], publishes: bool) -> None:
        after = self._shape()
        same = [number for number in before.keys() & after.keys() if before[number][0] is after[number][0]]
        self.happened["branch amid a run"] += any(
            place < run.end for run, _ in after.values() for place, _, _ in run.branches()
        )
        self.happened["branch that goes on above"] += publishes and any(
            number not in after or after[number][0] is not run for number, (run, _) in before.items()
        )
        self.happened["run joined to a branch of its own"] += any(before[at][1] > after[at][1] for at in same)
        self.happened["run joined to the one above"] += any(
            number not in after and bool(run.pages[0]) and self.index.run_cell[run.pages[0]] in same
            for number, (run, _) in before.items()
        )
        self.happened["eviction through two runs"] += any(
            number not in after and run.parent is not None and run.parent.number in before.keys() - after.keys()
            for number, (run, _) in before.items()
        )
        self.happened["run number used again"] += any(
            number in self.numbers and (number not in before or before[number][0] is not run)
            for number, (run, _) in after.items()
        )
        self.numbers |= after.keys()
        self.happened["hole"] += any(run.holes for run, _ in after.values())
        self.happened["two groups"] += len({prefix[0] for prefix in self.model}) == 2
        self.happened["two page sizes"] += len({prefix[1] for prefix in self.model}) == 2


def _num_ends(model: Iterable[Prefix]) -> int:
    """How many of the pages that are cached, and of those before them, have none of the same extra keys behind them."""
    known = {(*prefix[:2], prefix[2][: end + 1]) for prefix in model for end in range(len(prefix[2]))}
    followed = {
        (group, size, pages[:-1])
        for group, size, pages in known
        if len(pages) > 1 and pages[-1][1] == pages[-2][1]  # the same extra keys
    }
    return len(known - followed)


def _below(prefix: Prefix, other: Prefix) -> bool:
    return prefix[:2] == other[:2] and other[2][: len(prefix[2])] == prefix[2]


def _prefix(run: Run, place: int) -> Prefix:
    """The whole prefix that the index claims for a page, read up to the root."""
    size = run.tree.page_bytes // 4
    pages: list[tuple[tuple[int, ...], Any]] = []
    above: Run | None = run
    count = place + 1
    while above is not None:
        own = [np.frombuffer(above.page_tokens(inner), "<i4").tolist() for inner in range(count)]
        pages = [(tuple(values), above.extra_keys) for values in own] + pages
        count = above.start - above.parent.start if above.parent is not None else 0
        above = above.parent
    return run.tree.group_id, size, tuple(pages)


@given(source=st.randoms(use_true_random=False), num_pages=st.integers(2, 24), narrow=st.booleans())
def test_pool_7_the_index_is_the_map_from_whole_prefixes_to_pages(
    source: random.Random, num_pages: int, narrow: bool
) -> None:
    world = World(source, num_pages, narrow)
    for _ in range(25):
        world.step()
    for name in sorted(+world.happened):
        event(name)


def test_pool_7_every_situation_arises() -> None:
    """The same steps, many of them: the property above is about something."""
    happened: Counter[str] = Counter()
    for seed in range(20):
        world = World(random.Random(seed), num_pages=12 + 6 * (seed % 4), narrow=seed % 2 == 0)
        for _ in range(110):
            world.step()
        happened += world.happened
    assert set(SITUATIONS) == set(happened), "the list above is complete, and each has happened"
    assert all(happened[name] >= 5 for name in SITUATIONS), happened


# -- check() --------------------------------------------------------------------------------------


class Damaged(NamedTuple):
    """An index that is about to be damaged, and its three runs, of which two branch off the upper one."""

    tree: PrefixIndex
    upper: Run
    left: Run
    right: Run


def _world_to_damage() -> Damaged:
    """A run of five pages with a hole and a duplicate; two runs of two pages that leave it amid, and page 8, alone."""
    index = PrefixIndex(16)
    tree = index.tree(0, 1)
    plain: tuple[ExtraSegment, ...] = tuple(extra_segments((), 1))

    def publish(values: list[int], pages: list[int]) -> None:
        index.publish(tree, token_view("tokens", values), plain, np.array(pages))

    publish([0, 0, 0, 1, 1], [1, 2, 3, 4, 10])
    publish([0, 0, 0, 0, 0], [5, 0, 0, 6, 7])
    publish([0, 0, 0, 2], [0, 0, 0, 8])
    publish([0, 0, 0, 3, 3], [0, 0, 0, 12, 13])
    index.evict(np.array([2]))
    upper, left, right = (index.place(page) for page in (1, 12, 6))
    assert upper
    assert left
    assert right
    index.check()
    return Damaged(index, upper[0], left[0], right[0])


DAMAGES: dict[str, Callable[[Damaged], object]] = {
    "tokens too long": lambda at: setattr(at.left, "tokens", at.left.tokens + bytes(4)),
    "tokens changed": lambda at: setattr(at.right, "tokens", b"\x09" + at.right.tokens[1:]),
    "a page swapped": lambda at: at.left.pages.__setitem__(0, 11),
    "a page twice in a run": lambda at: at.right.pages.__setitem__(1, 6),
    "a page in two runs": lambda at: at.left.pages.__setitem__(0, 6),
    "holes miscounted": lambda at: setattr(at.upper, "holes", 0),
    "a hole not counted": lambda at: at.upper.pages.__setitem__(0, 0),
    "a hole at the end of a leaf": lambda at: _hole_at_end(at.tree, at.right),
    "a duplicate of a hole": lambda at: setattr(at.upper, "duplicates", {1: OrderedDict({5: None})}),
    "no pages of a duplicate": lambda at: setattr(at.upper, "duplicates", {0: OrderedDict()}),
    "an empty dict of duplicates": lambda at: setattr(at.left, "duplicates", {}),
    "a duplicate lost": lambda at: setattr(at.upper, "duplicates", None),
    "an empty dict of children": lambda at: setattr(at.left, "children", {}),
    "an empty dict of branches at a place": lambda at: at.upper.children and at.upper.children.update({2: {}}),
    "branches of other extra keys": lambda at: _make_others(at.upper),
    "a branch lost": lambda at: _siblings(at).pop(at.right.key),
    "a branch at the end": lambda at: at.upper.attach(5, b"", b"4567", 11),
    "a branch of the run's own content": lambda at: at.upper.attach(3, b"", at.upper.page_tokens(3), 11),
    "attached miscounted": lambda at: setattr(at.upper, "num_attached", 3),
    "a lone page with a run": lambda at: at.right.cut(1),
    "a wrong key": lambda at: setattr(at.left, "key", b"1234"),
    "a wrong parent": lambda at: setattr(at.left, "parent", at.right),
    "a wrong start": lambda at: setattr(at.left, "start", 2),
    "more digests than pages": lambda at: setattr(at.left, "digests", [b""] * (len(at.left.pages) + 1)),
    "a wrong number": lambda at: setattr(at.left, "number", at.right.number),
    "a run cell of nobody": lambda at: at.tree.run_cell.__setitem__(9, at.left.number),
    "a run cell cleared": lambda at: at.tree.run_cell.__setitem__(12, 0),
    "another run's cell": lambda at: at.tree.run_cell.__setitem__(12, at.right.number),
    "a lone page's key lost": lambda at: at.tree._lone.pop(8),
    "another key of a lone page": lambda at: at.tree._lone.__setitem__(8, b"1234"),
    "a lone page in a run": lambda at: at.tree._lone.__setitem__(12, b"1234"),
    "another page alone": lambda at: _siblings(at).__setitem__(at.tree._lone[8], 9),
    "a lone page elsewhere": lambda at: at.left.attach(4, b"", at.tree._lone[8], 8),
    "a lone page twice": lambda at: at.upper.attach(3, b"", b"1234", 8),
    "another depth of a lone page": lambda at: at.tree._depth_cell.__setitem__(8, 2),
    "another depth": lambda at: at.tree._depth_cell.__setitem__(12, 2),
    "a spare number too many": lambda at: at.tree._spare.append(1),
}


def _siblings(at: Damaged) -> dict[bytes, Run | int]:
    """What leaves the upper run."""
    assert at.upper.children
    return at.upper.children[3]


def _make_others(run: Run) -> None:
    run.children, run.others = None, run.children


def _hole_at_end(index: PrefixIndex, run: Run) -> None:
    index.run_cell[run.pages[-1]] = 0
    run.pages[-1] = 0
    run.holes = 1


@pytest.mark.parametrize("damage", DAMAGES)
def test_check_sees(damage: str) -> None:
    world = _world_to_damage()
    DAMAGES[damage](world)
    with pytest.raises(AssertionError):
        world.tree.check()
