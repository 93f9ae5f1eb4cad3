"""Which rows of the tables the calls of a file are: by what each is called on."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ..calls.datum import Call, Ref
from ..calls.interfaces import INTERFACES
from ..calls.kinds import NONE, PLAIN
from ..calls.method import Method, Table
from ..calls.pool import POOL
from ..calls.queue import PAGE, QUEUE
from ..calls.request import REQUEST
from ..calls.table import TABLE

__all__ = ["BUILDS", "FUNCTIONS", "TABLES_BY_OWNER", "FileError", "Rows", "made_by"]


class FileError(Exception):
    """A file that says no sequence of calls; the message is one line and says where."""


def _own(name: str, arguments: tuple[str, ...] = (), form: str = "call") -> Method:
    return Method(name, dict.fromkeys(arguments, PLAIN), NONE, "R1", form=form, logged=False)


TABLES_BY_OWNER: Mapping[str, Table] = {table.owner: table for table in (*INTERFACES, REQUEST) if table.owner}

_KEYS = ("hash_seed", "hash_function")
"""Options of all that has keys; a log does not keep them, so that the rows don't name them."""

BUILDS: Mapping[str, Method] = {
    **{owner: table[owner] for owner, table in TABLES_BY_OWNER.items() if owner in table.by_name},
    PAGE.owner: _own(PAGE.owner, ("page_id",), "build"),
    QUEUE.owner: _own(QUEUE.owner, ("pages",), "build"),
}
"""How each class is constructed."""

FUNCTIONS: Mapping[str, Method] = {row.name: row for table in INTERFACES if not table.owner for row in table}
"""The functions of the interface."""

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

    def root_of(self, target: Ref) -> int | str | None:
        """The object that was constructed of which something is a part; None for a result of a call."""
        return target.of if target.of in self._tables else None


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
