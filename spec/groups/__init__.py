"""MAN-7: the cache groups of a manager at work, and what it knows of live requests."""
