"""The amid machine: hits end amid pages, whose first tokens are copied (MAN-17)."""

from dataclasses import replace
from math import gcd
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from .draws import NO_INTS, Drawing, one_of
from .operations import operation
from .properties import start, step
from .swap import Swap
from .worlds import World, worlds

__all__ = ["Amid"]

_KINDS = ("full", "full", "window", "chunk", "mla", "full", "window", "aligned")

_OPTIONS: tuple[dict[str, Any], ...] = (
    *({}, {}, {}, {"unhashed_first": True}, {"eviction": "adaptive"}),
    {"enable_events": True, "counter_sampling": 1},
    {"num_host_pages": 40, "enable_events": True, "counter_sampling": 1},
    {"num_host_pages": 12},
)


@st.composite
def _worlds(draw: DrawFn) -> World:
    """A world with a unit that divides every page size."""
    world = draw(worlds(_KINDS, counts=(1, 1, 2, 2, 3), room=(1, 4), ample=True, eagle=True, options=_OPTIONS))
    most = gcd(*(group.page_size for group in world.groups))
    unit = draw(st.sampled_from([size for size in range(1, most + 1) if most % size == 0]))
    return replace(world, options={**world.options, "match_unit": unit})


class Amid(Swap):
    """Any groups with a unit: hits are multiples of it, and the first tokens of their last pages are copied."""

    name = "amid"
    capability = "swaps"
    examples = 36
    needs: ClassVar[tuple[str, ...]] = (*Swap.needs, "CacheManager(match_unit)")
    labels = frozenset({"MAN-7", "MAN-8", "MAN-9", "MAN-17"})
    always = Swap.always | labels

    @start(world=_worlds(), restoring=st.sampled_from([False, False, True]))
    def construct(self, world: World, restoring: bool) -> None:
        """A manager of one to three groups, with host memory or none."""
        self.begin_restoring(restoring)
        self.build_managers(world)

    @step("MAN-17", when=lambda self: self.world.groups)
    def match_badly(self, data: Drawing) -> None:
        """A unit that is no positive int, or that does not divide every page size, is refused."""
        size = max(group.page_size for group in self.world.groups)
        self.ask_to_match(one_of(data, [0, -1, size + 1, 2 * size, *NO_INTS]))

    @operation
    def ask_to_match(self, unit: Any) -> None:
        """Constructs another manager like this one, with another unit."""
        self.call(
            f"{self.made}(..., match_unit={unit!r})",
            lambda side: self.new_manager(side, match_unit=unit).match_unit,
            "MAN-17",
        )
