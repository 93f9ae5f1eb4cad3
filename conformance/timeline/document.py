"""What a timeline holds: the frames of a log, each as what it changed.

A log of 10,000 operations on a pool of 2,000 pages shows 20 million cells, and most operations change a few of them.
So a frame is written as a difference to the one before; the page in the browser adds them up again.
"""

import html
import json
from collections.abc import Iterable, Sequence
from importlib.resources import files
from itertools import takewhile
from operator import eq
from typing import Any, TypedDict

from ..log.frames import Frame

__all__ = ["Document", "document", "page"]


VERSION = 2

_MOST_QUEUED = 20_000
"""The most pages shown of the free queue, from its front."""


class Document(TypedDict):
    """A timeline as JSON.

    Attributes:
        version: of this format.
        title: what it shows.
        num_pages: pages of the pool, the null page counted.
        every: how many operations, or steps, there are from one picture to the next.
        requests: the requests' ids, in the order in which they came to hold pages.
        holders: sets of requests that hold a page together, each as places in ``requests``. The first two are empty:
            the one stands for nobody, the other for calls on the pool itself.
        frames: for each picture ``[operation, step, call, pages, queue, evicted, rows, fault]``, where

            pages   [id, code, id, code, ...] of those that changed; code = 2 * place in ``holders`` + is cached
            queue   [taken, front, back]: the free queue without the pages in the first list, then with those of the
                    second before it and those of the third behind it, each first the first; of more than 20,000
                    free pages those at the front
            evicted [id, ...] of the pages that lost their hash
            rows    [row, kept, ids, ...]: a row of the tables keeps its first entries and goes on with these ids
            fault   what deviates, or null
    """

    version: int
    title: str
    num_pages: int
    every: int
    requests: list[str]
    holders: list[list[int]]
    frames: list[list[Any]]


class _Names:
    """Numbers for things, in the order in which they are first seen."""

    def __init__(self, first: Iterable[Any] = ()) -> None:
        self.places: dict[Any, int] = {thing: place for place, thing in enumerate(first)}

    def place(self, thing: Any) -> int:
        """The number of a thing."""
        return self.places.setdefault(thing, len(self.places))


def document(title: str, frames: Iterable[Frame], every: int = 1) -> Document:
    """Makes a timeline of frames. O(what the frames show): each is compared with the one before.

    Args:
        title: what it shows.
        frames: the frames, in their order.
        every: how many operations there are from one to the next.
    """
    requests, holders = _Names(), _Names([None, ()])
    before = Frame(0, 0, "", {}, frozenset(), (), (), (), None)
    written: list[list[Any]] = []
    most = 0
    for frame in frames:
        most = max(most, 0, *frame.owners, *frame.cached, *frame.free)
        changed = {page for page, _ in frame.owners.items() ^ before.owners.items()} | (frame.cached ^ before.cached)
        pages = [number for page in sorted(changed) for number in (page, _code(frame, page, requests, holders))]
        queue, rows = (
            _queue_edit(before.free[:_MOST_QUEUED], frame.free[:_MOST_QUEUED]),
            _row_edits(before.rows, frame.rows),
        )
        written.append([frame.number, frame.step, frame.call, pages, queue, list(frame.evicted), rows, frame.fault])
        before = frame
    return Document(
        version=VERSION,
        title=title,
        num_pages=most + 1,
        every=every,
        requests=list(requests.places),
        holders=[list(together or ()) for together in holders.places],
        frames=written,
    )


def _code(frame: Frame, page: int, requests: _Names, holders: _Names) -> int:
    """What a page is: who holds it, and whether it has a hash."""
    owners = frame.owners.get(page)
    together = None if owners is None else tuple(requests.place(owner) for owner in owners)
    return 2 * holders.place(together) + (page in frame.cached)


def _queue_edit(before: Sequence[int], after: Sequence[int]) -> list[list[int]]:
    """How one free queue becomes another: what is taken out, put in front, put behind."""
    if before and after and after[0] in before:  # most calls take from the front and put behind
        place = before.index(after[0])
        if before[place:] == after[: len(before) - place]:
            return [list(before[:place]), [], list(after[len(before) - place :])]
    staying = set(after)
    kept = [page for page in before if page in staying]
    places = {page: place for place, page in enumerate(after)}
    run = _longest_run([places[page] for page in kept])
    if not run:
        return [list(before), [], list(after)]
    first, last = run[0], run[-1]
    inside = {after[place] for place in run}
    taken = [page for page in before if page not in inside]
    return [taken, list(after[:first]), list(after[last + 1 :])]


def _longest_run(places: Sequence[int]) -> range:
    """The longest stretch of neighbours that stood behind one another before and do so now."""
    best = range(0)
    start = 0
    for end in range(1, len(places) + 1):
        if end == len(places) or places[end] != places[end - 1] + 1:
            if end - start > len(best):
                best = range(places[start], places[end - 1] + 1)
            start = end
    return best


def _row_edits(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]]) -> list[Any]:
    edits: list[Any] = []
    for number in range(max(len(before), len(after))):
        old: Sequence[int] = before[number] if number < len(before) else ()
        new: Sequence[int] = after[number] if number < len(after) else ()
        if tuple(old) != tuple(new):
            kept = sum(1 for _ in takewhile(bool, map(eq, old, new)))
            edits += [number, kept, list(new[kept:])]
    return edits


_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def page(made: Document) -> str:
    """The timeline as one page of HTML: document, script and style in it, and nothing from elsewhere.

    Request ids and calls are hostile text (SEC-4). They stand in the page as JSON only, in which every character that
    HTML could read is escaped; the script shows them as text, never as markup, and the page's own policy forbids it to
    load anything.

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
