"""Kernels of others whose schedules `cycle_report` counts beside ours: JAX's own, and those of tpu-inference.

tpu-inference is installed separately, and without what it depends on, as only its kernels are used:

    pip install --no-deps tpu-inference sympy mpmath

Or the environment variable KVPROOF_TPU_INFERENCE names a folder that holds the package `tpu_inference`, such as a
checkout of its repository. Without it, its kernels are not counted, and the report says so.

All are compiled for the shapes that ours are, with the block sizes that they choose by themselves.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention, tuned_block_sizes

from ..kernels import aot
from .cycle_turn import (
    CONTEXT,
    DTYPE,
    HEAD_DIM,
    I32,
    LATENT_DIM,
    MLA_DIMS,
    MLA_HEADS,
    NUM_KV_HEADS,
    NUM_PAGES,
    NUM_Q_HEADS,
    NUM_SEQS,
    PREFILL_TOKENS,
    ROTARY_DIM,
    NotCounted,
    Turn,
    lengths,
)

__all__ = ["FOLDER", "PEERS", "package_folders", "tpu_inference"]

FOLDER = "KVPROOF_TPU_INFERENCE"
"""The environment variable that names a folder with the package `tpu_inference`."""

GENERATIONS = {"v5e": 5, "v5p": 5, "v6e": 6, "7x": 7}
"""What a kernel that looks up its block sizes asks the device that runs, which here is a CPU."""


def package_folders() -> list[str]:
    """Where the modules of the package `tpu_inference` are.

    Raises:
        NotCounted: it is not installed, or is not in the folder that the user named.
    """
    named = os.environ.get(FOLDER)
    if named:
        package = Path(named).expanduser() / "tpu_inference"
        if not (package / "kernels").is_dir():
            raise NotCounted(f"{FOLDER}={named} has no folder tpu_inference/kernels")
        return [str(package)]
    found = find_spec("tpu_inference")
    if found is None or found.submodule_search_locations is None:
        raise NotCounted(f"tpu-inference is not installed, and {FOLDER} names no folder that has it")
    return list(found.submodule_search_locations)


@contextmanager
def tpu_inference() -> Iterator[Callable[[str], Any]]:
    """Within, kernels of tpu-inference can be imported and traced: gives what imports a module of its ``kernels``.

    The package itself, and its logger, import vLLM: both are replaced by what needs nothing. Its newer kernels find
    `reciprocal` in `pallas.tpu`, where JAX had it in `pallas` before: there it is set beside.

    Raises:
        NotCounted: it, or a package that the kernels need, is not installed.
    """
    package, logger = ModuleType("tpu_inference"), ModuleType("tpu_inference.logger")
    package.__path__ = package_folders()
    vars(logger)["init_logger"] = logging.getLogger

    def kernel(name: str) -> Any:
        try:
            return import_module(f"tpu_inference.kernels.{name}")
        except ModuleNotFoundError as error:
            raise NotCounted(f"tpu-inference's {name} can't be imported: {error}") from error

    reciprocal = getattr(pltpu, "reciprocal", None) or pl.reciprocal
    with (
        patch.dict("sys.modules", {"tpu_inference": package, "tpu_inference.logger": logger}),
        patch.object(pltpu, "reciprocal", reciprocal, create=True),
    ):
        yield kernel


def _rows(kv_dtype: Any, num_tokens: int) -> tuple[Any, Any, list[Any]]:
    """Queries, new keys (as values), and the lengths that tpu-inference's kernels take, but for the page table."""
    queries: Any = aot.shape((num_tokens, NUM_Q_HEADS, HEAD_DIM), DTYPE)
    new: Any = aot.shape((num_tokens, NUM_KV_HEADS, HEAD_DIM), kv_dtype)
    return queries, new, [aot.shape((NUM_SEQS + 1,), I32), aot.shape((3,), I32)]


def _num_pages(page: int) -> int:
    """Pages of a cache; of large pages fewer, so that it fits into HBM."""
    return min(NUM_PAGES, NUM_PAGES * 128 // page)


def _page_table(page: int) -> list[Any]:
    """kv_lens and the page table, flat."""
    return [aot.shape((NUM_SEQS,), I32), aot.shape((NUM_SEQS * (CONTEXT // page),), I32)]


def _key_bytes(kv_dtype: Any) -> int:
    return 2 * NUM_KV_HEADS * HEAD_DIM * int(jnp.dtype(kv_dtype).itemsize)


def _scales(kv_dtype: Any) -> dict[str, float]:
    """Scales of a quantised cache."""
    return {} if kv_dtype == DTYPE else {"k_scale": 1.0, "v_scale": 1.0}


def compile_jax(device: str, page: int, num_tokens: int) -> Turn:
    """The kernel that jax ships, over its (v2) cache, with the block sizes that it was tuned to.

    It looks its block sizes up by the device that runs: here by the one that is compiled for.
    """
    kind = aot.device(device).device_kind
    queries = aot.shape((num_tokens, NUM_Q_HEADS, HEAD_DIM), DTYPE)
    pages = aot.shape((NUM_PAGES, page, 2 * NUM_KV_HEADS, HEAD_DIM), DTYPE)
    with (
        patch.object(tuned_block_sizes, "get_tpu_version", lambda: GENERATIONS[device]),
        patch.object(tuned_block_sizes, "get_device_name", lambda: " ".join(kind.split()[:2])),
    ):
        block_pages, block_queries = tuned_block_sizes.get_tuned_block_sizes(
            DTYPE, DTYPE, NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, page, num_tokens, CONTEXT // page
        )
        # As much VMEM as its block sizes were tuned with.
        call = partial(ragged_paged_attention, sm_scale=HEAD_DIM**-0.5, vmem_limit_bytes=60 * 2**20)
        aot.compile_for(device, call, queries, pages, *lengths(NUM_SEQS, page))
    return Turn("ragged_paged_attention_kernel", block_pages * page, block_queries, _key_bytes(DTYPE), block_pages)


def compile_rpa_v3(device: str, page: int, kv_dtype: Any = DTYPE, num_tokens: int = NUM_SEQS) -> Turn:
    """RPA v3, over its cache, which is laid out as our v3: decoding, or with more tokens than sequences its mixed case.

    A block of keys is one of a sequence, however short that is; what is short in a loop of its own is done without
    trips.

    Raises:
        NotCounted: it is not installed.
    """
    packing = 4 // jnp.dtype(kv_dtype).itemsize
    queries, new, counts = _rows(kv_dtype, num_tokens)
    pages = aot.shape((NUM_PAGES, page, 2 * NUM_KV_HEADS // packing, packing, HEAD_DIM), kv_dtype)
    shapes = (DTYPE, kv_dtype, NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, page, num_tokens, NUM_SEQS, CONTEXT // page)
    with tpu_inference() as kernel:
        rpa = kernel("ragged_paged_attention.v3.kernel")
        case = rpa.RpaCase.DECODE if num_tokens == NUM_SEQS else rpa.RpaCase.MIXED
        with patch.object(rpa, "get_tpu_version", lambda: GENERATIONS[device]):
            blocks = rpa.get_default_block_sizes(*shapes, case=case)
            call = partial(rpa.ragged_paged_attention, sm_scale=HEAD_DIM**-0.5, **_scales(kv_dtype))
            aot.compile_for(device, call, queries, new, new, pages, *_page_table(page), *counts)
    keys, queries_ = blocks["bkv_sz"], blocks["bq_sz"]
    name = f"RPA{case.symbol}-p_{page}-bq_{queries_}_{blocks['bq_csz']}-bkv_{keys}_{blocks['bkv_csz']}"
    trips = keys // blocks["bkv_csz"]
    return Turn(name, keys, queries_, _key_bytes(kv_dtype), 1, (trips,), blocks=1 if num_tokens == NUM_SEQS else None)


def compile_batched(device: str, page: int, kv_dtype: Any = DTYPE) -> Turn:
    """The batched kernel, decoding: each turn works on a block of each of several sequences.

    Raises:
        NotCounted: it is not installed.
    """
    packing = 4 // jnp.dtype(kv_dtype).itemsize
    queries, new, counts = _rows(kv_dtype, NUM_SEQS)
    pages = aot.shape((NUM_PAGES, page, 2 * NUM_KV_HEADS // packing, packing, HEAD_DIM), kv_dtype)
    with tpu_inference() as kernel:
        module = kernel("experimental.batched_rpa.kernel")
        wrapper = kernel("experimental.batched_rpa.wrapper")
        decoding = []
        whole = module.rpa_kernel

        def only_decode(*arguments: Any, cfgs: Any) -> Any:
            """Leaves out the case that isn't counted: compiling it takes minutes."""
            if cfgs.mode != wrapper.configs.RpaCase.DECODE:
                return arguments[4], arguments[6]
            decoding.append(cfgs)
            return whole(*arguments, cfgs=cfgs)

        with patch.object(module, "rpa_kernel", only_decode):
            call = partial(wrapper.ragged_paged_attention, sm_scale=HEAD_DIM**-0.5, **_scales(kv_dtype))
            aot.compile_for(device, call, queries, new, new, pages, *_page_table(page), *counts)
    return _turn_of_several(decoding[0], module.get_kernel_name(decoding[0]), kv_dtype)


def compile_stacked(device: str, page: int, kv_dtype: Any = DTYPE) -> Turn:
    """The stacked kernel, decoding, over its cache, which is laid out as our seq_on_lane.

    Raises:
        NotCounted: it is not installed, or doesn't take pages of this size.
    """
    if page % 128:
        raise NotCounted("the stacked kernel takes pages of multiples of 128 only")
    queries, new, counts = _rows(kv_dtype, NUM_SEQS)
    pages = aot.shape((_num_pages(page), 2 * NUM_KV_HEADS, HEAD_DIM, page), kv_dtype)
    with tpu_inference() as kernel:
        module = kernel("experimental.stacked_rpa.decode.non_sliding_window.kernel")
        wrapper = kernel("experimental.stacked_rpa.wrapper")
        decoding = []
        whole = module.rpa_kernel

        def noted(*arguments: Any, cfgs: Any) -> Any:
            decoding.append(cfgs)
            return whole(*arguments, cfgs=cfgs)

        with patch.object(module, "rpa_kernel", noted):
            call = partial(
                wrapper.ragged_paged_attention,
                sm_scale=HEAD_DIM**-0.5,
                dispatch_hint="decode_only",
                **_scales(kv_dtype),
            )
            aot.compile_for(device, call, queries, new, new, pages, *_page_table(page), *counts)
    return _turn_of_several(decoding[0], module.get_kernel_name(decoding[0]), kv_dtype)


def _turn_of_several(cfgs: Any, name: str, kv_dtype: Any) -> Turn:
    """The turn of a kernel whose steps work on a block of each of several sequences.

    Loops that start copies look for a later step whose block is not on its way yet: in a steady state they turn once.
    """
    sequences = int(cfgs.batch_size)
    return Turn(name, sequences * cfgs.bkv_sz, 1, _key_bytes(kv_dtype), 1, blocks=sequences)


def compile_mla_v2(device: str, page: int, transposed: bool = False, block: int | None = None) -> Turn:
    """MLA v2, decoding several sequences a turn; with keys transposed it takes pages of multiples of 128.

    It has no block sizes tuned for these shapes: its default is three pages of each of four sequences, however large
    pages are. ``block`` is how many keys of a sequence are asked for instead.

    Raises:
        NotCounted: it is not installed, or doesn't take pages of this size.
    """
    if transposed and page % 128:
        raise NotCounted("MLA v2 takes pages of multiples of 128 only, where keys are transposed")
    rotary = -(-ROTARY_DIM // 128) * 128
    width = LATENT_DIM + (ROTARY_DIM if transposed else rotary)
    rows = (width, page) if transposed else (page // 2, 2, width)
    shapes = [
        aot.shape((MLA_HEADS, NUM_SEQS, LATENT_DIM), DTYPE),
        aot.shape((NUM_SEQS, MLA_HEADS, ROTARY_DIM), DTYPE),
        aot.shape((NUM_SEQS, LATENT_DIM), DTYPE),
        aot.shape((NUM_SEQS, ROTARY_DIM), DTYPE),
        aot.shape((_num_pages(page), *rows), DTYPE),
    ]
    counts = [aot.shape((NUM_SEQS + 1,), I32), aot.shape((3,), I32)]
    with tpu_inference() as kernel:
        mla = kernel("mla.v2.kernel")
        tuned = kernel("mla.v2.tuned_params")
        decoding, mixed = (
            tuned.get_tuned_params(
                tuned.TuningKey(
                    case,
                    NUM_SEQS,
                    MLA_HEADS,
                    LATENT_DIM,
                    ROTARY_DIM,
                    kv_dtype=jnp.dtype(DTYPE).name,
                    q_dtype=jnp.dtype(DTYPE).name,
                    page_size_per_kv_packing=rows[0],
                    kv_packing=rows[1],
                    max_num_seqs=NUM_SEQS,
                    pages_per_seq=max(1, CONTEXT // page),
                )
            )
            for case in ("batched_decode", "mixed")
        )
        pages = block // page if block else decoding.num_kv_pages_per_block
        call = partial(
            mla.mla_ragged_paged_attention,
            sm_scale=0.1,
            num_kv_pages_per_block=(pages, *[mixed.num_kv_pages_per_block] * 2),
            num_queries_per_block=(decoding.num_queries_per_block, *[mixed.num_queries_per_block] * 2),
            decode_batch_size=decoding.decode_batch_size,
            mixed_q_split=mixed.q_split,
            transpose_kv_cache=transposed,
        )
        aot.compile_for(device, call, *shapes, *_page_table(page), *counts)
    sequences = decoding.decode_batch_size
    name = f"MLA-bd-bq_1-bkvp_{pages}-p_{page}-bsz_{sequences}"
    # The loops that start copies write the new token's page; those of the pages that are read are unrolled.
    keys = sequences * pages * page
    return Turn(name, keys, 1, 2 * width, 1, blocks=sequences, rows=MLA_HEADS, dims=MLA_DIMS)


E4M3 = jnp.float8_e4m3fn

PEERS: dict[str, Callable[[str, int], Turn]] = {
    "decode-jax": partial(compile_jax, num_tokens=NUM_SEQS),
    "decode-rpa-v3": compile_rpa_v3,
    "decode-rpa-v3-e4m3": partial(compile_rpa_v3, kv_dtype=E4M3),
    "decode-batched": compile_batched,
    "decode-batched-e4m3": partial(compile_batched, kv_dtype=E4M3),
    "decode-stacked": compile_stacked,
    "decode-stacked-e4m3": partial(compile_stacked, kv_dtype=E4M3),
    "prefill-jax": partial(compile_jax, num_tokens=PREFILL_TOKENS),
    "prefill-rpa-v3": partial(compile_rpa_v3, num_tokens=PREFILL_TOKENS),
    "mla-v2": compile_mla_v2,
    "mla-v2-block-1024": partial(compile_mla_v2, block=1024),
    "mla-v2-transposed": partial(compile_mla_v2, transposed=True),
}
"""What compiles each kernel of others, for a device and a page size."""
