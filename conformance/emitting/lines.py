"""The lines of a test, of the calls that were noted.

What nobody uses is left out, variables are named, and the last call is put under its assertion.
"""

import keyword
import re
from collections.abc import Iterable, Sequence

from .endings import Ending
from .notes import MARK, Notes, Statement, mark
from .script import Script

__all__ = ["script_of_notes"]

_OWNER = re.compile("\ue000(\\d+)\ue001\\.")

_TAKEN = frozenset({"backend", "pytest", "np", "refusal", *keyword.kwlist})
"""Names that no variable may have."""


def body_of(statements: Sequence[Statement], ending: Ending, others: Iterable[str]) -> tuple[list[str], int]:
    """The lines of a test.

    Args:
        statements: what was noted; those of the last call of the machine have the largest number of a call.
        ending: how the test ends.
        others: names that the test uses beside its variables.

    Returns:
        The lines, and how many of the last ones are the part that fails.
    """
    act = max((statement.act for statement in statements), default=0)
    used = _used_of(ending.lines)
    built = {statement.number for statement in statements if statement.builds and (statement.inline or statement.idle)}
    kept: list[Statement] = []
    for statement in reversed(statements):
        owner = _OWNER.match(statement.text)
        forgotten = owner is not None and int(owner[1]) in built - used  # nobody ever sees what it is called on
        final = statement.act == act and not statement.prepares and not statement.idle
        if final or statement.number in used or not (statement.idle or statement.inline or forgotten):
            kept.insert(0, statement)
            used |= _used_of([statement.text])
    inlined = _inlined(kept, ending.lines)
    kept = [statement for statement in kept if statement.number not in inlined]
    names = _named([statement for statement in kept if statement.number in used], others)

    def written(text: str) -> str:
        while MARK.search(text):
            text = MARK.sub(lambda found: names.get(int(found[1])) or inlined[int(found[1])], text)
        return text

    def line(statement: Statement) -> str:
        name, text = names.get(statement.number or 0), written(statement.text)
        return f"{name} = {text}" if name else text

    def lines(statement: Statement) -> list[str]:
        """An earlier statement, which may have been refused by both."""
        if not statement.refused:
            return [line(statement)]
        return [f"with pytest.raises({statement.refused}):", f"    {written(statement.text)}"]

    asserted = [written(text) for text in ending.lines]
    last = [statement for statement in kept if statement.act == act and not statement.prepares]
    begin = next((place for place, statement in enumerate(last) if not statement.inline), len(last) - 1)
    under = last[max(begin, 0) :]
    earlier = [statement for statement in kept if all(statement is not other for other in under)]
    before = [text for statement in earlier for text in lines(statement)]
    calls = [line(statement) for statement in under]
    if ending.refusals:
        bound = " as refusal" if any("refusal." in text for text in asserted) else ""
        calls = [f"with pytest.raises({ending.refusals}){bound}:", *(f"    {call}" for call in calls)]
        return [*before, *calls, *asserted], len(calls) + len(asserted)
    if asserted:
        return [*before, *calls, *asserted], len(asserted)
    return [*before, *calls], len(calls)


def _used_of(texts: Iterable[str]) -> set[int]:
    return {int(number) for text in texts for number in MARK.findall(text)}


def _inlined(kept: Sequence[Statement], ends: Iterable[str]) -> dict[int, str]:
    """What is built and used in one place is written there, if it has no name of its own."""
    everything = "\n".join([*(statement.text for statement in kept), *ends])
    return {
        statement.number: statement.text
        for statement in kept[:-1]
        if statement.number is not None and statement.inline and everything.count(mark(statement.number)) == 1
    }


def _named(kept: Sequence[Statement], others: Iterable[str]) -> dict[int, str]:
    """A name for every variable, each another one."""
    taken, names = {*_TAKEN, *others}, {}
    for statement in kept:
        if statement.number is None:
            continue
        name = base = statement.name or "result"
        number = 1
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        taken.add(name)
        names[statement.number] = name
    return names


def script_of_notes(notes: Notes, ending: Ending, told: tuple[str, str, str], backend: str, found_by: str) -> Script:
    """A test of what was noted.

    Args:
        notes: the calls.
        ending: what the last one must do.
        told: the clause that it breaks, what that says of it, and what the backend did.
        backend: the backend's name.
        found_by: the command that found it.
    """
    others = {*notes.literals.imports, *ending.sources}
    lines, last = body_of(notes.statements, ending, others)
    return Script(
        *told,
        backend,
        tuple(lines),
        last,
        ending.raises,
        tuple(line for name, line in notes.literals.imports.items() if _uses(lines, name)),
        tuple(source for name, source in ending.sources.items() if _uses(lines, name)),
        found_by,
    )


def _uses(lines: Iterable[str], name: str) -> bool:
    return any(re.search(rf"\b{name}\b", line) for line in lines)
