"""What a layer costs beside its kernels: operations of the device, counted in programs compiled for a TPU."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from kvproof.kernels import fused_ragged_paged_attention

from . import aot

aot.require()

NUM_SEQS, NUM_PAGES, PAGE, PAGES_PER_SEQ = 64, 4000, 16, 256
HEADS, KV_HEADS, DIM = 32, 8, 128
HALF, I32 = jnp.bfloat16, jnp.int32

_FREE = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "copy-done"}
"""What takes no time of its own; of a copy in the background its start is counted."""

_OPERATION = re.compile(r"^\s+(?:ROOT )?%(?P<name>\S+) = .*? (?P<kind>[a-z][a-z\-]*)\((?P<rest>.*)$")

MOST_OPERATIONS = 6


def second_layer(num_tokens: int) -> Counter[str]:
    """The operations of a step of two layers that depend on the second layer's arrays or on the first one's result."""
    run: Callable[..., Any] = fused_ragged_paged_attention

    def step(caches: Any, keys: Any, values: Any, queries: Any, *batch: Any) -> Any:
        written = []
        for layer in zip(keys, values, caches, strict=True):
            queries, pages = run(queries, *layer, *batch)
            written.append(pages)
        return queries, written

    new = [aot.shape((num_tokens, KV_HEADS, DIM), HALF)] * 2
    compiled = aot.compile_for(
        "v6e",
        step,
        [aot.shape((NUM_PAGES, PAGE, KV_HEADS, 2, DIM), HALF)] * 2,
        new,
        new,
        aot.shape((num_tokens, HEADS, DIM), HALF),
        *(aot.shape(shape, I32) for shape in ((NUM_SEQS,), (NUM_SEQS, PAGES_PER_SEQ), (NUM_SEQS + 1,), (1,))),
        donate=(0,),
    )
    text = compiled.as_text()
    assert text is not None
    entry = text[text.index("\nENTRY") :].split("\n}", 1)[0]
    found = [match for match in map(_OPERATION.match, entry.splitlines()) if match]
    own = {match["name"] for match in found if match["kind"] == "parameter" and match["rest"][:2] in ("1)", "3)", "5)")}
    assert len(own) == 3, "the second cache, its keys and values"
    own.add(next(match["name"] for match in found if match["kind"] == "conditional"))
    kinds: Counter[str] = Counter()
    for match in found:  # in an order in which what is read stands before
        if match["name"] not in own and own.intersection(re.findall(r"%([\w.\-]+)", match["rest"])):
            own.add(match["name"])
            kinds[match["kind"]] += match["kind"] not in _FREE
    return kinds


def test_a_further_layer_costs_few_operations_beside_its_kernels() -> None:
    """What depends on the step alone, slots, runs, schedules, is computed once; without prefill its kernel rests."""
    kinds = second_layer(NUM_SEQS)
    assert kinds.pop("custom-call") == 2, "the update's kernel and the one for decoding"
    assert kinds["conditional"] == 1, "the general kernel, in steps that need it"
    del kinds["copy-start"]  # copies in the background, from one memory to another
    assert kinds.total() <= MOST_OPERATIONS, kinds
