"""Makes a script that shows a fault short: fewer requests first, then fewer and shorter tokens."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from ..calls.simplest import simplest, thinned
from .scripts import Ask, Script, Step, Wave

__all__ = ["shortened"]

Shown = TypeVar("Shown")


def shortened(
    script: Script, shown: Shown, shows: Callable[[Script], Shown | None], tries: int
) -> tuple[Script, Shown]:
    """A script as short as it gets in some tries that still shows a fault, and what it showed.

    Args:
        script: a script that shows one.
        shown: what it showed.
        shows: performs a script; returns what it shows, None for nothing.
        tries: the number of scripts that may be performed.
    """

    def leave_out(start: int, end: int) -> bool:
        nonlocal script, shown, tries
        for fewer in _sound((*script.steps[:start], *script.steps[end:])):
            if not tries:
                break
            tries -= 1
            found = shows(fewer)
            if found is not None:
                script, shown = fewer, found
                return True
        return False

    if any(isinstance(step, Wave) for step in script.steps):  # else the engine was lost before the first request
        thinned(lambda: len(script.steps), leave_out, len(script.steps) // 2)
        script, shown = simplest(script, shown, _shorter, shows, tries)
    return script, shown


def _shorter(script: Script) -> Iterator[Script]:
    """Scripts that are a little simpler, those that leave out the most first."""
    steps = script.steps
    for place, step in enumerate(steps):
        if isinstance(step, Wave) and len(step.asks) > 1:
            for left_out in range(len(step.asks)):
                asks = (*step.asks[:left_out], *step.asks[left_out + 1 :])
                yield from _sound((*steps[:place], replace(step, asks=asks), *steps[place + 1 :]))
    yield from _plainer(script)
    yield from _fewer_tokens(script)


def _plainer(script: Script) -> Iterator[Script]:
    """Scripts with shorter answers, fewer of them, and requests without salts, adapters and aborts."""
    waves = [step for step in script.steps if isinstance(step, Wave)]
    most, copies = max(wave.max_tokens for wave in waves), max(wave.n for wave in waves)
    for fewer in dict.fromkeys((1, most // 2, most - 1)):
        if 0 < fewer < most:
            yield _limited(script, fewer, copies)
    if copies > 1:
        yield _limited(script, most, copies - 1)
    for other in (
        script.mapped(lambda ask: replace(ask, salt="")),
        script.mapped(lambda ask: replace(ask, adapter="")),
        script.mapped(lambda ask: replace(ask, abort_after=0)),
        script.mapped(lambda ask: replace(ask, bare=False)),
    ):
        if other != script:
            yield other


def _limited(script: Script, most: int, copies: int) -> Script:
    """A script with answers of at most some tokens, and at most some of them to a request."""
    return Script(
        tuple(
            replace(step, max_tokens=min(step.max_tokens, most), n=min(step.n, copies))
            if isinstance(step, Wave)
            else step
            for step in script.steps
        )
    )


def _fewer_tokens(script: Script) -> Iterator[Script]:
    """Scripts with shorter prompts: cut at their ends, all requests of a prompt alike; then at all beginnings."""
    prompts = sorted({ask.prompt for ask in script.asks}, key=len, reverse=True)
    for prompt in prompts:
        for length in dict.fromkeys((len(prompt) // 2, len(prompt) * 3 // 4, len(prompt) - 1)):
            if 0 < length < len(prompt):
                yield script.mapped(lambda ask, prompt=prompt, length=length: _cut(ask, prompt, length))
    begins = [ask.prompt for ask in script.asks if not ask.follows]
    shortest = min(map(len, begins))
    for count in dict.fromkeys((shortest // 2, shortest // 4, 1)):
        if 0 < count < shortest:
            yield script.mapped(
                lambda ask, count=count: ask if ask.follows else replace(ask, prompt=ask.prompt[count:])
            )


def _cut(ask: Ask, prompt: tuple[int, ...], length: int) -> Ask:
    return replace(ask, prompt=prompt[:length]) if ask.prompt == prompt else ask


def _sound(steps: tuple[Step, ...]) -> Iterator[Script]:
    """A script of some steps, without requests that go on from one that was left out; none if nothing is left."""
    names: set[str] = set()
    kept: list[Step] = []
    for step in steps:
        if isinstance(step, Wave):
            asks = tuple(ask for ask in step.asks if not ask.follows or ask.follows in names)
            names |= {ask.name for ask in asks}
            if not asks:
                continue
            step = replace(step, asks=asks)
        kept.append(step)
    while kept and not isinstance(kept[-1], Wave):
        kept.pop()
    if kept:
        yield Script(tuple(kept))
