"""What the tests of device code share."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from kvproof.kernels import choices

__all__ = ["plant"]

_forget: Callable[[], None] = jax.clear_caches


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fall to XLA is warned of once in a process: each test is warned as if it were the first."""
    monkeypatch.setattr(choices, "_said", set())


@pytest.fixture
def plant() -> Iterator[Callable[[Any, str, Any], None]]:
    """Replaces a step of a kernel, until the test ends: called with a module, the step's name and what stands for it.

    What was traced before, and what is traced with the replacement, is forgotten: JAX 0.12 keeps traced kernels by
    their functions, whatever these call.
    """
    with pytest.MonkeyPatch.context() as patches:

        def planted(module: Any, name: str, replacement: Any) -> None:
            patches.setattr(module, name, replacement)
            _forget()

        yield planted
    _forget()
