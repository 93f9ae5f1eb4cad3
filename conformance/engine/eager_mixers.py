"""Mixers that no program is made of: for caches on the host, and for kernels that are interpreted."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .config import ModelConfig
from .mixers import Calls, PagedMixer

__all__ = ["HostMixer", "InterpretedMixer"]

Array = jax.Array


class HostMixer(PagedMixer):
    """The same with caches that hold numpy arrays, as the specification's do: never traced, and slow."""

    def attend(self, layer: int, queries: Array, keys: Array, values: Array, *, sinks: Array | None) -> Array:
        """See `PagedMixer.attend`."""
        given: Any = [np.asarray(array) for array in (queries, keys, values)]
        return super().attend(layer, *given, sinks=None if sinks is None else np.asarray(sinks))  # type: ignore[arg-type]

    def attend_latent(
        self, layer: int, queries: Array, rotary_queries: Array, latents: Array, rotary: Array, *, scale: float
    ) -> Array:
        """See `PagedMixer.attend_latent`."""
        given: Any = [np.asarray(array) for array in (queries, rotary_queries, latents, rotary)]
        self.caches[layer] = np.asarray(self.caches[layer])
        return jnp.asarray(super().attend_latent(layer, *given, scale=scale))

    def advance(self, layer: int, decay: Array, inputs: Array) -> Array:
        """See `PagedMixer.advance`; token by token, on one shard."""
        step = self._step(layer)
        kept, entering = np.asarray(decay), np.asarray(inputs)
        states = np.zeros_like(entering)
        for row in range(int(step.num_seqs[0])):
            first, end = (int(place) for place in step.query_start_loc[row : row + 2])
            length = int(step.context_lens[row])
            if first == end:
                continue
            page = np.array([step.pages_tables[row, (length - 1) // step.page_size]], np.int32)
            (state,) = self.caches[layer].read(page if length > end - first else np.array([-1], np.int32))
            for place in range(first, end):
                states[place] = state = kept[place : place + 1] * state + entering[place : place + 1]
            self.caches[layer] = self.caches[layer].write(page, [state])
        return jnp.asarray(states)


class InterpretedMixer(PagedMixer):
    """The same with the backend's kernels for a TPU, interpreted: a thousand times slower, and never traced.

    Args:
        kernels: the backend's ``tpu_kernels``.
        config: the model.
        calls: what it calls.
        caches: of each layer.
        steps: of each cache group.
    """

    def __init__(
        self, kernels: Any, config: ModelConfig, calls: Calls, caches: Sequence[Any], steps: Sequence[Any]
    ) -> None:
        super().__init__(config, calls, caches, steps)
        self._kernels = kernels

    def attend(self, layer: int, queries: Array, keys: Array, values: Array, *, sinks: Array | None) -> Array:
        """Writes, then attends, by interpreted kernels; see `model.Mixer`.

        Raises:
            RuntimeError: the interpreter reports a race, or a semaphore that is left over.
        """
        assert sinks is None
        step, view = self._step(layer), self.caches[layer]
        options = self._options(layer)
        queries = queries * (options.pop("scale") * queries.shape[2] ** 0.5)
        written = self._ran(self._kernels.update(view.kv_pages, keys, values, step.slot_mapping))
        self.caches[layer] = view.replace(kv_pages=jnp.asarray(written))
        batch = (step.context_lens, step.pages_tables, step.query_start_loc, step.num_seqs)
        heads = self.config.num_kv_heads
        return jnp.asarray(self._ran(self._kernels.attend(queries, written, *batch, num_kv_heads=heads, **options)))

    def _ran(self, run: Any) -> Any:
        if run.minds:
            raise RuntimeError(f"the interpreter reports: {run.minds}")
        return np.asarray(run.output)
