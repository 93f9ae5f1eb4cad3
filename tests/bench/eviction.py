"""EVICT-1: what the specification's eviction policies hit, ``lru``, ``reuse`` and ``adaptive``, beside the optimum.

    python -m tests.bench.eviction                       # made-up families of requests
    python -m tests.bench.eviction --trace FILE --page-size 512 --num-pages 1500,3000

Requests are chains of contents, one a page. The queues of `kvproof.spec` are told what happens to pages and contents,
without a pool around them, so that a trace of thousands of requests takes minutes.
"""

import argparse
import random
import sys
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate, count
from pathlib import Path

from kvproof.conformance.replay.limits import Chain, chain_numbers, optimum_hits
from kvproof.conformance.replay.traces import prompt_tokens, read_trace
from kvproof.spec.pool.eviction import LruQueue, ReuseQueue
from kvproof.spec.pool.marks import mixed
from kvproof.spec.pool.shadows import AdaptiveQueue

__all__ = ["POLICIES", "changing_requests", "families", "main", "mark_of", "mixed_families", "served_hits", "take"]

# -- Serving --------------------------------------------------------------------------------------


def mark_of(content: int, seed: int) -> int:
    """A mark for a content that is a number: 63 bits that look random."""
    return mixed((content + 1) * 0x9E3779B97F4A7C15 + seed) % 2**63


def take(queue: LruQueue) -> int:
    """Takes the next page; its content is evicted."""
    page = queue.take()
    queue.evicted(page)
    return page


def served_hits(
    chains: Sequence[Chain], most: Sequence[int], queue: LruQueue, live: int = 4, seed: int = 0
) -> list[int]:
    """Hit pages of each request. A request holds its pages until ``live`` others came, or room is needed.

    Args:
        chains: the requests in order of arrival, see `kvproof.conformance.replay.limits`; longer than no pool.
        most: the most pages that each can hit.
        queue: the free pages of a fresh pool.
        live: requests live at once.
        seed: of the marks.
    """
    page_of: dict[int, int] = {}
    content_on: dict[int, int] = {}
    counts: dict[int, int] = {}
    running: deque[list[int]] = deque()
    hits = []

    def finish() -> None:
        pages = running.popleft()[::-1]
        for page in pages:
            counts[page] -= 1
        freed = [page for page in pages if not counts[page]]
        queue.released(pages)
        queue.put(freed)

    for chain, limit in zip(chains, most, strict=True):
        while len(running) >= live:
            finish()
        while True:
            found = next((n for n, content in enumerate(chain) if content not in page_of), len(chain))
            held = sum(not counts[page_of[content]] for content in chain[:found])
            if len(chain) - found <= len(queue) - held or not running:
                break
            finish()
        hits.append(min(found, limit))
        pages = [page_of[content] for content in chain[:found]]
        for page in pages:
            if not counts[page]:
                queue.remove(page)
            counts[page] += 1
        for content in chain[found:]:
            page = take(queue)
            if page in content_on and page_of.get(content_on[page]) == page:
                del page_of[content_on[page]]
            counts[page] = 1
            page_of[content], content_on[page] = page, content
            pages.append(page)
        for page, content in zip(pages[found:], chain[found:], strict=True):
            queue.published(page, mark_of(content, seed))
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


def mixed_families(seed: int = 0) -> dict[str, list[list[int]]]:
    """Made-up requests that mix kinds or change their ways, as chains; arguments as of `families`."""
    chance, ids = random.Random(seed), count()

    def fresh(least: int, most: int) -> list[int]:
        return [next(ids) for _ in range(chance.randint(least, most))]

    def weights(number: int, skew: float) -> list[float]:
        return list(accumulate(1 / (place + 1) ** skew for place in range(number)))

    def drifting(number: int) -> list[list[int]]:
        items, skewed, asked = [fresh(3, 20) for _ in range(400)], weights(400, 0.9), []
        for place in range(number):
            if place % 10 == 0:  # a new one becomes popular, an unpopular one is forgotten
                items.insert(chance.randrange(60), fresh(3, 20))
                items.pop(60 + chance.randrange(341))
            asked.append([*chance.choices(items, cum_weights=skewed)[0], *fresh(1, 3)])
        return asked

    def turns(seats: list[list[int]], gap: float) -> list[int]:
        seat = [*seats.pop(min(int(chance.expovariate(1 / gap)), len(seats) - 1)), *fresh(1, 4)]
        seats.insert(0, seat if len(seat) < 50 and chance.random() > 0.05 else fresh(6, 6))
        return seat

    def scans_between_chats(number: int) -> list[list[int]]:
        seats = [fresh(6, 6) for _ in range(40)]
        return [fresh(10, 50) if chance.random() < 0.25 else turns(seats, 8) for _ in range(number)]

    def tenants(number: int) -> list[list[int]]:
        own = [(fresh(5, 40), [fresh(2, 10) for _ in range(30)]) for _ in range(30)]
        asking = chance.choices(own, cum_weights=weights(30, 1.2), k=number)
        return [[*system, *chance.choice(tasks), *fresh(1, 3)] for system, tasks in asking]

    def agents(number: int) -> list[list[int]]:
        tools = [fresh(6, 24) for _ in range(8)]
        running: list[list[int]] = []
        asleep: list[list[int]] = []
        asked: list[list[int]] = []
        while len(asked) < number:
            if asleep and chance.random() < 0.08:
                running.append(asleep.pop(chance.randrange(len(asleep))))
            elif len(running) < 24 or chance.random() < 0.05:
                running.append(list(chance.choice(tools)))
            task = [*running.pop(min(int(chance.expovariate(1 / 6)), len(running) - 1)), *fresh(1, 6)]
            asked.append(task)
            fate = chance.random()
            if fate < 0.06 or len(task) > 100:
                continue
            if fate < 0.18:
                asleep.append(task)
            else:
                running[:0] = [list(task) for _ in range(chance.randint(2, 4) if fate < 0.26 else 1)]
        return asked

    def shuffled_documents(number: int) -> list[list[int]]:
        system, pages = fresh(4, 4), [chance.randint(3, 8) for _ in range(60)]
        content_of: dict[tuple[int, ...], int] = {}
        asked = []
        for _ in range(number):  # a document's pages are the same contents only behind the same documents
            before: tuple[int, ...] = ()
            chain = list(system)
            for document in chance.choices(range(60), cum_weights=weights(60, 0.9), k=chance.randint(1, 3)):
                for page in range(pages[document]):
                    before = *before, 100 * document + page
                    chain.append(content_of.setdefault(before, next(ids)))
            asked.append([*chain, *fresh(1, 2)])
        return asked

    def jobs(number: int) -> list[list[int]]:
        shots = [fresh(5, 40) for _ in range(number)]
        return [[*shot, *fresh(1, 6)] for shot in shots for _ in range(chance.randint(20, 120))]

    def jobs_beside_chats(number: int) -> list[list[int]]:
        own, seats = jobs(number // 60), [fresh(6, 6) for _ in range(30)]
        return [request for job in own for request in (job, turns(seats, 15))]

    def heavy_tail(number: int) -> list[list[int]]:
        chats: list[tuple[list[int], int]] = []
        asked: list[list[int]] = []
        while len(asked) < number:
            if len(chats) < 200 or chance.random() < 0.4:
                chats.append((fresh(2, 30), int(chance.paretovariate(1.1))))
            text, left = chats.pop(chance.randrange(len(chats)))
            asked.append([*text, *fresh(1, 4)])
            if left > 1 and len(text) < 60:
                chats.append((asked[-1], left - 1))
        return asked

    def seats_in_turn(number: int, rounds: int) -> list[list[int]]:
        seats, asked = [fresh(20, 20) for _ in range(number)], []
        for _ in range(rounds):
            seats = [[*seat, *fresh(1, 1)] for seat in seats]
            asked += seats
        return asked

    return {
        "zipf that drifts": drifting(3_000),
        "scans between chats": scans_between_chats(2_500),
        "loop a little larger": [fresh(10, 10) for _ in range(24)] * 25,
        "tenants by rate": tenants(2_500),
        "agents": agents(2_500),
        "shuffled documents": shuffled_documents(2_500),
        "batch jobs": jobs(30),
        "jobs beside chats": jobs_beside_chats(1_500),
        "chats of a heavy tail": heavy_tail(3_000),
        "seats in turn": seats_in_turn(10, 14),
    }


def changing_requests(seed: int = 0, num_phases: int = 8) -> list[list[int]]:
    """Made-up requests in phases of different kinds: loops, documents of skewed popularity, chats, what is asked once.

    Args:
        seed: the same seed gives the same requests.
        num_phases: the number of phases, of some thousand contents each.
    """
    chance, ids = random.Random(seed), count()

    def fresh(least: int, most: int) -> list[int]:
        return [next(ids) for _ in range(chance.randint(least, most))]

    def loop() -> list[list[int]]:
        items = [fresh(3, 15) for _ in range(chance.randint(5, 60))]
        return items * chance.randint(2, 12)

    def documents() -> list[list[int]]:
        items, skew = [fresh(3, 20) for _ in range(chance.randint(30, 400))], chance.uniform(0.3, 1.3)
        weights = [1 / (place + 1) ** skew for place in range(len(items))]
        return [[*item, *fresh(1, 3)] for item in chance.choices(items, weights, k=250)]

    def chats() -> list[list[int]]:
        seats = [fresh(4, 12) for _ in range(chance.randint(5, 40))]
        gap, turns = chance.choice((2, 10, 100)), []
        for _ in range(250):
            place = min(int(chance.expovariate(1 / gap)), len(seats) - 1)
            turns.append([*seats.pop(place), *fresh(1, 4)])
            seats.insert(0, turns[-1] if len(turns[-1]) < 50 else fresh(4, 12))
        return turns

    def scan() -> list[list[int]]:
        return [fresh(5, 20) for _ in range(60)]

    makers = (loop, loop, documents, chats, scan)
    return [request for _ in range(num_phases) for request in chance.choice(makers)()]


POLICIES: dict[str, Callable[[int], LruQueue]] = {
    "lru": lambda num_pages: LruQueue(num_pages + 1),
    "reuse": lambda num_pages: ReuseQueue(num_pages + 1),
    "adaptive": lambda num_pages: AdaptiveQueue(num_pages + 1),
}
"""The free pages of a pool by each policy, of a number of pages that doesn't count the null page."""


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
            for name, chains in {**families(options.seed), **mixed_families(options.seed)}.items()
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
