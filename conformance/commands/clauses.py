"""``kvproof clauses``: every clause, where it is implemented, and what checks it."""

import argparse
import json
from typing import Any

from rich.console import Console

from kvproof.spec.clauses import CLAUSES

from ..console.exit_status import FINE, could_not_run
from ..console.writing import write_file
from ..machines import MACHINES
from ..machines.properties import declared_clauses
from ..oracle.relations import RELATIONS
from ..report.clause_index import implementations

__all__ = ["add_parser", "clause_list", "run_clauses"]


def clause_list() -> list[dict[str, Any]]:
    """Every clause with its sentence, the code that implements it, and the properties that check it."""
    written, checked = implementations(), declared_clauses(MACHINES.values())
    asked = {relation.clause: relation.name for relation in RELATIONS.values()}
    return [
        {
            "clause": label,
            "class": clause.kind,
            "sentence": clause.sentence,
            "implemented": written[label],
            "checked": [
                *(found.name for found in checked.get(label, [])),
                *([f"oracle.{asked[label]}"] if label in asked else []),
            ],
        }
        for label, clause in CLAUSES.items()
    ]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", about: str) -> None:
    """Adds the command ``clauses`` to a command line; ``about`` is its line in the help."""
    clauses = commands.add_parser(
        "clauses",
        help=about,
        description="Lists every clause of the contract: its sentence, the code of kvproof.spec (of the "
        "suite's engine for ENG) that implements it, and the properties that check it, named as machine.step, or "
        "oracle.relation for what whole engines answer.",
    )
    clauses.add_argument("--json", metavar="FILE", help="write the list to a file instead; - for standard output")
    clauses.set_defaults(func=run_clauses)


def run_clauses(arguments: argparse.Namespace) -> int:
    """Lists the clauses as asked.

    Returns:
        The exit status: 0, or 2 where the list could not be written.
    """
    clauses = clause_list()
    if arguments.json is None:
        _print(clauses, Console())
        return FINE
    text = json.dumps(clauses, indent=1) + "\n"
    if arguments.json == "-":
        print(text, end="")
        return FINE
    try:
        write_file(arguments.json, text)
    except OSError as error:
        return could_not_run("clauses", f"{arguments.json}: {error.strerror or error}")
    return FINE


def _print(clauses: list[dict[str, Any]], console: Console) -> None:
    for clause in clauses:
        console.print(f"[bold]{clause['clause']}[/] ({clause['class']})", highlight=False)
        console.print(f"  {clause['sentence']}", markup=False, highlight=False)
        for title in ("implemented", "checked"):
            names = clause[title] or ["nowhere"]
            console.print(f"  {title + ' by' if title == 'checked' else title + ' in'}", highlight=False)
            for name in names:
                console.print(f"    {name}", markup=False, highlight=False, soft_wrap=True)
