"""Values as Python source: what a counterexample passes to a backend, written so that a file can pass it again."""

import dataclasses
import enum
import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from kvproof.spec.declarations import CacheSalt

from ..calls.spelling import ReadOnlyList
from ..console.exit_status import CannotRunError

__all__ = ["MOST_ENTRIES", "Literals", "UnrenderableError", "is_plain"]

MOST_ENTRIES = 64
"""An array with more entries is no literal that anybody would read."""

_ATOMS = (type(None), bool, int, float, str, bytes)

_VALUES = ("kvproof.spec.declarations.extra_keys", "kvproof.spec.declarations.events")
"""Modules of values that all backends share."""


class UnrenderableError(CannotRunError):
    """A value has no literal; the message says which."""


def is_plain(value: object) -> bool:
    """Whether a value is data through and through: no object of a backend is among it."""
    if isinstance(value, (*_ATOMS, np.generic, np.ndarray, enum.Enum)) or type(value).__module__ in _VALUES:
        return True
    if type(value) is dict:
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if type(value) in (list, tuple, set, frozenset, ReadOnlyList) or _is_named_tuple(value):
        return all(map(is_plain, value))  # type: ignore[call-overload]
    return False


def _is_named_tuple(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


class Literals:
    """Writes values as Python source, and keeps the import statements that this source needs.

    Args:
        holder: the backend: its public names are written as ``backend.Name``. None for none.

    Attributes:
        imports: the import statement of every name used so far.
    """

    def __init__(self, holder: Any = None) -> None:
        self._holder = holder
        self.imports: dict[str, str] = {}

    def of(self, value: object) -> str:
        """A value as source; salts by their fingerprints only (SEC-2).

        Raises:
            UnrenderableError: it is neither data nor made of what can be imported by name.
        """
        if isinstance(value, enum.Enum):
            return f"{self.name_of(type(value))}.{value.name}"
        if isinstance(value, float):
            return repr(float(value)) if np.isfinite(value) else f"float({str(float(value))!r})"
        if isinstance(value, _ATOMS):
            return repr(value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if isinstance(value, np.generic):
            return self._scalar(value)
        if type(value) is list:
            return f"[{', '.join(map(self.of, value))}]"
        if type(value) is tuple:
            return f"({', '.join(map(self.of, value))}{',' if len(value) == 1 else ''})"
        if type(value) is ReadOnlyList:
            return f"{self.name_of(ReadOnlyList)}({self.of(list(value))})"
        if type(value) is dict:
            return f"{{{', '.join(f'{self.of(key)}: {self.of(entry)}' for key, entry in value.items())}}}"
        if isinstance(value, CacheSalt):
            return f"{self.name_of(CacheSalt)}.of_fingerprint({value.fingerprint!r})"
        if _is_named_tuple(value):
            return f"{self.name_of(type(value))}({', '.join(map(self.of, value))})"  # type: ignore[call-overload]
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._dataclass(value)
        if inspect.isroutine(value) or isinstance(value, type):
            return self.name_of(value)
        raise UnrenderableError(f"a {type(value).__name__}")

    def name_of(self, thing: Any) -> str:
        """The name of a class or function that the source can use; what it takes to import it is noted."""
        name, module = getattr(thing, "__qualname__", ""), getattr(thing, "__module__", None)
        if module == "builtins" and name.isidentifier():
            return str(name)
        if self._holder is not None and name.isidentifier() and getattr(self._holder, name, None) is thing:
            return f"backend.{name}"
        if not module or not name.isidentifier():
            raise UnrenderableError(f"{name or thing!r}, which no import can name")
        if getattr(importlib.import_module(module), name, None) is not thing:
            raise UnrenderableError(f"{name}, which is not what {module} has by that name")
        public = module
        while "." in public and getattr(_loaded(public.rpartition(".")[0]), name, None) is thing:
            public = public.rpartition(".")[0]  # the shortest path that leads there
        line = f"from {public} import {name}"
        if self.imports.setdefault(name, line) != line:
            raise UnrenderableError(f"{name} of two modules")
        return str(name)

    def numpy(self) -> str:
        """The name of numpy."""
        self.imports["np"] = "import numpy as np"
        return "np"

    def _scalar(self, value: np.generic) -> str:
        if value.dtype.kind not in "biuf" or not hasattr(np, value.dtype.name):
            raise UnrenderableError(f"a {value.dtype}")
        return f"{self.numpy()}.{value.dtype.name}({self.of(value.item())})"

    def _array(self, value: "np.ndarray[Any, Any]") -> str:
        kind = value.dtype.name + ("_" if value.dtype.kind == "b" else "")
        if value.size > MOST_ENTRIES or value.dtype.kind not in "biuf" or not hasattr(np, kind):
            raise UnrenderableError(f"an array {value.dtype}{list(value.shape)}")
        if value.base is not None and not value.flags.c_contiguous and _is_first_column(value.base, value):
            return f"{self._array(value.base)}[..., 0]"  # whoever does not heed strides reads the other columns
        if value.size > 1 and value.strides[-1] < 0:
            return f"{self._array(np.ascontiguousarray(value[..., ::-1]))}[..., ::-1]"
        made = f"{self.numpy()}.array({self.of(value.tolist())}, np.{kind})"
        return made if value.size else f"{made}.reshape({value.shape})"

    def _dataclass(self, value: Any) -> str:
        given = []
        for field in dataclasses.fields(value):
            entry = getattr(value, field.name)
            if not field.init:
                continue
            if field.default is not dataclasses.MISSING and _same(field.default, entry):
                continue
            if field.default_factory is not dataclasses.MISSING and _same(field.default_factory(), entry):
                continue
            given.append(f"{field.name}={self.of(dict(entry) if isinstance(entry, Mapping) else entry)}")
        return f"{self.name_of(type(value))}({', '.join(given)})"


def _is_first_column(base: Any, array: "np.ndarray[Any, Any]") -> bool:
    """Whether an array is ``base[..., 0]``."""
    if not isinstance(base, np.ndarray) or base.shape[:-1] != array.shape or not base.flags.c_contiguous:
        return False
    return base.ctypes.data == array.ctypes.data and base.strides[:-1] == array.strides and base.dtype == array.dtype


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _loaded(module: str) -> Any:
    return importlib.import_module(module)
