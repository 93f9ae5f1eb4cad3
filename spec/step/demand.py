"""MAN-2: what a call of ``allocate_slots`` asks for one request, read and found right before anything changes (R1)."""

from dataclasses import dataclass

from ..declarations import EngineRequest
from ..groups.cache_pages import CachePages
from ..groups.coordinator import CacheCoordinator, Chains
from ..groups.live_requests import Live
from ..pool.pages import CachePage
from ..reading.arguments import refusal

__all__ = ["Demand", "read_hits"]


@dataclass(frozen=True)
class Demand:
    """What one call asks for one request.

    Attributes:
        request: the request.
        request_id: its id.
        live: what is known of it; None at its admission.
        num_tokens: its known tokens.
        chains: the keys of its full pages.
        computed: its computed tokens.
        found: tokens just found in the cache.
        hits: the pages that hold them, a list for each group.
        promised: computed, found and new tokens.
        slots: these and look-ahead.
    """

    request: EngineRequest
    request_id: str
    live: Live | None
    num_tokens: int
    chains: Chains
    computed: int
    found: int
    hits: list[list[CachePage]]
    promised: int
    slots: int


def read_hits(
    coordinator: CacheCoordinator, request: EngineRequest, is_live: bool, found: int, given: object, chains: Chains
) -> list[list[CachePage]]:
    """The pages just found, held against the request once more, group by group (MAN-2).

    Args:
        coordinator: the groups.
        request: the request.
        is_live: whether it holds pages already.
        found: how many tokens the pages are said to hold.
        given: the pages, `CachePages` or None.
        chains: the keys of the request's full pages.

    Raises:
        TypeError: ``given`` is neither.
        ValueError: a page is not what the request needs at its place: its own prefix's, or the null page where
            a group needs none; the lists don't hold ``found`` tokens in every group; the request is live.
    """
    if given is None:
        given = CachePages([] for _ in coordinator.rules)
    if not isinstance(given, CachePages):
        raise refusal(TypeError, "R1", f"new_computed_pages={given!r} must be CachePages")
    if len(given.pages) != len(coordinator.rules):
        raise refusal(
            ValueError,
            "MAN-2",
            f"new_computed_pages has {len(given.pages)} groups, the manager {len(coordinator.rules)}",
        )
    hits = [list(pages) for pages in given.pages]
    for page in (page for pages in hits for page in pages):
        if page._pool is not coordinator.page_pool:
            raise refusal(ValueError, "R1", f"new_computed_pages: page {page.page_id} belongs to another pool")
    held = [len(pages) * rules.page_size for rules, pages in zip(coordinator.rules, hits, strict=True)]
    if found != max(held, default=0) or found != min(held, default=0):
        raise refusal(ValueError, "MAN-2", f"num_new_computed_tokens={found}, but new_computed_pages hold {held}")
    if found == 0:
        return hits
    if is_live:
        raise refusal(ValueError, "MAN-2", f"new_computed_pages for {request.request_id!r}, which holds pages already")
    if not coordinator.page_pool.enable_caching:
        raise refusal(ValueError, "MAN-2", f"new_computed_pages={given!r} with caching off")
    if found > request.num_tokens:
        raise refusal(ValueError, "MAN-2", f"new_computed_pages hold {found} tokens of {request.num_tokens}")
    for rules, pages in zip(coordinator.rules, hits, strict=True):
        for place, (page, (_, content)) in enumerate(zip(pages, chains[rules.page_size], strict=False)):
            if place < rules.first_place(found):
                right = page.is_null
            else:
                right = coordinator.holds(page, content, rules.group_id)
            if not right:
                raise refusal(
                    ValueError,
                    "MAN-2",
                    f"new_computed_pages: page {page.page_id} at place {place} of group {rules.group_id} does not "
                    f"hold the request's prefix",
                )
    if all(page.is_null for pages in hits for page in pages):
        raise refusal(ValueError, "MAN-1", f"new_computed_pages={given!r} are null pages alone")
    return hits
