"""A small engine, complete: a model served through a backend's public names, and held against dense attention (ENG)."""
