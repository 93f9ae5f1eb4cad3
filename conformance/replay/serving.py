"""The serving loop of a replay: admits, decodes, preempts and finishes the requests of a trace, step by step.

A step goes as in an engine: first slots for the next tokens of each live request, then admissions, then the copies
of pages and the tables go to the device; then every live request whose prompt is computed has one token more, or
with a draft model up to four, and those that have all of theirs finish.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from zlib import crc32

import numpy as np

from kvproof.spec.declarations import EngineRequestStatus, Request

from ..engine.step_ends import StepEnds
from .engine import LOOKAHEAD, DeviationError, Engine, Sizes, num_slots
from .groups import holds_states, keeps_all_pages
from .report import Reasons, Report
from .traces import TraceRequest, output_tokens, prompt_tokens

__all__ = ["Progress", "Replay", "num_accepted"]

Progress = Callable[[int, int], None]
"""Told after every step: how many requests are done, and how many tokens have been generated."""


def num_accepted(request_id: str, position: int) -> int:
    """How many of the tokens that a draft model proposes are accepted, for ever the same at one place: 0 to 3.

    Args:
        request_id: whose tokens they are.
        position: where the first of them stands.
    """
    return crc32(f"{request_id} at {position}".encode()) % (LOOKAHEAD + 1)


@dataclass(slots=True, eq=False)
class _Session:
    """A request of the trace on its way through the engine.

    Attributes:
        number: its place in the trace.
        source: what the trace says of it.
        request: the engine's object, once it has come to the front of the waiting line.
        last_length: its tokens when it has all that need a slot.
        hit_tokens: tokens that it found at its admission.
        row: its row in the tables while it is live.
        has_drafts: whether a draft model has proposed tokens for its next step.
        junction: the length at which it parts from an earlier request (RET-2); 0: none is known.
    """

    number: int
    source: TraceRequest
    request: Request
    last_length: int
    hit_tokens: int = 0
    row: int = -1
    has_drafts: bool = False
    junction: int = 0


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
        self._too_few: int | None = None  # free pages when an admission failed; None since somebody left
        # states can't be taken back from a draft that is not accepted
        self._accepts_drafts = sizes.use_eagle and not holds_states(sizes.groups)
        self._published = 0
        self._ends = StepEnds(sizes.groups, 0, sizes.match_unit)
        self._reasons = Reasons()

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

        Every page published is cached at the end or was evicted, since nothing else takes a hash away here. A
        manager that has no counters is told the pages that it must have published, where that is plain.

        Raises:
            DeviationError: what is left is not what it should be.
        """
        with self._dated():
            self._engine.end_replay()
            cached, evictions = self._engine.num_cached_pages(), self._engine.num_evictions()
            seen = self._engine.eviction_counters()
        if seen is not None:
            self.report.regrets, self.report.unreachable_pages = seen.regrets, seen.unreachable
        if evictions is not None:
            self.report.evictions, self.report.published_pages = evictions, evictions + cached
        elif keeps_all_pages(self._sizes.groups) and not self._sizes.use_eagle:
            self.report.evictions, self.report.published_pages = self._published - cached, self._published

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
        if not self._advance():  # after a preemption the pages are for those that are live
            self._admit()
        self.report.page_copies += len(self._engine.take_copies())
        self._engine.commit(len(self._rows))
        self.report.peak_usage = max(self.report.peak_usage, self._engine.usage())
        self._generate()

    # -- One step's parts -------------------------------------------------------------------------

    def _num_new(self, session: _Session, computed: int) -> int:
        """How many tokens the step computes of a request behind those computed: to where it ends, see `StepEnds`."""
        chunk, num_tokens = self._sizes.prefill_chunk, session.request.num_tokens
        most = num_tokens if chunk is None else min(num_tokens, (computed // chunk + 1) * chunk)
        return self._ends.end(computed, most, num_tokens, session.junction) - computed

    def _advance(self) -> bool:
        """Slots for the next tokens of every live request. Returns whether some had to give way."""
        engine, live = self._engine, self._live
        requests = [session.request for session in live]
        num_new = [self._num_new(session, session.request.num_computed_tokens) for session in live]
        granted = engine.advance(requests, num_new)
        preempted = len(granted) < len(requests)
        while len(granted) < len(requests):
            requests.pop()
            num_new.pop()
            self._preempt()
            granted += engine.advance(requests[len(granted) :], num_new[len(granted) :])
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
        session.has_drafts = False
        if alone:
            self._refuse()
            return
        self.report.preemptions += 1
        request.num_computed_tokens = 0
        request.status = EngineRequestStatus.PREEMPTED
        self._waiting.appendleft(session)

    def _admit(self) -> None:
        """Admits waiting requests in their order, until one finds no room."""
        while self._has_room() and len(self._live) < self._sizes.most_live:
            session = self._next_in_line()
            if session is None:
                return
            request = session.request
            hits, hit_tokens = self._engine.look_up(request)
            session.junction = self._engine.junction(request)
            if self._engine.admit(request, self._num_new(session, hit_tokens), hits, hit_tokens) is not None:
                self._waiting.popleft()
                self._enter(session, hit_tokens)
            elif self._live:
                self._too_few = self._engine.num_free_pages()
            else:
                self._waiting.popleft()
                self._refuse()

    def _has_room(self) -> bool:
        """Whether it is worth a try: pages came back since an admission failed, if one did."""
        return self._too_few is None or self._engine.num_free_pages() > self._too_few

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
        request.num_computed_tokens = hit_tokens
        session.hit_tokens = hit_tokens
        session.row = len(self._rows)
        self._engine.fill_row(request, session.row)
        self._rows.append(session)
        self._live.append(session)
        self.report.looked_up_tokens += request.num_tokens
        self.report.hit_tokens += hit_tokens
        most = session.source.input_length  # of one that gave way more is known
        junction = session.junction if session.junction <= most else 0
        reason = self._reasons.served(session.source, min(hit_tokens, most), junction)
        if reason is not None:
            self.report.hit_tokens_by_reason[reason] += hit_tokens

    def _generate(self) -> None:
        """Every live request whose tokens are all computed has one more; those that have all of theirs finish."""
        finished: list[_Session] = []
        num_generated = 0
        for session in self._live:
            request = session.request
            reached = request.num_computed_tokens + self._num_new(session, request.num_computed_tokens)
            if reached == request.num_tokens:
                if session.has_drafts:
                    accepted = min(num_accepted(request.request_id, reached), session.last_length - reached)
                    self.report.accepted_drafts += accepted
                    reached += accepted
                    num_generated += accepted
                num_generated += 1
                if reached == session.last_length:
                    finished.append(session)
                    continue
                request.num_tokens = reached + 1
                session.has_drafts = self._accepts_drafts
            request.num_computed_tokens = reached
        prefilled_only = sum(session.source.output_length == 0 for session in finished)
        self.report.output_tokens += num_generated - prefilled_only
        if finished:
            for session in finished:
                session.request.status = EngineRequestStatus.FINISHED
                self._leave(session, session.request.num_tokens, finished=True)
                self.report.requests += 1
                self.report.input_tokens += session.source.input_length
            self._live = [session for session in self._live if session.request.status is EngineRequestStatus.RUNNING]

    # -- Leaving ----------------------------------------------------------------------------------

    def _leave(self, session: _Session, num_computed: int, *, finished: bool) -> None:
        """Frees a live request and its row, and counts the pages that it published if it kept all of them."""
        self._engine.free(session.request, finished=finished)
        last = self._rows.pop()
        self._engine.drop_row(session.row, last.row)
        if last is not session:
            self._rows[session.row] = last
            last.row = session.row
        for size in self._sizes.page_sizes:
            self._published += (num_computed - session.hit_tokens) // size
        self._too_few = None

    def _refuse(self) -> None:
        self.report.requests += 1
        self.report.refused += 1
