"""EasyDeL's own scheduler and sequence buffer, unmodified, with our manager and our tables in place of theirs.

By hand, and not in CI: it needs ``pip install easydel==0.3.0 pillow``, then kvproof. Then::

    python -m tests.demonstrations.easydel_swap      # half a minute

What is put in their place, and how, stands in `easydel_glue`. The workload is that of `easydel_scheduler`. Every call
that the scheduler makes on the manager, and the runner on the tables, is made on the specification, too, and the first
difference ends the run (`Lockstep`). After every step the rows of the tables are held to the manager's lists, and the
device's rows to the host's (TAB-4). Then the same is served by EasyDeL with its own, and the steps are compared.
"""

import argparse
import random
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvproof import fast
from kvproof.conformance import Lockstep

from .easydel_scheduler import GROUPS, MAX_LENGTH, MOST_RUNNING, MOST_TOKENS, PAGE_SIZE, make_scheduler, serve


def main() -> None:
    """Serves the workload with EasyDeL's own and with ours, and says what differs."""
    parser = argparse.ArgumentParser(description="Runs EasyDeL's scheduler with our manager and tables.")
    parser.add_argument("--requests", type=int, default=40, help="how many requests come")
    parser.add_argument("--seed", type=int, default=0, help="of the workload")
    options = parser.parse_args()
    ways = [(kinds, ahead) for kinds in GROUPS for ahead in (0, 1)]
    own = [_served(*way, options.requests, options.seed) for way in ways]

    from .easydel_glue import Manager, swap

    Manager.names = Lockstep(fast)
    swap()
    for way, (steps_of_own, _) in zip(ways, own, strict=True):
        steps, (number, preempted, hits) = _served(*way, options.requests, options.seed)
        said = "as with its own" if steps == steps_of_own else "not as with its own"
        (kinds, ahead) = way
        print(f"{kinds}, {ahead} steps ahead: {number} steps, {said}; {preempted} preemptions, {hits} tokens hit")
    print("Every call did as the specification does.")


def _served(kinds: str, ahead: int, count: int, seed: int) -> tuple[list[Any], tuple[int, int, int]]:
    """Serves the workload; each step's tokens and pages, and what `serve` counts."""
    scheduler = make_scheduler(kinds, bool(ahead))
    runner = _runner(len(GROUPS[kinds]))
    steps = []

    def follow(step: Any) -> None:
        steps.append((step.num_scheduled_tokens, [list(new.page_ids) for new in step.scheduled_new_reqs]))
        runner._update_states(step)
        _hold_tables(runner.sequence_buffer, scheduler.kv_cache_manager)

    return steps, serve(scheduler, count, random.Random(seed), follow, ahead)


def _runner(num_groups: int) -> Any:
    """EasyDeL's model runner as far as it keeps its sequence buffer by a scheduler's steps: without a model."""
    from easydel.inference.esurge.runners import sequence_buffer  # type: ignore[import-not-found]
    from easydel.inference.esurge.runners.model_runner import eSurgeRunner  # type: ignore[import-not-found]

    runner = object.__new__(eSurgeRunner)
    runner.metadata = SimpleNamespace(data_parallel_size=1)
    runner.requests = {}
    runner.executor_manager = SimpleNamespace(clear_recurrent_slots=list)
    runner.sequence_buffer = sequence_buffer.SequenceBuffer(
        MOST_RUNNING, MAX_LENGTH, MOST_TOKENS, vocab_size=1000, page_sizes=[PAGE_SIZE] * num_groups
    )
    return runner


def _hold_tables(buffer: Any, manager: Any) -> None:
    """Each row names the pages of its request's lists; where those have none any more it may name what was there."""
    tables = buffer.page_table
    tables.commit(buffer.num_slots)
    for request_id, row in buffer.req_id_to_index.items():
        for table, pages in zip(tables.page_tables, manager.get_page_ids(request_id), strict=True):
            named = table.get_cpu_tensor()[row]
            assert all(page in (0, own) for page, own in zip(pages, named.tolist(), strict=False)), (request_id, pages)
            assert not named[len(pages) :].any(), (request_id, named)
    for table in tables.page_tables:
        rows = slice(buffer.num_slots)
        assert np.array_equal(table.get_device_tensor()[rows], table.get_cpu_tensor()[rows])


if __name__ == "__main__":
    main()
