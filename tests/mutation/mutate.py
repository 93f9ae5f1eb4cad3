"""Mutation testing of ``spec`` and ``fast``, by hand: ``python -m tests.mutation.mutate --modules fast/page_pool.py``.

Mutants are made of a clone in a temporary folder, one at a time, by one change to a module's syntax tree: another
comparison, another operator, a number off by one, a condition turned round, a statement left out. Each is held against
the module's own tests and against the machines that call it, and is killed by whichever fails, or takes too long. What
survives is printed as a difference: it means the same, or a test is missing.

A tool of its own, since the folders are imported through links below ``src`` and the suite's machines, which kill most
mutants, are no tests that a mutation tool would run.
"""

import argparse
import ast
import copy
import difflib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
MACHINES = {
    "pool": "pool,pool_pins,queue,manager,hybrid",
    "queue": "queue,pool",
    "free": "queue,pool,pool_pins",
    "hash": "hash,pool,manager",
    "key": "hash,pool,manager",
    "index": "pool,manager,hybrid,events",
    "table": "table,multi_table,batch",
    "manager": "manager,window,chunk,state,hybrid,batch,events,pins,shards,snapshots",
    "coordinator": "manager,window,chunk,state,hybrid,batch",
    "group": "manager,window,chunk,mla,state,hybrid",
    "pin": "pins,pool_pins,snapshots",
}
"""The machines for a module, by a word in its name; the others for all of managers."""

COMPARISONS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
OPERATORS = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv}


def changes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every change that can be made: the number of the node in the order of `ast.walk`, and the kind of change."""
    for number, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
            yield number, "comparison"
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            yield number, "operator"
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield number, "number"
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            yield number, "condition"
        elif isinstance(node, ast.BoolOp):
            yield number, "and or"
        elif isinstance(node, ast.AugAssign | ast.Expr) and not isinstance(getattr(node, "value", None), ast.Constant):
            yield number, "left out"


def mutant(tree: ast.Module, number: int, kind: str) -> str:
    """The source of a module with one change."""
    changed = copy.deepcopy(tree)
    node = next(node for place, node in enumerate(ast.walk(changed)) if place == number)
    if isinstance(node, ast.Compare):
        node.ops[0] = COMPARISONS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp):
        node.op = OPERATORS[type(node.op)]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value += 1
    elif isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.BoolOp):
        node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    elif kind == "left out":
        for parent in ast.walk(changed):
            for field in ("body", "orelse", "finalbody"):
                held = getattr(parent, field, None)
                if isinstance(held, list) and node in held:
                    held[held.index(node)] = ast.Pass()
    return ast.unparse(ast.fix_missing_locations(changed))


def commands(module: Path) -> list[list[str]]:
    """What a mutant of a module is held against: its tests, if they are found by name, then machines."""
    folder, stem = module.parts[0], module.stem
    names = next((names for word, names in MACHINES.items() if word in stem), MACHINES["manager"])
    tests = [f"tests/{side}/test_{stem}.py" for side in (folder, "spec", "fast")]
    found = [test for test in dict.fromkeys(tests) if (ROOT / test).exists()]
    check = ["-m", "kvproof.conformance", "check", "--machines", names, "--seed", "1", "--jobs", "1", "--first"]
    run_tests = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o", "pythonpath=src", *found]
    return [*([run_tests] if found else []), check]


def killed(clone: Path, module: Path) -> str:
    """By what the mutant in a clone is killed; "" if it survives."""
    environment = {**os.environ, "PYTHONPATH": str(clone / "src"), "JAX_PLATFORMS": "cpu"}
    for command in commands(module):
        try:
            ended = subprocess.run(
                [sys.executable, *command],
                cwd=clone,
                env=environment,
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "time"
        if ended.returncode:
            return command[1]
    return ""


def main() -> None:
    """Makes mutants, and says of each what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="+", required=True, metavar="FILE", help="such as fast/page_pool.py")
    parser.add_argument("--number", type=int, default=10, metavar="N", help="mutants of each module (default 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="which of all mutants (default 0)")
    given = parser.parse_args()
    died = lived = 0
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
        for name in given.modules:
            module, source = Path(name), (clone / name).read_text(encoding="utf-8")
            tree = ast.parse(source)
            possible = list(changes(tree))
            plain = ast.unparse(tree)
            for number, kind in random.Random(given.seed).sample(possible, min(given.number, len(possible))):
                text = mutant(tree, number, kind)
                (clone / module).write_text(text, encoding="utf-8")
                by = killed(clone, module)
                died, lived = died + bool(by), lived + (not by)
                lines = difflib.unified_diff(plain.splitlines(), text.splitlines(), name, name, "", "", 1, "")
                print(f"{name}: {kind}: {f'killed by {by}' if by else 'SURVIVED'}", *lines, sep="\n", flush=True)
            (clone / module).write_text(source, encoding="utf-8")
    print(f"{died} killed, {lived} survived")


if __name__ == "__main__":
    main()
