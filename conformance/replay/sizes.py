"""How large an engine must be to serve a trace: what a request needs, and which ones no pool of a size could hold."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvproof.spec.declarations import CacheGroupSpec

from .traces import TraceRequest

__all__ = ["LOOKAHEAD", "Sizes", "num_slots", "sizes_for"]

LOOKAHEAD = 3
"""Tokens that an Eagle draft model proposes a step, for which every step has slots beyond its own."""


@dataclass(frozen=True)
class Sizes:
    """What an engine serves, and how large its pool and tables are.

    Attributes:
        groups: the cache groups.
        num_pages: pages of the pool, the null page included.
        most_live: requests that can be live at once: rows of the tables.
        max_model_len: the most tokens of a request.
        prefill_chunk: the number of tokens at whose next multiple in a prompt a step ends; None: it takes all of them.
        use_eagle: whether an Eagle draft model runs (MAN-9).
        match_unit: the manager's argument: the number of tokens that hits are multiples of (MAN-17); None: whole pages.
    """

    groups: tuple[CacheGroupSpec, ...]
    num_pages: int
    most_live: int
    max_model_len: int
    prefill_chunk: int | None = None
    use_eagle: bool = False
    match_unit: int | None = None

    @property
    def page_sizes(self) -> list[int]:
        """Tokens in a page of each group."""
        return [group.kv_cache_spec.page_size for group in self.groups]


def num_slots(request: TraceRequest) -> int:
    """How many tokens of a request need a slot in the end: all but the last one it generates."""
    return request.input_length + max(request.output_length - 1, 0)


def sizes_for(
    requests: Sequence[TraceRequest],
    groups: tuple[CacheGroupSpec, ...],
    num_pages: int,
    most_live: int,
    prefill_chunk: int | None = None,
    *,
    use_eagle: bool = False,
    match_unit: int | None = None,
) -> Sizes:
    """The sizes of an engine that is to serve a trace; requests that no empty pool could hold don't count.

    A request's pages are counted group by group, as many as it may hold at once: those too that it needs where it
    gives way near its end and is computed again. With a unit a page of each group more may be held, to be copied from.
    """
    lookahead = LOOKAHEAD if use_eagle else 0

    def fits(length: int) -> bool:
        step = lookahead + (length if prefill_chunk is None else prefill_chunk)
        sources = 0 if match_unit is None else len(groups)
        return sources + sum(group.kv_cache_spec.max_num_pages(length, step) for group in groups) < num_pages

    lengths = [num_slots(request) for request in requests]
    longest = max((length for length in lengths if fits(length)), default=1)
    return Sizes(groups, num_pages, min(most_live, len(requests)), longest, prefill_chunk, use_eagle, match_unit)
