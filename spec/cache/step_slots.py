"""TAB-7: the slots that the page table has for a step's tokens."""

import numpy as np
from numpy.typing import NDArray

from ..attention.attention_batch import read_batch
from .cache_metadata import RaggedPagesCacheMetaData
from .ragged_metadata import RaggedPagesMetadata

__all__ = ["slots_by_table"]


def slots_by_table(step: RaggedPagesMetadata, num_tokens: int, metadata: RaggedPagesCacheMetaData) -> NDArray[np.int32]:
    """The slot that the page table has for each token of a step, by its position (TAB-7).

    Args:
        step: the step, of one page shard.
        num_tokens: T.
        metadata: the static description of the cache.

    Returns:
        `i32[T]`; -1 for rows that belong to no sequence, and where the table has no page.
    """
    batch = read_batch(
        step.context_lens,
        step.pages_tables,
        step.query_start_loc,
        step.num_seqs,
        num_tokens,
        metadata.num_pages,
        metadata.page_size,
        validate=False,
    )
    slots = np.full(num_tokens, -1, np.int32)
    for token, sequence, position in batch.rows():
        slots[token] = batch.slot_of(sequence, position)
    return slots
