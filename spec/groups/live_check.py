"""The redundancies between live requests, their pages and the pool, which hold after every call."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..declarations import PageCopy, PartCopy
from ..pool.page_pool import PagePool
from ..pool.pages import CachePage
from .group_rules import GroupRules
from .live_requests import GroupPages, Live, LiveRequests
from .retention import Retention
from .swapped_requests import SwappedRequests

__all__ = ["check_copies", "check_live", "check_points"]


def check_live(
    pool: PagePool,
    rules: Sequence[GroupRules],
    live_requests: LiveRequests,
    held: Mapping[str, Sequence[GroupPages]],
    swapped: SwappedRequests,
    max_model_len: int,
) -> None:
    """Verifies that live requests, their pages and the pool's counts agree; O(pages held).

    Args:
        pool: the pool.
        rules: each group's rules.
        live_requests: the live requests.
        held: each live request's pages in every group, by its id.
        swapped: the requests that are swapped out, and the copies under way.
        max_model_len: the most tokens that a request can have.

    Raises:
        AssertionError: they don't; the message has the whole state.
    """
    try:
        assert held.keys() == live_requests.by_id.keys(), "MAN-5: pages are held by requests that are not live"
        slots = [live.slot for live in live_requests.by_id.values()]
        assert len(set(slots)) == len(slots), "MAN-11: two requests in one slot"
        for request_id, live in live_requests.by_id.items():
            assert live.num_computed <= live.num_slots, "MAN-8: computed tokens without slots"
            assert 1 <= live.num_promised <= live.num_slots <= max_model_len, "MAN-2: slots"
            if any(rule.holds_states for rule in rules):
                assert live.num_computed <= live.num_promised, "MAN-13: computed tokens that no state was promised for"
            for rule, own in zip(rules, held[request_id], strict=True):
                _check_list(rule, own, live)
                assert pool.enable_caching or not own.num_published, "MAN-3: published, caching off"
            _check_hits(rules, held[request_id], live)
        swapped.check()
        assert swapped.by_id.keys().isdisjoint(live_requests.by_id), "SWAP-1: a request is live and swapped out"
        _check_counts(pool, rules, held, swapped)
    except AssertionError as error:
        state = "\n".join(f"{name}: {live}, {held.get(name)}" for name, live in live_requests.by_id.items())
        raise AssertionError(f"{error}\n{state}") from None


def check_points(
    retention: Retention,
    rules: Sequence[GroupRules],
    live_requests: LiveRequests,
    held: Mapping[str, Sequence[GroupPages]],
) -> None:
    """Verifies that resume points are lengths that a hit can have, and that what was passed lies behind (RET-1, RET-3).

    Args:
        retention: the rules by which pages are kept.
        rules: each group's rules.
        live_requests: the live requests.
        held: each live request's pages in every group, by its id.

    Raises:
        AssertionError: they don't.
    """
    for request_id, live in live_requests.by_id.items():
        for point in (live.prompt_end, live.junction):
            is_length = (
                retention.resume_point(point + 2 * max((own.page_size for own in rules), default=0), point) == point
            )
            assert is_length, f"RET-1: no hit of {request_id!r} has {point} tokens"
        assert not live.junction or retention.finds_junctions, f"RET-2: {request_id!r} has a junction {live.junction}"
        for own, pages in zip(rules, held[request_id], strict=True):
            assert not pages.passed or (retention.judges and own.needs_part), f"RET-3: {request_id!r}: {pages}"
            first = own.first_place(live.num_computed)
            assert all(place < first for place in pages.passed), f"RET-3: {request_id!r} passed what it holds: {pages}"


def check_copies(
    pool: PagePool,
    rules: Sequence[GroupRules],
    live_requests: LiveRequests,
    held: Mapping[str, Sequence[GroupPages]],
    queued: Iterable[tuple[str, PageCopy | PartCopy]],
    references: Iterable[CachePage],
) -> None:
    """Verifies that what is copied amid a page is held, and goes to a page that its request writes (MAN-17).

    Args:
        pool: the pool.
        rules: each group's rules.
        live_requests: the live requests.
        held: each live request's pages in every group, by its id.
        queued: the copies, each with its request's id.
        references: the pages that live requests hold, in lists and for copies.

    Raises:
        AssertionError: it isn't, or doesn't.
    """
    for request_id, copy in queued:
        if isinstance(copy, PartCopy):
            rule, own = rules[copy.group_id], held[request_id][copy.group_id]
            place, computed = own.num_hits, live_requests.by_id[request_id].num_computed
            state = f"MAN-17: {copy} of {request_id!r}, {own}"
            assert copy.num_tokens % rule.unit == 0 < copy.num_tokens < rule.page_size, state
            assert place * rule.page_size + copy.num_tokens <= computed, state
            # who goes on before the copies are taken may give the page back (MAN-8)
            assert place < rule.first_place(computed) or own.pages[place].page_id == copy.destination, state
    for page_id, count in Counter(page.page_id for page in references if not page.is_null).items():
        assert count <= pool.ref_count(page_id), f"MAN-17: page {page_id} is copied and not held"


def _check_hits(rules: Sequence[GroupRules], held: Sequence[GroupPages], live: Live) -> None:
    """Verifies that a request's hits have the same number of tokens in every group (MAN-1, SWAP-1)."""
    tokens = max((own.num_hits * rule.page_size for rule, own in zip(rules, held, strict=True)), default=0)
    assert tokens <= live.num_computed, "MAN-1: hits that are not computed"
    for rule, own in zip(rules, held, strict=True):
        assert own.num_hits == rule.num_publishable(tokens), f"MAN-1: hits of another length in group {rule.group_id}"


def _check_list(rules: GroupRules, held: GroupPages, live: Live) -> None:
    """Verifies a request's page list in one group: its length, and null pages where nothing is read."""
    assert held.num_hits <= held.num_published <= len(held.pages), "MAN-3: more published than held"
    assert held.num_published <= rules.num_publishable(live.num_promised), "MAN-3: more published than promised"
    assert len(held.pages) == rules.num_places(live.num_promised, live.num_slots), "MAN-2: a list of another length"
    first = rules.first_place(live.num_computed)
    for place, page in enumerate(held.pages):
        if rules.copies_states:
            is_held = place in held.states
        else:
            is_held = place >= first
        assert page.is_null != is_held, f"MAN-8: page {page.page_id} at place {place} of group {rules.group_id}"
        if place >= held.num_published or not rules.is_publishable(place, held.states):
            assert page.page_hash is None, f"MAN-3: page {page.page_id} has a hash and is not published"
    if rules.copies_states:
        wanted = {rules.first_place(tokens): tokens for tokens in (live.num_computed, live.num_promised) if tokens}
        assert held.states == wanted, "MAN-13: other states than the one that a step began with, and its last"
    else:
        assert not held.states, "MAN-13: states in a group that keeps none"


def _check_counts(
    pool: PagePool, rules: Sequence[GroupRules], held: Mapping[str, Sequence[GroupPages]], swapped: SwappedRequests
) -> None:
    """Verifies that no count is below the page's known holders (POOL-2), and that unpublished pages have one (R2).

    A count may be higher: pages may also be held by direct calls on the pool, which the manager does not know of.
    """
    lists = [own.pages for groups in held.values() for own in groups]
    lists += [pages for flight in swapped.flights.values() for pages in flight.pages]
    holders = Counter(page.page_id for pages in lists for page in pages if not page.is_null)
    for page in pool.pages[1:]:
        pins = pool.pins_of(page.page_id)
        times = holders[page.page_id] + pins
        assert times <= page.ref_cnt, f"POOL-2: page {page.page_id} is held {times} times, counted {page.ref_cnt}"
    for groups in held.values():
        for rule, own in zip(rules, groups, strict=True):
            for place, page in enumerate(own.pages):
                is_private = place >= own.num_published or not rule.is_publishable(place, own.states)
                if is_private and not page.is_null:
                    assert page.ref_cnt == 1, f"R2: page {page.page_id} is written and shared"
