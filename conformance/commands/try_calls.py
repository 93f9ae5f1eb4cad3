"""``kvproof try``: the command line around a sequence of calls that was written by hand."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvproof.spec.clauses import CLAUSES

from ..adapters.peers import unknown_version
from ..backends.capabilities import CAPABILITIES, unknown_capabilities
from ..backends.levels import LEVELS, Level
from ..backends.loading import Backend, load_backend
from ..backends.raising import prints_apart
from ..calls.documents import calls_from_json
from ..console.exit_status import DEVIATES, FINE
from ..console.named import BadInputError, words_of
from ..console.terminal import visible
from ..console.writing import require_writable, write_file
from ..log.reading import is_log
from ..log.reading_calls import read_calls
from ..report.document import header
from ..trying.script import Entry, FileError, Rows, arguments_of, entry_of, made_by, read_script
from ..trying.trial import Said, Trial
from .devices import want_devices

__all__ = ["run", "set_up"]

_LARGEST = 10 * 2**20
"""The most bytes of a file that are read."""

_DESCRIPTION = """\
Makes the calls of a file on a backend and on the specification, in order, and says after each what the specification
said, what the backend said, and by which clause the two agree or not. After every call the whole observable state is
compared as well. The first call that deviates is the last one that is made.

FILE is Python that is read and never run. Each line constructs something, calls a method or a function, sets or reads
an attribute; results have names, and what they hold is named by its place:

  pool = PagePool(4, True)
  pages = pool.get_new_pages(2)
  pool.free_pages([pages[0], pages[0]])       # twice, though held once: refused (POOL-5)

  a = Request("a", [1, 2, 3, 4, 5])           # the engine's own: both sides are given the same one
  layers = FullAttentionSpec(page_size=2, num_kv_heads=1, head_size=8, dtype="float32")
  manager = CacheManager(8, [CacheGroupSpec(layers)], max_model_len=16)
  found, hit = manager.get_computed_pages(a)
  manager.allocate_slots(a, 5, hit, found)
  a.num_computed_tokens = 5
  a.append(6)

Values are numbers, texts, lists, tuples, range, iter([...]), np.array and the like; groups, extra keys and events by
their classes. Everything of kvproof.spec can be called that a clause is about: PagePool, FreeCachePageQueue, CachePage,
CacheManager, ShardedCacheManager, PageTable, MultiGroupPageTable, RaggedPagesCache, ragged_paged_attention, ...
Keys have the same seed on both sides where none is given.

A log of kvproof.conformance.record is a sequence of calls, too: what the engine did is made again on the backend.
Pages, hits, slots, pins and swaps of the log are those that the same calls give there; "number - result" (9 - hit) is
what is new of a prompt. kvproof shrink LOG --backend ... -o small.json makes a short file of one that deviates.

A file that ends in .json has calls as data, "calls" or a bare list of them; a result is named by the call's number:

  [{"method": "PagePool", "arguments": {"num_pages": 4, "enable_caching": true}},
   {"target": "r1", "method": "get_new_pages", "arguments": {"num_pages": 2}},
   {"target": "r1", "method": "free_pages", "arguments": {"ordered_pages": [{"ref": "r2[0]"}]}}]
"""

_EPILOG = """\
At level safe pages, their order and what look-ups find may be others than the specification's: compared are refusals
(any exception is one), how many pages there are, and what of the state no eviction order changes. Where a look-up finds
something else, what comes after it is undecided.

examples:
  kvproof try calls.py                              on the fast backend
  kvproof try calls.py --backend my_cache.pool      on your own
  kvproof try engine.log --backend my_cache.pool    what a recorded engine did, made again
  kvproof try calls.json --backend kvproof.conformance.adapters.vllm --level safe --json said.json

exit status: 0 no call deviates; 1 one does; 2 could not run, which includes that the file makes no sense
"""


@dataclass(frozen=True)
class _Options:
    """What the command was asked for."""

    file: Path
    backend: str
    level: Level
    without: str
    json: str | None


def set_up(parser: argparse.ArgumentParser) -> None:
    """Says what ``try`` does and what it is asked for, and has `run` called."""
    parser.usage = "kvproof try FILE [options]"
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    add = parser.add_argument
    add("file", type=Path, metavar="FILE", help="the calls: Python, JSON where the name ends in .json, or a log")
    add("--backend", default="kvproof.fast", metavar="M[:A]", help="module, or object in it (default %(default)s)")
    add("--level", choices=LEVELS, default=LEVELS[0], help="exact: as the specification does it; safe: any order")
    add("--without", default="", metavar="A,B", help="what the backend is said to lack; see kvproof check --help")
    add("--json", metavar="FILE", help="write what was said of each call to a file as well")
    parser.set_defaults(func=run, options=_Options)


def run(options: _Options) -> int:
    """Makes the calls of a file as asked.

    Returns:
        The exit status: 0 no call deviates, 1 one does, 2 could not run.
    """
    require_writable(options.json)
    want_devices()
    backend = load_backend(options.backend, words_of(options.without))
    _require_known(backend)
    warning = unknown_version(backend)
    if warning:
        print(f"kvproof try: {visible(warning)}", file=sys.stderr)
    try:
        entries = _of_log(options, backend) if is_log(options.file) else _entries(options.file)
        return _tell(options, entries, Trial(backend, options.level).run(entries))
    except FileError as error:
        raise BadInputError(f"{options.file}, {error}") from error


def _require_known(backend: Backend) -> None:
    """Refuses words of --without that say nothing."""
    strange = unknown_capabilities(backend.lacks)
    if strange:
        raise BadInputError(f"--without: no {', '.join(strange)}; there are {', '.join(CAPABILITIES)}")


def _of_log(options: _Options, backend: Backend) -> list[Entry]:
    """The calls of an operation log; their texts don't show its tokens (SEC-2).

    Raises:
        LogError: the log can't be read, or its calls can't be made again.
    """
    return read_calls(options.file, backend, options.level).entries()


def _entries(file: Path) -> list[Entry]:
    """The calls of a file.

    Raises:
        FileError: they can't be read.
        BadInputError: there is no such file.
    """
    try:
        with file.open("rb") as source:
            text = source.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise BadInputError(f"{file}: larger than {_LARGEST} bytes")
        decoded = text.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{file}: {getattr(error, 'strerror', None) or error}") from error
    entries = _from_json(decoded) if file.suffix == ".json" else read_script(decoded)
    if not entries:
        raise BadInputError(f"{file}: no calls")
    return entries


def _from_json(text: str) -> list[Entry]:
    try:
        calls = calls_from_json(json.loads(text))
    except RecursionError as error:
        raise FileError("it is nested too deep") from error
    except ValueError as error:
        raise FileError(" ".join(str(error).split())) from error
    rows, entries = Rows(), []
    for place, call in enumerate(calls):
        try:
            row = rows.row_of(call)
            given = call.arguments if row.form == "set" else arguments_of(row, (), call.arguments)
        except FileError as error:
            raise FileError(f"calls[{place}]: {error}") from error
        entries.append(entry_of(f"calls[{place}]", replace(call, arguments=given), row))
    return entries


def _tell(options: _Options, entries: list[Entry], said: Iterator[Said]) -> int:
    """Prints what is said of each call, and writes it where that is asked for."""
    told: list[Said] = []
    while True:
        with prints_apart():
            each = next(said, None)
        if each is None:
            break
        told.append(each)
        for line in _lines(each):
            print(visible(line))
    left = len(entries) - len(told)
    deviates = any(each.verdict == "deviates" for each in told)
    counts = {word: sum(each.verdict == word for each in told) for word in ("conforms", "deviates", "undecided")}
    summary = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "no call of the interface"
    print()
    print(visible(f"{options.backend}, level {options.level}: {summary}" + (f"; {left} not made" if left else "")))
    document: dict[str, Any] = {
        **header("try"),
        "file": str(options.file),
        "backend": options.backend,
        "level": options.level,
        "deviates": deviates,
        "not_made": left,
        "calls": [each.to_json() for each in told],
    }
    write_file(options.json, json.dumps(document, indent=1) + "\n")
    return DEVIATES if deviates else FINE


def _lines(said: Said) -> list[str]:
    """What came of a call, line by line."""
    lines = [f"{said.entry.place}: {said.entry.text}"]
    if not said.verdict:
        return lines
    if said.verdict != "deviates" and said.expected == said.observed:
        made = made_by(said.entry.call)
        shown = f"an object of class {made}" if said.expected == repr(made) else said.expected
        return [*lines, f"  both           {shown}", f"  {said.verdict:13}  {said.clause}"]
    lines += [f"  specification  {said.expected}", f"  backend        {said.observed}"]
    for name, (right, seen) in said.differences.items():
        lines += [f"  after it, {name}", f"    must be      {right}", f"    is           {seen}"]
    lines += [f"  raised at      {frame}" for frame in said.raised]
    sentence = f": {CLAUSES[said.clause].sentence}" if said.verdict == "deviates" else ""
    return [*lines, f"  {said.verdict:13}  {said.clause}{sentence}"]
