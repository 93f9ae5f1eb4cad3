"""ENG-2: who is scheduled when, on the specification's manager and tables; no model and no device is needed."""

import random
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof import fast, spec
from kvproof.conformance.engine.config import LayerKind, ModelConfig
from kvproof.conformance.engine.groups import groups_of, most_pages
from kvproof.conformance.engine.plans import Limits, Plan, Served
from kvproof.conformance.engine.sampler import GREEDY, Sampling, noise, sample, sure_token
from kvproof.conformance.engine.scheduler import Scheduler
from kvproof.conformance.engine.step_ends import StepEnds

KINDS = {
    "full": (LayerKind("full"),),
    "window": (LayerKind("full"), LayerKind("window", 3)),
    "chunk": (LayerKind("chunk", 5),),
    "latent": (LayerKind("mla"),),
    "state": (LayerKind("full"), LayerKind("state")),
    "all": (LayerKind("full"), LayerKind("window", 5), LayerKind("chunk", 4), LayerKind("mla"), LayerKind("state")),
}
LENGTH = 24


def limits_of(kinds: str, num_pages: int, page_size: int = 2, seqs: int = 3, tokens: int = 8) -> Limits:
    config = ModelConfig(8, 4, 4, 1, 1, 2, KINDS[kinds], LENGTH, latent_rank=2, rotary_size=2, state_size=2)
    groups = tuple(group.declared for group in groups_of(config, page_size))
    return Limits(groups, num_pages, LENGTH, seqs, tokens)


def scheduler_of(limits: Limits, names: Any = spec, num_host_pages: int = 0) -> Scheduler:
    manager = names.CacheManager(
        limits.num_pages, list(limits.groups), LENGTH, hash_seed=b"seed", num_host_pages=num_host_pages
    )
    sizes = [group.kv_cache_spec.page_size for group in limits.groups]
    tables = names.MultiGroupPageTable(limits.max_num_seqs, LENGTH, limits.max_num_batched_tokens, sizes)
    swaps: list[Any] = []
    return Scheduler(manager, tables, limits, swaps.append if num_host_pages else None)


def served(name: str, tokens: list[int], max_tokens: int, priority: int = 0, arrival: int = 0) -> Served:
    return Served(spec.Request(name, tokens), len(tokens), max_tokens, GREEDY, priority, arrival)


def finish_step(scheduler: Scheduler, plan: Plan, token: Any) -> None:
    """What an engine does with a plan, the model being a draw of tokens."""
    scheduler.manager.take_page_copies()
    scheduler.note_computed(plan)
    for chunk in plan.chunks:
        request = chunk.served.request
        if chunk.end == request.num_tokens:
            request.append(token())
            if request.num_tokens == chunk.served.num_prompt + chunk.served.max_tokens:
                scheduler.remove(chunk.served)


def hold_plan(scheduler: Scheduler, plan: Plan) -> None:
    """What every plan must be."""
    limits, manager = scheduler.limits, scheduler.manager
    chosen = [chunk.served for chunk in plan.chunks]
    assert len(set(chosen)) == len(chosen)
    assert not set(chosen) & set(plan.preempted)
    assert sum(chunk.count for chunk in plan.chunks) <= limits.max_num_batched_tokens
    rows = [waiting.row for waiting in scheduler.queue if waiting.is_running]
    assert len(set(rows)) == len(rows) <= limits.max_num_seqs
    for chunk in plan.chunks:
        assert chunk.count >= 1
        assert chunk.end <= chunk.served.request.num_tokens
        pages = manager.get_page_ids(chunk.served.request.request_id)
        for group, (own, table) in enumerate(zip(pages, scheduler.tables.page_tables, strict=True)):
            size = limits.groups[group].kv_cache_spec.page_size
            assert len(own) == -(-chunk.end // size)
            row = table.get_cpu_tensor()[chunk.served.row, : len(own)]
            held = np.array(own) != 0  # the row may go on to name what was given back
            assert (np.array(row)[held] == np.array(own)[held]).all()
    manager.check()


@settings(max_examples=60)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 2**32), st.sampled_from([spec, fast]), st.integers(1, 9))
def test_everybody_finishes_and_nobody_scheduled_gives_way(kinds: str, seed: int, names: Any, budget: int) -> None:
    """ENG-2, MAN-2, TAB-2, SWAP-1: arrivals, priorities, cancellations, pools that hold one request, or hardly two.

    There is no host memory, or some for part of a request, or for all.
    """
    draw = random.Random(seed)
    least = most_pages(limits_of(kinds, 2).groups, LENGTH // 2)
    limits = limits_of(kinds, least + 1 + draw.randint(0, 5), draw.choice([2, 3]), draw.randint(1, 3), budget)
    host = draw.choice([0, 2, 5, 100])
    scheduler = scheduler_of(limits, names, host)
    arrivals, steps, work = 0, 0, 0
    while arrivals < 6 or scheduler.queue:
        if arrivals < 6 and draw.random() < 0.5:
            prompt = [draw.randint(0, 1) for _ in range(draw.randint(1, LENGTH // 2))]
            new = served(f"r{arrivals}", prompt, draw.randint(1, 6), draw.randint(0, 1), arrivals)
            arrivals += 1
            with suppress(ValueError):  # it needs more pages than there are
                scheduler.add(new)
                work += new.num_cached
        if scheduler.queue and draw.random() < 0.05:
            scheduler.remove(draw.choice(scheduler.queue))
        plan = scheduler.schedule()
        hold_plan(scheduler, plan)
        assert plan.chunks or not scheduler.queue
        steps += bool(plan.chunks) and arrivals == 6  # before, who computes may yet give way to who comes
        finish_step(scheduler, plan, lambda: draw.randint(0, 1))
        assert steps <= work  # nobody comes any more: the most urgent one computes a token at least, and loses none
    assert scheduler.manager.usage == 0.0
    assert scheduler.manager.num_free_host_pages == host


@pytest.mark.parametrize("kinds", KINDS)
def test_what_needs_the_whole_pool_finishes_and_what_needs_more_is_refused(kinds: str) -> None:
    """ENG-2: the bound is exact."""
    for length in (1, 5, 12, 13):
        request = served("a", [1] * length, 4)
        needed = most_pages(limits_of(kinds, 2).groups, request.num_cached)
        scheduler = scheduler_of(limits_of(kinds, needed + 1))
        scheduler.add(request)
        while scheduler.queue:
            plan = scheduler.schedule()
            assert plan.chunks
            finish_step(scheduler, plan, lambda: 0)
        if needed > 1:
            with pytest.raises(ValueError, match=r"'a' needs .*\[ENG-2\]$"):
                scheduler_of(limits_of(kinds, needed)).add(served("a", [1] * length, 4))


def test_with_states_steps_end_where_a_hit_can_end() -> None:
    """RET-1, RET-2: at the last page of a prompt, where it parts from an earlier one, and at the interval."""
    shared, ends = [1] * 10, list[list[int]]()
    scheduler = scheduler_of(limits_of("state", 60, tokens=16))
    for own in range(3):
        scheduler.add(served(f"r{own}", [*shared, *[2 + own] * 5], 1, arrival=own))
        ends.append([])
        while scheduler.queue:
            plan = scheduler.schedule()
            ends[-1] += [chunk.end for chunk in plan.chunks]
            finish_step(scheduler, plan, lambda: 0)
    assert ends == [[14, 15], [10, 14, 15], [14, 15]]
    assert scheduler.manager.prefixes.counters.hit_tokens == 10, "of the third"
    ahead = StepEnds(limits_of("state", 60).groups, 4)
    assert [ahead.end(start, min(start + 9, 15), 15, 10) for start in (0, 4, 9, 10, 14)] == [4, 8, 10, 12, 15]
    assert StepEnds(limits_of("full", 60).groups, 4).end(0, 9, 15, 10) == 9


def test_the_urgent_go_first_and_take_from_the_others() -> None:
    """ENG-2: what came later with a higher priority takes the pages of what runs; nobody overtakes."""
    scheduler = scheduler_of(limits_of("full", 9, tokens=16))
    low, high = served("low", [0] * 13, 3, 0, 0), served("high", [1] * 9, 3, 1, 1)
    scheduler.add(low)
    plan = scheduler.schedule()
    assert [(chunk.served, chunk.count) for chunk in plan.chunks] == [(low, 13)]
    finish_step(scheduler, plan, lambda: 0)
    scheduler.add(high)
    plan = scheduler.schedule()
    assert ([chunk.served for chunk in plan.chunks], plan.preempted) == ([high], (low,))
    assert (low.preemptions, low.request.num_computed_tokens, low.is_running) == (1, 0, False)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("names", [spec, fast])
def test_who_gives_way_goes_to_host_memory_and_comes_back_with_what_it_computed(kinds: str, names: Any) -> None:
    """SWAP-1, ENG-2: and computes nothing twice; where there is no host memory, all but what is cached."""
    for host in (40, 0):
        low, high = served("low", [0] * 11, 4, 0, 0), served("high", [1] * 12, 5, 1, 1)
        needed = most_pages(limits_of(kinds, 2).groups, 16)
        scheduler = scheduler_of(limits_of(kinds, needed + 1, tokens=20), names, host)
        scheduler.add(low)
        finish_step(scheduler, scheduler.schedule(), lambda: 0)
        reached = low.request.num_computed_tokens
        assert reached
        scheduler.add(high)
        plan = scheduler.schedule()
        fits = host == 40
        assert (plan.preempted, [swap.direction for swap in plan.swaps]) == ((low,), ["out"] * fits)
        assert (low.is_away, low.is_running, low.request.num_computed_tokens) == (fits, False, reached * fits)
        assert (scheduler.manager.num_free_host_pages < host) == fits
        computed: list[int] = []
        while scheduler.queue:
            finish_step(scheduler, plan, lambda: 0)
            plan = scheduler.schedule()
            hold_plan(scheduler, plan)
            for chunk in plan.chunks:
                computed += range(chunk.start, chunk.end) if chunk.served is low else ()
        assert computed == list(range(reached, 14)) or not fits
        assert scheduler.manager.num_free_host_pages == host


def test_two_share_a_prefix_in_the_step_that_writes_it() -> None:
    """MAN-4, ATT-5: and with states they don't, as a state is there when a step has ended."""
    for kinds, hit in (("full", 4), ("state", 0)):
        scheduler = scheduler_of(limits_of(kinds, 20, tokens=16))
        scheduler.add(served("a", [0] * 5, 1))
        scheduler.add(served("b", [0] * 6, 1, 0, 1))
        assert [chunk.start for chunk in scheduler.schedule().chunks] == [0, hit]


def test_with_states_chunks_end_where_a_state_can_be_found_again() -> None:
    """MAN-13: so the next such prompt hits all of its pages but the last token's."""
    scheduler = scheduler_of(limits_of("state", 20, page_size=4, tokens=7))
    for name in ("a", "b"):
        scheduler.add(served(name, [0] * 13, 1))
        ends = []
        while scheduler.queue:
            plan = scheduler.schedule()
            ends += [chunk.end for chunk in plan.chunks]
            finish_step(scheduler, plan, lambda: 0)
        assert ends == ([4, 8, 12, 13] if name == "a" else [13])


# -- Sampling -------------------------------------------------------------------------------------


def logits_of(seed: int, size: int = 12) -> Any:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


@given(st.integers(0, 99), st.integers(0, 2**64 - 1), st.integers(0, 2**31), st.integers(0, 12))
def test_a_token_depends_on_seed_and_position_alone(draw: int, seed: int, position: int, top_k: int) -> None:
    """ENG-1: and small errors change no token that is called sure."""
    logits, sampling = logits_of(draw), Sampling(seed, 0.7, top_k)
    token = sample(logits, sampling, position)
    assert token == sample(logits.astype(np.float64), Sampling(seed, 0.7, top_k), position)
    assert not top_k or token in np.argsort(-logits)[:top_k]
    sure = sure_token(logits.astype(np.float64), sampling, position, 0.01)
    assert sure in (None, token)
    if sure is not None:
        errors = np.random.default_rng(draw).uniform(-0.01, 0.01, len(logits))
        assert sample(logits + errors, sampling, position) == token


def test_greedy_takes_the_likeliest_and_noise_is_gumbels() -> None:
    logits = logits_of(3)
    assert sample(logits, GREEDY, 7) == int(np.argmax(logits))
    assert sample(np.array([1.0, 1.0]), GREEDY, 0) == 0
    assert sure_token(np.array([1.0, 1.0]), GREEDY, 0, 0.0) is None
    assert sure_token(np.array([1.0]), GREEDY, 0, 0.1) == 0
    drawn = [sample(np.log([0.7, 0.2, 0.1]), Sampling(5, 1.0), position) for position in range(2000)]
    assert np.allclose(np.bincount(drawn) / 2000, [0.7, 0.2, 0.1], atol=0.04)
    assert not np.array_equal(noise(1, 2, 4), noise(2, 1, 4))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"seed": -1}, ValueError),
        ({"seed": 2**64}, ValueError),
        ({"temperature": -0.1}, ValueError),
        ({"temperature": "1"}, TypeError),
        ({"top_k": 1.5}, TypeError),
        ({"stop_tokens": 3}, TypeError),
    ],
)
def test_strange_sampling_is_refused(options: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=rf"{next(iter(options))}=.*\[R1\]$"):
        Sampling(**options)
