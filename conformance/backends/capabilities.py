"""What a backend may lack without deviating, by name, where no missing method tells.

A backend lacks what it does not offer by name; what its holder's attribute ``kvproof_lacks`` lists, which an adapter
sets for the package that it adapts; and what the command line says (``--without``). A machine about it does not run, or
leaves out the steps and the parts of the observable state that are; a clause that nothing else checks is *not offered*.
"""

from collections.abc import Iterable

__all__ = ["CAPABILITIES", "ESSENTIALS", "OF_OPTION", "unknown_capabilities"]

CAPABILITIES = {
    "groups": "cache groups of other kinds, or more than one",
    "events": "events of what is cached and forgotten",
    "counters": "counters of queries, hits and evictions",
    "batch": "a step of all requests in one call",
    "pins": "pins and priorities of prefixes",
    "snapshots": "snapshots of a manager, and managers made from them",
    "swaps": "requests that go to host memory and come back",
    "shards": "several shards under one manager",
    "keys": "keys of pages that show digest, token ids and extra keys",
    "views": "views that guard what they show: setters that refuse, page lists and host tables that cannot be changed",
    "iterables": "iterators and arrays where lists are taken",
    "queue": "the free queue, in the order in which its pages are taken",
    "tables": "page tables",
    "caches": "pages on the device: their sizes, their updates, their views",
    "kernels": "attention, and what kernels compute",
}
"""Every capability with what it is."""

OF_OPTION = {
    "enable_events": "events",
    "counter_sampling": "counters",
    "num_host_pages": "swaps",
    "max_pinned_pages": "pins",
    "max_pinned_pages_per_salt": "pins",
}
"""Options of constructors that make sense with a capability alone, each with that capability."""


ESSENTIALS = {
    "PagePool": (
        "PagePool(num_pages, enable_caching)",
        "PagePool.get_new_pages",
        "PagePool.free_pages",
        "PagePool.get_num_free_pages",
    ),
    "CacheManager": (
        "CacheManager(num_pages, kv_cache_groups, max_model_len)",
        "CacheManager.get_computed_pages",
        "CacheManager.allocate_slots",
        "CacheManager.free",
        "CacheManager.get_page_ids",
    ),
    "PageTable": ("PageTable(max_num_reqs, max_num_pages_per_req, max_num_batched_tokens)",),
}
"""How a class must be made, and the methods without which nothing can be asked; in the words of `Machine.needs`."""


def unknown_capabilities(names: Iterable[object]) -> list[str]:
    """Those of some names that name no capability, as a message shows them."""
    return [name if isinstance(name, str) else repr(name) for name in names if name not in CAPABILITIES]
