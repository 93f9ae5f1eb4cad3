"""Random schedules: who comes when with what, who is taken back, and when steps are taken; all from a seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from kvproof.spec.declarations import CacheSalt, ExtraKey, LoraAdapter

from .sampler import GREEDY, Sampling

__all__ = ["Abort", "Action", "Add", "Schedule", "Step", "draw_schedule"]


@dataclass(frozen=True)
class Add:
    """A request comes; ``str`` of it is the call on the engine, as of all actions."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = GREEDY
    priority: int = 0
    extra_keys: tuple[ExtraKey, ...] = ()

    def __str__(self) -> str:
        text = f"engine.add_request({self.name!r}, {list(self.prompt)}, max_tokens={self.max_tokens}"
        if self.sampling != GREEDY:
            text += f", sampling=Sampling({self.sampling.seed}, {self.sampling.temperature}, {self.sampling.top_k})"
        text += f", priority={self.priority}" if self.priority else ""
        return text + (f", extra_keys={self.extra_keys})" if self.extra_keys else ")")


@dataclass(frozen=True)
class Abort:
    """A request is taken back, unless it has finished by then."""

    name: str

    def __str__(self) -> str:
        return f"engine.abort({self.name!r})"


@dataclass(frozen=True)
class Step:
    """A step is taken, if there is anybody to serve."""

    def __str__(self) -> str:
        return "engine.step()"


Action = Add | Abort | Step


@dataclass(frozen=True)
class Schedule:
    """What is done with one engine; at its end steps are taken until everybody has finished.

    Attributes:
        num_pages: pages of the pool.
        actions: what is done, in order.
        num_host_pages: pages of host memory (SWAP-1).
    """

    num_pages: int
    actions: tuple[Action, ...]
    num_host_pages: int = 0


_KEYS: tuple[tuple[ExtraKey, ...], ...] = (*[()] * 6, (CacheSalt("a"),), (CacheSalt("b"),), (LoraAdapter("a"),))


def draw_schedule(
    seed: int,
    vocab_size: int,
    most_tokens: int,
    pools: Sequence[int],
    host_pages: Sequence[int] = (0,),
    most_requests: int = 12,
) -> Schedule:
    """A schedule: few texts of which all prompts are beginnings, with tails, salts and adapters. O(its size).

    Args:
        seed: of all that is drawn.
        vocab_size: tokens that there are.
        most_tokens: the most of a request, generated ones included; at least 2.
        pools: how many pages the pool may have.
        host_pages: how many pages host memory may have.
        most_requests: how many requests come at most.
    """
    draw = random.Random(seed)
    texts = [[draw.randrange(vocab_size) for _ in range(most_tokens)] for _ in range(2)]
    actions: list[Action] = []
    names: list[str] = []
    for number in range(draw.randint(3, most_requests)):
        for _ in range(draw.choice([0, 0, 0, 1, 2, 5])):
            actions.append(Step())
        if names and draw.random() < 0.1:
            actions.append(Abort(draw.choice(names)))
        generated = draw.randint(1, max(most_tokens // 4, 1))
        length = draw.randint(1, max(most_tokens - generated, 1))
        shared = draw.choice([draw.randint(0, length), length])
        own = [draw.randrange(vocab_size) for _ in range(length - shared)]
        sampled = Sampling(draw.randrange(2**32), draw.choice([0.5, 1.0]), draw.choice([0, 4]))
        names.append(f"r{number}")
        actions.append(
            Add(
                names[-1],
                (*draw.choice(texts)[:shared], *own),
                generated,
                draw.choice([GREEDY, sampled]),
                draw.choice([0, 0, 0, 1]),
                draw.choice(_KEYS),
            )
        )
    return Schedule(draw.choice(list(pools)), tuple(actions), draw.choice(list(host_pages)))
