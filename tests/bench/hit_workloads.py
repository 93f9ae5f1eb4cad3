"""The workloads of the hit-share bench: prompts in the order of arrival, cache groups, sizes of pools."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from kvproof import fast
from kvproof.conformance.replay.engine import num_slots
from kvproof.conformance.replay.groups import read_groups
from kvproof.conformance.replay.traces import TraceRequest, output_tokens, prompt_tokens, read_trace

from .implementation import Tokens
from .workloads import tokens

__all__ = ["TRACE_MIXES", "Prompt", "Workload", "agentic_trace", "made_up", "of_trace"]


@dataclass(frozen=True)
class Prompt:
    """A request of a workload.

    Attributes:
        length: tokens of the prompt.
        make: makes the tokens of the request, `i32[>= length]`: the prompt, then the generated ones that need a slot.
    """

    length: int
    make: Callable[[], Tokens]


@dataclass(frozen=True, eq=False)
class Workload:
    """What is served, and on what.

    Attributes:
        name: its name on the command line.
        text: its description in the table.
        groups: the model's cache groups.
        prompts: the requests in order of arrival.
        num_pages: the sizes of pools that it is served with, null page included.
        live: requests live at once, at most.
        counted_from: the first request whose prompt tokens count.
        full_page_cost: the pages of all groups that a cached page of the groups that keep everything brings with it, at
            the least; the optimum's pool is smaller by this factor.
        num_shards: shards of data parallelism; each has a pool of ``num_pages``.
        match_unit: of our managers (MAN-17).
    """

    name: str
    text: str
    groups: tuple[fast.CacheGroupSpec, ...]
    prompts: Sequence[Prompt]
    num_pages: tuple[int, ...]
    live: int = 4
    counted_from: int = 0
    full_page_cost: float = 1.0
    num_shards: int = 1
    match_unit: int | None = None


def _fixed(request: Tokens, length: int) -> Prompt:
    return Prompt(length, lambda: request)


# -- Traces ---------------------------------------------------------------------------------------

TRACE_MIXES = {
    "full": "full:512",
    "windows": ",".join(["full:512", *["window:512:1024"] * 5]),
    "states": "full:512,mamba:512:align",
}
"""The cache groups that a trace is served with, by the name that is added to the workload's."""


def of_trace(name: str, text: str, trace: Sequence[TraceRequest], num_pages: tuple[int, ...]) -> list[Workload]:
    """A trace with each mix of cache groups, pages of 512 tokens, 4 requests live."""

    def prompt(number: int, request: TraceRequest) -> Prompt:
        def make() -> Tokens:
            return np.concatenate(
                [prompt_tokens(request), output_tokens(number, num_slots(request) - request.input_length)]
            )

        return Prompt(request.input_length, make)

    prompts = [prompt(number, request) for number, request in enumerate(trace)]
    return [
        Workload(f"{name}-{mix}", f"{text}, {groups}", read_groups(groups, 512), prompts, num_pages)
        for mix, groups in TRACE_MIXES.items()
    ]


def conversation(path: Path, limit: int | None) -> list[Workload]:
    """The conversation trace that docs/guides/hits.md names."""
    return of_trace("conversation", "conversation trace", read_trace(path, limit), (1_500, 3_000, 6_250, 12_500))


def agentic_trace(num_requests: int, seed: int = 0) -> list[TraceRequest]:
    """Makes up a trace of agents at work, in blocks of 512 tokens. O(blocks).

    Each agent has one of a few long prefixes (system prompt and tools). A task goes on from its context by a tool's
    answer of some blocks; now and then it forks into attempts that go on side by side, most of which are abandoned;
    tasks are left alone for a while and resumed, some of them long after.

    Args:
        num_requests: the number of requests.
        seed: the same seed gives the same trace.
    """
    chance = random.Random(seed)
    ids = count()
    prefixes = [[next(ids) for _ in range(chance.randint(6, 24))] for _ in range(8)]
    running: list[list[int]] = []
    asleep: list[list[int]] = []
    trace: list[TraceRequest] = []
    while len(trace) < num_requests:
        if asleep and chance.random() < 0.08:
            running.append(asleep.pop(chance.randrange(len(asleep))))
        elif len(running) < 48 or chance.random() < 0.05:
            running.append(list(chance.choice(prefixes)))
        # a task that was served lately comes again soon, but for some whose tools take long
        place = min(int(chance.expovariate(1 / 12)), len(running) - 1)
        place = chance.randrange(len(running)) if chance.random() < 0.2 else place
        context = running.pop(place)
        context = [*context, *(next(ids) for _ in range(1 + int(chance.expovariate(1 / 3))))]
        length = 512 * len(context) - chance.randrange(512)
        trace.append(TraceRequest(len(trace), length, 1 + chance.randrange(200), tuple(context)))
        fate = chance.random()
        if fate < 0.06 or len(context) > 160:
            continue  # done
        if fate < 0.18:
            asleep.append(context)
        elif fate < 0.26:
            running[:0] = [list(context) for _ in range(chance.randint(2, 4))]  # attempts: most end as others do
        else:
            running.insert(0, context)
    return trace


# -- Chats, families, shards ----------------------------------------------------------------------

_SEAT_TOKENS, _SEAT_OUTPUT, _SEAT_NEW, _SEAT_WINDOW = 21_000, 64, 40, 1_024


def seats(num_seats: int) -> Workload:
    """Chats sent again round robin; one full and five window groups, 12,000 pages of 16."""
    num_rounds = 3 if num_seats < 8 else 12
    first_counted = 1 if num_seats < 8 else 3
    turn = _SEAT_OUTPUT + _SEAT_NEW
    texts = [tokens(_SEAT_TOKENS + num_rounds * turn, seed=1_000 + seat) for seat in range(num_seats)]
    prompts = []
    for number in range(num_rounds):
        length = _SEAT_TOKENS + number * turn
        prompts += [_fixed(text[: length + _SEAT_OUTPUT - 1], length) for text in texts]
    full_pages, window_pages = -(-_SEAT_TOKENS // 16), 5 * (_SEAT_WINDOW // 16 + 1)
    return Workload(
        f"seats-{num_seats}",
        f"{num_seats} seats of 21,000 tokens, round robin; full and five window:1024; "
        f"rounds {first_counted + 1} to {num_rounds}",
        read_groups(",".join(["full:16", *["window:16:1024"] * 5]), 16),
        prompts,
        (12_000,),
        live=1,
        counted_from=first_counted * num_seats,
        # a whole seat is kept with its windows; a part of one is not cheaper, a page each
        full_page_cost=1 + window_pages / full_pages,
    )


def families() -> Workload:
    """Prompts of 1,500 shared and 700 own tokens over pages that neither is a multiple of."""
    chance = random.Random(5)
    order = [family for family in range(8) for _ in range(8)]
    chance.shuffle(order)
    shared = [tokens(1_500, seed=2_000 + family) for family in range(8)]
    prompts = [
        _fixed(np.concatenate([shared[family], tokens(700, seed=3_000 + number)]), 2_200)
        for number, family in enumerate(order)
    ]
    return Workload(
        "families",
        "64 prompts of 1,500 shared and 700 own tokens in 8 families; full and align, pages of 528",
        read_groups("full:528,mamba:528:align", 528),
        prompts,
        (2_000,),
        live=1,
    )


def odd_pages() -> Workload:
    """An identical prompt of 2,048 tokens where groups have pages of 128, 4,096, 32, 2 and 8 tokens."""
    text = tokens(2_048, seed=4_000)
    groups = ",".join(f"full:{page_size}" for page_size in (128, 4_096, 32, 2, 8))
    return Workload(
        "odd-pages",
        "a prompt of 2,048 tokens again; groups with pages of 128, 4,096, 32, 2 and 8 tokens; match_unit=2",
        read_groups(groups, 16),
        [_fixed(text, 2_048), _fixed(text, 2_048)],
        (4_000,),
        live=1,
        counted_from=1,
        match_unit=2,
    )


def streams() -> Workload:
    """Two prompts, eight streams of each at once, on four shards."""
    texts = [tokens(4_000, seed=5_000 + number) for number in range(2)]
    tails = [tokens(256, seed=6_000 + number) for number in range(16)]
    prompts = [_fixed(np.concatenate([texts[number % 2], tails[number]]), 4_000) for number in range(16)]
    return Workload(
        "streams",
        "2 prompts x 8 streams on 4 shards, all live at once",
        read_groups("full:16", 16),
        prompts,
        (4_000,),
        live=16,
        num_shards=4,
    )


def made_up(num_requests: int) -> list[Workload]:
    """The workloads that need no file.

    Args:
        num_requests: requests of the agentic trace.
    """
    agents = of_trace("agents", "made-up agents", agentic_trace(num_requests), (500, 1_500, 3_000, 6_250))
    return [*agents, *map(seats, (2, 3, 4, 6, 7, 8, 10, 12)), families(), odd_pages(), streams()]
