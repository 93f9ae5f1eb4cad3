"""Files that commands write: beside their place first, and renamed when they are whole.

A run that fails, or that somebody ends, leaves the report of the run before it as it was.
"""

import os
import tempfile
from pathlib import Path

__all__ = ["require_writable", "write_file"]


def require_writable(path: str | Path, read: str | Path | None = None) -> None:
    """Finds out before the work whether a file can be written after it; nothing is changed.

    Args:
        path: the file.
        read: what the command reads, which it must not write over.

    Raises:
        OSError: it cannot be written, by what can be told now.
    """
    place = Path(os.path.realpath(path))
    if read is not None and os.path.realpath(read) == str(place):
        raise FileExistsError(None, "is the file that is read")
    if place.exists() and not place.is_file() and not place.is_dir():
        return  # a pipe, or a device
    if place.is_dir():
        raise IsADirectoryError(None, "Is a directory")
    if not place.parent.is_dir():
        raise FileNotFoundError(None, "No such file or directory")
    if not os.access(place.parent, os.W_OK | os.X_OK) or (place.exists() and not os.access(place, os.W_OK)):
        raise PermissionError(None, "Permission denied")


def write_file(path: str | Path, text: str) -> None:
    """Writes a text file, whole or not at all, in UTF-8. A link stays a link, and a file keeps its permissions.

    Args:
        path: the file; a pipe or a device is written to as it is.
        text: what it is to hold.

    Raises:
        OSError: it cannot be written; then it is as it was.
    """
    require_writable(path)
    place = Path(os.path.realpath(path))
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
