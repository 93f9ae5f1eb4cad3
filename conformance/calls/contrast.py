"""Values as reports show them, on one line each; of two that differ, where they do.

The state of a cache is lists of hundreds of numbers. Cut after the same 400 characters, what was expected and what was
observed look the same; so long values are cut around the first place where they differ, and what is missing, what is
extra and where they first differ is said beside them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any

from .deviation import Outcome

__all__ = ["beside", "contrast", "difference", "shown"]

_MOST = 400
"""Characters of a value that are shown."""

_BEFORE = 100
"""The number of characters shown before the first place where values differ."""

_GLANCE = 60
"""Characters of two values that a reader compares without help."""

_LISTED = 8
"""The most missing or extra entries that are listed."""

_CUT = "... "

_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
"""Where an object lies, in the text of one that has no other: it tells nothing, and each run has another."""


def shown(value: object) -> str:
    """A value as a report shows it, on one line; a long one is cut between two entries."""
    return beside(value)[0]


def beside(*values: object) -> list[str]:
    """Values as a report shows them, on one line each; long ones are cut around the first place where any differ."""
    texts = [_text(value) for value in values]
    if max(map(len, texts)) <= _MOST:
        return texts
    if len(texts) == 1:
        return [_window(texts[0], 0)]
    same = _agreed(texts)
    start = _boundary(texts[0], max(same - _BEFORE, 0), same)
    return [_window(text, start) for text in texts]


def _agreed(texts: Sequence[str]) -> int:
    """How many first characters some texts have in common; they may have millions."""
    first, *others = texts
    least, most = 0, min(map(len, texts))
    while least < most:
        middle = (least + most + 1) // 2
        if all(other[least:middle] == first[least:middle] for other in others):
            least = middle
        else:
            most = middle - 1
    return least


def contrast(expected: object, observed: object) -> tuple[str, str]:
    """What was expected and what was observed, as a report shows them.

    The second text ends with the `difference` where the two are too long to be compared at a glance.

    Args:
        expected: the value that is right.
        observed: the value that came; it differs.
    """
    right, seen = beside(expected, observed)
    said = difference(expected, observed) if max(len(right), len(seen)) > _GLANCE else ""
    return right, f"{seen}; {said}" if said else seen


def difference(expected: object, observed: object) -> str:
    """How one list, set or table differs from another; empty for values of other types, or of two types.

    Lists of numbers stand in brackets, so that tokens among them are known as such where they are to be redacted.
    """
    place = ""
    while (inner := _only_difference(expected, observed)) is not None:
        place, expected, observed = f"{place}{inner[0]}.", inner[1], inner[2]
    where = f"in entry {place[:-1]}: " if place else ""
    if isinstance(expected, Mapping) and isinstance(observed, Mapping):
        wrong = [key for key in expected if key in observed and not _same(expected[key], observed[key])]
        parts = _missing_and_extra(expected, observed) + ([f"others under {_listed(wrong)}"] if wrong else [])
    elif isinstance(expected, set | frozenset) and isinstance(observed, set | frozenset):
        parts = _missing_and_extra(expected, observed)
    elif _are_lists(expected, observed):
        parts = _missing_and_extra(expected, observed) or ["the same entries in another order"]
        if len(expected) != len(observed):  # type: ignore[arg-type]
            parts.append(f"{len(observed)} entries in place of {len(expected)}")  # type: ignore[arg-type]
        parts.append(f"the first difference at place {_first(expected, observed)}")  # type: ignore[arg-type]
    else:
        return ""
    return where + ", ".join(parts)


def _text(value: object) -> str:
    text = str(value) if isinstance(value, Outcome) else " ".join(repr(value).split())
    return _ADDRESS.sub("", text) if " at 0x" in text else text


def _boundary(text: str, least: int, most: int) -> int:
    """Where an entry begins in a text: the first from ``least`` up to ``most``, or ``least`` if none is."""
    place = 0 if least == 0 else text.find(", ", least, most)
    return least if place < 0 else place + 2 * (place > 0)


def _window(text: str, start: int) -> str:
    """What of a text is shown: from a place on, up to the end of an entry."""
    end = start + _MOST
    if end < len(text):
        place = text.rfind(", ", start + 1, end)
        end = end if place < 0 else place + 1
    return (_CUT if start else "") + text[start:end] + (f" {_CUT.strip()}" if end < len(text) else "")


def _only_difference(expected: object, observed: object) -> tuple[Any, object, object] | None:
    """The one entry in which two lists or tables differ, with its place; None where more than one does."""
    pairs: Iterable[tuple[Any, object, object]]
    if isinstance(expected, Mapping) and isinstance(observed, Mapping) and expected.keys() == observed.keys():
        pairs = ((key, expected[key], observed[key]) for key in expected)
    elif _are_lists(expected, observed) and len(expected) == len(observed):  # type: ignore[arg-type]
        pairs = ((place, *both) for place, both in enumerate(zip(expected, observed, strict=True)))  # type: ignore[call-overload]
    else:
        return None
    wrong = [pair for pair in pairs if not _same(pair[1], pair[2])]
    if len(wrong) != 1 or not any(kind(*wrong[0][1:]) for kind in (_are_lists, _are_tables)):
        return None
    return wrong[0]


def _are_lists(expected: object, observed: object) -> bool:
    return isinstance(expected, list | tuple) and isinstance(observed, list | tuple)


def _are_tables(expected: object, observed: object) -> bool:
    kinds = Mapping, set, frozenset
    return isinstance(expected, kinds) and isinstance(observed, kinds)


def _missing_and_extra(expected: Any, observed: Any) -> list[str]:
    right, seen = Counter(map(_text, expected)), Counter(map(_text, observed))
    parts = []
    for name, entries in (("missing", right - seen), ("extra", seen - right)):
        if entries:
            parts.append(f"{name} {_listed(list(entries.elements()), quoted=True)}")
    return parts


def _listed(entries: Sequence[Any], quoted: bool = False) -> str:
    texts = [entry if quoted else _text(entry) for entry in entries[:_LISTED]]
    more = f" and {len(entries) - _LISTED} more" if len(entries) > _LISTED else ""
    return f"[{', '.join(texts)}]{more}"


def _first(expected: Sequence[Any], observed: Sequence[Any]) -> int:
    return sum(1 for _ in takewhile(bool, map(_same, expected, observed)))


def _same(one: object, other: object) -> bool:
    """Whether two entries are shown as the same: values of a backend may compare in any way."""
    return _text(one) == _text(other)
