"""RET-1, RET-3: which pages of windows, chunks and states are worth keeping when a request lets go of them.

A group that needs only part of a prefix serves a hit only where that part is there. Pages that no hit can end at would
push out prefixes that can be hit, so a page is judged by the *resume points* that need it.
"""

from collections.abc import Sequence
from math import lcm

from ..pool.letting_go import Judged, Worth
from ..pool.pages import CachePage
from ..reading.arguments import integer, refusal
from .group_rules import GroupRules
from .live_requests import Live

__all__ = ["Retention"]


class Retention:
    """The rules by which a manager judges the pages that a request lets go of (RET-1, RET-4).

    Args:
        rules: the rules of each group.
        interval: the argument ``retention_interval``.
        enable_caching: whether pages are cached; if not, none is judged.

    Attributes:
        interval: tokens between the lengths at which hits can end anyway; 0: there are none; None: all lengths.
        judges: whether pages are judged at all: some group needs only part of a prefix, and not every length counts.
        finds_junctions: whether there can be junctions (RET-2).

    Raises:
        ValueError: ``interval`` is no multiple of a group's page size (RET-1).
    """

    def __init__(self, rules: Sequence[GroupRules], interval: object, enable_caching: bool) -> None:
        self._rules = rules
        self._unit = lcm(*(own.unit for own in rules))
        self._serves_hits = enable_caching and all(own.num_publishable(own.page_size) for own in rules)
        self.interval = (
            None if interval is None else integer("retention_interval", interval, clause="RET-1", below=2**63)
        )
        for own in rules:
            if self.interval is not None and self.interval % own.page_size:
                raise refusal(
                    ValueError,
                    "RET-1",
                    f"retention_interval={self.interval} must be a multiple of the {own.page_size} tokens in a page of "
                    f"group {own.group_id}",
                )
        has_partial = any(own.needs_part for own in rules)
        self.judges = enable_caching and has_partial and self.interval is not None
        self.finds_junctions = self._serves_hits and has_partial and any(own.keeps_prefix for own in rules)

    def resume_point(self, num_cached: int, most: int) -> int:
        """The longest length that a hit can have which needs nothing behind the first tokens.

        Args:
            num_cached: how many tokens come first.
            most: the most tokens of the hit.
        """
        lengths = range(most // self._unit * self._unit, 0, -self._unit) if self._serves_hits else ()
        return next(
            (length for length in lengths if all(own.reach(length) <= num_cached for own in self._rules)),
            0,
        )

    def prompt_end(self, num_tokens: int) -> int:
        """The longest length of a hit below the end of a prompt (RET-1); 0 where no page is judged."""
        return self.resume_point(num_tokens, num_tokens - 1) if self.judges else 0

    def judged(
        self, rules: GroupRules, pages: Sequence[CachePage], live: Live, computed: int, is_over: bool
    ) -> dict[int, Judged]:
        """The first pages of a request's list in a group and what they are worth, by places; see `worth`.

        Where pages are not judged, they are worth as much as a resume point's.
        """
        if not (self.judges and rules.needs_part):
            return {place: (page, Worth.FIRST) for place, page in enumerate(pages)}
        return {place: (page, self.worth(rules, place, live, computed, is_over)) for place, page in enumerate(pages)}

    def worth(self, rules: GroupRules, place: int, live: Live, computed: int, is_over: bool) -> Worth:
        """What the page at a place of a request is worth when the request lets go of it (RET-3).

        Args:
            rules: the rules of the page's group.
            place: the place.
            live: the request.
            computed: the tokens that it computed: at the end those that it published.
            is_over: whether the request is freed.
        """
        size, step = rules.page_size, self.interval
        points = [live.junction]
        if step:
            points += [place * size // step * step, -(-(place + 1) * size // step) * step]
        if any(point <= computed and place in rules.needed(point) for point in points):
            return Worth.KEPT
        if place in rules.needed(self.resume_point(computed, computed)):
            return Worth.FIRST if is_over else Worth.SECOND
        if live.prompt_end <= computed and place in rules.needed(live.prompt_end):
            return Worth.SECOND
        return Worth.NONE
