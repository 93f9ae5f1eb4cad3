"""The walk through a small world: every state, nearest first, and every way out of it, on specification and backend.

A backend need not be copyable, so a state is reached by making its shortest sequence of calls again on new objects;
these calls were compared when the state was found. Each move is made on objects of its own, and compared: its result,
and the whole observable state behind it. Where it leads to a new state, the looks of that state are taken on the same
objects, one after another; the state behind them is compared once, since they change nothing. What deviates in this is
taken again by itself, behind the shortest sequence, so that the calls reported are the fewest that show it.

States are found in the order of the calls that lead to them. So a walk that is cut after ``n`` calls has seen every
state that fewer calls lead to.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

from ..deviation import Deviation, is_call
from ..session import EnoughError, Session
from .ways import GLANCING, PASSING_OVER, UndecidedError, UnlikeError, Way

if TYPE_CHECKING:
    from .world import SmallWorld

__all__ = ["Walk", "Walked", "digest"]

_ENOUGH = 50
"""A kind of look that deviated so often is left out from then on: what else there is to see is sooner seen."""


_BEGIN = Way("begin")
"""The way into the first state: the objects are built."""


@dataclass(slots=True)
class _Node:
    """A state that was found.

    Attributes:
        parent: the state before it; None for the first.
        way: what leads from there to it.
        lines: the calls that the way makes.
        distance: calls from the beginning to it.
        left: whether its own ways were taken.
    """

    parent: "_Node | None"
    way: Way
    lines: tuple[str, ...]
    distance: int
    left: bool = False


@dataclass
class Walked:
    """How far a walk came.

    Attributes:
        states: states found.
        transitions: moves and looks made, each from a state of its own.
        closed: whether every way out of every state was taken.
        distance: every state within so many calls was found.
        behind: ways that deviated; what lies behind them was not walked.
        undecided: ways that deviated by a clause that is not looked at, likewise.
    """

    states: int = 0
    transitions: int = 0
    closed: bool = False
    distance: int = 0
    behind: int = 0
    undecided: int = 0

    @property
    def note(self) -> str:
        """The same in a line."""
        count = f"{self.states:,} states, {self.transitions:,} transitions"
        if self.closed:
            line = f"closed: {count}, {self.distance} calls deep"
        else:
            line = f"cut after {count}: all within {self.distance} calls, some beyond"
        unwalked = self.behind + self.undecided
        return f"{line}; not walked behind {unwalked:,} that deviate" if unwalked else line


class Walk:
    """A walk through one world.

    Args:
        world: the world, not bound to a session.
        session: what was found is kept here; its states count as examples and its transitions as steps.
        most_states: no state is left any more when so many were found.
    """

    def __init__(
        self,
        world: "type[SmallWorld]",
        session: Session,
        most_states: int,
    ) -> None:
        trial = Session(session.backend, session.clauses, float("inf"), known=session.known, watch=session.watch)
        self._trying: type[SmallWorld] = type(world.__name__, (world,), {"session": trial})
        self._telling: type[SmallWorld] = type(world.__name__, (world,), {"session": session})
        self._session, self._trial = session, trial
        self._most_states = most_states
        self._found: dict[bytes, _Node] = {}
        self._waiting: defaultdict[int, list[_Node]] = defaultdict(list)
        self._spoiled: Counter[str] = Counter()
        self.walked = Walked()

    def run(self) -> Walked:
        """Walks until all is seen, or enough."""
        try:
            self._begin()
            while self._waiting and not self._is_over():
                self.walked.distance = min(self._waiting)
                nodes = self._waiting.pop(self.walked.distance)
                for place, node in enumerate(nodes):
                    if self._is_over():
                        self._waiting[self.walked.distance] = nodes[place:]
                        break
                    if not node.left and node.distance == self.walked.distance:
                        self._leave(node)
            self.walked.closed = not self._waiting
        except EnoughError:  # a call did not return, or the session's time for shorter counterexamples is over
            for found in self._trial.deviations.values():
                self._session.record(found)
        self._session.lacks |= self._trial.lacks
        self._session.undeclared |= self._trial.undeclared
        self._session.note = self.walked.note
        return self.walked

    def distances(self) -> dict[bytes, int]:
        """The states found, by the digests of their keys: the fewest calls that lead to each, as far as is known."""
        return {key: node.distance for key, node in self._found.items()}

    def _is_over(self) -> bool:
        return self.walked.states >= self._most_states

    # -- States -------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Builds the first objects, compared."""
        first = self._telling()
        try:
            first.take(_BEGIN)
        except UndecidedError:
            self.walked.undecided += 1
            return
        except Deviation:
            self.walked.behind += 1
            return
        node = _Node(None, _BEGIN, tuple(first.calls), 1)
        self._enter(first.key(), node)
        self._look(self._at(node), node)

    def _enter(self, key: Hashable, node: _Node) -> None:
        self._found[digest(key)] = node
        self._waiting[node.distance].append(node)
        self.walked.states += 1
        self._session.examples += 1

    def _at(self, node: _Node, bound: "type[SmallWorld] | None" = None) -> "SmallWorld":
        """New objects in a state."""
        world = (self._trying if bound is None else bound)()
        way = list(_path(node))
        for before in way:
            world.take(before.way, PASSING_OVER)
        world.calls[:] = [line for before in way for line in before.lines]
        return world

    def _leave(self, node: _Node) -> None:
        """Takes every move out of a state."""
        node.left = True
        try:
            world = self._at(node)
            for place, way in enumerate(world.moves()):
                self._move(world if place == 0 else self._at(node), node, way)
        except UnlikeError:  # what was compared on the way here came out otherwise when it was repeated
            self._again(node)

    def _move(self, world: "SmallWorld", node: _Node, way: Way) -> None:
        known = len(world.calls)
        try:
            world.take(way)
        except (UndecidedError, UnlikeError, Deviation) as found:
            self._unlike(node, [way], found)
            return
        self._count(world)
        key = world.key()
        lines = tuple(world.calls[known:])
        distance = node.distance + sum(map(is_call, lines))
        at = self._found.get(digest(key))
        if at is None:
            at = _Node(node, way, lines, distance)
            self._enter(key, at)
            self._look(world, at)
        elif distance < at.distance and not at.left:
            at.parent, at.way, at.lines, at.distance = node, way, lines, distance
            self._waiting[distance].append(at)

    def _look(self, world: "SmallWorld", node: _Node) -> None:
        """Takes the looks of a state, on objects that are in it; behind one that deviates on new objects."""
        taken: list[Way] = []
        for look in world.looks():
            if self._spoiled[look.name] >= _ENOUGH:
                continue
            taken.append(look)
            try:
                world.take(look, GLANCING)
                self._count(world)
            except (UndecidedError, UnlikeError, Deviation) as found:
                self._spoiled[look.name] += 1
                self._unlike(node, taken, found)
                world, taken = self._at(node), []
        try:
            world.face()
            self._session.tried.update(world.seen)
        except (UndecidedError, Deviation) as found:
            alone = [look for look in taken if self._try(node, [look])]
            if not alone:
                self._unlike(node, taken, found)

    def _count(self, world: "SmallWorld") -> None:
        self.walked.transitions += 1
        self._session.steps += 1
        self._session.tried.update(world.seen)

    # -- Deviations ---------------------------------------------------------------------------------------

    def _unlike(self, node: _Node, ways: Sequence[Way], found: Exception) -> None:
        """Takes ways that deviated once more, with full care, behind a state's shortest calls.

        Args:
            node: the state.
            ways: the ways; the last one deviated.
            found: how it did.
        """
        if isinstance(found, Deviation):
            known = self._session.deviations.get(found.clause)
            if known is not None and known.size <= found.size:
                self.walked.behind += 1
                return
        if self._try(node, ways[-1:]) or (len(ways) > 1 and self._try(node, ways)):
            self.walked.behind += 1
        elif isinstance(found, Deviation):
            self.walked.behind += 1
            self._session.record(found)
        else:
            self.walked.undecided += 1

    def _try(self, node: _Node, ways: Sequence[Way]) -> bool:
        """Takes ways on new objects in a state. Returns whether they deviate by a clause that is looked at."""
        try:
            world = self._at(node, self._telling)
            world.face()
            for way in ways:
                world.take(way)
        except UnlikeError:
            return self._again(node)
        except UndecidedError:
            return False
        except Deviation:  # the session has it
            return True
        return False

    def _again(self, node: _Node) -> bool:
        """Makes the calls that lead to a state once more, with full care. Returns whether that shows a deviation."""
        try:
            world = self._telling()
            for before in _path(node):
                world.take(before.way)
        except UndecidedError:
            return False
        except Deviation:  # the session has it
            return True
        return False


def _path(node: _Node) -> Iterator[_Node]:
    """The states from the first to one."""
    nodes = []
    at: _Node | None = node
    while at is not None:
        nodes.append(at)
        at = at.parent
    return reversed(nodes)


def digest(key: Hashable) -> bytes:
    """A key in 16 bytes: a collision among a billion states is less likely than 1 in 10^20."""
    return blake2b(repr(key).encode(), digest_size=16).digest()
