"""Backends by name: what the suite looks at is told on the command line, and imported nowhere else."""

import functools
import importlib
import inspect
from dataclasses import dataclass
from typing import Any

__all__ = ["DEFAULT_BACKEND", "Backend", "BackendError", "load_backend"]

DEFAULT_BACKEND = "kvproof.fast"


class BackendError(Exception):
    """A backend cannot be had; the message is one line that says which and why."""


@dataclass(frozen=True)
class Backend:
    """A backend: the object that holds its classes.

    Attributes:
        name: ``module`` or ``module:attribute``, as it was asked for.
        holder: the module, or the attribute of it.
    """

    name: str
    holder: Any

    def get(self, attribute: str) -> Any:
        """One of the backend's public names.

        Raises:
            BackendError: it has none of that name.
        """
        try:
            return getattr(self.holder, attribute)
        except AttributeError as error:
            raise BackendError(f"backend {self.name} has no {attribute}") from error
        except Exception as error:  # a module may import its names when they are first asked for
            raise BackendError(f"backend {self.name}: {attribute} cannot be had: {type(error).__name__}") from error

    def offers(self, attribute: str) -> bool:
        """Whether the backend has a public name: one that it lacks is not offered, which is no deviation."""
        return hasattr(self.holder, attribute)

    def accepts(self, attribute: str, parameter: str) -> bool:
        """Whether one of the backend's callables, ``name`` or ``Class.method``, takes a parameter of that name."""
        first, *path = attribute.split(".")
        try:
            found = functools.reduce(getattr, path, self.get(first))
            parameters = inspect.signature(found).parameters.values()
        except (TypeError, ValueError):  # a callable that shows no signature
            return False
        return any(known.name == parameter or known.kind is known.VAR_KEYWORD for known in parameters)


def load_backend(name: str = DEFAULT_BACKEND) -> Backend:
    """Imports a backend.

    Args:
        name: ``module``, or ``module:attribute`` for an object that holds the classes.

    Raises:
        BackendError: there is no such module or attribute, or importing it fails.
    """
    module_name, colon, attribute = name.partition(":")
    if not module_name or module_name.startswith(".") or (colon and not attribute):
        raise BackendError(f"backend {name!r} must be named as module or module:attribute")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module runs any code while it is imported
        reason = " ".join(str(error).split()) or "no message"
        raise BackendError(f"backend {name} cannot be imported: {type(error).__name__}: {reason}") from error
    if not colon:
        return Backend(name, module)
    return Backend(name, Backend(module_name, module).get(attribute))
