"""Asks an engine one script again: what emitted tests and ``--script`` do."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from .engine_process import EngineProcess
from .http_engine import HttpEngine
from .judging import contradiction_of
from .performing import Performer
from .probing import find_out
from .relations import Sizes
from .scripts import Script, script_from_json
from .subjects import Subject, UnusableError

__all__ = ["SIZES", "replay", "replay_script", "subject_of"]

SIZES = ("page_size", "max_model_len", "vocab_size", "chunk", "window", "pool")
"""The facts of an engine that whoever asks may say, by their names in `Facts`."""


def subject_of(engine: str | None, url: str | None, timeout: float, model: str | None = None, **known: Any) -> Subject:
    """The engine that is named, with what is said of it in place of what it says itself.

    Args:
        engine: ``module:attribute``, or None.
        url: where a server is, or None.
        timeout: the seconds that a request may take.
        model: the name of the server's model.
        known: facts, see `SIZES`, and ``adapters``.

    Raises:
        UnusableError: it can't be had, or a fact makes no sense.
    """
    given = {name: value for name, value in known.items() if value is not None}
    for name in SIZES:
        if name in given and given[name] < 1:
            raise UnusableError(f"{name}={given[name]} must be at least 1")
    subject: Subject
    if engine is not None:
        subject = EngineProcess(engine, timeout)
    elif url is not None:
        subject = HttpEngine(url, timeout, model, given.get("vocab_size"))
    else:
        raise UnusableError("neither an engine nor a url is given")
    if "adapters" in given:
        given["adapters"] = tuple(given["adapters"])
        given["offers"] = subject.facts.offers | ({"adapters"} if given["adapters"] else set())
    subject.facts = replace(subject.facts, **given)
    return subject


def replay(
    script: list[dict[str, Any]],
    bound: float,
    engine: str | None = None,
    url: str | None = None,
    timeout: float = 120.0,
    offers: Collection[str] = (),
    **known: Any,
) -> str | None:
    """Asks an engine what a script says, from a state in which it knows nothing of it.

    Args:
        script: the script, as `Script.as_json` gives it.
        bound: how far log-probabilities may be apart.
        engine: ``module:attribute``, or None.
        url: where a server is, or None.
        timeout: the seconds that a request may take.
        offers: what the engine is said to offer.
        known: see `subject_of`.

    Returns:
        What contradicts, in a line; None if nothing does.

    Raises:
        UnusableError: the engine can't be had, or its answers make no sense.
        ValueError: the script is none.
    """
    wanted = script_from_json(script)
    subject = subject_of(engine, url, timeout, **known)
    try:
        return replay_script(subject, wanted, bound, frozenset(offers))
    finally:
        subject.close()


def replay_script(subject: Subject, script: Script, bound: float, insisted: frozenset[str]) -> str | None:
    """See `replay`."""
    import random

    facts = find_out(subject, random.Random(0), insisted)
    performer = Performer(subject, Sizes.of(facts).low)
    history = performer.perform(script)
    found = contradiction_of(performer, history, bound)
    if found is not None:
        return f"expected {found.expected}; observed {found.observed}"
    if history.refused:
        raise UnusableError(f"a request is refused: {history.refused}")
    return None
