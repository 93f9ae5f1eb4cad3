"""The events machine: what a manager tells of its cache, who follows it, and what it counts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from kvproof.spec.declarations import CacheCleared, CacheEvent, PageRemoved, PageStored

from ..backends.loading import Backend
from ..calls.arrays import ATTENTION
from ..calls.datum import Holder, Ref, simpler
from ..calls.follower import FOLLOWER
from ..calls.method import Table
from .calling import Calls
from .draws import Drawing
from .groups import MIXED, GroupSteps
from .properties import start, step
from .worlds import World, worlds

__all__ = ["Events"]

_COUNTING = "CacheManager(counter_sampling)"
_TELLING = {"enable_events": True, "counter_sampling": 1}
_OPTIONS: tuple[dict[str, Any], ...] = (
    _TELLING,
    _TELLING | {"unhashed_first": True},
    _TELLING | {"counter_sampling": 3},
    _TELLING | {"enable_events": False},
)

_FAULTS = 4
"""Events that cannot come next are drawn so often in a step: there are many, and each is refused at once."""


_FOLLOWER = Ref("follower")
_SEED = b"kvproof"


@dataclass(frozen=True)
class KeysOf:
    """A side's own keys of a request's full pages.

    Attributes:
        request: the request.
        page_size: tokens in a page.
    """

    request: Ref
    page_size: int

    def made_on(self, holder: Holder) -> list[Any]:
        """The keys."""
        sha256, root = holder.names.get("sha256"), holder.names.get("init_none_hash")(_SEED)
        hashed = holder.names.get("hash_request_tokens")
        return list(hashed(sha256, self.page_size, holder.thing(self.request), none_hash=root))

    def __str__(self) -> str:
        return f"<keys of {self.request}, page size {self.page_size}>"


@dataclass(frozen=True)
class AndAllAgain:
    """Events, and behind them those that a follower tells to one that comes late: what counts follows the last clear.

    Attributes:
        before: the events before them.
    """

    before: tuple[CacheEvent, ...]

    def made_on(self, holder: Holder) -> list[CacheEvent]:
        """All of them."""
        return [*self.before, *holder.thing(_FOLLOWER).events()]

    def simpler(self) -> Iterator["AndAllAgain"]:
        """Fewer events before them."""
        yield from map(AndAllAgain, simpler(self.before))

    def as_python(self, write: Callable[[Any], str]) -> str:
        """A list of both."""
        return f"[{', '.join([*map(write, self.before), f'*{write(_FOLLOWER)}.events()'])}]"

    def __str__(self) -> str:
        return f"[*{list(self.before)!r}, *follower.events()]"


class Events(GroupSteps):
    """After every call events, a follower's cached map and counters are compared; in some examples events are off."""

    name = "events"
    capability = "events"
    examples = 30
    tables: ClassVar[tuple[Table, ...]] = (*GroupSteps.tables, FOLLOWER, ATTENTION)
    needs: ClassVar[tuple[str, ...]] = (
        *GroupSteps.needs,
        *("CacheFollower", "CacheManager.take_events", "CacheManager(enable_events)", _COUNTING),
    )
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9"})
    always = GroupSteps.always | labels | {"MAN-12", "MAN-13"}

    @classmethod
    def missing(cls, backend: Backend) -> list[str]:
        """See `Machine.missing`; a backend that lacks counters samples none."""
        lacking = super().missing(backend)
        return [name for name in lacking if not (name == _COUNTING and "counters" in backend.lacks)]

    @start(world=worlds(MIXED, counts=(1, 1, 2), room=(1, 3), ample=True, eagle=True, options=_OPTIONS))
    def construct(self, world: World) -> None:
        """A manager of one or two groups that tells what it does, or is not asked to."""
        self.build_managers(world)

    @step(when=lambda self: self.cases)
    def ask_the_follower(self, data: Drawing) -> Calls:
        """How many leading pages of a request a follower knows to be cached, in one group or in several."""
        name = data.one_of(list(self.cases))
        asked = data.one_of(range(len(self.world.groups)))
        groups = data.one_of([[asked], [asked], [0], list(range(len(self.world.groups))), []])
        keys = KeysOf(Ref(name), self.world.groups[asked].page_size)
        yield self.call_of("num_cached_pages", _FOLLOWER, page_hashes=keys, kv_cache_group_ids=groups)

    def follows_anew(self) -> bool:
        """Whether the follower tells what it knows to one that comes late."""
        return self.offers("follower", "events")

    @step(when=follows_anew)
    def tell_anew(self, data: Drawing) -> Calls:
        """A follower is told all that is cached once more, in one batch with what it should forget of it."""
        page, cleared = self.world.num_pages + 7, CacheCleared()
        new, gone = PageStored(0, page, b"2", None, (0,), None), PageRemoved(0, page, b"2")
        before: list[tuple[CacheEvent, ...]] = [(), (cleared,), (new,), (new, gone), (cleared, new)]
        yield self.call_of("apply", _FOLLOWER, events=AndAllAgain(data.one_of(before)))

    @step(when=lambda self: self.cases)
    def misuse_the_follower(self, data: Drawing) -> None:
        """Events that cannot come next, after one that can: none of them is followed. Texts of events that are none."""
        for _ in range(_FAULTS):
            self.make_call(self.spoilt(FOLLOWER["apply"], data))
        if data.one_of([True, False]):
            self.spoil(data, "events")

    def is_cached(self, page: int) -> bool:
        """Whether a page is cached now."""
        return self.spec.pages[page].page_hash is not None
