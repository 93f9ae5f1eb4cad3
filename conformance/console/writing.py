"""Files that commands write: beside their place first, and renamed when they are whole.

A run that fails, or that somebody ends, leaves the report of the run before it as it was.
"""

import os
import tempfile
from pathlib import Path

from .exit_status import CannotRunError

__all__ = ["require_writable", "write_file"]


def require_writable(*paths: str | Path | None, read: str | Path | None = None) -> None:
    """Finds out before the work whether files can be written after it; nothing is changed.

    Args:
        paths: the files; None where none is asked for.
        read: what the command reads, which it must not write over.

    Raises:
        CannotRunError: one cannot be written, by what can be told now.
    """
    for path in paths:
        if path is not None:
            why = _why_not(Path(os.path.realpath(path)), read)
            if why:
                raise CannotRunError(f"{path}: {why}")


def _why_not(place: Path, read: str | Path | None) -> str:
    """Why a file cannot be written, by what can be told now; empty if nothing tells that."""
    if read is not None and os.path.realpath(read) == str(place):
        return "is the file that is read"
    if place.is_dir():
        return "Is a directory"
    if place.exists() and not place.is_file():
        return ""  # a pipe, or a device
    if not place.parent.is_dir():
        return "No such file or directory"
    if not os.access(place.parent, os.W_OK | os.X_OK) or (place.exists() and not os.access(place, os.W_OK)):
        return "Permission denied"
    return ""


def write_file(path: str | Path | None, text: str) -> None:
    """Writes a text file, whole or not at all, in UTF-8. A link stays a link, and a file keeps its permissions.

    Args:
        path: the file; a pipe or a device is written to as it is. None where none is asked for.
        text: what it is to hold.

    Raises:
        CannotRunError: it cannot be written; then it is as it was.
    """
    require_writable(path)
    if path is not None:
        try:
            _write(Path(os.path.realpath(path)), text)
        except OSError as error:
            raise CannotRunError(f"{path}: {error.strerror or error}") from error


def _write(place: Path, text: str) -> None:
    if place.exists() and not place.is_file():
        place.write_text(text, encoding="utf-8")
        return
    mode = place.stat().st_mode & 0o7777 if place.exists() else 0o666 & ~_umask()
    handle, beside = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(beside, mode)
        os.replace(beside, place)
    except BaseException:
        os.unlink(beside)
        raise


def _umask() -> int:
    """The mask of the process, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
