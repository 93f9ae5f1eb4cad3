"""The serving loop of a replay: admits, decodes, preempts and finishes the requests of a trace, step by step.

A step goes as in an engine: first one more slot for each live request, then admissions, then the tables go to the
device, then every live request has one token more, and those that have all of theirs finish.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from kvproof.spec.declarations import EngineRequestStatus, Request

from .replay_engine import DeviationError, Engine, Sizes
from .replay_report import Report
from .traces import TraceRequest, output_tokens, prompt_tokens

__all__ = ["Progress", "Replay", "num_slots", "sizes_for"]

Progress = Callable[[int, int], None]
"""Told after every step: how many requests are done, and how many tokens have been generated."""


def num_slots(request: TraceRequest) -> int:
    """How many tokens of a request need a slot in the end: all but the last one it generates."""
    return request.input_length + max(request.output_length - 1, 0)


def sizes_for(requests: Sequence[TraceRequest], page_size: int, num_pages: int, most_live: int) -> Sizes:
    """The sizes of an engine that is to serve a trace; requests that no empty pool could hold don't count."""
    capacity = (num_pages - 1) * page_size
    lengths = [num_slots(request) for request in requests]
    longest = max((length for length in lengths if length <= capacity), default=1)
    return Sizes(page_size, num_pages, min(most_live, len(requests)), longest)


@dataclass(slots=True, eq=False)
class _Session:
    """A request of the trace on its way through the engine.

    Attributes:
        number: its place in the trace.
        source: what the trace says of it.
        request: the engine's object, once it has come to the front of the waiting line.
        last_length: its tokens when it has all that need a slot.
        hit_pages: pages that it found at its admission.
        row: its row in the tables while it is live.
    """

    number: int
    source: TraceRequest
    request: Request
    last_length: int
    hit_pages: int = 0
    row: int = -1


class Replay:
    """A trace served by an engine.

    Args:
        engine: the backend at work.
        sizes: the engine's.
        requests: the trace, in the order of arrival.

    Attributes:
        report: what has been counted so far.
    """

    def __init__(self, engine: Engine, sizes: Sizes, requests: Sequence[TraceRequest]) -> None:
        self.report = Report(timings=engine.timings)
        self._engine = engine
        self._sizes = sizes
        self._arrivals = deque(enumerate(requests))
        self._waiting: deque[_Session] = deque()  # those that have been opened: preempted ones, and one arrival
        self._live: list[_Session] = []  # in the order of admission
        self._rows: list[_Session] = []
        self._has_room = True  # whether pages came back since an admission failed

    def run(self, progress: Progress) -> None:
        """Serves the trace to its end.

        Raises:
            DeviationError: the backend deviates; the report holds the counts up to then.
        """
        report = self.report
        start = perf_counter()
        with self._dated():
            try:
                while self._arrivals or self._waiting or self._live:
                    self._step()
                    progress(report.requests, report.output_tokens)
            finally:
                report.wall_seconds = perf_counter() - start

    def close(self) -> None:
        """Looks at what is left when all requests are gone. O(pages), and not part of the wall time.

        Raises:
            DeviationError: it is not what it should be.
        """
        with self._dated():
            self._engine.end_replay()
            self.report.evictions = self.report.published_pages - self._engine.num_cached_pages()

    @contextmanager
    def _dated(self) -> Iterator[None]:
        """Writes the step on a deviation."""
        try:
            yield
        except DeviationError as deviation:
            deviation.step = self.report.steps
            raise

    def _step(self) -> None:
        self.report.steps += 1
        if not self._decode():  # after a preemption the pages are for those that are live
            self._admit()
        self._engine.commit(len(self._rows))
        self.report.peak_usage = max(self.report.peak_usage, self._engine.usage())
        self._generate()
        self._engine.end_step()

    # -- One step's parts -------------------------------------------------------------------------

    def _decode(self) -> bool:
        """A slot for one more token of every live request. Returns whether some had to give way."""
        engine, live = self._engine, self._live
        requests = [session.request for session in live]
        granted = engine.decode(requests)
        preempted = len(granted) < len(requests)
        while len(granted) < len(requests):
            requests.pop()
            self._preempt()
            granted += engine.decode(requests[len(granted) :])
        grown = engine.new_page_ids(granted)
        if grown:
            engine.append_rows([page_ids for _, page_ids in grown], [live[place].row for place, _ in grown])
        return preempted

    def _preempt(self) -> None:
        """The request that was admitted last gives way: to wait in front, or, if nothing else is live, for good."""
        alone = len(self._live) == 1
        session = self._live.pop()
        request = session.request
        self._leave(session, request.num_computed_tokens, finished=alone)
        if alone:
            self._refuse()
            return
        self.report.preemptions += 1
        request.num_computed_tokens = 0
        request.status = EngineRequestStatus.PREEMPTED
        self._waiting.appendleft(session)

    def _admit(self) -> None:
        """Admits waiting requests in their order, until one finds no room."""
        while self._has_room and len(self._live) < self._sizes.most_live:
            session = self._next_in_line()
            if session is None:
                return
            request = session.request
            hits, hit_tokens = self._engine.look_up(request)
            if self._engine.admit(request, hits, hit_tokens) is not None:
                self._waiting.popleft()
                self._enter(session, hit_tokens)
            elif self._live:
                self._has_room = False
            else:
                self._waiting.popleft()
                self._refuse()

    def _next_in_line(self) -> _Session | None:
        """The first request that waits, opened; those that no empty pool could hold are refused on the way."""
        while not self._waiting and self._arrivals:
            number, source = self._arrivals.popleft()
            if num_slots(source) > self._sizes.max_model_len:
                self._refuse()
            else:
                self._waiting.append(self._open(number, source))
        return self._waiting[0] if self._waiting else None

    def _open(self, number: int, source: TraceRequest) -> _Session:
        slots = num_slots(source)
        tokens = np.concatenate([prompt_tokens(source), output_tokens(number, slots - source.input_length)])
        request = self._engine.open(f"request {number}", tokens, source.input_length)
        return _Session(number, source, request, slots)

    def _enter(self, session: _Session, hit_tokens: int) -> None:
        """A request that was just admitted gets its row."""
        request = session.request
        request.status = EngineRequestStatus.RUNNING
        session.hit_pages = hit_tokens // self._sizes.page_size
        session.row = len(self._rows)
        self._engine.fill_row(request, session.row)
        self._rows.append(session)
        self._live.append(session)
        self.report.looked_up_tokens += request.num_tokens
        self.report.hit_tokens += hit_tokens

    def _generate(self) -> None:
        """Every live request has one token more; those that have all of theirs finish."""
        finished: list[_Session] = []
        for session in self._live:
            request = session.request
            computed = request.num_tokens
            if computed < session.last_length:
                request.num_computed_tokens = computed
                request.num_tokens = computed + 1
            else:
                finished.append(session)
        prefilled_only = sum(session.source.output_length == 0 for session in finished)
        self.report.output_tokens += len(self._live) - prefilled_only
        if finished:
            for session in finished:
                session.request.status = EngineRequestStatus.FINISHED
                self._leave(session, session.request.num_tokens, finished=True)
                self.report.requests += 1
                self.report.input_tokens += session.source.input_length
            self._live = [session for session in self._live if session.request.status is EngineRequestStatus.RUNNING]

    # -- Leaving ----------------------------------------------------------------------------------

    def _leave(self, session: _Session, num_computed: int, *, finished: bool) -> None:
        """Frees a live request and its row, and counts the pages that it published."""
        self._engine.free(session.request, finished=finished)
        last = self._rows.pop()
        self._engine.drop_row(session.row, last.row)
        if last is not session:
            self._rows[session.row] = last
            last.row = session.row
        self.report.published_pages += num_computed // self._sizes.page_size - session.hit_pages
        self._has_room = True

    def _refuse(self) -> None:
        self.report.requests += 1
        self.report.refused += 1
