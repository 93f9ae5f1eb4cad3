"""ENG-1: what the engine serves is what dense attention gives, however it was scheduled; and what it refuses."""

import random
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType

from kvproof import fast
from kvproof.conformance.backends.loading import Backend
from kvproof.conformance.engine.config import LayerKind, ModelConfig
from kvproof.conformance.engine.dense import dense_logits
from kvproof.conformance.engine.model import init_params
from kvproof.conformance.engine.runner import copy_turns
from kvproof.conformance.engine.sampler import Sampling
from kvproof.conformance.engine.serving import Engine
from kvproof.spec import CacheSalt

MIXED = (LayerKind("full"), LayerKind("window", 5), LayerKind("chunk", 6), LayerKind("mla"), LayerKind("state"))
MODELS = {
    name: (config, init_params(config, 1))
    for name, config in {
        "plain": ModelConfig(24, 16, 24, 4, 2, 4, (LayerKind("full"),) * 2, 40),
        "mixed": ModelConfig(
            24, 16, 24, 4, 2, 4, MIXED, 40, latent_rank=8, rotary_size=4, state_size=3, soft_cap=5.0, sinks=True
        ),
    }.items()
}
TOLERANCE = 1e-4
"""Of logits of size 1 to 3 in float32; measured errors are some 1e-5."""


PAGES = {"plain": 8, "mixed": 26}
"""A program is compiled for each number of pages; where rows are as many as tokens, not again for the last logits."""


def engine_of(model: str, **options: Any) -> Engine:
    sizes = {"page_size": 4, "max_num_seqs": 16, "max_num_batched_tokens": 16, "keep_logits": True, "optimise": False}
    return Engine(MODELS[model], hash_seed=b"seed", **({"num_pages": PAGES[model]} | sizes | options))


def served(engine: Engine) -> tuple[dict[str, list[int]], dict[str, list[tuple[int, Any]]], set[str]]:
    """Runs it to its end: all tokens of each request, its logits by where they begin, and who gave way."""
    tokens = {
        waiting.request.request_id: waiting.request.all_token_ids.tolist()
        for scheduler in engine.schedulers
        for waiting in scheduler.queue
    }
    logits: dict[str, list[tuple[int, Any]]] = {}
    preempted: set[str] = set()
    while engine.num_unfinished:
        plans = engine.schedule()
        preempted |= {waiting.request.request_id for plan in plans for waiting in plan.preempted}
        for output in engine.execute(plans):
            logits.setdefault(output.request_id, []).append((output.start, output.logits))
            tokens[output.request_id] += [] if output.token is None else [output.token]
    return tokens, logits, preempted


def hold_dense(model: str, tokens: dict[str, list[int]], logits: dict[str, list[tuple[int, Any]]]) -> None:
    config, params = MODELS[model]
    for name, parts in logits.items():
        right = dense_logits(params, config, tokens[name])
        for start, rows in parts:
            assert np.abs(rows - right[start : start + len(rows)]).max() < TOLERANCE


@pytest.mark.parametrize("model", MODELS)
def test_logits_are_those_of_dense_attention(model: str) -> None:
    """ENG-1: shared prefixes, salts, chunks, small pools and preemption, with every kind of layers."""
    engine, draw = engine_of(model), random.Random(0)
    common = [draw.randrange(24) for _ in range(16)]
    for number in range(6):
        prompt = common[: draw.randint(1, 16)] + [draw.randrange(24) for _ in range(draw.randint(0, 4))]
        salts = (CacheSalt("s"),) if number == 4 else ()
        sampling = Sampling(number, 0.8, 5) if number % 2 else Sampling()
        engine.add_request(f"r{number}", prompt, max_tokens=6, sampling=sampling, extra_keys=salts, priority=number % 2)
    tokens, logits, preempted = served(engine)
    assert preempted
    hold_dense(model, tokens, logits)
    assert all(manager.usage == 0.0 for manager in (scheduler.manager for scheduler in engine.schedulers))


def test_tokens_are_the_same_in_any_company() -> None:
    """ENG-1: alone without a cache and in one chunk, or among others in small ones, preempted: the same draws."""
    prompt, sampling = list(range(11)), Sampling(7, 1.0)
    alone = engine_of("plain", enable_caching=False)
    alone.add_request("a", prompt, max_tokens=8, sampling=sampling)
    crowd = engine_of("plain")
    for name, priority in (("x", 1), ("a", 0), ("y", 2)):
        crowd.add_request(
            name, prompt, max_tokens=8, sampling=sampling if name == "a" else Sampling(), priority=priority
        )
    tokens, _, preempted = served(crowd)
    assert "a" in preempted
    assert tokens["a"][11:] == alone.run()["a"]


# -- Host memory ----------------------------------------------------------------------------------

HOST = 30


def give_way(model: str, spare: int | None = None) -> tuple[Engine, dict[str, list[int]], Any, list[str]]:
    """Two share what there is, a third takes it, they come back; all tokens and logits, and which way swaps went.

    Args:
        model: the model.
        spare: the cache group whose pages are not written on the way back.
    """
    # Pages that no hit needs would be the next to be taken, and those of chunks not be written over.
    engine, ways = engine_of(model, num_host_pages=HOST, retention_interval=None), list[str]()
    swap = engine.runner.swap

    def swapped(plan: Any) -> None:
        assert not engine.schedulers[0].manager.take_page_copies()  # MAN-13: those asked for earlier have run
        ways.append(plan.direction)
        copies = [copy for copy in plan.copies if plan.direction == "out" or copy.group_id != spare]
        swap(plan._replace(copies=tuple(copies)))

    engine.runner.swap = swapped  # type: ignore[method-assign]
    for number in range(2):
        engine.add_request(f"low {number}", [(7 * at + number) % 24 for at in range(11)], max_tokens=8)
    before = [output for _ in range(3) for output in engine.step()]
    held = {page for number in range(2) for own in pages_of(engine, f"low {number}") for page in own}
    engine.add_request("high", [(5 * at + 3) % 24 for at in range(24)], max_tokens=4, priority=1)
    before += [output for _ in range(2) for output in engine.step()]
    assert (held & {page for own in pages_of(engine, "high") for page in own}) - {0}  # what they wrote is lost
    tokens, logits, _ = served(engine)
    for output in before:
        logits.setdefault(output.request_id, []).append((output.start, output.logits))
    return engine, tokens, logits, ways


def pages_of(engine: Engine, name: str) -> tuple[list[int], ...]:
    pages: tuple[list[int], ...] = engine.schedulers[0].manager.get_page_ids(name)
    return pages


@pytest.mark.parametrize("model", MODELS)
def test_requests_that_were_in_host_memory_go_on_as_if_they_had_stayed(model: str) -> None:
    """ENG-1, SWAP-1: of every kind of layers; others write over their pages, and nothing is computed twice."""
    engine, tokens, logits, ways = give_way(model)
    assert ways.count("out") == ways.count("in") >= 1
    hold_dense(model, tokens, logits)
    for name, parts in logits.items():
        assert sum(len(rows) for _, rows in parts) == len(tokens[name]) - 1
    manager = engine.schedulers[0].manager
    assert (manager.usage, manager.num_free_host_pages) == (0.0, HOST)


@pytest.mark.parametrize("group", range(len(MIXED)))
def test_pages_that_do_not_come_back_are_missed(group: int) -> None:
    """ENG-1: so the test above sees each kind of layers."""
    _, tokens, logits, _ = give_way("mixed", group)
    with pytest.raises(AssertionError):
        hold_dense("mixed", tokens, logits)


def test_host_pages_are_free_after_an_abort_at_any_time() -> None:
    """SWAP-1: before a request gives way, while it is away, and when it is back."""
    engine = engine_of("plain", num_host_pages=HOST)
    (scheduler,) = engine.schedulers
    for stage in range(3):
        engine.add_request("low", list(range(12)), max_tokens=12)
        engine.step()
        (low,) = scheduler.queue
        if stage:
            engine.add_request("high", list(range(23, 3, -1)), max_tokens=2, priority=1)
            while not low.is_away:
                engine.step()
            assert (low.preemptions, low.is_running) == (1, False)
            assert scheduler.manager.num_free_host_pages < HOST
        if stage == 2:
            while low.is_away:
                engine.step()
            assert low.is_running
        engine.abort("low")
        assert scheduler.manager.num_free_host_pages == HOST
        engine.run()
        assert scheduler.manager.usage == 0.0


def test_host_memory_that_cannot_be_had_is_refused() -> None:
    """R1, POOL-12."""
    mesh = jax.make_mesh((2, 1), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    with pytest.raises(ValueError, match=r"num_host_pages=4 must be 0 with 2 data shards \[R1\]"):
        engine_of("plain", mesh=mesh, num_host_pages=4)
    with pytest.raises(ValueError, match=r"num_host_pages=-1 must be at least 0 \[R1\]"):
        engine_of("plain", num_host_pages=-1)
    old = SimpleNamespace(CacheManager=object)
    with pytest.raises(ValueError, match=r"num_host_pages=4: the backend's manager takes none \[R1\]"):
        engine_of("plain", backend=Backend("old", old), num_host_pages=4)


# -- Hits amid pages ------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "sizes", "unit"), [("plain", 4, 1), ("mixed", [8, 4, 8, 8, 4], 2)])
def test_hits_amid_pages_give_what_is_computed_without_them(model: str, sizes: Any, unit: int) -> None:
    """ENG-1, MAN-17: of every kind of layers that copies slots; two alike come at once, and one gives way."""
    options = {"page_size": sizes, "num_pages": 2 * PAGES[model]}
    engines = [engine_of(model, **options, match_unit=unit), engine_of(model, **options, enable_caching=False)]
    draw = random.Random(1)
    common = [draw.randrange(24) for _ in range(22)]
    starts = []
    for turn in range(3):
        asked = [[*common[: draw.randint(6, 22)], draw.randrange(24)] for _ in range(3)]
        ends = []
        for engine in engines:
            for number, prompt in enumerate([asked[0], *asked]):
                engine.add_request(f"{turn} {number}", prompt, max_tokens=5, priority=number % 2)
            tokens, logits, _ = served(engine)
            hold_dense(model, tokens, logits)
            ends.append(tokens)
            starts += [parts[0][0] for parts in logits.values()]
        assert ends[0] == ends[1]
    assert any(start % 8 for start in starts)
    assert engines[0].schedulers[0].manager.usage == 0.0


def test_who_fits_the_pool_alone_is_served_also_without_room_for_what_it_would_copy() -> None:
    """ENG-2, MAN-17: the page that is copied from would be one too many; so nothing is hit."""
    engine = engine_of("plain", match_unit=2)
    generated = []
    for _ in range(2):
        engine.add_request("a", [at % 5 for at in range(27)], max_tokens=2)
        generated.append(engine.run()["a"])
    assert generated[0] == generated[1]
    counters = engine.schedulers[0].manager.counters
    assert (counters.requests, counters.hit_tokens) == (2, 0)


# -- Requests -------------------------------------------------------------------------------------


def test_an_aborted_request_leaves_what_it_computed() -> None:
    """MAN-5: its pages are found by the next, and its id can be used again."""
    engine = engine_of("plain")
    engine.add_request("a", list(range(10)), max_tokens=12)
    engine.step()
    engine.abort("a")
    engine.abort("a")
    assert engine.num_unfinished == 0
    engine.add_request("a", list(range(12)), max_tokens=1)
    (plan,) = engine.schedule()
    assert [(chunk.start, chunk.count) for chunk in plan.chunks] == [(8, 4)]
    assert engine.tokens_of("a") == list(range(12))
    (output,) = engine.execute([plan])
    assert output.is_finished
    hold_dense("plain", {"a": list(range(12))}, {"a": [(8, output.logits)]})


def test_a_request_ends_with_a_stop_token() -> None:
    engine = engine_of("plain", keep_logits=False)
    engine.add_request("a", [1, 2, 3], max_tokens=12)
    engine.step()
    (generated,) = engine.run().values()
    assert len(generated) == 12
    stop = generated[4]
    engine.add_request("b", [1, 2, 3], max_tokens=12, sampling=Sampling(stop_tokens=(stop,)))
    assert engine.run()["b"] == generated[: generated.index(stop) + 1]


@pytest.mark.parametrize(
    ("prompt", "options", "error", "says"),
    [
        ([], {}, ValueError, r"prompt of 'b' is empty \[R1\]"),
        ([24], {}, ValueError, r"prompt\[0\] is none of the vocabulary's 24 tokens \[R1\]"),
        ([1, -1], {}, ValueError, r"prompt\[1\] is none of .* \[R1\]"),
        (["1"], {}, TypeError, r"prompt\[0\] must be an int, not a str \[R1\]"),
        ([1] * 38, {"max_tokens": 3}, ValueError, r"'b' has 38 tokens and max_tokens=3, the model takes 40 in all"),
        ([1] * 30, {}, ValueError, r"'b' needs 8 pages at once for 30 \+ 1 tokens, the pool has 7 \[ENG-2\]"),
        ([1], {"max_tokens": 0}, ValueError, r"max_tokens=0 must be at least 1 \[R1\]"),
        ([1], {"sampling": 3}, TypeError, r"sampling=3 must be a Sampling \[R1\]"),
        ([1], {"priority": None}, TypeError, r"priority=None must be an int \[R1\]"),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(
    prompt: Any, options: dict[str, Any], error: type[Exception], says: str
) -> None:
    """ENG-2, R1, SEC-2: and nothing has changed."""
    engine = engine_of("plain")
    engine.add_request("a", [1, 2], max_tokens=1)
    with pytest.raises(error, match=says):
        engine.add_request("b", prompt, **({"max_tokens": 1} | options))
    assert engine.num_unfinished == len(engine.schedulers[0].queue) == 1


def test_an_id_in_use_is_refused_and_so_are_strange_engines() -> None:
    """R1."""
    engine = engine_of("plain")
    engine.add_request("a", [1], max_tokens=1)
    with pytest.raises(ValueError, match=r"request_id='a' is that of an unfinished request \[R1\]"):
        engine.add_request("a", [2], max_tokens=1)
    with pytest.raises(TypeError, match=r"request_id=1 must be a str"):
        engine.add_request(1, [2], max_tokens=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"platform='gpu' must be one of xla, interpret"):
        engine_of("plain", platform="gpu")
    with pytest.raises(ValueError, match=r"page_size names 2 groups, the model has 1"):
        engine_of("plain", page_size=[4, 4])


@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda pair: pair[0] != pair[1])), max_size=2
    )
)
def test_copies_made_at_once_are_those_made_in_order(shards: list[list[tuple[int, ...]]]) -> None:
    """MAN-13: a page that one copy reads or writes is not written by another in the same turn."""
    in_order = [list(range(6)) for _ in shards]
    at_once = [list(range(6)) for _ in shards]
    for pages, pairs in zip(in_order, shards, strict=True):
        for source, target in pairs:
            pages[target] = pages[source]
    for turn in copy_turns(shards):
        for pages, pairs in zip(at_once, turn, strict=True):
            read = [(target, pages[source]) for source, target in pairs]
            assert not {source for source, _ in pairs} & {target for _, target in pairs}
            for target, value in read:
                pages[target] = value
    assert at_once == in_order


def test_interpreted_kernels_take_the_place_of_compiled_ones_and_their_races_are_told() -> None:
    """ENG-1: here with compiled functions behind the kernels' names, as the interpreter would need seconds."""
    minds = [""]

    def attend(*arrays: Any, **options: Any) -> Any:
        return SimpleNamespace(output=fast.ragged_paged_attention(*map(jnp.asarray, arrays), **options), minds=minds[0])

    def update(*arrays: Any) -> Any:
        return SimpleNamespace(output=fast.kv_cache_update(*map(jnp.asarray, arrays)), minds="")

    kernels = SimpleNamespace(attend=attend, update=update)
    names = {name: getattr(fast, name) for name in fast.__all__} | {"tpu_kernels": kernels}
    engine = engine_of("plain", backend=Backend("kernels", SimpleNamespace(**names)), platform="interpret")
    engine.add_request("a", [5, 6, 7], max_tokens=3)
    (output,) = engine.step()
    hold_dense("plain", {"a": [5, 6, 7]}, {"a": [(0, output.logits)]})
    minds[0] = "a race"
    with pytest.raises(RuntimeError, match="the interpreter reports: a race"):
        engine.step()
    with pytest.raises(ValueError, match=r"platform='interpret' takes one device, no sinks and no mla layers"):
        engine_of("mixed", platform="interpret")
