"""How adapters get at the packages that they adapt: by name, when they are first needed."""

import importlib
from types import ModuleType

from ..backends.loading import BackendError

__all__ = ["import_peer"]


def import_peer(module: str, install: str) -> ModuleType:
    """Imports a module of another package.

    Args:
        module: its name.
        install: the command that installs the package.

    Raises:
        BackendError: the package is not installed, or cannot be imported; one line that says how to install it.
    """
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise BackendError(f"{package} is not installed: {install}") from error
        raise BackendError(f"{module} cannot be imported: {error}; {install}") from error
    except ImportError as error:
        reason = " ".join(str(error).split())
        raise BackendError(f"{module} cannot be imported: {reason}; {install}") from error
