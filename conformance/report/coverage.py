"""What of the interface a run has drawn: each method, each argument, right and wrong; and what it never drew."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..backends.loading import Backend
from ..calls.interfaces import INTERFACES
from ..calls.method import Method, Table
from ..machines import EVERY_MACHINE, Machine
from ..machines.binding import BOUND, BOUND_OF_LATENTS
from ..machines.calling import Calling, takes_argument
from ..machines.meetings import PAIRS, SAFE_PAIRS
from .verdicts import Report

__all__ = ["Argument", "Covered", "coverage_json", "coverage_lines", "coverage_of", "pair_lines", "pairs_of"]

_PAIRS = {"soak": PAIRS, "safe-soak": SAFE_PAIRS, "attention": BOUND, "latents": BOUND_OF_LATENTS}
"""The machines that count pairs: features that met in a scene, options that both changed a result."""

_SHOWN = {
    "pool": ("get_num_free_pages", "get_usage", "pins_of", "num_pinned_pages", "get_priority"),
    "manager": ("usage", "get_page_ids", "slot_of", "counters", "take_events", "num_free_host_pages"),
    "shards": ("usage", "get_page_ids", "shard_of"),
}
"""Methods whose results the state shows that is compared after every call; they are drawn with faults only."""


@dataclass(frozen=True)
class Argument:
    """How often an argument was drawn.

    Attributes:
        name: its name.
        given: how often a call had it.
        wrong: how often it was the one that is wrong.
        spoilt: whether its kind has faults, calls of the method are spoilt, and the backend takes it.
    """

    name: str
    given: int
    wrong: int
    spoilt: bool


@dataclass(frozen=True)
class Covered:
    """How often a method was drawn.

    Attributes:
        table: the name of its table.
        method: its name.
        calls: how often it was called.
        arguments: its arguments.
        why: why it need not have been drawn; "" if it must have been.
    """

    table: str
    method: str
    calls: int
    arguments: tuple[Argument, ...]
    why: str

    @property
    def undrawn(self) -> list[str]:
        """What of it was never drawn and should have been."""
        if self.why:
            return []
        name = f"{self.table}.{self.method}"
        if not self.calls:
            return [name]
        return [f"{name}({own.name}) wrong" for own in self.arguments if own.spoilt and not own.wrong]


def coverage_of(report: Report, backend: Backend) -> list[Covered]:
    """How often each method of the interface was drawn in a run, those of tables that no machine draws included."""
    drawn: Counter[str] = Counter()
    for machine in report.machines:
        drawn.update(machine.drawn)
    ran = [EVERY_MACHINE[machine.name] for machine in report.machines if not machine.missing]
    return [
        _covered(table, row, drawn, backend, _why_not(table, row, ran, backend))
        for table in INTERFACES
        for row in table
    ]


def _covered(table: Table, row: Method, drawn: Counter[str], backend: Backend, why: str) -> Covered:
    name = f"{table.name}.{row.name}"
    offered = _offers(backend, table, row)
    arguments = tuple(
        Argument(
            own,
            drawn[f"{name}({own})"],
            drawn[f"{name}({own}) wrong"],
            kind.fault is not None and row.spoils > 0 and (not offered or takes_argument(backend, table, row, own)),
        )
        for own, kind in row.kinds.items()
    )
    return Covered(table.name, row.name, drawn[name], arguments, "" if drawn[name] else why)


def _why_not(table: Table, row: Method, ran: Iterable[type[Machine]], backend: Backend) -> str:
    """Why a method need not be drawn; "" if it must be."""
    if row.capability in backend.lacks or not _offers(backend, table, row):
        return "not offered"
    drawing = [machine for machine in ran if issubclass(machine, Calling) and _draws(machine, table, row)]
    if not drawing:
        return "no machine that ran draws it from this table"
    if row.capability and not any(machine.capability == row.capability for machine in drawing):
        return f"no machine that ran is about {row.capability}"
    if row.name in _SHOWN.get(table.name, ()):
        return "read with every state"
    if row.form == "build" and not row.spoils:
        return "made with every object"
    by_kinds = row.weight or row.spoils or row.draw or any(kind.good or kind.fault for kind in row.arguments.values())
    return "" if by_kinds else "not drawn by kinds yet"


def _draws(machine: type[Calling], table: Table, row: Method) -> bool:
    """Whether a machine draws from a table; of functions, of which it may have a few, whether it draws this one."""
    if table.owner or table not in machine.tables:
        return table in machine.tables
    return row.capability == machine.capability or row.name in {own.name for own in machine.rows()}


def _offers(backend: Backend, table: Table, row: Method) -> bool:
    if not table.owner:
        return backend.offers(row.name)
    return backend.offers(table.owner) and (row.form == "build" or hasattr(backend.get(table.owner), row.name))


def coverage_json(covered: Iterable[Covered]) -> dict[str, Any]:
    """The coverage of a run, ready for JSON."""
    rows = list(covered)
    return {"methods": [asdict(row) for row in rows], "undrawn": [name for row in rows for name in row.undrawn]}


def coverage_lines(covered: Iterable[Covered]) -> Iterator[str]:
    """The coverage of a run as a report shows it, a line for each method."""
    rows = list(covered)
    yield "drawn: calls of each method; of each argument how often it was given, and how often it was wrong"
    for row in rows:
        said = "  ".join(f"{own.name} {own.given}{f'/{own.wrong}' if own.spoilt else ''}" for own in row.arguments)
        yield f"  {f'{row.table}.{row.method}':36} {row.why or row.calls:>7}  {said if row.calls else ''}".rstrip()
    undrawn = [name for row in rows for name in row.undrawn]
    yield f"never drawn: {', '.join(undrawn) if undrawn else 'nothing that the backend offers and a machine draws'}"


def pairs_of(report: Report) -> dict[str, int]:
    """How often each two features met in a run, and whether each two options of attention changed the same result.

    Those that never did are there with 0, if the machine ran that draws them.
    """
    ran = {machine.name: Counter(machine.drawn) for machine in report.machines if not machine.missing}
    return {name: ran[machine][name] for machine, names in _PAIRS.items() if machine in ran for name in names}


def pair_lines(pairs: Mapping[str, int]) -> Iterator[str]:
    """The pairs of a run as a report shows them, a line for each: features that met, options that both bind."""
    if not pairs:
        return
    yield "pairs: how often two features met in a scene; 1 for two options of attention that changed the same result"
    for name, count in pairs.items():
        yield f"  {name:36} {count:>7}"
    never = [name for name, count in pairs.items() if not count]
    yield f"never together: {', '.join(never) if never else 'no pair'}"
