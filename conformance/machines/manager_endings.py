"""How requests of the manager machines go: freed, their keys dropped; and what is not them is freed in vain."""

from kvproof.spec.declarations import Request

from .manager_base import COUNTS, HASHES, ManagerMachine
from .operations import operation

__all__ = ["Endings"]


class Endings(ManagerMachine):
    """Frees requests and forgets their keys."""

    def free_takes_written(self) -> bool:
        """Whether the backend's manager can be told what was written."""
        return self.backend.names.accepts("CacheManager.free", "num_written")

    @operation
    def free_request(self, name: str, written: int | None) -> None:
        """Frees a request on both sides."""
        case = self.cases[name]
        clause = "MAN-5" if written is None else "MAN-4"
        more = () if written is None else (written,)
        pages = self.held(name)
        freed = self.call(
            f"manager.free({name}{'' if written is None else f', num_written={written}'})",
            lambda side: side.manager.free(case.request, *more),
            clause,
            lambda held, _: [] if held is None and written is None else list(held),
            dict.fromkeys(("pages of requests", *COUNTS), "MAN-5")
            | dict.fromkeys(HASHES, clause)
            | ({"free pages": clause} if self.options.get("unhashed_first") else {}),
        )
        if case.live and written is not None and self.caching:
            self.ghost.withdraw(pages, max(case.hits, written))
            for holder in freed.spec:
                self.cases[holder].void = True
        case.live = False
        case.request.num_computed_tokens = 0

    @operation
    def drop_keys(self, name: str) -> None:
        """Drops the keys computed for a request; nothing else changes."""
        if not self.offers("manager", "free_page_hashes"):
            return
        case = self.cases[name]
        self.call(
            f"manager.free_page_hashes({name})",
            lambda side: side.manager.free_page_hashes(case.request),
            "MAN-6",
            charge=self.charged("MAN-6"),
        )

    @operation
    def free_a_namesake(self, name: str) -> None:
        """Another object with the id of a request, live or not, is not that request: freeing it does nothing."""
        stranger = Request(name, self.cases[name].tokens)
        self.call(
            f"manager.free(<another request {name!r}>)",
            lambda side: side.manager.free(stranger),
            "MAN-5",
            lambda held, _: held or [],
            self.charged("MAN-5"),
        )
