"""How a fault gets into device code: by a copy of the kernels with one function replaced, or round a public function.

A program that was compiled before does not see that a function in it was replaced: so the modules are imported a
second time, under the same names and out of everybody's sight, and the copy is what is changed.
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import Fault, Way, backend_with

__all__ = ["Edit", "edited", "in_kernels", "in_tpu_kernels", "with_kernels", "with_tpu_kernels", "with_words"]

_KERNELS = "kvproof.kernels"

Edit = Callable[[ModuleType], Any]
"""From a module's copy to what takes the place of one of its functions."""


def with_kernels(fast: ModuleType, edits: Mapping[str, Edit]) -> SimpleNamespace:
    """A backend whose public device functions are those of a copy of the kernels, some functions in it replaced.

    Args:
        fast: the fast backend.
        edits: for each ``module:function`` below the kernels what makes the new function of the module's copy.
    """
    modules: dict[str, ModuleType] = {}
    with _in_sight(modules):
        _replace(edits)
        copy = importlib.import_module(_KERNELS)
        names = [name for name in fast.__all__ if hasattr(copy, name)]
        public = {name: getattr(copy, name) for name in names}
    return backend_with(fast, **{name: _within(modules, value) for name, value in public.items()})


def with_tpu_kernels(fast: ModuleType, edits: Mapping[str, Edit]) -> SimpleNamespace:
    """A backend whose kernels for TPUs, as they are interpreted, are of a copy; see `with_kernels`."""
    modules: dict[str, ModuleType] = {}
    with _in_sight(modules):
        _replace(edits)
        copy = importlib.import_module(fast.tpu_kernels.__name__)
    kernels = {name: _within(modules, getattr(copy, name)) for name in ("attend", "update")}
    return backend_with(fast, tpu_kernels=SimpleNamespace(**kernels))


def in_kernels(place: str) -> Way:
    """A way in which a function takes the place of one of the kernels, which it is given to call.

    Args:
        place: ``module:function`` below the kernels.
    """
    return functools.partial(_with_call, with_kernels, place)


def in_tpu_kernels(place: str) -> Way:
    """The same in the kernels for TPUs, as they are interpreted; see `in_kernels`."""
    return functools.partial(_with_call, with_tpu_kernels, place)


def _with_call(into: Callable[..., SimpleNamespace], place: str, fast: ModuleType, fault: Fault) -> SimpleNamespace:
    return into(fast, {place: lambda module: functools.partial(fault, getattr(module, place.partition(":")[2]))})


def with_words(fast: ModuleType, place: str, old: str, new: str) -> SimpleNamespace:
    """A backend in whose kernels a few words of a function are others; see `with_kernels`.

    Args:
        fast: the fast backend.
        place: ``module:function`` below the kernels.
        old: the words; they stand in it exactly once.
        new: what stands there instead.
    """
    return with_kernels(fast, {place: edited(place.partition(":")[2], old, new)})


def edited(function: str, old: str, new: str) -> Edit:
    """An edit that changes a few words of a function; see `with_words`."""

    def edit(module: ModuleType) -> Any:
        original = getattr(module, function)
        source = inspect.getsource(original)
        if source.count(old) != 1:
            raise ValueError(f"{module.__name__}.{function} has {source.count(old)} times {old!r}, not once")
        made = dict(original.__globals__)
        exec(source.replace(old, new), made)  # its own source, but for the words
        return made[function]

    return edit


def _replace(edits: Mapping[str, Edit]) -> None:
    """Makes edits in the kernels that are in sight."""
    for place, edit in edits.items():
        module_name, function = place.split(":")
        module = importlib.import_module(f"{_KERNELS}.{module_name}")
        if not hasattr(module, function):
            raise AttributeError(f"{module.__name__} has no {function} to be replaced")
        setattr(module, function, edit(module))


def _within(modules: dict[str, ModuleType], public: Any) -> Any:
    """A function of the copy as everybody may call it: modules that it imports on the way are copies, too."""
    if isinstance(public, type):
        return public

    @functools.wraps(public)
    def call(*arguments: Any, **options: Any) -> Any:
        with _in_sight(modules):
            return public(*arguments, **options)

    return call


@contextmanager
def _in_sight(modules: dict[str, ModuleType]) -> Iterator[None]:
    """Meanwhile the kernels are these modules, and those imported now become some of them."""
    usual = _taken_out()
    _put_back(modules)
    try:
        yield
    finally:
        modules.update(_taken_out())
        _put_back(usual)


def _taken_out() -> dict[str, ModuleType]:
    names = [name for name in sys.modules if name == _KERNELS or name.startswith(f"{_KERNELS}.")]
    return {name: sys.modules.pop(name) for name in names}


def _put_back(modules: Mapping[str, ModuleType]) -> None:
    """Enters modules; their packages name them again, which importing others has changed."""
    sys.modules.update(modules)
    for name, module in modules.items():
        package, _, last = name.rpartition(".")
        setattr(sys.modules[package], last, module)
