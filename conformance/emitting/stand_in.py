"""What is given out in place of a backend's objects while calls are noted: it passes on whatever is asked of it."""

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .notes import Notes

__all__ = ["StandIn", "inside"]


def inside(stand_in: "StandIn") -> tuple[Any, str]:
    """What a stand-in stands for, and the expression that gives it."""
    value: Any = object.__getattribute__(stand_in, "_value")
    text: str = object.__getattribute__(stand_in, "_text")
    return value, text


class StandIn:
    """Stands for a thing of the backend: passes on what is asked of it, and notes what is called.

    Args:
        value: the thing.
        text: the expression that gives it.
        notes: where calls are noted.
    """

    __slots__ = ("_notes", "_text", "_value")

    def __init__(self, value: Any, text: str, notes: "Notes") -> None:
        object.__setattr__(self, "_value", value)
        object.__setattr__(self, "_text", text)
        object.__setattr__(self, "_notes", notes)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(object.__getattribute__(self, "_value"))

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(object.__getattribute__(self, "_value"))

    def __getattr__(self, name: str) -> Any:
        value, text = inside(self)
        notes: Notes = object.__getattribute__(self, "_notes")
        return notes.stand_in(getattr(value, name), f"{text}.{name}")

    def __setattr__(self, name: str, value: Any) -> None:
        object.__getattribute__(self, "_notes").set(self, name, value)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:  # noqa: D102 - a call of what it stands for
        notes: Notes = object.__getattribute__(self, "_notes")
        if not notes.on:
            given = [notes.strip(argument) for argument in arguments]
            return inside(self)[0](*given, **{name: notes.strip(given) for name, given in keywords.items()})
        return notes.made(self, arguments, keywords)

    def __getitem__(self, key: Any) -> Any:
        value, text = inside(self)
        notes: Notes = object.__getattribute__(self, "_notes")
        real, shown = notes.given(key)
        return notes.stand_in(value[real], f"{text}[{shown}]")

    def __iter__(self) -> Iterator[Any]:
        value, text = inside(self)
        notes: Notes = object.__getattribute__(self, "_notes")
        whole = text if hasattr(type(value), "__getitem__") and not isinstance(value, Mapping) else f"list({text})"
        return iter([notes.stand_in(entry, f"{whole}[{place}]") for place, entry in enumerate(value)])

    def __add__(self, other: Any) -> Any:
        value, text = inside(self)
        notes: Notes = object.__getattribute__(self, "_notes")
        real, shown = notes.given(other)
        return notes.stand_in(value + real, f"({text} + {shown})")

    def __radd__(self, other: Any) -> Any:
        value, text = inside(self)
        notes: Notes = object.__getattribute__(self, "_notes")
        real, shown = notes.given(other)
        return notes.stand_in(real + value, f"({shown} + {text})")

    def __eq__(self, other: object) -> bool:
        real = inside(other)[0] if type(other) is StandIn else other
        return bool(inside(self)[0] == real)

    def __hash__(self) -> int:
        return hash(inside(self)[0])

    def __len__(self) -> int:
        return len(inside(self)[0])

    def __bool__(self) -> bool:
        return bool(inside(self)[0])

    def __contains__(self, entry: Any) -> bool:
        return bool(entry in inside(self)[0])

    def __int__(self) -> int:
        return int(inside(self)[0])

    def __index__(self) -> int:
        return int(inside(self)[0].__index__())

    def __float__(self) -> float:
        return float(inside(self)[0])

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        return inside(self)[0].__array__(*arguments, **keywords)

    def __repr__(self) -> str:
        return repr(inside(self)[0])
