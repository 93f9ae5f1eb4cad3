"""``kvproof show``: draws an operation log as one page of HTML, or as a trace for Perfetto."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ..console.exit_status import FINE
from ..console.writing import require_writable, write_file
from ..log import frames
from ..log.frames import MOST_FRAMES, Frame, every
from ..timeline import document, page, trace

__all__ = ["run", "set_up"]

_DESCRIPTION = """\
Draws an operation log over time: which pages were free, cached, held by which request, shared, evicted; the free
queue, the tables and the first operation at which the log differs from the specification. One file of HTML, which
needs nothing else and loads nothing. A FILE that ends in .json is a trace in its place, for logs of thousands of pages
or operations: open it at ui.perfetto.dev or chrome://tracing, where a request is a bar, with marks where it hit and
where it gave way, beside how many pages were held, cached and free, and can be searched for by name.

In the page: the arrow keys step through the operations, with Shift through the engine's steps; PgUp and PgDn go
a hundred, Home and End to the ends, + and - look closer or from further, f goes to the fault. #120 behind the file's
address opens it at picture 120. Of a log that is too long to be drawn whole every n-th operation is drawn, and its last
one, or the first that is wrong; the page says so.
"""

_EPILOG = """\
examples:
  kvproof show engine.log -o engine.html
  kvproof show engine.log -o engine.html --steps --redact
  kvproof show engine.log -o engine.json                   for Perfetto; an operation takes a millisecond there

exit status: 0 drawn; 2 the log cannot be read or the page cannot be written
"""


_MOST_IN_A_TRACE = 100_000
"""The most operations of a trace: programs that open one draw what is in sight."""


@dataclass(frozen=True)
class _Options:
    """What the command was asked for, by the options that `set_up` adds."""

    log: Path
    output: Path
    steps: bool
    show_tokens: bool
    redact: bool


def set_up(parser: argparse.ArgumentParser) -> None:
    """Says what ``show`` does and what it is asked for, and has `run` called."""
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add = parser.add_argument
    add("log", type=Path, metavar="LOG", help="the operation log, as kvproof.conformance.record writes it")
    add("-o", "--output", type=Path, required=True, metavar="FILE", help="the page to be written, or the trace: .json")
    add("--steps", action="store_true", help="draw the engine's steps only (commits, batched calls), not every call")
    add("--show-tokens", action="store_true", help="show token ids as the log has them")
    add("--redact", action="store_true", help="replace request ids, equality kept")
    parser.set_defaults(func=run, options=_Options)


def run(options: _Options) -> int:
    """Draws as asked.

    Returns:
        The exit status: 0 drawn.
    """
    require_writable(options.output, read=options.log)  # better known now than after a long log
    as_trace = options.output.suffix == ".json"
    most = _MOST_IN_A_TRACE if as_trace else MOST_FRAMES
    apart = every(options.log, steps_only=options.steps, most_frames=most)
    shown = frames(
        options.log, every=apart, steps_only=options.steps, show_tokens=options.show_tokens, redact=options.redact
    )
    if as_trace:
        events = trace(options.log.name, _with_progress(shown))
        write_file(options.output, json.dumps(events, separators=(",", ":")))
        print(f"{options.output}: {len(events['traceEvents']):,} events; open it at ui.perfetto.dev")
        return FINE
    made = document(options.log.name, _with_progress(shown), apart)
    write_file(options.output, page(made))
    fault = next((number for number, frame in enumerate(made["frames"], 1) if frame[-1] is not None), None)
    seen = f"; the fault is in picture {fault:,}" if fault else ""
    sampled = f", one for {apart:,} {'steps' if options.steps else 'operations'}" if apart > 1 else ""
    whole = f"; -o {options.output.with_suffix('.json')} has more of them, for ui.perfetto.dev" if apart > 1 else ""
    print(f"{options.output}: {len(made['frames']):,} pictures of {made['num_pages']:,} pages{sampled}{seen}{whole}")
    return FINE


def _with_progress(given: Iterator[Frame]) -> Iterator[Frame]:
    """The same frames, their number being told meanwhile."""
    with Console(stderr=True, emoji=False).status("operation 0") as status:
        for frame in given:
            if frame.number % 100 == 0 or frame.number > 10_000:
                status.update(f"operation {frame.number:,}")
            yield frame
