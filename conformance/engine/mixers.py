"""How the rows of a step see each other through pages: what a model's `Mixer` is in this engine.

T is the rows of a step over all shards, S the rows of the tables over all shards. Each kind of layer has a cache of
its own: keys and values in a ``RaggedPagesCacheView``, latents in an array ``[P, page, width]``, states in
``StatePages``. A step's keys are written before any is read (ATT-5), so that a request may hit what another one
writes in the same step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from .config import ModelConfig

__all__ = ["Calls", "PagedMixer"]

Array = jax.Array

_shards: Callable[..., PartitionSpec] = PartitionSpec


@dataclass(frozen=True)
class Calls:
    """What a mixer calls beside the methods of the caches. Hashable: a program is compiled for it.

    Attributes:
        group_of: the cache group of each layer.
        num_shards: data shards, each with rows, pages and ids of its own.
        mesh: the devices; None for one.
        mla_update: the backend's ``mla_cache_update``; None where no layer needs it.
        mla_attend: its ``mla_paged_attention``; the same.
    """

    group_of: tuple[int, ...]
    num_shards: int = 1
    mesh: Mesh | None = None
    mla_update: Callable[..., Any] | None = None
    mla_attend: Callable[..., Any] | None = None

    def per_shard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of arrays as it is called for each data shard's parts of them."""
        if self.mesh is None:
            return function
        part = _shards("dp" if "dp" in self.mesh.shape else None)
        return jax.shard_map(function, mesh=self.mesh, in_specs=part, out_specs=part, check_vma=False)


class PagedMixer:
    """The rows of a step see what their tables name. Made in each traced step; see `model.Mixer`.

    Args:
        config: the model.
        calls: what it calls.
        caches: of each layer; the mixer keeps those of the step's end.
        steps: of each cache group the ``RaggedPagesMetadata``.

    Attributes:
        caches: of each layer, as of the last call.
    """

    def __init__(self, config: ModelConfig, calls: Calls, caches: Sequence[Any], steps: Sequence[Any]) -> None:
        self.config, self.calls, self.caches, self._steps = config, calls, list(caches), steps

    def attend(self, layer: int, queries: Array, keys: Array, values: Array, *, sinks: Array | None) -> Array:
        """Writes keys and values, then attends (ATT-1, ATT-5); see `model.Mixer`."""
        out, self.caches[layer] = self.caches[layer].update_and_attend(
            queries, keys, values, self._step(layer), sinks=sinks, **self._options(layer)
        )
        return jnp.asarray(out)

    def attend_latent(
        self, layer: int, queries: Array, rotary_queries: Array, latents: Array, rotary: Array, *, scale: float
    ) -> Array:
        """Writes latents, then attends to them (ATT-5); see `model.Mixer`."""
        update, attend, step = self.calls.mla_update, self.calls.mla_attend, self._step(layer)
        assert update is not None
        assert attend is not None

        def both(pages: Array, step: Any, *rows: Array) -> tuple[Array, Array]:
            queries, rotary_queries, latents, rotary = rows
            pages = update(pages, latents, rotary, step.slot_mapping)
            batch = (step.context_lens, step.pages_tables, step.query_start_loc, step.num_seqs)
            return attend(queries, rotary_queries, pages, *batch, scale=scale, soft_cap=self.config.soft_cap), pages

        rows = (queries, rotary_queries, latents, rotary)
        out: Array
        out, self.caches[layer] = self.calls.per_shard(both)(self.caches[layer], step, *rows)
        return out

    def advance(self, layer: int, decay: Array, inputs: Array) -> Array:
        """Goes on from each request's state, and keeps the one that the step ends with (MAN-13); see `model.Mixer`."""
        room, step = self.caches[layer], self._step(layer)
        first, last, is_row = self._rows(step, len(decay))
        ends = step.context_lens
        lengths = last - first + 1
        places = jnp.maximum(ends - 1, 0) // step.page_size
        pages = jnp.take_along_axis(step.pages_tables, places[:, None], axis=1)[:, 0]
        is_there = lengths > 0
        (before,) = room.read(jnp.where(is_there & (ends > lengths), pages, -1))
        at = jnp.where(is_there, first, len(decay))
        begins = jnp.zeros(len(decay), bool).at[at].set(True, mode="drop")[:, None, None]
        carried = jnp.zeros_like(inputs).at[at].set(before, mode="drop")
        entering = jnp.where(is_row[:, None, None], inputs + jnp.where(begins, decay * carried, 0), 0)
        kept = jnp.where(begins | ~is_row[:, None, None], 0, decay)
        states: Array
        _, states = jax.lax.associative_scan(_one_after_the_other, (kept, entering))
        self.caches[layer] = room.write(jnp.where(is_there, pages, -1), (states[jnp.where(is_there, last, 0)],))
        return states

    # -- Inside ---------------------------------------------------------------------------------------------------

    def _step(self, layer: int) -> Any:
        return self._steps[self.calls.group_of[layer]]

    def _options(self, layer: int) -> dict[str, Any]:
        config = self.config
        options = {"window": config.window_of(layer), "chunk": config.chunk_of(layer), "soft_cap": config.soft_cap}
        return {"scale": config.scale_of(layer)} | {name: value for name, value in options.items() if value is not None}

    def _rows(self, step: Any, num_rows: int) -> tuple[Array, Array, Array]:
        """Each sequence's first and last row, `i32[S]` (last < first for none); which rows are some's, `bool[T]`."""
        shards = self.calls.num_shards
        starts = step.query_start_loc.reshape(shards, -1)
        begin = jnp.arange(shards, dtype=jnp.int32)[:, None] * (num_rows // shards)
        inside = jnp.arange(num_rows // shards)[None] < starts[:, -1:]
        return (begin + starts[:, :-1]).reshape(-1), (begin + starts[:, 1:] - 1).reshape(-1), inside.reshape(-1)


def _one_after_the_other(before: tuple[Array, Array], after: tuple[Array, Array]) -> tuple[Array, Array]:
    """Two steps of ``s = kept * s + entering`` as one."""
    return before[0] * after[0], after[0] * before[1] + after[1]
