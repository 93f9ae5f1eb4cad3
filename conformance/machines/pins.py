"""The pins machine: prefixes that are pinned or ranked, by a manager."""

from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import CacheSalt, ExtraKey

from ..calls.datum import Call, Prompt, Ref, resolve
from ..calls.values import PRIORITIES
from .base import Both, Field, Nothing
from .draws import Drawing, some
from .groups import MIXED, GroupSteps
from .manager_base import POOL_REF
from .properties import start, step
from .worlds import World, worlds

__all__ = ["PINNED", "Pins"]

PINNED: tuple[dict[str, Any], ...] = (
    {"max_pinned_pages": 4},
    {"max_pinned_pages": 12},
    {"max_pinned_pages": 12, "max_pinned_pages_per_salt": 2},
    {"max_pinned_pages": 3, "max_pinned_pages_per_salt": 1},
    {"max_pinned_pages": 12, "unhashed_first": True},
    {"max_pinned_pages": 0},
    {"max_pinned_pages": 4, "eviction": "reuse"},
    {"max_pinned_pages": 12, "eviction": "adaptive"},
)
"""Bounds of what can be pinned, and policies by which pages of one priority are taken."""

_SALTED: tuple[tuple[ExtraKey, ...], ...] = ((), (), (CacheSalt("a"),), (CacheSalt("a"),), (CacheSalt("b"),))


class Pins(GroupSteps):
    """Prefixes of requests that wait, run or are gone; few tenants, each with a bound of its own."""

    name = "pins"
    capability = "pins"
    examples = 45
    needs: ClassVar[tuple[str, ...]] = (
        *GroupSteps.needs,
        *("CacheManager.pin_prefix", "CacheManager.unpin_prefix", "CacheManager.set_prefix_priority"),
        *("CacheManager.advance_time", "CacheManager.evict_pages", "CacheManager(max_pinned_pages)"),
    )
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9"})
    always = GroupSteps.always | labels | {"MAN-13", "PIN-1", "PIN-2"}
    extra_keys = _SALTED

    @start(world=worlds(MIXED, counts=(1, 1, 2), room=(1, 3), ample=True, options=PINNED))
    def construct(self, world: World) -> None:
        """A manager of one or two groups with bounds of what may be pinned."""
        self.begin(world)

    def begin(self, world: World) -> None:
        """Builds the managers; nothing is pinned, and it is no time."""
        self.pins: dict[int, int] = {}
        self.now = 0.0
        self.build_managers(world)

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`: free pages that are not in the order of their priorities are PIN-2's."""

        def blame(expected: list[int], observed: list[int]) -> str:
            priorities = [self.spec.pool.get_priority(page) for page in observed]
            return self.blame_order(expected, observed) if priorities == sorted(priorities) else "PIN-2"

        return [
            replace(shows, blame=blame, also=(*shows.also, "PIN-2")) if shows.name == "free pages" else shows
            for shows in super().state_fields()
        ]

    def caches_any(self) -> bool:
        """Whether any page is cached."""
        return bool(self.spec.pool.cached_page_hash_to_page)

    def ranks_any(self) -> bool:
        """Whether any page has a priority."""
        return any(self.spec.pool.get_priority(page) for page in self.spec.pages)

    @step("PIN-1", when=caches_any, weight=4)
    def pin_prefix(self, data: Drawing) -> None:
        """Pins what is cached of a request, or of its first tokens; beyond the bounds it is refused.

        Where one is pinned already, it may be given up first.
        """
        give_up: bool = data.one_of([True, False])
        if self.pins and give_up:
            self.unpin(data.one_of(list(self.pins)))
        gone, every = self.names_of(live=False), list(self.cases)
        name = data.one_of(data.one_of([gone or every, every]))
        tokens = data.draw(st.integers(0, self.max_model_len)) if data.rarely() else None
        self.pin(name, tokens)

    def pin(self, name: str, tokens: int | None) -> None:
        """Pins what is cached of a request, or of its first tokens."""
        self.call_manager("pin_prefix", request=Ref(name), **({} if tokens is None else {"num_tokens": tokens}))

    def note_pin_prefix(self, _: str, call: Call, pinned: Both) -> None:
        """Notes a pin by its id, and by which call it came."""
        if pinned.spec is not None:
            self.pins[pinned.spec.pin_id] = call.number

    @step("PIN-1", when=lambda self: self.pins, weight=3)
    def unpin_prefix(self, data: Drawing) -> None:
        """What was pinned is given up: the last page first, group by group."""
        self.unpin(data.one_of(list(self.pins)))

    def unpin(self, pin: int) -> None:
        """Gives a pinned prefix up."""
        self.call_manager("unpin_prefix", pin_id=Ref(self.pins[pin], (".pin_id",)))

    def note_unpin_prefix(self, _: str, call: Call, __: Both) -> None:
        """Notes that a pin is given up."""
        self.pins.pop(resolve(call.arguments["pin_id"], self.spec), None)

    @step("PIN-2", when=caches_any, weight=3)
    def set_prefix_priority(self, data: Drawing) -> None:
        """Ranks what is cached of a request, perhaps for some time only."""
        name, priority = data.one_of(list(self.cases)), data.one_of(PRIORITIES)
        options: dict[str, Any] = {}
        if data.rarely():
            options["num_tokens"] = data.draw(st.integers(0, self.max_model_len))
        if data.one_of([True, False]):
            options["expires_at"] = self.now + data.one_of([1, 2, 0.5])
        self.rank(name, priority, **options)

    def rank(self, name: str, priority: int, **options: Any) -> None:
        """Ranks what is cached of a request."""
        self.call_manager("set_prefix_priority", request=Ref(name), priority=priority, **options)

    @step("PIN-2", when=ranks_any)
    def advance_time(self, data: Drawing) -> None:
        """Time goes on, or stands still; priorities end."""
        self.pass_time(data.one_of([1, 0.5, 0, 3]))

    def pass_time(self, seconds: float) -> None:
        """Some time passes."""
        self.call_manager("advance_time", now=self.now + seconds)

    def note_advance_time(self, _: str, call: Call, __: Both) -> None:
        """Notes how late it is."""
        self.now = call.arguments["now"]

    @step("POOL-11", "PIN-1", when=caches_any)
    def evict_pages(self, data: Drawing) -> None:
        """Drops the hashes of some pages; a pinned one refuses the call."""
        self.call_manager("evict_pages", page_ids=some(data, [*self.cached_pages(), 0], most=2, least=1))

    def withdrawn(self) -> list[int]:
        """The pages that are pinned for content that was withdrawn."""
        pool = self.spec.pool
        return [page for page, view in self.spec.pages.items() if view.page_hash is None and pool.pins_of(page)]

    def can_cache(self) -> bool:
        """Whether pages can be cached by their pool itself."""
        return self.caching and self.offers("pool", "cache_full_pages")

    @step("MAN-3", "MAN-4", "MAN-5", when=can_cache, weight=2)
    def cache_badly(self, data: Drawing) -> None:
        """The manager's pool is asked to cache pages under other content: free, cached, pinned for what was withdrawn.

        Where none is pinned so, a request may be, of which less was written than was promised.
        """
        if not self.withdrawn() and data.one_of([True, True, False]):
            name = self.some_live(data)
            self.pin(name, None)
            self.free_request(name, data.one_of([0, self.unit]) if self.free_takes_written() else None)
        free = [page for page in self.page_numbers()[1:] if not self.spec.pages[page].ref_cnt]
        pages = self.withdrawn() or data.one_of([self.cached_pages() or free, free or self.cached_pages()])
        if not pages:
            raise Nothing
        tokens = tuple(data.one_of(self.world.alphabet) for _ in range(2))
        self.call_badly(
            self.call_of(
                "cache_full_pages",
                POOL_REF,
                request=Prompt(tokens),
                pages=[Ref("pages", (data.one_of(pages),))],
                page_hashes=[],
                num_cached_pages=0,
                num_full_pages=1,
                page_size=data.one_of([1, 2]),
                kv_cache_group_id=0,
            )
        )

    @step("PIN-1", "PIN-2", when=lambda self: self.cases)
    def misuse_pins(self, data: Drawing) -> None:
        """Pins that there are not, priorities and times that make no sense."""
        self.spoil(data, "pins")
