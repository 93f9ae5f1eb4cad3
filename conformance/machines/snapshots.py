"""The snapshots machine: the backend's manager is restored from snapshots, the specification's goes on as it is."""

from typing import Any, ClassVar

from hypothesis import strategies as st

from ..calls.deviation import SpecificationError
from .base import Field, Nothing
from .draws import Drawing, one_of
from .groups import MIXED, GroupSteps
from .hash import weak
from .manager_fields import TAKEN
from .operations import operation
from .pins import Pins
from .properties import start, step
from .restoring import Restoring, as_json
from .snapshot_faults import damages
from .worlds import World, worlds

__all__ = ["Snapshots"]

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
        fields = [*super().state_fields(), Field.of("slots", "MAN-11", self.cases)]
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
        self.restore_from(own=one_of(data, [True, True, False]))

    @step("MAN-14", "SEC-3", weight=2)
    def restore_badly(self, data: Drawing) -> None:
        """A snapshot that is damaged, of another kind or version, or whose requests are missing, is refused."""
        kinds = damages(as_json(self.spec.manager))
        kind = one_of(data, sorted(kinds))
        place = data.draw(st.integers(0, len(kinds[kind]) - 1))
        without = None
        if kind == "requests" and self.known and one_of(data, [True, False]):
            without = data.draw(st.integers(0, len(self.known) - 1))
        self.restore_damaged(kind, place, without)

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
        tried = self.call(
            f"CacheManager.restore(<snapshot, {what}>, requests)",
            lambda side: self.restored(side, damaged, requests),
            "MAN-14",
        )
        if not tried.refused:
            raise SpecificationError(f"the specification is wrong: it restores a snapshot, {what}")
