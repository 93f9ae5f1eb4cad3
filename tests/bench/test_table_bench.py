"""Row g: 256 rows of a 256 x 2048 table get one page each, then the device follows."""

from typing import Any

import numpy as np
import pytest

from kvproof.fast.page_table import PageTable

ROWS, WIDTH, FILLED = 256, 2048, 1024
FORMS: dict[str, tuple[Any, Any]] = {
    "arrays": (np.arange(1, ROWS + 1).reshape(ROWS, 1), np.arange(ROWS)),
    "nested_lists": ([[page_id] for page_id in range(1, ROWS + 1)], list(range(ROWS))),
}


@pytest.mark.parametrize("commit", [False, True], ids=["host", "host_and_commit"])
@pytest.mark.parametrize("form", FORMS)
def test_append_one_page_to_every_row(benchmark: Any, form: str, commit: bool) -> None:
    """TAB-2, TAB-5: the step of a decode in which every row crosses a page boundary."""
    page_ids, rows = FORMS[form]
    table = PageTable(ROWS, WIDTH, 8192)

    def refill() -> None:
        if table.num_pages_per_row.max() < FILLED or table.num_pages_per_row.max() == WIDTH:
            table.clear()
            table.append_rows_batch(np.ones((ROWS, FILLED), np.int32), rows)
            table.commit(ROWS)
        table.page_table.block_until_ready()

    def step() -> None:
        table.append_rows_batch(page_ids, rows)
        if commit:
            table.commit(ROWS)
            table.page_table.block_until_ready()

    benchmark.pedantic(step, setup=refill, rounds=500, warmup_rounds=20)
    table.check()
