"""The redundancies of the index of cached pages: runs, pages and places agree."""

from collections.abc import Iterable, Mapping, Sequence

from .runs import GONE, Run, RunTree

__all__ = ["check_index"]


def check_index(
    trees: Iterable[RunTree],
    runs: Sequence[Run],
    spare: Sequence[int],
    noted_lone: Mapping[int, bytes],
    run_cell: Sequence[int],
    depth_cell: Sequence[int],
    places: Iterable[tuple[Run, int, list[int]]],
) -> None:
    """Verifies that runs, pages and places agree; O(pages and tokens).

    Args:
        trees: the trees.
        runs: the runs by their numbers.
        spare: the numbers that no run has.
        noted_lone: the key of each lone page.
        run_cell: the number of each page's run.
        depth_cell: the position of each cached page in a request.
        places: run, place in it and pages of every cached content.

    Raises:
        AssertionError: they don't; the message shows the tree.
    """
    seen: dict[int, tuple[int, int]] = {}
    numbers: list[int] = []
    lone: dict[int, bytes] = {}
    for tree in trees:
        waiting = [tree.root]
        while waiting:
            run = waiting.pop()
            run.check()
            numbers.append(run.number)
            assert runs[run.number] is run, f"POOL-7: number of {run}"
            for place, key, child in run.branches():
                if isinstance(child, Run):
                    waiting.append(child)
                    continue
                assert child not in seen, f"POOL-8: page {child} stands twice"
                lone[child] = key
                seen[child] = (run.number, place)
    noted = sorted(noted_lone)
    assert lone == noted_lone, f"POOL-7: lone pages {sorted(lone)}, noted {noted}, or their keys differ"
    for run, place, pages in places:
        for page in pages:
            if page not in lone:
                assert page not in seen, f"POOL-8: page {page} stands twice"
                seen[page] = (run.number, run.start + place)
    assert len(runs) == 1 + len(numbers) + len(spare), f"runs {len(runs)}, spare {spare}"
    assert all(runs[number] is GONE for number in spare), f"a spare number in use: {spare}"
    for page in range(len(run_cell)):
        number = run_cell[page]
        expected = (number, depth_cell[page]) if number else None
        assert seen.get(page) == expected, f"POOL-7: page {page} stands at {seen.get(page)}, noted {expected}"
