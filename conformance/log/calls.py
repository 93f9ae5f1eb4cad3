"""The calls that a log knows, as the tables of the interface have them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..calls.manager import MANAGER
from ..calls.method import Method
from ..calls.pool import POOL
from ..calls.table import TABLE, TABLES

__all__ = ["CALLS", "CLASSES", "PROPERTIES", "LoggedCall"]


@dataclass(frozen=True)
class LoggedCall:
    """A row of a table as a log reads it.

    Attributes:
        row: the row.
    """

    row: Method

    @cached_property
    def arguments(self) -> Mapping[str, str]:
        """How each argument is written, by its name, in order; see `recorded_calls.spellings`."""
        return {name: kind.log for name, kind in self.row.arguments.items()}

    @property
    def result(self) -> str:
        """How the result is written; see `values.result`."""
        return self.row.result.log

    @property
    def clause(self) -> str:
        """The label that a wrong result is charged to."""
        return self.row.clause

    @property
    def reads(self) -> bool:
        """Whether it only reads."""
        return self.row.reads

    @property
    def charge(self) -> Mapping[str, str]:
        """See `Method.charges_by_field`."""
        return self.row.charges_by_field


def _of_form(form: str) -> dict[str, dict[str, LoggedCall]]:
    return {
        table.owner: {row.name: LoggedCall(row) for row in table if row.form == form and row.logged}
        for table in (MANAGER, POOL, TABLE, TABLES)
    }


CALLS = _of_form("call")
"""The recorded methods of each class."""

PROPERTIES = _of_form("get")
"""The recorded properties of each class."""

CLASSES = {name: (tuple(built[name].arguments), built[name].row.by_name) for name, built in _of_form("build").items()}
"""For each class the arguments of its constructor that it must be given, and those that it may be given."""
