"""``kvproof clauses``: every clause; of some, why it is there, an example, where it is implemented, what checks it."""

import argparse
import ast
import importlib.util
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

import kvproof.spec
from kvproof.spec.clauses import CLAUSES

from ..catalogue import SEEDED_BUGS, SERVED_BUGS
from ..console.exit_status import FINE
from ..console.named import BadInputError, did_you_mean, family_of
from ..console.writing import write_file
from ..machines import MACHINES
from ..machines.properties import declared_clauses
from ..oracle.relations import RELATIONS, Sizes
from ..oracle.subjects import CAPABILITIES
from ..report.clause_examples import COMMANDS, EXAMPLES

__all__ = ["clause_list", "implementations", "run_clauses", "set_up"]

_MOST = 8
"""The most names of code or properties that are printed of a clause."""


def clause_list() -> list[dict[str, Any]]:
    """Every clause with its sentence, the code that implements it, the properties that check it, and why it is there.

    ``reports`` has what systems did that broke it, each under the name of the seeded bug that does the same.
    ``example`` says what ``example_of`` calls it: calls that keep the clause and, with ``# refused``, one that it
    refuses; requests of whole engines whose answers must agree; or a command that holds ours to it.
    """
    written, checked = implementations(), declared_clauses(MACHINES.values())
    asked = {relation.clause: relation.name for relation in RELATIONS.values()}
    bugs = (SEEDED_BUGS | SERVED_BUGS).values()
    return [
        {
            "clause": label,
            "class": clause.kind,
            "sentence": clause.sentence,
            "reports": {bug.name: bug.says for bug in bugs if bug.clause == label},
            **_example(label),
            "implemented": written[label],
            "checked": [
                *(found.name for found in checked.get(label, [])),
                *([f"oracle.{asked[label]}"] if label in asked else []),
            ],
        }
        for label, clause in CLAUSES.items()
    ]


_SMALL = Sizes(
    *(4, 2, 40, 10, 64),
    chunk=8,
    pool=24,
    adapters=("adapter",),
    offers=frozenset(CAPABILITIES) | {"forgets"},
)
"""The sizes of examples of what is asked of whole engines."""


def _example(label: str) -> dict[str, str]:
    """An example of a clause, and what it is an example of."""
    if label in EXAMPLES:
        return {"example": EXAMPLES[label], "example_of": "calls, for kvproof try FILE"}
    for relation in RELATIONS.values():
        if relation.clause == label:
            asked = relation.draw(random.Random(1), _SMALL, 1).lines()
            return {"example": "\n".join(asked) + "\n", "example_of": "requests, as kvproof serve-check asks them"}
    return {"example": COMMANDS[label] + "\n", "example_of": "a command that holds ours to it"}


@dataclass(frozen=True)
class _Options:
    """What the command was asked for, by the options that `set_up` adds."""

    labels: list[str]
    json: str | None


def set_up(parser: argparse.ArgumentParser) -> None:
    """Says what ``clauses`` does and what it is asked for, and has `run_clauses` called."""
    parser.description = (
        "Lists the clauses of the contract, a line each. Of those that are named, by labels or families "
        "such as POOL-5 or PIN: the sentence, what systems did that broke it, an example, the code of kvproof.spec (of "
        "the suite's engine for ENG) that implements it, and the properties that check it, named as machine.step, or "
        "oracle.relation for what whole engines answer."
    )
    parser.formatter_class = argparse.HelpFormatter
    parser.add_argument("labels", nargs="*", metavar="LABEL", help="a clause or a family, such as POOL-5 or PIN")
    parser.add_argument("--json", metavar="FILE", help="write the list to a file instead; - for standard output")
    parser.set_defaults(func=run_clauses, options=_Options)


def run_clauses(options: _Options) -> int:
    """Lists the clauses as asked.

    Returns:
        The exit status: 0.

    Raises:
        CannotRunError: there is no such clause, or the list could not be written.
    """
    clauses = clause_list()
    if options.labels:
        known = [*CLAUSES, *dict.fromkeys(map(family_of, CLAUSES))]
        strange = [label for label in options.labels if label not in known]
        if strange:
            meant = did_you_mean(strange[0], known)
            raise BadInputError(f"there is no clause {strange[0]}{meant or '; kvproof clauses lists them'}")
        clauses = [entry for entry in clauses if {entry["clause"], family_of(entry["clause"])} & {*options.labels}]
    if options.json is None:
        _print(clauses, Console(emoji=False), bool(options.labels))
        return FINE
    text = json.dumps(clauses, indent=1) + "\n"
    if options.json == "-":
        print(text, end="")
        return FINE
    write_file(options.json, text)
    return FINE


def _print(clauses: list[dict[str, Any]], console: Console, whole: bool) -> None:
    """Prints clauses: a line each, or the whole of each."""

    def tell(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    width = max(len(clause["clause"]) for clause in clauses)
    for clause in clauses:
        if not whole:
            line = f"{clause['clause']:{width}}  {clause['sentence']}"
            console.print(line, markup=False, highlight=False, no_wrap=True, overflow="ellipsis")
            continue
        tell(f"{clause['clause']} ({clause['class']})")
        console.print(Padding(Text(clause["sentence"]), (0, 0, 0, 2)))
        if clause["reports"]:
            tell("\n  why: what systems did, and what the seeded bug of that name does")
            for name, says in clause["reports"].items():
                console.print(Padding(Text(f"{name}: {says}"), (0, 0, 0, 4)))
        tell(f"\n  an example: {clause['example_of']}")
        for line in clause["example"].splitlines():
            tell(f"    {line}")
        for title, names in (("implemented in", clause["implemented"]), ("checked by", clause["checked"])):
            shown = (
                names if len(names) <= _MOST else [*names[:_MOST], f"and {len(names) - _MOST} more: --json - has all"]
            )
            tell(f"\n  {title}")
            for name in shown:
                tell(f"    {name}")
        tell("")


# -- Where each clause is implemented: in the specification, those of the engine in the suite's own engine -------------

_ENGINE = "kvproof.conformance.engine"

_LABEL = re.compile(r"\b(?:R[12]|[A-Z]+-\d+)\b")
_NOT_CODE = {"__init__", "clauses"}


def implementations() -> dict[str, list[str]]:
    """For each clause the code of the specification, or of the engine, that names it, as ``module:qualified.name``.

    A label counts for the innermost function or class around it, in its docstring, its comments or its code;
    outside of any it counts for the module.
    """
    found: dict[str, list[str]] = {label: [] for label in CLAUSES}
    for module, path in _modules():
        source = path.read_text(encoding="utf-8")
        owners = _owners(ast.parse(source))
        for number, line in enumerate(source.splitlines(), start=1):
            where = f"{module}:{owners[number]}" if number in owners else module
            for label in _LABEL.findall(line):
                implements = label.startswith("ENG-") == module.startswith(_ENGINE)
                if implements and label in found and where not in found[label]:
                    found[label].append(where)
    return found


def _modules() -> Iterator[tuple[str, Path]]:
    for package in (kvproof.spec.__name__, _ENGINE):
        found = importlib.util.find_spec(package)
        if found is None or found.submodule_search_locations is None:
            raise FileNotFoundError(f"the source of {package} is not where it was imported from")
        for directory in found.submodule_search_locations:
            for path in sorted(Path(directory).rglob("*.py")):
                if path.stem not in _NOT_CODE:
                    yield ".".join((package, *path.relative_to(directory).with_suffix("").parts)), path


def _owners(tree: ast.Module) -> dict[int, str]:
    """The qualified name of the innermost function or class around each line."""
    owners: dict[int, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
                owners.update(dict.fromkeys(range(first, (child.end_lineno or first) + 1), name))
                visit(child, f"{name}.")
            else:
                visit(child, prefix)

    visit(tree, "")
    return owners
