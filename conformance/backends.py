"""Backends by name: what the suite looks at is told on the command line, and imported nowhere else."""

import functools
import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .capabilities import CAPABILITIES, unknown_capabilities

__all__ = ["DEFAULT_BACKEND", "Backend", "BackendError", "load_backend", "takes_parameter"]

DEFAULT_BACKEND = "kvproof.fast"


class BackendError(Exception):
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
            raise BackendError(f"backend {self.name} has no {attribute}") from error
        except BackendError:  # it says itself what is missing
            raise
        except Exception as error:  # a module may import its names when they are first asked for
            raise BackendError(f"backend {self.name}: {attribute} cannot be had: {type(error).__name__}") from error

    def offers(self, attribute: str) -> bool:
        """Whether the backend has a public name: one that it lacks is not offered, which is no deviation."""
        return hasattr(self.holder, attribute)

    def accepts(self, attribute: str, parameter: str) -> bool:
        """Whether one of the backend's callables, ``name`` or ``Class.method``, takes a parameter of that name."""
        if (attribute, parameter) not in self._accepted:
            first, *path = attribute.split(".")
            called = functools.reduce(getattr, path, self.get(first))
            self._accepted[attribute, parameter] = takes_parameter(called, parameter)
        return self._accepted[attribute, parameter]

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


def load_backend(name: str = DEFAULT_BACKEND, without: Iterable[str] = ()) -> Backend:
    """Imports a backend.

    Args:
        name: ``module``, or ``module:attribute`` for an object that holds the classes.
        without: capabilities that it is said to lack.

    Raises:
        BackendError: there is no such module or attribute, importing it fails, or what it says to lack is unknown.
    """
    module_name, colon, attribute = name.partition(":")
    if not module_name or module_name.startswith(".") or (colon and not attribute):
        raise BackendError(f"backend {name!r} must be named as module or module:attribute")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module runs any code while it is imported
        reason = " ".join(str(error).split()) or "no message"
        raise BackendError(f"backend {name} cannot be imported: {type(error).__name__}: {reason}") from error
    holder = Backend(module_name, module).get(attribute) if colon else module
    return Backend(name, holder, frozenset(without))
