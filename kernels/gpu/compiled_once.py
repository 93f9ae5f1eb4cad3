"""The interpreter's programs, compiled once.

JAX's interpreter for GPUs runs every warpgroup of every block as a program of its own, traced once and compiled each
time: a minute for six blocks. Here they are kept, for as long as a function runs: seconds.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import Any

import jax

__all__ = ["compiled_once"]

_RUNNER = "_run_jaxpr"
"""What the interpreter calls to run a warpgroup: with its jaxpr, constants and arguments."""

_evaluate: Callable[..., Any] = jax.core.eval_jaxpr


@contextmanager
def compiled_once(compiler_options: dict[str, Any]) -> Iterator[None]:
    """Within, the programs of interpreted kernels are compiled once each. Not for several threads at a time.

    Args:
        compiler_options: how they are compiled.
    """
    threads = import_module("jax._src.pallas.mosaic.interpret.thread_map")
    before = getattr(threads, _RUNNER, None)
    if before is None:  # another version of JAX, which keeps them itself or does without
        yield
        return
    programs: dict[int, tuple[Any, Callable[..., Any]]] = {}
    lock = Lock()

    def run(jaxpr: Any, consts: Any, *args: Any) -> None:
        with lock:
            if id(jaxpr) not in programs:
                lowered = jax.jit(lambda consts, *args: _evaluate(jaxpr, consts, *args)).lower(consts, *args)
                # The jaxpr is kept too, so that no other gets its id.
                programs[id(jaxpr)] = jaxpr, lowered.compile(compiler_options)
            program = programs[id(jaxpr)][1]
        program(consts, *args)

    setattr(threads, _RUNNER, run)
    try:
        yield
    finally:
        setattr(threads, _RUNNER, before)
