"""Device programs: what runs on the accelerator, apart from the bookkeeping on the host that feeds it.

Nothing here knows of requests or pages: arrays in, arrays out. `table_update` holds the programs with which
a page table's device copy is made and changed.
"""

from .table_update import STAGING_SIZES, empty_table, staging_sizes, write_cells

__all__ = ["STAGING_SIZES", "empty_table", "staging_sizes", "write_cells"]
