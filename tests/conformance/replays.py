"""Replays in tests: short traces, and backends made of two classes."""

from collections.abc import Callable

from kvproof import spec
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.log.lockstep import Lockstep
from kvproof.conformance.replay.engine import Engine, sizes_for
from kvproof.conformance.replay.groups import read_groups
from kvproof.conformance.replay.report import Report
from kvproof.conformance.replay.serving import Replay
from kvproof.conformance.replay.traces import TraceRequest

__all__ = ["Backends", "replayed", "request"]

SEED = b"seed"


class Backends:
    """What ``--backend module:attribute`` names: a namespace of both classes."""

    def __init__(self, manager: type = spec.CacheManager, tables: type = spec.MultiGroupPageTable) -> None:
        self.CacheManager, self.MultiGroupPageTable = manager, tables


def request(input_length: int, output_length: int, first_id: int = 0) -> TraceRequest:
    return TraceRequest(0, input_length, output_length, tuple(range(first_id, first_id - (-input_length // 512))))


def replayed(
    trace: list[TraceRequest],
    *,
    num_pages: int,
    live: int = 8,
    page_size: int = 16,
    groups: str = "full",
    prefill_chunk: int | None = None,
    use_eagle: bool = False,
    match_unit: int | None = None,
    backend: object = spec,
    engine: Callable[..., Engine] = Engine,
    lockstep: bool = False,
) -> Report:
    """A trace served to its end, in step with the specification if that is asked for."""
    kinds = read_groups(groups, page_size)
    sizes = sizes_for(trace, kinds, num_pages, live, prefill_chunk, use_eagle=use_eagle, match_unit=match_unit)
    holder = Lockstep(backend, 100) if lockstep else backend
    replay = Replay(engine(Backend("backend", holder), sizes, SEED), sizes, trace)
    replay.run(lambda *_: None)
    replay.close()
    return replay.report
