"""What runs a planned step: tables to the device, one compiled program, logits back.

S is the rows of a shard's tables, T the rows of a shard's step with padding, of few sizes, so that few programs are
compiled: one for each size and each number of logits asked for.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from kvproof.spec.declarations import PageCopy, PartCopy, SwapPlan
from kvproof.spec.reading.arguments import refusal

from ..backends.loading import Backend
from .config import ModelConfig
from .eager_mixers import HostMixer, InterpretedMixer
from .groups import LayerGroup
from .host_memory import HostMemory
from .mixers import Calls, PagedMixer
from .model import Params, forward
from .plans import Chunk, Plan

__all__ = ["PLATFORMS", "Runner", "copy_turns"]

PLATFORMS = ("xla", "interpret")
"""By what attention and updates are computed: what JAX compiles, or the kernels for a TPU, interpreted."""

_LANES = 128


class Runner:
    """Runs steps of a model on the caches of its layers.

    Args:
        config: the model.
        params: its weights.
        backend: whose caches and functions are used.
        groups: the model's cache groups.
        tables: of each data shard the ``MultiGroupPageTable``.
        num_pages: pages of each data shard's pool.
        max_num_seqs: rows of the tables.
        max_num_batched_tokens: the most tokens of a shard's step.
        layout: ``"v2"``, ``"v3"`` or ``"seq_on_lane"``.
        platform: one of `PLATFORMS`.
        mesh: the devices, with axes ``dp`` (data shards) and ``tp`` (KV heads); None for one device.
        optimise: whether programs are compiled to be fast, or to be compiled fast.

    Attributes:
        caches: of each layer.
        builders: of each size of a step what makes the metadata of the cache groups.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Params,
        backend: Backend,
        groups: Sequence[LayerGroup],
        tables: Sequence[Any],
        num_pages: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        layout: str,
        platform: str,
        mesh: Mesh | None,
        optimise: bool,
    ) -> None:
        self.config, self.params, self._groups, self._tables, self._backend = config, params, groups, tables, backend
        self._mesh, self._max_num_seqs, self._program = mesh, max_num_seqs, _PROGRAMS[optimise]
        group_of = {layer: number for number, group in enumerate(groups) for layer in group.layers}
        latent = any(group.kind.kind == "mla" for group in groups)
        self._calls = Calls(
            tuple(group_of[layer] for layer in range(config.num_layers)),
            len(tables),
            mesh,
            backend.get("mla_cache_update") if latent else None,
            backend.get("mla_paged_attention") if latent else None,
        )
        self._kernels = self._interpreted(backend) if platform == "interpret" else None
        made = [_caches(config, backend, group, num_pages, layout, mesh) for group in groups]
        self.caches = [made[group_of[layer]].pop(0) for layer in range(config.num_layers)]
        self._host = HostMemory(backend, groups)
        self._on_host = not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(self.caches))
        if self._on_host and mesh is not None:
            raise refusal(ValueError, "R1", f"mesh={dict(mesh.shape)}: the backend's caches are on the host")
        self._rules, self._metadata = backend.get("MultiGroupMetadataBuilder"), backend.get("RaggedPagesMetadata")
        pages = (
            [group.page_size for group in groups],
            max_num_seqs,
            [one.max_num_pages_per_req for one in tables[0].page_tables],
        )
        sizes = self._rules(*pages, max_num_batched_tokens).token_sizes
        self.builders = {size: self._rules(*pages, size, layout, token_sizes=[size]) for size in sizes}
        if mesh is not None:
            self.params = jax.device_put(params, NamedSharding(mesh, _partition()))

    def _interpreted(self, backend: Backend) -> Any:
        """The backend's interpreted kernels, where they can serve the model."""
        config = self.config
        kinds = {layer.kind for layer in config.layers}
        if self._mesh is not None or config.sinks or kinds & {"mla"}:
            raise refusal(ValueError, "R1", "platform='interpret' takes one device, no sinks and no mla layers")
        return backend.get("tpu_kernels")

    # -- Steps ----------------------------------------------------------------------------------------------------

    def run(
        self, plans: Sequence[Plan], copies: Sequence[Sequence[PageCopy | PartCopy]], every: bool
    ) -> list[NDArray[np.float32]]:
        """Runs a step.

        Args:
            plans: of each data shard, who computes what.
            copies: of each data shard, the copies to run before (MAN-13, MAN-17).
            every: whether the logits of all rows are wanted, or of each chunk's last alone.

        Returns:
            For each chunk of all plans in turn its logits, `f32[rows, V]`.
        """
        self.copy(copies)
        chunks = [sorted(plan.chunks, key=lambda chunk: chunk.served.row) for plan in plans]
        most = max(sum(chunk.count for chunk in own) for own in chunks)
        size = next(size for size in self.builders if size >= most)
        steps = self._built(self.builders[size], chunks)
        tokens, wanted, places = self._gathered(chunks, size, every)
        logits, self.caches = self._computed(tokens, wanted, steps)
        rows = np.asarray(logits)
        return [rows[places[chunk]] for plan in plans for chunk in plan.chunks]

    def copy(self, copies: Sequence[Sequence[PageCopy | PartCopy]]) -> None:
        """Runs the copies of each data shard, in their order: of states, and of pages' first slots (MAN-13, MAN-17)."""
        if not any(copies):
            return
        for number, group in enumerate(self._groups):
            own = [[copy[1:] for copy in shard if copy.group_id == number] for shard in copies]
            for turn in copy_turns(own):
                width = 2 if group.kind.kind == "state" else 3
                rows = [_padded([[order[side] for order in orders] for orders in turn]) for side in range(width)]
                self._copied(group, rows if len(own) > 1 else [numbers[0] for numbers in rows])

    def _copied(self, group: LayerGroup, rows: list[Any]) -> None:
        """Copies pages in each layer of a group: sources, destinations, slots, in rows where there are data shards."""
        own = [self.caches[layer] for layer in group.layers]
        match group.kind.kind:
            case "state":
                own = [room.copy_pages(*rows) for room in own]
            case "mla":
                orders = [np.array(numbers, np.int32).reshape(-1) for numbers in rows]
                own = self._calls.per_shard(self._backend.get("copy_pages"))(own, *orders)
            case _:
                own = self._backend.get("RaggedPagesCache")(own).copy_pages(*rows).views
        for layer, cache in zip(group.layers, own, strict=True):
            self.caches[layer] = cache

    def swap(self, plan: SwapPlan) -> None:
        """Runs the copies of a swap; on one data shard (SWAP-1)."""
        self._host.move(plan, self.caches)

    def _built(self, builder: Any, chunks: Sequence[Sequence[Chunk]]) -> list[Any]:
        """The metadata of each cache group."""
        shards = []
        for tables, own in zip(self._tables, chunks, strict=True):
            computed, scheduled = np.zeros((2, 1 + max((chunk.served.row for chunk in own), default=-1)), np.int64)
            for chunk in own:
                computed[chunk.served.row], scheduled[chunk.served.row] = chunk.start, chunk.count
            shards.append(builder.build(tables, computed, scheduled))
        return (
            shards[0]
            if len(shards) == 1
            else [self._metadata.stack(list(steps)) for steps in zip(*shards, strict=True)]
        )

    def _gathered(
        self, chunks: Sequence[Sequence[Chunk]], size: int, every: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], dict[Chunk, slice]]:
        """The step's tokens, the rows whose logits are wanted, and where each chunk's stand among those."""
        tokens = np.zeros(len(chunks) * size, np.int32)
        wanted = (
            np.arange(len(chunks) * size, dtype=np.int32)
            if every
            else np.zeros(len(chunks) * self._max_num_seqs, np.int32)
        )
        places: dict[Chunk, slice] = {}
        for shard, own in enumerate(chunks):
            row = shard * size
            for chunk in own:
                tokens[row : row + chunk.count] = chunk.served.request.all_token_ids[chunk.start : chunk.end]
                if not every:
                    wanted[len(places)] = row + chunk.count - 1
                places[chunk] = slice(row, row + chunk.count) if every else slice(len(places), len(places) + 1)
                row += chunk.count
        return tokens, wanted, places

    def _computed(self, tokens: NDArray[np.int32], wanted: NDArray[np.int32], steps: list[Any]) -> Any:
        """The logits wanted, and the caches after the step."""
        mixer = self._eager(steps)
        if mixer is not None:
            logits = forward(self.params, self.config, jnp.asarray(tokens), jnp.asarray(steps[0].position_ids), mixer)
            return logits[wanted], mixer.caches
        return self._program(self.params, self.caches, tokens, wanted, steps, self.config, self._calls)

    def _eager(self, steps: list[Any]) -> PagedMixer | None:
        """The mixer of a step that no program is made of; None where one is."""
        given = self.config, self._calls, self.caches, steps
        if self._kernels is not None:
            return InterpretedMixer(self._kernels, *given)
        return HostMixer(*given) if self._on_host else None


def _step(
    params: Params,
    caches: list[Any],
    tokens: jax.Array,  # i32[shards * T]
    wanted: jax.Array,  # i32[n]
    steps: list[Any],
    config: ModelConfig,
    calls: Calls,
) -> tuple[jax.Array, list[Any]]:
    """The logits wanted, `f32[n, V]`, and the caches, written in place."""
    mixer = PagedMixer(config, calls, caches, steps)
    logits = forward(params, config, tokens, steps[0].position_ids, mixer)
    return logits[wanted], mixer.caches


_compiled = partial(jax.jit, static_argnames=("config", "calls"), donate_argnames="caches")
_PROGRAMS: dict[bool, Callable[..., Any]] = {
    True: _compiled(_step),
    False: _compiled(_step, compiler_options={"xla_backend_optimization_level": 0}),
}
"""A step's program, optimised or not: what runs for a second is not worth seconds of compiling."""


def _caches(
    config: ModelConfig, backend: Backend, group: LayerGroup, num_pages: int, layout: str, mesh: Mesh | None
) -> list[Any]:
    """The caches of a group's layers."""
    shape = {} if mesh is None else dict(mesh.shape)
    shards = shape.get("dp", 1)
    rules = backend.get("AxisRules")()
    if group.kind.kind == "state":
        room = backend.get("StatePages")
        return [room.init(mesh, group.declared.kv_cache_spec, num_pages, rules) for _ in group.layers]
    if group.kind.kind == "mla":
        width = sum(-(-size // _LANES) * _LANES for size in (config.latent_rank, config.rotary_size))
        pages = np.zeros((shards * num_pages, group.page_size, width), jnp.dtype(config.dtype))
        place = None if mesh is None else NamedSharding(mesh, _partition("dp" if "dp" in shape else None))
        return [jax.device_put(pages, place) for _ in group.layers]
    metadata = backend.get("RaggedPagesCacheMetaData")(
        len(group.layers),
        config.max_model_len,
        config.num_kv_heads,
        config.head_size,
        config.head_size,
        page_size=group.page_size,
        num_pages=num_pages,
        version=layout,
        _kvdtype_str=config.dtype,
        num_head_shards=shape.get("tp", 1),
        num_page_shards=shards,
    )
    views: list[Any] = backend.get("RaggedPagesCache").init_cache(mesh, metadata, rules).views
    return list(views)


def _partition(*axes: str | None) -> PartitionSpec:
    made: Any = PartitionSpec
    spec: PartitionSpec = made(*axes)
    return spec


Orders = list[tuple[int, ...]]


def copy_turns(copies: Sequence[Sequence[tuple[int, ...]]]) -> Iterator[list[Orders]]:
    """Copies in turns that can be made at once: in none is a page written twice, or written and read (MAN-13).

    Args:
        copies: of each shard (source, destination), and what more there is of each, in their order.

    Yields:
        Of each shard the copies of the turn.
    """
    left = [list(orders) for orders in copies]
    while any(left):
        turn: list[Orders] = []
        for orders in left:
            taken: Orders = []
            while orders and not _meets(taken, orders[0]):
                taken.append(orders.pop(0))
            turn.append(taken)
        yield turn


def _meets(taken: Orders, order: tuple[int, ...]) -> bool:
    """Whether a copy can't be made together with some that come before it."""
    sources, targets = {other[0] for other in taken}, {other[1] for other in taken}
    return order[1] in sources | targets or order[0] in targets


def _padded(rows: list[list[int]]) -> list[list[int]]:
    """Lists of ids, made as long as the longest with -1."""
    most = max(map(len, rows))
    return [[*row, *[-1] * (most - len(row))] for row in rows]
