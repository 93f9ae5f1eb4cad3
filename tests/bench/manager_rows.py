"""Rows c to g: keys, the cache manager and the page table."""

import hashlib
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from .implementation import Batch, Implementation, Manager
from .samples import Row, Sample
from .workloads import PAGE_SIZE, POOL, tokens

__all__ = ["MANAGER_ROWS", "bare_digests", "cached_prompt", "decode_batch", "decode_step", "look_up"]

LONG = 32_769
MAX_LEN = 1 << 20


# -- c: decode steps ------------------------------------------------------------------------------


def decode_batch(
    implementation: Implementation, running: int, num_pages: int | None = None, context: int = 512, spread: int = 16
) -> tuple[Manager, Batch, list[Any]]:
    """Requests that have just been prefilled, each with a context of its own.

    Args:
        implementation: whose they are.
        running: how many.
        num_pages: pages of the pool; None: enough.
        context: tokens of the shortest.
        spread: the prompts have 0 to ``spread - 1`` tokens more.
    """
    pages = running * (2 + (context + 2_000) // PAGE_SIZE)
    manager = implementation.manager(num_pages or max(POOL, pages), 2 * MAX_LEN)
    batch = manager.batch()
    requests = []
    for number in range(running):
        request = implementation.request(str(number), tokens(context + number % spread, number))
        manager.know_keys(request)
        assert manager.allocate(request, request.num_tokens, 0, None) is not None
        batch.add(request)
        requests.append(request)
    return manager, batch, requests


def decode_step(running: int, **options: Any) -> Callable[[Implementation], Sample]:
    """One token more for each of so many requests; options as of `decode_batch`."""

    def make(implementation: Implementation) -> Sample:
        _, batch, _ = decode_batch(implementation, running, **options)
        return Sample(batch.step, batch.grow, rounds=64)

    return make


def _grow_and_step(batch: Any) -> None:
    batch.grow()
    batch.step()


def _decode_step_with_tokens(running: int) -> Callable[[Implementation], Sample]:
    def make(implementation: Implementation) -> Sample:
        _, batch, _ = decode_batch(implementation, running)
        return Sample(lambda: _grow_and_step(batch), rounds=64)

    return make


def _look_ups_after_the_step(running: int) -> Callable[[Implementation], Sample]:
    def make(implementation: Implementation) -> Sample:
        manager, batch, requests = decode_batch(implementation, running)

        def look_ups() -> None:
            find = manager.look_up
            for request in requests:
                find(request)

        return Sample(look_ups, lambda: _grow_and_step(batch), rounds=32)

    return make


# -- d: keys --------------------------------------------------------------------------------------


def bare_digests(page_size: int) -> Sample:
    """The digests that keys of a prompt take, and nothing else: what row d is measured against."""
    data = tokens(LONG - 1).tobytes()

    def digests() -> None:
        digest = bytes(32)
        for start in range(0, len(data), 4 * page_size):
            digest = hashlib.sha256(digest + data[start : start + 4 * page_size]).digest()

    return Sample(digests, rounds=40)


def _keys(page_size: int) -> Callable[[Implementation], Sample]:
    def make(implementation: Implementation) -> Sample:
        request = implementation.request("r", tokens(LONG - 1), page_size)
        return Sample(implementation.keys(request, page_size), rounds=40)

    return make


# -- e: look-ups ----------------------------------------------------------------------------------


def cached_prompt(
    implementation: Implementation, length: int = LONG, splits: int = 0, num_pages: int = POOL
) -> tuple[Manager, Any]:
    """A manager that has cached a long prompt, and another request of the same tokens.

    Args:
        implementation: whose they are.
        length: tokens of the prompt.
        splits: so many requests, less one, have parted from it at as many places.
        num_pages: pages of the pool.
    """
    manager = implementation.manager(num_pages, 2 * MAX_LEN)
    prompt = tokens(length)
    _live_once(manager, implementation.request("first", prompt))
    for place in range(1, splits):
        parting = prompt[: 512 * place + 17].copy()
        parting[512 * place :] += 1
        _live_once(manager, implementation.request(f"split {place}", parting))
    second = implementation.request("second", prompt)
    manager.know_keys(second)
    assert manager.look_up(second)[1] == (length - 1) // PAGE_SIZE * PAGE_SIZE
    return manager, second


def _live_once(manager: Manager, request: Any) -> None:
    pages, hit, *_ = manager.look_up(request)
    assert manager.allocate(request, request.num_tokens - hit, hit, pages) is not None
    manager.free(request)


def look_up(splits: int = 0, *, with_keys: bool, **options: Any) -> Callable[[Implementation], Sample]:
    """A look-up of a prompt that is all cached; options as of `cached_prompt`."""

    def make(implementation: Implementation) -> Sample:
        manager, request = cached_prompt(implementation, splits=splits, **options)
        find, renew = manager.look_up, manager.renew_keys
        if not with_keys or renew is None:
            return Sample(lambda: find(request), rounds=300)

        def renewed() -> None:
            renew(request)
            find(request)

        return Sample(renewed, rounds=300)

    return make


def _look_up_admit_free(implementation: Implementation) -> Sample:
    manager, request = cached_prompt(implementation)

    def life() -> None:
        found = manager.look_up(request)
        manager.allocate(request, 1, found[1], found[0])
        manager.free(request)

    return Sample(life, rounds=200)


# -- f: the life of a request ---------------------------------------------------------------------


def _life_cycle(with_keys: bool = False, events: bool = False) -> Callable[[Implementation], Sample]:
    def make(implementation: Implementation) -> Sample:
        prefixes = [tokens(1_536, seed) for seed in range(8)]
        manager = implementation.manager(20_000, MAX_LEN, events)
        live: deque[Any] = deque()
        arriving: list[Any] = []
        count = 0

        def arrive() -> None:
            nonlocal count
            prompt = np.concatenate([prefixes[count % 8], tokens(512, 100 + count)])
            request = implementation.request(str(count), prompt)
            if not with_keys:
                manager.know_keys(request)
            arriving.append(request)
            count += 1

        def life() -> None:
            request = arriving.pop()
            if with_keys and manager.renew_keys is not None:
                manager.renew_keys(request)
            found = manager.look_up(request)
            manager.allocate(request, request.num_tokens - found[1], found[1], found[0])
            live.append(request)
            if len(live) > 64:
                oldest = live.popleft()
                manager.free(oldest)
                if manager.finish is not None:
                    manager.finish(oldest)
            if manager.take_events is not None:
                manager.take_events()

        for _ in range(400):
            arrive()
            life()
        return Sample(life, arrive, rounds=2_000)

    return make


# -- g: tables ------------------------------------------------------------------------------------

ROWS, WIDTH, FILLED = 256, 2048, 1024


def _table(*, arrays: bool, append: bool, commit: bool) -> Callable[[Implementation], Sample]:
    def make(implementation: Implementation) -> Sample:
        table = implementation.table(ROWS, WIDTH)
        column = np.arange(1, ROWS + 1).reshape(ROWS, 1)
        lists = column.tolist()
        held = WIDTH
        table.append(lists)
        table.commit()  # whatever it compiles for that is compiled
        table.wait()

        def add() -> None:
            if arrays and table.append_array is not None:
                table.append_array(column)
            else:
                table.append(lists)

        def ready() -> None:
            nonlocal held
            if held == WIDTH:
                table.clear()
                table.append([list(range(1, FILLED + 1))] * ROWS)
                table.commit()
                held = FILLED
            held += 1
            if not append:
                add()
            table.wait()

        def step() -> None:
            if append:
                add()
            if commit:
                table.commit()
                table.wait()

        return Sample(step, ready, rounds=500)

    return make


MANAGER_ROWS = [
    *(
        Row(f"c_{running}", f"decode step of {running:,} requests: allocate and publish", decode_step(running))
        for running in (256, 1024, 8192)
    ),
    *(
        Row(
            f"c_tokens_{running}",
            f"the same of {running:,}, their tokens appended in it",
            _decode_step_with_tokens(running),
        )
        for running in (256, 1024)
    ),
    Row("c_look_ups", "look-ups of 256 requests right after such a step", _look_ups_after_the_step(256)),
    Row("d_16", "keys of 32,768 tokens, pages of 16", _keys(16)),
    Row("d_64", "keys of 32,768 tokens, pages of 64", _keys(64)),
    Row("e", "look up a cached prompt of 32,769 tokens, keys included", look_up(with_keys=True)),
    Row("e_split", "the same after 64 splits", look_up(64, with_keys=True)),
    Row("e_known", "the same, keys known", look_up(with_keys=False)),
    Row("e2", "look up, admit, free it, keys known", _look_up_admit_free),
    Row("f", "life of a request, 1,536 shared + 512 own tokens, 64 live, keys included", _life_cycle(with_keys=True)),
    Row("f_known", "the same, keys known", _life_cycle()),
    Row(
        "f_events",
        "the same with keys and events",
        _life_cycle(with_keys=True, events=True),
        lacks=lambda implementation: implementation.no_events(),
    ),
    Row("g_array", "256 rows get a page each: host, arrays", _table(arrays=True, append=True, commit=False), "wall"),
    Row("g_list", "the same, nested lists", _table(arrays=False, append=True, commit=False), "wall"),
    Row("g_array_commit", "the same, then commit: arrays", _table(arrays=True, append=True, commit=True), "wall"),
    Row("g_list_commit", "the same, nested lists", _table(arrays=False, append=True, commit=True), "wall"),
]
