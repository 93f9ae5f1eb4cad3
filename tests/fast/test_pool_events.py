"""MAN-12: what the log of fast's pool and its samples keep."""

from operator import attrgetter
from typing import Any

import numpy as np
import pytest

from kvproof import fast
from kvproof.fast.pool.sampling import Sampling
from kvproof.fast.reading.extra_keys import extra_segments
from kvproof.spec.declarations import NUM_BUCKETS, PageRemoved, PageStored
from kvproof.spec.declarations.json_kinds import event_to_json

from ..strategies import PlainRequest

ON: dict[str, Any] = {"enable_events": True, "counter_sampling": 1}


# -- The log ----------------------------------------------------------------------------------------


def _cache(pool: fast.PagePool, ids: list[int], tokens: list[int], extra_keys: Any = ()) -> None:
    pages = [pool.pages[page_id] for page_id in ids]
    pool.cache_full_pages(PlainRequest("r", tokens, extra_keys), pages, [], 0, len(ids), 2, 1)


def test_man_12_events_are_those_of_their_own_constructors() -> None:
    """They are made past their constructors: of the same kinds, nothing is missing, and they show no tokens."""
    pool = fast.PagePool(4, True, hash_seed=b"s", enable_events=True)
    pool.get_new_pages(2)
    salt = (fast.CacheSalt("tenant"),)
    _cache(pool, [1, 2], [1, 2, 3, 4], salt)
    pool.evict_pages([1])
    first, second = (page.page_hash and page.page_hash.get_hash_value() for page in _hashes_of(salt))
    events = pool.take_events()
    wanted = [
        PageStored(1, 1, first or b"", None, (1, 2), salt),
        PageStored(1, 2, second or b"", first, (3, 4), salt),
        PageRemoved(1, 1, first or b""),
    ]
    assert events == wanted
    assert [(type(event), repr(event), hash(event)) for event in events] == [
        (type(event), repr(event), hash(event)) for event in wanted
    ]
    assert "(1, 2)" not in repr(events), "SEC-2"
    for event in events:
        with pytest.raises(AttributeError):
            event.page_id = 3  # type: ignore[misc, union-attr]


def _hashes_of(salt: Any) -> list[fast.CachePage]:
    pool = fast.PagePool(4, True, hash_seed=b"s")
    pages = pool.get_new_pages(2)
    _cache(pool, [1, 2], [1, 2, 3, 4], salt)
    return list(pages)


def test_man_12_a_stretch_in_the_middle_knows_the_digest_before_it() -> None:
    """As a manager publishes: behind a cached page, over null pages and over a change of extra keys."""
    pool = fast.PagePool(8, True, hash_seed=b"s", enable_events=True)
    pool.get_new_pages(6)
    item = fast.MultimodalItem(b"image", 4, 2)
    request = PlainRequest("r", list(range(12)), (item,))
    keys = [key.hash_value for key in fast.hash_request_tokens(fast.sha256, 2, request, none_hash=pool.none_hash)]
    pool.cache_full_pages(request, pool.pages[1:2], [], 0, 1, 2, 0)
    tree, tokens = pool.index.tree(0, 2), np.array(request.all_token_ids, "<i4").tobytes()
    laid_out = extra_segments(request.extra_keys, 2)
    pages = np.array([0, 3, 4, 0, 5])
    stretch = pool.keys.ahead(tree, tokens[8:], laid_out, 1, 1)
    pool.index.publish(tree, tokens[8:], laid_out, pages, 1, 1)
    pool.note_keys(pages, stretch)
    pool.check()
    told = [event for event in pool.take_events() if isinstance(event, PageStored)]
    assert [(event.page_id, event.page_hash, event.parent_hash) for event in told] == [
        (1, keys[0], None),
        (3, keys[2], keys[1]),
        (4, keys[3], keys[2]),
        (5, keys[5], keys[4]),
    ]
    assert [event.extra_keys for event in told] == [None, (item,), None, None]


def test_man_12_nothing_is_computed_where_nobody_asked() -> None:
    pool = fast.PagePool(4, True)
    assert not pool.keys.kept
    assert pool.keys.ahead(pool.index.tree(0, 2), b"\x00" * 8, [], 0, 0) is None
    assert fast.PagePool(4, True, enable_events=True).keys.kept
    assert fast.PagePool(4, True, hash_function=lambda message: message[:1]).keys.kept
    pool.get_cached_page(fast.PageHash(b"", ()), [0])
    assert pool.keys.kept


def test_man_12_waiting_events_can_be_saved_and_stay() -> None:
    pool = fast.PagePool(4, True, enable_events=True)
    pool.get_new_pages(2)
    _cache(pool, [1, 2], [1, 2, 3, 4])
    pool.evict_pages([2])
    saved = pool.state()["events"]
    assert pool.state()["events"] == saved
    assert [event_to_json(event) for event in pool.take_events()] == saved
    assert pool.state()["events"] == []


# -- The samples ------------------------------------------------------------------------------------


def test_man_12_an_age_beyond_the_last_bucket_counts_in_it() -> None:
    sampling = Sampling(3, 1)
    pages = np.array([1, 2])
    sampling.stored(pages, 0)
    sampling.freed(pages, 1)
    sampling.reused(pages, 2**60)
    sampling.evicted(pages, 2**50)
    last = [*[0] * (NUM_BUCKETS - 1), 2]
    assert (sampling.lifetimes, sampling.reuse_gaps) == (last, last)


@pytest.mark.parametrize("every", [1, 2, 3, 7, 8, 100])
def test_man_12_only_multiples_are_sampled_and_never_the_null_page(every: int) -> None:
    sampling = Sampling(8, every)
    pages = np.arange(8)
    sampling.stored(pages, 0)
    sampling.evicted(pages, 4)
    ages = [4 + page for page in range(1, 8) if page % every == 0]
    assert sampling.lifetimes == [sum(age.bit_length() == bucket for age in ages) for bucket in range(NUM_BUCKETS)]
    free = np.zeros(8, bool)
    sampling.check(free, free, 12, len(ages))


# -- check() ----------------------------------------------------------------------------------------


DAMAGE: dict[str, tuple[str, Any]] = {
    "a time lost": ("log.ages", lambda sampling: sampling._stored_at.__setitem__(1, -1)),
    "a time of an unhashed page": ("log.ages", lambda sampling: sampling._stored_at.__setitem__(3, 0)),
    "a time to come": ("log.ages", lambda sampling: sampling._stored_at.__setitem__(1, 4)),
    "a time before all": ("log.ages", lambda sampling: sampling._stored_at.__setitem__(1, -2)),
    "freed in time to come": ("log.ages", lambda sampling: sampling._freed_at.__setitem__(1, 4)),
    "freed before all": ("log.ages", lambda sampling: sampling._freed_at.__setitem__(1, -1)),
    "freed before it was stored": ("log.ages", lambda sampling: sampling._freed_at.__setitem__(2, 1)),
    "a page that was never evicted": ("log.ages", lambda sampling: sampling.lifetimes.__setitem__(0, 1)),
    "more evictions than pages": ("log", lambda log: setattr(log, "evictions", 4)),
    "events unasked for": ("log", lambda log: setattr(log, "keeps_events", False)),
    "keys not kept up": ("keys", lambda keys: setattr(keys, "kept", False)),
    "a key not told": ("keys", lambda keys: keys._digests.pop(2)),
    "a key told of another group": ("keys", lambda keys: keys._digests.update({2: (0, keys._digests[2][1])})),
    "a key told of no page": ("keys", lambda keys: keys._digests.update({3: keys._digests[2]})),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_check_sees(damage: str) -> None:
    """Pages 1 and 2 were stored at 3, 2 is free again; 3 is held."""
    pool = fast.PagePool(5, True, **ON)
    pages = pool.get_new_pages(3)
    _cache(pool, [1, 2], [1, 2, 3, 4])
    pool.free_pages(pages[1:2])
    pool.check()
    part, change = DAMAGE[damage]
    change(attrgetter(part)(pool))
    with pytest.raises(AssertionError, match=r"(?s)free: \[4, 2\]\ncounts: "):
        pool.check()
