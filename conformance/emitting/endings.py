"""What the last call of a counterexample must do, as an assertion that fails on the backend it was found on."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..calls.deviation import REFUSALS, attempt
from ..calls.judging import equal
from ..calls.readings import SHOWS, Reading, page_views, readable, source
from ..machines import Machine
from ..machines.arrays import Near, worst
from ..machines.attention import RaggedMachine
from ..machines.sides import part_of
from .literals import Literals, UnrenderableError, is_plain
from .notes import Notes

__all__ = ["Ending", "Last", "ending_of", "ending_of_call", "ending_of_field", "lines_of_attention"]


def lines_of_attention(machine: RaggedMachine, judged: Mapping[str, Any], literals: Literals) -> list[str]:
    """The lines of a test that attends once.

    Args:
        machine: the machine that saw the result.
        judged: what its `judge` was given, by name.
        literals: writes values.

    Returns:
        The lines, the last of them an assertion; nothing where the call was another one than of plain attention.
    """
    batch = judged["batch"]
    if judged.get("fused") is not None or type(machine).attended is not RaggedMachine.attended:
        return []
    wanted, out = np.asarray(judged["right"]).astype(np.float64), np.asarray(judged["seen"])
    near = Near(wanted, machine.tolerance(batch, wanted, judged["pages"]))
    place = worst(near, out)
    if place is None:
        return []
    clean = literals.of(machine.harmless()) if machine.harmless() else ""
    scaled = ["arguments[-5] = backend.ScaledPages(*arguments[-5])"] if batch.kind.layout.scaled else []
    at = ", ".join(map(str, place))
    right, allowed = float(near.right[place]), float(near.tolerance[place])
    return [
        f"batch = {literals.of(batch)}",
        f"arguments = batch.arguments({clean})",
        *scaled,
        f"out = backend.{batch.kind.function}(*arguments, **batch.keywords())",
        f"assert abs(float({literals.numpy()}.asarray(out)[{at}]) - {right!r}) <= {allowed!r}",
    ]


# -- Calls and states -------------------------------------------------------------------------------------------------

_ANY_REFUSAL = "(TypeError, ValueError, IndexError)"


@dataclass
class Last:
    """The last call.

    Attributes:
        expected: the specification's result.
        refusal: what the specification raised.
        observed: the backend's result.
        error: what the backend raised.
        text: the expression that gives the backend's result; empty if there is none.
        kind: how a log writes the result, which says what it is.
        fewest: how many tokens a hit has at least, where which pages are cached is the backend's to choose.
    """

    expected: Any = None
    refusal: BaseException | None = None
    observed: Any = None
    error: BaseException | None = None
    text: str = ""
    kind: str = ""
    fewest: int | None = None


@dataclass(frozen=True)
class Ending:
    """The end of a test.

    Attributes:
        refusals: the errors by one of which the last call must be refused, as source; empty if it must not be.
        lines: the assertions behind it, variables as marks.
        raises: the error that the test ends in, if it is none of an assertion.
        sources: the functions that the test may use, by their names.
    """

    refusals: str = ""
    lines: tuple[str, ...] = ()
    raises: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)


def ending_of(taken: Machine, phase: str, last: Last, notes: Notes) -> Ending | None:
    """The end of the test that shows what a machine saw.

    Args:
        taken: the machine, after it saw it.
        phase: what it was comparing.
        last: its last call.
        notes: what was noted.

    Returns:
        None if what was compared cannot be told from outside.
    """
    if phase == "call":
        last.fewest = getattr(taken, "fewest", None)
        return ending_of_call(last, notes, chooses=taken.session.level == "safe")
    ending = _of_state(taken, notes) if phase == "state" else None
    return ending if ending is None or last.refusal is None else replace(ending, refusals=_ANY_REFUSAL)


def ending_of_call(last: Last, notes: Notes, chooses: bool = False) -> Ending | None:
    """The end of the test that shows what came of the last call; None if that cannot be told from outside.

    Args:
        last: the last call.
        notes: what was noted.
        chooses: whether the backend chooses which pages it takes and evicts (level safe): a right one may take others.
    """
    views = _views()
    if last.refusal is not None:
        return _of_refusal(last, views)
    if last.error is not None:
        return Ending(raises=type(last.error).__name__, sources=views)
    if not last.text:
        return None
    both = last.expected is not None and last.observed is not None
    if chooses and both and last.kind in _OF_CHOICE:
        # objects of a backend's own classes may lack the methods by which these look at them
        ending: Ending | None = attempt(functools.partial(_OF_CHOICE[last.kind], last)).value
        return ending
    return _of_result(last, notes, views)


def _of_length(last: Last) -> Ending | None:
    """How many pages a call gave."""
    count = len(last.expected)
    return None if len(last.observed) == count else Ending(lines=(f"assert len({last.text}) == {count}",))


def _of_lengths(last: Last) -> Ending | None:
    """How many pages a call gave, group by group."""
    right, seen = ([len(group) for group in pages.get_page_ids()] for pages in (last.expected, last.observed))
    lengths = f"[len(group) for group in {last.text}.get_page_ids()]"
    return None if right == seen else Ending(lines=(f"assert {lengths} == {right}",))


def _of_hit(last: Last) -> Ending | None:
    """How many tokens a look-up found, at least or at most."""
    most, seen = int(last.expected[1]), int(last.observed[1])
    if seen > most:
        return Ending(lines=(f"assert {last.text}[1] <= {most}",))
    return None if last.fewest is None else Ending(lines=(f"assert {last.text}[1] >= {last.fewest}",))


_OF_CHOICE: Mapping[str, Callable[[Last], Ending | None]] = {"pages": _of_length, "groups": _of_lengths, "hit": _of_hit}
"""What a test demands of results, by how a log writes them, where the backend chooses which pages they have."""


def _views() -> dict[str, str]:
    return {page_views.__name__: source(page_views)}


def _of_refusal(last: Last, views: Mapping[str, str]) -> Ending:
    if last.error is None:
        return Ending(_ANY_REFUSAL, sources=views)
    kind = next(kind for kind in REFUSALS if isinstance(last.refusal, kind)).__name__
    if isinstance(last.error, REFUSALS) and not str(last.error).strip():
        return Ending(kind, ("assert str(refusal.value).strip()",), sources=views)
    return Ending(kind, raises=type(last.error).__name__, sources=views)


# -- Results ---------------------------------------------------------------------------------------------------------


def _page_ids(pages: Any) -> Any:
    return [page.page_id for page in pages]


_FORMS: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("{}.page_id", lambda page: page.page_id),
    ("{}.get_page_ids()", lambda pages: pages.get_page_ids()),
    ("({0}[0].get_page_ids(), {0}[1])", lambda found: (found[0].get_page_ids(), found[1])),
    ("[page.page_id for page in {}]", _page_ids),
    ("{}.tolist()", lambda array: array.tolist()),
    (
        "({0}.granted.tolist(), [{0}.get_page_ids(place) for place in range(len({0}.granted))])",
        lambda batch: (batch.granted.tolist(), [batch.get_page_ids(place) for place in range(len(batch.granted))]),
    ),
    (
        "[(type(event).__name__, getattr(event, 'page_id', None)) for event in {}]",
        lambda events: [(type(event).__name__, getattr(event, "page_id", None)) for event in events],
    ),
)
"""Ways to look at a result that is no plain data; the first that both results have is taken."""


def _of_result(last: Last, notes: Notes, views: Mapping[str, str]) -> Ending | None:
    expected, observed, text = last.expected, last.observed, last.text
    if (expected is None) != (observed is None):
        return Ending(lines=(f"assert {text} is {'None' if expected is None else 'not None'}",), sources=views)
    looks = [("{}", lambda value: value), *_FORMS, ("readable({})", readable)]
    for form, look in looks:
        line = _difference(form.format(text), look, expected, observed, notes)
        if line:
            return Ending(lines=(line,), sources={**views, "readable": source(readable)})
    return None


def _difference(text: str, look: Callable[[Any], Any], expected: Any, observed: Any, notes: Notes) -> str:
    """The assertion that two things look alike; empty if they do, or cannot be looked at in this way."""
    wanted, seen = attempt(lambda: look(expected)), attempt(lambda: look(observed))
    if wanted.error is not None or seen.error is not None:
        return ""
    if not is_plain(wanted.value) or equal(wanted.value, seen.value) or isinstance(wanted.value, np.ndarray):
        return ""
    try:
        literal = notes.literals.of(wanted.value)
    except UnrenderableError:
        return ""
    return f"assert {text} {'is' if isinstance(wanted.value, bool) else '=='} {literal}"


# -- States ----------------------------------------------------------------------------------------------------------


def _of_state(taken: Machine, notes: Notes) -> Ending | None:
    """The end that shows the first field that differs and can be told from outside."""
    for shows in taken.fields:
        expected = shows.read(taken.spec)
        seen = attempt(functools.partial(shows.read, taken.backend))
        if seen.error is None and equal(expected, seen.value, shows.agree):
            continue
        if shows.name == "check()":
            return _of_check(taken, notes)
        names = [*taken.cases] if hasattr(taken, "cases") else []
        ending = ending_of_field(shows.name, (taken.spec, taken.backend), names, notes, notes.text_of_name)
        if ending is not None:
            return ending
    return None


def ending_of_field(
    field_name: str, sides: tuple[Any, Any], names: list[str], notes: Notes, text_of: Callable[[str], str | None]
) -> Ending | None:
    """The end of the test that shows a field of the state.

    Args:
        field_name: the field, by its name among the readings.
        sides: the specification's and the backend's side, whose attributes the readings are given.
        names: the ids of all requests.
        notes: what was noted.
        text_of: the expression for an attribute of the backend's side; of its shards, ``pool_0`` and the like.

    Returns:
        None if it does not differ, or cannot be told from outside.
    """
    for reading in SHOWS[field_name].readings if field_name in SHOWS else ():
        lines, raises = _looked_at(sides, names, reading, notes, text_of)
        if lines:
            known = {**_views(), **{function.__name__: source(function) for function in reading.functions}}
            return Ending(lines=lines, raises=raises, sources=known)
    return None


def _of_check(taken: Machine, notes: Notes) -> Ending | None:
    """The own check of what was built, which raises."""
    name = "manager" if hasattr(taken.backend, "manager") else "pool"
    outcome = attempt(getattr(taken.backend, name).check)
    text = notes.text_of_name(name)
    if text is None or outcome.error is None:
        return None
    return Ending(lines=(f"{text}.check()",), raises=type(outcome.error).__name__, sources=_views())


def _looked_at(
    sides: tuple[Any, Any], names: list[str], reading: Reading, notes: Notes, text_of: Callable[[str], str | None]
) -> tuple[tuple[str, ...], str]:
    """The assertion that a reading gives the same on both sides, and the error that it raises instead; or nothing."""
    sharded = hasattr(sides[0], "shards") and reading.needs & {"pool", "pages"}
    specs, backends = ([*side.shards] if sharded else [side] for side in sides)
    texts = []
    for number, _ in enumerate(backends):
        known = {"names": repr(names)}
        for name in reading.needs - {"names"}:
            own = text_of(f"{name}_{number}" if sharded else name)
            if own is None:
                return (), ""
            known[name] = own
        texts.append(reading.text(known))
    text = f"[{', '.join(texts)}]" if sharded else texts[0]

    def look(sides: Any) -> Any:
        if reading.told is not None:
            seen = [reading.told(side) for side in sides]
        else:
            seen = [reading.looked(functools.partial(part_of, side, names)) for side in sides]
        return seen if sharded else seen[0]

    outcome = attempt(lambda: look(backends))
    if outcome.error is not None:
        return (text,), type(outcome.error).__name__
    return tuple(filter(None, [_difference(text, look, specs, backends, notes)])), ""
