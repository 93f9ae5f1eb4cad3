"""Benchmarks: the rows of the performance table, on kvproof and on the peers that are installed, and what has no row.

They are skipped in an ordinary test run; ``pytest tests/bench --benchmark-only --benchmark-disable-gc`` runs
them. Each times the library's own calls; what a workload needs to be ready is made outside the timing.
"""
