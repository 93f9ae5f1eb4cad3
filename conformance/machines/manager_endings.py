"""How requests of the manager machines go: freed, their keys dropped; and what is not them is freed in vain."""

from kvproof.spec.declarations import ExtraKey

from ..calls.datum import Call, Prompt, Ref
from .base import Both
from .manager_base import ManagerMachine

__all__ = ["Endings"]


class Endings(ManagerMachine):
    """Frees requests and forgets their keys."""

    def free_takes_written(self) -> bool:
        """Whether the backend's manager can be told what was written."""
        return self.backend.names.accepts("CacheManager.free", "num_written")

    def free_request(self, name: str, written: int | None) -> None:
        """Frees a request on both sides."""
        self.call_manager("free", request=Ref(name), **({} if written is None else {"num_written": written}))

    def note_free(self, name: str, call: Call, freed: Both) -> None:
        """Notes that a request is gone, and whose pages were withdrawn with it."""
        case, written = self.cases[name], call.arguments.get("num_written")
        if case.live and written is not None and self.caching:
            self.ghost.withdraw(self.was.held, max(case.hits, written))
            for holder in freed.spec:
                self.cases[holder].void = True
        case.live = False
        case.request.num_computed_tokens = 0

    def drop_keys(self, name: str) -> None:
        """Drops the keys computed for a request; nothing else changes."""
        if self.offers("manager", "free_page_hashes"):
            self.call_manager("free_page_hashes", request=Ref(name))

    def namesake(self, name: str, extra_keys: tuple[ExtraKey, ...] = ()) -> Prompt:
        """Another object with the id of a request, live or not: it is not that request."""
        return Prompt(tuple(self.cases[name].tokens), extra_keys, request_id=name)

    def free_a_namesake(self, name: str) -> None:
        """Frees another object with the id of a request, which does nothing."""
        self.call_manager("free", request=self.namesake(name))
