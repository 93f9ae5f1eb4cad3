"""The tables of a page table of one group, and of several groups."""

from collections.abc import Mapping
from typing import Any

from .kinds import NONE, PLAIN
from .method import Kind, Method, Table

__all__ = ["TABLE", "TABLES"]

_ARRAY = Kind("array")
_ROWS = ("host rows", "pages in a row")


def _plain(names: str) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), PLAIN)


def _changes(name: str, arguments: Mapping[str, Kind], clause: str, **more: Any) -> Method:
    return Method(name, arguments, NONE, clause, dict.fromkeys(_ROWS, clause), **more)


def _reads(name: str, arguments: Mapping[str, Kind], clause: str, **more: Any) -> Method:
    return Method(name, arguments, _ARRAY, clause, reads=True, **more)


_ROW = _plain("page_ids row_idx")
_TWO_ROWS = _plain("src tgt")
_SHOWN = "made or read with every state"
_STEP = "what several tables share in one batched step; no engine calls it"

_BOTH = (
    _changes("append_row", _ROW, "TAB-2"),
    _changes("add_row", _ROW, "TAB-2"),
    _changes("clear_row", _plain("row_idx"), "TAB-2", optional=True),
    _changes("move_row", _TWO_ROWS, "TAB-3"),
    _changes("swap_row", _TWO_ROWS, "TAB-3"),
    _changes("clear", {}, "TAB-6"),
    _changes("commit", _plain("num_reqs"), "TAB-4"),
)

TABLE = Table(
    "table",
    "PageTable",
    (
        Method(
            *("PageTable", _plain("max_num_reqs max_num_pages_per_req max_num_batched_tokens"), NONE, "R1"),
            form="build",
        ),
        *_BOTH,
        _changes("append_rows_batch", _plain("page_ids req_indices"), "TAB-2", optional=True),
        _reads("slot_mapping", _plain("req_indices positions page_size"), "TAB-7", optional=True),
        _reads("update_slices", _plain("req_indices starts lengths page_size"), "TAB-7", optional=True),
    ),
    dict.fromkeys(
        ("get_cpu_tensor", "get_device_tensor", "num_pages_per_row", "page_table", "page_table_cpu", "check"), _SHOWN
    )
    | dict.fromkeys(("read_row", "read_batch"), _STEP),
)

TABLES = Table(
    "tables",
    "MultiGroupPageTable",
    (
        Method(
            *(
                "MultiGroupPageTable",
                _plain("max_num_reqs max_model_len max_num_batched_tokens page_sizes"),
                NONE,
                "R1",
            ),
            form="build",
        ),
        *_BOTH,
        _changes("append_rows_batch", _plain("page_ids_per_req req_indices"), "TAB-2", optional=True),
    ),
    {"check": _SHOWN, "require_groups": "what a manager and a step ask of the tables they are handed"},
)
