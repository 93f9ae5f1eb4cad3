"""Arguments that no call has wrong by their kinds, each with the reason: everything else has faults.

A reason stands for a table, a method (``table.method``) or an argument (``table.method(argument)``).
"""

from collections.abc import Iterator

from .interfaces import INTERFACES

__all__ = ["UNSPOILT", "unspoilt"]

UNSPOILT = {
    "page.page_hash(page_hash)": "a page of a pool refuses every key, right or wrong (POOL-7)",
    "manager.restore(hash_seed)": "of logs, which are read with another seed: the method has no such argument",
    "page lists.CachePages(pages)": "only holds pages: wrong ones are refused where they are handed back (MAN-2)",
    "page lists.__add__(other)": "Python's operator: what other objects do with it is theirs to say",
    "keys.hash_page_tokens(none_hash)": "read only for a page without a parent: else it may be anything",
    "keys.hash_request_tokens(none_hash)": "read only for a request with a full page: else it may be anything",
    "engine": "a scheduler of the suite's own engine: no backend has one",
    **dict.fromkeys(("cache.RaggedPagesCache", "view.RaggedPagesCacheView"), "a dataclass: init and init_cache check"),
    "attention.export_prefix": "its machine serves requests, and damages what they export (SEC-3)",
    "attention.import_prefix": "its machine serves requests, and damages what they import (SEC-3)",
}


def unspoilt() -> Iterator[tuple[str, str, str]]:
    """Every argument without a fault: the names of its table, of its method there, and its own there."""
    for table in INTERFACES:
        for row in table:
            method = f"{table.name}.{row.name}"
            for name in dict.fromkeys((*row.kinds, *row.by_name)):
                if name not in row.kinds or row.kinds[name].fault is None:
                    yield table.name, method, f"{method}({name})"
