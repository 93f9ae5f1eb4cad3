"""A test for each clause: ``pytest --pyargs kvproof.conformance --kvproof-backend module:attribute``."""

import pytest

from kvproof.spec.clauses import CLAUSES

from .pytest_plugin import PROBLEM, RUN

_LABELS = [pytest.param(label, id=label, marks=pytest.mark.kvproof_clause(label)) for label in CLAUSES]


@pytest.mark.parametrize("label", _LABELS)
def test_clause(label: str, request: pytest.FixtureRequest) -> None:
    """The backend holds the clause, as far as the machines that compare by it can tell."""
    stash = request.config.stash
    if PROBLEM in stash:
        pytest.fail(stash[PROBLEM], pytrace=False)
    if RUN not in stash:
        pytest.skip("the plugin is not registered: run pytest with -p kvproof.conformance.pytest_plugin")
    stash[RUN].hold(label)
