"""Measures block sizes on the TPU at hand and writes the best into the table that the kernels read.

    python -m kvproof.kernels.tune --kv-heads 8 --q-heads 32 --head-dim 128 --dtype bfloat16 --page 16

Of each candidate the attention of a batch is timed that decodes, and then that of one that computes prompts: the public
function, compiled with these blocks, the median of some calls. The winners become two rows of the table (`block_table`
says where it lies): programs compiled from then on, for the same device, dtype, heads and page size, have such blocks.
No TPU, no measurement: the command says so and ends with status 2.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .attention import ragged_paged_attention
from .layout import CacheLayout
from .storage import KV_DTYPES
from .tpu.block_sizes import device_kind
from .tpu.block_table import add_row, table_path

__all__ = ["Timed", "Workload", "main", "tune"]

_KEYS = (128, 256, 512, 1024, 2048, 4096)
_QUERIES = (16, 32, 64, 128, 256, 512)
_CALLS = 20
_RATE = 1e6
"""Microseconds of a second."""

_ready: Callable[[Any], Any] = jax.block_until_ready


@dataclass(frozen=True)
class Workload:
    """The shapes that block sizes are looked for.

    Attributes:
        q_heads: query heads.
        kv_heads: KV heads.
        head_dim: the size of keys and values.
        dtype: of the cache, whose layout is v3: "bfloat16", say.
        page_size: slots of a page.
        sequences: how many decode at once.
        context: tokens of each.
        prompt: tokens of each of the prompts that are computed together.
        prompts: how many.
    """

    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: str = "bfloat16"
    page_size: int = 16
    sequences: int = 64
    context: int = 4096
    prompt: int = 2048
    prompts: int = 2

    @property
    def layout(self) -> CacheLayout:
        """How the cache's slots are laid out."""
        return CacheLayout("v3", self.kv_heads, self.head_dim, self.head_dim, 4 // jnp.dtype(self.dtype).itemsize)

    def row(self, device: str) -> dict[str, Any]:
        """What a row of the table says of the shapes."""
        words = self.layout.column_tiles * self.layout.combined_rows * jnp.dtype(self.dtype).itemsize // 4
        return {"device": device, "dtype": self.dtype, "word_rows": words, "page_size": self.page_size}

    def arguments(self, kind: str) -> list[Any]:
        """A batch: queries, pages, lengths, page table, starts, number of sequences; each sequence has own pages."""
        count, q_len, kv_len = (self.sequences, 1, self.context)
        if kind == "prefill":
            count, q_len, kv_len = self.prompts, self.prompt, self.prompt
        width = -(-kv_len // self.page_size)
        order = np.random.default_rng(0).permutation(count * width).astype(np.int32)
        pages = jnp.zeros((count * width, *self.layout.page_shape(self.page_size)), self.dtype)
        queries = jnp.ones((count * q_len, self.q_heads, self.head_dim), jnp.bfloat16)
        starts = np.arange(count + 1, dtype=np.int32) * q_len
        lengths = [np.full(count, kv_len, np.int32), order.reshape(count, width), starts, np.array([count], np.int32)]
        return [queries, pages, *map(jnp.asarray, lengths)]

    def candidates(self, kind: str) -> Iterator[Any]:
        """The values of the option that are tried: whole pages, whole registers."""
        keys = [size for size in _KEYS if size % self.page_size == 0 and size <= max(self.context, _KEYS[0])]
        if kind == "decode":
            yield from keys
            return
        group = self.q_heads // self.kv_heads
        yield from ((queries, size) for queries in _QUERIES for size in keys if queries * group % _QUERIES[0] == 0)


@dataclass(frozen=True)
class Timed:
    """A candidate.

    Attributes:
        size: the value of ``decode_block`` or ``prefill_block``.
        microseconds: the median time of a call; None: it was refused.
        refused: why.
    """

    size: Any
    microseconds: float | None
    refused: str = ""


def tune(
    workload: Workload,
    kind: str,
    *,
    attend: Callable[..., Any] = ragged_paged_attention,
    calls: int = _CALLS,
) -> Iterator[Timed]:
    """Times the attention of a workload with each candidate; candidates that have no room are said to be refused.

    Args:
        workload: the shapes.
        kind: ``"decode"`` or ``"prefill"``.
        attend: what is timed; takes what `ragged_paged_attention` does.
        calls: timed calls of each candidate, behind one that compiles.
    """
    option = f"{kind}_block"
    scales = {"k_scale": 1.0, "v_scale": 1.0} if workload.dtype == "int8" else {}
    arguments = workload.arguments(kind)
    for size in workload.candidates(kind):
        named = {option: size, "num_kv_heads": workload.kv_heads, **scales}
        try:
            _ready(attend(*arguments, **named))
        except (ValueError, jax.errors.JaxRuntimeError) as error:  # no room, by our account or by the compiler's
            yield Timed(size, None, str(error).splitlines()[0])
            continue
        seconds = []
        for _ in range(calls):
            begin = perf_counter()
            _ready(attend(*arguments, **named))
            seconds.append(perf_counter() - begin)
        yield Timed(size, median(seconds) * _RATE)


def main(
    arguments: Sequence[str] | None = None,
    *,
    device: str | None = None,
    attend: Callable[..., Any] = ragged_paged_attention,
) -> int:
    """Measures, prints what was measured, writes the table.

    Args:
        arguments: of the command line.
        device: for which device the table gets rows; None: for the one at hand.
        attend: what is timed, see `tune`.

    Returns:
        The exit status: 0; 1 if no candidate ran; 2 if there is no TPU, or an argument makes no sense.
    """
    parser = argparse.ArgumentParser(prog="python -m kvproof.kernels.tune", description=__doc__.splitlines()[0])
    for name, number in vars(Workload()).items():
        if isinstance(number, int):
            parser.add_argument(f"--{name.removesuffix('_size').replace('_', '-')}", type=int, default=number)
    parser.add_argument("--dtype", choices=[str(dtype) for dtype in KV_DTYPES], default=Workload.dtype)
    parser.add_argument("--calls", type=int, default=_CALLS, help="timed calls of each candidate (%(default)s)")
    parser.add_argument("--table", type=Path, help="the file to write (the one that the kernels read)")
    given = vars(parser.parse_args(arguments))
    path, calls, page_size = given.pop("table") or table_path(), given.pop("calls"), given.pop("page")
    wrong = [f"{name}={value}" for name, value in {**given, "page": page_size, "calls": calls}.items() if value == 0]
    wrong += [f"{name}={value}" for name, value in given.items() if isinstance(value, int) and value < 0]
    workload = Workload(page_size=page_size, **given)
    if wrong or page_size < 1 or calls < 1 or workload.q_heads % workload.kv_heads:
        print(f"sizes must be at least 1, query heads a multiple of KV heads: {wrong or given}", file=sys.stderr)
        return 2
    if device is None:
        if jax.default_backend() != "tpu":
            print("there is no TPU here: block sizes are measured on the device that they are for", file=sys.stderr)
            return 2
        device = device_kind()
    if not path.exists():
        path.write_text("{}\n")  # the kernels that are measured read it, too
    for kind in ("decode", "prefill"):
        measured: list[tuple[float, Any]] = []
        for timed in tune(workload, kind, attend=attend, calls=calls):
            what = f"{timed.microseconds:10.1f} us" if timed.microseconds is not None else f"refused: {timed.refused}"
            print(f"{kind:8} {timed.size!s:12} {what}", flush=True)
            measured += [(timed.microseconds, timed.size)] if timed.microseconds is not None else []
        if not measured:
            return 1
        _, best = min(measured)
        row = workload.row(device)
        if kind == "prefill":
            row |= {"group": workload.q_heads // workload.kv_heads, "queries": best[0], "keys": best[1]}
        else:
            row["keys"] = best
        add_row(path, kind, row)
        print(f"{kind:8} {best!s:12} written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
