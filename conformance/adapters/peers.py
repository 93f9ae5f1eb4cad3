"""The packages that adapters adapt: which versions an adapter was made for, and their modules, when first needed."""

import importlib
from importlib import metadata
from types import ModuleType
from typing import NamedTuple

from ..backends.loading import Backend, BackendError
from ..backends.raising import Ending

__all__ = ["Peer", "PeerError", "unknown_version"]


class PeerError(BackendError, Ending):
    """A package, or a module that it needs, is missing: this ends a check, as no call tells anything of the package."""


class Peer(NamedTuple):
    """A package that is installed separately. An adapter names the one that it adapts as ``kvproof_made_for``.

    Attributes:
        package: its name, which is that of its module, too.
        versions: those that the adapter was made for and tried with.
        install: the command that installs the last of them.
    """

    package: str
    versions: tuple[str, ...]
    install: str

    def module(self, name: str) -> ModuleType:
        """Imports a module of the package, or of one that it needs.

        Raises:
            PeerError: there is no such package, or the module cannot be imported; one line that says how to install
                the version that the adapter was made for.
        """
        package = name.partition(".")[0]
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name == package:
                raise PeerError(f"{package} is not installed: {self.install}") from error
            raise PeerError(f"{name} cannot be imported: {error}; {self._made_for()}") from error
        except ImportError as error:
            reason = " ".join(str(error).split())
            raise PeerError(f"{name} cannot be imported: {reason}; {self._made_for()}") from error

    def unknown_version(self) -> str:
        """What is to be said of the version that is installed; "" if it is one that the adapter was made for.

        Raises:
            PeerError: the package is not installed.
        """
        try:
            found = metadata.version(self.package)
        except metadata.PackageNotFoundError as error:
            raise PeerError(f"{self.package} is not installed: {self.install}") from error
        if found.partition("+")[0] in self.versions:  # what follows a plus names the build
            return ""
        return f"the adapter does not know {self.package} {found}, a deviation may be its own; it is {self._made_for()}"

    def _made_for(self) -> str:
        return f"made for {self.package} {', '.join(self.versions)}: {self.install}"


def unknown_version(backend: Backend) -> str:
    """What is to be said of the version of the package that a backend adapts; "" if it is known, or none is adapted.

    Raises:
        PeerError: the package is not installed.
    """
    peer = getattr(backend.holder, "kvproof_made_for", None)
    return peer.unknown_version() if isinstance(peer, Peer) else ""
