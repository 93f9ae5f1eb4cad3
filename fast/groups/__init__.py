"""MAN-7: the cache groups of a manager, their page lists, and the columns of live requests."""
