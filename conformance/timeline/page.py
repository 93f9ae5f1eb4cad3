"""A timeline as one page of HTML: the document, the script and the style in it, and nothing from elsewhere.

Request ids and calls are hostile text (SEC-4). They stand in the page as JSON only, in which every character that
HTML could read is escaped; the script shows them as text, never as markup, and the page's own policy forbids it to
load anything.
"""

import html
import json
from importlib.resources import files

from .document import Document

__all__ = ["page"]

_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def page(made: Document) -> str:
    """The page's text.

    Args:
        made: the timeline.
    """
    here = files(__package__)
    text = here.joinpath("page.html").read_text(encoding="utf-8")
    # in this order: what is put in later is never looked through again
    data = json.dumps(made, separators=(",", ":")).translate(_ESCAPES)
    parts = {
        "title": html.escape(_printable(made["title"])),
        "style": here.joinpath("page.css").read_text(encoding="utf-8"),
        "script": here.joinpath("page.js").read_text(encoding="utf-8"),
        "data": data,
    }
    before, *pieces = text.split("{{")
    whole = [before]
    for piece in pieces:
        name, rest = piece.split("}}", 1)
        whole += [parts[name], rest]
    return "".join(whole)


def _printable(text: str) -> str:
    """A text without characters that can't be shown: those are written as in Python."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
