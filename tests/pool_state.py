"""What a pool shows, for tests that compare two."""

from typing import Any

__all__ = ["pool_state"]


def pool_state(pool: Any) -> dict[str, Any]:
    """What a pool shows of its pages, its queue and its cached map."""
    return {
        "free": [page.page_id for page in pool.free_page_queue.get_all_free_pages()],
        "number": (pool.get_num_free_pages(), pool.free_page_queue.num_free_pages),
        "counts": [page.ref_cnt for page in pool.pages],
        "usage": pool.get_usage(),
        "map": {key: [page.page_id for page in pages] for key, pages in pool.cached_page_hash_to_page.items()},
        "hashes": [page.page_hash for page in pool.pages],
    }
