"""``kvproof serve-check --engine | --url``: any engine is asked the same in many ways."""

import argparse
import json
import secrets
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..backends.raising import Interrupted
from ..console.exit_status import COULD_NOT_RUN, DEVIATES, FINE, could_not_run
from ..console.named import BadInputError, chosen, require_used, words_of
from ..console.terminal import visible
from ..console.writing import require_writable, write_file
from ..oracle.judging import Judgement, Plan, judge
from ..oracle.relations import RELATIONS
from ..oracle.replaying import SIZES, replay_script, subject_of
from ..oracle.scripts import Script, script_from_json
from ..oracle.subjects import CAPABILITIES, Subject
from ..oracle.telling import as_json, lines, test_source

__all__ = ["EPILOG", "OF_ENGINES", "Options", "add_options", "run"]

OF_ENGINES = (
    *("served_model", "timeout", "relations", "tolerance", "offers", "adapters", "first", "emit", "script"),
    *(size for size in SIZES if size != "page_size"),
)
"""The options that are about whole engines alone."""

_SCRIPTS = 6
"""Scripts for each relation, by default."""

EPILOG = f"""\
any engine, --engine or --url:
  It is asked the same in many ways, and all its answers must agree (ENG-3 to ENG-15). --engine names an object with
  a method, or a function or class that makes one:
    generate(prompts, max_tokens, *, n=1, cache_salts=None, adapters=None, abort_after=None,
             temperature=0.0, seed=0, logprobs=5) -> for each prompt its answer, or with n > 1 its list of answers
  prompts are lists of token ids, sent at once. An answer is a pair (token ids, log-probabilities), or has token_ids
  and logprobs as keys or attributes, and cached_tokens where it says how many it found; lists may be tuples, arrays
  or generators. A ValueError refuses a request; any other error is a fault, but for prompts longer than the engine
  takes where it doesn't say how long they may be. Options that generate does not name are not used; cache_salts,
  adapters and abort_after are lists, an entry (or None) for each prompt. A method reset() forgets all prefixes.
  Attributes page_size, max_model_len, vocab_size, max_num_batched_tokens, window, num_cached_tokens and adapters say
  what is known of it. It runs in a process of its own.
  --url names an OpenAI-compatible server: /v1/completions with token ids as prompts, which answers token ids (as
  token_ids, as id, or as "token_id:7") and log-probabilities. Give the engine a small pool, so that requests give way.
  relations: {", ".join(RELATIONS)}
"""


@dataclass(frozen=True)
class Options:
    """What the command was asked for: of any engine, or of both."""

    engine: str | None
    url: str | None
    served_model: str | None
    timeout: float
    relations: str | None
    tolerance: float | None
    offers: str | None
    adapters: str | None
    page_size: int | None
    max_model_len: int | None
    vocab_size: int | None
    chunk: int | None
    window: int | None
    pool: int | None
    schedules: int | None
    seed: int | None
    first: bool
    emit: Path | None
    script: Path | None
    json: Path | None
    default_of: Callable[[str], Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for any engine."""
    add = parser.add_argument_group("any engine").add_argument
    add("--engine", metavar="MODULE:ATTR", help="a Python engine: what has generate(prompts, max_tokens, ...)")
    add("--url", metavar="URL", help="an OpenAI-compatible server, such as http://localhost:8000/v1")
    add("--served-model", metavar="NAME", help="the server's model (the first that it lists)")
    add("--timeout", type=float, default=120.0, metavar="S", help="seconds that a request may take (120)")
    add("--relations", metavar="A,B", help="only these")
    add("--tolerance", type=float, metavar="X", help="how far log-probabilities may be apart (measured)")
    add("--offers", metavar="A,B", help=f"what the engine is said to offer: {', '.join(CAPABILITIES)}")
    add("--adapters", metavar="A,B", help="names of adapters")
    add("--max-model-len", type=int, metavar="N", help="the most tokens of a request (2048, unless it says)")
    add("--vocab-size", type=int, metavar="N", help="prompts hold token ids below it (1000, or fewer)")
    add("--chunk", type=int, metavar="N", help="the most tokens of a step")
    add("--window", type=int, metavar="N", help="positions that a sliding window or local chunk spans")
    add("--pool", type=int, metavar="N", help="the tokens that its pages hold")
    add("--first", action="store_true", help="stop at the first deviation")
    add("--emit", type=Path, metavar="FILE.py", help="write the deviations as a pytest file")
    add("--script", type=Path, metavar="FILE", help="ask only the scripts of a report, or a script, again")


def run(options: Options) -> int:
    """Judges an engine as asked.

    Returns:
        The exit status: 0 nothing contradicts, 1 something does, 2 it could not be judged, or not to the end.
    """
    plan = _plan(options)
    scripts = None if options.script is None else _scripts(options.script)
    require_writable(options.json, options.emit)
    known = {name: getattr(options, name) for name in SIZES} | {"adapters": _adapters(options.adapters)}
    subject = subject_of(options.engine, options.url, options.timeout, options.served_model, **known)
    try:
        if scripts is not None:
            return _replay(options, subject, scripts, plan)
        return _judge(options, subject, plan, known)
    finally:
        subject.close()


def _plan(options: Options) -> Plan:
    if options.engine is not None and options.url is not None:
        raise BadInputError("--engine and --url are not for one run")
    if not 0 < options.timeout < float("inf"):
        raise BadInputError(f"--timeout {options.timeout:g} must be a positive number of seconds")
    if options.tolerance is not None and not 0 <= options.tolerance < float("inf"):
        raise BadInputError(f"--tolerance {options.tolerance:g} must be a number, at least 0")
    if options.emit is not None and options.emit.suffix != ".py":
        raise BadInputError(f"--emit {options.emit} must end in .py")
    if options.engine is not None:
        require_used(options, ("served_model",), "with --engine")
    if options.script is not None:
        require_used(options, ("relations", "schedules", "seed", "first", "emit", "json"), "with --script")
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    return Plan(
        seed=seed,
        scripts=options.schedules or _SCRIPTS,
        relations=tuple(chosen("--relations", options.relations, list(RELATIONS))),
        insisted=frozenset(
            chosen("--offers", options.offers, list(CAPABILITIES)) if options.offers is not None else ()
        ),
        tolerance=options.tolerance,
        first=options.first,
    )


def _adapters(given: str | None) -> list[str] | None:
    """The names of adapters; None where none are given."""
    if given is not None and not words_of(given):
        raise BadInputError(f"--adapters {given}: no name")
    return None if given is None else words_of(given)


def _scripts(file: Path) -> list[tuple[Script, float | None]]:
    """The scripts in a report, or the one that a file holds, each with the bound of its report."""
    try:
        document = json.loads(file.read_bytes())
        if isinstance(document, dict) and isinstance(document.get("deviations"), list):
            bound = document.get("bound")
            found = [script_from_json(one.get("script")) for one in document["deviations"] if isinstance(one, dict)]
            return [(script, bound if isinstance(bound, int | float) else None) for script in found]
        return [(script_from_json(document), None)]
    except OSError as error:
        raise BadInputError(f"{file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise BadInputError(f"--script {file}: {error}") from error


def _judge(options: Options, subject: Subject, plan: Plan, known: dict[str, Any]) -> int:
    console = Console(emoji=False)
    console.print(f"seed {plan.seed}", highlight=False)
    errors = Console(stderr=True, emoji=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    interrupted = False
    judgement = Judgement(plan, subject.facts)
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("")

        def watch(what: str, requests: int) -> None:
            bar.update(task, description=visible(f"{what}, {requests} requests"))

        try:
            judge(subject, plan, watch, judgement)
        except Interrupted:
            interrupted = True
    again = _command(options, plan)
    for line in lines(judgement, again):
        console.print(visible(line), markup=False, highlight=False, soft_wrap=True)
    write_file(options.json, json.dumps(as_json(judgement), indent=1) + "\n")
    if options.emit is not None and judgement.deviations:
        write_file(options.emit, test_source(judgement, _arguments(options, plan, known), again))
    if judgement.ended:
        could_not_run("serve-check", judgement.ended)
    if interrupted:
        print("kvproof serve-check: interrupted; the report is on what was learnt up to there", file=sys.stderr)
    if judgement.deviations:
        return DEVIATES
    return COULD_NOT_RUN if interrupted or judgement.ended else FINE


def _replay(options: Options, subject: Subject, scripts: list[tuple[Script, float | None]], plan: Plan) -> int:
    """Asks scripts again, and says of each what contradicts."""
    status = FINE
    for number, (script, bound) in enumerate(scripts):
        given = options.tolerance if options.tolerance is not None else bound
        found = replay_script(subject, script, given if given is not None else _BOUND, plan.insisted)
        print(visible(f"script {number}: {found or 'nothing contradicts'}"))
        status = DEVIATES if found else status
    return status


_BOUND = 0.01
"""How far log-probabilities may be apart where a script says nothing of it."""


def _arguments(options: Options, plan: Plan, known: dict[str, Any]) -> dict[str, Any]:
    """What `replaying.replay` needs to know of the engine."""
    given = {
        "engine": options.engine,
        "url": options.url,
        "timeout": options.timeout,
        "model": options.served_model,
        **known,
    }
    given["offers"] = sorted(plan.insisted) or None
    return {name: value for name, value in given.items() if value is not None}


def _command(options: Options, plan: Plan) -> str:
    """The command that judges the same again."""
    words = ["kvproof", "serve-check"]
    names = ("engine", "url", "served_model", "relations", "tolerance", "offers", "adapters", *SIZES)
    for name in names:
        if getattr(options, name) is not None:
            words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    words += ["--schedules", str(plan.scripts), "--seed", str(plan.seed)]
    return shlex.join(words)
