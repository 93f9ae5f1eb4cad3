"""SEC-4: text of others on a terminal."""

__all__ = ["visible"]


def visible(text: str) -> str:
    """A text in which nothing can command a terminal: all that is not printable is written as an escape sequence."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
