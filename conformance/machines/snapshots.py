"""The snapshots machine: the backend's manager is restored from snapshots, the specification's goes on as it is."""

import json
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import Request

from ..deviation import SpecificationError
from ..properties import start, step
from .base import Both, Field, Side
from .draws import Drawing, one_of
from .groups import MIXED, GroupSteps
from .hash import weak
from .manager_fields import TAKEN, event
from .operations import operation
from .pins import Pins
from .snapshot_faults import damages
from .worlds import World, worlds

__all__ = ["Snapshots"]

_PINS = {"max_pinned_pages": 12}
_OPTIONS: tuple[dict[str, Any], ...] = (
    _PINS | {"enable_events": True, "counter_sampling": 1},
    _PINS | {"enable_events": True, "counter_sampling": 1},
    {"max_pinned_pages": 4, "max_pinned_pages_per_salt": 2, "unhashed_first": True},
    _PINS | {"hash_function": weak},
)


class Snapshots(Pins):
    """Everything that a manager can do, with pins, priorities and events, goes on after a restore as if without.

    Attributes:
        known: the request that each id stands for, as the managers know it.
    """

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
        self.known: dict[str, Request] = {}
        self.restoring, self.waiting = restoring, waiting
        self.begin(world)

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`: slots as well; events that wait are not taken to be compared."""
        fields = [*super().state_fields(), Field("slots", "MAN-11", self.read_slots)]
        return [shows for shows in fields if shows.name not in TAKEN] if self.waiting else fields

    @step("MAN-12", when=lambda self: self.waiting and self.options.get("enable_events"))
    def take_events(self, data: Drawing) -> None:
        """The events that waited, through whatever was restored meanwhile."""
        del data
        self.call(
            "manager.take_events()",
            lambda side: side.manager.take_events(),
            "MAN-12",
            lambda told, _: list(map(event, told)),
        )

    # -- Which requests are known ---------------------------------------------------------------------------

    def look_up(self, name: str) -> Both:
        """See `ManagerMachine.look_up`: what is looked up is known."""
        found = super().look_up(name)
        request = self.cases[name].request
        if self.caching and request.sampling_params.prompt_logprobs is None and not found.refused:
            self.known[name] = request
        return found

    def grant(self, name: str, computed: int, found: int, new: int, lookahead: int) -> None:
        """See `ManagerMachine.grant`: what is admitted is known."""
        self.known[name] = self.cases[name].request
        super().grant(name, computed, found, new, lookahead)

    def drop_keys(self, name: str) -> None:
        """See `ManagerSteps.drop_keys`: whose keys are dropped is not known any more."""
        super().drop_keys(name)
        self.known.pop(name, None)

    # -- Snapshots --------------------------------------------------------------------------------------------

    @step("MAN-14", weight=2)
    def restore(self, data: Drawing) -> None:
        """The backend goes on from its own snapshot, or from the specification's; it gives the same one again."""
        self.restore_from(own=one_of(data, [True, True, False]))

    def probe(self) -> None:
        """See `Admission.probe`: it is after a change."""
        if self.restoring:
            self.restore_from(own=True)
        super().probe()

    @operation
    def restore_from(self, own: bool) -> None:
        """Restores the backend's manager from its own snapshot, or from the specification's."""

        def act(side: Side) -> Any:
            if side is self.spec:
                return None
            shot = _json(side.manager if own else self.spec.manager)
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
            case.found = None  # pages of a manager that there is no more
        if own:
            again = "snapshot of the restored manager"
            self.check("MAN-14", again, restored.backend, lambda: _json(self.backend.manager))

    def restored(self, side: Side, shot: Any, requests: list[Request] | None = None) -> Any:
        """A side's manager from a snapshot, with the requests that it needs or others."""
        hashed = {name: value for name, value in self.options.items() if name == "hash_function"}
        known = list(self.known.values()) if requests is None else requests
        return side.names.get("CacheManager").restore(shot, known, **hashed)

    @step("MAN-14", "SEC-3", weight=2)
    def restore_badly(self, data: Drawing) -> None:
        """A snapshot that is damaged, of another kind or version, or whose requests are missing, is refused."""
        shot = _json(self.spec.manager)
        kinds = damages(shot)
        kind = one_of(data, sorted(kinds))
        damage = one_of(data, kinds[kind])
        damaged, what = damage.done(shot), damage.what
        requests = list(self.known.values())
        if kind == "requests" and requests and one_of(data, [True, False]):
            damaged, what = shot, "without one of the requests"
            requests.pop(data.draw(st.integers(0, len(requests) - 1)))
        tried = self.call(
            f"CacheManager.restore(<snapshot, {what}>, requests)",
            lambda side: self.restored(side, damaged, requests),
            "MAN-14",
        )
        if not tried.refused:
            raise SpecificationError(f"the specification is wrong: it restores a snapshot, {what}")


def _json(manager: Any) -> Any:
    """A manager's snapshot after it was written and read back."""
    return json.loads(json.dumps(manager.snapshot()))


def _views(pool: Any) -> dict[int, Any]:
    """Views of a pool's pages by id, the null page's first."""
    return {int(page.page_id): page for page in pool.pages}
