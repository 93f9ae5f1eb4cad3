"""``kvproof replay``: the command line around a replay, what it prints and what it writes."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kvproof.spec.clauses import CLAUSES
from kvproof.spec.declarations.eviction import POLICIES

from ..backends.levels import LEVELS, Level
from ..backends.loading import DEFAULT_BACKEND, Backend, load_backend
from ..backends.raising import prints_apart
from ..console.exit_status import DEVIATES, FINE
from ..console.named import BadInputError, require_used, words_of
from ..console.terminal import visible
from ..console.writing import require_writable, write_file
from ..log.entries import Operation
from ..log.lockstep import Lockstep
from ..log.reading import is_log
from ..log.replaying import log_json, log_lines, replay_log
from ..replay.engine import DeviationError, Engine, Sizes, sizes_for
from ..replay.groups import read_groups
from ..replay.limits import Limit, limits_of, policies_of, policy_share
from ..replay.report import deviation_text, limits_json, limits_table, report_json, report_table
from ..replay.serving import Replay
from ..replay.traces import TraceRequest, read_trace, synthetic_trace, write_trace

__all__ = ["run", "set_up"]


_POOL_TOKENS = 200_000 * 16
_SYNTHETIC_REQUESTS = 200
_REFRESH_SECONDS = 0.1

_OF_BATCHES = ("allocate_slots_batch", "slot_of")
"""What a manager has that serves a step in one call (MAN-11)."""

_DESCRIPTION = """\
Serves a request trace through a backend's CacheManager and page tables, as an engine would, and reports how
often prefixes were found, what was evicted and preempted, and how long the library took.

A step gives every live request one more token, admits waiting ones, brings the tables to the device and
finishes those that are done. Where pages run out, the request that was admitted last gives way. A request that
no empty pool could hold is refused.

--groups names the model's cache groups, with commas between them, each as kind[:page_size[:argument]]:

  full:16            full attention
  mla:16             multi-head latent attention
  window:16:4096     sliding window of 4096 tokens
  chunk:16:8192      local attention in chunks of 8192 tokens
  mamba:16           one state a request, advanced in place: nothing is ever hit
  mamba:16:align     states kept where a step ended on a page boundary

With --eagle every step has slots for 3 tokens more, which a draft model proposes; from none to all of them are
accepted, by a hash of the request's name and the position. States can't be taken back: beside a group of them
none is accepted.

A trace has a line for each request, in the order of arrival; a hash id names a block of 512 input tokens:

  {"timestamp": 0, "input_length": 1000, "output_length": 50, "hash_ids": [0, 1]}

A log, which kvproof.conformance.record writes of a live engine, is told from a trace by its first line. Its calls are
made again on the specification, and the first one whose recorded result, refusal or state differs is named with the
clause that it breaks.

At --level safe, of a log and with --lockstep, any free pages may be taken, and look-ups may find less: the
specification takes the pages that the engine took, and in all else the two must agree.
"""

_EPILOG = """\
examples:
  kvproof replay trace.jsonl                               how the default backend does
  kvproof replay --synthetic --lockstep --num-pages 500    does it what the specification does, short of pages
  kvproof replay --synthetic 1000 --seed 7 --save t.jsonl  make a trace up, keep it, replay it
  kvproof replay --synthetic --lockstep --match-unit 4     the same where hits end amid pages
  kvproof replay trace.jsonl --lockstep --record a.log     the calls as a log: kvproof shrink a.log --backend ...
  kvproof replay --synthetic --lockstep --batched          the same of the call that serves a whole step
  kvproof replay --synthetic --groups full:16,window:16:4096,mamba --eagle
  kvproof replay trace.jsonl --limits --backend kvproof.fast   which eviction policy and how large a pool
  kvproof replay engine.log                                where an engine's recorded calls first went wrong
  kvproof replay engine.log --level safe                   the same of an engine with an eviction order of its own

exit status: 0 fine; 1 the backend differs from the specification, raises, or keeps pages; 2 could not run
"""


_OF_LOGS = ("ignore", "show_tokens", "redact")
"""The options that are about logs alone."""

_OF_SERVING = (
    *("lockstep", "batched", "groups", "num_pages", "eviction", "match_unit", "eagle", "prefill_chunk", "live"),
    "record",
)
"""The options that say how a trace is served."""

_OF_TRACES = ("synthetic", "seed", "save", "limit", "page_size", "limits", *_OF_SERVING)
"""The options that are about traces alone."""


_COMPARE_EVERY, _PAGES_A_CALL = 2_000, 5
"""The least number of calls from one comparison of the whole state to the next, and pages of the pool for each further
call: so that states take a tenth of the time.
"""


@dataclass(frozen=True)
class _Job:
    """What is to be done, read from the command line and found possible."""

    trace: list[TraceRequest]
    engine: Engine
    sizes: Sizes
    lockstep: Lockstep | None


@dataclass(frozen=True)
class _Options:
    """What the command was asked for, by the options that `set_up` adds."""

    trace: Path | None
    synthetic: int | None
    seed: int
    save: Path | None
    limit: int | None
    backend: str | None
    groups: str
    page_size: int
    num_pages: int | None
    eviction: str | None
    match_unit: int | None
    eagle: bool
    prefill_chunk: int | None
    live: int
    limits: str | None
    lockstep: bool
    batched: bool
    record: Path | None
    json: Path | None
    ignore: str | None
    level: Level
    show_tokens: bool
    redact: bool
    default_of: Callable[[str], Any]

    @property
    def served_by(self) -> str:
        """The backend that serves a trace."""
        return self.backend or DEFAULT_BACKEND


def set_up(parser: argparse.ArgumentParser) -> None:
    """Says what ``replay`` does and what it is asked for, and has `run` called."""
    parser.usage = "kvproof replay (TRACE | LOG | --synthetic [N]) [options]"
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add = parser.add_argument
    add("trace", nargs="?", type=Path, metavar="TRACE|LOG", help="the trace or the log, a file of JSON lines")
    add(
        "--synthetic",
        nargs="?",
        type=int,
        const=_SYNTHETIC_REQUESTS,
        metavar="N",
        help=f"instead of a file, make up a trace of N chats with shared prefixes (default {_SYNTHETIC_REQUESTS})",
    )
    add("--seed", type=int, default=0, metavar="S", help="seed of the synthetic trace and of the keys (default 0)")
    add("--save", type=Path, metavar="FILE", help="write the synthetic trace to a file, which replays as any other")
    add("--limit", type=int, metavar="R", help="serve the first R requests only")
    add(
        "--backend",
        metavar="M[:A]",
        help=f"module, or object in it (default {DEFAULT_BACKEND}; for a log kvproof.spec)",
    )
    add("--groups", default="full", metavar="SPEC", help="cache groups, see above (default full)")
    add("--page-size", type=int, default=16, metavar="P", help="tokens in a page of groups that don't say (default 16)")
    add("--num-pages", type=int, metavar="N", help="pages of the pool (default: for 3,200,000 tokens in every group)")
    add(
        "--eviction",
        choices=POLICIES,
        help="the policy by which free pages are evicted (default: adaptive, where the backend's manager takes one)",
    )
    add("--match-unit", type=int, metavar="U", help="hits are multiples of U tokens, and may end amid pages (MAN-17)")
    add("--eagle", action="store_true", help="serve with an Eagle draft model of 3 tokens a step")
    add(
        "--prefill-chunk",
        type=int,
        metavar="C",
        help="a step ends at a prompt's next multiple of C tokens (default: whole prompts; with mamba:16:align and "
        "its like steps end where a prompt parts from an earlier one and at its last page as well)",
    )
    add("--live", type=int, default=64, metavar="K", help="requests live at once, at most (default 64)")
    add(
        "--limits",
        nargs="?",
        const="",
        metavar="N,..",
        help="print the hit share of LRU and that of the optimum, which knows all later requests, in pools of N pages "
        "of --page-size tokens, full attention (default: of all distinct pages, a half of them, ...); with --backend "
        "also what its manager hits with each eviction policy, prompts served one after the other",
    )
    add("--lockstep", action="store_true", help="compare every call with the specification; slow, some 100 us a token")
    add(
        "--batched",
        action="store_true",
        help="a step's live requests get their slots by one allocate_slots_batch, as long as there are surely pages",
    )
    add(
        "--record",
        type=Path,
        metavar="LOG",
        help="write every call to a log as well, of which kvproof shrink makes a short one and a test",
    )
    add("--json", type=Path, metavar="FILE", help="write the report to a file as well")
    add("--ignore", metavar="C,..", help="of a log: pass over reads that differ by these clauses")
    add(
        "--level",
        choices=LEVELS,
        default=LEVELS[0],
        help="of a log and with --lockstep: safe: any free pages may be taken, and look-ups may find less",
    )
    add("--show-tokens", action="store_true", help="of a log: show token ids")
    add("--redact", action="store_true", help="of a log: show other ids in place of the requests'")
    parser.set_defaults(func=run, options=_Options, default_of=parser.get_default)


def run(options: _Options) -> int:
    """Replays as asked.

    Returns:
        The exit status: 0 fine, 1 the backend deviates, 2 could not run.
    """
    if options.trace is not None and is_log(options.trace):
        require_used(options, _OF_TRACES, "with a log")
        return _run_log(options, options.trace)
    require_used(options, _OF_LOGS, "with a trace")
    if not options.lockstep:
        require_used(options, ("level",), "without --lockstep")
    if options.limits is not None:
        require_used(options, _OF_SERVING, "with --limits")
        return _run_limits(options, options.limits)
    try:
        with prints_apart():
            job = _prepare(options)
    except DeviationError as error:  # it could not even be built
        _print_plain(deviation_text(error, options.served_by))
        return DEVIATES
    replay = Replay(job.engine, job.sizes, job.trace)
    with prints_apart():
        deviation = _serve(replay, job)
        job.engine.close()
    Console(emoji=False).print(report_table(replay.report, options.served_by, job.sizes, lockstep=options.lockstep))
    if deviation is not None:
        _print_plain(deviation_text(deviation, options.served_by))
    elif job.lockstep is not None:
        _print_plain(f"in lockstep with the specification: {job.lockstep.comparisons:,} comparisons, no difference")
    if options.json is not None:
        fields = report_json(replay.report, deviation, options.served_by, job.sizes, lockstep=options.lockstep)
        write_file(options.json, json.dumps(fields) + "\n")
    return FINE if deviation is None else DEVIATES


def _run_limits(options: _Options, pools: str) -> int:
    """Prints the hit share that LRU and the best choice of evictions reach on a trace, and a backend that is named."""
    page_size = _at_least("--page-size", options.page_size, 1)
    sizes = [_at_least("--limits", _page_count(size), 2) for size in filter(None, pools.split(","))]
    trace = _trace(options)
    require_writable(options.json, read=options.trace)
    with prints_apart():
        backend = None if options.backend is None else load_backend(options.backend)
    limits = limits_of(trace, page_size, sizes or None)
    if backend is not None:
        try:
            with prints_apart():
                limits = _with_policies(limits, backend, trace, page_size)
        except DeviationError as error:
            _print_plain(deviation_text(error, options.served_by))
            return DEVIATES
    Console(emoji=False).print(limits_table(limits, len(trace), page_size))
    write_file(options.json, json.dumps(limits_json(limits, len(trace), page_size)) + "\n")
    return FINE


def _with_policies(
    limits: Sequence[Limit], backend: Backend, trace: Sequence[TraceRequest], page_size: int
) -> list[Limit]:
    """The limits, and beside them what a backend's policies hit; behind a progress bar."""
    policies = policies_of(backend)
    with _progress_bar() as bar:
        task = bar.add_task("serving", total=len(limits) * len(policies) * len(trace))
        served = []
        for limit in limits:
            shares = {}
            for policy in policies:
                bar.update(task, description=f"{policy} in {limit.num_pages:,} pages")
                shares[policy] = policy_share(
                    backend, policy, trace, page_size, limit.num_pages, lambda: bar.advance(task)
                )
            served.append(limit._replace(policies=shares))
    return served


def _progress_bar() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
    )
    errors = Console(stderr=True, emoji=False)
    return Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal)


def _page_count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise BadInputError(f"--limits: {visible(text[:40])!r} is no number of pages")
    return int(text)


def _print_plain(text: str) -> None:
    # what a backend says may look like markup, or command a terminal
    text = "\n".join(map(visible, text.splitlines()))
    Console(emoji=False).print(text, markup=False, highlight=False, soft_wrap=True)


# -- Before ---------------------------------------------------------------------------------------


def _prepare(options: _Options) -> _Job:
    """Reads everything that can be wrong before the first step is taken."""
    groups = read_groups(options.groups, _at_least("--page-size", options.page_size, 1))
    page_sizes = [group.kv_cache_spec.page_size for group in groups]
    enough = sum(max(_POOL_TOKENS // page_size, 2) for page_size in page_sizes)
    num_pages = _at_least("--num-pages", enough if options.num_pages is None else options.num_pages, 2)
    if num_pages * max(page_sizes) > 2**31:
        raise BadInputError(f"--num-pages {num_pages} of {max(page_sizes)} tokens have more slots than an int32 counts")
    most_live = _at_least("--live", options.live, 1)
    chunk = options.prefill_chunk
    if chunk is not None:
        _at_least("--prefill-chunk", chunk, 1)
    backend = load_backend(options.served_by)
    trace = _trace(options)
    unit = _match_unit(options, backend, page_sizes)
    sizes = sizes_for(trace, groups, num_pages, most_live, chunk, use_eagle=options.eagle, match_unit=unit)
    require_writable(options.json, options.record, read=options.trace)
    every = max(_COMPARE_EVERY, num_pages // _PAGES_A_CALL)
    lockstep = None
    if options.lockstep:
        lockstep = Lockstep(backend, every, file=options.record, show_tokens=True, level=options.level)
    try:
        engine = Engine(
            backend if lockstep is None else Backend(backend.name, lockstep),
            sizes,
            hash_seed=f"kvproof replay {options.seed}".encode(),
            batched=_batched(options, backend),
            eviction=_eviction(options, backend),
            file=options.record if lockstep is None else None,
        )
    except MemoryError as error:
        raise BadInputError(f"no memory for {num_pages} pages and {sizes.most_live} rows of tables") from error
    return _Job(trace, engine, sizes, lockstep)


def _batched(options: _Options, backend: Backend) -> bool:
    """Whether steps are batched; asked for of a manager that has no such call, that is bad input."""
    if options.batched and not all(hasattr(backend.get("CacheManager"), name) for name in _OF_BATCHES):
        raise BadInputError(f"--batched: {options.served_by}'s CacheManager has no {' and '.join(_OF_BATCHES)}")
    return bool(options.batched)


def _match_unit(options: _Options, backend: Backend, page_sizes: list[int]) -> int | None:
    """The unit of hits; one that does not divide every page size, or that the manager takes none of, is bad input."""
    if options.match_unit is None:
        return None
    unit = _at_least("--match-unit", options.match_unit, 1)
    if not backend.accepts("CacheManager", "match_unit"):
        raise BadInputError(f"--match-unit {unit}: {options.served_by}'s CacheManager takes none")
    if any(size % unit for size in page_sizes):
        raise BadInputError(f"--match-unit {unit} must divide the tokens in a page of every group: {page_sizes}")
    return unit


def _eviction(options: _Options, backend: Backend) -> str:
    """The eviction policy; asked for of a manager that takes none, that is bad input."""
    if options.eviction is None:
        return "adaptive"
    if not backend.accepts("CacheManager", "eviction"):
        raise BadInputError(f"--eviction {options.eviction}: {options.served_by}'s CacheManager takes none")
    return str(options.eviction)


def _trace(options: _Options) -> list[TraceRequest]:
    if options.seed < 0:
        raise BadInputError(f"--seed {options.seed} must not be negative")
    limit = None if options.limit is None else _at_least("--limit", options.limit, 1)
    if options.trace is not None and options.synthetic is None:
        if options.save is not None:
            raise BadInputError("--save goes with --synthetic: a trace from a file is in a file already")
        return read_trace(options.trace, limit)
    if options.trace is not None or options.synthetic is None:
        raise BadInputError("name a TRACE or ask for one with --synthetic, one of the two")
    trace = synthetic_trace(_at_least("--synthetic", options.synthetic, 1), options.seed)
    if options.save is not None:
        write_trace(options.save, trace)
    return trace[:limit]


def _at_least(option: str, value: int, least: int) -> int:
    if value < least:
        raise BadInputError(f"{option} {value} must be at least {least}")
    return value


# -- During ---------------------------------------------------------------------------------------


def _serve(replay: Replay, job: _Job) -> DeviationError | None:
    """Runs the replay behind a progress bar. Returns how the backend deviates, if it does."""
    tokens = sum(request.output_length for request in job.trace)
    with _progress_bar() as bar:
        task = bar.add_task("replaying", total=max(tokens, 1))
        shown = time.monotonic()

        def progress(done: int, generated: int) -> None:
            nonlocal shown
            now = time.monotonic()
            if now - shown >= _REFRESH_SECONDS:  # the bar must not cost what the steps cost
                shown = now
                bar.update(task, completed=generated, description=f"{done:,} of {len(job.trace):,} requests")

        try:
            replay.run(progress)
            bar.update(task, completed=tokens, description="counting the pages that are cached")
            replay.close()
        except DeviationError as deviation:
            return deviation
    return None


# -- A log ----------------------------------------------------------------------------------------


_EVERY = 2_000
"""Operations from one line of progress to the next; the specification makes them in a second or so."""


def _run_log(options: _Options, log: Path) -> int:
    """Replays a log as asked; see `run`."""
    ignored = words_of(options.ignore or "")
    unknown = [label for label in ignored if label not in CLAUSES]
    if unknown:
        raise BadInputError(f"--ignore: there is no clause {unknown[0]}")
    require_writable(options.json, read=log)
    backend, shown = options.backend or "kvproof.spec", {"show_tokens": options.show_tokens, "redact": options.redact}
    if options.level == "safe" and backend != "kvproof.spec":
        raise BadInputError(f"--level safe holds a log to kvproof.spec: for {backend} there is kvproof try {log}")
    result = replay_log(log, backend, _progress, level=options.level, ignore=frozenset(ignored), **shown)
    for line in log_lines(result):
        print(line)
    write_file(options.json, json.dumps(log_json(result), indent=2) + "\n")
    return FINE if result.wrong is None else DEVIATES


def _progress(operation: Operation) -> None:
    """Says on a terminal how far a replay has come."""
    number = operation.number
    if number % _EVERY == 0 and sys.stderr.isatty():
        print(f"\r{number:,} operations", end="", file=sys.stderr, flush=True)
