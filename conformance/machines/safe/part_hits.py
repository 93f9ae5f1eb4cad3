"""MAN-17 at level safe: any cached page may be copied from that begins with a request's tokens."""

from dataclasses import dataclass

from ..manager_blame import Case
from .manager_model import ManagerModel
from .showing import Lists

__all__ = ["PartHits", "Sources"]


@dataclass(frozen=True)
class Sources:
    """What is known before a call of the pages that it copies from; a backend may choose among several.

    Attributes:
        are_there: whether each group in which the hit ends amid a page has a page to copy from.
        are_certain: whether each has one that was published as a full page: what of an unfilled one is found is policy.
        least: at least how many free pages are used up as sources, which are held until they are copied.
        most: at most how many.
    """

    are_there: bool = True
    are_certain: bool = True
    least: int = 0
    most: int = 0


class PartHits(ManagerModel):
    """What a manager copies for hits that end amid a page.

    The model holds no backend to which of several pages it takes, nor to how much of the unfilled pages of freed
    requests it finds.
    """

    @property
    def match_unit(self) -> int | None:
        """The unit of hits; None: hits are of whole pages."""
        return int(self.options["match_unit"]) if self.amid else None

    def ends_amid(self, length: int) -> list[int]:
        """The groups in which a hit ends amid a page."""
        return [number for number, group in enumerate(self.world.groups) if length % group.page_size]

    def pages_with(self, case: Case, number: int, length: int) -> list[int]:
        """The pages that can be found and hold the last tokens of a request's hit in a group.

        Where nothing shows which pages are cached, those that hold them, whether or not they can be found.
        """
        known = self.ghost.contents if self.resident is None else self.resident
        keys = case.request.extra_keys
        return [page for page in known if self.ghost.begins_with(page, number, length, case.tokens, keys)]

    def sources(self, case: Case, length: int) -> Sources:
        """What is known of the pages from which the last tokens of a request's hit are copied."""
        in_use = {page for lists in self.lists.values() for pages in lists for page in pages}
        held = [self.pages_with(case, number, length) for number in self.ends_amid(length)]
        whole = self.resident is not None and all(set(pages) - self.unfilled for pages in held)
        least = sum(not in_use & set(pages) for pages in held)
        return Sources(all(held), whole, least, sum(bool(set(pages) - in_use) for pages in held))

    def is_served(self, case: Case, length: int) -> bool:
        """Whether a hit of a length is right: every group has its pages, and one to copy the last tokens from."""
        known = self.ghost.contents if self.resident is None else self.resident
        tokens, keys = case.tokens, case.request.extra_keys
        return self.ghost.serves(self.world, known, length, tokens, keys, self.match_unit)

    def judge_sources(self, sources: Sources) -> None:
        """The pages that are copied from are in use until the copies are taken, also those that nobody holds."""
        if "number of free pages" in self.shows:
            free = self.see("number of free pages", "MAN-17")
            least, most = self.num_free - sources.most, self.num_free - sources.least
            said = f"{least} to {most} free pages while {sources.least} to {sources.most} wait to be copied"
            self.hold("MAN-17", least <= free <= most, said, f"{free}")

    def judge_part_copies(
        self, name: str, given: Lists, found: int, taken: list[tuple[int, ...]]
    ) -> list[tuple[int, ...]]:
        """Judges the copies of parts of pages among those to be run before a step.

        Each fills the request's own page behind its hits, from a cached page that begins with its tokens.

        Args:
            name: the request.
            given: the pages that it was given.
            found: the tokens that it hit in this call.
            taken: the copies.

        Returns:
            The other copies.
        """
        case = self.cases[name]
        sizes = [group.page_size for group in self.world.groups]
        right = [(number, given[number][0], found % sizes[number]) for number in self.ends_amid(found)]
        parts = [copy for copy in taken if len(copy) == 4]
        told = sorted((number, destination, tokens) for number, _, destination, tokens in parts)
        self.compared("MAN-17")
        if told != right:
            said = f"copies {right}, each (group, destination, num_tokens)"
            self.differ("MAN-17", said, f"{[tuple(copy) for copy in parts]}, each with its source behind the group")
        for number, source, _, _ in parts:
            if source in self.fresh or source not in self.pages_with(case, number, found):
                said = f"a cached page that begins with the tokens of {name} up to {found}, from its first slot on"
                self.differ("MAN-17", said, f"page {source}, which holds {self.ghost.contents.get(source)}")
        return [copy for copy in taken if len(copy) != 4]

    def may_be_cached(self, page: int) -> bool:
        """Whether a page may be found: it is full, or nobody writes to it any more and a unit of it is known."""
        if self.ghost.is_full(page):
            return True
        content = self.ghost.contents.get(page)
        if content is None or self.match_unit is None or self.world.groups[content.group].keeps_states:
            return False
        in_use = any(page in pages for lists in self.lists.values() for pages in lists)
        return not in_use and len(content.tokens) % self.world.groups[content.group].page_size >= self.match_unit
