"""The command ``kvproof``: its subcommands; what they need is imported when they run."""

import argparse
import importlib.util
import sys
from collections.abc import Sequence

from kvproof import __version__

from .exit_status import COULD_NOT_RUN

__all__ = ["main"]

_DESCRIPTION = """\
Holds any paged KV cache against the specification kvproof.spec, clause by clause.

A backend is named as module or module:attribute; it is any module, class or object that has some of the
public names of kvproof.spec, such as PagePool, PageTable or ragged_paged_attention. What it lacks is not checked.
"""

_EPILOG = """\
examples:
  kvproof check                                    the fast backend against every clause, in about a minute
  kvproof check --backend my_cache.pool            a backend of your own
  kvproof check --clauses POOL-5,R1 --seed 7       two clauses, with the draws of an earlier run
  kvproof clauses                                  what the clauses say, where they are written, what checks them
  kvproof replay --synthetic                       a made-up request trace through a backend

exit status: 0 no deviation; 1 the backend deviates; 2 could not run
"""

_REPLAY_HELP = "serve a request trace through a backend and report hits, evictions and time"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        argv: the arguments; None for those of the process.

    Returns:
        The exit status: 0 no deviation, 1 the backend deviates, 2 could not run.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in arguments if not word.startswith("-")), None)
    asks_for_help = any(word in ("-h", "--help", "--version") for word in arguments)
    if command in ("check", "clauses", "replay") and (command == "replay" or not asks_for_help):
        missing = [name for name in ("hypothesis", "rich") if importlib.util.find_spec(name) is None]
        if missing:
            print(f"kvproof: {' and '.join(missing)} missing: pip install 'kvproof[conformance]'", file=sys.stderr)
            return COULD_NOT_RUN
    parser = _parser(command)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as end:  # argparse has printed why
        return end.code if isinstance(end.code, int) else COULD_NOT_RUN
    status: int = parsed.func(parsed)
    return status


def _parser(command: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "kvproof", description=_DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"kvproof {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_check(commands)
    _add_clauses(commands)
    if command == "replay":
        from .replay_command import add_parser  # it imports what a replay needs

        add_parser(commands)
    else:
        commands.add_parser("replay", help=_REPLAY_HELP)
    return parser


def _add_check(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    check = commands.add_parser(
        "check",
        help="hold a backend against the specification",
        description="""\
Makes random sequences of calls on the backend and on the specification, compares every result, every refusal
and the whole observable state after every call, and says for each clause what came of it:

  conforms      compared in that many steps, without a difference
  deviates      a difference was seen; the shortest sequence of calls that shows it is printed
  undecided     not compared, or hardly, because a deviation from another clause ended the search
  not offered   the backend does not have what the clause is about
""",
        epilog="""\
examples:
  kvproof check --backend kvproof.spec --examples 20
  kvproof check --machines pool,queue --clauses POOL-3 --seed 7 --json report.json

exit status: 0 no deviation; 1 the backend deviates; 2 could not run
""",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = check.add_argument
    add("--backend", default="kvproof.fast", metavar="M[:A]", help="module, or object in it (default %(default)s)")
    add("--clauses", metavar="L,L", help="look at these clauses only, such as POOL-3,R1")
    add("--machines", metavar="A,B", help="run these machines only: queue, pool, manager, table, attention, ...")
    add("--examples", type=int, metavar="N", help="sequences of calls for each machine (default: enough for a minute)")
    add("--seed", type=int, metavar="S", help="draw as an earlier run did (default: a new seed, which is printed)")
    add(
        "--jobs", type=int, metavar="N", help="processes that run machines; the report is the same (default: 2 at most)"
    )
    add("--json", metavar="FILE", help="write the report to a file as well")
    check.set_defaults(func=_check)


def _add_clauses(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    clauses = commands.add_parser(
        "clauses",
        help="list the clauses, where each is implemented and what checks it",
        description="Lists every clause of the contract: its sentence, the code of kvproof.spec that implements it, "
        "and the properties that check it, named as machine.step.",
    )
    clauses.add_argument("--json", metavar="FILE", help="write the list to a file instead; - for standard output")
    clauses.set_defaults(func=_clauses)


def _check(arguments: argparse.Namespace) -> int:
    from .check_command import run_check

    return run_check(arguments)


def _clauses(arguments: argparse.Namespace) -> int:
    from .clauses_command import run_clauses

    return run_clauses(arguments)
