"""MAN-14: what the cached pages of a pool hold, as a snapshot lists it, written and read.

Contents stand in the list after those that come before them in a prefix, most of them right behind: so they are
published in stretches, from the nearest cached page above on, much as requests published them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.spec.declarations import HashFunction
from kvproof.spec.declarations.codec import Part
from kvproof.spec.declarations.json_kinds import extra_keys_of, extra_keys_to_json, is_length

from ..index.parts import PART
from ..index.prefix_index import PrefixIndex
from ..index.runs import Run, RunTree
from ..reading.extra_keys import ExtraSegment, extra_segments
from .hashing import PageHash, PageHashWithGroupId, page_digest, token_tuple
from .marks import Marks

__all__ = ["SavedContents", "cached_state"]


def cached_state(index: PrefixIndex, alike: Iterable[list[int]]) -> dict[str, Any]:
    """What a snapshot has of the cached pages: ``contents``, with all that comes before them, and ``cached``.

    Args:
        index: the index.
        alike: the cached pages, one list for each key, in the order in which they were cached.
    """
    contents: list[list[Any]] = []
    place_of: dict[tuple[int, bytes, bytes], int] = {}  # groups of one page size have their contents in common
    written: dict[tuple[int, int], int] = {}
    cached: list[list[int]] = []
    for page in (page for pages in sorted(alike) for page in pages):
        found = index.place(page)
        assert found is not None, f"page {page} is cached"
        run, place = found
        path: list[tuple[Run, int]] = []
        while run.parent is not None and (run.number, place) not in written:
            path.append((run, place))
            run, place = (run, place - 1) if place else (run.parent, run.start - 1 - run.parent.start)
        last = -1 if run.parent is None else written[run.number, place]
        for run, place in reversed(path):
            content = last, run.page_tokens(place), run.extra.removeprefix(PART)
            last = place_of.setdefault(content, len(contents))
            if last == len(contents):
                contents.append([content[0], list(token_tuple(content[1])), extra_keys_to_json(run.extra_keys)])
            written[run.number, place] = last
        cached.append([found[0].tree.group_id, page, last])
    return {"contents": contents, "cached": cached}


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


class SavedContents:
    """The cached pages of a snapshot, found sound.

    Args:
        contents: the contents.
        cached: which page of which group holds which, the pages of one key in their order.
        num_pages: pages of the pool.
        sizes: tokens in a page of each group; 0 for a group that caches none.
        unit: the manager's ``match_unit``; without one all contents fill their pages (MAN-17).

    Raises:
        ValueError: something is damaged (MAN-14).
    """

    def __init__(
        self, contents: Part, cached: Part, num_pages: int, sizes: Sequence[int], unit: int | None = None
    ) -> None:
        self._known = _read_contents(contents, sizes, unit)
        self._entries = cached.table(len(sizes), num_pages, len(self._known))
        _require_sound(sizes, unit, self._known, contents, cached, self._entries)
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._entries)

    def publish(self, index: PrefixIndex) -> None:
        """Publishes the pages in an empty index."""
        known = self._known
        for group_id, size in enumerate(self._sizes):
            if not size:
                continue
            tree = index.tree(group_id, size)
            own = self._entries[self._entries[:, 0] == group_id]
            lengths = np.array([len(known[place].tokens) // 4 for place in own[:, 2].tolist()], np.int64)
            parts, own = own[lengths < size], own[lengths == size]
            firsts = np.zeros(len(known), np.int64)
            places, first = np.unique(own[:, 2], return_index=True)
            firsts[places] = own[first, 1]
            for start, end in _stretches(known):
                _publish(index, tree, known, firsts, range(start, end), firsts[start:end])
            others = np.delete(own, first, axis=0)
            for _, page, place in others.tolist():
                _publish(index, tree, known, firsts, range(place, place + 1), np.array([page]))
            for _, page, place in parts.tolist():
                _publish_part(index, tree, known, firsts, place, page)

    def keys(self, hash_function: HashFunction, none_hash: bytes) -> Iterator[tuple[int, PageHashWithGroupId]]:
        """The cached pages and their keys, computed from their contents, in the order in which they were cached."""
        keys: list[PageHash] = []
        for before, _, tokens, segment in self._known:
            parent = keys[before].hash_value if before >= 0 else none_hash
            digest = page_digest(hash_function, parent, segment.extra, tokens)
            keys.append(PageHash(digest, token_tuple(tokens), segment.extra_keys))
        for group, page, place in self._entries.tolist():
            yield page, PageHashWithGroupId(keys[place], group)

    def marks(self, marks: Marks) -> Iterator[tuple[int, int]]:
        """The cached pages and the marks of their contents (EVICT-1)."""
        sums: list[int] = []
        for before, depth, tokens, segment in self._known:
            sums.append(marks.next(sums[before] if before >= 0 else 0, depth, tokens, segment.extra))
        for group, page, place in self._entries.tolist():
            yield page, (marks.root(group) + sums[place]) % 2**63


# -- Reading --------------------------------------------------------------------------------------


def _read_contents(part: Part, sizes: Sequence[int], unit: int | None) -> list[_Content]:
    """Reads the contents; one that nothing follows may have fewer tokens than those before it (MAN-17)."""
    known: list[_Content] = []
    rooms: list[int] = []
    seen: set[tuple[int, bytes, bytes]] = set()
    for place, item in enumerate(part.items()):
        before_part, tokens_part, extra_part = item.items(3)
        before, tokens = before_part.integer(minimum=-1, below=place), tokens_part.tokens()
        depth, length = (known[before].depth + 1, len(known[before].tokens)) if before >= 0 else (0, len(tokens))
        is_behind_short = before >= 0 and length < 4 * rooms[before]
        if not tokens or is_behind_short or len(tokens) > length or (unit is None and len(tokens) < length):
            raise tokens_part.damaged("must have as many tokens as the content before, at least one")
        room, segment = _read_segment(extra_part, depth, length // 4, sizes if before < 0 else ())
        rooms.append(room)
        if (before, tokens, segment.extra) in seen:
            raise item.damaged("stands in the list already")
        seen.add((before, tokens, segment.extra))
        known.append(_Content(before, depth, tokens, segment))
    return known


def _read_segment(part: Part, depth: int, num_tokens: int, sizes: Sequence[int]) -> tuple[int, ExtraSegment]:
    """Reads the extra keys of the page at a place: those that touch it, of a request that has them (HASH-2).

    Args:
        part: the extra keys.
        depth: the place.
        num_tokens: tokens in a page there, or fewer in a first page.
        sizes: for a first page the tokens in a page of each group; the least is taken that is possible (MAN-17).

    Returns:
        The tokens in a page, and the segment.
    """
    extra_keys = extra_keys_of(part)
    for page_size in sorted(size for size in sizes if size >= num_tokens) if any(sizes) else [num_tokens]:
        try:
            segments = extra_segments(extra_keys, page_size)
        except (TypeError, ValueError):
            segments = ()
        segment = next((own for own in segments if depth < own.end), None)
        if segment is not None and segment.extra_keys == extra_keys:
            return page_size, segment
    raise part.damaged("must be null or extra keys of a request that touch the page, in order")


def _require_sound(
    sizes: Sequence[int],
    unit: int | None,
    known: Sequence[_Content],
    contents: Part,
    cached: Part,
    entries: NDArray[np.int64],
) -> None:
    """Refuses pages that can't be cached so, and contents that no page needs."""
    group_ids, pages, places = entries.T
    if not pages.all() or len(np.unique(pages)) < len(pages):
        raise cached.damaged("must name each page once, and not the null page")
    for group, place in zip(group_ids.tolist(), places.tolist(), strict=True):
        content, size = known[place], sizes[group]
        is_whole = content.before < 0 or len(known[content.before].tokens) == 4 * size
        if not size or not is_whole or not is_length(len(content.tokens) // 4, size, unit):
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


def _publish_part(
    index: PrefixIndex, tree: RunTree, known: Sequence[_Content], firsts: NDArray[np.int64], place: int, page: int
) -> None:
    """Publishes a page that is not full, behind the page before it, which may have lost its hash since (MAN-17)."""
    before, content = known[place].before, known[place]
    after = 0 if before < 0 else int(firsts[before])
    if before >= 0 and not after:
        after = page
        _publish(index, tree, known, firsts, range(before, before + 1), np.array([page]))
    index.publish_part(tree, content.tokens, content.segment, page, content.depth, after)


def _publish(
    index: PrefixIndex,
    tree: RunTree,
    known: Sequence[_Content],
    firsts: NDArray[np.int64],
    stretch: range,
    pages: NDArray[np.int64],
) -> None:
    """Publishes pages of a group that hold a stretch of contents, 0 where there is none.

    Args:
        index: the index.
        tree: the group's.
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
    index.publish(tree, b"".join(content.tokens for content in path), segments, entered, start, after)
