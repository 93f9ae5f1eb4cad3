"""MAN-7: the cache groups of a manager, their rules, and each live request's pages in every group."""
