"""The backend's side of a machine whose calls are noted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ..backends.loading import Backend
from ..machines.sides import Side
from .notes import Notes

__all__ = ["NotedBackend", "NotedSide"]


@dataclass(frozen=True)
class NotedBackend(Backend):
    """A backend whose public names are given out as stand-ins.

    Attributes:
        notes: where calls are noted.
    """

    notes: Notes = field(default_factory=lambda: Notes(None))

    def get(self, attribute: str) -> Any:
        """See `Backend.get`."""
        return self.notes.stand_in(super().get(attribute), f"backend.{attribute}")

    def accepts(self, attribute: str, parameter: str) -> bool:
        """See `Backend.accepts`."""
        before, self.notes.on = self.notes.on, False
        try:
            return super().accepts(attribute, parameter)
        finally:
            self.notes.on = before


class NotedSide(Side):
    """The backend's side, which gives out stand-ins while calls are noted.

    Args:
        names: the backend.
    """

    def __init__(self, names: NotedBackend) -> None:
        super().__init__(names)
        self._notes = names.notes
        self._made: dict[str, Any] = {}

    def put(self, made: Mapping[str, Any]) -> None:
        """See `Side.put`."""
        sides = {name: value for name, value in made.items() if _is_sides(value)}
        self._made.update({name: list(map(self._within, value)) for name, value in sides.items()})
        self._made.update(self._notes.name({name: value for name, value in made.items() if name not in sides}))

    def _within(self, side: Side) -> "NotedSide":
        """A side within this one, whose things are noted as well."""
        noted = NotedSide(cast(NotedBackend, side.names))
        noted.put({name: value for name, value in vars(side).items() if name not in vars(Side(side.names))})
        return noted

    def __getattr__(self, name: str) -> Any:
        made = self.__dict__.get("_made", {})
        if name not in made:
            raise AttributeError(f"no {name} on this side")
        value, notes = made[name], self._notes
        if not notes.on:
            return value
        if type(value) is dict and value and all(notes.text_of_known(entry) for entry in value.values()):
            return {key: self._shown(entry) for key, entry in value.items()}
        if type(value) is list and value and all(notes.text_of_known(entry) for entry in value):
            return [self._shown(entry) for entry in value]
        return self._shown(value)

    def _shown(self, value: Any) -> Any:
        text = self._notes.text_of_known(value)
        return value if text is None else self._notes.stand_in(value, text)


def _is_sides(value: Any) -> bool:
    return type(value) is list and bool(value) and isinstance(value[0], Side)
