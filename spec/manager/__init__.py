"""MAN, SWAP, POOL-12: the cache manager: which pages each request holds, from look-up to free."""
