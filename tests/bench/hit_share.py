"""The share of prompt tokens that are found in the cache, against pool size: kvproof, vLLM, and the optimum.

    python -m tests.bench.hit_share                                     # the workloads that need no file
    KVPROOF_TRACE=FILE python -m tests.bench.hit_share --workloads conversation-full
    python -m tests.bench.hit_share --workloads seats-3,families --json hits.json
    python -m tests.bench.hit_share --from hits.json --svg docs/guides/hits.svg    # draw what was measured

Hits are counted at a request's first admission, tokens of its prompt. vLLM runs with the defaults of its engine where
it is installed. The optimum knows all later requests (`replay.limits`) and is an upper bound; "unbounded"
is the share in a pool that never evicts. The table goes to standard output, progress to standard error.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import Any

from kvproof.conformance.replay.limits import chain_numbers, optimum_hits

from .compare import machine, on_a_cpu
from .curves import Panel, drawn
from .hit_serving import SERVERS, STEP_TOKENS, serve
from .hit_workloads import Workload, conversation, made_up
from .trace_row import TRACE_VARIABLE, missing_trace, trace_path

__all__ = ["limits", "main", "measure", "picture", "table"]


@lru_cache(maxsize=1)
def _chains(workload: Workload) -> tuple[int, list[list[int]], list[int]]:
    """The page size of the bound, the chains of the requests, the most pages of its prompt that each can hit."""
    page_size = gcd(*(group.kv_cache_spec.page_size for group in workload.groups))
    chains = chain_numbers((prompt.make() for prompt in workload.prompts), page_size)
    return page_size, chains, [(prompt.length - 1) // page_size for prompt in workload.prompts]


def limits(workload: Workload, num_pages: int) -> dict[str, float]:
    """The optimum's share in a pool of a size, and that of a pool that never evicts.

    Where groups have pages of different sizes, the bound takes the pool for one that never evicts: a page holds more
    tokens in one group than in another.
    """
    page_size, chains, most = _chains(workload)
    unbounded = sum(map(len, chains))
    sizes = {group.kv_cache_spec.page_size for group in workload.groups}
    room = int((num_pages - 1) * workload.num_shards / workload.full_page_cost) if len(sizes) == 1 else unbounded
    counted = workload.prompts[workload.counted_from :]
    asked = sum(prompt.length for prompt in counted)
    return {
        name: sum(optimum_hits(chains, most, pages)[workload.counted_from :]) * page_size / asked
        for name, pages in (("optimum", room), ("unbounded", unbounded))
    }


def measure(
    workload: Workload, num_pages: int, names: Sequence[str], step_tokens: int = STEP_TOKENS, **options: Any
) -> dict[str, Any]:
    """Serves a workload in a pool of a size by each manager.

    Args:
        workload: the workload.
        num_pages: pages of the pool.
        names: of `SERVERS`.
        step_tokens: the most tokens of a prompt that a step computes.
        options: further ones of our managers.

    Returns:
        The shares by manager, the bounds, and what else is worth knowing.
    """
    shares: dict[str, float] = {}
    notes: dict[str, Any] = {}
    longest = max(len(prompt.make()) for prompt in workload.prompts)
    counted = range(workload.counted_from, len(workload.prompts))
    asked = sum(workload.prompts[number].length for number in counted)
    for name in names:
        if workload.num_shards > 1 and not name.startswith("kvproof"):
            notes[name] = "not run: it has no shards"
            continue
        start = shown = time.monotonic()

        def progress(done: int, name: str = name) -> None:
            nonlocal shown
            if time.monotonic() - shown > 1:
                shown = time.monotonic()
                print(f"\r  {name}: {done:,} of {len(workload.prompts):,}", end="", file=sys.stderr, flush=True)

        own = options if name.startswith("kvproof") else {}
        outcome = serve(workload, SERVERS[name](workload, num_pages, longest, **own), progress, step_tokens)
        seconds = time.monotonic() - start
        print(f"\r  {name}: {len(workload.prompts):,} requests in {seconds:.0f} s", file=sys.stderr, flush=True)
        shares[name] = sum(outcome.hits[number] for number in counted) / asked
        notes[name] = {
            "requests with a hit": sum(outcome.hits[number] > 0 for number in counted),
            "preemptions": outcome.preemptions,
        }
        if outcome.shards is not None:
            notes[name]["requests of the busiest shard"] = max(Counter(outcome.shards).values())
    return {
        "workload": workload.name, "text": workload.text, "num_pages": num_pages, "requests": len(counted),
        "prompt tokens": asked, "shares": shares, "limits": limits(workload, num_pages), "notes": notes,
    }  # fmt: skip


def table(results: Sequence[dict[str, Any]]) -> str:
    """The results as a Markdown table."""
    names = list(dict.fromkeys(name for result in results for name in (*result["shares"], *result["limits"])))
    names.sort(key=lambda name: name in ("optimum", "unbounded"))
    lines = [f"| workload | pages | {' | '.join(names)} | notes |", f"|---|---|{'---|' * len(names)}---|"]
    for result in results:
        figures = {**result["shares"], **result["limits"]}
        cells = [f"{figures[name]:.4f}" if name in figures else "" for name in names]
        notes = "; ".join(
            filter(None, (_note(name, note, result["requests"]) for name, note in result["notes"].items()))
        )
        lines.append(f"| {result['workload']} | {result['num_pages']:,} | {' | '.join(cells)} | {notes} |")
    return "\n".join(lines)


def _note(name: str, note: Any, requests: int) -> str:
    if isinstance(note, str):
        return f"{name} {note}"
    said = [f"{note['requests with a hit']} of {requests} hit"] if requests <= 64 else []
    if note["preemptions"]:
        said.append(f"{note['preemptions']:,} preempted")
    if "requests of the busiest shard" in note:
        said.append(f"busiest shard {note['requests of the busiest shard']}")
    return f"{name}: {', '.join(said)}" if said else ""


def picture(results: Sequence[dict[str, Any]]) -> str:
    """Hit share against the pool's size as one SVG picture, a panel a workload; of chats against their number."""
    panels: dict[str, tuple[str, dict[str, list[tuple[float, float]]]]] = {}
    for result in results:
        name, seats, number = result["workload"].partition("seats-")
        across, x = ("seats", int(number)) if seats else ("pages of the pool", result["num_pages"])
        title = f"chat seats in {result['num_pages']:,} pages" if seats else name
        curves = panels.setdefault(title, (across, {}))[1]
        for whose, share in {**result["shares"], "optimum": result["limits"]["optimum"]}.items():
            curves.setdefault(whose, []).append((x, share))
    return drawn(
        [
            Panel(title, across, "share of prompt tokens hit", dict(curves), of_shares=True)
            for title, (across, curves) in panels.items()
            if any(len(curve) > 1 for curve in curves.values())
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the bench; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hit_share", description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", help="their names, separated by commas; the start of a name names several")
    parser.add_argument("--list", action="store_true", help="list the workloads")
    parser.add_argument("--of", default=",".join(SERVERS), help="managers, separated by commas (default: %(default)s)")
    parser.add_argument("--num-pages", help="sizes of pools, separated by commas, in place of the workload's own")
    parser.add_argument("--requests", type=int, help="the first requests of traces only")
    parser.add_argument(
        "--step-tokens", type=int, default=STEP_TOKENS, help="most tokens of a prompt in a step (default: %(default)s)"
    )
    parser.add_argument(
        "--retention-interval", type=int, default=0, help="of our managers (RET-1; default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw them there")
    parser.add_argument("--from", type=Path, nargs="+", dest="source", metavar="FILE", help="draw the figures of these")
    options = parser.parse_args(arguments)
    if options.source is not None:
        results = [result for file in options.source for result in json.loads(file.read_text())["results"]]
        if options.svg is not None:
            options.svg.write_text(picture(results))
        print(table(results))
        return 0
    on_a_cpu()
    workloads = made_up(options.requests or 6_000)
    if (reason := missing_trace()) is None:
        workloads += conversation(trace_path(), options.requests)
    else:
        print(f"without the conversation trace: {reason}", file=sys.stderr)
    wanted = options.workloads.split(",") if options.workloads else [""]
    workloads = [workload for workload in workloads if any(workload.name.startswith(name) for name in wanted)]
    names = options.of.split(",")
    if unknown := [name for name in names if name not in SERVERS]:
        parser.error(f"--of {unknown[0]}: there are {', '.join(SERVERS)}; {TRACE_VARIABLE} names a trace")
    if not workloads:
        parser.error(f"--workloads {options.workloads}: no workload is called so; see --list")
    if options.list:
        print("\n".join(f"{workload.name:20} {workload.text}" for workload in workloads))
        return 0
    results = []
    for workload in workloads:
        sizes = workload.num_pages if options.num_pages is None else map(int, options.num_pages.split(","))
        for num_pages in sizes:
            print(f"{workload.name}, {num_pages:,} pages", file=sys.stderr, flush=True)
            results.append(
                measure(workload, num_pages, names, options.step_tokens, retention_interval=options.retention_interval)
            )
            if options.json is not None:
                options.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
    if options.svg is not None:
        options.svg.write_text(picture(results))
    print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
