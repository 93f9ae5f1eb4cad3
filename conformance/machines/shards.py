"""The shards machine: requests over the shards of data parallelism, each with a pool of its own (POOL-12)."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hypothesis import strategies as st

from ..calls.datum import Call, Ref
from ..calls.judging import equal
from ..calls.manager import MOST_PAGES, SHARDS, StrangePage
from .base import Field, Side
from .draws import NO_INTS, Drawing
from .groups import MIXED, GroupSteps
from .manager_base import MANAGER_REF
from .pool_state import CHECK_EVERY, event_fields, pool_fields
from .properties import operation, start, step
from .swap import SwapSteps
from .worlds import World, worlds

__all__ = ["CHECK_OF_SHARDS", "Shards", "of_every_shard"]

CHECK_OF_SHARDS = Field(
    "check() of the manager", "POOL-12", lambda side: side.manager.check(), inner=True, every=CHECK_EVERY
)
"""What a manager of shards finds by its own ``check()``."""

_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"placement": "prefix"},
    {"placement": "prefix", "unhashed_first": True},
    {"num_host_pages": 12},
    {"num_host_pages": 4, "unhashed_first": True},
)


@dataclass(frozen=True)
class SidesOfShards:
    """For each shard of a side's manager a side that has it, its pool and its pages.

    Attributes:
        count: how many shards there are.
    """

    count: int

    def made_on(self, holder: Any) -> list[Side]:
        """They have what the side itself has by other names."""
        sides = [Side(holder.names) for _ in range(self.count)]
        for number, side in enumerate(sides):
            own = {name: holder.thing(Ref(f"{name}_{number}")) for name in ("pool", "pages")}
            side.put({"manager": holder.manager.shards[number], **own})
        return sides

    def as_python(self, write: Callable[[Any], str]) -> str:
        """The shards themselves."""
        return write(MANAGER_REF.to(".shards"))


class Shards(SwapSteps):
    """A side's ``manager`` is the sharded one; ``shards`` has, for each shard, what a side of one manager has.

    A side's ``pool`` and ``pages`` are those of the shard that was turned to last.
    """

    name = "shards"
    capability = "shards"
    examples = 30
    needs: ClassVar[tuple[str, ...]] = (*GroupSteps.needs, "ShardedCacheManager")
    labels = frozenset({"MAN-7", "MAN-8", "POOL-12"})
    always = GroupSteps.always | labels | {"MAN-13", "SWAP-1"}
    made = "ShardedCacheManager"
    tables = (SHARDS, *GroupSteps.tables)

    @start(
        world=worlds(MIXED, counts=(1, 1, 2), ample=True, options=_OPTIONS),
        num_shards=st.integers(2, 3),
    )
    def construct(self, world: World, num_shards: int) -> None:
        """A manager of two or three shards."""
        self.first = (num_shards,)
        self.build_managers(world)

    # -- What a side has, and shows -------------------------------------------------------------------------

    def things(self, manager: Call) -> dict[str, Any]:
        """See `ManagerMachine.things`: the pool of each shard and the views of its pages, too."""
        (count,) = self.first
        made: dict[str, Any] = {"manager": manager}
        for number in range(count):
            made[f"pool_{number}"] = MANAGER_REF.to(".shards", number, ".page_pool")
            made[f"pages_{number}"] = replace(self.views(), pool=Ref(f"pool_{number}"))
        return made | {"shards": SidesOfShards(count), "pool": Ref("pool_0"), "pages": Ref("pages_0")}

    def state_fields(self) -> list[Field]:
        """See `ManagerMachine.state_fields`: where requests live, and every pool."""
        lacks = frozenset(filter(self.lacks, ("queue", "keys")))
        hosts = [shows for shows in super().state_fields() if shows.clause == "SWAP-1"]
        return [
            Field.of("shards of requests", self.cases),
            *hosts,
            Field.of(
                "pages of requests",
                self.cases,
                blame=self.blame_pages,
                also=("MAN-2", "MAN-8", *self.of_states),
            ),
            *map(of_every_shard, pool_fields("hash_seed" in self.options, weak=False, lacks=lacks)),
            *map(of_every_shard, event_fields(self.options)),
            Field.of("usage of the manager"),
            CHECK_OF_SHARDS,
        ]

    def free_host_pages(self) -> Field:
        """See `SwapSteps.free_host_pages`: of every shard."""
        return of_every_shard(super().free_host_pages())

    def shard_of(self, name: str) -> int:
        """See `SwapSteps.shard_of`."""
        return int(self.spec.manager.shard_of(name))

    def turn(self, data: Drawing) -> None:
        """See `Admission.turn`."""
        self.turn_to(data.draw(st.integers(0, self.first[0] - 1)))

    @operation
    def turn_to(self, number: int) -> None:
        """From now on a side's ``pool`` and ``pages`` are those of a shard."""
        for side in (self.spec, self.backend):
            for name in ("pool", "pages"):
                self.make(side, name, Ref(f"{name}_{number}"))

    def held(self, name: str) -> list[list[int]]:
        """See `ManagerMachine.held`."""
        shard = self.spec.manager.shard_of(name) or 0
        return [[page and page + shard * MOST_PAGES for page in group] for group in super().held(name)]

    def take_all_copies(self) -> None:
        """See `GroupSteps.take_all_copies`: shard by shard."""
        for shard in range(self.first[0]):
            self.call_manager("take_page_copies", shard=shard)

    def num_running(self, asked: str) -> int:
        """See `ManagerSteps.num_running`: on the same shard."""
        shard_of = self.spec.manager.shard_of
        return sum(shard_of(name) == shard_of(asked) for name in self.running())

    # -- Who is to blame --------------------------------------------------------------------------------------

    def blame_hit(self, case: Any, expected: Any, observed: Any) -> str:
        """See `ManagerMachine.blame_hit`: right pages of the wrong shard are POOL-12's."""
        found = _shards(observed[0])
        if found != _shards(expected[0]) and (found or expected[1] == observed[1]):
            return self.flaw_in_content(case, observed[0]) or "POOL-12"
        return super().blame_hit(case, expected, observed)

    def blame_allocation(self, name: str, expected: Any, observed: Any, released: tuple[str, ...]) -> str:
        """See `ManagerMachine.blame_allocation`: pages of another shard, or none where another one has some."""
        elsewhere = expected and observed and _shards(expected) != _shards(observed)
        if elsewhere or (not self.cases[name].live and (expected is None or observed is None)):
            return "POOL-12"
        return super().blame_allocation(name, expected, observed, released)

    # -- Faults -----------------------------------------------------------------------------------------------

    @step("MAN-3", "MAN-4", "MAN-8", "POOL-12", when=lambda self: self.cases)
    def misuse_shards(self, data: Drawing) -> None:
        """Hits of two shards or of another manager's, shards that there are not, what is wrong in any case."""
        name = data.one_of(list(self.cases))
        mixed = not self.cases[name].live and not self.cases[name].request.num_computed_tokens
        acts: list[Callable[[Drawing], None]] = [self.spoil] * 4
        takes = all(side.names.accepts(self.made, "placement") for side in (self.spec, self.backend))
        acts += [self.place_badly] if takes else []
        acts += [functools.partial(self.spoil, capability="swaps")] * 2 if self.swaps() else []
        acts.append(self.misbuild)
        if mixed:
            acts += [functools.partial(self.mix, name)] * 3
        data.one_of(acts)(data)

    def mix(self, name: str, data: Drawing) -> None:
        """Pages of two shards at a request's admission, or of no shard."""
        group = data.one_of(range(len(self.world.groups)))
        length = 2 * self.unit
        strange = data.one_of([False, False, True])

        null, first, second = (Ref(f"pages_{shard}", (page,)) for shard, page in ((0, 0), (0, 1), (1, 1)))
        pages: list[list[Any]] = [[null] * (length // known.page_size) for known in self.world.groups]
        pages[group][-2:] = [StrangePage() if strange else first, second]
        self.hit_with(name, pages, length)

    def misbuild(self, data: Drawing) -> None:
        """Managers of shards with each argument wrong in turn."""
        for call in self.each_spoilt(SHARDS[self.made], data):
            self.make_spoilt(call)

    def place_badly(self, data: Drawing) -> None:
        """A placement that names no shard."""
        wrong = data.one_of([2, -1, *NO_INTS])
        request = next(iter(self.cases.values())).request

        def act(side: Side) -> Any:
            manager = side.names.get("ShardedCacheManager")(2, 4, [], 8, placement=lambda _: wrong)
            return manager.get_computed_pages(request)[1]

        shown = f"lambda loads: {wrong!r}"
        self.call(f"ShardedCacheManager(2, 4, [], 8, placement={shown}).get_computed_pages(...)", act, "POOL-12")


def _shards(pages: Any) -> set[int]:
    """The shards whose pages are among some lists, null pages left out."""
    return {page // MOST_PAGES for group in pages for page in group if isinstance(page, int) and page}


def of_every_shard(shows: Field) -> Field:
    """A field that shows of all shards what another one shows of a pool."""

    def agree(expected: Any, observed: Any) -> bool:
        pairs = zip(expected, observed, strict=True)
        return all(equal(own, other, shows.agree) for own, other in pairs)

    def blame(expected: Any, observed: Any) -> str:
        pairs = zip(expected, observed, strict=True)
        wrong = [pair for pair in pairs if not equal(*pair, shows.agree)]
        return shows.blame(*wrong[0]) if wrong and shows.blame is not None else ""

    return replace(shows, read=lambda side: [shows.read(shard) for shard in side.shards], agree=agree, blame=blame)
