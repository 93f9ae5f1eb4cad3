"""The small worlds: those of ``kvproof check --exhaustive``, and the smallest ones, which every check walks through."""

from typing import Any

from ...calls.table import TABLE, TABLES
from ..worlds import Group, World
from .managers import ManagerShape, ManagerWorld
from .pools import PoolShape, PoolWorld
from .renaming import SALTED, Text
from .tables import TableShape, TableWorld
from .world import SmallWorld

__all__ = ["SMALLEST", "WORLDS"]

_ONE: tuple[Text, ...] = ((0, 0), (0, 1), (1, 0), (1, 1))
"""Texts of two pages of one token each; their first pages can be cached by themselves."""

_ONE_AND_FIRST: tuple[Text, ...] = ((0,), (1,), *_ONE)

_TWO: tuple[Text, ...] = ((0, 0), (1, 1), (0, 1), (1, 0), (0, 0, 1, 1), (1, 1, 0, 0))
"""Texts of one and two pages of two tokens each."""

_PROMPTS: dict[int, tuple[Text, ...]] = {
    1: _ONE,
    2: ((0, 0, 0), (1, 1, 1), (0, 0, 1, 1, 0), (1, 1, 0, 0, 1)),
}
"""What requests begin with, by the page size: prompts that share a first page or two, or none."""


_SALTED: tuple[Text, ...] = tuple((*text, SALTED) for text in _ONE[::3])
"""Prompts of requests with a salt."""

_CUT = 6_800
"""States of a world that is not to be closed: so many, nearest first, are walked through in about a minute."""

_CUT_SHORT = 2_000
"""The same of a world whose states take longer."""

_MANY = 30_000
"""More states than any world has that is to be closed."""


def _world(base: type[SmallWorld], name: str, examples: int = _MANY, **attributes: Any) -> type[SmallWorld]:
    """A world of a kind, of which at most a number of states are found."""
    title = "".join(word.capitalize() for word in name.split("-"))
    made: type[SmallWorld] = type(title, (base,), {"name": name, "examples": examples, **attributes})
    return made


def _pool(
    num_pages: int, page_size: int, unhashed_first: bool = False, groups: int = 1, examples: int = _MANY
) -> type[SmallWorld]:
    texts = _ONE_AND_FIRST if page_size == 1 else _TWO
    shape = PoolShape(num_pages, page_size, texts, tuple(range(groups)), unhashed_first=unhashed_first)
    more = ("-unhashed-first" if unhashed_first else "") + (f"-groups-{groups}" if groups > 1 else "")
    name = f"small-pool-{num_pages}{more}" + (f"-size-{page_size}" if page_size > 1 else "")
    always = PoolWorld.always | ({"POOL-13"} if unhashed_first else set())
    return _world(PoolWorld, name, examples, shape=shape, always=always)


def _managers(
    name: str,
    num_pages: int,
    *groups: Group,
    length: int,
    examples: int = _CUT,
    prompts: tuple[Text, ...] = (),
    ways: tuple[str, ...] = ("hits", "all", "one", "late"),
    lookahead: bool = False,
    **options: Any,
) -> type[SmallWorld]:
    size = max(group.page_size for group in groups)
    prompts = prompts or _PROMPTS[size]
    world = World(num_pages, groups, length, options=options)
    several = any(group.kind != "full" for group in groups) or len(groups) > 1
    labels = frozenset({"MAN-7", "MAN-8"} if several else ())
    needs: tuple[str, ...] = ManagerWorld.needs
    if any(group.kind == "aligned" for group in groups):
        needs = (*needs, "CacheManager.take_page_copies")
    return _world(
        ManagerWorld,
        f"small-{name}",
        examples,
        shape=ManagerShape(world, prompts, ways, lookahead),
        capability="groups" if several else "",
        needs=needs,
        labels=labels,
        always=ManagerWorld.always | labels | ({"MAN-13"} if world.has_states else set()),
    )


def _table(
    name: str, rows: int, *entries: int, examples: int = _MANY, ids: int = 2, several: bool = False
) -> type[SmallWorld]:
    shape = TableShape(rows, entries, (1, 2)[:ids], several)
    return _world(
        TableWorld,
        f"small-{name}",
        examples,
        shape=shape,
        tables=(TABLES, TABLE) if several else TableWorld.tables,
        needs=("MultiGroupPageTable" if several else "PageTable",),
    )


_FEW = 250
"""More states than any of the smallest worlds has."""

SMALLEST: tuple[type[SmallWorld], ...] = (
    _world(PoolWorld, "small-pool", _FEW, shape=PoolShape(3, 1, _ONE_AND_FIRST)),
    _managers("full", 3, Group("full", 1), length=2, examples=_FEW, prompts=((0, 0), (1, 1)), ways=("hits",)),
    _table("table", 2, 2, ids=1, examples=_FEW),
)
"""What every check walks through: worlds of some hundred states, closed."""


def _kinds() -> list[type[SmallWorld]]:
    """Two requests in a group of each kind, of pages of one token and of two."""
    made = []
    for size, num_pages, length in ((1, 4, 3), (2, 5, 5)):
        for kind in ("full", "window", "chunk", "mla", "state", "aligned"):
            group = Group(kind, size, 2)
            cut = _CUT if size == 1 else _CUT_SHORT
            made.append(_managers(f"{kind}-{size}", num_pages, group, length=length, examples=cut))
    return made


WORLDS: tuple[type[SmallWorld], ...] = (
    _pool(5, 1, examples=8_000),
    *(_pool(num_pages, size) for num_pages in (2, 3) for size in (1, 2)),
    _pool(3, 1, groups=2),
    *_kinds(),
    _table("table-2x3", 2, 3, examples=12_000),
    _table("tables-2x2-and-2x1", 2, 2, 1, several=True),
    _managers("full-1-lookahead", 4, Group("full", 1), length=3, lookahead=True),
    _managers("full-1-unhashed-first", 4, Group("full", 1), length=3, unhashed_first=True),
    _managers("full-1-salts", 4, Group("full", 1), length=3, prompts=(*_ONE[::3], *_SALTED)),
    _managers("full-1-window-1", 6, Group("full", 1), Group("window", 1, 2), length=3, examples=_CUT_SHORT),
    _managers("full-1-full-2", 6, Group("full", 1), Group("full", 2), length=5, examples=_CUT_SHORT),
    *(_pool(4, size) for size in (1, 2)),
    _pool(4, 1, unhashed_first=True),
)
"""What ``kvproof check --exhaustive`` walks through: some 10^5 states.

Closed are the pools of 2, 3 and 4 pages (12, 144 and 1,548 states, as combinatorics has it), a state group of pages of
one token (3,109) and the tables of 2 x 2 and 2 x 1 (1,201: of 7 lists, as the second group's follow from the first's).
The others are cut; ``--exhaustive --machines small-pool-5,small-table-2x3 --examples 30000`` closes these two
(16,440, and 25,313: what of 15 lists each of two rows names on host and device, up to an exchange of the ids).
"""
