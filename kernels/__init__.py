"""Device programs: what runs on the accelerator, apart from the bookkeeping on the host that feeds it.

Nothing here knows of requests or pages: arrays in, arrays out. `table_update` holds the programs with which
a page table's device copy is made and changed. `cache_update`, `attention`, `mla`, `page_copy`, `page_export` and
`states` hold the functions over a cache's pages; they check their arguments, and what is lowered for a platform with
kernels of its own (`tpu`, and `gpu` for Hopper) gets these, anything else the plain JAX of `xla`: `dispatch` has the
one operation that waits for its platform, `choices` and `explanation` say which kernel runs, or why none. `layout` and
`storage` say where numbers stand in pages and what they mean, `options` and `masks` what a query reads. `tune` measures
block sizes on a TPU.
"""

from .attention import fused_ragged_paged_attention, ragged_paged_attention
from .cache_update import kv_cache_update
from .choices import KernelsUnavailable, Served
from .explanation import explain
from .layout import CacheLayout, layout_of, pack_rows, unpack_keys, unpack_values
from .mla import mla_cache_update, mla_paged_attention
from .options import AttentionOptions, MlaOptions
from .page_copy import copy_pages
from .page_export import export_pages
from .states import read_states, write_states
from .storage import ScaledPages, storage_dtype
from .table_update import STAGING_SIZES, empty_table, staging_sizes, write_cells

__all__ = [
    "STAGING_SIZES",
    "AttentionOptions",
    "CacheLayout",
    "KernelsUnavailable",
    "MlaOptions",
    "ScaledPages",
    "Served",
    "copy_pages",
    "empty_table",
    "explain",
    "export_pages",
    "fused_ragged_paged_attention",
    "kv_cache_update",
    "layout_of",
    "mla_cache_update",
    "mla_paged_attention",
    "pack_rows",
    "ragged_paged_attention",
    "read_states",
    "staging_sizes",
    "storage_dtype",
    "unpack_keys",
    "unpack_values",
    "write_cells",
    "write_states",
]
