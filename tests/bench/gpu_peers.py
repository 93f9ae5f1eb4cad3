"""Attention of others on the same GPU: over keys and values that lie side by side, without pages, which is easier.

They take batches whose sequences are alike. Of what isn't installed, or doesn't take a batch, the reason is given.
"""

from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

from .gpu_timing import seconds_a_turn
from .gpu_workloads import Workload

__all__ = ["PEERS", "uneven"]

_WARM, _RUNS = 3, 20


def uneven(workload: Workload) -> str | None:
    """Why a batch can't be given to those who take keys and values of one length only, or None."""
    if len(set(workload.q_lens)) > 1 or len(set(workload.kv_lens)) > 1:
        return "sequences of several lengths"
    return "latents" if workload.rotary else None


def _copies(workload: Workload, cache_bytes: int) -> int:
    """So many keys and values that the cache holds none of them when their turn comes again."""
    kv_bytes = sum(workload.kv_lens) * 2 * workload.heads[1] * workload.dim * 2
    return max(2, -(-3 * cache_bytes // kv_bytes))


def cudnn(workload: Workload, device: Any, cache_bytes: int) -> float:
    """jax.nn.dot_product_attention by cuDNN, in seconds."""
    batch, (q_heads, heads) = len(workload.q_lens), workload.heads
    q_len, kv_len, copies = workload.q_lens[0], workload.kv_lens[0], _copies(workload, cache_bytes)
    with jax.default_device(device):
        first, second = jax.random.split(jax.random.key(0))
        queries = jax.random.normal(first, (batch, q_len, q_heads, workload.dim), jnp.bfloat16)
        kv = jax.random.normal(second, (copies, 2, batch, kv_len, heads, workload.dim), jnp.bfloat16)

    def make(turns: int) -> Callable[[jax.Array, jax.Array], jax.Array]:
        def run(queries: jax.Array, kv: jax.Array) -> jax.Array:
            def turn(i: jax.Array, _: jax.Array) -> jax.Array:
                keys, values = kv[jax.lax.rem(i, jnp.int32(copies))]
                return jax.nn.dot_product_attention(queries, keys, values, is_causal=q_len > 1, implementation="cudnn")

            out: jax.Array = jax.lax.fori_loop(jnp.int32(0), jnp.int32(turns), turn, jnp.zeros_like(queries))
            return out

        return run

    return seconds_a_turn(make, [queries, kv])


def torch_sdpa(workload: Workload, device: Any, cache_bytes: int) -> float:
    """torch.nn.functional.scaled_dot_product_attention, in seconds, by CUDA's events."""
    del device
    attend = import_module("torch.nn.functional").scaled_dot_product_attention
    causal = workload.q_lens[0] > 1
    return _torch_seconds(workload, cache_bytes, lambda q, k, v: attend(q, k, v, is_causal=causal, enable_gqa=True))


def torch_flex(workload: Workload, device: Any, cache_bytes: int) -> float:
    """The flex_attention of torch, compiled, in seconds, by CUDA's events."""
    del device
    torch, flex = import_module("torch"), import_module("torch.nn.attention.flex_attention")
    attend, q_len = torch.compile(flex.flex_attention), workload.q_lens[0]
    mask = None
    if q_len > 1:

        def causal(_: Any, __: Any, query: Any, key: Any) -> Any:
            return query >= key

        mask = flex.create_block_mask(causal, None, None, q_len, workload.kv_lens[0], device="cuda")
    return _torch_seconds(workload, cache_bytes, lambda q, k, v: attend(q, k, v, block_mask=mask, enable_gqa=True))


def _torch_seconds(workload: Workload, cache_bytes: int, attend: Callable[[Any, Any, Any], Any]) -> float:
    torch: Any = import_module("torch")
    batch, (q_heads, heads), dim = len(workload.q_lens), workload.heads, workload.dim

    def normal(num_heads: int, length: int) -> Any:
        return torch.randn(batch, num_heads, length, dim, device="cuda", dtype=torch.bfloat16)

    queries = normal(q_heads, workload.q_lens[0])
    copies = _copies(workload, cache_bytes)
    kv = [(normal(heads, workload.kv_lens[0]), normal(heads, workload.kv_lens[0])) for _ in range(copies)]
    times: list[float] = []
    for turn in range(_WARM + _RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        attend(queries, *kv[turn % copies])
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    seconds: float = median(times[_WARM:])
    return seconds


PEERS: dict[str, Callable[[Workload, Any, int], float]] = {
    "cuDNN": cudnn,
    "torch SDPA": torch_sdpa,
    "torch flex": torch_flex,
}
"""In the order of the table."""
