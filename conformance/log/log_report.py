"""What came of replaying a log, for a reader and for a program."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..calls.contrast import beside
from ..console.terminal import visible
from ..report.document import header
from .replaying import LogResult

__all__ = ["log_json", "log_lines"]


def log_lines(result: LogResult) -> Iterator[str]:
    """The result as lines in which nothing can command a terminal (SEC-4)."""
    yield from map(visible, _lines(result))


def _lines(result: LogResult) -> Iterator[str]:
    held = "the specification" if result.backend == "kvproof.spec" else result.backend
    yield f"{Path(result.path).name}: {result.operations:,} operations and {result.states:,} states held to {held}"
    if result.cut is not None:
        yield f"the log is incomplete, {result.cut}: replayed up to there"
    wrong = result.wrong
    if wrong is None:
        yield "no difference" if result.cut is None else "no difference up to there"
        return
    yield ""
    yield f"operation {wrong.number:,} deviates from {wrong.clause}"
    yield f"  {wrong.sentence}"
    yield f"  expected: {wrong.expected}"
    yield f"  observed: {wrong.observed}"
    yield "  calls, the last ones:"
    yield from (f"    {line}" for line in (*wrong.earlier, wrong.call))
    states = {"before": wrong.before, "after, as it must be": wrong.after}
    if wrong.observed_after:
        states["after, as it was recorded"] = wrong.observed_after
    for title, state in states.items():
        yield f"  {title}:"
        for name, value in state.items():
            others = [other[name] for other in states.values() if name in other]
            yield f"    {name} = {beside(value, *others)[0]}"


def log_json(result: LogResult) -> dict[str, Any]:
    """The result as JSON values."""
    return {**header("log replay"), **result.to_json(), "deviates": result.wrong is not None}
