"""What a compiled TPU kernel's instruction schedule costs, counted from the compiler's dump.

The compiler writes the schedule of a kernel as a list of bundles; the core issues one a cycle. A schedule is read here
as nested loops and conditional regions, from its branches, and costed for a steady state: bundles of a loop times its
trip count, which the caller knows. What is left out are stalls: waits for copies, and bank conflicts of VMEM.

- A loop is a branch backwards. Some bundles after a branch are issued before it takes effect: they belong to the loop.
- A region is what a forward branch may skip. It is counted as if it were never skipped (or always, if asked for, when
  it neither multiplies nor starts copies: what the first and the last block of a sequence need). Of several regions
  side by side that hold matrix products (a full and a short block; with and without a mask) a turn takes one: variants.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

__all__ = [
    "Bundle",
    "Cost",
    "Loop",
    "Region",
    "Schedule",
    "Trips",
    "fullest",
    "kernel_files",
    "read_schedule",
    "read_use",
]

_DELAY = 4
"""Bundles after a branch that are issued before it takes effect, where the dump doesn't show which they are."""

_MOST_DELAY = 10
"""As many are looked through for where a branch's delay ends; on 7x there were up to 6."""

_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(?P<mark>[A-Z]{2})?\s*:\s*(?:>\s*)*\{")
_BRANCH = re.compile(r"sbr\.rel (?:\((?P<predicate>[^)]*)\) )?target = \$region(?P<region>\d+)")
_START = re.compile(r"Start(?:/End empty)? region (\d+)")
_MATRIX = re.compile(r"= vmat(?:mul|push)")
_COPY = re.compile(r"= dma\.(?!done)")
_WAIT = re.compile(r"= dma\.done")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class Bundle:
    """What one bundle does, as far as it counts here.

    Attributes:
        matrix: instructions for the matrix unit.
        copies: copies that are started.
        waits: waits for copies.
        use: how many slots of each unit it takes.
    """

    matrix: int
    copies: int
    waits: int
    use: tuple[int, ...] = ()


@dataclass(frozen=True)
class Region:
    """Bundles that a branch may skip: ``begin`` to ``end``, exclusive, counted from 0."""

    begin: int
    end: int


@dataclass(frozen=True)
class Loop:
    """A loop's bundles, ``begin`` to ``end``, exclusive; the branch back and its delay are among them."""

    begin: int
    end: int


@dataclass
class Cost:
    """Bundles of a part, with the trips of the loops in it.

    Attributes:
        bundles: bundles issued.
        use: slots taken of each unit.
        loops: each loop within, with the trips that it was counted with.
        left_out: bundles of each variant that was not counted.
        matrix: matrix instructions.
        copies: copies started.
    """

    bundles: int = 0
    use: Counter[int] = field(default_factory=Counter)
    loops: list[tuple[Loop, int]] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    matrix: int = 0
    copies: int = 0

    def add(self, other: "Cost", times: int = 1) -> None:
        """Adds a part that runs so many times."""
        self.bundles += times * other.bundles
        self.matrix += times * other.matrix
        self.copies += times * other.copies
        for unit, slots in other.use.items():
            self.use[unit] += times * slots
        self.loops += other.loops
        self.left_out += other.left_out


@dataclass(frozen=True)
class Branch:
    """A branch: where it goes, and the first bundle that is issued only if it is not taken, both counted from 0."""

    to: int
    after: int


Trips = Callable[["Schedule", Loop], int]
"""How often a loop turns, each time that it is come to."""

Choose = Callable[[list[Cost]], Cost]
"""Which of several variants a turn takes."""


def fullest(variants: list[Cost]) -> Cost:
    """The variant with the most matrix instructions; of equals the one with the fewest bundles: without masks."""
    return min(variants, key=lambda cost: (-cost.matrix, cost.bundles))


class Schedule:
    """The schedule of one kernel.

    Attributes:
        bundles: in order of their addresses.
        regions: what each forward branch may skip: from the bundle of the branch.
        loops: outer ones before those within.
    """

    def __init__(self, bundles: Sequence[Bundle], branches: dict[int, Branch]) -> None:
        """Takes the bundles, and the branches by the bundle in which they stand."""
        self.bundles = list(bundles)
        self.regions = {
            at: Region(branch.after, branch.to) for at, branch in branches.items() if branch.to >= branch.after
        }
        loops = [Loop(branch.to, branch.after) for at, branch in branches.items() if branch.to <= at]
        self.loops = sorted(loops, key=lambda loop: (loop.begin, -loop.end))

    @cached_property
    def block_loop(self) -> Loop:
        """The innermost loop that waits for copies and multiplies matrices: a turn of it works on blocks of keys."""

        def inside(loop: Loop) -> list[Loop]:
            return [
                other for other in self.loops if loop.begin <= other.begin and other.end <= loop.end and other != loop
            ]

        def whole(loop: Loop) -> bool:
            bundles = self.bundles[loop.begin : loop.end]
            return any(bundle.matrix for bundle in bundles) and any(bundle.waits for bundle in bundles)

        found = [loop for loop in self.loops if whole(loop) and not any(map(whole, inside(loop)))]
        if len(found) != 1:
            raise ValueError(f"{len(found)} loops wait for copies and multiply matrices: {found}")
        return found[0]

    def holds(self, part: Loop | Region, what: str) -> bool:
        """Whether a part has bundles with ``what``: "matrix", "copies" or "waits"."""
        return any(getattr(bundle, what) for bundle in self.bundles[part.begin : part.end])

    def cost(self, part: Loop | Region, trips: Trips, choose: Choose = fullest, least: bool = False) -> Cost:
        """What one turn of a loop, or one pass through a region, costs.

        Args:
            part: a loop or a region of this schedule.
            trips: how often the loops within it turn.
            choose: which of several variants is counted.
            least: regions that neither multiply nor start copies count as skipped.
        """
        total = Cost()
        variants: list[Cost] = []
        at, inner = part.begin, {loop.begin: loop for loop in self._directly_in(part)}
        while at < part.end:
            if at in inner:
                loop = inner[at]
                turns = trips(self, loop)
                total.add(self.cost(loop, trips, choose, least), turns)
                total.loops.append((loop, turns))
                at = loop.end
                continue
            total.add(self._one(at))
            region = self.regions.get(at)
            at += 1
            if region is None or region.end > part.end:
                continue  # what leaves the part is the way out of a loop: not taken in a steady state
            for delayed in range(at, region.begin):
                total.add(self._one(delayed))
            inside = self.cost(region, trips, choose, least)
            if inside.matrix:
                variants.append(inside)
            elif inside.copies or not least:
                total.add(inside)
            at = region.end
        if variants:
            chosen = choose(variants)
            total.add(chosen)
            total.left_out += [cost.bundles for cost in variants if cost is not chosen]
        return total

    def _directly_in(self, part: Loop | Region) -> Iterator[Loop]:
        """The loops of a part that are not within another one of its loops."""
        end = part.begin
        for loop in self.loops:
            if loop != part and loop.begin >= end and loop.end <= part.end:
                yield loop
                end = loop.end

    def _one(self, at: int) -> Cost:
        bundle = self.bundles[at]
        return Cost(1, Counter(dict(enumerate(bundle.use))), matrix=bundle.matrix, copies=bundle.copies)


def read_use(text: str) -> tuple[list[str], list[int], list[tuple[int, ...]]]:
    """Reads the compiler's table of units (``*-final_hlo-static-per-bundle-utilization.txt``).

    Returns:
        The units' names, the slots of each in a bundle, and how many each bundle takes.
    """
    lines = text.splitlines()
    names = [name.strip() for name in lines[1].split(",")]
    slots = [int(number) for number in lines[2].split()]
    use = [tuple(int(number) for number in line.split()) for line in lines[4:] if line.strip()]
    return names, slots, use


def read_schedule(text: str, use: Sequence[tuple[int, ...]] = ()) -> Schedule:
    """Reads a schedule (``*-final_bundles.txt``).

    Args:
        text: the file's text.
        use: what each bundle takes of the units, of `read_use`; empty: unknown.

    Raises:
        ValueError: the text is none of a schedule, or ``use`` is of another one.
    """
    # A bundle's text may go on over several lines, comments included.
    texts: list[list[str]] = []
    marks: list[str | None] = []
    for line in text.splitlines():
        bundle = _BUNDLE.match(line)
        if bundle:
            texts.append([])
            marks.append(bundle["mark"])
        if texts:
            texts[-1].append(line)
    if not texts:
        raise ValueError("the text holds no bundles")
    if use and len(use) != len(texts):
        raise ValueError(f"there are {len(texts)} bundles, and the use of {len(use)}")
    bundles: list[Bundle] = []
    starts: dict[int, int] = {}
    jumps: dict[int, int] = {}
    for at, lines in enumerate(texts):
        whole = "\n".join(lines)
        does = _COMMENT.sub("", whole)
        matrix, copies, waits = (len(pattern.findall(does)) for pattern in (_MATRIX, _COPY, _WAIT))
        bundles.append(Bundle(matrix, copies, waits, use[at] if use else ()))
        starts |= {int(region): at for region in _START.findall(whole)}  # where regions begin stands in comments
        branch = _BRANCH.search(does)
        if branch:
            jumps[at] = int(branch["region"])
    begins = set(starts.values())

    def after(at: int, to: int) -> int:
        """A loop's exit is marked; a region that may be skipped begins where its name stands, or with a branch.

        No branch is issued in the delay of another: one that comes before any name is in the region, whose name the
        compiler left out. Regions that begin within each other's delay would else be counted one after the other.
        """
        for bundle in range(at + 1, min(at + 1 + _MOST_DELAY, len(texts))):
            if marks[bundle] == "PF" if to <= at else bundle in begins:
                return bundle
            if to > at and bundle in jumps:
                return min(bundle, at + 1 + _DELAY)
        return at + 1 + _DELAY

    # A region without a name is the program's end: where a second core goes, or a call with nothing to do.
    ends = {at: starts.get(to, len(texts)) for at, to in jumps.items()}
    return Schedule(bundles, {at: Branch(to, after(at, to)) for at, to in ends.items()})


def kernel_files(folder: Path, kernel: str) -> tuple[Path, Path]:
    """The schedule of a kernel in a folder of dumps, and its table of units.

    Args:
        folder: where the compiler wrote to.
        kernel: the kernel's name, the ``name`` of its `pallas_call`.

    Raises:
        ValueError: the folder has none of it, or several.
    """
    bundles = [path for path in folder.glob(f"*-{kernel}.*-final_bundles.txt") if "schedule-analysis" not in path.name]
    use = list(folder.glob(f"*-{kernel}.*-final_hlo-static-per-bundle-utilization.txt"))
    if len(bundles) != 1 or len(use) != 1:
        raise ValueError(f"{len(bundles)} schedules and {len(use)} tables of units for {kernel} in the dumps")
    return bundles[0], use[0]
