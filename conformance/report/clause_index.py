"""Where each clause is implemented: in the specification, those of the engine in the suite's own engine."""

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import kvproof.spec
from kvproof.spec.clauses import CLAUSES

__all__ = ["implementations"]

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
