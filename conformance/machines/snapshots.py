"""The snapshots machine: the backend's manager is restored from snapshots, the specification's goes on as it is."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import Request

from ..calls.datum import Call, Described, Holder, Ref
from ..calls.deviation import SpecificationError
from .base import Both, Field, Nothing, Side
from .document_damage import damaged, damages
from .draws import Drawing
from .groups import MIXED, GroupSteps
from .hash import weak
from .manager_base import MANAGER_REF
from .pins import Pins
from .pool_state import TAKEN
from .properties import operation, start, step
from .worlds import World, worlds

__all__ = ["Restoring", "Snapshots"]


_MUTANTS = 32
"""Damaged snapshots that are tried in one step."""

_DAMAGED = 3
"""Snapshots with a damage of which the kind is drawn that are tried in one step."""


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
        if not self.can_restore():
            raise Nothing

        def act(side: Side) -> Any:
            if side is self.spec:
                return None
            shot = as_json(side.manager if own else self.spec.manager)
            given = {"snapshot": OwnSnapshot(shot) if own else shot, "requests": list(self.known.values())}
            manager = Call(Ref(self.made), "restore", {**given, **self.hashed()})
            for name, value in (("manager", manager), ("pool", MANAGER_REF.to(".page_pool")), ("pages", self.views())):
                self.make(side, name, value)
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
        self.restore_another(*damaged(as_json(self.spec.manager), random.Random(seed).randrange), self.known.values())

    def restore_another(self, shot: Any, what: str, requests: Iterable[Request]) -> Both:
        """Restores another manager from a snapshot of which something is said."""
        given = {"snapshot": Described(shot, f"snapshot, {what}"), "requests": Described(list(requests), "requests")}
        return self.call_manager("restore", **given, **self.hashed())

    def hashed(self) -> dict[str, Any]:
        """The hash function of the managers, which no snapshot has."""
        return {name: value for name, value in self.options.items() if name == "hash_function"}


def as_json(manager: Any) -> Any:
    """A manager's snapshot after it was written and read back."""
    return json.loads(json.dumps(manager.snapshot()))


@dataclass(frozen=True)
class OwnSnapshot:
    """The snapshot of a side's own manager, written and read back.

    Attributes:
        shot: it, where it was made before the call; else it is made for it.
    """

    shot: Any = None

    def made_on(self, holder: Holder) -> Any:
        """It, or that of now."""
        return as_json(holder.thing(MANAGER_REF)) if self.shot is None else self.shot

    def as_python(self, write: Callable[[Any], str]) -> str:
        """The call that makes it."""
        return f"{write(MANAGER_REF)}.snapshot()"

    def __str__(self) -> str:
        return "manager.snapshot()"


_PINS = {"max_pinned_pages": 12}
_OPTIONS: tuple[dict[str, Any], ...] = (
    _PINS | {"enable_events": True, "counter_sampling": 1},
    _PINS | {"enable_events": True, "counter_sampling": 1},
    {"max_pinned_pages": 4, "max_pinned_pages_per_salt": 2, "unhashed_first": True},
    _PINS | {"hash_function": weak},
    _PINS | {"eviction": "adaptive"},
)


class Snapshots(Restoring, Pins):
    """Everything that a manager can do, with pins, priorities and events, goes on after a restore as if without."""

    name = "snapshots"
    capability = "snapshots"
    examples = 30
    needs: ClassVar[tuple[str, ...]] = (
        *Pins.needs,
        *("CacheManager.snapshot", "CacheManager.restore", "CacheManager.slot_of", "CacheFollower"),
    )
    extra_keys = GroupSteps.extra_keys
    always = Pins.always | {"MAN-9", "MAN-11", "MAN-12", "MAN-14"}

    @start(
        world=worlds(MIXED, counts=(1, 2, 2, 3), room=(1, 3), ample=True, eagle=True, options=_OPTIONS),
        restoring=st.booleans(),
        waiting=st.booleans(),
    )
    def construct(self, world: World, restoring: bool, waiting: bool) -> None:
        """A manager of one to three groups, with all options, perhaps restored after every change; events may wait."""
        self.begin_restoring(restoring)
        self.waiting = waiting
        self.begin(world)

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`: slots as well; events that wait are not taken to be compared."""
        fields = [*super().state_fields(), Field.of("slots", self.cases)]
        return [shows for shows in fields if shows.name not in TAKEN] if self.waiting else fields

    @step("MAN-12", when=lambda self: self.waiting and self.options.get("enable_events"))
    def take_events(self, data: Drawing) -> None:
        """The events that waited, through whatever was restored meanwhile."""
        del data
        self.call_manager("take_events")

    # -- Snapshots --------------------------------------------------------------------------------------------

    @step("MAN-14", weight=2)
    def restore(self, data: Drawing) -> None:
        """The backend goes on from its own snapshot, or from the specification's; it gives the same one again."""
        self.restore_from(own=data.one_of([True, True, False]))

    @step("MAN-14", "SEC-3", weight=2)
    def restore_badly(self, data: Drawing) -> None:
        """A snapshot that is damaged, of another kind or version, or whose requests are missing, is refused."""
        if data.rarely():
            self.spoil(data, "snapshots")
            return
        kinds = damages(as_json(self.spec.manager))
        for _ in range(_DAMAGED):
            kind = data.one_of(sorted(kinds))
            place = data.draw(st.integers(0, len(kinds[kind]) - 1))
            without = None
            if kind == "requests" and self.known and data.one_of([True, False]):
                without = data.draw(st.integers(0, len(self.known) - 1))
            self.restore_damaged(kind, place, without)

    def good_snapshot(self) -> dict[str, Any]:
        """The arguments that restore the managers as they are."""
        if any(self.cases[name].request is not request for name, request in self.known.items()):
            raise Nothing  # an id has come to stand for another request, which is not the one that is known
        return {"snapshot": OwnSnapshot(), "requests": [Ref(name) for name in self.known]}

    @operation
    def restore_damaged(self, kind: str, place: int, without: int | None) -> None:
        """A damaged snapshot is refused.

        Args:
            kind: what the damage is about.
            place: which of the damages of that kind.
            without: which of the known requests is not handed over, instead of the damage; None for all of them.
        """
        shot, requests = as_json(self.spec.manager), list(self.known.values())
        found = damages(shot).get(kind, [])
        if place >= len(found) or (without is not None and without >= len(requests)):
            raise Nothing
        damaged, what = found[place].done(shot), found[place].what
        if without is not None:
            damaged, what = shot, "without one of the requests"
            requests.pop(without)
        if not self.restore_another(damaged, what, requests).refused:
            raise SpecificationError(f"the specification is wrong: it restores a snapshot, {what}")
