"""What the tests of the cache classes share: outcomes of calls, and caches and steps of both packages."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof import spec
from kvproof.fast.cache.ragged_metadata import RaggedPagesMetadata
from kvproof.fast.table.page_table import PageTable
from kvproof.spec.clauses import clause_of_message

__all__ = ["ARRAYS", "PAGE", "Steps", "numbers", "outcome", "plain_step", "refused", "tables"]

PAGE = 4
ARRAYS = (
    "pages_tables",
    "context_lens",
    "query_start_loc",
    "num_seqs",
    "slot_mapping",
    "position_ids",
    "request_distribution",
    "num_kv_update_slices",
)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the class and the clause by which it was refused."""
    try:
        return call()
    except (TypeError, IndexError, ValueError) as error:
        return type(error), clause_of_message(str(error))


def refused(result: Any) -> bool:
    """Whether an outcome is a refusal."""
    return isinstance(result, tuple) and len(result) == 2 and result[0] in (TypeError, IndexError, ValueError)


def plain_step(step: Any) -> Any:
    """The metadata of a step as lists, of either package."""
    if refused(step):
        return step
    arrays = {name: getattr(step, name) for name in ARRAYS}
    told = {
        name: None if array is None else (array.dtype, np.asarray(array).tolist()) for name, array in arrays.items()
    }
    return told, step.version, step.num_slices_per_kv_cache_update_page, step.page_size, step.prefill_chunk_size


def tables(rows: int, width: int, tokens: int, pages: Sequence[Sequence[int]]) -> tuple[PageTable, spec.PageTable]:
    """The same page table of both packages."""
    both = PageTable(rows, width, tokens), spec.PageTable(rows, width, tokens)
    for table in both:
        table.append_rows_batch([list(row) for row in pages], list(range(len(pages))))
    return both


def numbers(array: Any) -> NDArray[np.uint8]:
    """An array's bytes, to compare arrays bit for bit, NaN and -0 too."""
    values = np.ascontiguousarray(np.asarray(array))
    return values.view(np.uint8).reshape(values.shape[0], -1)


class Steps(NamedTuple):
    """One step as both packages have it."""

    fast: RaggedPagesMetadata
    spec: spec.RaggedPagesMetadata

    @classmethod
    def of(cls, step: RaggedPagesMetadata) -> "Steps":
        """The specification's copy of a step."""
        return cls(step, spec.RaggedPagesMetadata.from_dict(step.to_dict()))
