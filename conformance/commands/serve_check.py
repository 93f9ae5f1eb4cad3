"""``kvproof serve-check``: serves a model through a backend by random schedules, against dense attention."""

import argparse
import json
import secrets
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ..backends.loading import DEFAULT_BACKEND, Backend, load_backend
from ..backends.raising import Ending, Interrupted, frames, prints_apart
from ..console.exit_status import COULD_NOT_RUN, DEVIATES, FINE
from ..console.named import BadInputError, require_used
from ..console.terminal import visible
from ..console.writing import require_writable, write_file
from . import engines
from .devices import want_devices

if TYPE_CHECKING:
    from ..engine.serve_check import Make, Trial

__all__ = ["run", "set_up"]

_DESCRIPTION = """\
Serves a small model through the backend's manager, tables, caches and functions, by random schedules: requests
come, share prefixes, are taken back; prompts are computed in chunks; pools are so small that requests give way and
are computed again, or go to host memory and come back (SWAP-1); salts and adapters keep apart what looks alike.
Every logit of every token that is computed, and every token that is sampled, is held against dense attention in
float64 (ENG-1); nobody may wait for ever, and nobody who is scheduled may give way (ENG-2). What goes wrong is told
as the shortest schedule found.

A model is named by the kinds of its layers: full, window:N, chunk:N, mla, state; with +cap for a soft cap of
attention logits and +sinks for attention sinks. Or it is a checkpoint's: a folder with config.json and safetensors.
"""

_EPILOG = """\
examples:
  kvproof serve-check                                       full attention and a window, 20 schedules
  kvproof serve-check --model full,window:5,chunk:6,mla,state --schedules 100
  kvproof serve-check --backend my_engine:backend --seed 7 --layout v2
  kvproof serve-check --mesh 2x4 --model full,window:8      2 data shards, 4 devices for the heads of each
  kvproof serve-check --platform interpret --schedules 1    the kernels for TPUs, interpreted: takes minutes
  kvproof serve-check --checkpoint ./tiny-llama --json report.json
  kvproof serve-check --engine my_engine:make --emit test_engine.py
  kvproof serve-check --url http://localhost:8000/v1 --pool 4096 --json report.json

exit status: 0 no deviation; 1 the backend, or the engine, deviates; 2 could not run
"""

_DEVICES = 8

_SCHEDULES, _PAGE_SIZE = 20, 4
"""The number of schedules and the tokens in a page, unless told otherwise."""

_TRIES = 100
"""The most schedules tried to shorten one that goes wrong."""


_OF_SCHEDULES = ("backend", "model", "checkpoint", "layout", "platform", "mesh", "host_pages")
"""The options that are about schedules alone."""

_Rooms = tuple[list[int], list[int]]
"""How many pages pools may have, and host memory."""


@dataclass(frozen=True)
class _Options(engines.Options):
    """What the command was asked for, by the options that `set_up` adds."""

    backend: str
    model: str
    checkpoint: str | None
    layout: str
    platform: str
    mesh: str | None
    host_pages: int | None


def set_up(parser: argparse.ArgumentParser) -> None:
    """Says what ``serve-check`` does and what it is asked for, and has `run` called."""
    parser.description, parser.epilog = _DESCRIPTION, f"{engines.EPILOG}\n{_EPILOG}"
    add = parser.add_argument
    add("--backend", default=DEFAULT_BACKEND, metavar="MODULE[:ATTR]", help=f"the backend ({DEFAULT_BACKEND})")
    add("--seed", type=int, metavar="N", help="the seed of the first schedule; the next ones count on from it")
    add("--schedules", type=int, metavar="N", help="how many schedules (20), or scripts for each relation (6)")
    add("--model", default="full,window:8", metavar="KINDS", help="the kinds of the layers (full,window:8)")
    add("--checkpoint", metavar="FOLDER", help="a checkpoint in place of a model of random weights; or a GGUF file")
    add("--layout", choices=("v2", "v3", "seq_on_lane"), default="v3", help="how caches lie in memory (v3)")
    add("--platform", choices=("xla", "interpret"), default="xla", help="what computes attention (xla)")
    add("--mesh", metavar="DPxTP", help="data shards times devices for KV heads, such as 2x4; a CPU stands for 8")
    add(
        "--page-size",
        type=int,
        metavar="N",
        help="tokens in a page (4; with --engine or --url what the engine says, or 16)",
    )
    add("--host-pages", type=int, metavar="N", help="pages of host memory; otherwise drawn: two schedules of three")
    add("--json", type=Path, metavar="FILE", help="write a report")
    engines.add_options(parser)
    parser.set_defaults(func=run, options=_Options, default_of=parser.get_default)


def run(options: _Options) -> int:
    """Checks as asked.

    Returns:
        The exit status: 0 no deviation, 1 the backend deviates, 2 could not run.
    """
    _require_numbers(options)
    if options.engine is not None or options.url is not None:
        require_used(options, _OF_SCHEDULES, "with --engine or --url: it is about the schedules of a backend")
        return engines.run(options)
    require_used(options, engines.OF_ENGINES, "without --engine or --url")
    want_devices(_DEVICES)
    return _run(options)


def _require_numbers(options: _Options) -> None:
    """Refuses numbers that make no sense, whatever is checked."""
    for option, value in (("--schedules", options.schedules), ("--page-size", options.page_size)):
        if value is not None and value < 1:
            raise BadInputError(f"{option} {value} must be at least 1")
    if options.seed is not None and options.seed < 0:
        raise BadInputError(f"--seed {options.seed} must not be negative")
    if (options.host_pages or 0) < 0:
        raise BadInputError(f"--host-pages {options.host_pages} must be at least 0")


def _run(options: _Options) -> int:
    backend = load_backend(options.backend)
    try:  # JAX, and what needs it
        from ..engine.serve_check import shortened
    except ImportError as error:
        raise BadInputError(f"{error.name} is missing: pip install 'kvproof[conformance]'") from error
    model, rooms, make = _prepared(options, backend)
    require_writable(options.json)  # better known now than after a minute
    seed = secrets.randbelow(2**32) if options.seed is None else options.seed
    console = Console(emoji=False)
    console.print(f"seed {seed}", highlight=False)
    trials: list[Trial] = []
    wrong = 0
    interrupted = False
    try:
        for schedule, trial in _trials(options.schedules or _SCHEDULES, model, rooms, make, seed):
            trials.append(trial)
            if trial.fault is not None:
                wrong = seed + len(trials) - 1
                with Console(stderr=True, emoji=False).status("making the schedule shorter ..."), prints_apart():
                    trials[-1] = shortened(model, make, schedule, trial, _TRIES)[1]
                break
    except Interrupted:
        if not trials:
            raise
        interrupted = True
        print("kvproof serve-check: interrupted; the schedules up to there are told", file=sys.stderr)
    report = _report(options, seed, trials)
    _tell(report, trials[-1], wrong, console)
    write_file(options.json, json.dumps(report, indent=1) + "\n")
    if trials[-1].fault is not None:
        return DEVIATES
    return COULD_NOT_RUN if interrupted else FINE


def _trials(count: int, model: Any, rooms: "_Rooms", make: "Make", seed: int) -> Any:
    """Schedule after schedule with what came of it, behind a bar where somebody looks."""
    from ..engine.schedules import draw_schedule
    from ..engine.serve_check import check_schedule

    config, errors = model[0], Console(stderr=True, emoji=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} of {task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("schedules", total=count)
        for number in range(count):
            schedule = draw_schedule(seed + number, config.vocab_size, min(config.max_model_len, 48), *rooms)
            with prints_apart():
                trial = check_schedule(model, make, schedule)
            yield schedule, trial
            bar.advance(task)


def _prepared(options: _Options, backend: Backend) -> tuple[Any, _Rooms, "Make"]:
    """The model, sizes of pools and of host memory, and what makes engines; what can be wrong is found out here."""
    from ..engine.groups import groups_of, most_pages
    from ..engine.serving import Engine

    if options.checkpoint is not None:
        require_used(options, ("model",), "with --checkpoint")
    model = _checkpoint(options.checkpoint) if options.checkpoint is not None else _random_model(options.model)
    mesh, shards = _mesh(options.mesh)
    page_size = options.page_size or _PAGE_SIZE
    groups = [group.declared for group in groups_of(model[0], page_size)]
    longest = most_pages(groups, min(model[0].max_model_len, 48) * 3 // 4)
    pools = [longest + 1, 2 * longest] if shards == 1 else [longest + 1]
    swaps = shards == 1 and "swaps" not in backend.lacks and backend.accepts("CacheManager", "num_host_pages")
    host_pages = [options.host_pages] if options.host_pages is not None else [0, longest, 4 * longest] if swaps else [0]

    def make(num_pages: int, num_host_pages: int) -> Engine:
        return Engine(
            model,
            backend=backend,
            num_pages=num_pages,
            page_size=page_size,
            max_num_seqs=4,
            max_num_batched_tokens=16,
            layout=options.layout,
            platform=options.platform,
            mesh=mesh,
            keep_logits=True,
            hash_seed=b"kvproof serve-check",
            num_host_pages=num_host_pages,
            optimise=False,
        )

    try:
        make(pools[0], host_pages[0])
    except (TypeError, ValueError) as error:
        raise BadInputError(str(error)) from error
    except Ending:
        raise
    except BaseException as error:  # a backend may raise anything
        raise BadInputError(f"no engine can be made: {type(error).__name__}: {error} ({frames(error)[-1]})") from error
    return model, (pools, host_pages), make


def _random_model(words: str) -> tuple[Any, Any]:
    """A small model of the kinds named."""
    from ..engine.config import LayerKind, ModelConfig
    from ..engine.model import init_params

    kinds, *extras = words.split("+")
    unknown = set(extras) - {"cap", "sinks"}
    if unknown:
        raise BadInputError(f"--model {words}: +{min(unknown)} is unknown; there are +cap and +sinks")
    try:
        layers = []
        for word in kinds.split(","):
            kind, _, extent = word.strip().partition(":")
            layers.append(LayerKind(kind, int(extent) if extent else 0))
        config = ModelConfig(
            *(64, 32, 48, 8, 4, 16),
            tuple(layers),
            64,
            latent_rank=16,
            rotary_size=8,
            state_size=4,
            soft_cap=5.0 if "cap" in extras else None,
            sinks="sinks" in extras,
        )
    except (TypeError, ValueError) as error:
        raise BadInputError(f"--model {words}: {error}") from error
    return config, init_params(config, 0)


def _checkpoint(folder: str) -> tuple[Any, Any]:
    """A checkpoint's model, in float32."""
    from ..engine.checkpoint import load_checkpoint

    try:
        return load_checkpoint(Path(folder), "float32")
    except (ImportError, OSError, TypeError, ValueError) as error:
        raise BadInputError(f"--checkpoint {folder}: {error}") from error


def _mesh(words: str | None) -> tuple[Any, int]:
    """The mesh named, and how many data shards it has."""
    if words is None:
        return None, 1
    import jax
    from jax.sharding import AxisType

    sizes = words.split("x")
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise BadInputError(f"--mesh {words} must be like 2x4")
    shape = int(sizes[0]), int(sizes[1])
    if shape[0] * shape[1] > len(jax.devices()):
        raise BadInputError(f"--mesh {words} needs {shape[0] * shape[1]} devices, there are {len(jax.devices())}")
    return jax.make_mesh(shape, ("dp", "tp"), axis_types=(AxisType.Auto,) * 2), shape[0]


def _report(options: _Options, seed: int, trials: "list[Trial]") -> dict[str, Any]:
    """What came of all schedules, as JSON has it."""
    names = ("requests", "refused", "steps", "rows", "tokens", "preemptions", "swaps_out", "swaps_in", "hits")
    fault = trials[-1].fault
    asked = {name: getattr(options, name) for name in ("backend", "model", "checkpoint", "layout", "platform", "mesh")}
    return {
        **asked,
        "seed": seed,
        "asked": options.schedules or _SCHEDULES,
        "schedules": len(trials),
        **{name: sum(getattr(trial, name) for trial in trials) for name in names},
        "worst_error": max(trial.worst for trial in trials),
        "fault": None if fault is None else {**fault._asdict(), "calls": trials[-1].lines},
    }


def _tell(report: dict[str, Any], last: "Trial", wrong: int, console: Console) -> None:
    """Prints it."""

    def say(line: str) -> None:
        console.print(visible(line), markup=False, highlight=False, soft_wrap=True)

    say(
        f"{report['schedules']} schedules: {report['requests']} requests served, {report['refused']} refused as they "
        f"can never fit; {report['steps']} steps, {report['tokens']} tokens generated, {report['hits']} found cached, "
        f"{report['preemptions']} preemptions, {report['swaps_out']} of them to host memory, {report['swaps_in']} back"
    )
    say(f"{report['rows']} rows of logits held against dense attention, the largest error {report['worst_error']:.1e}")
    if last.fault is None:
        say("ENG-1, ENG-2: conforms" if report["schedules"] == report["asked"] else "ENG-1, ENG-2: no deviation so far")
        return
    say(f"{last.fault.clause}: expected {last.fault.expected}, observed {last.fault.observed}")
    for line in last.lines:
        say(f"  {line}")
    for frame in last.fault.raised:
        say(f"  raised in {frame}")
    say(f"again: --seed {wrong} --schedules 1")
