"""The changes that make mutants of a module: each at one place of its syntax tree, and numbered."""

import ast
import copy
from collections.abc import Iterator
from typing import Any

__all__ = ["changed", "changes"]

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}

_TEXT = (ast.JoinedStr, ast.Raise, ast.Assert)
"""What says how a refusal reads, or what can never be otherwise: a change in it is a change of words."""


def changes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every change that can be made.

    Args:
        tree: a module's syntax tree.

    Yields:
        The number of the node in the order of `ast.walk`, and the kind of change. Left out are changes that make no
        other program: in messages, annotations, docstrings, names of exports, in what type checkers alone run, in
        assertions and in ``zip(strict=True)``.
    """
    silent = _silent(tree)
    for number, node in enumerate(ast.walk(tree)):
        kind = "" if node in silent else _kind(node)
        if kind:
            yield number, kind


def changed(tree: ast.Module, number: int) -> str:
    """The source of a module with one change.

    Args:
        tree: the module's syntax tree, which stays as it is.
        number: the change, as `changes` numbers them.
    """
    other = copy.deepcopy(tree)
    node: Any = next(node for place, node in enumerate(ast.walk(other)) if place == number)
    match _kind(node):
        case "comparison":
            node.ops[0] = _COMPARISONS[type(node.ops[0])]()
        case "operator":
            node.op = _OPERATORS[type(node.op)]()
        case "number":
            node.value += 1
        case "truth":
            node.value = not node.value
        case "function":
            node.func.id = _FUNCTIONS[node.func.id]
        case "condition":
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case "and or":
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        case "left out":
            for parent in ast.walk(other):
                for field in ("body", "orelse", "finalbody"):
                    held = getattr(parent, field, None)
                    if isinstance(held, list) and node in held:
                        held[held.index(node)] = ast.Pass()
    return ast.unparse(ast.fix_missing_locations(other))


def _kind(node: ast.AST) -> str:
    """How a node is changed; "" if it is not."""
    match node:
        case ast.Compare(ops=[first, *_]) if type(first) in _COMPARISONS:
            return "comparison"
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
            return "operator"
        case ast.Constant(value=bool()):
            return "truth"
        case ast.Constant(value=int()):
            return "number"
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            return "function"
        case ast.If() | ast.IfExp() | ast.While():
            return "condition"
        case ast.BoolOp():
            return "and or"
        case ast.Expr(value=ast.Constant()):
            return ""
        case ast.Expr() | ast.Delete() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            return "left out"
    return ""


def _silent(tree: ast.Module) -> set[ast.AST]:
    """The nodes of which a change makes no other program."""
    roots: list[ast.AST] = []
    for node in ast.walk(tree):
        match node:
            case ast.AnnAssign(annotation=annotation) | ast.arg(annotation=ast.expr() as annotation):
                roots.append(annotation)
            case ast.FunctionDef(returns=ast.expr() as annotation):
                roots.append(annotation)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.keyword(arg="strict"):
                roots.append(node)
            case _ if isinstance(node, _TEXT):
                roots.append(node)
    return {below for root in roots for below in ast.walk(root)}
