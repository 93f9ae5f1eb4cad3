"""Exhaustive, in the small: every reachable state of small worlds, the specification and a backend side by side.

Random search finds the deep faults; this leaves no shallow one. A world is a machine whose calls are listed, not drawn
(`world`); the walk goes through its states, nearest first, and takes those for one that differ in names alone (`walk`).
Pools, managers and tables have worlds of their own (`pools`, `managers`, `tables`), listed in `worlds`;
``kvproof check --exhaustive`` runs them, and every check the smallest ones. They compare as level exact does: the order
of the free queue is part of a state.
"""

import kvproof.conformance.machines  # noqa: F401 - the registry of machines imports the worlds, so it comes first
