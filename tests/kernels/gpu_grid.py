"""What is compiled for GPUs: the options, the choices of them, and the program and the account of one choice."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp

from kvproof.kernels import fused_ragged_paged_attention, ragged_paged_attention
from kvproof.kernels.gpu.support import unsupported
from kvproof.kernels.layout import CacheLayout
from kvproof.kernels.options import AttentionOptions
from kvproof.kernels.storage import ScaledPages, page_values

from . import gpu_aot
from .aot_grid import MASKS, SCALES

__all__ = ["FACTORS", "USUAL", "Account", "Choice", "account", "every_choice", "one_at_a_time"]

FACTORS: dict[str, tuple[Any, ...]] = {
    "fused": (False, True),
    "version": ("v3", "v2"),
    "queries": ("bfloat16", "float16", "float32"),
    "cache": ("same", "float8_e4m3fn", "float8_e5m2", "int8", "scaled float8_e4m3fn", "scaled int8"),
    "heads": ((32, 8), (64, 8), (8, 8), (16, 1), (14, 2), (5, 5)),
    "head_dim": (128, 64, 80, 96, 192, 256),
    "page_size": (16, 64, 128, 1, 8, 32, 33, 256),
    "mask": ("causal", "all", "window", "chunk", "both"),
    "soft_cap": (None, 30.0),
    "sinks": (False, True),
}
"""The options, the most usual value of each first."""

_SCALED = "scaled "

# So many pages that a copy of the cache can't be mistaken for what a call needs beside it.
NUM_TOKENS, NUM_SEQS, CONTEXT, NUM_SLOTS = 512, 8, 4096, 2**20
I32 = jnp.int32


@dataclass(frozen=True)
class Choice:
    """One value of each of `FACTORS`."""

    fused: bool
    version: str
    queries: str
    cache: str
    heads: tuple[int, int]
    head_dim: int
    page_size: int
    mask: str
    soft_cap: float | None
    sinks: bool

    def __str__(self) -> str:
        parts = ["fused" if self.fused else "attention", self.version, self.queries, f"cache-{self.cache}"]
        parts += [f"{self.heads[0]}over{self.heads[1]}", f"D{self.head_dim}", f"page{self.page_size}", self.mask]
        return "-".join([*parts, *["cap"] * (self.soft_cap is not None), *["sinks"] * self.sinks])


USUAL = Choice(**{name: values[0] for name, values in FACTORS.items()})
"""The most usual value of everything."""


@dataclass(frozen=True)
class Account:
    """What became of a choice.

    Attributes:
        left_to_xla: why no kernel takes it, or None.
        kernels: name, registers and bytes spilled of the kernels compiled for it, but for those compiled before.
        fault: what is wrong with the program, empty if nothing.
    """

    left_to_xla: str | None
    kernels: tuple[tuple[str, int, int], ...]
    fault: str

    @property
    def spilled(self) -> int:
        """Bytes spilled by all kernels."""
        return sum(spilled for _, _, spilled in self.kernels)


def every_choice(only: Mapping[str, str]) -> Iterator[Choice]:
    """All combinations, 414,720 of them, or those with some values.

    Args:
        only: values of factors, as they are written.
    """
    kept = [[value for value in FACTORS[name] if only.get(name, str(value)) == str(value)] for name in FACTORS]
    for values in product(*kept):
        yield Choice(**dict(zip(FACTORS, values, strict=True)))


def one_at_a_time(only: Mapping[str, str]) -> Iterator[Choice]:
    """The most usual choice, and those that differ from it in one value, 33 in all; or those with some values.

    Args:
        only: values of factors, as they are written.
    """
    others = (replace(USUAL, **{name: value}) for name, values in FACTORS.items() for value in values[1:])
    for choice in (USUAL, *others):
        if all(str(getattr(choice, name)) == value for name, value in only.items()):
            yield choice


def account(choice: Choice) -> Account:
    """Compiles attention with these options for an H200, and looks at what came out.

    Raises:
        jax.errors.JaxRuntimeError: it doesn't compile; also what else Mosaic raises then.
    """
    pages, arguments, function = _program(choice)
    queries, table = arguments[0], arguments[-4] if choice.sinks else arguments[-3]
    reason = unsupported(_options(choice), queries, pages, table)
    donate = (3,) if choice.fused else ()
    done = gpu_aot.compile_for_gpu(function, *arguments, donate=donate)
    kernels = tuple((kernel.name, kernel.registers, kernel.spilled) for kernel in done.kernels)
    called, expected = gpu_aot.kernels_in(done.compiled), (3 if reason is None else 0) + int(choice.fused)
    size, faults = page_values(pages).size * page_values(pages).dtype.itemsize, []
    if called != expected:
        faults.append(f"{called} kernels are called, not {expected}")
    if choice.fused and done.alias_bytes < size:
        faults.append(f"{done.alias_bytes} of {size} bytes are updated in place")
    if reason is None and done.temp_bytes > size / 2:
        faults.append(f"{done.temp_bytes} bytes beside {size} are needed")
    return Account(reason, kernels, "; ".join(faults))


def _dtypes(choice: Choice) -> tuple[Any, Any]:
    queries = jnp.dtype(choice.queries)
    return queries, queries if choice.cache == "same" else jnp.dtype(choice.cache.removeprefix(_SCALED))


def _layout(choice: Choice) -> CacheLayout:
    packing = 1 if choice.version == "v2" else 4 // _dtypes(choice)[1].itemsize
    return CacheLayout(choice.version, choice.heads[1], choice.head_dim, choice.head_dim, packing)


def _options(choice: Choice) -> AttentionOptions:
    """Those of the call as it reaches the kernels, as far as they decide who takes it."""
    masks = {"causal": True, "window": None, "chunk": None} | MASKS[choice.mask]
    return AttentionOptions(
        layout=_layout(choice), kv_dtype=_dtypes(choice)[1], score_scale=1.0, soft_cap=choice.soft_cap, **masks
    )


def _program(choice: Choice) -> tuple[Any, tuple[Any, ...], Callable[..., Any]]:
    """The pages, all arguments, and the function of them."""
    dtype, cache = _dtypes(choice)
    (q_heads, heads), layout = choice.heads, _layout(choice)
    scaled, slots = choice.cache.startswith(_SCALED), (NUM_SLOTS // choice.page_size, choice.page_size)
    pages: Any = gpu_aot.shape((*slots, *layout.row_shape), cache)
    if scaled:
        scales: Any = gpu_aot.shape((*slots, 2 * heads), jnp.float32)
        pages = ScaledPages(pages, scales)
    queries = gpu_aot.shape((NUM_TOKENS, q_heads, choice.head_dim), dtype)
    new = (gpu_aot.shape((NUM_TOKENS, heads, choice.head_dim), dtype),) * 2 if choice.fused else ()
    table = (NUM_SEQS, CONTEXT // choice.page_size)
    lengths = [gpu_aot.shape(shape, I32) for shape in ((NUM_SEQS,), table, (NUM_SEQS + 1,), (1,))]
    sinks = [gpu_aot.shape((q_heads,), jnp.float32)] if choice.sinks else []
    options: dict[str, Any] = {**MASKS[choice.mask], "soft_cap": choice.soft_cap}
    options |= SCALES if cache.itemsize == 1 and not scaled else {}
    run: Callable[..., Any] = fused_ragged_paged_attention if choice.fused else ragged_paged_attention
    if not choice.fused:
        options["num_kv_heads"] = heads

    def function(*args: jax.Array) -> Any:
        arrays = args[:-1] if choice.sinks else args
        return run(*arrays, **options, sinks=args[-1] if choice.sinks else None)

    return pages, (queries, *new, pages, *lengths, *sinks), function
