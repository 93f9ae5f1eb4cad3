"""A log as a sequence of pictures of the pool: what `kvproof show` draws."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import kvproof.spec

from ..backends.loading import Backend
from ..report.redaction import Redaction
from .entries import Made, Operation
from .format import CALLS, LogError
from .player import Thing
from .reading import LogReader
from .replaying import Replayed, Run

__all__ = ["MOST_FRAMES", "Frame", "every", "frames"]

MOST_FRAMES, _LEAST_FRAMES = 2_000, 200
_MOST_CELLS = 20_000_000
"""The most pages drawn in all frames together, unless `_LEAST_FRAMES` frames need more."""


@dataclass(frozen=True)
class Frame:
    """What an operation left behind.

    Attributes:
        number: the operation's number in the log, from 1 on.
        step: the engine's step that it belongs to, from 0 on, as commits and batched calls tell.
        call: the call on one line, token ids hidden unless they were asked for.
        owners: for each page in use the ids of the requests that hold it: several where it is shared, none where
            calls on the pool hold it.
        cached: the pages that have a hash.
        free: the free pages in eviction order.
        evicted: the pages that lost their hash since the frame before.
        rows: the host rows of the tables, group after group and row after row, without padding; empty without tables.
        fault: what deviates at this operation, on one line; None if nothing does.
    """

    number: int
    step: int
    call: str
    owners: Mapping[int, tuple[str, ...]]
    cached: frozenset[int]
    free: tuple[int, ...]
    evicted: tuple[int, ...]
    rows: tuple[tuple[int, ...], ...]
    fault: str | None


def every(path: str | Path, *, steps_only: bool = False, most_frames: int = MOST_FRAMES) -> int:
    """How many operations there may be from one frame to the next, so that all frames can be drawn.

    Args:
        path: the log.
        steps_only: of how many operations that end a step.
        most_frames: the most frames that can be drawn, of a pool with few pages; of one with more they are fewer.

    Raises:
        LogError: see `replay_log`.
    """
    count, pages = 0, 1
    for entry in LogReader(Path(path)).entries():
        if isinstance(entry, Operation):
            count += not steps_only or entry.method in ("commit", "allocate_slots_batch")
        elif isinstance(entry, Made) and entry.name in ("CacheManager", "PagePool"):
            pages = max(pages, entry.arguments.get("num_pages", 1))
    most = min(max(_MOST_CELLS // pages, _LEAST_FRAMES), most_frames)
    return max(-(-count // most), 1)


def frames(
    path: str | Path, *, every: int = 1, steps_only: bool = False, show_tokens: bool = False, redact: bool = False
) -> Iterator[Frame]:
    """The frames of a log, by replaying it on the specification: of all operations, or of some and the last one.

    They end at the first wrong step, which is the last frame's ``fault``; of what comes behind it nobody can say
    what is right. Of several managers or pools the first one is drawn. O(pages) for each frame.

    Args:
        path: the log.
        every: how many operations there are from one frame to the next.
        steps_only: only frames of operations that end a step of the engine, commits and batched calls, and the
            faulty one.
        show_tokens: whether token ids may stand in the lines of calls (SEC-2).
        redact: whether request ids are mapped.

    Raises:
        LogError: see `replay_log`.
    """
    redaction = Redaction() if redact else None
    run = Run(Path(path), Backend("kvproof.spec", kvproof.spec), frozenset(), show_tokens, redaction)
    camera = _Camera()
    waiting: Frame | None = None
    passed = 0
    for replayed in run.steps():
        ends = camera.note(replayed)
        passed += ends or not steps_only
        if passed == every or replayed.difference is not None:
            passed = 0
            if waiting is not None:
                yield waiting
            waiting = camera.take(replayed)
    if run.wrong is not None and waiting is not None:  # a wrong state is seen behind the operation that left it
        difference, _ = run.wrong
        fault = f"{difference.clause}: {difference.observed}, expected {difference.expected}"
        if waiting.number != camera.last.operation.number:
            yield waiting
            waiting = camera.take(camera.last)
        waiting = replace(waiting, fault=fault)
    elif passed:  # how it ends is always shown
        if waiting is not None:
            yield waiting
        waiting = camera.take(camera.last)
    run.require_operations("drawn")
    if waiting is None:
        raise LogError(f"{path}: none of its operations ends a step, so that no step can be drawn")
    yield waiting


class _Camera:
    """Follows a replay, and takes its frames.

    Attributes:
        last: the operation that was noted last.
    """

    last: Replayed
    _manager: Any

    def __init__(self) -> None:
        self._step = self._next_step = 0
        self._commits = False
        self._served: set[int] = set()
        self._held: dict[str, tuple[int, ...]] = {}
        self._changed: dict[str, None] = {}
        self._cached: frozenset[int] = frozenset()

    def note(self, replayed: Replayed) -> bool:
        """Notes who holds which pages after an operation, and its step; returns whether it may end the step."""
        self.last = replayed
        operation = replayed.operation
        self._step = self._next_step
        ends = operation.method == "commit"
        if ends:
            self._commits = True
            self._next_step = self._step + 1
        elif operation.method == "allocate_slots_batch":
            ends = not self._commits
            self._next_step = self._step + ends
        elif operation.method == "allocate_slots" and not self._commits:
            request = operation.arguments["request"].get("r")
            if request in self._served:  # no engine serves a request twice in a step
                self._served.clear()
                self._step = self._next_step = self._step + 1
            self._served.add(request)
        self._follow(replayed)
        return ends

    def _follow(self, replayed: Replayed) -> None:
        """Notes which requests a call may have given pages, or taken some from."""
        operation, player = replayed.operation, replayed.player
        thing = player.things[operation.target]
        if thing.name != "CacheManager" or CALLS["CacheManager"].get(operation.method, _READ).reads:
            return
        told = operation.arguments.get("request")
        self._manager = thing.it
        if operation.method == "allocate_slots_batch":
            self._changed |= dict.fromkeys(self._held)
        elif isinstance(told, dict) and "r" in told:
            self._changed[player.requests[told["r"]].request_id] = None

    def _ask(self) -> None:
        """Asks the manager what the requests hold now whose pages may have changed."""
        names, self._changed = self._changed, {}
        for name in names:
            held = tuple(page for group in self._manager.get_page_ids(name) for page in group if page)
            if held:
                self._held[name] = held
            else:
                self._held.pop(name, None)

    def take(self, replayed: Replayed) -> Frame:
        """The frame of the operation that was noted last."""
        self._ask()
        things = replayed.player.things
        pool = next((thing for thing in things.values() if thing.views), None)
        owners: dict[int, list[str]] = {}
        free: tuple[int, ...] = ()
        before, cached = self._cached, frozenset[int]()
        if pool is not None:
            it = pool.it.page_pool if pool.name == "CacheManager" else pool.it
            free = tuple(page.page_id for page in it.free_page_queue.get_all_free_pages())
            cached = frozenset(page_id for page_id, view in pool.views.items() if view.page_hash is not None)
            owners = {page_id: [] for page_id in pool.views.keys() - {0, *free}}
        for name, pages in self._held.items():
            for page in pages:
                owners[page].append(name)
        self._cached = cached
        return Frame(
            replayed.operation.number,
            self._step,
            replayed.line(),
            {page: tuple(names) for page, names in owners.items()},
            cached,
            free,
            tuple(sorted(before - cached)),
            _rows(things.values()),
            None,
        )


_READ = next(call for call in CALLS["CacheManager"].values() if call.reads)
"""Properties only read."""


def _rows(things: Iterable[Thing]) -> tuple[tuple[int, ...], ...]:
    """The host rows of all tables, as far as they name pages."""
    rows = []
    for thing in things:
        if thing.name == "PageTable":
            host, counts = thing.it.get_cpu_tensor(), thing.it.num_pages_per_row
            rows += [tuple(row[:count]) for row, count in zip(host.tolist(), counts.tolist(), strict=True)]
    return tuple(rows)
