"""Options of commands: lists of names, with commas between them, and those that would do nothing."""

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import Field, fields
from typing import Any, ClassVar, Protocol, TypeVar

from .exit_status import CannotRunError

__all__ = ["BadInputError", "chosen", "did_you_mean", "family_of", "options_of", "require_used", "words_of"]


class _Declared(Protocol):
    """Options as a dataclass declares them."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


class _WithDefaults(Protocol):
    """Options that know their defaults."""

    @property
    def default_of(self) -> Callable[[str], Any]:
        """Says the default of an option."""


Declared = TypeVar("Declared", bound=_Declared)

_NEAR = 0.75
"""How alike a word must be to one that there is, of 1, for the message to ask whether that one was meant."""


class BadInputError(CannotRunError):
    """An option that makes no sense; the message is one line."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message: the known word that is nearest, whatever its case; empty if none is near."""
    spelled = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), spelled, 1, _NEAR)
    return f"; did you mean {spelled[near[0]]}?" if near else ""


def family_of(label: str) -> str:
    """What the labels of a family of clauses begin with, such as POOL."""
    return label.rstrip("0123456789").rstrip("-")


def words_of(text: str) -> list[str]:
    """The words between the commas of a text; none is empty."""
    return [word.strip() for word in text.split(",") if word.strip()]


def chosen(
    option: str, given: str | None, known: Sequence[str], family_of: Callable[[str], str] | None = None
) -> list[str]:
    """Those of the known names that an option lists, in their own order; all where it is not given.

    Args:
        option: the option.
        given: what it was given; None if it was not given.
        known: the names.
        family_of: makes of a name that of its family, which stands for all names in it; None if there are no families.

    Raises:
        BadInputError: it lists none, or one that is not known.
    """
    if given is None:
        return list(known)
    words = words_of(given)
    families = {name: family_of(name) for name in known} if family_of else {}
    strange = [word for word in words if word not in known and word not in families.values()]
    if strange or not words:
        meant = did_you_mean(strange[0], [*known, *families.values()]) if strange else ""
        there_are = meant or f"; there are {', '.join(known)}"
        raise BadInputError(f"{option} {given}: no {', '.join(strange) or 'name'}{there_are}")
    return [name for name in known if name in words or families.get(name) in words]


def options_of(declared: type[Declared], parsed: argparse.Namespace) -> Declared:
    """The options of a command as it declares them: an option for each field of a frozen dataclass, by its name."""
    return declared(**{option.name: getattr(parsed, option.name) for option in fields(declared)})


def require_used(options: _WithDefaults, names: Iterable[str], why: str) -> None:
    """Refuses options that would be ignored.

    Args:
        options: the options, with the parser's ``get_default`` as ``default_of``.
        names: the options that do nothing here, by their fields' names.
        why: when that is, as in "with --url".

    Raises:
        BadInputError: one of them has another value than its default.
    """
    for name in names:
        value = getattr(options, name)
        if value != options.default_of(name):
            said = f"--{name.replace('_', '-')}{'' if value is True or value == '' else f' {value}'}"
            raise BadInputError(f"{said} says nothing {why}")
