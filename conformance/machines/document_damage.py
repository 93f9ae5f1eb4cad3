"""Damage to JSON documents: an entry left out, doubled, moved or put in place of another, a number off by one (SEC-3).

What comes of it is mostly a document that contradicts itself in one place, as a writer's or a reader's fault leaves it;
now and then it is a sound one.
"""

import copy
from collections.abc import Callable
from typing import Any

__all__ = ["Choose", "damaged"]

Choose = Callable[[int], int]
"""Chooses a number in [0, n)."""

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        10**30,
        1.0,
        0.5,
        -0.0,
        float("inf"),
        "",
        "x",
        "0",
        "00",
        "AA",
        "\ud800",
    ),
    *([], [0], [[]], {}, {"kind": "x"}, "int32", "float32"),
)
"""What seldom stands where it is put."""


def damaged(document: Any, choose: Choose) -> tuple[Any, str]:
    """A copy of a document with one or two things in it changed.

    Args:
        document: what `json.loads` gives.
        choose: draws.

    Returns:
        The copy, and what was done, without the values that stand there (SEC-2).
    """
    whole = [copy.deepcopy(document)]
    done = [_change(whole, choose) for _ in range(1 + (choose(3) == 0))]
    return whole[0], ", ".join(done)


def _change(whole: list[Any], choose: Choose) -> str:
    """Changes one thing of the document in ``whole``; returns what was done."""
    holder, key, path = _place(whole, choose)
    value = holder[key]
    if type(value) is int and choose(2):
        step = (1, -1, 2, -2)[choose(4)]
        holder[key] = value + step
        return f"{path} {step:+}"
    match choose(6):
        case 0:
            if len(path) > 1:
                del holder[key]
                return f"{path} left out"
        case 1:
            if isinstance(holder, list) and len(path) > 1:
                holder.insert(choose(len(holder) + 1), copy.deepcopy(value))
                return f"{path} twice"
        case 2:
            holder[key] = copy.deepcopy(ODD[choose(len(ODD))])
            return f"{path} = {holder[key]!r}"
        case 3:
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            other = list(keys)[choose(len(keys))]
            holder[key], holder[other] = holder[other], value
            return f"{path} and [{other!r}] exchanged"
        case 4:
            other_holder, other, from_path = _place(whole, choose)
            if type(other_holder[other]) is type(value):
                holder[key] = copy.deepcopy(other_holder[other])
                return f"{path} = what stands at {from_path}"
    return _move(whole, path, holder, key, choose)


def _move(whole: list[Any], path: str, holder: Any, key: Any, choose: Choose) -> str:
    """Moves an entry of a list into another list; a value of an object is changed for another's."""
    into, other, to_path = _place(whole, choose)
    if isinstance(holder, list) and isinstance(into, list) and holder is not whole and into is not whole:
        entry = holder.pop(key)
        into.insert(min(other, len(into)), entry)
        return f"{path} moved to {to_path}"
    holder[key], into[other] = copy.deepcopy(into[other]), copy.deepcopy(holder[key])
    return f"{path} and {to_path} exchanged"


def _place(whole: list[Any], choose: Choose) -> tuple[Any, Any, str]:
    """A place in a document: what holds it, its key there, and its path; long lists count no more than short ones."""
    holder: Any = whole
    key: Any = 0
    path = "$"
    while isinstance(holder[key], dict | list) and holder[key] and (holder is whole or choose(5)):
        holder = holder[key]
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        full = [own for own in keys if isinstance(holder[own], dict | list) and holder[own]]
        key = full[choose(len(full))] if full and choose(4) else keys[choose(len(keys))]
        path += f".{key}" if isinstance(holder, dict) else f"[{key}]"
    return holder, key, path
