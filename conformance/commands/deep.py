"""``--profile deep``: the default check again and again, each time with another seed, for hours; it can be interrupted.

Each round's seed is derived from the run's. What was found so far is kept in a file after each round, if one is named,
and a run that finds the file goes on from it. Each deviation comes with the command that finds it again.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..console.named import BadInputError
from ..console.writing import write_file
from ..report.document import header, machine_from_json, machine_json
from ..report.redacting import redacted
from ..report.redaction import Redaction
from ..report.verdicts import MachineReport, Report
from .check_options import Options

__all__ = ["DeepRun", "Failure", "resumed", "round_seed"]

_MOST_BYTES = 1 << 26
_KIND = "deep"


def round_seed(seed: int, number: int) -> int:
    """The seed of a round, below 2**32.

    Args:
        seed: the run's.
        number: the round's number, from 0.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "little")


@dataclass(frozen=True)
class Failure:
    """A deviation where it was first seen.

    Attributes:
        machine: the machine that saw it.
        clause: the clause's label.
        round: the round's number, from 0.
        command: the command that finds it again.
    """

    machine: str
    clause: str
    round: int
    command: str


@dataclass
class DeepRun:
    """What was found in all rounds so far.

    Attributes:
        options: what is checked.
        seed: the run's seed.
        rounds: how many rounds have ended.
        seconds: how long they took.
        machines: what each machine found in all of them, by its name.
        failures: the deviations, each where it was first seen.
    """

    options: Options
    seed: int
    rounds: int = 0
    seconds: float = 0.0
    machines: dict[str, MachineReport] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    @property
    def next_seed(self) -> int:
        """The seed of the next round."""
        return round_seed(self.seed, self.rounds)

    def add(self, reports: Sequence[MachineReport], seconds: float) -> list[Failure]:
        """Adds a round that has ended, and writes the file, if there is one.

        Args:
            reports: what the machines found, with `next_seed`.
            seconds: how long it took.

        Returns:
            The deviations that no round before has seen, those left out that are expected.

        Raises:
            CannotRunError: the file cannot be written.
        """
        new = self.add_part(reports)
        self.rounds += 1
        self.seconds += seconds
        write_file(self.options.given.state, json.dumps(self._document(), indent=1) + "\n")
        return new

    def add_part(self, reports: Sequence[MachineReport]) -> list[Failure]:
        """Adds what was found in a round up to where it was interrupted; the file stays, and who goes on repeats it.

        Args:
            reports: what the machines found, with `next_seed`.

        Returns:
            The deviations that no round before has seen, those left out that are expected.
        """
        known = {(failure.machine, failure.clause) for failure in self.failures}
        new = [
            Failure(
                report.name, found.clause, self.rounds, self.options.command(report.name, self.next_seed, "default")
            )
            for report in reports
            for found in report.deviations
            if (report.name, found.clause) not in known
            and self.options.xfails.expects(report.name, found.clause) is None
        ]
        for report in reports:
            before = self.machines.get(report.name)
            self.machines[report.name] = report if before is None else _together(before, report)
        self.failures += new
        return new

    def report(self, backend: str, without: tuple[str, ...]) -> Report:
        """What all rounds found, as the report of one run."""
        options = self.options
        machines = [self.machines[machine.name] for machine in options.machines if machine.name in self.machines]
        return Report(backend, self.seed, options.clauses, machines, options.level, _KIND, without)

    def _document(self) -> dict[str, Any]:
        report = self.report(self.options.given.backend, self.options.without)
        report = redacted(report, Redaction()) if self.options.given.redact else report
        return {
            **header(_KIND),
            "seed": self.seed,
            "of": _settings(self.options),
            "rounds": self.rounds,
            "seconds": self.seconds,  # not rounded: a run of 0 s would never be over
            "failures": [vars(failure) for failure in self.failures],
            "machines": [machine_json(machine) for machine in report.machines],
        }


def resumed(options: Options, seed: int) -> DeepRun:
    """A run that goes on from its file, or a new one if there is no file.

    Args:
        options: what is checked.
        seed: the seed of a new run.

    Raises:
        BadInputError: the file cannot be read, or is no state of such a run.
    """
    given = options.given
    if given.state is None or not Path(given.state).exists():
        return DeepRun(options, seed)
    try:
        if Path(given.state).stat().st_size > _MOST_BYTES:
            raise BadInputError(f"--state {given.state}: more than {_MOST_BYTES} bytes")
        document = json.loads(Path(given.state).read_text(encoding="utf-8"))
        if not isinstance(document, dict) or document.get("kvproof") != _KIND:
            raise ValueError("no state of a deep run")
        if document.get("version") != header(_KIND)["version"]:
            raise ValueError(f"version {document.get('version')!r:.20}, this kvproof reads {header(_KIND)['version']}")
        run = _read(options, document)
    except OSError as error:
        raise BadInputError(f"--state {given.state}: {error.strerror or error}") from error
    except (ValueError, TypeError, RecursionError) as error:  # what no JSON is says where; the rest is from here
        raise BadInputError(f"--state {given.state} cannot be gone on from: {error}") from error
    if given.seed not in (None, run.seed):
        raise BadInputError(f"--state {given.state} was begun with seed {run.seed}, not {given.seed}")
    return run


def _read(options: Options, document: Mapping[str, Any]) -> DeepRun:
    missing = [name for name in ("of", "machines", "failures", "seed", "rounds", "seconds") if name not in document]
    if missing or not isinstance(document["of"], dict):
        raise ValueError(f"it has no {', '.join(missing) or 'settings'}")
    for name, value in _settings(options).items():
        if document["of"].get(name) != value:
            raise ValueError(f"it was begun with another {name}")
    machines = [machine_from_json(machine) for machine in document["machines"]]
    names = {machine.name for machine in options.machines}
    if not all(machine.name in names for machine in machines):
        raise ValueError("a machine that there is not")
    failures = [_failure(failure) for failure in document["failures"]]
    seed, rounds, seconds = document["seed"], document["rounds"], document["seconds"]
    if type(seed) is not int or type(rounds) is not int or type(seconds) not in (int, float):
        raise ValueError("seed, rounds and seconds must be numbers")
    if min(seed, rounds, seconds) < 0 or not seconds < math.inf:
        raise ValueError("seed, rounds and seconds must be at least 0 and finite")
    return DeepRun(options, seed, rounds, seconds, {machine.name: machine for machine in machines}, failures)


def _failure(document: Any) -> Failure:
    failure = Failure(**document)
    texts = (failure.machine, failure.clause, failure.command)
    if not all(isinstance(text, str) for text in texts) or type(failure.round) is not int:
        raise ValueError("a failure that is none")
    return failure


def _settings(options: Options) -> dict[str, Any]:
    """What must be the same for a run to go on."""
    return {
        "backend": options.given.backend,
        "level": options.level,
        "without": list(options.without),
        "clauses": list(options.clauses),
        "machines": [machine.name for machine in options.machines],
        "examples": options.given.examples,
    }


def _together(before: MachineReport, report: MachineReport) -> MachineReport:
    """What a machine found in some rounds and in one more."""
    shortest = {found.clause: found for found in sorted(
        [*before.deviations, *report.deviations], key=lambda found: found.size, reverse=True
    )}  # fmt: skip
    return replace(
        report,
        lacks=sorted({*before.lacks, *report.lacks}),
        examples=before.examples + report.examples,
        steps=before.steps + report.steps,
        wasted=before.wasted + report.wasted,
        tried=before.tried + report.tried,
        drawn=before.drawn + report.drawn,
        deviations=sorted(shortest.values(), key=lambda found: found.size),
        undeclared=sorted({*before.undeclared, *report.undeclared}),
        seconds=before.seconds + report.seconds,
        ended=before.ended and report.ended,
        hits=before.hits + report.hits,
        unrepeated=before.unrepeated or report.unrepeated,
        scripts=[*before.scripts, *report.scripts],
    )
