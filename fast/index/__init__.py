"""POOL-7: cached prefixes found by comparing tokens, run by run."""
