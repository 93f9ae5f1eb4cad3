"""MAN-17: the cached page from which the last tokens of a hit are copied, where the hit ends amid a page."""

import numpy as np

from ..pool.hashing import page_extra_keys
from ..pool.page_pool import PagePool
from ..pool.pages import CachePage
from .group_rules import GroupRules
from .request_keys import Chains

__all__ = ["find_part"]


def find_part(pool: PagePool, rules: GroupRules, chains: Chains, end: int) -> CachePage | None:
    """The cached page that holds a request's tokens up to ``end`` from the page boundary before it on (MAN-17).

    What came before the page is the same, and so are the extra keys that touch it, those that touch only what
    follows in it among them. Of several such pages it is the one whose tokens come first, compared by their bytes
    (HASH-1), and of those of one content the first that was cached (POOL-7). A page that holds fewer tokens than a
    page has room for is one that a freed request left.

    Args:
        pool: the pool.
        rules: the group's rules.
        chains: the chains of the request's full pages.
        end: number of tokens, amid a page.
    """
    size, place = rules.page_size, end // rules.page_size
    if end > len(chains.tokens):
        return None
    parent = chains[size][place - 1][1] if place else None
    touching = page_extra_keys(chains.extra_keys, place * size, (place + 1) * size)
    own = tuple(chains.tokens[place * size : end])
    found: list[tuple[bytes, CachePage]] = []
    for key, pages in pool.index.pages_of.items():
        for page in pool.pages_of_ids(pages if key.group_id == rules.group_id else ()):
            before, tokens, extra_keys = pool.keys.content_of_id[pool.index.content_of[page.page_id]]
            if before == parent and tokens[: len(own)] == own and extra_keys == touching:
                found.append((np.array(tokens, "<i4").tobytes(), page))
    return min(found, key=lambda entry: entry[0])[1] if found else None
