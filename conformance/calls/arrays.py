"""The tables of a cache, of a layer's view of it, of the functions on arrays, and of a scheduler.

Their machines draw whole batches of arrays and judge them by tolerances: a row here says what there is and which clause
it is about, and its values are not drawn by kinds yet.
"""

from typing import Any

from .kinds import NONE, PLAIN, number
from .method import Kind, Method, Table
from .values import NO_INTS

__all__ = ["ATTENTION", "CACHE", "SCHEDULER", "VIEW"]

_ARRAY, _DOCUMENT = Kind("array"), Kind("document")


def _row(name: str, arguments: str, clause: str, result: Kind = _ARRAY, **more: Any) -> Method:
    """A method; a trailing ``*`` parts the arguments by position from those by name."""
    by_place, _, by_name = arguments.partition("*")
    return Method(
        name,
        dict.fromkeys(by_place.split(), PLAIN),
        result,
        clause,
        by_name=tuple(by_name.split()),
        logged=False,
        **more,
    )


_DOCUMENTS = dict.fromkeys(
    ("to_dict", "from_dict", "to_json", "from_json", "replace"),
    "documents and copies of a dataclass; held by the sizing and document machines",
)
_VIEW = "metadata layer_index kv_pages partition_manager mesh"
_READ = (
    "* scale causal window chunk soft_cap sinks q_scale k_scale v_scale num_kv_heads v_head_dim kv_dtype version "
    "decode_block prefill_block validate"
)

CACHE = Table(
    "cache",
    "RaggedPagesCache",
    (
        _row("RaggedPagesCache", "views", "CACHE-1", NONE, form="build"),
        _row("init_cache", "mesh metadata partition_manager quantizer", "CACHE-1"),
        _row("copy_pages", "sources destinations num_slots", "CACHE-3"),
        _row("export_pages", "page_ids num_slots", "SWAP-2"),
        _row("import_pages", "page_ids block", "SWAP-2"),
    ),
    _DOCUMENTS | {"init_empty": "the seeds' name for what is refused", "metadata": "how it was made"},
)

VIEW = Table(
    "view",
    "RaggedPagesCacheView",
    (
        _row("RaggedPagesCacheView", _VIEW, "CACHE-1", NONE, form="build"),
        _row("init", "mesh metadata layer_index partition_manager quantizer", "CACHE-1"),
        _row("concatenate_to_cache", "key value cache_metadata * k_scale v_scale", "CACHE-2"),
        _row("attend", "queries cache_metadata * sinks validate", "ATT-1"),
        _row("update_and_attend", "queries key value cache_metadata * sinks validate", "ATT-5"),
        _row("flattened_kv_pages", "", "CACHE-2"),
    ),
    _DOCUMENTS | dict.fromkeys(("key_pages", "value_pages", "mesh"), "read with every state"),
)

ATTENTION = Table(
    "attention",
    "",
    (
        _row("ragged_paged_attention", f"queries kv_pages kv_lens page_table cu_q_lens num_seqs {_READ}", "ATT-1"),
        _row(
            "fused_ragged_paged_attention",
            f"queries keys values kv_pages kv_lens page_table cu_q_lens num_seqs {_READ}",
            "ATT-5",
        ),
        _row(
            "mla_paged_attention",
            "queries rotary_queries latent_pages kv_lens page_table cu_q_lens num_seqs"
            " * scale causal window soft_cap kv_dtype validate",
            "ATT-1",
        ),
        _row("size_pool", "budget_bytes group_page_bytes", "CACHE-1"),
        _row("export_prefix", "manager request caches model", "SWAP-2", _DOCUMENT),
        _row("import_prefix", "manager request caches model exported", "SWAP-2"),
        Method(
            *("cdiv", {"a": number(0, 7, NO_INTS), "b": number(1, 3, (0, -1, *NO_INTS))}, PLAIN, "R1"),
            optional=True,
            weight=1,
            spoils=1,
            logged=False,
        ),
        _row("events_to_json", "events", "MAN-12", _DOCUMENT),
        _row("events_from_json", "json_str", "SEC-3"),
        _row("events_to_msgpack", "events kv_cache_groups * timestamp rank medium publisher", "MAN-12", _DOCUMENT),
        _row("events_from_msgpack", "message", "SEC-3"),
    ),
    {
        "get_kv_cache_coordinator": "the seeds' name for a part of the manager",
        "per_device_hbm_budget_bytes": "asks the devices",
        "sha256": "a hash function that is handed over",
    }
    | dict.fromkeys(("align_to_multiple", "previous_power_of_2", "get_dtype_packing"), "arithmetic, held by doctests")
    | dict.fromkeys(("get_num_slices_per_kv_cache_update_page", "get_page_size_bytes"), "arithmetic of sizes"),
)

SCHEDULER = Table(
    "engine",
    "Scheduler",
    (
        _row("Scheduler", "*", "ENG-1", NONE, form="build"),
        _row("add", "served", "ENG-1", NONE),
        _row("require_room", "served", "ENG-2", NONE),
        _row("remove", "served", "ENG-1", NONE),
        _row("schedule", "", "ENG-2"),
        _row("note_computed", "plan", "ENG-1", NONE),
        _row("victim", "served", "ENG-2"),
    ),
)
