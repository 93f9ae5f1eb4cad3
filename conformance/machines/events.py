"""The events machine: what a manager tells of its cache, who follows it, and what it counts."""

from typing import Any, ClassVar

from kvproof.spec.declarations import CacheCleared, CacheEvent, PageRemoved, PageStored

from ..backends.loading import Backend
from ..calls.arrays import ATTENTION
from ..calls.method import Table
from .base import Side
from .draws import NO_LISTS, Drawing
from .groups import MIXED, GroupSteps
from .properties import operation, start, step
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


class Events(GroupSteps):
    """After every call events, a follower's cached map and counters are compared; in some examples events are off."""

    name = "events"
    capability = "events"
    examples = 30
    tables: ClassVar[tuple[Table, ...]] = (*GroupSteps.tables, ATTENTION)
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
    def ask_the_follower(self, data: Drawing) -> None:
        """How many leading pages of a request a follower knows to be cached, in one group or in several."""
        name = data.one_of(list(self.cases))
        asked = data.one_of(range(len(self.world.groups)))
        groups = data.one_of([[asked], [asked], [0], list(range(len(self.world.groups))), []])
        self.ask_for(name, asked, groups)

    @operation
    def ask_for(self, name: str, asked: int, groups: list[int]) -> None:
        """Asks the follower for a request's pages of one group's size."""
        size = self.world.groups[asked].page_size
        self.call(
            f"follower.num_cached_pages(<keys of {name}, page size {size}>, {groups})",
            lambda side: side.follower.num_cached_pages(self.keys(side, name, size), groups),
            "MAN-12",
        )

    def keys(self, side: Side, name: str, size: int) -> list[Any]:
        """A side's own keys of a request's full pages."""
        root = side.names.get("init_none_hash")(self.options["hash_seed"])
        hashed = side.names.get("hash_request_tokens")
        return list(hashed(side.names.get("sha256"), size, self.cases[name].request, none_hash=root))

    def follows_anew(self) -> bool:
        """Whether the follower tells what it knows to one that comes late."""
        return self.offers("follower", "events")

    @step(when=follows_anew)
    def tell_anew(self, data: Drawing) -> None:
        """A follower is told all that is cached once more, in one batch with what it should forget of it."""
        page, cleared = self.world.num_pages + 7, CacheCleared()
        new, gone = PageStored(0, page, b"2", None, (0,), None), PageRemoved(0, page, b"2")
        self.tell_all_again(data.one_of([[], [cleared], [new], [new, gone], [cleared, new]]))

    @operation
    def tell_all_again(self, before: list[CacheEvent]) -> None:
        """The events of a follower that comes late, behind others: all that counts is what follows the last clear."""
        self.call(
            f"follower.apply([*{before!r}, *follower.events()])",
            lambda side: side.follower.apply([*before, *side.follower.events()]),
            "MAN-12",
        )

    @step(when=lambda self: self.cases)
    def misuse_the_follower(self, data: Drawing) -> None:
        """Events that cannot come next, after one that can: none of them is followed. Texts of events that are none."""
        cached = [told[1:] for told in self.spec.told if told[0] == "PageStored" and self.is_cached(told[2])]
        group, page, digest = cached[-1][:3] if cached else (0, 1, b"1")
        new = PageStored(0, self.world.num_pages + 7, b"2", None, (0,), None)
        wrong: list[Any] = [
            PageRemoved(0, self.world.num_pages + 8, b"1"),
            PageRemoved(group, page, b"another"),
            PageRemoved(group + 1, page, digest),
            *([PageStored(group, page, b"3", None, (0,), None)] if cached else []),
            new,
        ]
        stored = PageStored(0, self.world.num_pages + 8, b"3", None, (0,), None)
        no_fields: dict[str, list[Any]] = {
            "group_id": [-1],
            "page_id": [0, True],
            "page_hash": ["3"],
            "parent_hash": [5, "3"],
            "token_ids": [[0]],
            "extra_keys": [[1]],
        }
        odd = [stored._replace(**{name: value}) for name, values in no_fields.items() for value in values]
        seldom = [*([new, event] for event in odd), [new, None], [new, "event"], *NO_LISTS]
        for _ in range(_FAULTS):
            self.follow_in_vain(data.likely([[new, event] for event in wrong], seldom))
        if data.one_of([True, False]):
            self.spoil(data, "events")

    @operation
    def follow_in_vain(self, events: Any) -> None:
        """A follower is told what cannot come next."""
        self.call(f"follower.apply({events!r})", lambda side: side.follower.apply(events), "MAN-12")

    def is_cached(self, page: int) -> bool:
        """Whether a page is cached now."""
        return self.spec.pages[page].page_hash is not None
