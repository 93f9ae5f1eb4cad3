"""Engines that tests name on command lines: each is made, or is bad, in its own way."""

import os
import random
import time
from collections.abc import Sequence
from typing import Any

from .small_server import TextEngine

__all__ = [
    "Asynchronous",
    "Cached",
    "Dying",
    "Even",
    "Hanging",
    "Lazy",
    "Noisy",
    "Numberless",
    "Raising",
    "Sampling",
    "Short",
    "Silent",
    "TextEngine",
    "Unmade",
    "Unresettable",
    "Wide",
    "given",
    "no_engine",
]

given = TextEngine()
no_engine = 3


class Cached(TextEngine):
    """A warm request is answered with another last token."""

    def generate(self, prompts: Any, max_tokens: int, *, n: int = 1, cache_salts: Any = None) -> Any:
        answers = super().generate(prompts, max_tokens, n=n, cache_salts=cache_salts)
        for (answer, *_), prompt in zip(answers, prompts, strict=True):
            if answer["cached_tokens"] >= 8:
                answer["token_ids"][-1] = (answer["token_ids"][-1] + len(prompt)) % self.vocab_size
        return answers


class Hanging(TextEngine):
    """Two requests at once are never answered."""

    def generate(self, prompts: Any, max_tokens: int) -> Any:  # type: ignore[override]
        if len(prompts) > 1:
            time.sleep(60)
        return super().generate(prompts, max_tokens)


class Dying(TextEngine):
    """Two requests at once take the process with them."""

    def generate(self, prompts: Any, max_tokens: int) -> Any:  # type: ignore[override]
        if len(prompts) > 1:
            os._exit(7)
        return super().generate(prompts, max_tokens)


class Raising(TextEngine):
    """A prompt of a whole number of pages is refused, but when it is asked first."""

    def generate(self, prompts: Any, max_tokens: int) -> Any:  # type: ignore[override]
        if any(len(prompt) % 4 == 0 and tuple(prompt) in self.asked for prompt in prompts):
            raise ValueError("no room")
        self.asked.update(map(tuple, prompts))
        return super().generate(prompts, max_tokens)

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[tuple[int, ...]] = set()

    def reset(self) -> None:
        super().reset()
        self.asked.clear()


class Noisy(TextEngine):
    """Log-probabilities vary a little from call to call."""

    size = 0.004

    def __init__(self) -> None:
        super().__init__()
        self.draw = random.Random(0)

    def following(self, text: Sequence[int]) -> tuple[int, float]:
        token, logprob = super().following(text)
        return token, logprob - self.draw.random() * self.size


class Sampling(TextEngine):
    """Tokens are drawn, whatever the temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.draw = random.Random(0)

    def following(self, text: Sequence[int]) -> tuple[int, float]:
        del text
        token = self.draw.randrange(self.vocab_size)
        return token, -1.0 - token / 4


class Silent(TextEngine):
    """Answers have no log-probabilities."""

    def generate(self, prompts: Any, max_tokens: int) -> Any:  # type: ignore[override]
        return [{"token_ids": own[0]["token_ids"]} for own in super().generate(prompts, max_tokens)]


class Lazy(TextEngine):
    """Answers are generators, of generators."""

    def generate(self, prompts: Any, max_tokens: int) -> Any:  # type: ignore[override]
        for own in super().generate(prompts, max_tokens):
            yield (token for token in own[0]["token_ids"]), (logprob for logprob in own[0]["logprobs"])


class Asynchronous(TextEngine):
    """Answers have to be awaited."""

    async def generate(self, prompts: Any, max_tokens: int) -> Any:  # type: ignore[override]
        return super().generate(prompts, max_tokens)


class Even(Sampling):
    """Tokens are drawn, all of them as likely as each other."""

    def following(self, text: Sequence[int]) -> tuple[int, float]:
        return super().following(text)[0], -3.5


class Numberless(TextEngine):
    """No log-probability is a number."""

    def following(self, text: Sequence[int]) -> tuple[int, float]:
        return super().following(text)[0], float("nan")


class Short:
    """It doesn't say how many tokens it takes, and fails at more."""

    page_size, vocab_size = TextEngine.page_size, TextEngine.vocab_size

    def __init__(self) -> None:
        self.engine = TextEngine()
        self.reset = self.engine.reset

    def generate(self, prompts: Any, max_tokens: int) -> Any:
        if max(map(len, prompts)) + max_tokens > 50:
            raise IndexError("position 50")
        return self.engine.generate(prompts, max_tokens)


class Unresettable(TextEngine):
    """Nothing is forgotten."""

    def reset(self) -> None:
        raise RuntimeError("not\nnow")


class Wide(TextEngine):
    """It says that it has more tokens than its model has."""

    vocab_size = 1000

    def generate(self, prompts: Any, max_tokens: int) -> Any:  # type: ignore[override]
        if max(map(max, prompts)) >= TextEngine.vocab_size:
            raise IndexError("embedding")
        return super().generate(prompts, max_tokens)


class Unmade(TextEngine):
    """None is made; it says what the environment makes of JAX's devices."""

    def __init__(self) -> None:
        raise ValueError(f"flags {os.environ.get('XLA_FLAGS')}")
