"""Entries of a log without what none of its operations needs, and a log written of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kvproof.spec.declarations.json_kinds import extra_keys_to_json, group_to_json

from ..console.writing import write_file
from .entries import Entry, Grown, Made, NewKeys, NewRequest, Operation, Shown
from .format import HEADER
from .values import TokenTexts

__all__ = ["pruned", "write_log"]


def pruned(entries: Sequence[Entry]) -> list[Entry]:
    """The entries without objects and requests that no operation names, the others renumbered.

    A request's tokens are told when it is defined, as many as operations tell of.
    """
    operations = [entry for entry in entries if isinstance(entry, Operation)]
    objects = _objects(entries, operations)
    known = _known(operations)
    numbers = {old: new for new, old in enumerate(sorted(known))}
    tokens = _tokens(entries)
    kept: list[Entry] = []
    for entry in entries:
        match entry:
            case Made() if entry.number in objects:
                arguments = dict(entry.arguments)
                if "of" in arguments:
                    arguments["of"] = objects[arguments["of"]]
                kept.append(replace(entry, number=objects[entry.number], arguments=arguments))
            case NewRequest() if entry.number in numbers:
                own = tokens.get(entry.number, entry.tokens)
                if entry.number in tokens:
                    own = own[: known[entry.number]]
                kept.append(replace(entry, number=numbers[entry.number], tokens=own))
            case Grown() if entry.number in numbers and entry.number not in tokens:
                kept.append(replace(entry, number=numbers[entry.number]))
            case NewKeys() if entry.number in numbers:
                kept.append(replace(entry, number=numbers[entry.number]))
            case Operation():
                told = tuple((numbers[request], length) for request, length in entry.told)
                arguments = _renumbered(entry.arguments, numbers, objects)
                kept.append(replace(entry, target=objects[entry.target], arguments=arguments, told=told))
            case Shown() if entry.target in objects:
                kept.append(replace(entry, target=objects[entry.target]))
            case _:
                continue
    return kept


def _objects(entries: Sequence[Entry], operations: Sequence[Operation]) -> dict[int, int]:
    """The new numbers of the objects that are called, or that have parts that are."""
    needed = {operation.target for operation in operations}
    for operation in operations:
        tables = operation.arguments.get("tables")
        needed |= {tables["k"]} if isinstance(tables, dict) and "k" in tables else set()
    needed |= {entry.target for entry in entries if isinstance(entry, Shown)}
    made = [entry for entry in entries if isinstance(entry, Made)]
    needed |= {entry.arguments["of"] for entry in made if entry.number in needed and "of" in entry.arguments}
    return {entry.number: new for new, entry in enumerate(entry for entry in made if entry.number in needed)}


def _known(operations: Sequence[Operation]) -> dict[int, int]:
    """For each request that operations name the most tokens that they tell of."""
    known: dict[int, int] = {}
    for operation in operations:
        named = list(operation.told)
        for value in operation.arguments.values():
            if isinstance(value, dict) and isinstance(value.get("r"), int):
                named.append((value["r"], value.get("known", 0)))
        named += [(request, 0) for request in operation.arguments.get("running", ())]
        for request, length in named:
            known[request] = max(known.get(request, 0), length)
    return known


def _tokens(entries: Sequence[Entry]) -> dict[int, Any]:
    """All tokens of each request, but for those whose tokens were written over."""
    tokens: dict[int, Any] = {}
    for entry in entries:
        if isinstance(entry, NewRequest):
            tokens[entry.number] = entry.tokens
        elif isinstance(entry, Grown) and entry.number in tokens:
            if entry.start == len(tokens[entry.number]):
                tokens[entry.number] = np.concatenate([tokens[entry.number], entry.tokens])
            else:
                del tokens[entry.number]
    return tokens


def _renumbered(arguments: dict[str, Any], numbers: dict[int, int], objects: dict[int, int]) -> dict[str, Any]:
    made = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, dict) and isinstance(value.get("r"), int):
            made[name] = value | {"r": numbers[value["r"]]}
        elif isinstance(value, dict) and "k" in value:
            made[name] = {"k": objects[value["k"]]}
        elif name == "running":
            made[name] = [numbers[request] for request in value]
    return made


def write_log(path: Path, entries: Sequence[Entry], shows_tokens: bool) -> None:
    """Writes entries as a log.

    Args:
        path: the file.
        entries: the entries, operations with the results that they are to have.
        shows_tokens: whether the token ids are the engine's own.

    Raises:
        CannotRunError: the file can't be written.
    """
    header = HEADER | {"tokens": "shown" if shows_tokens else "mapped"}
    count = sum(isinstance(entry, Operation) for entry in entries)
    spelling = TokenTexts(shown=True)  # as they are: if they are mapped, they are already
    lines = [
        json.dumps(header),
        *(json.dumps([_written(entry, spelling)]) for entry in entries),
        json.dumps([["end", count]]),
    ]
    write_file(path, "\n".join(lines) + "\n")


def _written(entry: Entry, spelling: TokenTexts) -> list[Any]:
    match entry:
        case Made():
            arguments = dict(entry.arguments)
            if "kv_cache_groups" in arguments:
                arguments["kv_cache_groups"] = list(map(group_to_json, arguments["kv_cache_groups"]))
            return ["make", entry.number, entry.name, arguments]
        case NewRequest():
            keys = extra_keys_to_json(entry.extra_keys)
            return [
                "request",
                entry.number,
                entry.request_id,
                spelling.entry(entry.tokens),
                keys,
                entry.prompt_logprobs,
            ]
        case Grown():
            return ["tokens", [entry.number], [entry.start], [len(entry.tokens)], spelling.entry(entry.tokens)]
        case NewKeys():
            return ["keys", entry.number, extra_keys_to_json(entry.extra_keys)]
        case Shown():
            return ["state", entry.target, entry.fields]
        case Operation():
            return _operation(entry)


def _operation(operation: Operation) -> list[Any]:
    arguments = operation.arguments
    if operation.method == "allocate_slots_batch" and operation.error is None:
        options = {"delay": True} if arguments.get("delay_cache_pages") else {}
        if isinstance(arguments.get("tables"), dict):
            options["tables"] = arguments["tables"]["k"]
        names = ("slots", "num_computed_tokens", "num_new_tokens", "num_lookahead_tokens", "rows")
        columns = [arguments.get(name, 0) for name in names]
        told = [[request for request, _ in operation.told], [known for _, known in operation.told]]
        return ["step", operation.target, *columns, options, operation.result, told]
    ending = [] if operation.error is None else [operation.error]
    return ["call", operation.target, operation.method, arguments, operation.result, *ending]
