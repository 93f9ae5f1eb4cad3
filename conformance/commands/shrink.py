"""``kvproof shrink``: the command line around making a log short."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvproof.spec.clauses import CLAUSES

from ..backends.levels import LEVELS, Level
from ..backends.loading import Backend, load_backend
from ..calls.documents import calls_to_json
from ..console.exit_status import DEVIATES
from ..console.named import BadInputError
from ..console.terminal import visible
from ..console.writing import require_writable, write_file
from ..emitting import write_test
from ..log.entries import NewRequest, Operation
from ..log.pruning import write_log
from ..log.reading_calls import entries_of
from ..log.replaying import call_line, request_line
from ..log.shrinking import Shrunk, shrink
from ..log.shrinking_calls import Shortened, shorten
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

With --backend the operations are made on that backend beside the specification, each as a call on what earlier ones
gave: a page by the call that gave it, a hit by its look-up, a slot by its request. At --level safe the backend may give
other pages, in another order, and find something else; see kvproof try --help. What is left is made simpler, argument
by argument, and -o small.json writes it for kvproof try.

Without --backend there are only the answers that were recorded: an operation is then left out only where the
specification gives every other one the very result that the log has. Most calls that take or free pages stay, as
without one of them later calls would give other pages, and what the engine would have answered then nobody knows; at
--level safe the specification takes the pages that the engine took, and most calls can go. Nor can the log tell which
call is the cause: it may be any since the last recorded state that is right. Where there is one, those calls are
printed (the more often states_every has states recorded, the fewer). There is no backend for which --emit could write a
test.
"""

_EPILOG = """\
examples:
  kvproof shrink engine.log                                          what can go without running the engine again
  kvproof shrink engine.log --backend my_cache --emit test_bug.py    a pytest file that fails by itself
  kvproof shrink engine.log --backend my_cache -o small.log          a log again, to replay and to show
  kvproof shrink engine.log --backend my_cache --level safe -o small.json
                                                                     calls, to edit and to try

exit status: 1 the log deviates and was made short; 2 could not run, which includes that nothing in it deviates
"""


@dataclass(frozen=True)
class _Options:
    """What the command was asked for, by the options that `set_up` adds."""

    log: Path
    backend: str | None
    level: Level
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
    add(
        "--level",
        choices=LEVELS,
        default=LEVELS[0],
        help="exact: as the specification does it; safe: any order of eviction (default %(default)s)",
    )
    add(
        "-o",
        "--output",
        type=Path,
        metavar="SMALL",
        help="write what is left: as calls for kvproof try where the name ends in .json, else as a log",
    )
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
    if not options.seconds > 0:
        raise BadInputError(f"--seconds {options.seconds:g} must be above 0")
    if options.backend is None:
        _require_backend(options)
    require_writable(options.output, options.emit, options.json, read=options.log)
    if options.backend is not None:
        return _run_calls(options, load_backend(options.backend))
    redaction = Redaction() if options.redact else None
    shrunk = shrink(options.log, options.level, options.seconds, redaction, _progress)
    if shrunk.interrupted:
        _say_interrupted()
    calls = list(_calls(shrunk, options.show_tokens))
    for line in _lines(shrunk, list(shrunk.suspects) or calls):
        print(visible(line))
    if options.output is not None:
        write_log(options.output, shrunk.entries(), shrunk.shows_tokens)
    write_file(options.json, json.dumps(_json(shrunk, calls, options.level), indent=2) + "\n")
    return DEVIATES


def _require_backend(options: _Options) -> None:
    """Refuses options for which the calls must be made."""
    if options.emit is not None:
        raise BadInputError("--emit needs --backend: without one there is nothing that a test could call")
    if options.output is not None and options.output.suffix == ".json":
        raise BadInputError(f"-o {options.output} needs --backend: the recorded answers are in no sequence of calls")


def _say_interrupted() -> None:
    print("kvproof shrink: interrupted; this is what was found up to there", file=sys.stderr)


def _run_calls(options: _Options, backend: Backend) -> int:
    """Shrinks a log whose calls are made on a backend; see `run`."""
    redaction = Redaction() if options.redact else None
    shortened = shorten(options.log, backend, options.level, options.seconds, redaction, _progress)
    if shortened.interrupted:
        _say_interrupted()
    calls = [entry.text for entry in entries_of(shortened.calls, options.show_tokens)]
    for line in _lines_of_calls(shortened, calls):
        print(visible(line))
    if options.output is not None and options.output.suffix == ".json":
        write_file(options.output, json.dumps(_calls_document(options.output, shortened), indent=1) + "\n")
    elif options.output is not None:
        from ..log.recording_calls import record_calls

        record_calls(options.output, shortened.calls, backend, options.level, show_tokens=shortened.shows_tokens)
    if options.emit is not None:
        from ..emitting.calls import script_of_calls  # it knows all machines, and is needed by few

        level = "" if options.level == LEVELS[0] else f" --level {options.level}"
        found_by = f"kvproof shrink {options.log.name} --backend {options.backend}{level}"
        script = script_of_calls(shortened.calls, backend, options.level, found_by)
        for reason in write_test(options.emit, [script]):
            print(visible(reason), file=sys.stderr)
    write_file(options.json, json.dumps(_json_of_calls(shortened, calls, options.level), indent=2) + "\n")
    return DEVIATES


def _calls_document(output: Path, shortened: Shortened) -> dict[str, object]:
    try:
        return calls_to_json(shortened.calls)
    except TypeError as error:
        raise BadInputError(f"{output} not written: {error}") from error


def _difference(shortened: Shortened) -> tuple[str, str]:
    """What the last call must give or leave behind, and what it does."""
    said = shortened.said
    for name, (right, seen) in said.differences.items():
        return f"{name} = {right}", f"{name} = {seen}"
    return said.expected, said.observed


def _lines_of_calls(shortened: Shortened, calls: list[str]) -> Iterator[str]:
    """What is left, for a reader; of many calls the last ones."""
    clause = shortened.said.clause
    yield f"{shortened.operations:,} operations, {shortened.left} of them left after {shortened.tries:,} tries"
    yield f"deviates from {clause}"
    yield f"  {CLAUSES[clause].sentence}"
    expected, observed = _difference(shortened)
    yield f"  expected: {expected}"
    yield f"  observed: {observed}"
    yield from [f"  raised in {frame}" for frame in shortened.said.raised]
    left_out = len(calls) - _MOST_CALLS
    yield "  calls:" if left_out <= 0 else f"  calls; {left_out:,} before these:"
    yield from (f"    {call}" for call in calls[-_MOST_CALLS:])


def _json_of_calls(shortened: Shortened, calls: list[str], level: Level) -> dict[str, object]:
    clause = shortened.said.clause
    expected, observed = _difference(shortened)
    return {
        **header("shrunk log"),
        "level": level,
        "operations": shortened.operations,
        "left": shortened.left,
        "tries": shortened.tries,
        "seconds": round(shortened.seconds, 3),
        "right_after": None,
        "suspects": [],
        "clause": clause,
        "sentence": CLAUSES[clause].sentence,
        "expected": expected,
        "observed": observed,
        "calls": calls,
        "raised": list(shortened.said.raised),
        "deviates": True,
    }


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
    things, requests = last.player.things, last.player.requests
    for entry in last.entries:
        if isinstance(entry, NewRequest):
            tokens = entry.tokens.tolist() if show_tokens else None
            yield request_line(requests[entry.number], tokens)
        elif isinstance(entry, Operation):
            yield call_line(next(made), things, requests)


def _json(shrunk: Shrunk, calls: list[str], level: Level) -> dict[str, object]:
    difference = shrunk.last.difference
    return {
        **header("shrunk log"),
        "level": level,
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
