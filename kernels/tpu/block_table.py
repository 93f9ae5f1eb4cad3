"""The table of block sizes that were measured: `kvproof.kernels.tune` writes it, kernels look their shapes up in it.

It is a JSON file, the package's own or the one that the environment variable ``KVPROOF_BLOCK_TABLE`` names::

    {"decode": [{"device": "v6e", "dtype": "bfloat16", "word_rows": 16, "page_size": 64, "keys": 512}, ...],
     "prefill": [{..., "group": 4, "queries": 128, "keys": 512}, ...]}

``device`` is spelled as `pltpu.ChipVersion` does, ``dtype`` is that of the cache, ``word_rows`` are the rows of 128
words of a slot: of bfloat16 the KV heads, where head sizes are above 64 and at most 128; ``group`` are the query heads
of a KV head. Shapes that it lacks are sized by rules, `block_sizes` and `prefill_geometry`. The rows that come with the
package were chosen by bundles of the compiler's schedules, as no TPU was at hand; the tuner replaces them by times.
"""

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["VARIABLE", "add_row", "measured_keys", "measured_queries_and_keys", "table_path"]

VARIABLE = "KVPROOF_BLOCK_TABLE"
"""The environment variable that names another file than the package's own."""

_SHAPE = ("device", "dtype", "word_rows", "page_size")
_FIELDS = {"decode": (_SHAPE, ("keys",)), "prefill": ((*_SHAPE, "group"), ("queries", "keys"))}
"""For each kind of kernel the fields of a row that say for what it is, and the sizes that it gives."""

_Rows = dict[tuple[Any, ...], tuple[int, ...]]


def table_path() -> Path:
    """The file that is read. O(1)."""
    named = os.environ.get(VARIABLE)
    return Path(named) if named else Path(__file__).with_name("measured_blocks.json")


def measured_keys(device: str, dtype: str, word_rows: int, page_size: int) -> int | None:
    """The keys of a block of the kernel that decodes, where they were measured. O(1)."""
    found = _table(table_path())["decode"].get((device, dtype, word_rows, page_size))
    return found[0] if found else None


def measured_queries_and_keys(
    device: str, dtype: str, word_rows: int, page_size: int, group: int
) -> tuple[int, int] | None:
    """The queries and keys of a block of the general kernel, where they were measured. O(1)."""
    found = _table(table_path())["prefill"].get((device, dtype, word_rows, page_size, group))
    return (found[0], found[1]) if found else None


def add_row(path: Path, kind: str, row: Mapping[str, Any]) -> None:
    """Writes a row into a file, in place of one for the same shapes; other processes read it when they start.

    Args:
        path: the file, which need not exist.
        kind: ``"decode"`` or ``"prefill"``.
        row: the row's fields.
    """
    known = json.loads(path.read_text()) if path.exists() else {}
    shape, _ = _FIELDS[kind]
    others = [old for old in known.get(kind, []) if any(old[name] != row[name] for name in shape)]
    known = {each: known.get(each, []) for each in _FIELDS} | {kind: [*others, dict(row)]}
    lines = (
        f' "{each}": [\n' + ",\n".join(f"  {json.dumps(one)}" for one in rows) + "\n ]" if rows else f' "{each}": []'
        for each, rows in known.items()
    )
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    written = path.with_name(f"{path.name}.{os.getpid()}")
    written.write_text(text)
    written.replace(path)
    _table.cache_clear()


@cache
def _table(path: Path) -> dict[str, _Rows]:
    """The rows of a file by what they are for.

    Raises:
        ValueError: if it is no such table: the message names the file, and the row.
    """
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"the table of block sizes {path} cannot be read: {error}") from None
    table: dict[str, _Rows] = {}
    for kind, (shape, sizes) in _FIELDS.items():
        table[kind] = {}
        for row in known.get(kind, []) if isinstance(known, dict) else [known]:
            if not isinstance(row, dict) or row.keys() != {*shape, *sizes} or not _sized(row, sizes):
                raise ValueError(f"the table of block sizes {path} has a row of {kind} that is none: {row}")
            table[kind][tuple(row[name] for name in shape)] = tuple(row[name] for name in sizes)
    return table


def _sized(row: Mapping[str, Any], sizes: tuple[str, ...]) -> bool:
    page_size = row["page_size"]
    whole = type(page_size) is int and page_size > 0
    return whole and all(type(row[name]) is int and row[name] > 0 for name in sizes) and row["keys"] % page_size == 0
