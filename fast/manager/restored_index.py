"""MAN-14: the index of cached pages from a snapshot's contents.

Contents stand in the list after those that come before them in a prefix, most of them right behind: so they are
published in stretches, from the nearest cached page above on, much as requests published them.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.json_kinds import extra_keys_of

from ..groups.cache_group import CacheGroup
from ..pool.hashing import PageHash, PageHashWithGroupId, page_digest, token_tuple
from ..pool.page_pool import PagePool
from ..reading.extra_keys import ExtraSegment, extra_segments

__all__ = ["restore_index"]


class _Content(NamedTuple):
    """What a page holds.

    Attributes:
        before: the place of the content before it in the list; -1 for that of a first page.
        depth: its place in a request.
        tokens: its token bytes.
        segment: the extra keys that touch it; the segment's end is of no meaning.
    """

    before: int
    depth: int
    tokens: bytes
    segment: ExtraSegment


def restore_index(pool: PagePool, groups: Sequence[CacheGroup], contents: Part, cached: Part) -> None:
    """Fills an empty index, and notes the keys where a pool keeps any.

    Args:
        pool: the pool, which has its root of keys already.
        groups: the cache groups.
        contents: the contents of the snapshot.
        cached: which page of which group holds which, the pages of one key in their order.

    Raises:
        ValueError: something is damaged (MAN-14).
    """
    known = _read_contents(contents)
    entries = cached.table(len(groups), pool.num_pages, len(known))
    _require_sound(pool, groups, known, contents, cached, entries)
    for group in groups:
        own = entries[entries[:, 0] == group.group_id]
        firsts = np.zeros(len(known), np.int64)
        places, first = np.unique(own[:, 2], return_index=True)
        firsts[places] = own[first, 1]
        for start, end in _stretches(known):
            _publish(pool, group, known, firsts, range(start, end), firsts[start:end])
        others = np.delete(own, first, axis=0)
        for _, page, place in others.tolist():
            _publish(pool, group, known, firsts, range(place, place + 1), np.array([page]))
    if pool.keeps_keys:
        keys = _keys(pool, known)
        pool.restore_keys((page, PageHashWithGroupId(keys[place], group)) for group, page, place in entries.tolist())


# -- Reading --------------------------------------------------------------------------------------


def _read_contents(part: Part) -> list[_Content]:
    known: list[_Content] = []
    seen: set[tuple[int, bytes, bytes]] = set()
    for place, item in enumerate(part.items()):
        before_part, tokens_part, extra_part = item.items(3)
        before, tokens = before_part.integer(minimum=-1, below=place), tokens_part.tokens()
        depth, length = (known[before].depth + 1, len(known[before].tokens)) if before >= 0 else (0, len(tokens))
        if not tokens or len(tokens) != length:
            raise tokens_part.damaged("must have as many tokens as the content before, at least one")
        segment = _read_segment(extra_part, depth, length // 4)
        if (before, tokens, segment.extra) in seen:
            raise item.damaged("stands in the list already")
        seen.add((before, tokens, segment.extra))
        known.append(_Content(before, depth, tokens, segment))
    return known


def _read_segment(part: Part, depth: int, page_size: int) -> ExtraSegment:
    """Reads the extra keys of the page at a place: those that touch it, of a request that has them (HASH-2)."""
    extra_keys = extra_keys_of(part)
    try:
        segments = extra_segments(extra_keys, page_size)
    except (TypeError, ValueError):
        segments = ()
    for segment in segments:
        if depth < segment.end and segment.extra_keys == extra_keys:
            return segment
        if depth < segment.end:
            break
    raise part.damaged("must be null or extra keys of a request that touch the page, in order")


def _require_sound(
    pool: PagePool,
    groups: Sequence[CacheGroup],
    known: Sequence[_Content],
    contents: Part,
    cached: Part,
    entries: NDArray[np.int64],
) -> None:
    """Refuses pages that can't be cached so, and contents that no page needs."""
    group_ids, pages, places = entries.T
    if len(entries) and not pool.enable_caching:
        raise cached.damaged("must be empty with caching off")
    if not pages.all() or len(np.unique(pages)) < len(pages):
        raise cached.damaged("must name each page once, and not the null page")
    sizes = np.array([group.rule.page_size if group.rule.publishes else 0 for group in groups] or [0], np.object_)
    lengths = np.array([len(content.tokens) // 4 for content in known] or [0], np.object_)
    if (sizes[group_ids] != lengths[places]).any():
        raise cached.damaged("must name contents that are as long as a page of a group that caches")
    needed = set(places.tolist())
    for place in range(len(known) - 1, -1, -1):
        if place not in needed:
            raise contents.damaged(f"[{place}] is in no cached prefix")
        needed.add(known[place].before)


# -- Publishing -----------------------------------------------------------------------------------


def _stretches(known: Sequence[_Content]) -> Iterator[tuple[int, int]]:
    """The bounds of stretches of contents each of which follows the one before it in the list."""
    start = 0
    for place in range(1, len(known) + 1):
        if place == len(known) or known[place].before != place - 1:
            yield start, place
            start = place


def _publish(
    pool: PagePool,
    group: CacheGroup,
    known: Sequence[_Content],
    firsts: NDArray[np.int64],
    stretch: range,
    pages: NDArray[np.int64],
) -> None:
    """Publishes pages of a group that hold a stretch of contents, 0 where there is none.

    Args:
        pool: the pool.
        group: the group.
        known: the contents.
        firsts: the first page of the group that holds each; those above the stretch are published.
        stretch: the places of the contents in the list.
        pages: the pages.
    """
    if not pages.any():
        return
    above: list[int] = []
    place = known[stretch[0]].before
    while place >= 0 and not firsts[place]:
        above.append(place)
        place = known[place].before
    path = [known[step] for step in (*reversed(above), *stretch)]
    start = path[0].depth
    segments: list[ExtraSegment] = []
    for depth, content in enumerate(path, start + 1):
        segment = content.segment._replace(end=depth)
        if segments and segments[-1].extra == segment.extra:
            segments.pop()
        segments.append(segment)
    after = int(firsts[place]) if place >= 0 else 0
    entered = np.concatenate([np.zeros(len(above), np.int64), pages])
    pool.index.publish(group.tree, b"".join(content.tokens for content in path), segments, entered, start, after)


def _keys(pool: PagePool, known: Sequence[_Content]) -> list[PageHash]:
    """The keys of all contents, made anew (HASH-1)."""
    keys: list[PageHash] = []
    for before, _, tokens, segment in known:
        parent = keys[before].hash_value if before >= 0 else pool.none_hash
        digest = page_digest(pool.hash_function, parent, segment.extra, tokens)
        keys.append(PageHash(digest, token_tuple(tokens), segment.extra_keys))
    return keys
