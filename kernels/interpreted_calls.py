"""What interpreted kernels of all platforms have in common: the options of a call, and what is kept of a run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import jax.numpy as jnp

from .layout import layout_of
from .options import AttentionOptions

__all__ = ["TO_COMPILE", "Run", "options_of_call", "order_forgotten"]

TO_COMPILE: dict[str, Any] = {"xla_backend_optimization_level": 0}
"""What is run once is not worth being optimised."""


class Run(NamedTuple):
    """What one run of a kernel left.

    Attributes:
        output: what it gave, its arrays as numpy arrays.
        minds: what the interpreter reported: races, and semaphores that were not at zero at the end.
    """

    output: Any
    minds: str


@contextmanager
def order_forgotten() -> Iterator[None]:
    """Within, a kernel that raises does so alone: those that run after it do not wait for it.

    The interpreter's steps are ordered effects, and JAX starts each program by waiting for the last one. Where that one
    raised after it was dispatched, it is kept, and every later interpreted kernel of the thread raises its error.
    """
    try:
        yield
    except BaseException:
        import_module("jax._src.dispatch").runtime_tokens.clear()
        raise


def options_of_call(
    unsupported: Callable[..., str | None],
    queries: Any,
    kv_pages: Any,
    page_table: Any,
    num_kv_heads: int,
    **masks: Any,
) -> AttentionOptions:
    """The options of a call with keys as wide as values and the usual scale. O(1).

    Args:
        unsupported: the platform's own: why a call can't be made by its kernels, or None.
        queries: `[T, Hq, D]`.
        kv_pages: `[P, page, ...]`, of the dtype of the numbers.
        page_table: `i32[S, pages_per_seq]`.
        num_kv_heads: H.
        masks: causal, window, chunk and soft cap, as `AttentionOptions` has them, and block sizes.

    Raises:
        ValueError: the kernels do not take such a call; on their platform it is left to XLA.
    """
    head_dim = queries.shape[2]
    layout = layout_of(kv_pages, head_dim, head_dim, num_kv_heads)
    options = AttentionOptions(layout, jnp.dtype(kv_pages.dtype), head_dim**-0.5, **masks)
    reason = unsupported(options, queries, kv_pages, page_table)
    if reason is not None:
        raise ValueError(f"the kernels do not take this call: {reason}")
    return options
