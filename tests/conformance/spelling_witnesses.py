"""Witnesses, as in `catalogue_witnesses`, of the seeded bugs that are about how arguments are handed over."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvproof.conformance.calls.spelling import Spelling, request_as
from kvproof.spec.declarations import Request

from .catalogue_witnesses import manager_of

__all__ = ["SPELLING_WITNESSES"]


def hit_by(names: Any, spelling: Spelling) -> int:
    """How many tokens of a prompt are hit that another request published, its tokens being spelled."""
    manager = manager_of(names)
    manager.allocate_slots(Request("a", [1, 2, 3, 4]), 4)
    return int(manager.get_computed_pages(request_as(spelling, "b", [1, 2, 3, 4, 5]))[1])


def listed_tokens_read_backwards(names: Any) -> object:
    return hit_by(names, Spelling.LIST)


def strided_tokens_read_as_contiguous(names: Any) -> object:
    return hit_by(names, Spelling.COLUMN32)


def wide_rows_read_as_narrow(names: Any) -> object:
    table = names.PageTable(3, 2, 4)
    table.append_rows_batch([[7], [8]], np.array([1, 2], np.int64))
    return table.get_cpu_tensor().tolist()


def strided_pages_read_as_contiguous(names: Any) -> object:
    table = names.PageTable(1, 2, 4)
    table.add_row(Spelling.COLUMN64.of([7, 9]), 0)
    return table.get_cpu_tensor().tolist()


def iterator_read_twice(names: Any) -> object:
    pool = names.PagePool(4, True)
    pool.free_pages(iter(pool.get_new_pages(2)))
    return pool.get_num_free_pages()


SPELLING_WITNESSES: dict[str, Callable[[Any], object]] = {
    witness.__name__: witness
    for witness in (
        listed_tokens_read_backwards,
        strided_tokens_read_as_contiguous,
        wide_rows_read_as_narrow,
        strided_pages_read_as_contiguous,
        iterator_read_twice,
    )
}
"""The witness of each seeded bug, by the bug's name."""
