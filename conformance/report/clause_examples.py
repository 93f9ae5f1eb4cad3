"""Examples of clauses: calls that keep one and, on the lines that say ``# refused``, calls that it refuses.

Each is a file for ``kvproof try``. A test makes all of the calls and looks at what is refused, and by which clause.
"""

__all__ = ["EXAMPLES"]

_LAYERS = """\
layers = FullAttentionSpec(page_size=2, num_kv_heads=1, head_size=8, dtype="float32")
"""

_MANAGER = f"""\
{_LAYERS}manager = CacheManager(8, [CacheGroupSpec(layers)], max_model_len=16)
"""

_LIVE = f"""\
{_MANAGER}a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 5)
a.num_computed_tokens = 5
"""

_TABLE = """\
table = PageTable(max_num_reqs=4, max_num_pages_per_req=3, max_num_batched_tokens=8)
"""

EXAMPLES: dict[str, str] = {
    "R1": """\
pool = PagePool(4, True)
pool.get_new_pages(True)  # refused
pool.get_new_pages(1.0)  # refused
pool.get_new_pages(2)
""",
    "R2": f"""\
{_LIVE}b = Request("b", [1, 2, 3, 9, 5])
manager.get_computed_pages(b)
""",
    "POOL-1": """\
pool = PagePool(2, True)
pool.get_new_pages(1)
PagePool(1, True)  # refused
""",
    "POOL-2": """\
pool = PagePool(3, True)
pages = pool.get_new_pages(1)
pages[0].ref_cnt = 0  # refused
""",
    "POOL-3": """\
pool = PagePool(5, True)
pages = pool.get_new_pages(3)
pool.free_pages([pages[2], pages[0], pages[1]])
pool.get_new_pages(4)
""",
    "POOL-4": """\
pool = PagePool(4, True)
pool.get_new_pages(3)
pool.get_new_pages(1)  # refused
""",
    "POOL-5": """\
pool = PagePool(4, True)
pages = pool.get_new_pages(2)
pool.free_pages([pages[0]])
pool.free_pages([pages[1], pages[1]])  # refused
""",
    "POOL-6": """\
pool = PagePool(4, True)
pages = pool.get_new_pages(1)
pool.touch([pages])
pool.free_pages([pages[0], pages[0]])
pool.touch([pages])  # refused
""",
    "POOL-9": """\
pool = PagePool(4, True)
pages = pool.get_new_pages(1)
pool.reset_prefix_cache()
pool.free_pages(pages)
pool.reset_prefix_cache()
""",
    "POOL-10": """\
pool = PagePool(5, True)
pool.get_usage()
pool.get_new_pages(4)
pool.get_usage()
""",
    "POOL-11": f"""\
{_LIVE}pool = manager.page_pool
pool.evict_pages([1])
pool.get_usage()
""",
    "POOL-13": """\
pool = PagePool(4, True, unhashed_first=True)
pages = pool.get_new_pages(2)
pool.free_pages([pages[1], pages[0]])
pool.get_new_pages(3)
""",
    "EVICT-1": """\
pool = PagePool(4, True, eviction="reuse")
PagePool(4, True, eviction="newest")  # refused
""",
    "PIN-1": f"""\
{_LAYERS}manager = CacheManager(8, [CacheGroupSpec(layers)], max_model_len=16, max_pinned_pages=2)
a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 5)
manager.pin_prefix(a)
manager.free(a)
manager.page_pool.get_usage()
""",
    "MAN-1": f"""\
{_LIVE}b = Request("b", [1, 2, 3, 4, 9])
manager.get_computed_pages(b)
""",
    "MAN-2": f"""\
{_MANAGER}a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 17)  # refused
manager.allocate_slots(a, 5)
""",
    "MAN-3": f"""\
{_MANAGER}a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 5, delay_cache_pages=True)
manager.cache_pages(a, 4)
manager.cache_pages(a, 9)  # refused
""",
    "MAN-5": f"""\
{_LIVE}manager.free(a)
manager.page_pool.get_usage()
manager.free(a)
""",
    "MAN-6": f"""\
{_LIVE}b = Request("a", [7, 8])
manager.allocate_slots(b, 2)  # refused
""",
    "MAN-7": f"""\
{_LAYERS}window = SlidingWindowSpec(page_size=2, num_kv_heads=1, head_size=8, dtype="float32", sliding_window=4)
manager = CacheManager(8, [CacheGroupSpec(layers), CacheGroupSpec(window)], max_model_len=16)
a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 5)
""",
    "MAN-8": f"""\
{_LIVE}a.append(6)
manager.allocate_slots(a, 1)
a.num_computed_tokens = 9
manager.allocate_slots(a, 1)  # refused
""",
    "TAB-1": f"""\
{_TABLE}table.add_row([5, 6], row_idx=0)
table.add_row([7], row_idx=0)
""",
    "TAB-2": f"""\
{_TABLE}table.add_row([1, 2, 3], row_idx=0)
table.append_row([4], row_idx=0)  # refused
""",
    "TAB-3": f"""\
{_TABLE}table.add_row([1, 2], row_idx=0)
table.move_row(0, 3)
table.swap_row(0, 3)
""",
    "TAB-4": f"""\
{_TABLE}table.add_row([1, 2], row_idx=0)
table.commit(1)
table.get_device_tensor()
""",
    "TAB-6": f"""\
{_TABLE}table.add_row([1, 2], row_idx=0)
table.clear()
table.get_device_tensor()
""",
    "SWAP-1": f"""\
{_LAYERS}manager = CacheManager(8, [CacheGroupSpec(layers)], max_model_len=16, num_host_pages=4)
a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 5)
a.num_computed_tokens = 5
manager.swap_out(a)
manager.swap_done(0)
manager.swap_in(a)
""",
    "SEC-4": f"""\
{_MANAGER}a = Request("'; DROP TABLE requests; --", [1, 2, 3])
manager.allocate_slots(a, 3)
""",
}
"""By label. What is missing is about programs, devices, whole engines or files, which take more than a few calls."""
