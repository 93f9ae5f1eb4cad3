"""MAN-12: what the check() of fast's follower of events sees."""

from typing import Any

import pytest

from kvproof import fast
from kvproof.spec.declarations import PageStored

A = b"a" * 32
TOKENS = (1, 2)
OTHER = fast.PageHashWithGroupId(fast.PageHash(A, TOKENS), 3)


def _of(page_id: int, group_id: int) -> PageStored:
    return PageStored(group_id, page_id, A, None, TOKENS, None)


DAMAGE: dict[str, Any] = {
    "a page without a key": lambda follower: follower._stored.pop(1),
    "a page with another key": lambda follower: follower._stored.update({1: _of(1, 3)}),
    "a page twice": lambda follower: follower._pages.update({fast.PageHashWithGroupId(OTHER.page_hash, 0): (1, 1)}),
    "a key without a page": lambda follower: follower._pages.update({OTHER: ()}),
    "the null page": lambda follower: (follower._pages.update({OTHER: (0,)}), follower._stored.update({0: _of(0, 3)})),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_check_sees(damage: str) -> None:
    follower = fast.CacheFollower()
    follower.apply([PageStored(0, 1, A, None, TOKENS, None)])
    follower.check()
    DAMAGE[damage](follower)
    with pytest.raises(AssertionError, match="POOL-"):
        follower.check()
