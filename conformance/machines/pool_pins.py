"""The pool-pins machine: pins and priorities of single pages, among all else that a pool does."""

from typing import Any

from hypothesis import strategies as st

from kvproof.spec.declarations import CacheSalt, ExtraKey

from ..properties import start, step
from ..spelling import OBJECTS
from .base import Side
from .draws import NO_INTS, NO_LISTS, Drawing, likely, one_of, some
from .pins import BAD_TIMES, PINNED, PRIORITIES
from .pool import Pool
from .pool_base import OTHER, STRANGER, names

__all__ = ["PoolPins"]

_SALTED: tuple[tuple[ExtraKey, ...], ...] = ((), (), (CacheSalt("a"),), (CacheSalt("b"),))
_COUNTS = ("ref_cnt", "not in the queue exactly while at 0", "free pages", "numbers of free pages")
_RANKED = {"priorities": "PIN-2", "free pages": "PIN-2"}


class PoolPins(Pool):
    """Pages are held, pinned, both or neither; cached for two tenants or for nobody in particular."""

    name = "pool_pins"
    capability = "pins"
    examples = 50
    needs = (
        *("PagePool", "PagePool.pin", "PagePool.unpin", "PagePool.set_priority", "PagePool.advance_time"),
        "PagePool(max_pinned_pages)",
    )
    always = Pool.always | {"PIN-1", "PIN-2"}
    extra_keys = _SALTED

    @start(num_pages=st.integers(4, 9), options=st.sampled_from((*PINNED[1:4], *PINNED)))
    def construct(self, num_pages: int, options: dict[str, Any]) -> None:
        """A fresh pool with bounds of what may be pinned."""
        self.build_pool(num_pages, True, **options)
        self.pinned: list[int] = []
        self.now = 0.0

    def count(self, page_id: int) -> int:
        """See `PoolMachine.count`: pins are nobody's to free."""
        return super().count(page_id) - self.pinned.count(page_id)

    def in_order(self) -> str:
        """See `PoolMachine.in_order`."""
        return "PIN-2" if self.ranks_any() else "POOL-3"

    def cached(self) -> list[int]:
        """The pages that are cached."""
        return [page for page in self.owned if self.hashed(page)]

    @step("PIN-1", when=cached, weight=5)
    def pin(self, data: Drawing) -> None:
        """Pins cached pages, held or free, pages repeatedly; beyond the bounds it is refused.

        Where several are pinned, some are unpinned first.
        """
        if len(self.pinned) > 2:
            self.unpin(data)
        groups = data.draw(st.lists(st.lists(st.sampled_from([*self.cached(), 0]), max_size=3), min_size=1, max_size=2))
        spelling = self.spelling(data, OBJECTS)
        pinned = self.call(
            f"pool.pin({spelling.source(groups, spelling.source)})",
            lambda side: side.pool.pin(spelling.of(spelling.of(self.pages_of(side, group)) for group in groups)),
            "PIN-1",
            charge=dict.fromkeys(_COUNTS, "PIN-1"),
        )
        if not pinned.refused:
            self.pinned += [page for group in groups for page in group if page]

    @step("PIN-1", when=lambda self: self.pinned, weight=3)
    def unpin(self, data: Drawing) -> None:
        """Unpins pages, each at most as often as it is pinned, null pages among them."""
        unpinned = some(data, [*self.pinned, 0], most=4, least=1)
        spelling = self.spelling(data, OBJECTS)
        self.call(
            f"pool.unpin({spelling.source([unpinned], spelling.source)})",
            lambda side: side.pool.unpin(spelling.of([spelling.of(self.pages_of(side, unpinned))])),
            "PIN-1",
            charge=dict.fromkeys(_COUNTS, "PIN-1") | ({"free pages": "PIN-2"} if self.ranks_any() else {}),
        )
        for page in filter(None, unpinned):
            self.pinned.remove(page)

    @step("PIN-2", when=cached, weight=4)
    def set_priority(self, data: Drawing) -> None:
        """Ranks cached pages, held or free, null pages among them, perhaps for some time only."""
        ranked = some(data, [*self.cached(), 0], most=3, least=1)
        priority = one_of(data, PRIORITIES)
        end = self.now + one_of(data, [1, 2, 0.5]) if one_of(data, [True, False]) else None
        spelling = self.spelling(data, OBJECTS)
        self.call(
            f"pool.set_priority({spelling.source(ranked)}, {priority}, expires_at={end})",
            lambda side: side.pool.set_priority(spelling.of(self.pages_of(side, ranked)), priority, end),
            "PIN-2",
            charge=_RANKED,
        )

    def ranks_any(self) -> bool:
        """Whether any page has a priority."""
        return any(self.spec.pool.get_priority(page) for page in self.owned)

    @step("PIN-2", when=ranks_any, weight=2)
    def advance_time(self, data: Drawing) -> None:
        """Time goes on, or stands still; priorities end."""
        self.now += one_of(data, [1, 0.5, 0, 3])
        self.call(
            f"pool.advance_time({self.now})", lambda side: side.pool.advance_time(self.now), "PIN-2", charge=_RANKED
        )

    @step("PIN-1", "PIN-2", when=cached, weight=2)
    def misuse_pins(self, data: Drawing) -> None:
        """Pins what is not cached or another pool's, unpins too much, ranks badly; good pages stand before it."""
        good = [page for page in self.pinned[:1] if self.hashed(page)]
        bare = [page for page in self.owned if not self.hashed(page)]
        page = one_of(data, self.cached())
        often: list[tuple[str, Any, tuple[Any, ...]]] = [
            *(("pin", [good, [*good, wrong]], ()) for wrong in [*bare[:2], OTHER]),
            ("unpin", [[page] * (self.pinned.count(page) + 1)], ()),
            ("unpin", [self.pinned, [one_of(data, self.owned)]], ()),
            *(("set_priority", [page, wrong], (1,)) for wrong in [*bare[:1], OTHER]),
            *[("free_pages", [pinned] * (self.count(pinned) + 1), ()) for pinned in self.pinned[:1]] * 4,
            ("set_priority", [page], (1, self.now)),
            ("set_priority", [page], (1, self.now - 1)),
            ("advance_time", self.now - 1, ()),
        ]
        seldom: list[tuple[str, Any, tuple[Any, ...]]] = [
            *((method, wrong, ()) for method in ("pin", "unpin") for wrong in ([[page, STRANGER]], [1], *NO_LISTS)),
            *(("set_priority", [page], (wrong,)) for wrong in (2**31, -(2**31) - 1, *NO_INTS)),
            *(("set_priority", [page], (1, wrong)) for wrong in BAD_TIMES),
            *(("set_priority", wrong, (1,)) for wrong in ([STRANGER], *NO_LISTS)),
            *(("advance_time", wrong, ()) for wrong in (None, *BAD_TIMES)),
        ]
        method, given, more = likely(data, often, seldom)
        self.call(
            f"pool.{method}({', '.join([names(given), *map(repr, more)])})",
            lambda side: getattr(side.pool, method)(self.stand_for(side, given), *more),
            "PIN-1",
        )
        wrong = one_of(data, [-1, self.spec.pool.num_pages, *NO_INTS])
        self.call(f"pool.get_priority({wrong!r})", lambda side: side.pool.get_priority(wrong), "PIN-2")

    def stand_for(self, side: Side, given: Any) -> Any:
        """The pages of a side that drawn lists, or lists of lists, stand for; what is neither as it is."""
        if not isinstance(given, list):
            return given
        return [self.stand_for(side, entry) if isinstance(entry, list) else self.page(side, entry) for entry in given]
