"""Calls whose program is chosen when they are lowered, for it is known by then for which platform.

`jax.lax.platform_dependent` traces the programs of all platforms wherever a call is traced: a TPU's kernel is then part
of what is compiled for CPUs, is lowered once more for every other platform of an export, and is held to whatever JAX
checks where it is traced. Here a call stays one operation until it is lowered. Then its function is traced for that
one platform, as if nothing were round it:

- with 32-bit integers and floats, unless an argument has more bits: what ``jax_enable_x64`` makes of a Python number is
  no matter of the device's;
- without mesh axes in the types of arrays: `jax.shard_map` (with ``check_vma``, too) gives each device its part, and of
  arrays on an ``Explicit`` mesh XLA splits the program, as on any other mesh.

Under `jax.vmap` a TPU makes the calls one after the other, other platforms get XLA's program for all at once. There is
no derivative.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive, jaxprs_in_params
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh, AxisType, ManualAxisType

from .choices import Call, asked_of, without_kernels

__all__ = ["Like", "by_platform", "calls_in", "kernel_output", "likes", "who_serves"]

_NARROW = 4
"""Bytes of the widest numbers that there are without ``jax_enable_x64``."""

_SPLIT = "XLA splits this program over devices, and kernels can't be split by it: call it within jax.shard_map"

_shape: Callable[..., Any] = jax.ShapeDtypeStruct
_spec: Callable[..., Any] = jax.P
_varies: Callable[..., Any] = ManualAxisType


@dataclass(frozen=True)
class Like:
    """What a result is like: an argument, in dtype, in shape and in how it is split over a mesh.

    Attributes:
        argument: which of the arrays among the arguments.
        last: the size of the result's last axis; None: that of the argument.
    """

    argument: int
    last: int | None = None


@dataclass(frozen=True)
class _Deferred:
    """A call that waits for its platform; hashable, so that equal ones are lowered once.

    Attributes:
        name: the public function that was called.
        function: of arrays, of the options and of ``platform``: ``"tpu"``, ``"cuda"``, or None for all others.
        options: static arguments by name.
        structure: how the arrays make up the arguments.
        results: of each array that is returned what it is like.
    """

    name: str
    function: Callable[..., Any]
    options: tuple[tuple[str, Any], ...]
    structure: Any
    results: tuple[Like, ...]

    def run(self, platform: str | None, *leaves: Any) -> list[Any]:
        """Calls the function for a platform."""
        arguments = jax.tree.unflatten(self.structure, leaves)
        with asked_of(Call(self.name, platform)):
            made = self.function(*arguments, platform=platform, **dict(self.options))
        return jax.tree.leaves(made)


_deferred: Any = Primitive("kvproof_call")
_deferred.multiple_results = True


def by_platform(name: str, function: Callable[..., Any], *arguments: Any, results: Any, **options: Any) -> Any:
    """Calls a function for the platform that the call is lowered for.

    Args:
        name: the public function that this is part of.
        function: called with the arguments, the options and ``platform``: ``"tpu"``, ``"cuda"``, or None for others.
        arguments: pytrees of arrays.
        results: what it returns, with a `Like` for each array.
        options: hashable and equal where they mean the same.
    """
    leaves, structure = jax.tree.flatten(arguments)
    likes, returned = jax.tree.flatten(results)
    call = _Deferred(name, function, tuple(sorted(options.items())), structure, tuple(likes))
    return jax.tree.unflatten(returned, _deferred.bind(*leaves, call=call))


def likes(pages: Any) -> Any:
    """What results are like that stand for pages, where those are the first of the arguments. O(arrays)."""
    leaves, structure = jax.tree.flatten(pages)
    return jax.tree.unflatten(structure, [Like(place) for place in range(len(leaves))])


def kernel_output(shape: tuple[int, ...], dtype: Any) -> Any:
    """The shape and dtype of a kernel's output, for `jax.shard_map` with ``check_vma`` as well. O(1)."""
    return _shape(shape, dtype, manual_axis_type=_varies())


def calls_in(jaxpr: Any) -> Iterator[tuple[_Deferred, Sequence[Any]]]:
    """The calls in a program that was traced, and in those that are part of it, each with its arguments' types."""
    for eqn in jaxpr.eqns:
        if eqn.primitive is _deferred:
            yield eqn.params["call"], [var.aval for var in eqn.invars]
        for inner in jaxprs_in_params(eqn.params):
            yield from calls_in(inner)


def who_serves(call: _Deferred, types: Sequence[Any], platform: str | None) -> None:
    """Traces a call for a platform, so that `choices.listening` collects what is recorded of its kernels."""
    types = [_plain(aval) for aval in types]
    with _alone(types):
        jax.eval_shape(partial(call.run, platform), *types)


def _plain(aval: Any) -> Any:
    return jax.core.ShapedArray(aval.shape, aval.dtype)


@contextmanager
def _alone(types: Sequence[Any]) -> Iterator[None]:
    """What is traced meanwhile sees which device it is for, and else nothing of what is round it."""
    mesh = jax.sharding.get_abstract_mesh()
    untyped = AbstractMesh(
        mesh.axis_sizes,
        mesh.axis_names,
        axis_types=(AxisType.Auto,) * len(mesh.axis_names),
        abstract_device=mesh.abstract_device,
    )
    wide = any(aval.dtype.itemsize > _NARROW for aval in types)
    with jax.sharding.use_abstract_mesh(untyped), nullcontext() if wide else jax.enable_x64(False):
        yield


# -- What JAX asks of an operation ----------------------------------------------------------------


@partial(jax.jit, static_argnames="call")
def _compiled(leaves: Sequence[Any], call: _Deferred) -> Any:
    return _deferred.bind(*leaves, call=call)


def _run(*leaves: Any, call: _Deferred) -> Any:
    with jax.disable_jit(False):
        return _compiled(leaves, call)


def _types(*avals: Any, call: _Deferred) -> list[Any]:
    varying = frozenset().union(*(aval.manual_axis_type.varying for aval in avals))
    return [_type(avals[like.argument], like, _varies(varying=varying)) for like in call.results]


def _type(aval: Any, like: Like, varies: Any) -> Any:
    if like.last is None:
        return aval.update(weak_type=False, manual_axis_type=varies)
    split = aval.sharding
    if split.spec[-1] is not None:
        split = jax.NamedSharding(split.mesh, _spec(*split.spec[:-1], None))
    return aval.update((*aval.shape[:-1], like.last), weak_type=False, sharding=split, manual_axis_type=varies)


def _lower(platform: str | None, ctx: Any, *values: Any, call: _Deferred) -> Any:
    types = [_plain(aval) for aval in ctx.avals_in]
    barred = without_kernels(_SPLIT) if _is_split(ctx.module_context.axis_context) else nullcontext()
    with _alone(types), barred:
        return mlir.lower_fun(partial(call.run, platform))(ctx.replace(avals_in=types), *values)


def _is_split(context: Any) -> bool:
    """Whether XLA splits what is lowered over devices, as JAX asks before it lowers a kernel for TPUs."""
    if isinstance(context, mlir.SPMDAxisContext):
        manual = context.manual_axes | set(context.mesh.manual_axes)
        return bool(manual) and manual != frozenset(context.mesh.axis_names)
    return isinstance(context, mlir.ShardingContext) and context.num_devices != 1


for _platform in ("tpu", "cuda"):
    mlir.register_lowering(_deferred, partial(_lower, _platform), platform=_platform)
mlir.register_lowering(_deferred, partial(_lower, None))


def _map(leaves: Sequence[Any], axes: Sequence[Any], *, call: _Deferred) -> tuple[Any, list[int]]:
    mapped = [axis is not None for axis in axes]
    count = next(leaf.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None)
    fronted = [
        jnp.moveaxis(leaf, axis, 0) if is_mapped else leaf
        for leaf, axis, is_mapped in zip(leaves, axes, mapped, strict=True)
    ]
    for like in call.results:  # it has the axis, too
        if not mapped[like.argument]:
            leaf = fronted[like.argument]
            fronted[like.argument] = jnp.broadcast_to(leaf[None], (count, *leaf.shape))
            mapped[like.argument] = True
    every = replace(
        call,
        function=_over_all,
        options=(("call", call), ("mapped", tuple(mapped))),
        structure=jax.tree.structure(tuple(fronted)),
    )
    return _deferred.bind(*fronted, call=every), [0] * len(call.results)


def _over_all(*leaves: Any, call: _Deferred, mapped: tuple[bool, ...], platform: str | None) -> Any:
    """What `jax.vmap` makes of a call: on a TPU one call after the other, for kernels are not mapped."""
    if platform != "tpu":
        with without_kernels("no kernel is mapped by jax.vmap"):
            every = jax.vmap(partial(call.run, platform), in_axes=tuple(0 if each else None for each in mapped))
            return every(*leaves)

    def one(some: list[Any]) -> list[Any]:
        own = iter(some)
        return call.run(platform, *(next(own) if each else leaf for leaf, each in zip(leaves, mapped, strict=True)))

    return jax.lax.map(one, [leaf for leaf, each in zip(leaves, mapped, strict=True) if each])


def _differentiate(primals: Sequence[Any], tangents: Sequence[Any], *, call: _Deferred) -> Any:
    raise NotImplementedError(
        f"{call.name} has no derivative: it is for inference, and its kernels have no backward pass; attend densely "
        "where you train, or put jax.lax.stop_gradient around its arguments"
    )


_deferred.def_impl(_run)
_deferred.def_abstract_eval(_types)
batching.primitive_batchers[_deferred] = _map
ad.primitive_jvps[_deferred] = _differentiate
