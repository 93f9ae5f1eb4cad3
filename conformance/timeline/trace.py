"""A timeline in the trace event format, which Perfetto (ui.perfetto.dev) and ``chrome://tracing`` open.

The page of `kvproof.conformance.timeline.document` draws every page of the pool, which is good for small worlds. Here a
request is a bar, so that logs of thousands of pages can be searched, zoomed and measured with those programs' means.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..log.frames import Frame

__all__ = ["trace"]

_OPERATION = 1_000
"""Microseconds that an operation is drawn to take: time in the trace counts operations, as logs have no clock."""

_POOL, _REQUESTS, _CALLS = 1, 2, 3
"""The numbers of what Perfetto calls processes: one group of tracks each."""


@dataclass
class _Stay:
    """A time during which a request holds pages, without a break.

    Attributes:
        lane: the track that its bar lies in.
        begin: the operation at which it began.
        hits: how many of its first pages were cached before.
        most: the most pages that it held.
    """

    lane: int
    begin: int
    hits: int
    most: int


@dataclass
class _Lanes:
    """Tracks for bars that must not overlap: the lowest one that is free is taken."""

    free: list[int] = field(default_factory=list)
    used: int = 0

    def take(self) -> int:
        """A free track."""
        if self.free:
            return heapq.heappop(self.free)
        self.used += 1
        return self.used

    def give_back(self, lane: int) -> None:
        """A track is free again."""
        heapq.heappush(self.free, lane)


def trace(title: str, frames: Iterable[Frame]) -> dict[str, Any]:
    """Makes a trace of frames. O(what the frames show).

    Args:
        title: what it shows.
        frames: the frames, in their order; an operation takes a millisecond of the trace.

    Returns:
        An object for JSON: counters of held, cached and free pages; a bar for each time that a request holds pages,
        with marks where it hit and where it gave way, to hold pages again later; the calls, and the engine's steps;
        and a mark across all of it where the log differs from the specification.
    """
    events = [_named(_POOL, "pool"), _named(_REQUESTS, "requests"), _named(_CALLS, "calls")]
    stays: dict[str, _Stay] = {}
    ended: dict[str, tuple[int, int]] = {}
    lanes, counts = _Lanes(), (-1, -1, -1)
    before = Frame(0, 0, "", {}, frozenset(), (), (), (), None)
    for frame in frames:
        held: dict[str, list[int]] = {}
        for page, owners in frame.owners.items():
            for owner in owners:
                held.setdefault(owner, []).append(page)
        for name in [name for name in stays if name not in held]:
            gone = stays.pop(name)
            lanes.give_back(gone.lane)
            ended[name] = gone.lane, frame.number
            events.append(_bar(name, gone, frame.number))
        for name, pages in held.items():
            stay = stays.get(name)
            if stay is None:
                if name in ended:
                    lane, number = ended.pop(name)
                    events.append(_mark(f"{name} gave way", lane, number))
                hits = sum(page in before.cached for page in pages)
                stays[name] = stay = _Stay(lanes.take(), frame.number, hits, 0)
                if hits:
                    events.append(_mark(f"{name} hit {hits} pages", stay.lane, frame.number))
            stay.most = max(stay.most, len(pages))
        cached = sum(page not in frame.owners for page in frame.cached)
        now = len(frame.owners), cached, len(frame.free) - cached
        if now != counts:
            counts = now
            shown = dict(zip(("held", "cached", "free"), now, strict=True))
            events.append({"name": "pages", "ph": "C", "pid": _POOL, "ts": _time(frame.number), "args": shown})
        events += _calls(frame, before)
        if frame.fault is not None:
            here = {"pid": _CALLS, "tid": 1, "ts": _time(frame.number), "args": {"fault": frame.fault}}
            events.append({"name": "differs from the specification", "ph": "i", "s": "g", **here})
        before = frame
    events += [_bar(name, stay, before.number + 1) for name, stay in stays.items()]
    return {"displayTimeUnit": "ms", "otherData": {"title": title}, "traceEvents": events}


def _time(number: int) -> int:
    return number * _OPERATION


def _named(process: int, name: str) -> dict[str, Any]:
    return {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}


def _bar(name: str, stay: _Stay, end: int) -> dict[str, Any]:
    """A time during which a request held pages, up to an operation."""
    shown = {"pages at most": stay.most, "pages hit": stay.hits}
    begin = {"pid": _REQUESTS, "tid": stay.lane, "ts": _time(stay.begin)}
    return {"name": name, "ph": "X", **begin, "dur": _time(end - stay.begin), "args": shown}


def _mark(name: str, lane: int, number: int) -> dict[str, Any]:
    return {"name": name, "ph": "i", "s": "t", "pid": _REQUESTS, "tid": lane, "ts": _time(number)}


def _calls(frame: Frame, before: Frame) -> list[dict[str, Any]]:
    """What was called, and where a step of the engine began."""
    shown = {"evicted": list(frame.evicted)} if frame.evicted else {}
    place = {"pid": _CALLS, "tid": 1, "ts": _time(frame.number)}
    made = [{"name": frame.call, "ph": "X", **place, "dur": _OPERATION, "args": shown}]
    if frame.step != before.step:
        made.append({"name": f"step {frame.step}", "ph": "i", "s": "p", **place})
    return made
