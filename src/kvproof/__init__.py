"""kvproof: a paged KV cache for LLM inference, written twice and held against itself.

``kvproof.spec`` is slow and obviously correct, ``kvproof.fast`` is what an engine imports, and
``kvproof.conformance`` holds any backend against the specification, clause by clause.
Importing this package loads none of them: each is imported when it is first named, as ``kvproof.fast`` or by an import.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvproof import fast, kernels, spec

__all__ = ["__version__", "conformance", "fast", "kernels", "spec"]

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """The folders, each imported when it is first asked for."""
    if name.startswith("_") or name not in __all__:
        raise AttributeError(f"module {__name__} has no {name}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return __all__
