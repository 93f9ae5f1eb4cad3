"""Python read as calls, each with its row of the tables: a subset that says what is called with what, never run."""

import ast
import difflib
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvproof.spec import declarations

from ..calls.datum import Call, Minus, Prompt, Ref, Spelled, written
from ..calls.interfaces import BUILDS, FUNCTIONS, REQUEST, TABLES_BY_OWNER
from ..calls.method import Method, Table
from ..calls.pool import POOL
from ..calls.queue import PAGE, QUEUE
from ..calls.spelling import Spelling
from ..calls.table import TABLE

__all__ = [
    *("Entry", "FileError", "Rows", "arguments_of", "entry_of", "made_by", "read_script"),
]


class FileError(Exception):
    """A file that says no sequence of calls; the message is one line and says where."""


_KEYS = ("hash_seed", "hash_function")
"""Options of all that has keys; a log does not keep them, so that the rows don't name them."""

_PARTS: Mapping[tuple[str, str], Table] = {
    ("manager", ".page_pool"): POOL,
    ("pool", ".free_page_queue"): QUEUE,
    ("pool", ".null_page"): PAGE,
    ("tables", "[]"): TABLE,
    ("cache", ".views"): TABLES_BY_OWNER["RaggedPagesCacheView"],
}
"""What is a part of what: by the name of a table, and an attribute or ``[]`` for an entry."""


class Rows:
    """The row of each call, by what was constructed before it."""

    def __init__(self) -> None:
        self._tables: dict[int | str, Table] = {}

    def row_of(self, call: Call, written: str = "") -> Method:
        """The row of a call.

        Args:
            call: the call.
            written: what it is called on, as the file has it.

        Raises:
            FileError: there is none.
        """
        if call.target is None:
            row = BUILDS.get(call.method) or FUNCTIONS.get(call.method)
            if row is None:
                known = [*BUILDS, *FUNCTIONS]
                raise FileError(f"there is no class or function {call.method}{near(call.method, known)}")
        else:
            row = self._row_on(call, call.target, written)
        owner = made_by(call)
        if owner in TABLES_BY_OWNER:
            self._tables[call.number] = TABLES_BY_OWNER[owner]
        return row

    def _row_on(self, call: Call, target: Ref, written: str) -> Method:
        table = self.table_of(target)
        row = table.by_name.get(call.method)
        if row is None or row.form == "build":
            known = [row.name for row in table if row.form != "build"]
            raise FileError(f"{written or target}: a {table.name} has no {call.method}{near(call.method, known)}")
        return row

    def table_of(self, target: Ref) -> Table:
        """The table of what a call is made on."""
        if isinstance(target.of, str) and target.of in TABLES_BY_OWNER and not target.path:
            return TABLES_BY_OWNER[target.of]  # the class itself
        table = self._tables.get(target.of)
        if table is None:
            return PAGE  # a result of a call, or a page by its id
        for step in target.path:
            key = "[]" if isinstance(step, int) else step
            table = _PARTS.get((table.name, key), table if key in (".page_tables", "[]") else PAGE)
        return table


def made_by(call: Call) -> str:
    """The class of the object that a call makes: its constructor, or a method of the class itself; "" if none."""
    if call.target is None:
        return call.method if call.method in BUILDS else ""
    on_class = isinstance(call.target.of, str) and call.target.of in TABLES_BY_OWNER and not call.target.path
    return str(call.target.of) if on_class else ""


def near(word: str, known: Iterable[str]) -> str:
    """The end of a message: the known word that is nearest, or all of them."""
    listed = list(known)
    found = difflib.get_close_matches(word, listed, 1)
    return f"; did you mean {found[0]}?" if found else f"; there are {', '.join(listed)}"


def arguments_of(row: Method, given: Iterable[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, in the order of its row.

    Raises:
        FileError: there are too many, one is given twice, or one that the method does not have.
    """
    names = [name for name in row.arguments if name not in row.by_name]
    values = list(given)
    if len(values) > len(names):
        raise FileError(f"{row.name} takes {len(names)} arguments by position, not {len(values)}: {', '.join(names)}")
    arguments = dict(zip(names, values, strict=False))
    known = [*row.arguments, *row.by_name, *(_KEYS if row.form == "build" or "hash_seed" in row.by_name else ())]
    for name, value in named.items():
        if name in arguments:
            raise FileError(f"{row.name}: {name} is given twice")
        if name not in known:
            raise FileError(f"{row.name} has no argument {name}{near(name, known)}")
        arguments[name] = value
    return arguments


# -- Calls ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A call of a file.

    Attributes:
        place: where it stands.
        text: how it is written there.
        call: the call.
    """

    place: str
    text: str
    call: Call


def entry_of(place: str, call: Call, row: Method, shown: Callable[[Any], str] = written) -> Entry:
    """A call that was not written by hand, with the text that shows it.

    Args:
        place: where it stands.
        call: the call.
        row: its row.
        shown: how an argument is written.
    """
    given = {name: shown(value) for name, value in call.arguments.items()}
    listed = ", ".join(f"{name}={text}" for name, text in given.items())
    said = {"set": f" = {next(iter(given.values()), None)}", "get": ""}.get(row.form, f"({listed})")
    target = "" if call.target is None else f"{call.target}."
    made = "" if row in REQUEST.rows and row.form != "build" else f"r{call.number} = "
    return Entry(place, f"{made}{target}{call.method}{said}", call)


_VALUES: Mapping[str, Callable[..., Any]] = {
    name: getattr(declarations, name)
    for name in (
        *("CacheGroupSpec", "FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec"),
        *("MLAAttentionSpec", "MambaSpec"),
        *("CacheSalt", "LoraAdapter", "WeightsVersion", "MultimodalItem", "PromptEmbeddings"),
        *("PageStored", "PageRemoved", "CacheCleared"),
    )
} | {"list": list, "tuple": tuple, "range": range, "float": float}
"""What a file may make of plain values, by name."""

_NUMBERS = (
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bool_"),
)
_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
}
_SPELLED = {np.dtype(np.int32): Spelling.INT32, np.dtype(np.int64): Spelling.INT64}
_MOST = 1_000_000
"""The most entries of a list that a file may ask for by ``*`` or ``range``."""


def read_script(text: str) -> list[Entry]:
    """Reads a file of Python.

    Raises:
        FileError: a line of it is not a call; the message says in which line, and what is wrong with it.
    """
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        where = f"line {error.lineno}: " if isinstance(error, SyntaxError) else ""
        raise FileError(f"{where}this is no Python: {getattr(error, 'msg', error)}") from error
    except (RecursionError, MemoryError) as error:  # the parser's own, where its stack is too small
        raise FileError("it is nested too deep") from error
    script = _Script(text)
    for statement in statements:
        try:
            script.take(statement)
        except FileError as error:
            raise FileError(f"line {statement.lineno}: {error}") from error
        except RecursionError as error:
            raise FileError(f"line {statement.lineno}: it is nested too deep") from error
    return script.entries


class _Script:
    """The calls of a file so far, and what its names stand for.

    Args:
        text: the file.
    """

    def __init__(self, text: str) -> None:
        self.entries: list[Entry] = []
        self._text = text
        self._names: dict[str, Any] = {}
        self._rows = Rows()
        self._statement: ast.stmt = ast.Pass()

    def take(self, statement: ast.stmt) -> None:
        """Reads one statement."""
        self._statement = statement
        match statement:
            case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant(str())):
                return  # for whoever runs the file as Python, or reads it
            case ast.Expr(value):
                self._call(value)
            case ast.Assign([ast.Name(name)], value):
                self._names[name] = self._call(value, may_be_value=True)
            case ast.Assign([ast.Tuple(targets)], value) if all(isinstance(each, ast.Name) for each in targets):
                given = self._call(value)
                for place, target in enumerate(targets):
                    self._names[ast.unparse(target)] = given.to(place)
            case ast.Assign([ast.Attribute(owner, attribute)], value):
                self._add(self._ref(owner), attribute, {"value": self._value(value)}, None)
            case _:
                said = (ast.get_source_segment(self._text, statement) or "").split("\n")[0]
                raise FileError(
                    f"{said!r} is no call: name = Class(...), result = name.method(...), name.attribute = ..."
                )

    # -- Calls -----------------------------------------------------------------------------------------------

    def _call(self, node: ast.expr, may_be_value: bool = False) -> Any:
        """Reads what is called; returns the name of its result, or the value where it is one."""
        match node:
            case ast.Call(ast.Name("Request"), given, named):
                prompt = _prompt(*self._arguments(given, named))
                return self._add(None, "Request", {"prompt": prompt}, node)
            case ast.Call(ast.Name(name), given, named) if name in BUILDS or name in FUNCTIONS:
                row = BUILDS.get(name) or FUNCTIONS[name]
                return self._add(None, name, arguments_of(row, *self._arguments(given, named)), node)
            case ast.Call(ast.Attribute(owner, method), given, named) if not self._is_value(node):
                target = self._ref(owner)
                row = self._rows.row_of(Call(target, method), ast.unparse(owner))
                return self._add(target, method, arguments_of(row, *self._arguments(given, named)), node)
            case ast.Attribute(owner, attribute) if self._is_read(owner, attribute):
                return self._add(self._ref(owner), attribute, {}, node)
            case _ if may_be_value:
                return self._value(node)
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ast.unparse(node)
        raise FileError(f"{called} is no class, function or method of the interface, and no name that was given before")

    def _is_read(self, owner: ast.expr, attribute: str) -> bool:
        """Whether an attribute is one that a row of its own is about, and no mere part of something."""
        row = self._rows.table_of(self._ref(owner)).by_name.get(attribute)
        return row is not None and row.form == "get"

    @staticmethod
    def _is_value(node: ast.Call) -> bool:
        return isinstance(node.func, ast.Attribute) and ast.unparse(node.func).startswith("np.")

    def _add(self, target: Ref | None, method: str, arguments: dict[str, Any], node: ast.expr | None) -> Ref:
        """Adds a call: the statement's own, or one that stands among the arguments of another."""
        call = Call(target, method, arguments, len(self.entries) + 1)
        row = self._rows.row_of(call)
        if (row.form == "set") != (node is None):
            raise FileError(f"{method} {'is set by =' if row.form == 'set' else 'cannot be set'}")
        statement = self._statement
        is_whole = node is None or getattr(statement, "value", None) is node
        said = ast.get_source_segment(self._text, statement if is_whole or node is None else node) or ""
        self.entries.append(Entry(f"line {statement.lineno}", " ".join(said.split()), call))
        return Ref(call.number)

    def _arguments(self, given: Sequence[ast.expr], named: Sequence[ast.keyword]) -> tuple[list[Any], dict[str, Any]]:
        if any(isinstance(value, ast.Starred) for value in given) or any(word.arg is None for word in named):
            raise FileError("arguments must be written one by one, without *")
        return [self._value(value) for value in given], {str(word.arg): self._value(word.value) for word in named}

    # -- Values ----------------------------------------------------------------------------------------------

    def _ref(self, node: ast.expr) -> Ref:
        """What a call is made on."""
        found = self._value(node)
        if not isinstance(found, Ref):
            raise FileError(f"{ast.unparse(node)} is {found!r:.60}, on which nothing can be called")
        return found

    def _value(self, node: ast.expr) -> Any:
        """A value: of literals, names, and what was made before."""
        match node:
            case ast.Constant(value):
                return value
            case ast.Name(name):
                return self._named(name)
            case ast.List(entries):
                return [self._value(entry) for entry in entries]
            case ast.Tuple(entries):
                return tuple(self._value(entry) for entry in entries)
            case ast.Dict(keys, values) if all(key is not None for key in keys):
                return {self._value(key): self._value(value) for key, value in zip(keys, values, strict=True) if key}
            case ast.UnaryOp(ast.USub(), operand):
                return self._made(node, operator.neg, self._value(operand))
            case ast.BinOp(left, kind, right) if type(kind) in _OPERATORS:
                return self._computed(node, _OPERATORS[type(kind)], self._value(left), self._value(right))
            case ast.Subscript(owner, index):
                return self._entry(node, self._value(owner), index)
            case ast.Attribute(owner, attribute) if ast.unparse(owner) == "EngineRequestStatus":
                return self._made(node, lambda name: declarations.EngineRequestStatus[name], attribute)
            case ast.Attribute(ast.Name("np"), name) if name in _NUMBERS:
                return np.dtype(getattr(np, name))
            case ast.Attribute(owner, attribute):
                return self._call(node) if self._is_read(owner, attribute) else self._ref(owner).to(f".{attribute}")
            case ast.Call(ast.Name("Request"), given, named):
                return _prompt(*self._arguments(given, named))
            case ast.Call(ast.Name("iter"), [ast.List(entries)], []):
                return Spelled(Spelling.ITERATOR, tuple(map(self._value, entries)))
            case ast.Call(ast.Name(name), given, named) if name in _VALUES:
                values, options = self._arguments(given, named)
                return self._made(node, _VALUES[name], *values, **options)
            case ast.Call(ast.Attribute(ast.Name("np"), name), given, named):
                values, options = self._arguments(given, named)
                return self._numpy(node, name, values, options)
            case ast.Call(ast.Attribute()) | ast.Call(ast.Name()):
                return self._call(node)
        raise FileError(
            f"{ast.unparse(node)} is no value: numbers, texts, lists, names given before, results and parts"
        )

    def _named(self, name: str) -> Any:
        if name in self._names:
            return self._names[name]
        if name in FUNCTIONS or name in BUILDS or name == "sha256":
            return Ref(name)
        raise FileError(f"{name} is a name that was not given before")

    def _entry(self, node: ast.expr, owner: Any, index: ast.expr) -> Any:
        if isinstance(index, ast.Slice) and isinstance(owner, Ref):
            end = None if index.upper is None else self._value(index.upper)
            if index.lower is None and index.step is None and type(end) is int and end >= 0:
                return owner.to(f":{end}")
            raise FileError(f"{ast.unparse(node)}: of a result the first entries can be taken, as in r[:2]")
        place = self._value(index)
        if isinstance(owner, Ref):
            if type(place) is not int:
                raise FileError(f"{ast.unparse(node)}: {place!r:.60} must be a place, an int")
            return owner.to(place)
        return self._made(node, operator.getitem, owner, place)

    def _numpy(self, node: ast.expr, name: str, values: list[Any], options: dict[str, Any]) -> Any:
        """A number or an array of numpy; one of integers in a row is a list in another type."""
        if name in _NUMBERS:
            return self._made(node, getattr(np, name), *values)
        if name not in ("array", "asarray", "zeros", "ones", "full", "arange", "eye"):
            raise FileError(f"np.{name} is not known here; there are array, zeros, ones, full, arange, eye and dtypes")
        if name in ("zeros", "ones", "full", "arange", "eye") and _entries_of(values) > _MOST:
            raise FileError(f"{ast.unparse(node)} has more than {_MOST} entries")
        made = self._made(node, getattr(np, name), *values, **options)
        if made.ndim == 1 and made.dtype in _SPELLED:
            return Spelled(_SPELLED[made.dtype], tuple(made.tolist()))
        return made

    def _computed(self, node: ast.expr, act: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        if act is operator.sub and type(left) is int and isinstance(right, Ref):
            return Minus(left, right)
        if act is operator.mul and any(isinstance(value, list | tuple | str | bytes) for value in (left, right)):
            sizes = [len(value) if hasattr(value, "__len__") else value for value in (left, right)]
            if all(isinstance(size, int) for size in sizes) and sizes[0] * sizes[1] > _MOST:
                raise FileError(f"{ast.unparse(node)} has more than {_MOST} entries")
        if act is operator.pow and not (type(right) is int and 0 <= right <= 64):
            raise FileError(f"{ast.unparse(node)}: an exponent must be an int from 0 to 64")
        return self._made(node, act, left, right)

    @staticmethod
    def _made(node: ast.expr, act: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """What comes of plain values, as Python makes it."""
        if act is range:
            made = range(*given)
            if len(made) > _MOST:
                raise FileError(f"{ast.unparse(node)} has more than {_MOST} entries")
            return list(made)
        try:
            return act(*given, **named)
        except Exception as error:
            raise FileError(f"{ast.unparse(node)}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def _entries_of(values: list[Any]) -> int:
    """About how many entries an array of a shape, or of a length, has."""
    shape = values[0] if values else 0
    sizes = [size for size in (shape if isinstance(shape, list | tuple) else [shape]) if isinstance(size, int)]
    return max(math.prod(sizes), max((abs(size) for size in values if isinstance(size, int)), default=0))


def _prompt(given: list[Any], named: dict[str, Any]) -> Prompt:
    """A request as its constructor is called: an id, its tokens, its extra keys."""
    names = ("request_id", "token_ids", "extra_keys")
    arguments = dict(zip(names, given, strict=False)) | named
    strange = [name for name in arguments if name not in names]
    if strange or len(given) > len(names):
        raise FileError(f"Request has no argument {strange[0] if strange else given[3]!r}; it has {', '.join(names)}")
    if not isinstance(arguments.get("request_id"), str):
        raise FileError(f"Request: request_id={arguments.get('request_id')!r} must be a text")
    tokens, how = arguments.get("token_ids", []), Spelling.INT32
    if isinstance(tokens, Spelled):
        how = tokens.how
        tokens = tokens.values
    if not isinstance(tokens, list | tuple) or any(type(token) is not int for token in tokens):
        raise FileError(f"Request: token_ids={tokens!r:.60} must be a list of ints")
    return Prompt(tuple(tokens), tuple(arguments.get("extra_keys", ())), how, arguments["request_id"])
