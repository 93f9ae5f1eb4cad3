"""Device programs: what runs on the accelerator, apart from the bookkeeping on the host that feeds it.

Nothing here knows of requests or pages: arrays in, arrays out. `table_update` holds the programs with which
a page table's device copy is made and changed; `layout` and `storage` say where numbers stand in a cache's pages
and what they mean, `options` and `masks` what a query reads.
"""

from .layout import CacheLayout, layout_of, pack_rows, unpack_keys, unpack_values
from .options import AttentionOptions
from .storage import ScaledPages, storage_dtype
from .table_update import STAGING_SIZES, empty_table, staging_sizes, write_cells

__all__ = [
    "STAGING_SIZES",
    "AttentionOptions",
    "CacheLayout",
    "ScaledPages",
    "empty_table",
    "layout_of",
    "pack_rows",
    "staging_sizes",
    "storage_dtype",
    "unpack_keys",
    "unpack_values",
    "write_cells",
]
