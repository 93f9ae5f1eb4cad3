"""Row r: a production trace in arrival order, 64 requests live, one token a step each.

The trace is named by the environment variable ``KVPROOF_TRACE``; docs/guides/hits.md says which one the figures are
of, and its form. Beside it a trace is made up that needs no file.
"""

import os
from collections import deque
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns
from typing import Any, NamedTuple

from kvproof.conformance.replay.traces import TraceRequest, prompt_tokens, read_trace, synthetic_trace

from .implementation import Implementation
from .samples import Row, Sample

__all__ = ["TRACE_ROWS", "TRACE_VARIABLE", "Served", "missing_trace", "serve", "trace_path"]

TRACE_VARIABLE = "KVPROOF_TRACE"
REQUESTS, LIVE, PAGES, MAX_LEN = 400, 64, 200_000, 1 << 18


class Served(NamedTuple):
    """What a trace cost inside the library, nanoseconds of the thread's CPU time.

    Attributes:
        keys: making requests and appending tokens, where that computes keys; else it is the engine's.
        look_up: look-ups.
        admit: slots for prompts.
        decode: slots for generated tokens.
        free: giving back.
    """

    keys: int
    look_up: int
    admit: int
    decode: int
    free: int


def missing_trace() -> str | None:
    """Why there is no trace to read; None if there is one."""
    path = os.environ.get(TRACE_VARIABLE)
    if path is None:
        return f"{TRACE_VARIABLE} names no trace; docs/guides/hits.md says where one is published"
    return None if Path(path).is_file() else f"{TRACE_VARIABLE}={path} is no file"


def trace_path() -> Path:
    """The file that the environment variable names; `missing_trace` says first whether there is one."""
    return Path(os.environ[TRACE_VARIABLE])


def serve(implementation: Implementation, trace: list[TraceRequest], *, events: bool = False) -> Served:
    """Serves a trace from its first request to its last."""
    manager = implementation.manager(PAGES, MAX_LEN, events)
    batch = manager.batch()
    arrivals = deque(enumerate(trace))
    live: list[Any] = []
    left: dict[str, int] = {}
    keys = look_up = admit = decode = free = 0
    while arrivals or live:
        begin = thread_time_ns()
        batch.grow()
        grown = thread_time_ns()
        batch.step()
        decode += thread_time_ns() - grown
        if implementation.appending_makes_keys:
            keys += grown - begin
        while arrivals and len(live) < LIVE:
            number, source = arrivals.popleft()
            tokens = implementation.tokens(prompt_tokens(source))
            begin = thread_time_ns()
            request = implementation.request(str(number), tokens)
            made = thread_time_ns()
            found = manager.look_up(request)
            looked = thread_time_ns()
            given = manager.allocate(request, request.num_tokens - found[1], found[1], found[0])
            admit += thread_time_ns() - looked
            look_up += looked - made
            if implementation.appending_makes_keys:
                keys += made - begin
            assert given is not None, "the pool holds 64 requests of the trace"
            live.append(request)
            batch.add(request)
            left[request.request_id] = max(source.output_length, 1)
        begin = thread_time_ns()
        if manager.take_events is not None:
            manager.take_events()
        decode += thread_time_ns() - begin
        finished = []
        for request in live:
            left[request.request_id] -= 1  # the step gave it a token
            if not left[request.request_id]:
                finished.append(request)
        for request in finished:
            live.remove(request)
            batch.remove(request)
            begin = thread_time_ns()
            manager.free(request)
            if manager.finish is not None:
                manager.finish(request)
            free += thread_time_ns() - begin
    return Served(keys, look_up, admit, decode, free)


def _sample(implementation: Implementation, trace: list[TraceRequest], events: bool) -> Sample:
    return Sample(lambda: sum(serve(implementation, trace, events=events)), per=len(trace), rounds=2)


def _production(events: bool) -> Callable[[Implementation], Sample]:
    return lambda implementation: _sample(implementation, read_trace(trace_path(), REQUESTS), events)


TRACE_ROWS = [
    Row(
        "r",
        "a request of the trace's first 400, keys included",
        _production(False),
        lacks=lambda _: missing_trace(),
    ),
    Row(
        "r_events",
        "the same with events",
        _production(True),
        lacks=lambda implementation: missing_trace() or implementation.no_events(),
    ),
    Row(
        "r_synthetic",
        "a request of a made-up trace of 400, keys included",
        lambda implementation: _sample(implementation, synthetic_trace(REQUESTS), False),
    ),
]
