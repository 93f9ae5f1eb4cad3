"""MAN-2: what ``allocate_slots`` asks for one request, read and checked before anything changes (R1)."""

from dataclasses import dataclass

from ..declarations import EngineRequest
from ..groups.cache_pages import CachePages
from ..groups.coordinator import CacheCoordinator
from ..groups.live_requests import Live
from ..groups.request_keys import Chains
from ..pool.pages import CachePage
from ..reading.arguments import refusal

__all__ = ["Demand", "read_hits"]


@dataclass(frozen=True)
class Demand:
    """What one call asks for one request. All token counts are from the request's first token on.

    Attributes:
        request: the engine's object.
        request_id: id of the request.
        live: record of the live request; None at its admission.
        num_tokens: number of known tokens.
        chains: keys of the full pages, by page size.
        computed: number of computed tokens, as the engine passed it.
        found: number of tokens just found in the cache; 0 unless this is the admission.
        hits: full pages that hold the found tokens, a list for each group.
        parts: for each group the page that holds the last of the found tokens, if these end amid a page (MAN-17).
        promised: number of computed, found and new tokens.
        slots: number of computed, found, new and look-ahead tokens, cut at ``max_model_len``.
    """

    request: EngineRequest
    request_id: str
    live: Live | None
    num_tokens: int
    chains: Chains
    computed: int
    found: int
    hits: list[list[CachePage]]
    parts: list[CachePage | None]
    promised: int
    slots: int

    @property
    def hit_ends(self) -> list[CachePage]:
        """The pages that hold the last of the found tokens, one of each group that has any."""
        ends = [part or (pages[-1] if pages else None) for pages, part in zip(self.hits, self.parts, strict=True)]
        return [page for page in ends if page is not None]


def read_hits(
    coordinator: CacheCoordinator, request: EngineRequest, is_live: bool, found: int, pages: object, chains: Chains
) -> tuple[list[list[CachePage]], list[CachePage | None]]:
    """Reads ``new_computed_pages``, and checks again that they hold the request's prefix (MAN-2).

    Args:
        coordinator: the coordinator of the groups.
        request: the request.
        is_live: whether the request is live already.
        found: the argument ``num_new_computed_tokens``.
        pages: the argument ``new_computed_pages``: `CachePages`, or None for no pages.
        chains: keys of the request's full pages, by page size.

    Returns:
        The pages, a list for each group, and for each group the page from which the last tokens are copied (MAN-17).

    Raises:
        TypeError: ``pages`` is neither `CachePages` nor None.
        ValueError: a page does not hold the request's prefix at its place, or is not null where the group needs none;
            the lists don't hold ``found`` tokens in every group; the request is live.
    """
    if pages is None:
        pages = CachePages([] for _ in coordinator.rules)
    if not isinstance(pages, CachePages):
        raise refusal(TypeError, "R1", f"new_computed_pages={pages!r} must be CachePages")
    if len(pages.pages) != len(coordinator.rules):
        raise refusal(
            ValueError,
            "MAN-2",
            f"new_computed_pages has {len(pages.pages)} groups, the manager {len(coordinator.rules)}",
        )
    hits = [list(group) for group in pages.pages]
    for page in (page for group in hits for page in group):
        if page.pool is not coordinator.page_pool:
            raise refusal(ValueError, "R1", f"new_computed_pages: page {page.page_id} belongs to another pool")
    held = [len(group) * rules.page_size for rules, group in zip(coordinator.rules, hits, strict=True)]
    wanted = [found // rules.page_size * rules.page_size for rules in coordinator.rules]
    if held != wanted or found % coordinator.hit_step or (found and not held):
        raise refusal(ValueError, "MAN-2", f"num_new_computed_tokens={found}, but new_computed_pages hold {held}")
    if found == 0:
        return hits, [None for _ in hits]
    if is_live:
        raise refusal(ValueError, "MAN-2", f"new_computed_pages for {request.request_id!r}, which holds pages already")
    if not coordinator.page_pool.enable_caching:
        raise refusal(ValueError, "MAN-2", f"new_computed_pages={pages!r} with caching off")
    if found > request.num_tokens:
        raise refusal(ValueError, "MAN-2", f"new_computed_pages hold {found} tokens of {request.num_tokens}")
    for rules, group in zip(coordinator.rules, hits, strict=True):
        for place, (page, (_, content)) in enumerate(zip(group, chains[rules.page_size], strict=False)):
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
    parts = coordinator.find_parts(chains, found)
    for rules, part in zip(coordinator.rules, parts, strict=True):
        if part is None and found % rules.page_size:
            raise refusal(
                ValueError,
                "MAN-17",
                f"num_new_computed_tokens={found}: no page of group {rules.group_id} holds the last of these tokens",
            )
    if not any(parts) and all(page.is_null for group in hits for page in group):
        raise refusal(ValueError, "MAN-1", f"new_computed_pages={pages!r} are null pages alone")
    return hits, parts
