"""The calls that a log knows: rows of the tables of the interface."""

from ..calls.manager import MANAGER
from ..calls.method import Method
from ..calls.pool import POOL
from ..calls.table import TABLE, TABLES

__all__ = ["CALLS", "CLASSES", "PROPERTIES", "row_of"]


def _of_form(form: str) -> dict[str, dict[str, Method]]:
    return {
        table.owner: {row.name: row for row in table if row.form == form and row.logged}
        for table in (MANAGER, POOL, TABLE, TABLES)
    }


CALLS = _of_form("call")
"""The recorded methods of each class."""

PROPERTIES = _of_form("get")
"""The recorded properties of each class."""

CLASSES = {name: (tuple(built[name].arguments), built[name].by_name) for name, built in _of_form("build").items()}
"""For each class the arguments of its constructor that it must be given, and those that it may be given."""


def row_of(name: str, method: str) -> Method:
    """The row of a method or a property of a class."""
    return CALLS[name].get(method) or PROPERTIES[name][method]
