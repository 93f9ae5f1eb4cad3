"""Examples of clauses: calls that keep one and, on the lines that say ``# refused``, calls that it refuses.

Each is a file for ``kvproof try``. A test makes all of the calls and looks at what is refused, and by which clause.
"""

__all__ = ["COMMANDS", "EXAMPLES"]

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

_WINDOW = f"""\
{_LAYERS}window = SlidingWindowSpec(page_size=2, num_kv_heads=1, head_size=8, dtype="float32", sliding_window=2)
groups = [CacheGroupSpec(layers), CacheGroupSpec(window)]
"""

_SERVED = f"""\
{_WINDOW}manager = CacheManager(20, groups, max_model_len=16)
a = Request("a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
manager.allocate_slots(a, 9)
a.num_computed_tokens = 9
manager.free(a)
"""

_BATCH = """\
queries = np.ones((2, 1, 128), np.float32)
pages = np.ones((3, 2, 2, 128), np.float32)
table = np.array([[1, 2]], np.int32)
ends = np.array([0, 2], np.int32)
one = np.array([1], np.int32)
"""

_PAGES = """\
pages = np.zeros((3, 2, 2, 128), np.float32)
ones = np.ones((1, 1, 128), np.float32)
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
other = Request("c", [7, 8])
pages = manager.page_pool.get_new_pages(1)
keys = hash_request_tokens(sha256, 2, b)
manager.page_pool.cache_full_pages(other, pages, keys[:1], 0, 1, 2, 0)  # refused
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
    "POOL-7": f"""\
{_LIVE}b = Request("b", [1, 2, 3, 4, 5])
manager.allocate_slots(b, 5)
key = hash_request_tokens(sha256, 2, a)[0]
manager.page_pool.get_cached_page(key, [0])
""",
    "POOL-8": f"""\
{_MANAGER}a = Request("a", [1, 2, 3, 4])
keys = hash_request_tokens(sha256, 2, a)
pool = manager.page_pool
pages = pool.get_new_pages(1)
pool.cache_full_pages(a, pages, keys[:1], 0, 1, 2, 0)
pool.cache_full_pages(a, pages, keys[:1], 0, 1, 2, 0)  # refused
""",
    "POOL-9": f"""\
{_LIVE}manager.reset_prefix_cache()
manager.free(a)
manager.reset_prefix_cache()
manager.get_computed_pages(a)
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
    "POOL-12": f"""\
{_LAYERS}ShardedCacheManager(0, 8, [CacheGroupSpec(layers)], max_model_len=16)  # refused
manager = ShardedCacheManager(2, 8, [CacheGroupSpec(layers)], max_model_len=16)
a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 5)
b = Request("b", [7, 8, 9])
manager.allocate_slots(b, 3)
manager.shard_of("b")
""",
    "POOL-13": """\
pool = PagePool(4, True, unhashed_first=True)
pages = pool.get_new_pages(2)
pool.free_pages([pages[1], pages[0]])
pool.get_new_pages(3)
""",
    "PIN-1": f"""\
{_LAYERS}manager = CacheManager(8, [CacheGroupSpec(layers)], max_model_len=16, max_pinned_pages=1)
a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 5)
manager.pin_prefix(a, 2)
manager.pin_prefix(a)  # refused
manager.free(a)
manager.page_pool.get_usage()
""",
    "PIN-2": f"""\
{_LAYERS}manager = CacheManager(4, [CacheGroupSpec(layers)], max_model_len=16)
a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 5)
manager.set_prefix_priority(a, 1, 2)
manager.free(a)
manager.page_pool.get_new_pages(2)
manager.get_computed_pages(a)
""",
    "EVICT-1": """\
pool = PagePool(4, True, eviction="reuse")
PagePool(4, True, eviction="newest")  # refused
""",
    "HASH-1": """\
first = hash_page_tokens(sha256, None, [1, 2])
hash_page_tokens(sha256, first.hash_value, [3, 4])
hash_page_tokens(sha256, first, [3, 4])  # refused
""",
    "HASH-2": f"""\
{_MANAGER}a = Request("a", [1, 2, 3], [CacheSalt("of one")])
manager.allocate_slots(a, 3)
a.num_computed_tokens = 3
b = Request("b", [1, 2, 3], [CacheSalt("of another")])
manager.get_computed_pages(b)
""",
    "HASH-3": """\
a = Request("a", [1, 2, 3, 4, 5])
keys = hash_request_tokens(sha256, 2, a)
pool = PagePool(4, True)
pages = pool.get_new_pages(3)
pool.cache_full_pages(a, pages, keys, 0, 2, 2, 0)
pool.cache_full_pages(a, pages, keys, 2, 3, 2, 0)  # refused
""",
    "MAN-1": f"""\
{_LIVE}b = Request("b", [1, 2, 3, 4, 9])
manager.get_computed_pages(b)
""",
    "HIT-1": f"""\
{_LIVE}manager.free(a)
b = Request("b", [1, 2, 3, 4, 5])
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
    "MAN-4": f"""\
{_LIVE}manager.free(a, num_written=2)
manager.get_computed_pages(a)
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
none = SlidingWindowSpec(page_size=2, num_kv_heads=1, head_size=8, dtype="float32", sliding_window=0)
CacheManager(8, [CacheGroupSpec(none)], max_model_len=16)  # refused
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
    "MAN-9": f"""\
{_LAYERS}manager = CacheManager(8, [CacheGroupSpec(layers)], max_model_len=16, use_eagle=True)
a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 5)
a.num_computed_tokens = 5
b = Request("b", [1, 2, 3, 4, 5])
manager.get_computed_pages(b)
""",
    "MAN-10": f"""\
{_LIVE}b = Request("b", [1, 2, 9])
found, hit = manager.get_computed_pages(b)
manager.allocate_slots(b, 1, hit, found)
manager.get_num_common_prefix_pages(a, 2)  # refused
a.status = EngineRequestStatus.RUNNING
b.status = EngineRequestStatus.RUNNING
manager.get_num_common_prefix_pages(a, 2)
""",
    "MAN-11": f"""\
{_LIVE}a.append(6)
a.append(7)
manager.allocate_slots_batch([manager.slot_of("a")], [5], [2])
manager.get_page_ids("a")
manager.allocate_slots_batch([7], [5], [2])  # refused
""",
    "MAN-12": f"""\
{_LAYERS}manager = CacheManager(4, [CacheGroupSpec(layers)], max_model_len=16, enable_events=True)
a = Request("a", [1, 2, 3])
manager.allocate_slots(a, 3)
manager.free(a)
manager.page_pool.get_new_pages(3)
manager.take_events()
""",
    "MAN-13": f"""\
{_LAYERS}state = MambaSpec(page_size=2, shapes=((4,),), dtypes=("float32",), mamba_cache_mode="align")
manager = CacheManager(9, [CacheGroupSpec(layers), CacheGroupSpec(state)], max_model_len=16)
a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 4)
a.num_computed_tokens = 3
manager.allocate_slots(a, 1)  # refused
a.num_computed_tokens = 4
manager.allocate_slots(a, 1)
b = Request("b", [1, 2, 3, 4, 9])
found, hit = manager.get_computed_pages(b)
manager.allocate_slots(b, 1, hit, found)
manager.take_page_copies()
""",
    "MAN-14": f"""\
{_LIVE}saved = manager.snapshot()
restored = CacheManager.restore(saved, [a])
restored.get_page_ids("a")
CacheManager.restore(saved, [])  # refused
""",
    "MAN-17": f"""\
{_LAYERS}manager = CacheManager(8, [CacheGroupSpec(layers)], max_model_len=16, match_unit=1)
a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 5)
a.num_computed_tokens = 5
b = Request("b", [1, 2, 3, 9])
found, hit = manager.get_computed_pages(b)
manager.allocate_slots(b, 1, hit, found)
manager.take_page_copies()
CacheManager(8, [CacheGroupSpec(layers)], max_model_len=16, match_unit=3)  # refused
""",
    "RET-1": f"""\
{_WINDOW}manager = CacheManager(20, groups, max_model_len=16, retention_interval=4)
a = Request("a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
manager.allocate_slots(a, 9)
a.num_computed_tokens = 9
manager.free(a)
b = Request("b", [1, 2, 3, 4, 5, 9])
manager.get_computed_pages(b)
CacheManager(20, groups, max_model_len=16, retention_interval=3)  # refused
""",
    "RET-2": f"""\
{_SERVED}b = Request("b", [1, 2, 3, 4, 5, 9])
manager.get_computed_pages(b)
manager.get_junction(b)
manager.allocate_slots(b, 6)
b.num_computed_tokens = 6
manager.free(b)
c = Request("c", [1, 2, 3, 4, 7])
manager.get_computed_pages(c)
""",
    "RET-3": f"""\
{_SERVED}manager.page_pool.get_new_pages(4)
""",
    "RET-4": f"""\
{_SERVED}b = Request("b", [1, 2, 3, 4, 5, 6, 7, 8, 9])
manager.get_computed_pages(b)
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
    "TAB-5": f"""\
{_TABLE}table.add_row([1, 2], row_idx=0)
table.commit(1)
table.append_row([3], row_idx=0)
table.commit(4)
table.get_device_tensor()
""",
    "TAB-6": f"""\
{_TABLE}table.add_row([1, 2], row_idx=0)
table.clear()
table.get_device_tensor()
""",
    "TAB-7": f"""\
{_TABLE}table.add_row([5, 6], row_idx=0)
table.slot_mapping([0, 0, 0], [0, 1, 2], 2)
table.slot_mapping([0], [-1], 2)  # refused
""",
    "TAB-8": f"""\
{_TABLE}table.add_row([5, 6], row_idx=0)
table.commit(1)
table.get_device_tensor()
table.append_row([7], row_idx=0)
""",
    "CACHE-1": """\
size_pool(1000, [100, 60])
size_pool(150, [100])  # refused
""",
    "CACHE-2": f"""\
{_PAGES}kv_cache_update(pages, ones, ones * 2, np.array([3], np.int32))
""",
    "CACHE-3": f"""\
{_PAGES}kv_cache_update(pages, ones, ones, np.array([-1], np.int32))
kv_cache_update(pages, ones, ones, np.array([3], np.int32))
""",
    "CACHE-4": """\
pages = np.zeros((3, 2, 4, 128), np.int8)
ones = np.ones((1, 2, 128), np.float32)
kv_cache_update(pages, ones, ones * 300, np.array([3], np.int32), k_scale=0.5, v_scale=0.5)
""",
    "ATT-1": f"""\
{_BATCH}length = np.array([3], np.int32)
ragged_paged_attention(queries, pages, length, table, ends, one, window=2)
""",
    "ATT-2": f"""\
{_BATCH}ragged_paged_attention(queries, pages, np.array([0], np.int32), table, ends, one)
""",
    "ATT-3": f"""\
{_BATCH}poison = np.full((3, 2, 2, 128), float("nan"), np.float32)
fused_ragged_paged_attention(queries, queries, queries, poison, np.array([2], np.int32), table, ends, one)
""",
    "ATT-4": f"""\
{_BATCH}fewer = np.array([0, 1], np.int32)
ragged_paged_attention(queries, pages, np.array([3], np.int32), table, fewer, one)
""",
    "ATT-5": f"""\
{_BATCH}fused_ragged_paged_attention(queries, queries, queries, pages, np.array([3], np.int32), table, ends, one)
""",
    "ATT-6": f"""\
{_BATCH}large = np.full((3, 2, 2, 128), 100.0, np.float32)
ragged_paged_attention(queries, large, np.array([3], np.int32), table, ends, one)
""",
    "SWAP-1": f"""\
{_LAYERS}manager = CacheManager(8, [CacheGroupSpec(layers)], max_model_len=16, num_host_pages=4)
a = Request("a", [1, 2, 3, 4, 5])
manager.allocate_slots(a, 5)
a.num_computed_tokens = 5
manager.swap_out(a)
manager.swap_in(a)  # refused
manager.swap_done(0)
manager.swap_in(a)
""",
    "SEC-2": f"""\
{_LAYERS}manager = CacheManager(8, [CacheGroupSpec(layers)], max_model_len=16, enable_events=True)
a = Request("a", [1, 2, 3], [CacheSalt("a secret")])
manager.allocate_slots(a, 3)
manager.take_events()
""",
    "SEC-3": """\
events_from_json("{}")  # refused
""",
    "SEC-4": f"""\
{_MANAGER}a = Request("'; DROP TABLE requests; --", [1, 2, 3])
manager.allocate_slots(a, 3)
""",
}
"""By label. What is missing is about meshes, whole engines or files, which take more than a few calls."""

COMMANDS: dict[str, str] = {
    "CACHE-5": "kvproof check --clauses CACHE-5",
    "SWAP-2": "kvproof check --clauses SWAP-2",
    "ENG-1": "kvproof serve-check --schedules 5",
    "ENG-2": "kvproof serve-check --schedules 5",
}
"""The commands that hold ours to the clauses that take more than a few calls, by label."""
