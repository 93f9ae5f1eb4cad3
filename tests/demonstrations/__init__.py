"""Demonstrations on other packages, run by hand; each module says how. They are no tests and not in CI."""
