"""``kvproof new-adapter``: a file to begin with for who holds a package of their own against the specification."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from ..console.exit_status import FINE
from ..console.named import BadInputError

__all__ = ["TEMPLATE", "run", "set_up"]

TEMPLATE = Path(__file__).with_name("adapter.py.txt")
"""A page pool that conforms at level sound, untyped and as short as it gets."""


@dataclass(frozen=True)
class _Options:
    """What the command was asked for, by the options that `set_up` adds."""

    file: Path


def set_up(parser: argparse.ArgumentParser) -> None:
    """Says what ``new-adapter`` does and what it is asked for, and has `run` called."""
    parser.description = (
        "Writes a page pool under the names that are checked, as short as one gets that conforms. "
        "Put calls of yours in the place of what its methods do."
    )
    parser.formatter_class = argparse.HelpFormatter
    parser.add_argument("file", type=Path, metavar="FILE.py", help="the file; there must be none of its name")
    parser.set_defaults(func=run, options=_Options)


def run(options: _Options) -> int:
    """Writes the file.

    Returns:
        The exit status: 0.

    Raises:
        BadInputError: it could not be written.
    """
    file = options.file
    if file.suffix != ".py" or not file.stem.isidentifier():
        raise BadInputError(f"{file} must be named as a module, such as my_engine.py")
    try:
        with file.open("x", encoding="utf-8") as made:
            made.write(TEMPLATE.read_text(encoding="utf-8").replace("my_engine", file.stem))
    except OSError as error:
        raise BadInputError(f"{file}: {error.strerror or error}") from error
    print(f"{file}: next, kvproof check --backend {file.stem} --level sound")
    return FINE
