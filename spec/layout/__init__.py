"""CACHE-1 to 4: how keys, values and states lie in pages."""
