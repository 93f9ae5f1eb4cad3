"""Options of commands: lists of names, with commas between them, and those that would do nothing."""

import argparse
import difflib
from collections.abc import Iterable, Sequence

from .exit_status import CannotRunError

__all__ = ["BadInputError", "chosen", "did_you_mean", "require_used", "words_of"]

_NEAR = 0.75
"""How alike a word must be to one that there is, of 1, for the message to ask whether that one was meant."""


class BadInputError(CannotRunError):
    """An option that makes no sense; the message is one line."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message: the known word that is nearest, whatever its case; empty if none is near."""
    spelled = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), spelled, 1, _NEAR)
    return f"; did you mean {spelled[near[0]]}?" if near else ""


def words_of(text: str) -> list[str]:
    """The words between the commas of a text; none is empty."""
    return [word.strip() for word in text.split(",") if word.strip()]


def chosen(option: str, given: str | None, known: Sequence[str]) -> list[str]:
    """Those of the known names that an option lists, in their own order; all where it is not given.

    Raises:
        BadInputError: it lists none, or one that is not known.
    """
    if given is None:
        return list(known)
    words = words_of(given)
    strange = [word for word in words if word not in known]
    if strange or not words:
        meant = did_you_mean(strange[0], known) if strange else ""
        raise BadInputError(f"{option} {given}: no {', '.join(strange) or 'name'}; there are {', '.join(known)}{meant}")
    return [name for name in known if name in words]


def require_used(args: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """Refuses options that would be ignored.

    Args:
        args: the arguments, with the parser's ``get_default`` as ``default_of``.
        names: the options that do nothing here, as arguments are named.
        why: when that is, as in "with --url".

    Raises:
        BadInputError: one of them has another value than its default.
    """
    for name in names:
        value = getattr(args, name)
        if value != args.default_of(name):
            said = f"--{name.replace('_', '-')}{'' if value is True or value == '' else f' {value}'}"
            raise BadInputError(f"{said} says nothing {why}")
