"""EVICT-1 as an algorithm in plain dictionaries: which free page goes first, by ``lru``, ``reuse`` or ``adaptive``.

    python -m tests.bench.eviction                       # made-up families of requests
    python -m tests.bench.eviction --trace FILE --page-size 512 --num-pages 1500,3000

It is what spec and fast are to do, tried on its own first. A pool tells an `Eviction` what happens to its pages, one
call each; `mark` stands for a page's content, 64 bits that depend on its tokens, all before them and the pool's seed.

Free pages wait in three queues. *once*: pages that nobody has hit. *again*: pages that were hit, or whose content was
evicted lately and computed again. *front*: what is taken at once. A candidate is a rule that says which of them is
taken next: ``turnovers=k`` takes a page of *again* before one of *once* if it was freed more than k pool turnovers
earlier (k = 0 is LRU); a candidate that *keeps* lets new pages take each other's places, so that part of a working set
stays that is too large for the pool and comes round again. ``adaptive`` follows the candidate that hits most in shadow
pools, which hold a sample of the contents and are smaller by the same factor.
"""

import argparse
import random
import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import accumulate, count
from pathlib import Path
from typing import NamedTuple

from kvproof.conformance.limits import Chain, chain_numbers, optimum_hits
from kvproof.conformance.traces import prompt_tokens, read_trace

__all__ = ["CANDIDATES", "Adaptive", "Candidate", "Eviction", "families", "main", "served_hits"]

SHADOW_PAGES = 1_024
HALVED_AFTER = 4_096
STALE_TURNOVERS = 8


class Candidate(NamedTuple):
    """A rule for the page that is taken next.

    Attributes:
        turnovers: how many pool turnovers longer a page of *again* stays than one of *once*; None: it keeps.
        uses_ghosts: whether content that was evicted lately counts as hit when it is computed again.
    """

    turnovers: int | None
    uses_ghosts: bool


LRU = Candidate(0, True)
CANDIDATES = (LRU, Candidate(1, True), Candidate(4, True), Candidate(None, False), Candidate(None, True))
"""What ``adaptive`` chooses among; ``reuse`` is the third. In the first, *again* and *once* are one queue in effect."""


class Eviction:
    """The free pages of a pool in the order in which they are taken.

    Args:
        num_pages: pages of the pool, the null page not counted; all are free at first.
        candidate: the rule.
    """

    def __init__(self, num_pages: int, candidate: Candidate) -> None:
        self.num_pages, self.candidate = num_pages, candidate
        self.clock = 0
        """Pages evicted so far; what is taken without a hash does not count, as it pushes nothing out."""
        self.empty: dict[int, None] = dict.fromkeys(range(num_pages))
        """Free pages without a hash when they were freed: they go before all others."""
        self.front: list[tuple[int, dict[int, None]]] = []
        """Batches of pages to be taken at once, with the clock when they were freed: the last batch goes first."""
        self.once: dict[int, int] = {}
        """Free pages in the order of their frees, with the clock at that time."""
        self.again: dict[int, int] = {}
        self.mark_of: dict[int, int] = {}
        """The mark of each cached page."""
        self.reused: set[int] = set()
        """Cached pages that were hit, or whose content was."""
        self.ghosts: dict[int, int] = {}
        """Marks of evicted pages, by their remainder modulo the number of slots; a later one takes a slot over."""
        self.keeps_from = 1
        """A candidate that keeps does so from this clock on; until then it lets the pool fill."""

    @property
    def num_slots(self) -> int:
        """Slots for ghosts: a mark stays for one and a half turnovers in the mean."""
        return self.num_pages + self.num_pages // 2

    @property
    def num_free(self) -> int:
        """How many pages are free."""
        return len(self.empty) + sum(len(batch) for _, batch in self.front) + len(self.once) + len(self.again)

    def follow(self, candidate: Candidate) -> None:
        """Goes on by another rule. One that keeps lets the pool fill first with what is asked for now."""
        if candidate.turnovers is None and self.candidate.turnovers is not None:
            self.keeps_from = self.clock + self.num_pages
        self.candidate = candidate

    def _next(self) -> int:
        if self.empty:
            return next(iter(self.empty))
        turnovers = self.candidate.turnovers
        once, again = next(iter(self.once), None), next(iter(self.again), None)
        if turnovers is None:  # nobody has asked for these for long: they are not part of what comes round
            stale = self.clock - STALE_TURNOVERS * self.num_pages
            if self.front and self.front[0][0] < stale:
                return next(iter(self.front[0][1]))
            if once is not None and self.once[once] < stale:
                return once
            if again is not None and self.again[again] < stale:
                return again
        if self.front:
            return next(iter(self.front[-1][1]))
        if once is None or again is None:
            page = once if again is None else again
            assert page is not None, "a page is free"
            return page
        if turnovers is not None and self.again[again] + turnovers * self.num_pages < self.once[once]:
            return again
        return once

    def take(self) -> int:
        """Takes the next page; its content is evicted and becomes a ghost."""
        page = self._next()
        self._leave(page)
        mark = self.mark_of.pop(page, None)
        if mark is not None:
            self.clock += 1
            self.ghosts[mark % self.num_slots] = mark
            self.reused.discard(page)
        return page

    def forget(self, page: int) -> None:
        """A cached page, free or in use, lost its hash in another way than by `take`; a free one keeps its place."""
        del self.mark_of[page]
        self.reused.discard(page)

    def publish(self, page: int, mark: int) -> None:
        """A page in use got a hash."""
        self.mark_of[page] = mark
        if self.candidate.uses_ghosts and self.ghosts.get(mark % self.num_slots) == mark:
            self.reused.add(page)

    def hit(self, page: int) -> None:
        """A cached page, free or in use, was hit: it is in use."""
        self.reused.add(page)
        self._leave(page)

    def free(self, pages: Iterable[int], in_use: Container[int] = ()) -> None:
        """Pages of one group lost a holder; tail first, so that a page comes after those behind it.

        A page that those behind it need for their hits stays as long as they: it counts as reused where one of them
        does.

        Args:
            pages: the pages.
            in_use: those that others hold: they don't become free.
        """
        batch, behind = dict[int, None](), False
        keeps = self.candidate.turnovers is None and self.clock >= self.keeps_from
        for page in pages:
            behind = page in self.mark_of and (behind or page in self.reused)
            if behind:
                self.reused.add(page)
            if page in in_use:
                continue
            if behind:
                self.again[page] = self.clock
            elif page not in self.mark_of:
                self.empty[page] = None
            elif not keeps:
                self.once[page] = self.clock
            else:
                batch[page] = None
        if batch:
            self.front.append((self.clock, batch))

    def _leave(self, page: int) -> None:
        self.empty.pop(page, None)
        self.once.pop(page, None)
        self.again.pop(page, None)
        for place, (_, batch) in enumerate(self.front):
            if page in batch:
                del batch[page]
                if not batch:
                    del self.front[place]
                return


class _Shadow:
    """A small pool that holds a sample of the contents, one page each, by a rule of its own."""

    def __init__(self, num_pages: int, candidate: Candidate) -> None:
        self.order = Eviction(num_pages, candidate)
        self.page_of: dict[int, int] = {}
        self.mark_on: dict[int, int] = {}
        self.holders: dict[int, int] = {}
        """Pages of the real pool in use that hold a content."""
        self.extra = count(num_pages)
        """Pages beyond the pool's, for contents that are all in use at once."""

    def asked(self, mark: int, is_new_holder: bool) -> bool:
        """A content was asked for; returns whether it was there."""
        self.holders[mark] = self.holders.get(mark, 0) + is_new_holder
        if mark in self.page_of:
            self.order.hit(self.page_of[mark])
            return True
        page = self.order.take() if self.order.num_free else next(self.extra)
        self._drop(self.mark_on.get(page))
        self.page_of[mark], self.mark_on[page] = page, mark
        self.order.publish(page, mark)
        return False

    def left(self, marks: Iterable[int]) -> None:
        """Pages of the real pool that hold contents became free."""
        pages = []
        for mark in marks:
            self.holders[mark] -= 1
            if not self.holders[mark]:
                del self.holders[mark]
                if mark in self.page_of:
                    pages.append(self.page_of[mark])
        self.order.free(pages)
        while len(self.page_of) > self.order.num_pages and self.order.num_free:
            self._drop(self.mark_on[self.order.take()])

    def forgot(self, mark: int, is_holder: bool) -> None:
        """A page of the real pool lost its content; where nobody else holds it, it is not to be found any more."""
        self.holders[mark] = self.holders.get(mark, 0) - is_holder
        if self.holders[mark]:
            return
        del self.holders[mark]
        page = self.page_of.get(mark)
        if page is not None:
            self._drop(mark)
            self.order.forget(page)
            if is_holder:
                self.order.free([page])

    def _drop(self, mark: int | None) -> None:
        if mark is not None:
            del self.mark_on[self.page_of.pop(mark)]


class Adaptive(Eviction):
    """`Eviction` that follows the best of its candidates.

    Args:
        num_pages: see `Eviction`.

    Attributes:
        scores: hits of each candidate's shadow, halved after every `HALVED_AFTER` contents.
    """

    def __init__(self, num_pages: int) -> None:
        super().__init__(num_pages, LRU)
        self.shadows = [_Shadow(min(num_pages, SHADOW_PAGES), candidate) for candidate in CANDIDATES]
        self.scores = [0] * len(CANDIDATES)
        self.asked = 0
        self.in_use: set[int] = set()
        """Cached pages in use."""

    def _is_sampled(self, mark: int) -> bool:
        return (mark >> 32) * self.num_pages < SHADOW_PAGES << 32

    def _ask(self, mark: int, is_new_holder: bool) -> None:
        if not self._is_sampled(mark):
            return
        for place, shadow in enumerate(self.shadows):
            self.scores[place] += shadow.asked(mark, is_new_holder)
        self.asked += 1
        if self.asked % HALVED_AFTER == 0:
            self.scores = [score // 2 for score in self.scores]
        best, now = max(self.scores), self.scores[CANDIDATES.index(self.candidate)]
        chosen = CANDIDATES[self.scores.index(best)]
        # two standard deviations ahead, and a fiftieth: what is nearly as good is not worth a change; to LRU, a hit is
        is_ahead = best > now + 1 if chosen == LRU else (best - now) ** 2 > 4 * best
        if is_ahead and 50 * best > 51 * now:
            self.follow(chosen)

    def publish(self, page: int, mark: int) -> None:
        self.in_use.add(page)
        self._ask(mark, True)
        super().publish(page, mark)

    def hit(self, page: int) -> None:
        self._ask(self.mark_of[page], page not in self.in_use)
        self.in_use.add(page)
        super().hit(page)

    def forget(self, page: int) -> None:
        mark = self.mark_of[page]
        for shadow in self.shadows if self._is_sampled(mark) else ():
            shadow.forgot(mark, page in self.in_use)
        self.in_use.discard(page)
        super().forget(page)

    def free(self, pages: Iterable[int], in_use: Container[int] = ()) -> None:
        given = list(pages)
        freed = [page for page in given if page not in in_use]
        self.in_use.difference_update(freed)
        sampled = [
            self.mark_of[page] for page in freed if page in self.mark_of and self._is_sampled(self.mark_of[page])
        ]
        for shadow in self.shadows if sampled else ():
            shadow.left(sampled)
        super().free(given, in_use)


# -- Serving --------------------------------------------------------------------------------------


def mark_of(content: int, seed: int) -> int:
    """A mark for a content that is a number: 64 bits that look random."""
    mark = (content + 1) * 0x9E3779B97F4A7C15 + seed & 2**64 - 1
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mark = (mark ^ mark >> 33) * factor & 2**64 - 1
    return mark ^ mark >> 33


def served_hits(
    chains: Sequence[Chain], most: Sequence[int], eviction: Eviction, live: int = 4, seed: int = 0
) -> list[int]:
    """Hit pages of each request. A request holds its pages until ``live`` others came, or room is needed.

    Args:
        chains: the requests in order of arrival, see `kvproof.conformance.limits`; longer than no pool.
        most: the most pages that each can hit.
        eviction: the order of a fresh pool.
        live: requests live at once.
        seed: of the marks.
    """
    page_of: dict[int, int] = {}
    content_on: dict[int, int] = {}
    counts: dict[int, int] = {}
    running: deque[list[int]] = deque()
    hits = []

    def finish() -> None:
        pages = running.popleft()
        for page in pages:
            counts[page] -= 1
        eviction.free(reversed(pages), {page for page in pages if counts[page]})

    for chain, limit in zip(chains, most, strict=True):
        while len(running) >= live:
            finish()
        while True:
            found = next((n for n, content in enumerate(chain) if content not in page_of), len(chain))
            held = sum(not counts[page_of[content]] for content in chain[:found])
            if len(chain) - found <= eviction.num_free - held or not running:
                break
            finish()
        hits.append(min(found, limit))
        pages = [page_of[content] for content in chain[:found]]
        for page in pages:
            eviction.hit(page)
            counts[page] += 1
        for content in chain[found:]:
            page = eviction.take()
            if page in content_on and page_of.get(content_on[page]) == page:
                del page_of[content_on[page]]
            counts[page] = 1
            page_of[content], content_on[page] = page, content
            pages.append(page)
        for page, content in zip(pages[found:], chain[found:], strict=True):
            eviction.publish(page, mark_of(content, seed))
        running.append(pages)
    return hits


# -- Families of requests -------------------------------------------------------------------------


def families(seed: int = 0) -> dict[str, list[list[int]]]:
    """Made-up requests, as chains: what recency serves well, and what it doesn't."""
    chance, ids = random.Random(seed), count()

    def fresh(length: int) -> list[int]:
        return [next(ids) for _ in range(length)]

    def skewed(items: Sequence[list[int]], skew: float, number: int) -> list[list[int]]:
        weights = list(accumulate(1 / (place + 1) ** skew for place in range(len(items))))
        return [[*item, *fresh(1)] for item in chance.choices(items, cum_weights=weights, k=number)]

    def documents(number: int) -> list[list[int]]:
        return [fresh(chance.randint(3, 20)) for _ in range(number)]

    def chats(number: int, gap: float) -> list[list[int]]:
        waiting: list[list[int]] = []
        turns = []
        for _ in range(number):
            waiting += [fresh(5) for _ in range(60 - len(waiting))]
            place = min(int(chance.expovariate(1 / gap)), 59)
            turns.append([*waiting.pop(place), *fresh(chance.randint(1, 5))])
            if len(turns[-1]) < 60 and chance.random() > 0.1:
                waiting.insert(0, turns[-1])
        return turns

    def loop(items: int, length: int, rounds: int) -> list[list[int]]:
        return [fresh(length) for _ in range(items)] * rounds

    day, tenants = documents(400), [fresh(chance.randint(10, 60)) for _ in range(40)]
    return {
        "loop": loop(12, 60, 30),
        "loop of many": loop(200, 5, 12),
        "scan": [fresh(20) for _ in range(600)],
        "hot set and scan": [
            [*tenants[chance.randrange(8)], *fresh(1)] if chance.random() < 0.3 else fresh(20) for _ in range(1_500)
        ],
        "zipf 0.7": skewed(documents(1_000), 0.7, 4_000),
        "zipf 1.2": skewed(documents(1_000), 1.2, 4_000),
        "uniform": skewed(documents(300), 0.0, 3_000),
        "phases": [turn for _ in range(6) for turn in skewed(documents(200), 0.9, 700)],
        "tenants": skewed([[*one, *fresh(chance.randint(1, 9))] for one in tenants for _ in range(9)], 0.8, 2_500),
        "chats, short gaps": chats(3_000, 6),
        "chats, long gaps": chats(3_000, 300),
        "days and nights": [turn for _ in range(4) for turn in skewed(day, 0.8, 700) + [fresh(15) for _ in range(500)]],
        "loop, chats, zipf": [
            turn for _ in range(3) for turn in loop(20, 30, 15) + chats(600, 6) + skewed(documents(200), 0.9, 600)
        ],
    }


POLICIES: dict[str, Callable[[int], Eviction]] = {
    "lru": lambda num_pages: Eviction(num_pages, LRU),
    "reuse": lambda num_pages: Eviction(num_pages, CANDIDATES[2]),
    "adaptive": Adaptive,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints hit shares; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.eviction", description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path, help="a trace, in place of the made-up families")
    parser.add_argument("--page-size", type=int, default=512, help="tokens in a page (default: %(default)s)")
    parser.add_argument("--num-pages", default="50,200,800", help="sizes of pools (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of families and marks (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.trace is None:
        workloads = {
            name: (chains, [len(chain) for chain in chains], sum(map(len, chains)))
            for name, chains in families(options.seed).items()
        }
    else:
        trace = read_trace(options.trace)
        chains = chain_numbers(map(prompt_tokens, trace), options.page_size)
        most = [(request.input_length - 1) // options.page_size for request in trace]
        tokens = sum(request.input_length for request in trace) / options.page_size
        workloads = {options.trace.name: (chains, most, tokens)}
    print(f"{'':20} {'pages':>7} {'  '.join(f'{name:>8}' for name in (*POLICIES, 'optimum'))}")
    for name, (chains, most, asked) in workloads.items():
        for num_pages in map(int, options.num_pages.split(",")):
            fitting = [place for place, chain in enumerate(chains) if len(chain) <= num_pages]
            served = [chains[place] for place in fitting], [most[place] for place in fitting]
            figures = [sum(served_hits(*served, make(num_pages), seed=options.seed)) for make in POLICIES.values()]
            figures.append(sum(optimum_hits(*served, num_pages)))
            print(f"{name:20} {num_pages:>7,} {'  '.join(f'{hits / asked:8.4f}' for hits in figures)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
