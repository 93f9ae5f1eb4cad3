"""What a layer costs beside its kernels: operations of the device, counted in programs compiled for TPUs and GPUs."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from kvproof.kernels import fused_ragged_paged_attention

from . import aot, gpu_aot
from .aot import shape

NUM_SEQS, NUM_PAGES, PAGE, PAGES_PER_SEQ = 64, 4000, 16, 256
HEADS, KV_HEADS, DIM = 32, 8, 128
HALF, I32 = jnp.bfloat16, jnp.int32

_FREE = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "copy-done"}
"""What takes no time of its own; of a copy in the background its start is counted."""

_OPERATION = re.compile(r"^\s+(?:ROOT )?%(?P<name>\S+) = .*? (?P<kind>[a-z][a-z\-]*)\((?P<rest>.*)$")


MOST_OPERATIONS = 6


def second_layer(compile_step: Callable[..., str], result: str | None) -> Counter[str]:
    """The operations of a step of two layers that depend on the second layer's arrays or on the first one's result.

    Args:
        compile_step: of a function, the shapes of its arguments and ``donate``, the text of the compiled program.
        result: the first operation of this kind gives the first layer's result; None: what depends on it isn't counted.
    """
    run: Callable[..., Any] = fused_ragged_paged_attention

    def step(caches: Any, keys: Any, values: Any, queries: Any, *batch: Any) -> Any:
        written = []
        for layer in zip(keys, values, caches, strict=True):
            queries, pages = run(queries, *layer, *batch)
            written.append(pages)
        return queries, written

    new = [shape((NUM_SEQS, KV_HEADS, DIM), HALF)] * 2
    text = compile_step(
        step,
        [shape((NUM_PAGES, PAGE, KV_HEADS, 2, DIM), HALF)] * 2,
        new,
        new,
        shape((NUM_SEQS, HEADS, DIM), HALF),
        *(shape(of_step, I32) for of_step in ((NUM_SEQS,), (NUM_SEQS, PAGES_PER_SEQ), (NUM_SEQS + 1,), (1,))),
        donate=(0,),
    )
    entry = text[text.index("\nENTRY") :].split("\n}", 1)[0]
    found = [match for match in map(_OPERATION.match, entry.splitlines()) if match]
    own = {match["name"] for match in found if match["kind"] == "parameter" and match["rest"][:2] in ("1)", "3)", "5)")}
    assert len(own) == 3, "the second cache, its keys and values"
    if result is not None:
        own.add(next(match["name"] for match in found if match["kind"] == result))
    kinds: Counter[str] = Counter()
    for match in found:  # in an order in which what is read stands before
        if match["name"] not in own and own.intersection(re.findall(r"%([\w.\-]+)", match["rest"])):
            own.add(match["name"])
            kinds[match["kind"]] += match["kind"] not in _FREE
    return kinds


def test_a_further_layer_costs_few_operations_beside_its_kernels_on_a_tpu() -> None:
    """What depends on the step alone, slots, runs, schedules, is computed once; without prefill its kernel rests."""
    aot.require()

    def compile_step(*step: Any, **options: Any) -> str:
        return str(aot.compile_for("v6e", *step, **options).as_text())

    kinds = second_layer(compile_step, result="conditional")
    assert kinds.pop("custom-call") == 2, "the update's kernel and the one for decoding"
    assert kinds["conditional"] == 1, "the general kernel, in steps that need it"
    del kinds["copy-start"]  # copies in the background, from one memory to another
    assert kinds.total() <= MOST_OPERATIONS, kinds


def test_a_further_layer_costs_few_operations_beside_its_kernels_on_a_gpu() -> None:
    """The same: each is a launch, of two microseconds on an H100. One more rearranges the queries."""
    gpu_aot.require()

    def compile_step(*step: Any, **options: Any) -> str:
        return gpu_aot.text_of(gpu_aot.compile_for_gpu(*step, **options).compiled)

    kinds = second_layer(compile_step, result=None)
    assert kinds.pop("custom-call") == 4, "the update's kernel, and those that decode, combine and prefill"
    assert kinds.total() <= MOST_OPERATIONS - 1, kinds
