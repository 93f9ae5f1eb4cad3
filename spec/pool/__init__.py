"""POOL, PIN, HASH: the pages of a pool, their keys, and the order in which they are evicted."""
