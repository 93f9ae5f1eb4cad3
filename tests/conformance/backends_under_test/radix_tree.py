"""A radix tree of cached pages: a node is a run of pages; leaves that nobody locks are evicted, the oldest first."""

import heapq
from collections.abc import Hashable, Sequence

__all__ = ["Node", "RadixTree"]


class Node:
    """A run of pages that follow each other.

    Attributes:
        key: what each of its pages holds: tokens and extra keys of that page alone.
        pages: the pages' ids.
        parent: the run before; None for the root.
        children: the runs behind it, by the first content of each.
        locks: how many live requests hold it, or a run behind it.
        used: when it was last walked.
    """

    def __init__(self, key: list[Hashable], pages: list[int], parent: "Node | None") -> None:
        self.key, self.pages, self.parent = key, pages, parent
        self.children: dict[Hashable, Node] = {}
        self.locks = 0
        self.used = 0


class RadixTree:
    """All cached prefixes."""

    def __init__(self) -> None:
        self.root = Node([], [], None)
        self.clock = 0

    def nodes(self) -> list[Node]:
        """All runs but the root."""
        found, waiting = [], list(self.root.children.values())
        while waiting:
            found.append(waiting.pop())
            waiting += found[-1].children.values()
        return found

    def num_evictable(self) -> int:
        """How many pages nobody locks."""
        return sum(len(node.pages) for node in self.nodes() if not node.locks)

    def match(self, key: Sequence[Hashable]) -> list[int]:
        """The pages of the longest prefix of some contents; changes nothing."""
        pages: list[int] = []
        node = self.root
        while len(pages) < len(key) and key[len(pages)] in node.children:
            node = node.children[key[len(pages)]]
            alike = _alike(node.key, key[len(pages) :])
            pages += node.pages[:alike]
            if alike < len(node.key):
                break
        return pages

    def walk(self, key: Sequence[Hashable]) -> tuple[Node, list[int]]:
        """The run at whose end the longest prefix of some contents ends, split off if need be, and its pages."""
        self.clock += 1
        pages: list[int] = []
        node = self.root
        while len(pages) < len(key) and key[len(pages)] in node.children:
            node = node.children[key[len(pages)]]
            alike = _alike(node.key, key[len(pages) :])
            if alike < len(node.key):
                node = self.split(node, alike)
            node.used = self.clock
            pages += node.pages
        return node, pages

    def split(self, node: Node, length: int) -> Node:
        """Makes two runs of one; the one behind stays the object that it was. Returns the one before."""
        assert node.parent is not None
        before = Node(node.key[:length], node.pages[:length], node.parent)
        before.locks, before.used = node.locks, node.used
        before.children[node.key[length]] = node
        node.parent.children[node.key[0]] = before
        node.key, node.pages, node.parent = node.key[length:], node.pages[length:], before
        return before

    def insert(self, key: Sequence[Hashable], pages: Sequence[int]) -> tuple[Node, list[int]]:
        """Caches the pages of a prefix, as far as none of equal content is there.

        Returns:
            The run at whose end the prefix ends, and its pages in the tree.
        """
        node, there = self.walk(key)
        if len(there) < len(key):
            child = Node(list(key[len(there) :]), list(pages[len(there) : len(key)]), node)
            child.used = self.clock
            node.children[child.key[0]] = child
            node, there = child, [*there, *child.pages]
        return node, there

    def lock(self, node: Node, change: int) -> None:
        """Locks a run and all before it once more, or once less."""
        at: Node | None = node
        while at is not None:
            at.locks += change
            at = at.parent

    def evict(self, num_pages: int) -> list[int]:
        """Drops leaves that nobody locks, the one that was used least recently first.

        Args:
            num_pages: how many pages are wanted at least.

        Returns:
            The pages of the leaves that were dropped.
        """
        leaves = [(node.used, id(node), node) for node in self.nodes() if self.may_go(node)]
        heapq.heapify(leaves)
        freed: list[int] = []
        while len(freed) < num_pages and leaves:
            node = heapq.heappop(leaves)[2]
            freed += node.pages
            parent = node.parent
            assert parent is not None
            del parent.children[node.key[0]]
            if parent.parent is not None and self.may_go(parent):
                heapq.heappush(leaves, (parent.used, id(parent), parent))
        return freed

    def may_go(self, node: Node) -> bool:
        """Whether a run can be evicted."""
        return not node.locks and not node.children


def _alike(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """How many leading contents agree."""
    return next(
        (place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )
