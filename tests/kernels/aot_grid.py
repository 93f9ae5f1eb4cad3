"""What is compiled for TPUs: every combination of options, a pairwise cover of them, and the programs for one choice.

The shapes are tiny, for what is proved, that a kernel lowers and fits, hangs on sizes of heads, pages and blocks, not
on how many pages or sequences there are.
"""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvproof.kernels import (
    KernelsUnavailable,
    ScaledPages,
    choices,
    copy_pages,
    fused_ragged_paged_attention,
    kv_cache_update,
    mla_cache_update,
    mla_paged_attention,
    ragged_paged_attention,
)

from . import aot

__all__ = ["FACTORS", "Choice", "Program", "attention", "check", "every_choice", "other_programs", "pairwise"]

FACTORS: dict[str, tuple[Any, ...]] = {
    "generation": ("v5e", "v5p", "v6e", "7x"),
    "fused": (False, True),
    "version": ("v3", "v2"),
    "dtypes": ("bfloat16", "float32", "float8_e4m3fn", "float8_e5m2", "int8"),
    "heads": ((32, 8), (8, 1), (14, 2), (5, 5)),
    "head_dim": (128, 64, 80, 192),
    "page_size": (16, 1, 32, 128),
    "mask": ("causal", "all", "window", "chunk", "both"),
    "soft_cap": (None, 30.0),
    "sinks": (False, True),
}
"""The options, the most usual value of each first. Of the dtypes the cache's is named: queries are float32 over a
float32 cache, else bfloat16."""

MASKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "all": {"causal": False},
    "window": {"window": 20},
    "chunk": {"chunk": 24},
    "both": {"window": 20, "chunk": 24},
}

# So many pages that a copy of the cache can't be mistaken for what a call needs beside it.
NUM_TOKENS, NUM_SEQS, PAGES_PER_SEQ, NUM_PAGES = 24, 4, 4, 8000
_CANDIDATES = 30
SCALES = {"k_scale": 0.02, "v_scale": 0.03}
I32 = jnp.int32


@dataclass(frozen=True)
class Choice:
    """One value of each of `FACTORS`."""

    generation: str
    fused: bool
    version: str
    dtypes: str
    heads: tuple[int, int]
    head_dim: int
    page_size: int
    mask: str
    soft_cap: float | None
    sinks: bool

    @property
    def fills_tiles(self) -> bool:
        """Whether a slot is made of whole tiles, or of whole words of one."""
        rows = 2 * self.heads[1]
        whole = rows % 8 == 0 or (rows.bit_count() == 1 and rows * jnp.dtype(self.dtypes).itemsize % 4 == 0)
        return self.version == "v3" or whole

    @property
    def kernels(self) -> int:
        """How many kernels it takes: the update's, those for decoding and the general one, each where it fits."""
        half_tiles = self.version == "v2" and self.head_dim > 128 and 2 * self.heads[1] < 8
        decodes = self.dtypes != "float32" and not half_tiles
        return int(self.fills_tiles) * (1 + int(self.fused) + int(decodes) * (1 + int(self.drafts)))

    @property
    def drafts(self) -> bool:
        """Whether there are more tokens than sequences, so that one of several tokens may decode."""
        return self.fused

    @property
    def falls(self) -> tuple[str, ...]:
        """Why XLA serves where whoever compiles is warned of it: in attention, and in an update of 8 bits."""
        if self.fills_tiles:
            return ()
        rows = f"{2 * self.heads[1]} rows of {self.dtypes}"
        updates = self.fused and jnp.dtype(self.dtypes).itemsize == 1
        return *[f"slots of {rows} don't fill tiles"] * updates, f"{rows} in a v2 slot fill no tiles"

    def __str__(self) -> str:
        """A name for tests: what differs from the most usual."""
        parts = [self.generation, "fused" if self.fused else "attention", self.version, self.dtypes]
        parts += [f"{self.heads[0]}over{self.heads[1]}", f"D{self.head_dim}", f"page{self.page_size}", self.mask]
        return "-".join([*parts, *["cap"] * (self.soft_cap is not None), *["sinks"] * self.sinks])


@dataclass(frozen=True)
class Program:
    """A program to compile.

    Attributes:
        name: which.
        generation: for which TPU.
        function: of arrays.
        shapes: its arguments.
        donate: the argument that is updated in place, or None.
        kernels: how many Pallas kernels it must call.
        falls: why XLA serves, as the warnings say it, in their order.
    """

    name: str
    generation: str
    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    donate: int | None
    kernels: int
    falls: tuple[str, ...] = ()

    @property
    def donated_bytes(self) -> int:
        """Bytes of what is updated in place, 0 without."""
        if self.donate is None:
            return 0
        leaves = jax.tree.leaves(self.shapes[self.donate])
        return sum(int(np.prod(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


def check(program: Program) -> None:
    """Compiles a program.

    Raises:
        AssertionError: it calls other kernels than it should, warns of other falls to XLA, or copies what it should
            update in place.
        jax.errors.JaxRuntimeError: it doesn't compile.
    """
    donate = () if program.donate is None else (program.donate,)
    with pytest.MonkeyPatch.context() as patches, warnings.catch_warnings(record=True) as caught:
        patches.setattr(choices, "_said", set())
        warnings.simplefilter("always", KernelsUnavailable)
        compiled = aot.compile_for(program.generation, program.function, *program.shapes, donate=donate)
    falls = tuple(str(warning.message).rpartition("XLA serves: ")[2] for warning in caught)
    assert falls == program.falls, f"warned of {falls}, not of {program.falls}"
    kernels = aot.kernels_in(compiled)
    assert kernels == program.kernels, f"{kernels} kernels are called, not {program.kernels}"
    if donate:
        memory = compiled.memory_analysis()
        assert memory is not None, "the compiler gives no account of memory"
        needed, given = program.donated_bytes, memory.alias_size_in_bytes
        assert given >= needed, f"{given} of {needed} bytes are updated in place"
        assert memory.temp_size_in_bytes < needed / 2, f"{memory.temp_size_in_bytes} bytes beside {needed} are needed"


def every_choice() -> Iterator[Choice]:
    """All combinations: 40,960."""
    for values in product(*FACTORS.values()):
        yield Choice(*values)


def pairwise() -> list[Choice]:
    """Choices in which any two values of any two factors come together, the same ones each time.

    Greedy: each choice is the best of `_CANDIDATES`, which begin with a pair that is missing and take, factor by factor
    in a random order, the value with the most missing pairs.
    """
    rng = np.random.default_rng(0)
    names = list(FACTORS)
    missing = {
        frozenset([(first, x), (second, y)])
        for first, second in combinations(names, 2)
        for x in range(len(FACTORS[first]))
        for y in range(len(FACTORS[second]))
    }

    def gain(chosen: dict[str, int], name: str, at: int) -> int:
        return sum(frozenset([(name, at), other]) in missing for other in chosen.items())

    def candidate() -> dict[str, int]:
        begin = sorted(map(sorted, missing))[rng.integers(len(missing))]
        chosen = dict(begin)
        for name in rng.permutation([name for name in names if name not in chosen]):
            order = rng.permutation(len(FACTORS[name]))
            chosen[str(name)] = int(max(order, key=lambda at: gain(chosen, name, int(at))))
        return chosen

    def covered(chosen: dict[str, int]) -> set[frozenset[tuple[str, int]]]:
        return {frozenset(pair) for pair in combinations(chosen.items(), 2)} & missing

    choices: list[Choice] = []
    while missing:
        best = max((candidate() for _ in range(_CANDIDATES)), key=lambda chosen: len(covered(chosen)))
        missing -= covered(best)
        choices.append(Choice(**{name: FACTORS[name][at] for name, at in best.items()}))
    return choices


def _row(version: str, heads: int, head_dim: int, dtype: Any) -> tuple[int, ...]:
    """The shape of a slot."""
    width = -(-head_dim // 128) * 128
    if version == "v2":
        return (2 * heads, width)
    packing = 4 // dtype.itemsize
    return (-(-heads * (1 if head_dim == 64 else 2) // packing), packing, width)


def _lengths(pages_per_seq: int = PAGES_PER_SEQ, num_seqs: int = NUM_TOKENS) -> tuple[Any, ...]:
    return tuple(aot.shape(shape, I32) for shape in ((num_seqs,), (num_seqs, pages_per_seq), (num_seqs + 1,), (1,)))


def attention(choice: Choice, full: bool = False) -> Program:
    """Attention, plain or fused, with these options.

    Args:
        choice: the options.
        full: with so many tokens, and so long contexts, that no block is smaller than it is at most.
    """
    num_tokens, pages_per_seq = (512, 2048 // choice.page_size) if full else (NUM_TOKENS, PAGES_PER_SEQ)
    cache = jnp.dtype(choice.dtypes)
    dtype = jnp.dtype(jnp.float32 if choice.dtypes == "float32" else jnp.bfloat16)
    q_heads, heads = choice.heads
    options: dict[str, Any] = {**MASKS[choice.mask], "soft_cap": choice.soft_cap}
    options |= SCALES if cache.itemsize == 1 else {}
    row = _row(choice.version, heads, choice.head_dim, cache)
    pages = aot.shape((NUM_PAGES, choice.page_size, *row), cache)
    queries = aot.shape((num_tokens, q_heads, choice.head_dim), dtype)
    new = (aot.shape((num_tokens, heads, choice.head_dim), dtype),) * 2 if choice.fused else ()
    sinks = (aot.shape((q_heads,), jnp.float32),) if choice.sinks else ()
    run: Callable[..., Any] = fused_ragged_paged_attention if choice.fused else ragged_paged_attention
    if not choice.fused:
        options["num_kv_heads"] = heads

    def function(*args: jax.Array) -> Any:
        arrays = args[:-1] if choice.sinks else args
        return run(*arrays, **options, sinks=args[-1] if choice.sinks else None)

    return Program(
        str(choice),
        choice.generation,
        function,
        (queries, *new, pages, *_lengths(pages_per_seq, NUM_SEQS if choice.drafts else num_tokens), *sinks),
        3 if choice.fused else None,
        choice.kernels,
        choice.falls,
    )


def other_programs() -> Iterator[Program]:
    """What else has a kernel, updates by slots and by slices, copies of pages, MLA; and attention in full blocks."""
    generations = FACTORS["generation"]
    half, f8 = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float8_e4m3fn)
    for at, (version, heads, cache) in enumerate((("v3", 8, half), ("v2", 8, half), ("v3", 3, f8), ("v2", 1, half))):
        dtype = half if cache == f8 else cache
        pages = aot.shape((NUM_PAGES, 16, *_row(version, heads, 128, cache)), cache)
        new = (aot.shape((NUM_TOKENS, heads, 128), dtype),) * 2
        slots = aot.shape((NUM_TOKENS,), I32)
        name = f"update-{version}-{heads}-{cache}"
        yield Program(name, generations[at], kv_cache_update, (pages, *new, slots), 0, 1)

    def write_and_read(pages: Any, keys: Any, values: Any, slices: Any, count: Any, queries: Any, *lengths: Any) -> Any:
        pages = kv_cache_update(pages, keys, values, slices, num_slices=count)
        return pages, ragged_paged_attention(queries, pages, *lengths)

    byte = jnp.dtype(jnp.int8)
    numbers: Any = aot.shape((NUM_PAGES, 16, *_row("v3", 8, 128, byte)), byte)
    scales: Any = aot.shape((NUM_PAGES, 16, 16), jnp.dtype(jnp.float32))
    new = (aot.shape((NUM_TOKENS, 8, 128), half),) * 2
    slices = (aot.shape((3, 8), I32), aot.shape((1,), I32))
    query = aot.shape((NUM_TOKENS, 32, 128), half)
    given = (ScaledPages(numbers, scales), *new, *slices, query, *_lengths())
    fall = "ScaledPages: a kernel applies the scale of each slot and head only where it decodes, over v3"
    yield Program("slices-scaled", "v6e", write_and_read, given, 0, 2, (fall,))
    pages = aot.shape((NUM_PAGES, 16, *_row("v3", 8, 128, half)), half)
    tree = {"pages": pages, "states": aot.shape((NUM_PAGES, 4, 64, 128), jnp.dtype(jnp.float32))}
    ids = (aot.shape((8,), I32),) * 2
    yield Program("copy_pages", "7x", copy_pages, (tree, *ids), 0, 2)

    # The two generations with the least VMEM.
    for generation, dtype_name in (("v5p", "bfloat16"), ("7x", "float32")):
        usual = {name: values[0] for name, values in FACTORS.items()} | {"generation": generation, "dtypes": dtype_name}
        yield attention(Choice(**usual), full=True)

    latents = aot.shape((NUM_PAGES, 32, 640), half)
    rows = (aot.shape((NUM_TOKENS, 512), half), aot.shape((NUM_TOKENS, 64), half))
    slots = aot.shape((NUM_TOKENS,), I32)
    yield Program("mla_update", "v6e", mla_cache_update, (latents, *rows, slots), 0, 0)
    for generation, heads, options in (("v5e", 128, {}), ("v5p", 16, {"window": 20, "soft_cap": 30.0})):

        def attend(*args: Any, options: dict[str, Any] = options) -> Any:
            return mla_paged_attention(*args, scale=0.1, **options)

        queries = (aot.shape((NUM_TOKENS, heads, 512), half), aot.shape((NUM_TOKENS, heads, 64), half))
        yield Program(f"mla-{heads}", generation, attend, (*queries, latents, *_lengths()), None, 2)
