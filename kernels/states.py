"""States in pages: what a state group (Mamba, say) keeps, one state a page (MAN-13)."""

from functools import partial
from typing import Any

import jax

from . import arguments
from .arguments import Array
from .dynamic_checks import check_page_ids
from .gpu import hopper
from .page_copy import num_pages_of
from .xla import copy as xla

__all__ = ["read_states", "write_states"]


def read_states(
    pages: Any,
    page_ids: Array,  # i32[S]
) -> Any:
    """The states on some pages. O(S states).

    Args:
        pages: arrays `[P, ...]` of any dtype, in any pytree.
        page_ids: `i32[S]`; -1, or any id that is no page, reads zeros: the state of a sequence that begins.

    Returns:
        Arrays `[S, ...]`, in the structure of ``pages``.

    Raises:
        TypeError: on wrong types and dtypes [R1].
        ValueError: on shapes that don't fit [R1].
    """
    num_pages_of(pages)
    arguments.integers("page_ids", page_ids, (None,), "[S]")
    return _read(pages, page_ids)


def write_states(
    pages: Any,
    page_ids: Array,  # i32[S]
    states: Any,
    *,
    validate: bool = False,
) -> Any:
    """Pages with some of the states replaced; in place where they are donated. O(S states).

    Args:
        pages: arrays `[P, ...]` of any dtype, in any pytree.
        page_ids: `i32[S]`; -1, or any id that is no page, writes nothing. No page is written twice.
        states: arrays `[S, ...]` of the same dtypes, in the same structure.
        validate: whether the ids are looked at too; they must be concrete then.

    Returns:
        The pages, in the structure given.

    Raises:
        TypeError: on wrong types and dtypes [R1].
        ValueError: on shapes and structures that don't fit; with ``validate`` on a page named twice [R1].
        IndexError: with ``validate``, on pages that don't exist [R1].
    """
    num_pages = num_pages_of(pages)
    arguments.integers("page_ids", page_ids, (None,), "[S]")
    arguments.same("the structure of states", jax.tree.structure(states), "that of pages", jax.tree.structure(pages))
    for page, state in zip(jax.tree.leaves(pages), jax.tree.leaves(states), strict=True):
        arguments.array("states", state, page.ndim, f"[S, {', '.join(map(str, page.shape[1:]))}]")
        arguments.same("states.shape", tuple(state.shape), "[S, ...]", (*page_ids.shape, *page.shape[1:]))
        if state.dtype != page.dtype:
            raise TypeError(f"states must be {page.dtype} as pages, not {state.dtype} [R1]")
    if arguments.flag("validate", validate):
        check_page_ids("page_ids", page_ids, num_pages)
    return _write(pages, page_ids, states)


@jax.jit
def _read(pages: Any, page_ids: jax.Array) -> Any:
    on_tpu = partial(xla.read, as_bits=False)

    def of_array(array: jax.Array) -> Any:
        return jax.lax.platform_dependent(array, page_ids, tpu=on_tpu, default=xla.read)

    return jax.tree.map(of_array, pages)


@jax.jit
def _write(pages: Any, page_ids: jax.Array, states: Any) -> Any:
    return jax.tree.map(lambda array, new: _write_array(array, page_ids, new), pages, states)


def _write_array(
    pages: jax.Array,  # [P, ...]
    page_ids: jax.Array,  # i32[S]
    states: jax.Array,  # [S, ...]
) -> jax.Array:
    programs: dict[str, Any] = {"tpu": partial(xla.write, as_bits=False), "default": xla.write}
    if hopper.in_sight():
        programs["cuda"] = partial(xla.write, distinct=True)
    written: jax.Array = jax.lax.platform_dependent(pages, page_ids, states, **programs)
    return written
