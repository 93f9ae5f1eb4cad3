"""What a call of ``allocate_slots`` takes, told from the page lists before it, whatever the backend's policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..worlds import Group

__all__ = ["Asked", "Demand", "demand", "needed_places"]

Lists = Sequence[Sequence[int]]


def needed_places(group: Group, length: int, reached: int) -> list[int]:
    """The places of a live request's list at which pages stand; null pages stand at the others (MAN-8, MAN-13).

    Args:
        group: the cache group.
        length: how long the list is.
        reached: the request's computed tokens, hits included, at the last call for it.
    """
    if group.kind != "aligned":
        return list(range(min(group.first_place(reached), length), length))
    source = [group.first_place(reached)] if reached else []
    return sorted({*source, length - 1} & set(range(length)))


@dataclass(frozen=True)
class Asked:
    """What a call asks for.

    Attributes:
        name: the request.
        hits: the pages that it hands back as hits, group by group.
        computed: its computed tokens, those just found left out.
        found: the tokens that it found.
        promised: computed, found and new tokens.
        slots: these and look-ahead.
    """

    name: str
    hits: list[list[int]]
    computed: int
    found: int
    promised: int
    slots: int

    @property
    def start(self) -> int:
        """Its computed tokens, those found included."""
        return self.computed + self.found


@dataclass(frozen=True)
class Demand:
    """What one call takes.

    Attributes:
        kept: the request's lists as they are before pages are put behind them: null pages in the places of those that
            are given back (MAN-8), hits behind.
        lengths: how long its lists are afterwards.
        new: how many pages it takes that nobody holds, beside the hits.
        used_up: how many of the hits are held by nobody, so that they use up free pages, too (MAN-2).
        released: how many pages it gives back first that nobody else holds.
    """

    kept: list[list[int]]
    lengths: list[int]
    new: int
    used_up: int
    released: int

    @property
    def net(self) -> int:
        """How many free pages must be there before the call."""
        return self.new + self.used_up - self.released


def demand(groups: Sequence[Group], lists: Mapping[str, Lists], asked: Asked) -> Demand:
    """What a call takes.

    Args:
        groups: the cache groups.
        lists: the page lists of all live requests.
        asked: what it asks for.
    """
    own = [list(held) for held in lists.get(asked.name, [[] for _ in groups])]
    first = [min(group.first_place(asked.computed), len(held)) for group, held in zip(groups, own, strict=True)]
    others = {page for other, held in lists.items() if other != asked.name for pages in held for page in pages}
    stays = {page for pages, place in zip(own, first, strict=True) for page in pages[place:]}
    gone = {page for pages, place in zip(own, first, strict=True) for page in pages[:place] if page}
    kept = [
        [0] * place + pages[place:] + list(found) for place, pages, found in zip(first, own, asked.hits, strict=True)
    ]
    lengths, new = [], 0
    for group, pages in zip(groups, kept, strict=True):
        tokens = asked.promised if group.keeps_states else asked.slots
        places = 1 if group.kind == "state" else -(-tokens // group.page_size)
        lengths.append(max(places, len(pages)))
        new += min(lengths[-1] - len(pages), 1) if group.keeps_states else lengths[-1] - len(pages)
    used_up = {page for pages in asked.hits for page in pages if page} - others
    return Demand(kept, lengths, new, len(used_up), len(gone - others - stays))
