"""EVICT-1: the policies by which free pages are evicted: their names, their constants, and their part of a snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from .codec import BEYOND, Part
from .reading import refusal, shown

__all__ = [
    "CANDIDATES",
    "HALVED_AFTER",
    "MOST_HITS",
    "NUM_LEVELS",
    "POLICIES",
    "REUSE",
    "SHADOW_PAGES",
    "STALE_TURNOVERS",
    "Batch",
    "Candidate",
    "EvictionCounters",
    "EvictionPolicy",
    "QueuesState",
    "SavedEviction",
    "candidate_to_follow",
    "eviction_of",
    "eviction_to_json",
    "num_ghost_slots",
    "read_policy",
]

EvictionPolicy = Literal["lru", "reuse", "adaptive"]
POLICIES: tuple[EvictionPolicy, ...] = ("lru", "reuse", "adaptive")

SHADOW_PAGES = 1_024
"""The most pages of a shadow pool: a larger pool samples its contents, so that each shadow sees as much pressure."""

HALVED_AFTER = 8
"""Scores of shadow pools are halved after this number of times as many sampled contents as they hold were asked for."""

MOST_HITS = 4
"""Hits of a page are counted up to this number."""

NUM_LEVELS = MOST_HITS.bit_length() + 1
"""Pages wait by levels: the level of a page is the bit length of its number of hits, 0 for a page without any."""

STALE_TURNOVERS = 8
"""A candidate that keeps lets go of pages that were free for more than this number of pool turnovers."""


class Candidate(NamedTuple):
    """A rule for the page that is taken next.

    Attributes:
        turnovers: how many pool turnovers longer a page stays than one of the level below; None: the rule keeps what is
            there, and lets new pages take each other's places.
        uses_ghosts: whether a content that was evicted lately counts as hit once when it is published again.
        extends: whether what a request computed behind a page that was hit counts as hit once when the request lets go
            of both, in a pool with a group that needs only part of a prefix: there the next turn of a conversation is
            hit at the end of the last one, or not at all.
    """

    turnovers: int | None
    uses_ghosts: bool
    extends: bool = False


CANDIDATES = (
    Candidate(0, True),
    Candidate(1, True),
    Candidate(4, True),
    Candidate(None, False, True),
    Candidate(None, True),
)
"""The rules that ``adaptive`` chooses among. The first is LRU: by it pages of all levels stay equally long."""

REUSE = CANDIDATES[2]
"""The rule of ``reuse``."""


@dataclass(frozen=True)
class EvictionCounters:
    """What a pool's eviction policy has seen since the pool was made; ``lru`` watches nothing.

    Attributes:
        regrets: number of pages that were let go for the first time with a content that had been evicted lately.
        candidate: the place in `CANDIDATES` of the rule in force.
        scores: hits of each candidate's shadow pool, halved again and again (`HALVED_AFTER`); empty unless
            ``adaptive``.
        unreachable: number of pages that lost their hashes when they were let go, by any policy, as no hit can need
            them (RET-3); not kept in snapshots.
    """

    regrets: int = 0
    candidate: int = 0
    scores: tuple[int, ...] = ()
    unreachable: int = 0


def read_policy(policy: object) -> EvictionPolicy:
    """Reads the name of a policy.

    Raises:
        TypeError: it is no str.
        ValueError: it is none of `POLICIES`.
    """
    if not isinstance(policy, str):
        raise refusal(TypeError, "EVICT-1", f"eviction={shown(policy)} must be a str")
    for known in POLICIES:
        if policy == known:
            return known
    raise refusal(ValueError, "EVICT-1", f"eviction={policy!r} must be one of {', '.join(map(repr, POLICIES))}")


def candidate_to_follow(scores: Sequence[int], now: int, recent: int, size: int) -> int:
    """The place of the candidate that ``adaptive`` follows next: the best one, if it is well ahead.

    It must be ahead of the one in force by a fiftieth and by two standard deviations; to go back to LRU, by more than a
    hit. The pool's pages were chosen by the rule in force, so that a change is paid for while they are replaced: the
    lead must be as great as the hits that the rule in force has in a turnover, or in half of one if the better rule
    does not keep what is there.

    Args:
        scores: those of all candidates.
        now: the place of the one in force.
        recent: the number of contents that the scores are of.
        size: the number of contents that a shadow pool holds, which makes a turnover.
    """
    most, own = max(scores), scores[now]
    if 50 * most <= 51 * own:
        return now
    best, ahead = scores.index(most), most - own
    if best == 0:
        return best if ahead > 1 else now
    halves = 2 if CANDIDATES[best].turnovers is None else 1
    return best if ahead * ahead > 4 * most and 2 * ahead * recent >= halves * size * own else now


def num_ghost_slots(num_pages: int) -> int:
    """The number of ghosts that a pool has room for: a mark stays for one and a half turnovers in the mean."""
    return min(num_pages + num_pages // 2, 2**31 - 1)


# -- Snapshots (MAN-14) ---------------------------------------------------------------------------

Batch = tuple[int, list[int]]
"""Pages or marks that became free together, with the clock at that time."""


@dataclass
class QueuesState:
    """The free pages of a pool, or the free marks of a shadow pool, each with the clock at which it became free.

    Attributes:
        front: batches to be taken at once, the last one first.
        levels: the others, by level.
        hits: [page or mark, number of hits] of the cached ones that were let go before, ascending.
        ghosts: [slot, tag] of contents that were evicted, by slot.
    """

    front: list[Batch] = field(default_factory=list)
    levels: list[list[tuple[int, int]]] = field(default_factory=lambda: [[] for _ in range(NUM_LEVELS)])
    hits: list[tuple[int, int]] = field(default_factory=list)
    ghosts: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class SavedEviction:
    """What a snapshot has of a policy other than ``lru``.

    Attributes:
        regrets: see `EvictionCounters`.
        empty: the free pages that had no hash when they were freed, in this order.
        queues: the other free pages.
        candidate: the place in `CANDIDATES` of the rule in force.
        scores: see `EvictionCounters`; empty, as all below, unless the policy is ``adaptive``.
        asked: number of sampled contents that were asked for.
        recent: number of those that the scores are of.
        credit: what the pool has gained on LRU, see `kvproof.spec.pool.shadows`.
        shadows: the clock and the queues of each candidate's shadow pool.
    """

    regrets: int
    empty: list[int]
    queues: QueuesState
    candidate: int = CANDIDATES.index(REUSE)
    scores: list[int] = field(default_factory=list)
    asked: int = 0
    recent: int = 0
    credit: int = 0
    shadows: list[tuple[int, QueuesState]] = field(default_factory=list)


def _queues_to_json(queues: QueuesState) -> dict[str, Any]:
    return {
        "front": [[clock, list(batch)] for clock, batch in queues.front],
        "levels": [[list(entry) for entry in level] for level in queues.levels],
        "hits": [list(entry) for entry in queues.hits],
        "ghosts": [list(entry) for entry in queues.ghosts],
    }


def _queues_of(part: Part, size: int, least: int = 0, below: int = BEYOND) -> QueuesState:
    """Reads queues of a pool of a size, or of a shadow pool; entries lie in [least, below)."""
    parts = part.members(("front", "levels", "hits", "ghosts"))

    def pairs(own: Part, smallest: int = 0, end: int = BEYOND) -> list[tuple[int, int]]:
        found = (item.items(2) for item in own.items())
        return [(entry.integer(least, below), number.integer(smallest, end)) for entry, number in found]

    batches = (item.items(2) for item in parts["front"].items())
    front = [(clock.integer(), [own.integer(least, below) for own in batch.items()]) for clock, batch in batches]
    pairs_of_ghosts = (item.items(2) for item in parts["ghosts"].items())
    num_slots = num_ghost_slots(size)
    ghosts = [(slot.integer(below=num_slots), tag.integer(1, 2**31 + 1)) for slot, tag in pairs_of_ghosts]
    levels = [pairs(level) for level in parts["levels"].items(NUM_LEVELS)]
    return QueuesState(front, levels, pairs(parts["hits"], 0, MOST_HITS + 1), ghosts)


_MEMBERS = (
    "policy", "regrets", "empty", "queues", "candidate", "scores", "asked", "recent", "credit", "shadows"
)  # fmt: skip


def eviction_to_json(policy: EvictionPolicy, saved: SavedEviction) -> dict[str, Any]:
    """The part of a snapshot."""
    return {
        **vars(saved),
        "policy": policy,
        "queues": _queues_to_json(saved.queues),
        "shadows": [[clock, _queues_to_json(queues)] for clock, queues in saved.shadows],
    }


def eviction_of(part: Part, num_pages: int) -> SavedEviction:
    """Reads the part of a snapshot, but for the name of the policy.

    Args:
        part: the part.
        num_pages: pages of the pool.

    Raises:
        ValueError: it is damaged (MAN-14).
    """
    parts = part.members(_MEMBERS)
    lengths = len(CANDIDATES) if parts["policy"].value == "adaptive" else 0
    size = min(num_pages - 1, SHADOW_PAGES)
    shadows = (item.items(2) for item in parts["shadows"].items(lengths))
    return SavedEviction(
        parts["regrets"].integer(),
        [page.integer(1, num_pages) for page in parts["empty"].items()],
        _queues_of(parts["queues"], num_pages - 1, 1, num_pages),
        parts["candidate"].integer(below=len(CANDIDATES)),
        [score.integer() for score in parts["scores"].items(lengths)],
        parts["asked"].integer(),
        parts["recent"].integer(),
        parts["credit"].integer(-BEYOND),
        [(clock.integer(), _queues_of(queues, size)) for clock, queues in shadows],
    )
