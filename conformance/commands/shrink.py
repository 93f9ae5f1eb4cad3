"""``kvproof shrink``: the command line around making a log short."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvproof.spec.clauses import CLAUSES

from ..backends.loading import load_backend
from ..console.exit_status import DEVIATES
from ..console.named import BadInputError
from ..console.terminal import visible
from ..console.writing import require_writable, write_file
from ..emitting import write_test
from ..log.entries import NewRequest, Operation
from ..log.pruning import write_log
from ..log.replaying import call_line, request_line
from ..log.shrinking import Shrunk, shrink
from ..report.document import header
from ..report.redaction import Redaction

__all__ = ["run", "set_up"]

_MOST_CALLS = 60
"""The most calls that are printed."""

_DESCRIPTION = """\
Makes a log of kvproof.conformance.record that deviates as short as it can: the calls of a method are left out, then
those of requests, then any, halves first and single ones last. What still deviates by the same clause is kept; what the
specification refuses only because something was left out does not count. ^C ends the search, and what was found up to
there is printed and written.

With --backend the operations are made on that backend beside the specification. Without it there are only the answers
that were recorded: an operation is then left out only where the specification gives every other one the very result
that the log has. Most calls that take or free pages stay, as without one of them later calls would give other pages,
and what the engine would have answered then nobody knows. Nor can the log tell which call is the cause: it may be any
since the last recorded state that is right. Where there is one, those calls are printed (the more often states_every
has states recorded, the fewer). There is no backend for which --emit could write a test.
"""

_EPILOG = """\
examples:
  kvproof shrink engine.log                                          what can go without running the engine again
  kvproof shrink engine.log --backend my_cache --emit test_bug.py    a pytest file that fails by itself
  kvproof shrink engine.log --backend my_cache -o small.log          a log again, to replay and to show

exit status: 1 the log deviates and was made short; 2 could not run, which includes that nothing in it deviates
"""


@dataclass(frozen=True)
class _Options:
    """What the command was asked for, by the options that `set_up` adds."""

    log: Path
    backend: str | None
    output: Path | None
    emit: Path | None
    seconds: float
    show_tokens: bool
    redact: bool
    json: Path | None


def set_up(parser: argparse.ArgumentParser) -> None:
    """Says what ``shrink`` does and what it is asked for, and has `run` called."""
    parser.usage = "kvproof shrink LOG [options]"
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add = parser.add_argument
    add("log", type=Path, metavar="LOG", help="the log")
    add("--backend", metavar="M[:A]", help="module, or object in it, that makes the calls beside the specification")
    add("-o", "--output", type=Path, metavar="SMALL", help="write what is left as a log")
    add("--emit", type=Path, metavar="FILE.py", help="write it as a pytest file that fails by itself; needs --backend")
    add("--seconds", type=float, default=60.0, metavar="S", help="stop after so long (default %(default)g)")
    add("--show-tokens", action="store_true", help="show token ids")
    add("--redact", action="store_true", help="show other ids in place of the requests'")
    add("--json", type=Path, metavar="FILE", help="write what was found to a file as well")
    parser.set_defaults(func=run, options=_Options)


def run(options: _Options) -> int:
    """Shrinks as asked.

    Returns:
        The exit status: 1 the log deviates and was made short.
    """
    if options.emit is not None and options.backend is None:
        raise BadInputError("--emit needs --backend: without one there is nothing that a test could call")
    if not options.seconds > 0:
        raise BadInputError(f"--seconds {options.seconds:g} must be above 0")
    require_writable(options.output, options.emit, options.json, read=options.log)
    backend = None if options.backend is None else load_backend(options.backend)
    shrunk = shrink(options.log, backend, options.seconds, Redaction() if options.redact else None, _progress)
    if shrunk.interrupted:
        print("kvproof shrink: interrupted; this is what was found up to there", file=sys.stderr)
    calls = list(_calls(shrunk, options.show_tokens))
    for line in _lines(shrunk, list(shrunk.suspects) or calls):
        print(visible(line))
    if options.output is not None:
        write_log(options.output, shrunk.entries(), shrunk.shows_tokens)
    if options.emit is not None and backend is not None:
        from ..log.script_lines import script_of  # it knows all machines, and is needed by few

        found_by = f"kvproof shrink {options.log.name} --backend {options.backend}"
        script = script_of(shrunk.last, backend.name, backend.holder, found_by)
        for reason in write_test(options.emit, [script]):
            print(visible(reason), file=sys.stderr)
    write_file(options.json, json.dumps(_json(shrunk, calls), indent=2) + "\n")
    return DEVIATES


def _progress(left: int, tries: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{left} operations left after {tries} tries ", end="", file=sys.stderr, flush=True)


def _lines(shrunk: Shrunk, calls: list[str]) -> Iterator[str]:
    """What is left, for a reader; of many calls the last ones.

    Args:
        shrunk: what is left.
        calls: the calls that are shown: those that are left, or those of which one went wrong.
    """
    last = shrunk.last
    difference, played = last.difference, last.played
    yield f"{shrunk.operations:,} operations, {len(played)} of them left after {shrunk.tries:,} tries"
    yield f"deviates from {difference.clause}"
    yield f"  {CLAUSES[difference.clause].sentence}"
    yield f"  expected: {difference.expected}"
    yield f"  observed: {difference.observed}"
    raised = last.answers[-1][1].raised
    yield from [f"  raised in {frame}" for frame in raised]
    heading = "calls"
    if shrunk.right_after is not None:
        heading = f"the state after operation {shrunk.right_after:,} is right, one of the calls since then is not"
    left_out = len(calls) - _MOST_CALLS
    yield f"  {heading}:" if left_out <= 0 else f"  {heading}; {left_out:,} before these:"
    yield from (f"    {call}" for call in calls[-_MOST_CALLS:])


def _calls(shrunk: Shrunk, show_tokens: bool) -> Iterator[str]:
    """The requests and the calls that are left, each on one line."""
    last = shrunk.last
    made = iter(last.played)
    things, requests = last.player.sides[0].things, last.player.requests
    for entry in last.entries:
        if isinstance(entry, NewRequest):
            tokens = entry.tokens.tolist() if show_tokens else None
            yield request_line(requests[entry.number], tokens)
        elif isinstance(entry, Operation):
            yield call_line(next(made), things, requests)


def _json(shrunk: Shrunk, calls: list[str]) -> dict[str, object]:
    difference = shrunk.last.difference
    return {
        **header("shrunk log"),
        "operations": shrunk.operations,
        "left": len(shrunk.last.played),
        "tries": shrunk.tries,
        "seconds": round(shrunk.seconds, 3),
        "right_after": shrunk.right_after,
        "suspects": list(shrunk.suspects),
        "clause": difference.clause,
        "sentence": CLAUSES[difference.clause].sentence,
        "expected": difference.expected,
        "observed": difference.observed,
        "calls": calls,
        "raised": list(shrunk.last.answers[-1][1].raised),
        "deviates": True,
    }
