"""``kvproof replay LOG``: what the command does where it is given a log and not a trace."""

import argparse
import json
import sys

from kvproof.spec.clauses import CLAUSES

from ..console.exit_status import DEVIATES, FINE
from ..console.named import words_of
from ..console.writing import require_writable, write_file
from ..log.format import LogError
from ..log.replaying import Replayed, log_json, log_lines, replay_log

__all__ = ["progress", "read_clauses", "run"]

_EVERY = 2_000
"""Operations from one line of progress to the next; the specification makes them in a second or so."""


def run(args: argparse.Namespace) -> int:
    """Replays the log that the command names.

    Returns:
        The exit status: 0 no difference, 1 a wrong step.
    """
    ignored = read_clauses(args.ignore)
    require_writable(args.json, read=args.trace)
    result = replay_log(
        args.trace,
        args.backend or "kvproof.spec",
        progress,
        ignore=ignored,
        show_tokens=args.show_tokens,
        redact=args.redact,
    )
    for line in log_lines(result):
        print(line)
    write_file(args.json, json.dumps(log_json(result), indent=2) + "\n")
    return FINE if result.wrong is None else DEVIATES


def read_clauses(text: str | None) -> frozenset[str]:
    """Reads labels of clauses with commas between them.

    Raises:
        LogError: there is no such clause.
    """
    labels = words_of(text or "")
    unknown = [label for label in labels if label not in CLAUSES]
    if unknown:
        raise LogError(f"--ignore: there is no clause {unknown[0]}")
    return frozenset(labels)


def progress(replayed: Replayed) -> None:
    """Says on a terminal how far a replay has come."""
    number = replayed.operation.number
    if number % _EVERY == 0 and sys.stderr.isatty():
        print(f"\r{number:,} operations", end="", file=sys.stderr, flush=True)
