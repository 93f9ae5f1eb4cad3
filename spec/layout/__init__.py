"""CACHE-1 to 4: how keys, values and states lie in pages, and how they are written, read and copied."""
