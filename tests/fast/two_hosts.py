"""One of two hosts that serve requests on a mesh of both: what `test_two_hosts` runs as processes of their own.

``python -m tests.fast.two_hosts PORT NUMBER TELL HEAR OUT``: the port of the first host, this host's number, the file
descriptor by which it tells the other of its events, the one by which it hears of them, and where its results go.
"""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from kvproof import fast
from kvproof.kernels import write_cells

PAGE, PAGES, ROWS, LENGTH, BUDGET, HEADS, G, DIM, VOCABULARY = 4, 15, 3, 32, 8, 4, 2, 32, 50
STEPS = 30
_SHAPE: dict[str, Any] = {"page_size": PAGE, "num_kv_heads": HEADS, "head_size": DIM, "dtype": "float32"}
GROUPS = [
    fast.CacheGroupSpec(fast.FullAttentionSpec(**_SHAPE)),
    fast.CacheGroupSpec(fast.SlidingWindowSpec(**_SHAPE, sliding_window=6)),
]
"""The model has layers of the first; those of the second, which are dear to compile, are thought of only."""


class Shard:
    """The requests of one shard, and how they are scheduled: a manager, tables, and a little engine around them.

    Args:
        number: which shard; its requests are made from it.
        sharding: where the tables lie.
    """

    def __init__(self, number: int, sharding: NamedSharding | None = None) -> None:
        self.manager = fast.CacheManager(PAGES, GROUPS, LENGTH, hash_seed=b"two hosts", enable_events=True)
        self.tables = fast.MultiGroupPageTable(ROWS, LENGTH, BUDGET, [PAGE, PAGE], sharding=sharding)
        self._builder = fast.MetadataBuilder(PAGE, ROWS, LENGTH // PAGE, BUDGET, "v3", token_sizes=[BUDGET])
        draw = np.random.default_rng(number)
        prompts = [draw.integers(VOCABULARY, size=9).tolist() for _ in range(2)]
        self.requests = [
            fast.Request(
                f"{number} {place}", prompts[place % 3 == 2] + draw.integers(VOCABULARY, size=place % 4).tolist()
            )
            for place in range(8)
        ]
        self._waiting = self.requests[::-1]
        self._goal = {request.request_id: request.num_tokens + 5 for request in self.requests}
        self._running: list[tuple[fast.Request, int]] = []
        """Each with its tokens in this step; in the order of the rows."""
        self.num_commits = 0

    def plan(self) -> tuple[np.ndarray[Any, np.dtype[np.int32]], list[fast.RaggedPagesMetadata]]:
        """Schedules a step: its tokens, `i32[BUDGET]`, and where they are, for each group."""
        left, planned = BUDGET, []
        for request, _ in self._running:
            count = min(request.num_tokens - request.num_computed_tokens, left)
            if count and self.manager.allocate_slots(request, count) is None:
                count = 0
                self.manager.free(request)
                request.num_computed_tokens = 0
                self._waiting.append(request)
                continue
            planned.append((request, count))
            left -= count
        while left and self._waiting and len(planned) < ROWS:
            request = self._waiting[-1]
            pages, found = self.manager.create_empty_page_list(), 0
            if len(self._waiting) % 3:  # not always: what is computed twice is cached twice
                pages, found = self.manager.get_computed_pages(request)
            count = min(request.num_tokens - found, left)
            if self.manager.allocate_slots(request, count, found, pages) is None:
                break
            request.num_computed_tokens = found
            planned.append((self._waiting.pop(), count))
            left -= count
        self._running = planned
        for row, (request, _) in enumerate(planned):
            self.tables.add_row(self.manager.get_page_ids(request.request_id), row)
        computed = [request.num_computed_tokens for request, _ in planned]
        counts = [count for _, count in planned]
        with mock.patch("kvproof.fast.table.page_table.write_cells", wraps=write_cells) as sent:
            steps = [self._builder.build(table, computed, counts) for table in self.tables.page_tables]
        self.num_commits += sent.call_count
        scheduled = [
            token
            for (request, count), first in zip(planned, computed, strict=True)
            for token in request.all_token_ids[first : first + count].tolist()
        ]
        return np.array(scheduled + [0] * left, np.int32), steps

    def take(self, sampled: list[int]) -> None:
        """Takes what came of the step's tokens, and lets go of the requests that are done."""
        end, running = 0, []
        for request, count in self._running:
            end += count
            request.num_computed_tokens += count
            if count and request.num_computed_tokens == request.num_tokens:
                request.append(sampled[end - 1])
            if request.num_tokens < self._goal[request.request_id]:
                running.append((request, count))
            else:
                self.manager.free(request)
                self._goal.pop(request.request_id)
        self._running = running

    @property
    def done(self) -> bool:
        """Whether every request is."""
        return not self._goal


def serve(
    shard: Shard,
    mesh: Mesh | None,
    num_shards: int,
    spread: Callable[[Any], Any] = lambda part: part,
    on_step: Callable[[], None] = lambda: None,
) -> fast.RaggedPagesCache:
    """Serves all requests of a shard, in as many steps on every host; the cache as it is then.

    Args:
        shard: this process's.
        mesh: the devices of all processes; None: one device.
        num_shards: how many shards there are, over all processes.
        spread: makes arrays of all processes of a pytree of this one's, which are its part of them.
        on_step: called after each step.
    """
    heads = mesh.shape["tp"] if mesh is not None else 1
    metadata = fast.RaggedPagesCacheMetaData(
        *(1, LENGTH, HEADS, DIM, DIM), page_size=PAGE, num_pages=PAGES, version="v3", _kvdtype_str="f32",
        num_head_shards=heads, num_page_shards=num_shards,
    )  # fmt: skip
    cache = fast.RaggedPagesCache.init_cache(mesh, metadata, fast.AxisRules())
    weights = _weights()
    for _ in range(STEPS):
        tokens, steps = shard.plan()
        best, cache.views[0] = _model(cache.views[0], spread(tokens), spread(steps[0]), weights, mesh)
        place = 0 if num_shards == 1 else jax.process_index()
        shard.take(np.asarray(best)[place * BUDGET : (place + 1) * BUDGET].tolist())
        on_step()
    assert shard.done
    return cache


def _split(mesh: Mesh, *axes: str) -> NamedSharding:
    """Arrays over some axes of a mesh."""
    spec: Any = PartitionSpec
    return NamedSharding(mesh, spec(*axes))


def _weights() -> dict[str, Any]:
    draw = np.random.default_rng(0).standard_normal
    sizes = {"embed": (VOCABULARY, DIM), "place": (LENGTH, DIM), "out": (HEADS * G, DIM, DIM)}
    sizes |= {"head": (DIM, VOCABULARY), "q": (DIM, HEADS * G, DIM), "k": (DIM, HEADS, DIM), "v": (DIM, HEADS, DIM)}
    return {name: np.asarray(draw(size) / 4, np.float32) for name, size in sizes.items()}


@partial(jax.jit, donate_argnums=0, static_argnames="mesh")
def _model(view: Any, tokens: Any, step: Any, weights: dict[str, Any], mesh: Mesh | None) -> tuple[jax.Array, Any]:
    """A layer: the likeliest token after each of a step's, on every device; and its pages."""
    x = weights["embed"][tokens] + weights["place"][step.position_ids]
    q, k, v = (jnp.einsum("td,dhe->the", x, weights[name]) for name in "qkv")
    view = view.concatenate_to_cache(k, v, step)
    out = view.attend(q, step)
    x += jnp.einsum("the,hed->td", out, weights["out"])
    best = jnp.argmax(x @ weights["head"], axis=-1)
    if mesh is not None:
        constrained: Any = jax.lax.with_sharding_constraint
        best = constrained(best, _split(mesh))
    return best, view


# -- One host ---------------------------------------------------------------------------------------------


def cached_map(pages: Any) -> list[Any]:
    """A cached map, a manager's or a follower's, as JSON has it: in the order of its keys."""
    keys = {key: [getattr(page, "page_id", page) for page in pages[key]] for key in pages}
    return sorted([key.group_id, key.get_hash_value().hex(), own] for key, own in keys.items())


def main() -> None:
    """Serves as one of two hosts."""
    port, number, tell, hear, out = *map(int, sys.argv[1:5]), Path(sys.argv[5])
    configure: Any = jax.config.update
    configure("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, number, initialization_timeout=60)
    results: dict[str, Any] = {}
    devices = np.array(jax.devices())
    assert len(jax.local_devices()) == 2
    assert len(devices) == 4

    # Pages over the hosts, heads over each host's devices: a host schedules its own shard, and tells the other of it.
    mesh = Mesh(devices.reshape(2, 2), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    parts = _split(mesh, "dp")

    whole: Any = jax.make_array_from_process_local_data

    def spread(part: Any) -> Any:
        return jax.tree.map(lambda array: whole(parts, np.asarray(array)), part)

    shard, follower = Shard(number), fast.CacheFollower()
    with os.fdopen(tell, "w") as pipe, os.fdopen(hear) as other:

        def told() -> None:
            manager = shard.manager
            line = fast.events_to_json(manager.take_events())
            print(
                line,
                json.dumps(cached_map(manager.page_pool.cached_page_hash_to_page)),
                sep="\n",
                file=pipe,
                flush=True,
            )
            heard, theirs = other.readline(), json.loads(other.readline())
            follower.apply(fast.events_from_json(heard))
            follower.check()
            assert cached_map(follower.cached_page_hash_to_page) == theirs
            results.setdefault("heard", []).append([json.loads(heard), theirs])

        cache = serve(shard, mesh, 2, spread, told)
    _refuses(cache, follower, shard, spread, json.dumps(results["heard"][0][0]))
    results["pages"] = _result(shard, cache)

    # Heads over the devices of both hosts: each host does the same, and sends the tables to its own devices.
    mesh = Mesh(devices.reshape(1, 4), ("dp", "tp"), axis_types=(AxisType.Auto,) * 2)
    shard = Shard(0, _split(mesh))
    cache = serve(shard, mesh, 1)
    for table in shard.tables.page_tables:
        table.check()
    results["heads"] = _result(shard, cache)
    out.write_text(json.dumps(results))


def _result(shard: Shard, cache: fast.RaggedPagesCache) -> dict[str, Any]:
    return {
        "tokens": {request.request_id: request.all_token_ids.tolist() for request in shard.requests},
        "commits": shard.num_commits,
        "cache": cache.to_dict(),
    }


def _refuses(cache: Any, follower: fast.CacheFollower, shard: Shard, spread: Callable[[Any], Any], first: str) -> None:
    """R1: bad input is refused on every host alike, and changes nothing."""
    view, before = cache.views[0], cached_map(follower.cached_page_hash_to_page)
    _, steps = shard.plan()
    queries = np.zeros((2 * BUDGET, HEADS * G, DIM), np.float32)
    bad: list[tuple[str, Callable[[], Any]]] = [
        ("CACHE-5", lambda: view.attend(queries, steps[0])),  # this host's shard alone
        ("CACHE-5", lambda: view.attend(spread(queries[:1])[:1], spread(steps[0]))),
        ("CACHE-5", lambda: fast.RaggedPagesCache.init_cache(None, view.metadata, fast.AxisRules())),
        ("MAN-12", lambda: follower.apply(fast.events_from_json(first) * 2)),
        ("SEC-3", lambda: follower.apply(fast.events_from_json(first[:-1]))),
    ]
    for clause, call in bad:
        with pytest.raises(ValueError, match=clause):
            call()
    assert cached_map(follower.cached_page_hash_to_page) == before


if __name__ == "__main__":
    main()
