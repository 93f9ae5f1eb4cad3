"""Placeholder while the first rooms are built."""
