"""What every machine of managers does at level safe: the specification follows what the backend decides.

A call that takes pages is made on the backend first, and the specification takes the same ones, so that pages have the
same ids on both sides. It keeps all that may be kept (RET-1), and publishes what a request has computed as soon as that
may be (MAN-2, MAN-4): what a correct backend has cached the specification has, too.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...backends.loading import takes_parameter
from ...calls.deviation import Outcome, attempt
from ..base import Field, Machine, Side
from . import showing

__all__ = ["Following"]

_ORDERING = ("eviction", "unhashed_first", "counter_sampling")
"""The options about which pages are evicted first, and what is counted of that: the specification needs none."""


class Following(Machine):
    """Managers side by side, or such of several shards; see `shards_of`.

    Each shard has a ``manager``, its ``pool``, which is None where a manager shows none, and its ``pages`` by id.
    """

    def shards_of(self, side: Side) -> list[Side]:
        """The shards of a side; it itself where there are none."""
        return getattr(side, "shards", None) or [side]

    # -- What the backend has -------------------------------------------------------------------------------

    def keeping_all(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the specification's manager: it keeps all that may be kept, and is told what it evicts."""
        kept = {name: value for name, value in options.items() if name not in _ORDERING}
        return kept | {"retention_interval": None}

    def shown_parts(self, manager: Any) -> dict[str, Any]:
        """What a side has of a manager: it may show no pool."""
        pool = getattr(manager, "page_pool", None)
        return {"manager": manager, "pool": pool, "pages": showing.known_views(pool, not self.lacks("queue"))}

    def takes_option(self, method: str, option: str) -> bool:
        """Whether a method of the backend's manager has a parameter."""
        return takes_parameter(getattr(self.backend.manager, method), option)

    def shown_fields(self, number: str = "POOL-2") -> list[Field]:
        """What the backend shows of its pages, without what is about the order of free ones.

        Args:
            number: the label of a wrong number of free pages.
        """
        of_pools = [
            Field("ref_cnt", "POOL-5", showing.counts),
            Field("number of free pages", number, showing.num_free),
            Field("pages in the queue", "POOL-2", showing.free_in_queue),
            Field("null page", "POOL-1", showing.null_page, aside=True),
            Field("hashed pages", "MAN-3", showing.with_hash, agree=has_no_others),
            Field("cached pages", "MAN-3", showing.resident, agree=has_no_others),
        ]
        told = [shows for shows in of_pools if shows.read(self.shards_of(self.backend)[0]) is not None]
        if of_pools[-1] not in told:
            self.session.lacks.add("what shows which pages are cached")
        return told

    def usage_fields(self) -> list[Field]:
        """The part of the pages that is in use, where the backend tells it."""
        tells = showing.usage(self.backend) is not None
        return [Field("usage", "POOL-10", showing.usage, aside=True)] if tells else []

    # -- What is cached -------------------------------------------------------------------------------------

    def resident(self, shard: int = 0) -> list[int] | None:
        """The pages that the backend shows to be cached; None where it does not show that."""
        found: list[int] | None = attempt(lambda: showing.resident(self.shards_of(self.backend)[shard])).value
        return found

    def to_evict(self, side: Side, shard: int, pages: Iterable[int]) -> list[int]:
        """The pages of an eviction: of the specification those only that the backend has published as well.

        A page that the specification has published sooner may still be published by its request.
        """
        if side is self.backend:
            return list(pages)
        own = self.shards_of(side)[shard]
        seen, known = self.resident(shard) or (), showing.resident(own) or ()
        later = [page for page in known if page not in seen and own.pages[page].ref_cnt]
        return [page for page in pages if page not in later]

    # -- Calls that are followed ----------------------------------------------------------------------------

    def followed(
        self, line: str, clause: str, act: Callable[[Side], Any], pages_of: Callable[[Any], list[int]]
    ) -> Callable[[Side], Any]:
        """A call that is made on the backend before it is made on the specification, which takes the same pages.

        Args:
            line: it as a report shows it.
            clause: the label of its clause.
            act: makes it on a side.
            pages_of: tells of the backend's result which pages it took, in the order in which the specification does.
        """
        made: list[Outcome] = []

        def follow(side: Side) -> Any:
            if side is self.backend:
                (first,) = made
                if first.error is not None:
                    raise first.error
                return first.value
            self.calls.append(line)
            with self.watched(clause, "an answer or a refusal"):
                made[:] = [attempt(lambda: act(self.backend))]
            self.calls.pop()
            orders = [shard.pool.free_order for shard in self.shards_of(self.spec)]
            for order in orders:
                order.wanted = pages_of(made[0].value)
            try:
                return self.follow(made[0], lambda: act(side))
            finally:
                for order in orders:
                    order.wanted = []

        return follow

    def follow(self, first: Outcome, act: Callable[[], Any]) -> Any:
        """Makes a call on the specification, of which the outcome on the backend is known."""
        del first
        return act()


def has_no_others(expected: Any, observed: Any) -> bool:
    """Whether all of some pages are among those of the specification."""
    return set(observed) <= set(expected)
