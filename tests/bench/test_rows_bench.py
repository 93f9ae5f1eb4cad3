"""The rows of the performance table, on kvproof and on the peers that are installed."""

from typing import Any

import pytest

from .implementation import Implementation
from .manager_rows import bare_digests
from .rows import ROWS
from .samples import Row, Sample


def _run(benchmark: Any, sample: Sample) -> None:
    told: list[Any] = []
    benchmark.extra_info["per round"] = sample.per
    benchmark.pedantic(
        lambda: told.append(sample.run()),
        setup=sample.setup,
        rounds=min(sample.rounds, 60),
    )
    if isinstance(told[-1], int | float):
        benchmark.extra_info["library microseconds"] = [value / 1e3 / sample.per for value in told]


@pytest.mark.parametrize("row", ROWS, ids=[f"row_{row.name}" for row in ROWS])
def test(benchmark: Any, row: Row, implementation: Implementation) -> None:
    reason = row.why_not(implementation)
    if reason is not None:
        pytest.skip(reason)
    benchmark.group = f"{row.name}: {row.text}"
    _run(benchmark, row.make(implementation))


@pytest.mark.parametrize("page_size", [16, 64])
def test_row_d_bare_digests(benchmark: Any, page_size: int) -> None:
    benchmark.group = f"d_{page_size}: keys of 32,768 tokens, pages of {page_size}"
    _run(benchmark, bare_digests(page_size))
