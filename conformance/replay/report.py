"""What a replay found: the counts, the table that people read, and the object that programs read."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.table import Table

from kvproof.spec.clauses import CLAUSES

from ..engine.step_ends import copies_states
from .engine import DeviationError, Sizes, Timings
from .groups import named
from .limits import Limit
from .traces import BLOCK_TOKENS, TraceRequest

__all__ = ["Reasons", "Report", "deviation_text", "limits_json", "limits_table", "report_json", "report_table"]


Reason = Literal["own_turn", "junction", "other_request"]


class Reasons:
    """Tells the reasons of hits, by the blocks of tokens that the trace names. O(blocks) a request."""

    def __init__(self) -> None:
        self._latest: dict[int, TraceRequest] = {}
        """The latest request that was served with each block."""
        self._junctions: set[tuple[int, int]] = set()
        """Lengths at which prompts part, each with the last block before it."""

    def served(self, source: TraceRequest, hit_tokens: int, junction: int) -> Reason | None:
        """Notes a request at its admission.

        Args:
            source: the request.
            hit_tokens: the tokens of its prompt that it hit.
            junction: its junction; 0 if it has none (RET-2).

        Returns:
            ``own_turn``: the request that was served last with the end of the hit is one whose prompt this one goes on
            from, or repeats. ``junction``: the hit ends where an earlier prompt parted from another. ``other_request``:
            neither, the two have a beginning in common. None: nothing was hit.
        """
        reason: Reason | None = None
        blocks = source.hash_ids
        if hit_tokens:
            end = (hit_tokens - 1) // BLOCK_TOKENS
            earlier = self._latest.get(blocks[end])
            full = 0 if earlier is None else earlier.input_length // BLOCK_TOKENS
            if earlier is not None and full and earlier.hash_ids[:full] == blocks[:full]:
                reason = "own_turn"
            else:
                reason = "junction" if (hit_tokens, blocks[end]) in self._junctions else "other_request"
        if junction:
            self._junctions.add((junction, blocks[(junction - 1) // BLOCK_TOKENS]))
        self._latest.update(dict.fromkeys(blocks, source))
        return reason


# -- The report -------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    """What a replay found.

    Attributes:
        requests: requests of the trace that were served to their end or refused.
        refused: those among them that the pool can never hold.
        preemptions: how often a live request had to give way.
        input_tokens: prompt tokens of the requests served.
        output_tokens: tokens that they generated.
        looked_up_tokens: tokens looked up at admissions, those after a preemption included.
        hit_tokens: how many of them were found.
        hit_tokens_by_reason: those by reason, see `Reasons.served`.
        accepted_drafts: tokens of a draft model among those generated.
        page_copies: states copied onto other pages (MAN-13), and first tokens of pages (MAN-17).
        published_pages: pages that got a hash; None where the replay did not come to its end, or nobody counts.
        evictions: pages that lost theirs because they were handed out again; None as above.
        regrets: pages published again soon after their content was evicted; None as above. LRU counts none (EVICT-1).
        unreachable_pages: pages that lost theirs as no hit could need them any more (RET-3); None as above.
        peak_usage: the largest share of the pool in use at a step's end.
        steps: steps.
        wall_seconds: time from the first step to the last, the driver's own included.
        timings: the library's part of it.
    """

    requests: int = 0
    refused: int = 0
    preemptions: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    looked_up_tokens: int = 0
    hit_tokens: int = 0
    hit_tokens_by_reason: dict[Reason, int] = field(
        default_factory=lambda: {"own_turn": 0, "junction": 0, "other_request": 0}
    )
    accepted_drafts: int = 0
    page_copies: int = 0
    published_pages: int | None = None
    evictions: int | None = None
    regrets: int | None = None
    unreachable_pages: int | None = None
    peak_usage: float = 0.0
    steps: int = 0
    wall_seconds: float = 0.0
    timings: Timings = field(default_factory=Timings)

    @property
    def served(self) -> int:
        """Requests served to their end."""
        return self.requests - self.refused

    @property
    def hit_rate(self) -> float:
        """Hit tokens among those looked up."""
        return self.hit_tokens / max(self.looked_up_tokens, 1)

    @property
    def library_share(self) -> float:
        """The library's share of the wall time."""
        return self.timings.total / 1e9 / self.wall_seconds if self.wall_seconds else 0.0

    def microseconds_per_request(self) -> dict[str, float]:
        """The library's time by part and in total, a request served."""
        parts = {**asdict(self.timings), "total": self.timings.total}
        return {part: nanoseconds / 1e3 / max(self.served, 1) for part, nanoseconds in parts.items()}

    def to_json(self) -> dict[str, Any]:
        """All of it, for a file."""
        counts = {name: value for name, value in asdict(self).items() if name != "timings"}
        return {
            **counts,
            "served": self.served,
            "hit_rate": self.hit_rate,
            "library_nanoseconds": {**asdict(self.timings), "total": self.timings.total},
            "library_microseconds_per_request": self.microseconds_per_request(),
            "library_share": self.library_share,
        }


def report_table(report: Report, backend_name: str, sizes: Sizes, *, lockstep: bool) -> Table:
    """A report to be printed.

    Args:
        report: the report.
        backend_name: whose it is.
        sizes: the engine's.
        lockstep: whether the specification was at work beside it; then the library's share says nothing.
    """
    size = _page_size(sizes)
    pages = f"{sizes.num_pages:,} pages" + ("" if size is None else f" of {size}")
    title = f"{backend_name}: {pages}, at most {sizes.most_live} live"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("groups", "\n".join(map(named, sizes.groups)), end_section=True)
    table.add_row("requests", f"{report.requests:,}")
    table.add_row("  refused, too large for the pool", f"{report.refused:,}")
    table.add_row("input tokens", f"{report.input_tokens:,}")
    table.add_row("output tokens", f"{report.output_tokens:,}")
    if sizes.use_eagle:
        table.add_row("  of them drafts", f"{report.accepted_drafts:,}")
    table.add_row("hit rate", f"{report.hit_rate:.2%}")
    for reason, tokens in report.hit_tokens_by_reason.items():
        table.add_row(f"  {reason.replace('_', ' ')}", f"{tokens / max(report.looked_up_tokens, 1):.2%}")
    table.add_row("pages published", _counted(report.published_pages))
    table.add_row("pages evicted", _counted(report.evictions))
    table.add_row("  published again soon", _counted(report.regrets))
    table.add_row("pages let go as unreachable", _counted(report.unreachable_pages))
    if copies_states(sizes.groups) or sizes.match_unit is not None:
        table.add_row("pages copied", f"{report.page_copies:,}")
    table.add_row("preemptions", f"{report.preemptions:,}")
    table.add_row("peak usage", f"{report.peak_usage:.2%}")
    table.add_row("steps", f"{report.steps:,}", end_section=True)
    table.add_row("wall time", f"{report.wall_seconds:.2f} s")
    if not lockstep:
        table.add_row("  in the library", f"{report.library_share:.1%}")
    times = report.microseconds_per_request()
    table.add_row("library time a request", f"{times.pop('total'):,.1f} us")
    for part, microseconds in times.items():
        table.add_row(f"  {part.replace('_', ' ')}", f"{microseconds:,.1f} us")
    return table


def _counted(number: int | None) -> str:
    return "not counted" if number is None else f"{number:,}"


def _page_size(sizes: Sizes) -> int | None:
    """Tokens in a page, if they are as many in every group."""
    page_sizes = set(sizes.page_sizes)
    return page_sizes.pop() if len(page_sizes) == 1 else None


def deviation_text(deviation: DeviationError, backend_name: str) -> str:
    """The verdict on a backend that deviates, in five lines, and one for each frame of what it raised."""
    when = f"in step {deviation.step:,}" if deviation.step else "before the first step"
    whose = "" if deviation.request_id is None else f", {deviation.request_id}"
    raised = ["  raised, the innermost frame last", *(f"    {frame}" for frame in deviation.raised)]
    lines = [
        f"{backend_name} deviates {when}{whose}",
        f"  call      {deviation.call}",
        f"  expected  {deviation.expected}",
        f"  observed  {deviation.observed}",
        *([f"  clause    {deviation.clause}: {CLAUSES[deviation.clause].sentence}"] if deviation.clause else []),
        *(raised if deviation.raised else []),
    ]
    return "\n".join(lines)


def report_json(
    report: Report, deviation: DeviationError | None, backend_name: str, sizes: Sizes, *, lockstep: bool
) -> dict[str, Any]:
    """A report for a file: what was run, the verdict, the counts. Arguments as for `report_table`."""
    verdict = None
    if deviation is not None:
        names = ("step", "request_id", "call", "expected", "observed", "clause", "raised")
        verdict = {name: getattr(deviation, name) for name in names}
    return {
        "kvproof": "replay report",
        "version": 1,
        "backend": backend_name,
        "groups": list(map(named, sizes.groups)),
        "eagle": sizes.use_eagle,
        "prefill_chunk": sizes.prefill_chunk,
        "match_unit": sizes.match_unit,
        "page_size": _page_size(sizes),
        "num_pages": sizes.num_pages,
        "live": sizes.most_live,
        "lockstep": lockstep,
        "deviation": verdict,
        **report.to_json(),
    }


def limits_table(limits: Sequence[Limit], num_requests: int, page_size: int) -> Table:
    """What can be hit of a trace, to be printed.

    Args:
        limits: a row each.
        num_requests: requests of the trace.
        page_size: tokens in a page.
    """
    title = f"{num_requests:,} prompts, pages of {page_size}"
    table = Table(title=title, title_justify="left")
    served = [f"{policy}, served" for policy in limits[0].policies]
    for name in ("pages", "LRU hits", *served, "optimum hits"):
        table.add_column(name, justify="right")
    for limit in limits:
        shares = (limit.lru, *limit.policies.values(), limit.optimum)
        table.add_row(f"{limit.num_pages:,}", *(f"{share:.4f}" for share in shares))
    return table


def limits_json(limits: Sequence[Limit], num_requests: int, page_size: int) -> dict[str, Any]:
    """The same for a file."""
    return {
        "kvproof": "replay limits",
        "version": 1,
        "requests": num_requests,
        "page_size": page_size,
        "limits": [limit._asdict() | {"policies": dict(limit.policies)} for limit in limits],
    }
