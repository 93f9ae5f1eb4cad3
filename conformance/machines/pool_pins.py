"""The pool-pins machine: pins and priorities of single pages, among all else that a pool does."""

from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import CacheSalt, ExtraKey

from ..calls.datum import Call
from ..calls.pool import POOL
from .base import Both
from .calling import Calls
from .draws import Drawing
from .pins import PINNED
from .pool import Pool
from .properties import start, step

__all__ = ["PoolPins"]


class PoolPins(Pool):
    """Pages are held, pinned, both or neither; cached for two tenants or for nobody in particular."""

    name = "pool_pins"
    capability = "pins"
    examples = 50
    needs: ClassVar[tuple[str, ...]] = (
        *("PagePool", "PagePool.pin", "PagePool.unpin", "PagePool.set_priority", "PagePool.advance_time"),
        "PagePool(max_pinned_pages)",
    )
    always = Pool.always | {"PIN-1", "PIN-2"}
    extra_keys: ClassVar[tuple[tuple[ExtraKey, ...], ...]] = ((), (), (CacheSalt("a"),), (CacheSalt("b"),))

    @start(num_pages=st.integers(4, 9), options=st.sampled_from((*PINNED[1:4], *PINNED)))
    def construct(self, num_pages: int, options: dict[str, Any]) -> None:
        """A fresh pool with bounds of what may be pinned."""
        self.build_pool(num_pages, True, **options)
        self.now = 0.0

    def count(self, page_id: int) -> int:
        """See `PoolMachine.count`: nobody frees what is held by a pin."""
        return super().count(page_id) - int(self.spec.pool.pins_of(page_id))

    def in_order(self) -> str:
        """See `PoolMachine.in_order`."""
        return "PIN-2" if self.ranks_any() else super().in_order()

    @property
    def pinned(self) -> list[int]:
        """The pinned pages, each as often as it is pinned."""
        return [page for page in self.owned for _ in range(self.spec.pool.pins_of(page))]

    def learn(self, call: Call, both: Both) -> None:
        """See `Calling.learn`: how late it is."""
        super().learn(call, both)
        if call.method == "advance_time":
            self.now = call.arguments["now"]

    def ranks_any(self) -> bool:
        """Whether any page has a priority."""
        return any(self.spec.pool.get_priority(page) for page in self.owned)

    @step("PIN-1", when=lambda self: self.cached(), weight=5)
    def pin_within_bounds(self, source: Drawing) -> Calls:
        """Pins cached pages; where several are pinned, some are unpinned first."""
        if len(self.pinned) > 2:
            yield self.drawn(POOL["unpin"], source)
        if self.cached():
            yield self.drawn(POOL["pin"], source)

    @step("PIN-1", when=lambda self: self.pinned)
    def free_what_is_pinned(self, source: Drawing) -> Calls:
        """Frees a pinned page more often than it is held: `free_pages` does not remove a pin."""
        page = source.one_of(self.pinned)
        mentions = [self.ref(page)] * (self.count(page) + 1)
        yield self.call_of("free_pages", self.target_of(POOL, source), ordered_pages=mentions)
