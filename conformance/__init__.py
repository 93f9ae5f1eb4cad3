"""The conformance suite: holds any backend against the specification, and says which clause it breaks.

From the command line: ``kvproof check --backend module:attribute``. From Python::

    from kvproof.conformance.runner import check

    report = check(load_backend("my_cache"), seed=0)
    report.verdict("POOL-5")

Start with `machines.base`, where two sides make the same call and are compared; every other machine says
which calls. `runner` runs them, `report` tells what they found.
"""

from .backends import Backend, BackendError, load_backend

__all__ = ["Backend", "BackendError", "load_backend"]
