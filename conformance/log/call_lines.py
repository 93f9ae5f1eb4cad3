"""The calls of a log as a report shows them, one line each; token ids only when they are asked for (SEC-2)."""

import json
from collections.abc import Mapping
from typing import Any

from kvproof.spec.declarations import Request

from .calls import CALLS
from .entries import Operation
from .sides import Thing

__all__ = ["call_line", "object_name", "request_line"]

_NAMES = {"CacheManager": "manager", "PagePool": "pool", "PageTable": "table", "MultiGroupPageTable": "tables"}
_LONGEST = 200


def object_name(number: int, things: Mapping[int, Thing]) -> str:
    """What an object is called: by its class, and by its number where there are others of the class."""
    thing = things[number]
    alike = [other for other, known in things.items() if known.name == thing.name]
    name = _NAMES[thing.name]
    return name if len(alike) == 1 else f"{name}_{alike.index(number)}"


def call_line(operation: Operation, things: Mapping[int, Thing], requests: list[Request]) -> str:
    """A call on one line.

    Args:
        operation: the call.
        things: the objects by number.
        requests: the requests by number.
    """
    thing = things[operation.target]
    target = object_name(operation.target, things)
    if operation.method not in CALLS[thing.name]:
        return f"{target}.{operation.method}"
    shown = []
    said = ""
    for argument, value in operation.arguments.items():
        if argument not in CALLS[thing.name][operation.method].arguments:
            continue
        if isinstance(value, dict) and isinstance(value.get("r"), int) and value["r"] < len(requests):
            shown.append(repr(requests[value["r"]].request_id))
            said = f"  # {value.get('computed')} of {value.get('known')} tokens computed"
        elif isinstance(value, dict) and "k" in value:
            shown.append(object_name(value["k"], things) if value["k"] in things else "?")
        elif isinstance(value, dict):
            shown.append(f"<{json.dumps(value)[1:-1]}>")
        else:
            shown.append(f"{argument}={_short(value)}")
    return f"{target}.{operation.method}({', '.join(shown)}){said}"


def request_line(request: Request, tokens: list[int] | None) -> str:
    """A request on one line: its id, its extra keys, and its token ids if they are to be shown."""
    listed = f"{request.num_tokens} tokens" if tokens is None else _short(tokens)
    keys = f", {request.extra_keys}" if request.extra_keys else ""
    return f"Request({request.request_id!r}, {listed}{keys})"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
