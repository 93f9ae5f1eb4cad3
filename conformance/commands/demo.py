"""``kvproof demo``: a check of a pool with a mistake, so that one sees what a verdict looks like."""

import argparse
import inspect
from dataclasses import dataclass

from ..backends import demo
from ..console.exit_status import COULD_NOT_RUN, DEVIATES, FINE, CannotRunError
from ..console.named import options_of
from .check import set_up as set_up_check

__all__ = ["run", "set_up"]

_WORDS = "check --backend kvproof.conformance.backends.demo --machines small-pool,pool --profile quick --seed 1"

_NEXT = """
Your own next:
  kvproof new-adapter my_engine.py                   a pool that conforms, to put yours in the place of
  kvproof check --backend my_engine --level sound    the verdict on it
  kvproof clauses POOL-3                             what the clause that broke says, and why it is there
"""


@dataclass(frozen=True)
class _Options:
    """It is asked for nothing more."""


def set_up(parser: argparse.ArgumentParser) -> None:
    """Says what ``demo`` does, and has `run` called."""
    parser.description = f"Shows a pool with a mistake, and runs kvproof {_WORDS}."
    parser.formatter_class = argparse.HelpFormatter
    parser.set_defaults(func=run, options=_Options)


def run(options: _Options) -> int:
    """Shows the pool, checks it, says what comes next.

    Returns:
        The exit status: 0 where the mistake was found, 2 where the check was interrupted.

    Raises:
        CannotRunError: the check could not run, or did not find it.
    """
    del options
    print(f"A pool with a mistake:\n\n{inspect.getsource(demo.PagePool)}\n$ kvproof {_WORDS}")
    parser = argparse.ArgumentParser("kvproof check")
    set_up_check(parser)
    check = parser.parse_args(_WORDS.split()[1:])
    status: int = check.func(options_of(check.options, check))
    if status == COULD_NOT_RUN:
        return status
    print(_NEXT, end="")
    if status != DEVIATES:
        raise CannotRunError("the mistake was not found: the suite has a fault")
    return FINE
