"""Benchmarks: one function a workload, named after its row in the performance table of the README.

They are skipped in an ordinary test run; ``pytest tests/bench --benchmark-only --benchmark-disable-gc`` runs
them. Each times the library's own calls; what a workload needs to be ready is made outside the timing.
"""
