"""How ragged batches are drawn: short sequences about the ends of pages, shared prefixes, pages that are released."""

from math import frexp

import numpy as np
from hypothesis import strategies as st

from .draws import Drawing, one_of, rarely
from .ragged import NULL, SETUPS, Batch, Setup

__all__ = ["draw_batch"]

_PADDINGS: tuple[tuple[int, ...], ...] = ((-1,), (NULL,), (2**31 - 1,), (NULL,), (1, 2, 3), (-(2**31), 5))
_BEYOND = (-1, 2**31 - 1, 0, 7)


def draw_batch(data: Drawing, name: str, writes: bool = False) -> Batch:
    """Draws a batch for a setup.

    Args:
        data: where it is drawn from.
        name: the setup's.
        writes: whether the query tokens are written in the same call: then a sequence shares pages only with
            sequences that write in them what it reads, and none stands at a negative position.
    """
    setup = SETUPS[name]
    count = data.draw(st.integers(1, setup.num_seqs)) if not rarely(data) else 0
    left, q_lens, kv_lens = setup.num_tokens, [], []
    for _ in range(count):
        q_lens.append(min(data.draw(st.sampled_from([1, 2, 3, 5, 0, 1, 7])), left, setup.most_keys))
        left -= q_lens[-1]
        kv_lens.append(_draw_length(data, setup, q_lens[-1], writes))
    reserved = 1 if setup.first_page == 0 and one_of(data, [True, False]) else 0
    seed = data.draw(st.integers(0, 99))
    pages = _draw_pages(data, setup, q_lens, kv_lens, seed, max(setup.first_page, reserved))
    released = [
        setup.first_key(q, kv) // setup.layout.page_size if reserved and not rarely(data) else 0
        for q, kv in zip(q_lens, kv_lens, strict=True)
    ]
    if writes and one_of(data, [False, True]):  # so that a request reads what a later one writes
        for drawn in (q_lens, kv_lens, pages, released):
            drawn.reverse()
    contents = ["normal"]
    scale = setup.options.get("scale", setup.layout.dims[0] ** -0.5)
    if setup.layout.dtype == "float32" and frexp(scale)[0] == 0.5:  # else large scores are rounded
        contents += ["hot" if "soft_cap" in setup.options else "cold"]
    return Batch(
        name,
        tuple(q_lens),
        tuple(kv_lens),
        tuple(map(tuple, pages)),
        tuple(released),
        one_of(data, _PADDINGS + ((NULL,),) * 4 if writes and not reserved else _PADDINGS),  # page 0 is in use
        one_of(data, _BEYOND),
        one_of(data, contents),
        seed,
    )


def _draw_length(data: Drawing, setup: Setup, q_len: int, writes: bool) -> int:
    """How many tokens a sequence has: about the ends of pages, now and then fewer than its query tokens.

    More often than not they are more than a window or a chunk lets through.
    """
    size = setup.layout.page_size
    if q_len and not writes and rarely(data):
        return data.draw(st.integers(0, q_len - 1))
    if writes and q_len and one_of(data, [False, False, True]):
        return min(q_len, setup.most_keys)  # a prompt that begins
    if setup.tall and one_of(data, [True, False]):
        length = data.draw(st.sampled_from([32767, 32768, 32769, 40000, setup.most_keys]))
    else:
        every = range(setup.row + 1)
        beyond = every[-(-setup.reach // size) :] or every
        whole = one_of(data, one_of(data, [every, beyond, beyond])) * size
        length = max(whole + data.draw(st.sampled_from([0, 1, -1, 2])), q_len)
    return max(min(length, setup.most_keys), q_len)


def _draw_pages(
    data: Drawing, setup: Setup, q_lens: list[int], kv_lens: list[int], seed: int, first: int
) -> list[list[int]]:
    """The pages of each sequence: others in any order, a shared prefix, a page more than it needs."""
    size = setup.layout.page_size
    waiting = list(range(first, setup.layout.num_pages))
    if seed % 2:  # else in order: the first sequence begins in the first page
        waiting = np.random.default_rng(seed).permutation(waiting).tolist()
    pages: list[list[int]] = []
    for place, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens, strict=True)):
        wanted = -(-kv_len // size)
        held: list[int] = []
        if place and one_of(data, [False, True]):
            other = data.draw(st.integers(0, place - 1))
            held = pages[other][: min(kv_lens[other], kv_len - q_len) // size] if kv_len > q_len else []
        if setup.tall and wanted > len(held) + 2:  # one page stands for all that are far back
            held = held + waiting[:1] * (wanted - len(held) - 2)
            del waiting[:1]
        lacking = wanted - len(held)
        if lacking > len(waiting):
            kv_lens[place] = kv_len = (len(held) + len(waiting)) * size
            q_lens[place] = min(q_len, kv_len)
            lacking = len(waiting)
        if lacking < len(waiting) and wanted < setup.row and rarely(data):
            lacking += 1
        held = held + waiting[:lacking]
        del waiting[:lacking]
        pages.append(held)
    return pages
