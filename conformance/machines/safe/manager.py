"""The manager machines of level safe: one group of full attention; groups of any kinds."""

from typing import Any, ClassVar

from ..draws import Drawing, one_of
from ..groups import MIXED
from ..hash import weak
from ..properties import start, step
from ..worlds import World, worlds
from .scenes import Scenes

__all__ = ["SafeGroups", "SafeManager"]

_OPTIONS: tuple[dict[str, Any], ...] = ({}, {}, {}, {"hash_function": weak})

_MOST_STEPS = 4


class Serving(Scenes):
    """What requests do, as engines do it: they arrive, hit, run, are preempted, come back and finish."""

    def takes_interval(self) -> bool:
        """See `ManagerMachine.takes_interval`: how much is kept is policy (RET-1)."""
        return False

    def can_keep_parts(self) -> bool:
        """See `GroupSteps.can_keep_parts`: likewise (RET-4)."""
        return False

    def copies_states(self) -> bool:
        """See `GroupSteps.copies_states`: they are taken with the pages that they are for."""
        return False

    @step()
    def empty(self, data: Drawing) -> None:
        """All requests go: every page is free again, and the next request may take them all."""
        for name in self.names_of(live=True):
            self.finish(name)
        name = self.arrived(data)
        self.admit_with(name, self.cases[name].request.num_tokens, num_lookahead_tokens=self.max_model_len)

    @step(when=lambda self: self.names_of(live=False))
    def look_around(self, data: Drawing) -> None:
        """Looks up a waiting request."""
        self.look_up(one_of(data, self.names_of(live=False)))


class SafeManager(Serving):
    """Few requests over two tokens in a small pool, so that prefixes are shared, duplicated and evicted."""

    name = "safe-manager"
    examples = 120

    @start(world=worlds(["full"], counts=(1,) * 9 + (0,), options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of no or one group, with one hash function or another, perhaps probed after every call."""
        self.build_managers(world)


class SafeGroups(Serving):
    """One to three groups of any kinds, each with a page size of its own."""

    name = "safe-groups"
    examples = 80
    capability = "groups"
    needs: ClassVar[tuple[str, ...]] = (
        *Serving.needs,
        *("CacheGroupSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec", "MLAAttentionSpec", "MambaSpec"),
    )
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9"})
    always = Serving.always | labels | {"MAN-13"}

    @start(world=worlds(MIXED, counts=(1, 2, 2, 3), room=(1, 4), ample=True, eagle=True, options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of some groups."""
        self.build_managers(world)
