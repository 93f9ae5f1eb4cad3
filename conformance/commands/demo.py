"""``kvproof demo``: a check of a pool with a mistake, so that one sees what a verdict looks like."""

import argparse
import inspect

from ..backends import demo
from ..console.exit_status import COULD_NOT_RUN, DEVIATES, FINE, could_not_run
from .check import add_parser as add_check

__all__ = ["add_parser", "run"]

_WORDS = "check --backend kvproof.conformance.backends.demo --machines small-pool,pool --profile quick --seed 1"

_NEXT = """
Your own next:
  kvproof new-adapter my_engine.py          a pool that conforms, to put yours in the place of
  kvproof check --backend my_engine         the verdict on it
  kvproof clauses POOL-3                    what the clause that broke says, and why it is there
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", about: str) -> None:
    """Adds the command ``demo`` to a command line; ``about`` is its line in the help."""
    commands.add_parser(
        "demo", help=about, description=f"Shows a pool with a mistake, and runs kvproof {_WORDS}."
    ).set_defaults(func=run)


def run(arguments: argparse.Namespace) -> int:
    """Shows the pool, checks it, says what comes next.

    Returns:
        The exit status: 0 where the mistake was found, 2 where the check could not run.
    """
    del arguments
    print(f"A pool with a mistake:\n\n{inspect.getsource(demo.PagePool)}\n$ kvproof {_WORDS}")
    parser = argparse.ArgumentParser("kvproof")
    add_check(parser.add_subparsers(), "")
    check = parser.parse_args(_WORDS.split())
    status: int = check.func(check)
    if status == COULD_NOT_RUN:
        return status
    print(_NEXT, end="")
    return FINE if status == DEVIATES else could_not_run("demo", "the mistake was not found: the suite has a fault")
