"""Options of commands that list names, with commas between them."""

from collections.abc import Sequence

__all__ = ["BadInputError", "chosen", "words_of"]


class BadInputError(Exception):
    """An option that makes no sense; the message is one line."""


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
        raise BadInputError(f"{option} {given}: no {', '.join(strange) or 'name'}; there are {', '.join(known)}")
    return [name for name in known if name in words]
