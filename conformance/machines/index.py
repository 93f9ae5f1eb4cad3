"""The index machine: who follows a cache by its events, as a router does, though some are lost, repeated or mixed."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import CacheCleared, CacheEvent, CacheSalt, LoraAdapter, PageRemoved, PageStored, Request

from ..backends.loading import Backend
from ..calls.datum import Call, New, Ref
from ..calls.follower import FOLLOWER
from ..calls.interfaces import plain_row
from ..calls.method import Method, Table
from .base import SPEC, Field, Nothing, Side
from .calling import Calling
from .draws import Drawing
from .properties import operation, start, step
from .sides import unread
from .worlds import Group

__all__ = ["Index"]

_SEED = b"kvproof"
_EXTRA_KEYS = ((), (CacheSalt("s"),), (LoraAdapter("a"),))
_NO_EVENTS: tuple[Any, ...] = (None, "event", 1, ("PageMoved", 0, 1, b"1"))
_MOST_LIVE, _MOST_PROMPTS = 2, 8


_APPLY = plain_row("apply", ("event",))
"""How a foreign index is told an event."""

_EVENTS = plain_row("events")
"""How it tells what it knows."""


class Index(Calling):
    """An index of cached prefixes beside the specification's follower, both told the events of one manager.

    A foreign index is a backend's `EventIndex`: made of a page size, it has ``apply(event)`` and ``match(tokens)``, the
    number of leading tokens whose pages group 0 has cached, those of salts and adapters left out. Of a backend that has
    none its `CacheFollower` is asked the same. Events are those of the specification's manager; nothing is asked
    from a loss until the next full list of what is cached. A side has its ``index``, or its ``follower``.
    """

    name = "index"
    capability = "events"
    levels = frozenset({"exact", "safe"})
    tables: ClassVar[tuple[Table, ...]] = (FOLLOWER,)
    records_calls = False
    examples, num_steps = 60, 40
    needs: ClassVar[tuple[str, ...]] = ()
    always = frozenset({"R1", "MAN-12"})

    @classmethod
    def missing(cls, backend: Backend) -> list[str]:
        """See `Machine.missing`: either is enough."""
        either = ["EventIndex", "CacheFollower"]
        return super().missing(backend) or ([] if any(map(backend.offers, either)) else either[:1])

    @start(page_size=st.integers(1, 3), num_pages=st.integers(4, 10), window=st.sampled_from([0, 0, 1, 3]))
    def construct(self, page_size: int, num_pages: int, window: int) -> None:
        """A manager of a group of full attention, perhaps a window beside it, and an index that knows nothing yet."""
        self.page_size, self.num_pages = page_size, num_pages
        self.groups = [Group("full", page_size)]
        if window and "groups" not in self.backend.names.lacks:
            self.groups.append(Group("window", page_size, window))
        self.begin_source()
        self.prompts: dict[tuple[int, ...], None] = {}
        self.build(f"index = {self.new_index_line()}", "MAN-12", self.new_index)
        self.watch(Field("matched tokens", "MAN-12", self.matched))

    def begin_source(self) -> None:
        """Makes the manager whose events the index follows; it has cached nothing yet."""
        declared = [group.declared(number, SPEC, SPEC) for number, group in enumerate(self.groups)]
        self.source = SPEC.get("CacheManager")(
            self.num_pages, declared, 4 * self.page_size, enable_events=True, hash_seed=_SEED
        )
        self.live: list[Request] = []
        self.known = SPEC.get("CacheFollower")()
        self.under_way: list[CacheEvent] = []
        self.is_whole = True

    def is_followed(self, side: Side) -> bool:
        """Whether a side has a follower in the place of an index."""
        return side is self.spec or not side.names.offers("EventIndex")

    def new_index(self, side: Side) -> dict[str, Any]:
        """Gives a side an index that knows nothing yet."""
        if self.is_followed(side):
            self.make(side, "follower", Call(None, "CacheFollower"))
        else:
            self.make(side, "index", New("EventIndex", (self.page_size,)))
        return {}

    def follow(self, side: Side, *events: Any) -> None:
        """A side's index is told events: one by one, where it is no follower."""
        if self.is_followed(side):
            self.perform(side, Call(Ref("follower"), "apply", {"events": list(events)}), FOLLOWER["apply"])
        else:
            for event in events:
                self.perform(side, Call(Ref("index"), "apply", {"event": event}), _APPLY)

    def new_index_line(self) -> str:
        """How a report shows that an index is made."""
        return f"EventIndex({self.page_size})"

    def matched(self, side: Side) -> dict[tuple[int, ...], int] | None:
        """How much of each prompt is cached; nothing is asked where events are missing."""
        if not self.is_whole:
            return None
        return {tokens: self.match(side, list(tokens)) for tokens in self.prompts}

    def match(self, side: Side, tokens: list[int]) -> int:
        """The number of leading tokens that are cached."""
        if not self.is_followed(side):
            return int(side.index.match(tokens))
        root = SPEC.get("init_none_hash")(_SEED)
        hashed = SPEC.get("hash_request_tokens")
        keys = list(hashed(SPEC.get("sha256"), self.page_size, Request("asks", tokens), none_hash=root))
        return self.page_size * int(side.follower.num_cached_pages(keys, [0]))

    # -- What happens to the cache ------------------------------------------------------------------------------

    @step(weight=4)
    def come(self, data: Drawing) -> None:
        """A request comes, begins as others do, takes what is cached or computes it again, and stays or goes."""
        tokens = data.draw(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=4 * self.page_size - 1))
        place = data.likely([0], range(len(_EXTRA_KEYS)))
        self.serve(tokens, place, hits=data.one_of([True, False]), stays=data.one_of([False, True]))

    @operation
    def serve(self, tokens: list[int], keys: int, hits: bool, stays: bool) -> None:
        """A request is served, and stays or goes."""
        request = Request(f"{len(self.calls)}", tokens, _EXTRA_KEYS[keys])
        pages, found = self.source.get_computed_pages(request) if hits else (None, 0)
        if self.source.allocate_slots(request, len(tokens) - found, found, pages) is None:
            raise Nothing
        if stays and len(self.live) < _MOST_LIVE:
            self.live.append(request)
        else:
            self.source.free(request)
        self.prompts[tuple(tokens)] = None
        for old in list(self.prompts)[:-_MOST_PROMPTS]:
            del self.prompts[old]
        named = "".join(f", {key!r}" for key in request.extra_keys)
        self.send(f"the cache serves {tokens}{named}")

    @step(when=lambda self: self.live or len(self.known.events()) > 1, weight=2)
    def lose_pages(self, data: Drawing) -> None:
        """A request ends, a page loses its hash though those behind it keep theirs, or all is forgotten."""
        cached = [event.page_id for event in self.known.events() if isinstance(event, PageStored)]
        if data.rarely():
            self.forget()
        elif bool(self.live) and data.one_of([True, False]):
            self.finish(data.one_of(range(len(self.live))))
        elif cached:
            self.evict(data.one_of(cached))

    @operation
    def finish(self, place: int) -> None:
        """A request ends."""
        if place >= len(self.live):
            raise Nothing
        self.source.free(self.live.pop(place))
        self.send("a request ends")

    @operation
    def evict(self, page_id: int) -> None:
        """A page loses its hash."""
        self.source.evict_pages([page_id])
        self.send(f"page {page_id} is evicted")

    @operation
    def forget(self) -> None:
        """Every prefix is forgotten."""
        while self.live:
            self.source.free(self.live.pop())
        self.source.reset_prefix_cache()
        self.send("the cache is cleared")

    def send(self, what: str) -> None:
        """What happened is on its way."""
        events = self.source.take_events()
        self.known.apply(events)
        self.under_way += events
        self.calls.append(f"# {what}: {len(events)} events")

    # -- What happens on the way --------------------------------------------------------------------------------

    @step(when=lambda self: self.under_way, weight=6)
    def arrive(self, data: Drawing) -> None:
        """Events arrive: those of different pages in any order, and some of them twice."""
        count = data.likely([len(self.under_way)], range(1, len(self.under_way) + 1))
        self.deliver(count, mixed=data.rarely(), again=data.rarely())

    @operation
    def deliver(self, count: int, mixed: bool, again: bool) -> None:
        """The next events arrive."""
        events, self.under_way = self.under_way[:count], self.under_way[count:]
        if not events:
            raise Nothing
        events = _page_by_page(events) if mixed else events
        self.tell([*events, *events] if again else events, refusing=again or not self.is_whole)

    @step(when=lambda self: self.under_way)
    def lose(self, data: Drawing) -> None:
        """Events are lost: until the next full list nobody knows what is cached."""
        self.drop(data.draw(st.integers(1, len(self.under_way))))

    @operation
    def drop(self, count: int) -> None:
        """The next events are lost."""
        if not self.under_way:
            raise Nothing
        del self.under_way[:count]
        self.is_whole = False
        self.calls.append("# the next of them are lost")

    @step(weight=2)
    def resume(self, data: Drawing) -> None:
        """The cache sends a full list of what is cached, or restarts and sends an empty one."""
        self.tell_anew(restart=data.rarely())

    @operation
    def tell_anew(self, restart: bool) -> None:
        """A full list of what is cached arrives; it begins with a clear. What is under way arrives just before it."""
        earlier = self.under_way if self.is_whole else []
        if restart:
            self.begin_source()
        self.under_way, self.is_whole = [], True
        self.tell([*earlier, *self.known.events()])

    @step(when=lambda self: self.is_whole)
    def come_late(self, data: Drawing) -> None:
        """An index that can tells what it knows to one that comes late, or knew something before."""
        self.tell_another(knowing=data.one_of([False, True]))

    @operation
    def tell_another(self, knowing: bool) -> None:
        """What an index knows is told to another one, which goes on in its place."""
        if not self.is_whole:
            raise Nothing
        before: list[CacheEvent] = [PageStored(0, 1, b"before", None, (0,) * self.page_size, None)] if knowing else []

        known = list(self.spec.follower.events())

        def act(side: Side) -> None:
            told: list[Any] = list(known)
            if hasattr(self.index_of(side), "events"):
                self.make(side, "told", Call(Ref(self.held_by(side)), "events"))
                told = [Ref("told", (place,)) for place in range(len(side.told))]
            self.new_index(side)
            for event in (*before, *told):
                self.follow(side, event)

        tells = hasattr(self.index_of(self.backend), "events")
        told = f"[*{_shown(before)}, *index.events()]" if tells else _shown([*before, *known])
        self.calls.append(f"late = {self.new_index_line()}")
        self.call(f"for event in {told}: late.apply(event)", act, "MAN-12", unread)
        self.calls.append("index = late")

    def held_by(self, side: Side) -> str:
        """The name by which a side has its index, or its follower."""
        return "follower" if self.is_followed(side) else "index"

    def index_of(self, side: Side) -> Any:
        """A side's index, or its follower."""
        return side.thing(Ref(self.held_by(side)))

    @classmethod
    def row_of_call(cls, call: Call) -> tuple[Table, Method]:
        """See `Calling.row_of_call`."""
        return FOLLOWER, _EVENTS if call.method == _EVENTS.name else FOLLOWER[call.method]

    def tell(self, events: Sequence[CacheEvent], refusing: bool = False) -> None:
        """Hands events over; where some were lost or come again an index may refuse them, one by one."""

        def act(side: Side) -> None:
            if not refusing:
                self.follow(side, *events)
                return
            for event in events:
                with suppress(Exception):
                    self.follow(side, event)

        self.call(f"for event in {_shown(events)}: index.apply(event)", act, "MAN-12", unread)

    @step()
    def misuse(self, data: Drawing) -> None:
        """An index refuses other objects than events, and events of an unknown kind."""
        self.follow_in_vain(data.one_of(range(len(_NO_EVENTS))))

    @operation
    def follow_in_vain(self, place: int) -> None:
        """An index is handed an object that is not an event."""
        self.call(f"index.apply({_NO_EVENTS[place]!r})", lambda side: self.follow(side, _NO_EVENTS[place]), "MAN-12")


def _shown(events: Sequence[CacheEvent]) -> str:
    """Events with their tokens, which they do not print of themselves: with them the calls can be made again."""
    texts = [
        f"PageStored({', '.join(f'{name}={value!r}' for name, value in zip(event._fields, event, strict=True))})"
        if isinstance(event, PageStored)
        else repr(event)
        for event in events
    ]
    return f"[{', '.join(texts)}]"


def _page_by_page(events: Sequence[CacheEvent]) -> list[CacheEvent]:
    """The same events in another order, after which the same is cached: the last page first."""
    mixed: list[CacheEvent] = []
    pages: dict[int, list[CacheEvent]] = {}
    for event in [*events, CacheCleared()]:
        if isinstance(event, PageStored | PageRemoved):
            pages.setdefault(event.page_id, []).append(event)
            continue
        mixed += [told for page in reversed(pages) for told in pages[page]]
        mixed.append(event)
        pages.clear()
    return mixed[:-1]
