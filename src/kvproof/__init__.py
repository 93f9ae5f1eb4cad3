"""kvproof: a paged KV cache for LLM inference, written twice and held against itself.

``kvproof.spec`` is slow and obviously correct, ``kvproof.fast`` is what an engine imports, and
``kvproof.conformance`` holds any backend against the specification, clause by clause.
Importing this package loads none of them.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
