"""What is said of both packages is tested once, for each of them."""

from types import ModuleType

import pytest

from kvproof import fast, spec


@pytest.fixture(scope="session", params=[spec, fast], ids=["spec", "fast"])
def package(request: pytest.FixtureRequest) -> ModuleType:
    """The specification or the fast backend."""
    package: ModuleType = request.param
    return package
