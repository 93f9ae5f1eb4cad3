"""Machines whose managers are restored from snapshots: which requests a snapshot needs, and restoring."""

import copy
import functools
import json
import random
from typing import Any

from hypothesis import strategies as st

from kvproof.spec.declarations import Request

from ..calls.datum import Call
from .base import Both, Side
from .document_damage import damaged
from .draws import Drawing
from .groups import GroupSteps
from .operations import operation
from .properties import step

__all__ = ["Restoring", "as_json"]


_MUTANTS = 32
"""Damaged snapshots that are tried in one step."""


class Restoring(GroupSteps):
    """The backend's manager is restored from snapshots, the specification's goes on as it is.

    Attributes:
        known: the request that each id stands for, as the managers know it.
        restoring: whether the backend's manager is restored after every change.
    """

    def begin_restoring(self, restoring: bool) -> None:
        """No request is known."""
        self.known: dict[str, Request] = {}
        self.restoring = restoring

    # -- Which requests are known ---------------------------------------------------------------------------

    def note_get_computed_pages(self, name: str, call: Call, found: Both) -> None:
        """See `ManagerMachine.note_get_computed_pages`: what is looked up is known."""
        super().note_get_computed_pages(name, call, found)
        self.note_look_up(name)

    def note_look_up(self, name: str) -> None:
        """A request that was looked up is known, where anything can be found for it."""
        request = self.cases[name].request
        if self.caching and request.sampling_params.prompt_logprobs is None:
            self.known[name] = request

    def grant(self, name: str, computed: int, found: int, new: int, lookahead: int) -> None:
        """See `ManagerMachine.grant`: what is admitted is known."""
        self.known[name] = self.cases[name].request
        super().grant(name, computed, found, new, lookahead)

    def note_free_page_hashes(self, name: str, _: Call, __: Both) -> None:
        """A request whose keys are dropped is not known any more."""
        self.known.pop(name, None)

    # -- Snapshots --------------------------------------------------------------------------------------------

    def can_restore(self) -> bool:
        """Whether the managers' state can be told by a snapshot now."""
        return True

    def probe(self) -> None:
        """See `Admission.probe`: it is after a change."""
        if self.restoring and self.can_restore():
            self.restore_from(own=True)
        super().probe()

    @operation
    def restore_from(self, own: bool) -> None:
        """Restores the backend's manager from its own snapshot, or from the specification's."""

        def act(side: Side) -> Any:
            if side is self.spec:
                return None
            shot = as_json(side.manager if own else self.spec.manager)
            manager = self.restored(side, shot)
            side.put({"manager": manager, "pool": manager.page_pool, "pages": _views(manager.page_pool)})
            return shot

        line = "manager" if own else "<the specification's manager>"
        restored = self.call(
            f"manager = CacheManager.restore(json.loads(json.dumps({line}.snapshot())), requests)",
            act,
            "MAN-14",
            lambda *_: None,
            "MAN-14",
        )
        for case in self.cases.values():
            if case.found is not None:  # pages of a manager that there is no more
                self.backend.results.pop(case.found_by, None)
                case.found = None
        if own:
            again = "snapshot of the restored manager"
            self.check("MAN-14", again, restored.backend, lambda: as_json(self.backend.manager))

    @step("MAN-14", "SEC-3", when=lambda self: self.can_restore())
    def restore_mutants(self, data: Drawing) -> None:
        """Damaged snapshots are taken or refused as the specification takes or refuses them, each with one thing wrong.

        What is taken comes to the same state.
        """
        drawn = random.Random(data.draw(st.integers(0, 2**32 - 1)))
        for _ in range(_MUTANTS):
            self.restore_mutant(drawn.randrange(2**32))

    @operation
    def restore_mutant(self, seed: int) -> None:
        """One damaged snapshot is taken or refused."""
        mutant, what = damaged(as_json(self.spec.manager), random.Random(seed).randrange)
        self.call(
            f"CacheManager.restore(<snapshot, {what}>, requests)",
            functools.partial(self._of_mutant, mutant),
            "MAN-14",
            lambda restored, _: restored,
            "MAN-14",
        )

    def _of_mutant(self, mutant: Any, side: Side) -> Any:
        """What a manager of a damaged snapshot would write."""
        return as_json(self.restored(side, copy.deepcopy(mutant)))

    def restored(self, side: Side, shot: Any, requests: list[Request] | None = None) -> Any:
        """A side's manager from a snapshot, with the requests that it needs or others."""
        hashed = {name: value for name, value in self.options.items() if name == "hash_function"}
        known = list(self.known.values()) if requests is None else requests
        return side.names.get("CacheManager").restore(shot, known, **hashed)


def as_json(manager: Any) -> Any:
    """A manager's snapshot after it was written and read back."""
    return json.loads(json.dumps(manager.snapshot()))


def _views(pool: Any) -> dict[int, Any]:
    """Views of a pool's pages by id, the null page's first."""
    return {int(page.page_id): page for page in pool.pages}
