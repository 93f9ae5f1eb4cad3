"""MAN-14: the cached pages of a pool as a snapshot has them, written and read: their contents, keys come of these."""

from collections.abc import Sequence
from typing import Any

from ..declarations import ExtraKey, Request
from ..declarations.codec import Part
from ..declarations.json_kinds import extra_keys_of, extra_keys_to_json, is_length
from .cached_map import CachedMap
from .hashing import PageHash, PageHashWithGroupId, page_extra_keys, request_extra_keys
from .page_keys import PageKeys

__all__ = ["cached_state", "restore_cached"]


def cached_state(cached_map: CachedMap, keys: PageKeys) -> dict[str, Any]:
    """What a snapshot has of the cached pages: ``contents``, with all that comes before them, and ``cached``."""
    content_of_id = keys.content_of_id
    contents: list[list[Any]] = []
    cached: list[list[int]] = []
    place_of: dict[int, int] = {}
    # keys by their first pages: equal maps give equal snapshots, whichever key came first
    for key, pages in sorted(cached_map.pages_of.items(), key=lambda entry: entry[1][0]):
        for page in pages:
            chain: list[int] = []
            content_id: int | None = cached_map.content_of[page]
            while content_id is not None and content_id not in place_of:
                chain.append(content_id)
                content_id = content_of_id[content_id][0]
            for known in reversed(chain):
                parent, tokens, extra_keys = content_of_id[known]
                place_of[known] = len(contents)
                before = -1 if parent is None else place_of[parent]
                contents.append([before, list(tokens), extra_keys_to_json(extra_keys)])
            cached.append([key.group_id, page, place_of[cached_map.content_of[page]]])
    return {"contents": contents, "cached": cached}


def restore_cached(
    cached_map: CachedMap,
    keys: PageKeys,
    contents: Part,
    cached: Part,
    num_pages: int,
    sizes: Sequence[int],
    unit: int | None,
) -> None:
    """Fills an empty map with the cached pages of a snapshot, their keys computed from their contents (HASH-1).

    Args:
        cached_map: the map.
        keys: computes the keys; its root is the snapshot's.
        contents: the contents.
        cached: the pages that have them.
        num_pages: pages of the pool.
        sizes: tokens in a page of each group; 0 for a group that caches none.
        unit: the manager's ``match_unit``; without one all contents fill their pages (MAN-17).

    Raises:
        ValueError: something is damaged (MAN-14).
    """
    chain = _read_contents(keys, contents, sizes, unit)
    for part in cached.items():
        group_part, page_part, known = part.items(3)
        group, page = group_part.integer(below=len(sizes)), page_part.integer(1, num_pages)
        key, content = chain[known.integer(below=len(chain))]
        if page in cached_map.key_of:
            raise cached.damaged(f"names page {page} twice")
        before = keys.content_of_id[content][0]
        size = len(key.token_ids) if before is None else len(keys.content_of_id[before][1])
        is_whole = before is None or size == sizes[group]
        if not sizes[group] or not is_whole or not is_length(len(key.token_ids), sizes[group], unit):
            raise part.damaged(f"names page {page} for what group {group} can't cache")
        cached_map.add(page, PageHashWithGroupId(key, group), content)


def _read_contents(
    keys: PageKeys, contents: Part, sizes: Sequence[int], unit: int | None
) -> list[tuple[PageHash, int]]:
    """Key and content id of each content; one that nothing follows may have fewer tokens than those before (MAN-17)."""
    chain: list[tuple[PageHash, int]] = []
    depths: list[int] = []
    room: list[int] = []
    for place, part in enumerate(contents.items()):
        before_part, tokens_part, extra_part = part.items(3)
        before = before_part.integer(-1, place)
        tokens = [token.integer(-(2**31), 2**31) for token in tokens_part.items()]
        extra_keys = extra_keys_of(extra_part)
        count = len(tokens) if before < 0 else len(chain[before][0].token_ids)
        if before >= 0 and (len(tokens) > count or count < room[before] or (unit is None and len(tokens) < count)):
            raise part.damaged("has another number of tokens than the content before it")
        depths.append(0 if before < 0 else depths[before] + 1)
        fitting = [size for size in (sorted(sizes) if before < 0 and any(sizes) else [count]) if size >= count]
        touched = [size for size in fitting if _can_touch(extra_keys, depths[-1] * size, (depths[-1] + 1) * size)]
        if not touched:
            raise part.damaged("has extra keys that no request has at its place")
        room.append(touched[0])
        chain.append(keys.following(chain[before] if before >= 0 else None, tokens, extra_keys))
    return chain


def _can_touch(extra_keys: tuple[ExtraKey, ...] | None, start: int, end: int) -> bool:
    """True if a request can have these extra keys touch its tokens ``[start, end)`` (HASH-2)."""
    try:
        of_request = request_extra_keys(Request("any", [], extra_keys or ()))
    except (TypeError, ValueError):
        return False
    return page_extra_keys(of_request, start, end) == extra_keys
