"""What the rows of the performance table cost, counted: it fails when a call gets dearer, on any machine, at any load.

`BOUNDS` is the one place for the numbers: what was counted with CPython 3.11, to which `SLACK` is added. A change that
makes a row cheaper lowers its entry, here and in `fast/README.md`; ``python -m tests.fast.test_call_counts`` prints
both tables anew. Beside it stands what must not grow at all: with the pool, with requests that do nothing, with
contexts.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from kvproof import fast
from kvproof.fast.groups.page_lists import PageLists

from ..strategies import PlainRequest
from .counting import calls_of, instructions_of

DESIGN = Path(__file__).parents[2] / "fast" / "README.md"

PAGE_SIZE = 16
SLACK = 1.1

BOUNDS = {
    "a: take one page, free it": (10, 217),
    "a2: take one page, evicting": (10, 209),
    "b: take 1,000 pages, free them": (39, 518),
    "b2: take 1,000 pages, evicting": (46, 958),
    "c: step of 256 requests, 16 fill a page, 16 take one": (213, 6028),
    "c: step of 1,024 requests, 64 fill a page, 64 take one": (348, 7083),
    "c: step of 256 requests, all of them amid a page": (21, 394),
    "c: step of 256 requests that list their tokens, 16 fill a page, 16 take one": (325, 7228),
    "single decode call, amid a page": (2, 172),
    "single decode call, a page filled": (38, 897),
    "single decode call, a page taken": (30, 712),
    "e: look up 2,048 pages": (24, 463),
    "e: look up 2,048 pages, the tokens in a list": (36, 559),
    "e2: look up, admit, free 2,048 pages": (123, 2461),
    "f: look up, admit, free 128 pages, 32 of them new": (188, 3925),
    "g: 256 rows get a page each, arrays": (35, 404),
    "g: 256 rows get a page each, nested lists": (45, 497),
    "g: commit these 256 cells": (14, 285),
}
"""Calls and instructions of each row."""

PER_PAGE = (4, 87)
"""What a page that a batched step fills and one that it takes cost together."""

PER_SAMPLE = (1, 32)
"""What a page costs that counters follow: its age goes into a histogram."""


class Scene(NamedTuple):
    """Something that can be done time and again, each time alike.

    Attributes:
        act: what is counted.
        ready: what comes before it each time.
    """

    act: Callable[[], object]
    ready: Callable[[], object] = lambda: None

    def counts(self) -> tuple[int, int]:
        """Its calls and its instructions, once what is worked out only once has been."""
        self.ready()
        self.act()
        self.ready()
        calls = calls_of(self.act)
        self.ready()
        return calls, instructions_of(self.act)


# -- The pool -------------------------------------------------------------------------------------


def take_and_free(count: int, num_pages: int = 10_000) -> Scene:
    pool = fast.PagePool(num_pages, enable_caching=True)
    return Scene(lambda: pool.free_pages(pool.get_new_pages(count)[::-1] if count > 1 else pool.get_new_pages(count)))


def evict(count: int, num_pages: int = 10_000) -> Scene:
    pool = fast.PagePool(num_pages, enable_caching=True)
    pages = pool.get_new_pages(num_pages - 1)
    request = fast.Request("r", np.arange((num_pages - 1) * PAGE_SIZE, dtype=np.int32))
    pool.cache_full_pages(request, pages, [], 0, num_pages - 1, PAGE_SIZE, 0)
    pool.free_pages(pages[::-1])
    return Scene(lambda: pool.get_new_pages(count))


# -- The manager ----------------------------------------------------------------------------------


def manager_of(num_pages: int) -> fast.CacheManager:
    layers = fast.FullAttentionSpec(PAGE_SIZE, 1, 8, "float32")
    return fast.CacheManager(num_pages, [fast.CacheGroupSpec(layers)], max_model_len=1 << 20)


def prompt(length: int, name: int = 0, *, listed: bool = False) -> Any:
    """A request whose tokens are no other name's."""
    tokens = np.arange(length, dtype=np.int32)
    tokens[0] += 100_000 * name
    return PlainRequest(str(name), tokens.tolist()) if listed else fast.Request(str(name), tokens)


def step(
    running: int,
    at_ends: int,
    context: int = 512,
    num_pages: int | None = None,
    *,
    listed: bool = False,
    withdrawn: bool = False,
) -> Scene:
    """A batched decode step; in each, so many requests fill a page and so many take one.

    With ``withdrawn`` another request has gone before its step was dispatched.
    """
    assert running % 16 == 0
    manager = manager_of(num_pages or running * (context // PAGE_SIZE + 4))
    requests = []
    for number in range(running):
        # the others are amid a page in the three steps that are made
        ahead = number % 16 if number < 16 * at_ends else 3 + number % 8
        requests.append(prompt(context + ahead, number, listed=listed))
        assert manager.allocate_slots(requests[-1], context + ahead) is not None
    if withdrawn:
        going = prompt(40, running)
        manager.allocate_slots(going, 40)
        manager.free(going, num_written=0)
    slots = np.array([manager.slot_of(request.request_id) for request in requests])
    computed = np.array([request.num_tokens for request in requests]) - 1

    def grow() -> None:
        nonlocal computed
        for request in requests:
            request.append(7)
        computed = computed + 1

    return Scene(lambda: manager.allocate_slots_batch(slots, computed, 1), grow)


def single_call(place_in_page: int) -> Scene:
    """A decode call of a request that has so many tokens on its last page before it."""
    manager = manager_of(1_000)
    request = prompt(512 + place_in_page)
    manager.allocate_slots(request, request.num_tokens)

    def grow() -> None:
        request.num_computed_tokens = request.num_tokens
        request.append(7)

    def ready() -> None:
        if request.num_tokens > 512 + place_in_page:
            for _ in range(PAGE_SIZE - 1):
                grow()
                manager.allocate_slots(request, 1)
        grow()

    return Scene(lambda: manager.allocate_slots(request, 1), ready)


def cached(num_full: int, num_pages: int = 10_000, *, listed: bool = False) -> tuple[fast.CacheManager, Any]:
    manager = manager_of(num_pages)
    first = prompt(num_full * PAGE_SIZE + 1)
    manager.allocate_slots(first, first.num_tokens)
    manager.free(first)
    second = prompt(first.num_tokens, listed=listed)
    assert manager.get_computed_pages(second)[1] == num_full * PAGE_SIZE
    return manager, second


def look_up(num_full: int, num_pages: int = 10_000, *, listed: bool = False) -> Scene:
    manager, request = cached(num_full, num_pages, listed=listed)
    return Scene(lambda: manager.get_computed_pages(request))


def look_up_admit_free(num_full: int, num_pages: int = 10_000) -> Scene:
    manager, request = cached(num_full, num_pages)

    def life() -> None:
        pages, hit = manager.get_computed_pages(request)
        manager.allocate_slots(request, 1, hit, pages)
        manager.free(request)

    return Scene(life)


def life_cycle(num_pages: int) -> Scene:
    """Requests of 96 shared pages and 32 of their own, 64 of them live, in a pool that is full: new pages evict."""
    manager = manager_of(num_pages)
    live: deque[fast.Request] = deque()
    arriving: list[fast.Request] = []
    count = 0

    def arrive() -> None:
        nonlocal count
        tokens = np.arange(2_048, dtype=np.int32)
        tokens[0] = count % 8
        tokens[1_536] += count * 2_048
        arriving.append(fast.Request(str(count), tokens))
        count += 1

    def life() -> None:
        request = arriving.pop()
        pages, hit = manager.get_computed_pages(request)
        manager.allocate_slots(request, request.num_tokens - hit, hit, pages)
        live.append(request)
        if len(live) > 64:
            oldest = live.popleft()
            manager.free(oldest)
            manager.free_page_hashes(oldest)

    for _ in range(num_pages // 32):
        arrive()
        life()
    return Scene(life, arrive)


def hang_up(num_live: int, *, sharers: int) -> Scene:
    """A request goes before its step was dispatched, beside so many others; so many of them hit what it promised."""
    manager = manager_of(10 * num_live + 1_000)
    for number in range(num_live):
        manager.allocate_slots(prompt(40, number + 2), 40)
    going: list[Any] = []

    def come() -> None:
        for request in going[1:]:
            manager.free(request)
        going[:] = [prompt(40, 1) for _ in range(1 + sharers)]
        for name, request in enumerate(going):
            request.request_id = f"going {name}"
            pages, hit = manager.get_computed_pages(request)
            assert manager.allocate_slots(request, 40 - hit, hit, pages) is not None

    def leave() -> None:
        assert len(manager.free(going[0], num_written=0)) == sharers

    return Scene(leave, come)


# -- The table ------------------------------------------------------------------------------------


def append(num_rows: int, lists: bool, *, commit: bool = False) -> Scene:
    table = fast.PageTable(num_rows, 64, 8192)
    column, rows = np.arange(1, num_rows + 1).reshape(-1, 1), np.arange(num_rows)
    page_ids, row_ids = (column.tolist(), rows.tolist()) if lists else (column, rows)

    def add() -> None:
        table.append_rows_batch(page_ids, row_ids)

    return Scene(lambda: table.commit(num_rows), add) if commit else Scene(add)


# -- Bounds ---------------------------------------------------------------------------------------

SCENES: dict[str, Callable[[], Scene]] = {
    "a: take one page, free it": lambda: take_and_free(1),
    "a2: take one page, evicting": lambda: evict(1),
    "b: take 1,000 pages, free them": lambda: take_and_free(1_000),
    "b2: take 1,000 pages, evicting": lambda: evict(1_000),
    "c: step of 256 requests, 16 fill a page, 16 take one": lambda: step(256, 16),
    "c: step of 1,024 requests, 64 fill a page, 64 take one": lambda: step(1_024, 64),
    "c: step of 256 requests, all of them amid a page": lambda: step(256, 0),
    "c: step of 256 requests that list their tokens, 16 fill a page, 16 take one": lambda: step(256, 16, listed=True),
    "single decode call, amid a page": lambda: single_call(3),
    "single decode call, a page filled": lambda: single_call(15),
    "single decode call, a page taken": lambda: single_call(0),
    "e: look up 2,048 pages": lambda: look_up(2_048),
    "e: look up 2,048 pages, the tokens in a list": lambda: look_up(2_048, listed=True),
    "e2: look up, admit, free 2,048 pages": lambda: look_up_admit_free(2_048),
    "f: look up, admit, free 128 pages, 32 of them new": lambda: life_cycle(4_000),
    "g: 256 rows get a page each, arrays": lambda: append(256, False),
    "g: 256 rows get a page each, nested lists": lambda: append(256, True),
    "g: commit these 256 cells": lambda: append(256, False, commit=True),
}


@pytest.mark.parametrize("what", BOUNDS)
def test_a_row_costs_no_more_than_it_did(what: str) -> None:
    calls, instructions = SCENES[what]().counts()
    most_calls, most_instructions = (int(SLACK * bound) for bound in BOUNDS[what])
    assert (calls <= most_calls, instructions <= most_instructions) == (True, True), (
        f"{what}: {calls} calls, {instructions} instructions; at most {most_calls}, {most_instructions}"
    )


def test_every_scene_has_a_bound() -> None:
    assert BOUNDS.keys() == SCENES.keys()


# -- What does not grow ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (lambda: take_and_free(1, 100), lambda: take_and_free(1, 100_000)),
        (lambda: take_and_free(1_000), lambda: take_and_free(1_000, 100_000)),
        (lambda: evict(1_000), lambda: evict(1_000, 40_016)),
        (lambda: step(256, 16), lambda: step(256, 16, num_pages=100_000)),
        (lambda: look_up(100), lambda: look_up(100, 100_000)),
        (lambda: look_up_admit_free(100), lambda: look_up_admit_free(100, 100_000)),
    ],
    ids=["a", "b", "b2", "c", "e", "e2"],
)
def test_nothing_grows_with_the_pool(small: Callable[[], Scene], large: Callable[[], Scene]) -> None:
    """Where pages are evicted the sizes differ by a multiple of 64: pages of the same ages are sampled."""
    assert small().counts() == large().counts()


@pytest.mark.parametrize(
    ("make", "few", "many"),
    [
        (lambda count: take_and_free(count, 40_000), 100, 5_000),
        (lambda count: evict(count, 40_000), 100, 5_000),
        (look_up, 100, 5_000),
        (look_up_admit_free, 100, 5_000),
        (lambda count: append(count, False), 100, 256),
        (lambda count: append(count, False, commit=True), 100, 256),
    ],
    ids=["b", "b2", "e", "e2", "g", "g commit"],
)
def test_pages_cost_array_work_only(make: Callable[[int], Scene], few: int, many: int) -> None:
    """How many pages or rows there are shows in the arrays' lengths, but for the one page in 64 that is sampled."""
    for less, more, per_sample in zip(make(few).counts(), make(many).counts(), PER_SAMPLE, strict=True):
        assert more <= less + per_sample * (1 + (many - few) // 64)


@pytest.mark.parametrize("sharers", [0, 1, 3])
def test_who_goes_before_its_step_costs_what_it_withdraws(sharers: int) -> None:
    """MAN-4: whoever else is live; those who hold what is withdrawn are found by array work."""
    assert hang_up(20, sharers=sharers).counts() == hang_up(2_000, sharers=sharers).counts()


def test_who_goes_before_its_step_is_not_looked_for_in_the_lists_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """MAN-4: those who hit what it withdraws are known by the pages that they hit last."""
    scene = hang_up(20, sharers=3)
    scene.ready()
    monkeypatch.delattr(PageLists, "holders")
    scene.act()


def test_a_step_costs_no_more_after_another_request_has_withdrawn_its_pages() -> None:
    """MAN-4, MAN-11: what others published stands where it stood, and is not looked up again."""
    for at_ends in (16, 128):
        assert step(256, at_ends, withdrawn=True).counts() == step(256, at_ends).counts()


@pytest.mark.parametrize("at_ends", [0, 2], ids=["none at a page's end", "two at a page's end"])
def test_a_step_does_not_grow_with_requests_or_contexts(at_ends: int) -> None:
    """MAN-11: a batched step costs what crosses a boundary."""
    counts = step(64, at_ends).counts()
    assert step(512, at_ends).counts() == counts
    assert step(64, at_ends, context=8_192).counts() == counts


def test_a_step_grows_with_what_crosses_a_boundary_by_the_bound_of_a_page() -> None:
    few, many = step(2_048, 64).counts(), step(2_048, 128).counts()
    per_page = [(after - before) / 64 for before, after in zip(few, many, strict=True)]
    assert per_page[0] <= SLACK * PER_PAGE[0], f"{per_page[0]} calls for a page filled and one taken"
    assert per_page[1] <= SLACK * PER_PAGE[1], f"{per_page[1]} instructions for a page filled and one taken"


def test_the_page_on_the_design_shows_these_counts() -> None:
    shown = [
        line for line in DESIGN.read_text().splitlines() if line.startswith(tuple(f"| {what} |" for what in SCENES))
    ]
    assert shown == [_line(what, counts) for what, counts in BOUNDS.items()]


def _line(what: str, counts: tuple[int, int]) -> str:
    """A row of the page's table."""
    return f"| {what} | {counts[0]} | {counts[1]:,} |"


if __name__ == "__main__":
    counted = {what: make().counts() for what, make in SCENES.items()}
    print("\n".join(f'    "{what}": {counts},' for what, counts in counted.items()))
    print("\n".join(_line(what, counts) for what, counts in counted.items()))
