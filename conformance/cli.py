"""The command ``kvproof``: its subcommands; what they need is imported when they run."""

import argparse
import importlib
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Sequence

from kvproof import __version__

from .backends.raising import interruptible, was_interrupted
from .console.exit_status import COULD_NOT_RUN, CannotRunError, could_not_run
from .console.named import did_you_mean, options_of
from .console.terminal import Unheard

__all__ = ["main"]

_DESCRIPTION = """\
Holds any paged KV cache against the specification kvproof.spec, clause by clause.

A backend is named as module or module:attribute; it is any module, class or object that has some of the
public names of kvproof.spec, such as PagePool, PageTable or ragged_paged_attention. What it lacks is not checked.
"""

_FIRST = """\
kvproof holds any paged KV cache against a contract and says which clause it breaks, by which calls.
  kvproof demo                           a pool with a mistake, and the verdict on it: half a minute
  kvproof new-adapter my_engine.py       a file to begin with: what of yours is checked, under which names
  kvproof check --backend my_engine      the verdict on yours; without --backend on kvproof.fast
  kvproof clauses POOL-5                 what a clause says, why it is there, an example
  kvproof --help                         all commands: logs, traces, servers, drawings
"""
"""What is said where nothing is asked for."""

_EPILOG = """\
examples:
  kvproof check                                    the fast backend against every clause, in a few minutes
  kvproof check --backend my_cache.pool            a backend of your own
  kvproof check --clauses POOL-5,R1 --seed 7       two clauses, with the draws of an earlier run
  kvproof try calls.py --backend my_cache.pool     a few calls written by hand, and the verdict on each
  kvproof clauses POOL-5                           what a clause says, why it is there, what checks it
  kvproof replay --synthetic                       a made-up request trace through a backend
  kvproof serve-check                              a model served through a backend, against dense attention

exit status: 0 no deviation; 1 the backend deviates; 2 could not run
"""

_COMMANDS = {
    "demo": ("demo", "hold a pool with a mistake against the specification: what a verdict looks like"),
    "new-adapter": ("new_adapter", "write a file to begin with: your classes under the names that are checked"),
    "check": ("check", "hold a backend against the specification"),
    "try": ("try_calls", "make a few calls that you wrote down on a backend, and see the verdict on each"),
    "clauses": (
        "clauses",
        "list the clauses; of those that are named, why they are there and an example",
    ),
    "replay": ("replay", "serve a request trace through a backend, or find the first wrong step of an operation log"),
    "shrink": ("shrink", "make an operation log that deviates short"),
    "strength": ("strength", "run the suite on the seeded bugs and say what it catches"),
    "serve-check": ("serve_check", "serve a model through a backend by random schedules, against dense attention"),
    "show": ("show", "draw an operation log as one page of HTML"),
}
"""Every command with its module in ``commands``, which has ``set_up(parser)``, and its line in the help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: the arguments; None for those of the process.

    Returns:
        The exit status: 0 no deviation, 1 the backend deviates, 2 could not run.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # it is the process's own
        sys.stdout = Unheard(sys.stdout)
    if not arguments:
        print(_FIRST, end="")
        return COULD_NOT_RUN
    command = next((word for word in arguments if not word.startswith("-")), None)
    if command in _COMMANDS:
        missing = [name for name in ("hypothesis", "rich") if importlib.util.find_spec(name) is None]
        if missing:
            print(f"kvproof: {' and '.join(missing)} missing: pip install 'kvproof[conformance]'", file=sys.stderr)
            return COULD_NOT_RUN
    try:
        with interruptible(signal.SIGINT, signal.SIGTERM):  # the processes that a command has started end with it
            status = _run(command, arguments)
    except KeyboardInterrupt:
        print(f"kvproof {command}: interrupted", file=sys.stderr)
        status = COULD_NOT_RUN
    if argv is None and was_interrupted():
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)  # JAX, broken off in the middle, would end the interpreter by SIGSEGV
    return status


def _run(command: str | None, arguments: Sequence[str]) -> int:
    """Imports the command, reads its arguments and runs it; returns the exit status."""
    parser, chosen = _parser(command)
    try:
        if command not in (*_COMMANDS, None):
            parser.error(f"there is no command {command}{did_you_mean(str(command), _COMMANDS)}")
        parsed, strange = parser.parse_known_args(arguments)
        if strange:
            known = re.findall(r"(?<!\w)--[a-z][a-z-]*", chosen.format_help())
            said = ", ".join(f"{word}{did_you_mean(word, known)}" for word in strange)
            named = len(strange) == 1 and "--backend" in known and not said.startswith("-")
            chosen.error(f"unrecognized arguments: {said}{f'; did you mean --backend {said}?' if named else ''}")
    except SystemExit as end:  # argparse has printed why
        return end.code if isinstance(end.code, int) else COULD_NOT_RUN
    try:
        status: int = parsed.func(options_of(parsed.options, parsed))
    except CannotRunError as error:
        status = could_not_run(str(command), str(error))
    return status


def _parser(command: str | None) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parser of the command line, and that of the command in it; the same where there is none."""
    parser = argparse.ArgumentParser(
        "kvproof", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"kvproof {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (module, about) in _COMMANDS.items():
        added = commands.add_parser(name, help=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == command:  # only the command that runs is imported
            importlib.import_module(f".commands.{module}", __package__).set_up(added)
    return parser, commands.choices.get(str(command), parser)
