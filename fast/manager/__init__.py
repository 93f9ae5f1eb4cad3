"""MAN, SWAP: the cache manager."""
