"""Text on a terminal: that of others, which must not command it (SEC-4), and that which nobody reads any more."""

import os
from typing import Any, TextIO

__all__ = ["Unheard", "visible"]


class Unheard:
    """A process's standard output that may be closed by its reader, as ``| head -1`` does.

    The command then ends as it would have, its report unread: an exit status of 1 would say that a backend deviates.

    Args:
        stream: the stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes a text; where nobody reads, it goes nowhere."""
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        """Hands over what was written."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._give_up()

    def _give_up(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def visible(text: str) -> str:
    """A text in which nothing can command a terminal: all that is not printable is written as an escape sequence."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )
