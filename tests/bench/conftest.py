"""The implementations that a row is run on."""

from typing import Any

import pytest

from .implementation import Implementation
from .peers import IMPLEMENTATIONS


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda implementation: implementation.name)
def implementation(request: Any) -> Implementation:
    """Each implementation; a row says which of them it has nothing for."""
    found: Implementation = request.param
    return found
