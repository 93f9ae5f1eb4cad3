"""R1: the checks of a step's arrays that ``validate=True`` makes before a view's program runs."""

from collections.abc import Callable
from typing import Any

import jax

from kvproof.kernels.dynamic_checks import check_batch, check_slots, written_slots

from .cache_metadata import RaggedPagesCacheMetaData
from .cache_programs import AnyArray
from .ragged_metadata import RaggedPagesMetadata

__all__ = ["validate_step"]


def validate_step(
    call: Callable[[], Any],
    step: RaggedPagesMetadata,
    metadata: RaggedPagesCacheMetaData,
    queries: AnyArray,
    *,
    writes: bool,
) -> None:
    """Checks the arrays of a step, data shard by data shard (R1). O(their size), on the host.

    Args:
        call: the program that is to run: it is traced first, so that shapes and dtypes are known to be right.
        step: the step.
        metadata: the cache's.
        queries: `[T, Hq, D]`.
        writes: True if the program writes the tokens as well.

    Raises:
        TypeError: an argument that the program refuses.
        ValueError: the same; lengths that don't agree, a slot written twice, or arrays that are traced.
        IndexError: the table names a page that does not exist.
    """
    jax.eval_shape(call)
    shards, page_size = metadata.num_page_shards, metadata.page_size
    for number in range(shards):
        own = step.shard(number, shards)
        batch = own.context_lens, own.pages_tables, own.query_start_loc, own.num_seqs
        check_batch(*batch, queries.shape[0] // shards, metadata.num_pages, page_size)
        if writes:
            slots = written_slots(*batch, page_size)
            check_slots(slots, metadata.num_pages * page_size, "the slots written through pages_tables")
