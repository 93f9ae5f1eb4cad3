"""The walk through a small world: every state, nearest first, and every way out of it, on specification and backend.

A backend need not be copyable, so a state is reached by making calls. They are made once: what a move leads to is
gone on from, on the same objects, by a move of that state which was not made yet, or over a move or two that were, to
the nearest state that has some left. Only where there is none, a state's shortest sequence of calls is made again on
new objects; these calls were compared when the state was found. Objects that came to a state by other calls have other
names in it. So a state's moves are known by their places in the list, which no name changes (`SmallWorld.moves`).

Each move is compared: its result, and the whole observable state behind it. Where it leads to a new state, the looks of
that state are taken on the same objects, one after another; the state behind them is compared once, since they change
nothing. What deviates in this is taken again by itself, behind the shortest sequence, so that the calls reported are
the fewest that show it; what the shortest sequence does not show is reported with all calls that were made.

States are left in the order of the calls that lead to them; moves are made before their turn only in states which are
one call further away, and those are known to be no nearer. So a walk that is cut after ``n`` calls has seen every state
that fewer calls lead to.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from ...calls.datum import Call
from ...calls.deviation import Deviation, SpecificationError, is_call
from ..session import EnoughError, Session

__all__ = [
    "COMPARING",
    "GLANCING",
    "PASSING_OVER",
    "Move",
    "Node",
    "UndecidedError",
    "UnlikeError",
    "Walk",
    "Walked",
    "Way",
    "digest",
]

if TYPE_CHECKING:
    from .world import SmallWorld

    _Ways = Callable[[SmallWorld], Sequence["Move"]]

PASSING_OVER, GLANCING, COMPARING = "passing over", "glancing", "comparing"
"""With how much care a way is taken; see `SmallWorld.take`."""


class Way(NamedTuple):
    """A call, or a few that belong together: the world's step that makes them, and its arguments.

    Attributes:
        name: the step's name.
        arguments: what it is given; ids are those of the objects at hand.
    """

    name: str
    arguments: tuple[Any, ...] = ()


Move = Way | Call
"""What leads from one state to another: a call, or the step of a world that makes some."""


class UndecidedError(Exception):
    """What a way leads to is unlike on both sides, by a clause that is not looked at."""


class UnlikeError(Exception):
    """A call that was not compared with full care came out unlike on both sides."""


@dataclass(slots=True, eq=False)
class Node:
    """A state that was found.

    Attributes:
        parent: the state before it; None for the first.
        place: which of the parent's moves leads to it.
        distance: calls from the beginning to it.
        lines: lines of a report that show them.
        way: that move, as it is named on the objects that the shortest sequence makes; None before it is needed.
        behind: the parent's way when that name was noted: behind another one the objects have other names.
        names: the names of its moves; None until they were listed.
        leads: what those of its moves that were made, from the first on, lead to; None: they deviate.
        given_up: whether its shortest sequence came out otherwise on new objects, so that no more moves are made there.
    """

    parent: "Node | None"
    place: int
    distance: int
    lines: int
    way: Move | None = None
    behind: Move | None = None
    names: tuple[str, ...] | None = None
    leads: "list[Node | None]" = field(default_factory=list)
    given_up: bool = False

    @property
    def left(self) -> bool:
        """Whether all of its moves were made, or as many as can be."""
        return self.given_up or (self.names is not None and len(self.leads) == len(self.names))

    def list_moves(self, moves: Sequence[Move]) -> None:
        """Notes which moves there are, as some objects name them.

        Raises:
            SpecificationError: they are others than on other objects: the world's fault, which takes unlike states for
                one, or lists their moves by names.
        """
        names = tuple(way.name for way in moves)
        if self.names is None:
            self.names = names
        elif names != self.names:
            raise SpecificationError(f"one state has the moves {self.names} and {names}")

    def path(self) -> "Iterator[Node]":
        """The states from the first to this one."""
        nodes = []
        at: Node | None = self
        while at is not None:
            nodes.append(at)
            at = at.parent
        return reversed(nodes)

    def next_move(self, furthest: int, most_steps: int) -> int | None:
        """The place of the move that is made next in this state.

        Args:
            furthest: the number of calls beyond which a state makes no move that was not made before.
            most_steps: how many moves that were made before may be made again.

        Returns:
            The place of one that was not made, or of the first on the way to one; None if there is none so near.
            Proportional to the moves within ``most_steps``.
        """
        if not self.left and self.distance <= furthest:
            return len(self.leads)
        seen, last = {self}, [(to, place) for place, to in enumerate(self.leads) if to is not None]
        for _ in range(most_steps):
            further = []
            for at, first in last:
                if at not in seen:
                    if not at.left and at.distance <= furthest:
                        return first
                    seen.add(at)
                    further += [(to, first) for to in at.leads if to is not None]
            last = further
        return None


def digest(key: Hashable) -> bytes:
    """A key in 16 bytes: a collision among a billion states is less likely than 1 in 10^20."""
    return blake2b(repr(key).encode(), digest_size=16).digest()


_ENOUGH = 50
"""A kind of look that deviated so often is left out from then on: what else there is to see is sooner seen."""


_BEGIN = Way("begin")
"""The way into the first state: the objects are built."""

_MOST_STEPS = 2
"""So many moves that were made before are made again to come to a state that has some left; more cost what new objects
do."""


@dataclass
class Walked:
    """How far a walk came.

    Attributes:
        states: states found.
        transitions: moves and looks made, each from a state of its own.
        closed: whether every way out of every state was taken.
        distance: the number of calls within which every state was found.
        behind: ways that deviated; what lies behind them was not walked.
        undecided: ways that deviated by a clause that is not looked at.
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
        most_states: the number of states after which none is left any more.
    """

    def __init__(
        self,
        world: "type[SmallWorld]",
        session: Session,
        most_states: int,
    ) -> None:
        trial = Session(session.backend, session.clauses, known=session.known, watch=session.watch, repeats=True)
        self._trying: type[SmallWorld] = type(world.__name__, (world,), {"session": trial})
        self._telling: type[SmallWorld] = type(world.__name__, (world,), {"session": session})
        self._session, self._trial = session, trial
        self._most_states = most_states
        self._found: dict[bytes, Node] = {}
        self._waiting: defaultdict[int, list[Node]] = defaultdict(list)
        self._spoiled: Counter[str] = Counter()
        self._odd: defaultdict[Node, list[_Ways]] = defaultdict(list)  # the looks that deviated, by state
        self.walked = Walked()

    def run(self) -> Walked:
        """Walks until all is seen, or enough."""
        try:
            self._begin()
            while self._waiting and not self._is_over():
                distance = min(self._waiting)
                nodes = [node for node in self._waiting.pop(distance) if node.distance == distance]
                if nodes:  # else all of them were found to be nearer
                    self.walked.distance = distance
                for place, node in enumerate(nodes):
                    if self._is_over():
                        self._waiting[distance] = nodes[place:]
                        break
                    if not node.left:
                        self._leave(node)
            self.walked.closed = not self._waiting
        except EnoughError:  # a call did not return
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
        node = Node(None, 0, 1, len(first.calls), _BEGIN)
        self._enter(first.key(), node)
        world = self._back_in(node)
        if world is not None:
            self._look(world, node)

    def _enter(self, key: Hashable, node: Node) -> None:
        self._found[digest(key)] = node
        self._waiting[node.distance].append(node)
        self.walked.states += 1
        self._session.examples += 1

    def _at(self, node: Node, bound: "type[SmallWorld] | None" = None, care: str = PASSING_OVER) -> "SmallWorld":
        """New objects in a state."""
        world = (self._trying if bound is None else bound)()
        behind: Move | None = None
        for before in node.path():
            if before.way is None or before.behind is not behind:
                before.way, before.behind = world.moves()[before.place], behind
            world.take(before.way, care)
            behind = before.way
        return world

    def _leave(self, node: Node) -> None:
        """Makes every move out of a state, and on the way moves out of others."""
        world, at, furthest = None, node, node.distance + 1
        while not node.left:
            if world is None:
                world, at = self._back_in(node), node
                if world is None:
                    node.given_up = True
                    return
            moves = world.moves()
            at.list_moves(moves)
            place = at.next_move(furthest, _MOST_STEPS)
            if place is None:
                world = None
            elif place < len(at.leads):
                world, at = self._make_again(world, at, place, moves[place])
            else:
                world, at = self._make(world, at, moves[place])

    def _back_in(self, node: Node) -> "SmallWorld | None":
        """New objects in a state; None if the way there comes out otherwise than when the state was found."""
        try:
            return self._at(node)
        except (UndecidedError, UnlikeError, Deviation) as found:
            self._unlike(node, lambda _: [], found)
            return None

    def _make(self, world: "SmallWorld", node: Node, way: Move) -> "tuple[SmallWorld | None, Node]":
        """Makes the next move out of a state.

        Returns:
            The objects, unless they are spoiled, and the state they are in.
        """
        place, known = len(node.leads), len(world.calls)
        try:
            world.take(way)
        except (UndecidedError, UnlikeError, Deviation) as found:
            node.leads.append(None)
            self._unlike(node, lambda at: [at.moves()[place]], found)
            return None, node
        self._count(world)
        key = world.key()
        made = world.calls[known:]
        distance, lines = node.distance + sum(map(is_call, made)), node.lines + len(made)
        to = self._found.get(digest(key))
        if to is None:
            to = Node(node, place, distance, lines)
            node.leads.append(to)
            self._enter(key, to)
            return self._look(world, to), to
        node.leads.append(to)
        if distance < to.distance:
            to.parent, to.place, to.distance, to.lines, to.way = node, place, distance, lines, None
            self._waiting[distance].append(to)
            for ways in self._odd.pop(to, []):
                self._try(to, ways)
        return world, to

    def _make_again(self, world: "SmallWorld", node: Node, place: int, way: Move) -> "tuple[SmallWorld | None, Node]":
        """Makes a move that was made before, and leads to a state."""
        to = node.leads[place]
        assert to is not None, "what deviates is not made again"
        try:
            world.take(way, PASSING_OVER)
        except (UndecidedError, UnlikeError, Deviation) as found:
            self._unlike(node, lambda at: [at.moves()[place]], found)
            return None, node
        return world, to

    def _look(self, world: "SmallWorld", node: Node) -> "SmallWorld | None":
        """Takes the looks of a state, on objects that are in it; behind one that deviates on new objects.

        Returns:
            The objects, unless they are spoiled.
        """
        taken: list[int] = []
        looks, place = world.looks(), -1
        while (place := place + 1) < len(looks):
            kind = looks[place].name
            if self._spoiled[kind] >= _ENOUGH:
                continue
            taken.append(place)
            try:
                world.take(looks[place], GLANCING)
                self._count(world)
            except (UndecidedError, UnlikeError, Deviation) as found:
                self._spoiled[kind] += 1
                self._odd[node].append(functools.partial(_looks, [place]))
                self._unlike(node, functools.partial(_looks, taken), found)
                back = self._back_in(node)
                if back is None:
                    return None
                world, taken, looks = back, [], back.looks()
        try:
            world.face()
        except (UndecidedError, Deviation) as found:
            self._odd[node].append(functools.partial(_looks, taken))
            alone = [place for place in taken if self._try(node, functools.partial(_looks, [place]))]
            if not alone:
                self._unlike(node, functools.partial(_looks, taken), found)
            return None
        self._session.tried.update(world.seen)
        return world

    def _count(self, world: "SmallWorld") -> None:
        self.walked.transitions += 1
        self._session.steps += 1
        self._session.tried.update(world.seen)

    # -- Deviations ---------------------------------------------------------------------------------------

    def _unlike(self, node: Node, ways: "_Ways", found: Exception) -> None:
        """Takes ways that deviated once more, with full care, behind a state's shortest calls.

        Args:
            node: the state.
            ways: lists the ways on objects that are in it; the last one deviated.
            found: how it did.
        """
        if isinstance(found, Deviation):
            known = self._session.deviations.get(found.clause)
            if known is not None and known.size[:2] <= (node.distance + 1, node.lines + 1):
                self.walked.behind += 1
                return
        if self._try(node, lambda world: ways(world)[-1:]) or self._try(node, ways):
            self.walked.behind += 1
        elif isinstance(found, Deviation):
            self.walked.behind += 1
            self._session.record(found)
        else:
            self.walked.undecided += 1

    def _try(self, node: Node, ways: "_Ways") -> bool:
        """Takes ways on new objects in a state. Returns whether they deviate by a clause that is looked at."""
        try:
            world = self._at(node, self._telling, COMPARING)
            for way in ways(world):
                world.take(way)
        except (UnlikeError, UndecidedError):
            return False
        except Deviation:  # the session has it
            return True
        return False


def _looks(places: Sequence[int], world: "SmallWorld") -> list[Move]:
    looks = world.looks()
    return [looks[place] for place in places if place < len(looks)]
