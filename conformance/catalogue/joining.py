"""Faults of an index that is a tree of runs, which are joined where one is all that follows at another's end."""

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from .patching import derived, with_pools
from .registry import FORESEEN, OWN, seeded

__all__: list[str] = []


def _with_index(fast: ModuleType, members: Callable[[type[Any]], dict[str, Any]]) -> SimpleNamespace:
    """A backend whose pools' index, a manager's included, has some members replaced, made of those that it has."""

    def spoil(pool: Any) -> None:
        # The pool makes its index itself, and others have noted it: the object stays, its class changes.
        base = type(pool.index)
        pool.index.__class__ = derived(base, members(base))

    return with_pools(fast, spoil)


@seeded(FORESEEN, "HASH-2", "manager", also=("R2", "HASH-1", "MAN-1", "MAN-2", "MAN-3", "MAN-6", "POOL-7", "POOL-8"))
def joined_across_extra_keys(fast: ModuleType) -> SimpleNamespace:
    """What follows at a run's end is joined to it by its tokens alone, whatever extra keys it stands under.

    So that text hits the pages of an image of the same placeholder tokens.
    """

    def members(base: type[Any]) -> dict[str, Any]:
        def tidy(self: Any, run: Any) -> None:
            base._tidy(self, run)
            is_there = self._runs[run.number] is run and run.parent is not None
            siblings = run.others.get(run.end) if is_there and run.others else None
            for key, child in list(siblings.items()) if siblings else ():
                if not isinstance(child, int):
                    run.detach(run.end, child.extra, key)
                    child.extra, child.extra_keys = run.extra, run.extra_keys
                    self._join(run, key, child)
                    return

        return {"_tidy": tidy}

    return _with_index(fast, members)


@seeded(OWN, "POOL-7", "pool", also=("R1", "R2"))
def branch_ends_in_holes(fast: ModuleType) -> SimpleNamespace:
    """A branch whose own end is evicted in the same call as the run's before it is joined to the run with its holes.

    Our own: the run then ended in places without pages, which are never taken away.
    """

    def members(base: type[Any]) -> dict[str, Any]:
        def tidy(self: Any, run: Any) -> None:
            if self._runs[run.number] is not run:
                return
            while run.parent is not None and not run.pages[-1]:
                dead = run.num_dead()
                if dead < len(run.pages):
                    run.holes -= dead
                    run.cut(dead)
                    break
                run = self._remove(run)
            if run.parent is None:
                return
            while run.children is not None and run.end in run.children:
                run = self._join(run, *run.take_newest(run.end))
            if not run.holes:
                base._tidy(self, run)  # one page alone

        return {"_tidy": tidy}

    return _with_index(fast, members)
