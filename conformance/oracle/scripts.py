"""Scripts of requests, as plain data: what an engine is asked, in which order, and what is asked at once."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

__all__ = ["Ask", "Forget", "Reset", "Script", "Step", "Wave", "script_from_json"]


@dataclass(frozen=True)
class Ask:
    """A request.

    Attributes:
        name: the request's name in its script.
        prompt: token ids; where the request follows another one, those behind that one's.
        follows: the name of an earlier request whose prompt and answer this prompt begins with; "" for none.
        taken: the number of tokens of that answer that are taken over.
        salt: the cache salt; "" for none.
        adapter: the adapter that answers; "" for the model itself.
        abort_after: the number of generated tokens after which the request is taken back; 0 for never.
        bare: whether it is sent without any salt, also where salts make requests cold.
    """

    name: str
    prompt: tuple[int, ...]
    follows: str = ""
    taken: int = 0
    salt: str = ""
    adapter: str = ""
    abort_after: int = 0
    bare: bool = False

    def __str__(self) -> str:
        tokens = str(list(self.prompt)) if len(self.prompt) <= _SHOWN else f"{len(self.prompt)} tokens"
        text = f"{self.name}: {tokens}"
        if self.follows:
            text = f"{self.name}: {self.follows} and {self.taken} tokens of its answer, then {tokens}"
        text += f", salt {self.salt!r}" if self.salt else ""
        text += f", adapter {self.adapter!r}" if self.adapter else ""
        text += ", without any salt" if self.bare else ""
        return text + (f", taken back after {self.abort_after} tokens" if self.abort_after else "")


_SHOWN = 48
"""Prompts up to this many tokens are printed whole; the JSON has all of them."""


@dataclass(frozen=True)
class Wave:
    """Requests that are sent at once; the next step begins when all of them are answered.

    Attributes:
        asks: the requests.
        max_tokens: the most tokens of each answer.
        n: the number of answers that each request asks for.
    """

    asks: tuple[Ask, ...]
    max_tokens: int
    n: int = 1

    def __str__(self) -> str:
        together = " at once" if len(self.asks) > 1 else ""
        copies = f", n={self.n}" if self.n > 1 else ""
        return f"ask{together} for {self.max_tokens} tokens{copies}: " + " | ".join(map(str, self.asks))


@dataclass(frozen=True)
class Forget:
    """From here on requests are asked cold: nothing that was computed before is found by them.

    How depends on the engine: by a reset, under another cache salt, with caching off, or after a new start.
    """

    def __str__(self) -> str:
        return "ask cold from here on"


@dataclass(frozen=True)
class Reset:
    """The engine is told to forget all prefixes."""

    def __str__(self) -> str:
        return "reset the prefix cache"


Step = Wave | Forget | Reset


@dataclass(frozen=True)
class Script:
    """What an engine is asked, in order.

    Attributes:
        steps: the steps.
    """

    steps: tuple[Step, ...]

    @property
    def asks(self) -> Iterator[Ask]:
        """The requests, in order."""
        return (ask for step in self.steps if isinstance(step, Wave) for ask in step.asks)

    @property
    def num_requests(self) -> int:
        """The number of requests."""
        return sum(1 for _ in self.asks)

    def mapped(self, change: Any) -> "Script":
        """The same script with every request changed.

        Args:
            change: gives for a request another one.
        """
        return Script(
            tuple(
                replace(step, asks=tuple(change(ask) for ask in step.asks)) if isinstance(step, Wave) else step
                for step in self.steps
            )
        )

    def lines(self) -> list[str]:
        """The script in words, a line a step."""
        return [str(step) for step in self.steps]

    def as_json(self) -> list[dict[str, Any]]:
        """The script as JSON values: a list of steps, in each what is not the default."""
        return [_step_json(step) for step in self.steps]


def _step_json(step: Step) -> dict[str, Any]:
    if not isinstance(step, Wave):
        return {"do": "forget" if isinstance(step, Forget) else "reset"}
    asks = [_ask_json(ask) for ask in step.asks]
    return {"do": "ask", "max_tokens": step.max_tokens, **({"n": step.n} if step.n > 1 else {}), "requests": asks}


def _ask_json(ask: Ask) -> dict[str, Any]:
    return {name: value for name, value in asdict(ask).items() if value} | {"prompt": list(ask.prompt)}


_ASK_FIELDS = {
    **dict.fromkeys(("name", "follows", "salt", "adapter"), str),
    **dict.fromkeys(("taken", "abort_after"), int),
    "bare": bool,
}


def script_from_json(document: Any) -> Script:
    """The script that `Script.as_json` was called on (SEC-3).

    Raises:
        ValueError: the document is no such list.
    """
    if not isinstance(document, list) or not document:
        raise ValueError("a script must be a list of steps")
    return Script(tuple(_step_from(step) for step in document))


def _step_from(step: Any) -> Step:
    if not isinstance(step, Mapping):
        raise ValueError(f"a step must be an object, not {step!r:.40}")
    plain: dict[Any, Step] = {"forget": Forget(), "reset": Reset()}
    if step.get("do") in plain:
        return plain[step["do"]]
    if step.get("do") != "ask" or not isinstance(step.get("requests"), list) or not step["requests"]:
        raise ValueError(f"a step must do ask, forget or reset, not {step.get('do')!r:.40}")
    most, copies = step.get("max_tokens"), step.get("n", 1)
    if not (_is_count(most) and most and _is_count(copies) and copies):
        raise ValueError(f"max_tokens={most!r:.20} and n={copies!r:.20} must be positive")
    return Wave(tuple(map(_ask_from, step["requests"])), int(most), int(copies))


def _ask_from(ask: Any) -> Ask:
    if not isinstance(ask, Mapping) or not isinstance(ask.get("prompt"), list):
        raise ValueError(f"a request must be an object with a prompt, not {ask!r:.40}")
    if not all(map(_is_count, ask["prompt"])):
        raise ValueError("a prompt must hold token ids")
    strange = set(ask) - {"prompt", *_ASK_FIELDS}
    if strange or not isinstance(ask.get("name"), str):
        raise ValueError(f"a request has {', '.join(sorted(map(str, strange))) or 'no name'}")
    for name, kind in _ASK_FIELDS.items():
        value = ask.get(name, kind())
        if not (_is_count(value) if kind is int else isinstance(value, kind)):
            raise ValueError(f"{name}={value!r:.40} of a request must be of type {kind.__name__}")
    return Ask(**{**ask, "prompt": tuple(ask["prompt"])})


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
