"""A run's report as JSON, with a header that says what was tested, with what, where and when."""

import platform
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kvproof import __version__
from kvproof.spec.clauses import CLAUSES

from ..calls.deviation import Deviation
from .verdicts import MachineReport, Report
from .xfails import Xfails

__all__ = ["as_json", "deviation_json", "header", "machine_from_json", "machine_json"]

VERSION = 1


def header(kind: str) -> dict[str, Any]:
    """What every such document begins with: its kind, its version, and the versions of what wrote it."""
    return {
        "kvproof": kind,
        "version": VERSION,
        "kvproof_version": __version__,
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "jax": _version("jax"),
        "platform": platform.platform(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def as_json(report: Report, xfails: Xfails) -> dict[str, Any]:
    """A run's report as JSON values.

    Args:
        report: the report.
        xfails: the deviations that are expected.
    """
    clauses = []
    for clause in report.clauses:
        expected = xfails.expected(report, clause)
        clauses.append(
            {
                "clause": clause,
                "class": CLAUSES[clause].kind,
                "sentence": CLAUSES[clause].sentence,
                "steps": report.tried(clause),
                "verdict": report.verdict(clause),
                **({"xfail": expected.reason} if expected is not None else {}),
            }
        )
    return {
        **header("report"),
        "backend": report.backend,
        "level": report.level,
        "seed": report.seed,
        "profile": report.profile,
        "without": list(report.without),
        "warning": report.warning,
        "interrupted": report.interrupted,
        "deviates": report.deviates,
        "unexpected": xfails.unexpected(report),
        "stale_xfails": xfails.stale(report),
        "clauses": clauses,
        "machines": [machine_json(machine) for machine in report.machines],
    }


def machine_json(machine: MachineReport) -> dict[str, Any]:
    """What one machine found, as JSON values."""
    return {
        "machine": machine.name,
        "level": machine.level,
        "clauses": sorted(machine.clauses),
        "missing": machine.missing,
        "lacks": machine.lacks,
        "sequences": machine.examples,
        "steps": machine.steps,
        "wasted": machine.wasted,
        "seconds": round(machine.seconds, 3),
        "ended": machine.ended,
        "note": machine.note,
        "hits": machine.hits,
        "unrepeated": machine.unrepeated,
        "drawn": dict(sorted(machine.drawn.items())),
        "tried": dict(sorted(machine.tried.items())),
        "deviations": [deviation_json(found) for found in machine.deviations],
    }


def deviation_json(found: Deviation) -> dict[str, Any]:
    """One deviation as JSON values."""
    return {
        "clause": found.clause,
        "sentence": CLAUSES[found.clause].sentence,
        "expected": found.expected,
        "observed": found.observed,
        "num_calls": found.num_calls,
        "calls": list(found.calls),
        "before": found.before,
        "after": found.after,
        "observed_after": found.observed_after,
        "raised": list(found.raised),
    }


def machine_from_json(document: Any) -> MachineReport:
    """What `machine_json` was made of.

    Raises:
        ValueError: it is no such document.
    """
    if not isinstance(document, Mapping):
        raise ValueError("a machine's report that is no object")
    tried = _table(document, "tried", int)
    if not all(label in CLAUSES for label in (*tried, *_list(document, "clauses"))):
        raise ValueError("a clause that there is not")
    return MachineReport(
        _field(document, "machine", str),
        frozenset(_list(document, "clauses")),
        _list(document, "missing"),
        _list(document, "lacks"),
        _field(document, "sequences", int),
        _field(document, "steps", int),
        _field(document, "wasted", int),
        Counter(tried),
        [_deviation_from(found) for found in _field(document, "deviations", list)],
        seconds=float(_field(document, "seconds", (int, float))),
        level="safe" if _field(document, "level", str) == "safe" else "exact",
        ended=_field(document, "ended", bool),
        note=_field(document, "note", str),
        hits=_field({"hits": 0, **document}, "hits", int),  # states of deep runs of before have neither
        unrepeated=_field({"unrepeated": "", **document}, "unrepeated", str),
        drawn=Counter(_table({"drawn": {}, **document}, "drawn", int)),
    )


def _deviation_from(document: Any) -> Deviation:
    if not isinstance(document, dict) or document.get("clause") not in CLAUSES:
        raise ValueError("a deviation from no clause")
    texts = [_field(document, name, str) for name in ("clause", "expected", "observed")]
    states = [_table(document, name, str) for name in ("before", "after", "observed_after")]
    calls = tuple(_list(document, "calls"))
    found = Deviation(texts[0], texts[1], texts[2], calls, states[0], states[1], observed_after=states[2])
    found.raised = tuple(_list(document, "raised"))
    return found


def _field(document: Mapping[str, Any], name: str, kind: Any) -> Any:
    value = document.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"{name}: {value!r:.40}")
    return value


def _list(document: Mapping[str, Any], name: str) -> list[str]:
    values: list[str] = _field(document, name, list)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{name} holds what is no text")
    return values


def _table(document: Mapping[str, Any], name: str, kind: Callable[..., Any]) -> dict[str, Any]:
    table: dict[str, Any] = _field(document, name, dict)
    if not all(type(value) is kind for value in table.values()):
        raise ValueError(f"{name} holds what is no {kind}")
    return table


def _version(package: str) -> str | None:
    """A package's version, without importing it; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
