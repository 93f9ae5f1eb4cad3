"""CACHE-1, CACHE-2: how keys and values lie in pages."""
