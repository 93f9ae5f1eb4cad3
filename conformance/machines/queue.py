"""The queue machine: a free queue alone, on pages made by hand."""

from collections.abc import Mapping
from typing import Any, ClassVar

from hypothesis import strategies as st

from ..calls.datum import Call, Key, New, Ref
from ..calls.method import Table
from ..calls.queue import PAGE, QUEUE
from ..calls.readings import page_ids
from ..calls.source import Source
from .base import Field, Side
from .calling import Calling, Calls
from .draws import Drawing
from .properties import start, step

__all__ = ["Queue"]


class Queue(Calling):
    """A side has ``pages`` by id, the ``queue`` that some of them are in, and ``other``: a page of another queue."""

    name = "queue"
    capability = "queue"
    examples = 50
    needs: ClassVar[tuple[str, ...]] = ("FreeCachePageQueue", "CachePage")
    always = frozenset({"R1", "POOL-2", "POOL-3", "POOL-5", "POOL-8"})
    tables: ClassVar[tuple[Table, ...]] = (QUEUE, PAGE)
    strangers: ClassVar[Mapping[int | str, str]] = {"other": "a page of another queue"}
    pooled = False

    @start(num_pages=st.integers(1, 7), queued=st.integers(0, 7))
    def construct(self, num_pages: int, queued: int) -> None:
        """A queue of some pages stands in the order given."""
        queued = min(queued, num_pages)
        things = {
            "pages": {page_id: New("CachePage", (page_id,)) for page_id in range(num_pages)},
            "queue": Call(None, "FreeCachePageQueue", {"pages": list(map(self.ref, range(queued)))}),
            "other": New("CachePage", (9,)),
            "other_queue": Call(None, "FreeCachePageQueue", {"pages": [Ref("other")]}),
        }
        self.build_things(
            f"queue = FreeCachePageQueue({list(range(queued))})  # of {num_pages} pages", "POOL-3", things
        )
        for side in (self.spec, self.backend):
            side.find_key = lambda key, side=side: self._made_by_hand(side, key)
        self.watch(
            Field.of("pages"),
            Field.of("num_free_pages"),
            Field.of("queue"),
            Field.of("neighbours"),
        )

    def _made_by_hand(self, side: Side, key: Key) -> Any:
        """A key that no pool gave, of the side's own class where it has one."""
        offered = side.names.offers("PageHash") and side.names.offers("PageHashWithGroupId")
        names = side.names if offered else self.spec.names
        return names.get("PageHashWithGroupId")(names.get("PageHash")(b"x", key.prompt.tokens, None), key.group)

    @property
    def inside(self) -> list[int]:
        """The pages in the queue, first the first."""
        return page_ids(self.spec.queue.get_all_free_pages())

    @property
    def outside(self) -> list[int]:
        """The pages that are in no queue."""
        return [page for page in self.spec.pages if page not in self.inside]

    def ref(self, page_id: int) -> Ref:
        """A page by its id."""
        return Ref("pages", (page_id,))

    def target_of(self, table: Table, source: Source) -> Ref:
        """See `Calling.target_of`."""
        return Ref("queue") if table is QUEUE else self.ref(source.one_of(list(self.spec.pages)))

    @step("POOL-2", "POOL-4", weight=5)
    def misuse(self, source: Drawing) -> Calls:
        """Takes too many, removes what is not there, adds what is there, in another queue, or no page."""
        if not self.inside and source.one_of([False, True]):
            yield self.drawn(QUEUE["popleft"], source)
            return
        yield self.spoilt(source.one_of(self.spoilable()), source)

    @step("POOL-8", when=lambda self: not self.lacks("views"), weight=3)
    def set_on_page(self, source: Drawing) -> Calls:
        """Counts and hashes a page made by hand: a count below 0 and a second hash are refused."""
        yield self.drawn(source.one_of(PAGE.rows), source)
