"""Damage to JSON documents (SEC-3): things exchanged, moved or left out; a snapshot with one thing wrong (MAN-14).

What comes of the first is mostly a document that contradicts itself in one place, as a writer's or a reader's fault
leaves it; now and then it is a sound one. A snapshot with one of the second contradicts itself, or is of no format.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["damaged", "damages"]


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


Shot = dict[str, Any]


@dataclass(frozen=True)
class Damage:
    """One damage.

    Attributes:
        what: what is wrong then.
        path: where in the snapshot; empty for the whole of it.
        value: what stands there then; None and ``gone``: nothing does.
        gone: whether what stood there is left out.
    """

    what: str
    path: tuple[Any, ...]
    value: Any = None
    gone: bool = False

    def done(self, shot: Shot) -> Any:
        """The snapshot after it."""
        if not self.path:
            return self.value
        damaged = copy.deepcopy(shot)
        found: Any = damaged
        for key in self.path[:-1]:
            found = found[key]
        if self.gone:
            del found[self.path[-1]]
        else:
            found[self.path[-1]] = self.value
        return damaged


def damages(shot: Shot) -> dict[str, list[Damage]]:
    """Damages of a snapshot, by what they are about; only such as are possible."""
    kinds = {
        "format": _format(shot),
        "pages": _pages(shot),
        "cache": _cache(shot),
        "requests": _requests(shot),
        "counts": _counts(shot),
        "order": _order(shot),
    }
    return {kind: found for kind, found in kinds.items() if found}


def _set(value: Any, *path: Any) -> Damage:
    return Damage(f"{'/'.join(map(str, path))} = {value!r}", path, value)


def _format(shot: Shot) -> list[Damage]:
    """What the object is, and what its members are."""
    found = [Damage("None", ()), Damage("a list", (), []), Damage("a text", (), "")]
    found += [_set(value, "kvproof") for value in ("trace", None)]
    found += [_set(value, "version") for value in (*({*range(6)} - {shot["version"]}), "2", True)]
    found += [_set(None, key) for key in shot if key not in ("now", "max_pinned_pages_per_salt")]
    found += [_set(1, key) for key in ("free", "contents", "requests", "counters", "enable_caching")]
    found.append(_set(1, "more"))
    found += [Damage(f"without {key}", (key,), gone=True) for key in ("free", "known", "clock", "copies")]
    return found


def _pages(shot: Shot) -> list[Damage]:
    """Which pages there are, and which are free."""
    free, last = shot["free"], shot["num_pages"] - 1
    found = [
        _set(1, "num_pages"),
        _set(shot["num_pages"] + 1, "num_pages"),
        _set([*free, last + 1], "free"),
        _set([*free, 0], "free"),
        _set([[1, 2**31, None]], "priorities"),
    ]
    if free:
        found += [
            _set(free[1:], "free"),
            _set([*free, free[0]], "free"),
            _set([True, *free[1:]], "free"),
        ]
    held = [page for page in range(1, last + 1) if page not in free]
    if held:
        found.append(_set([*free, held[0]], "free"))
    return found


def _cache(shot: Shot) -> list[Damage]:
    """What the pages hold."""
    found: list[Damage] = []
    if shot["contents"]:
        before, tokens, extra_keys = shot["contents"][0]
        found += [
            _set([0, tokens, extra_keys], "contents", 0),
            _set([before, [2**31, *tokens[1:]], extra_keys], "contents", 0),
            _set([before, tokens, [{"kind": "CacheSalt"}]], "contents", 0),
            _set([before, tokens, [{"kind": "eval", "name": "a"}]], "contents", 0),
            _set([before, tokens], "contents", 0),
        ]
    if shot["cached"]:
        group, page, content = shot["cached"][0]
        found += [
            _set([len(shot["groups"]), page, content], "cached", 0),
            _set([group, shot["num_pages"], content], "cached", 0),
            _set([group, 0, content], "cached", 0),
            _set([group, page, len(shot["contents"])], "cached", 0),
            _set([*shot["cached"], shot["cached"][0]], "cached"),
        ]
    return found


def _requests(shot: Shot) -> list[Damage]:
    """Which requests are live, what they hold, and what is pinned."""
    found = [_set([*shot["known"], "somebody"], "known"), _set(-1, "next_pin_id")]
    if shot["known"]:
        found.append(_set([*shot["known"], shot["known"][0]], "known"))
    for place, live in enumerate(shot["requests"][:2]):
        found += [
            _set("somebody", "requests", place, "id"),
            _set(-1, "requests", place, "slot"),
            _set(shot["max_model_len"] + 1, "requests", place, "num_slots"),
            _set(live["num_slots"] + 1, "requests", place, "num_promised"),
            _set(live["num_promised"] + 9, "requests", place, "num_computed"),
            _set(live["groups"][1:], "requests", place, "groups"),
        ]
        for group, held in enumerate(live["groups"]):
            path = ("requests", place, "groups", group)
            found += [
                _set([*held["pages"], shot["num_pages"]], *path, "pages"),
                _set(len(held["pages"]) + 1, *path, "num_published"),
                _set(held["num_published"] + 1, *path, "num_hits"),
            ]
            if any(held["pages"]):
                found.append(_set([0] * len(held["pages"]), *path, "pages"))
            if shot["free"]:
                found.append(_set([shot["free"][0], *held["pages"][1:]], *path, "pages"))
    if len(shot["requests"]) > 1:
        found.append(_set(shot["requests"][0]["slot"], "requests", 1, "slot"))
    for pin in shot["pins"][:1]:
        found += [
            _set(pin["id"], "next_pin_id"),
            _set([pin, pin], "pins"),
            _set(0, "max_pinned_pages"),
        ]
    return found


def _counts(shot: Shot) -> list[Damage]:
    """What was counted, and when."""
    counters = shot["counters"]
    found = [
        _set(-1, "clock"),
        _set(-1, "counters", "hit_tokens"),
        _set(counters["page_lifetimes"][1:], "counters", "page_lifetimes"),
        _set({"requests": 0}, "counters"),
        _set([["a"]], "copies"),
        _set([{"kind": "PageMoved"}], "events"),
        _set("now", "now"),
        _set(0, "counter_sampling"),
    ]
    for name in ("stored_at", "freed_at"):
        if shot[name]:
            found.append(_set([[shot[name][0][0], shot["clock"] + 1]], name))
    return found


def _order(shot: Shot) -> list[Damage]:
    """Lists that are in the order of the pages: in another one, or with a page twice."""
    found: list[Damage] = []
    for name in ("priorities", "stored_at", "freed_at"):
        first, *rest = shot[name] or [None]
        if first is not None:
            found.append(_set([first, first, *rest], name))
        if rest:
            found.append(_set([rest[0], first, *rest[1:]], name))
    return found
