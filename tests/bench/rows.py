"""All rows of the performance table, for the benchmarks and for the comparison."""

from .manager_rows import MANAGER_ROWS
from .pool_rows import POOL_ROWS
from .trace_row import TRACE_ROWS

__all__ = ["ROWS"]

ROWS = [*POOL_ROWS, *MANAGER_ROWS, *TRACE_ROWS]
