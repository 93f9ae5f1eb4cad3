"""Operations whose arguments tell of earlier results, said anew when some of those before them are left out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import kvproof.spec

from .entries import Entry, Operation
from .player import Player
from .sides import Answer

__all__ = ["Adapter", "prepared"]

_ORIGIN = "\0origin"
"""An argument added by `prepared`: it is no parameter's name, so that no call is given it."""


def prepared(entries: Sequence[Entry]) -> list[Entry]:
    """The entries of a log, each operation with what its arguments say of earlier results.

    A batched step names the requests that its slots are of, an allocation whether its hits are those of the request's
    last look-up, a call on pages which call gave them.
    """
    player = Player([kvproof.spec])
    found: dict[int, tuple[Any, int]] = {}
    given: dict[int, tuple[int, int]] = {}
    made: list[Entry] = []
    for entry in entries:
        if not isinstance(entry, Operation):
            player.prepare(entry)
            made.append(entry)
            continue
        origin: dict[str, Any] = {}
        arguments = entry.arguments
        thing = player.sides[0].things[entry.target]
        if entry.method == "allocate_slots_batch" and isinstance(arguments.get("slots"), list):
            slots = _slots(thing.it, player)
            if all(slot in slots for slot in arguments["slots"]):
                origin["requests"] = [slots[slot] for slot in arguments["slots"]]
        if entry.method == "allocate_slots" and arguments.get("new_computed_pages") is not None:
            last = found.get(arguments["request"].get("r", -1))
            if last == (arguments["new_computed_pages"], arguments.get("num_new_computed_tokens", 0)):
                origin["hits"] = last[1]
        if thing.name == "PagePool":
            origin["pages"] = given
        (answer,) = player.call(entry)
        if entry.method == "get_computed_pages" and answer.error is None and "r" in arguments["request"]:
            found[arguments["request"]["r"]] = answer.value[0], answer.value[1]
        if entry.method == "get_new_pages" and answer.error is None:
            given = given | {page: (entry.number, place) for place, page in enumerate(answer.value)}
        made.append(replace(entry, arguments={**arguments, _ORIGIN: origin}))
    return made


def _slots(manager: Any, player: Player) -> dict[int, int]:
    """The live requests' numbers by their slots."""
    slots = {}
    for number, request in enumerate(player.requests):
        try:
            slots[manager.slot_of(request.request_id)] = number
        except ValueError:  # it is not live
            continue
    return slots


class Adapter:
    """Says arguments anew, from what came of the operations that are played.

    Args:
        player: who plays them; its first side is the specification.
    """

    def __init__(self, player: Player) -> None:
        self._player = player
        self._found: dict[int, tuple[Any, int]] = {}
        self._given: dict[int, list[int]] = {}

    def adapt(self, operation: Operation) -> Operation | None:
        """The operation with its arguments said anew; None where nothing is left of it."""
        arguments = dict(operation.arguments)
        origin = arguments.pop(_ORIGIN, {})
        if "requests" in origin:
            return self._step(operation, arguments, origin["requests"])
        if "hits" in origin:
            pages, tokens = self._found.get(arguments["request"]["r"], (None, 0))
            arguments["num_new_tokens"] += origin["hits"] - tokens
            arguments |= {"num_new_computed_tokens": tokens, "new_computed_pages": pages}
        if origin.get("pages"):
            for name in ("pages", "ordered_pages"):
                if isinstance(arguments.get(name), list):
                    arguments[name] = self._pages(arguments[name], origin["pages"])
        return replace(operation, arguments=arguments)

    def learn(self, operation: Operation, answer: Answer) -> None:
        """Notes what came of an operation."""
        if answer.error is not None:
            return
        if operation.method == "get_computed_pages":
            self._found[operation.arguments["request"].get("r", -1)] = answer.value[0], answer.value[1]
        elif operation.method == "get_new_pages":
            self._given[operation.number] = answer.value

    def _pages(self, pages: Any, given: dict[int, tuple[int, int]]) -> Any:
        if isinstance(pages, list):
            return [self._pages(page, given) for page in pages]
        number, place = given.get(pages, (0, 0)) if isinstance(pages, int) else (0, 0)
        taken = self._given.get(number, [])
        return taken[place] if place < len(taken) else pages

    def _step(self, operation: Operation, arguments: dict[str, Any], requests: list[int]) -> Operation | None:
        """A batched step of the requests that are live."""
        slot_of = {request: slot for slot, request in _slots(self._manager(operation), self._player).items()}
        kept = [place for place, request in enumerate(requests) if request in slot_of]
        if not kept:
            return None
        for name in ("num_computed_tokens", "num_new_tokens", "num_lookahead_tokens", "rows"):
            if isinstance(arguments.get(name), list):
                arguments[name] = [arguments[name][place] for place in kept]
        arguments["slots"] = [slot_of[requests[place]] for place in kept]
        return replace(operation, arguments=arguments)

    def _manager(self, operation: Operation) -> Any:
        return self._player.sides[0].things[operation.target].it
