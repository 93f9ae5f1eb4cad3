"""Backends by name: what the suite looks at is told on the command line, and imported nowhere else."""

import functools
import importlib
import inspect
import os
import pkgutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ..console.exit_status import CannotRunError
from ..console.named import did_you_mean
from .capabilities import CAPABILITIES, OF_OPTION, unknown_capabilities
from .raising import IN_THE_CALL, Ending, frames, prints_apart

__all__ = ["DEFAULT_BACKEND", "Backend", "BackendError", "load_backend", "takes_arguments", "takes_parameter"]

DEFAULT_BACKEND = "kvproof.fast"


class BackendError(CannotRunError):
    """A backend cannot be had; the message is one line that says which and why."""


@dataclass(frozen=True)
class Backend:
    """A backend: the object that holds its classes.

    Attributes:
        name: ``module`` or ``module:attribute``, as it was asked for.
        holder: the module, or the attribute of it.
        without: capabilities that it is said to lack, beside those that the holder itself says.
    """

    name: str
    holder: Any
    without: frozenset[str] = frozenset()

    @functools.cached_property
    def lacks(self) -> frozenset[str]:
        """The capabilities that it is said to lack; see `capabilities`.

        Raises:
            BackendError: the holder's ``kvproof_lacks`` is no list of capabilities.
        """
        said = getattr(self.holder, "kvproof_lacks", ())
        listed = None if isinstance(said, str) or not isinstance(said, Iterable) else list(said)
        strange = [repr(said)] if listed is None else unknown_capabilities(listed)
        if listed is None or strange:
            known = ", ".join(CAPABILITIES)
            raise BackendError(f"backend {self.name}: kvproof_lacks names {', '.join(strange)}; there are {known}")
        return self.without.union(listed)

    def get(self, attribute: str) -> Any:
        """One of the backend's public names.

        Raises:
            BackendError: it has none of that name.
        """
        try:
            return getattr(self.holder, attribute)
        except AttributeError as error:
            known = [name for name in dir(self.holder) if not name.startswith("_")]
            raise BackendError(f"backend {self.name} has no {attribute}{did_you_mean(attribute, known)}") from error
        except BackendError:  # it says itself what is missing
            raise
        except Exception as error:  # a module may import its names when they are first asked for
            raise BackendError(f"backend {self.name}: {attribute} cannot be had: {type(error).__name__}") from error

    def offers(self, attribute: str) -> bool:
        """Whether the backend has a public name: one that it lacks is not offered, which is no deviation."""
        return hasattr(self.holder, attribute)

    def accepts(self, attribute: str, parameter: str) -> bool:
        """Whether one of the backend's callables, ``name`` or ``Class.method``, takes a parameter of that name.

        It takes no option of a capability that it is said to lack, though its constructor may have it.
        """
        if OF_OPTION.get(parameter) in self.lacks:
            return False
        if (attribute, parameter) not in self._accepted:
            first, *path = attribute.split(".")
            called = functools.reduce(getattr, path, self.get(first))
            self._accepted[attribute, parameter] = takes_parameter(called, parameter)
        return self._accepted[attribute, parameter]

    def flags(self, made: str, *flags: bool) -> tuple[bool, ...]:
        """Those of a manager's flags, whether it caches and whether there is an Eagle model, that its class takes.

        They go by position, behind the number of pages, the groups and the longest request: a backend may have other
        names for them, and one that takes none caches.

        Args:
            made: the name of the class.
            flags: the flags, in their order.
        """
        needed = 3 + (made == "ShardedCacheManager")
        called = self.get(made)
        return next(
            flags[:end] for end in range(len(flags), -1, -1) if not end or takes_arguments(called, needed + end)
        )

    @functools.cached_property
    def _accepted(self) -> dict[tuple[str, str], bool]:
        """What is known of parameters: to read a signature takes longer than to build a pool."""
        return {}


def takes_parameter(called: Any, parameter: str) -> bool:
    """Whether a callable takes a parameter of that name; False if it shows no signature."""
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(known.name == parameter or known.kind is known.VAR_KEYWORD for known in parameters)


def takes_arguments(called: Any, count: int) -> bool:
    """Whether a callable can be called with a number of arguments by position; True if it shows no signature."""
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True


def load_backend(name: str = DEFAULT_BACKEND, without: Iterable[str] = ()) -> Backend:
    """Imports a backend; one that lies in the current folder is found there, as ``python -m`` finds a module.

    Args:
        name: ``module``, or ``module:attribute`` for an object that holds the classes.
        without: capabilities that it is said to lack.

    Raises:
        BackendError: there is no such module or attribute, importing it fails, or what it says to lack is unknown.
    """
    module_name, colon, attribute = name.partition(":")
    if os.sep in module_name or module_name.endswith(".py"):
        file = Path(module_name).with_suffix("")
        meant = ".".join(file.parts[-1:] if file.is_absolute() else file.parts) + colon + attribute
        raise BackendError(f"backend {name!r} must be named as Python imports it; did you mean {meant}?")
    if not module_name or module_name.startswith(".") or (colon and not attribute):
        raise BackendError(f"backend {name!r} must be named as module or module:attribute")
    _find_in_current_folder(module_name.partition(".")[0])
    try:
        with prints_apart():
            module = importlib.import_module(module_name)
    except Ending:
        raise
    except BaseException as error:  # a module runs any code while it is imported
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise BackendError(
                f"backend {name} cannot be imported: {_not_found(module_name, str(error.name))}"
            ) from error
        reason = " ".join(str(error).split()) or "no message"
        where = [f" (raised at {frame})" for frame in frames(error)[-1:] if frame != IN_THE_CALL]
        said = f"{type(error).__name__}: {reason}{''.join(where)}"
        raise BackendError(f"backend {name} cannot be imported: {said}") from error
    holder = Backend(module_name, module).get(attribute) if colon else module
    return Backend(name, holder, frozenset(without))


def _find_in_current_folder(package: str) -> None:
    """Puts the current folder in front of the path if a module of that name lies there.

    A script that an installer writes, such as ``kvproof``, has its own folder there and not the current one. Where the
    module is not, the path stays as it is, so that no other file of the current folder hides an installed module; so
    it does where Python was told not to look there (``python -P``).
    """
    here = str(Path.cwd())
    if package in sys.modules or sys.flags.safe_path or here in sys.path or "" in sys.path:
        return
    if PathFinder.find_spec(package, [here]) is not None:
        sys.path.insert(0, here)


def _not_found(module: str, missing: str) -> str:
    """Says what was looked for, where, and what may have been meant.

    Args:
        module: the module that was asked for.
        missing: the part of it, from the left, that there is not.
    """
    package, _, last = missing.rpartition(".")
    if not package:
        here = [] if sys.flags.safe_path else [str(Path.cwd())]
        known = [found.name for found in pkgutil.iter_modules([*here, *sys.path])]
        where = "".join(f"in {folder} or " for folder in here)
        return f"there is no module {missing} {where}among what is installed{did_you_mean(last, known)}"
    inside = getattr(sys.modules[package], "__path__", None)
    if inside is None:
        rest = module.removeprefix(f"{package}.")
        return f"{package} is a module and has no module {last} in it; did you mean {package}:{rest}?"
    known = [found.name for found in pkgutil.iter_modules(inside)]
    return f"there is no module {last} in {package}{did_you_mean(last, known)}"
