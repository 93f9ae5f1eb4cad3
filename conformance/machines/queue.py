"""The queue machine: a free queue alone, on pages made by hand."""

from typing import Any

from hypothesis import strategies as st

from ..properties import start, step
from ..spelling import OBJECTS
from .base import Field, Machine, Side
from .draws import NO_INTS, NO_LISTS, Drawing, likely, one_of, rarely, some, whole

__all__ = ["Queue"]


def _page_id(page: Any, _: Side) -> int:
    return int(page.page_id)


def _page_ids(pages: Any, _: Side | None = None) -> list[int]:
    return [int(page.page_id) for page in pages]


def _beside(page: Any) -> tuple[int | None, int | None]:
    before, after = page.prev_free_page, page.next_free_page
    return (None if before is None else before.page_id, None if after is None else after.page_id)


def _neighbours(side: Any) -> dict[str, tuple[int | None, int | None]]:
    ends = {"head": side.queue.fake_free_list_head, "tail": side.queue.fake_free_list_tail}
    return {str(name): _beside(page) for name, page in (side.pages | ends).items()}


def _pages(side: Any) -> dict[int, tuple[int, bool]]:
    return {page_id: (page.ref_cnt, page.page_hash is None) for page_id, page in side.pages.items()}


class Queue(Machine):
    """A side has ``pages`` by id and the ``queue`` that some of them are in."""

    name = "queue"
    capability = "queue"
    examples = 50
    needs = ("FreeCachePageQueue", "CachePage")
    always = frozenset({"R1", "POOL-2", "POOL-3", "POOL-5", "POOL-8"})

    @start(num_pages=st.integers(1, 7), queued=st.integers(0, 7))
    def construct(self, num_pages: int, queued: int) -> None:
        """A queue of some pages stands in the order given."""
        queued = min(queued, num_pages)

        def act(side: Side) -> dict[str, Any]:
            pages = {page_id: side.names.get("CachePage")(page_id) for page_id in range(num_pages)}
            members = [pages[page_id] for page_id in range(queued)]
            return {"pages": pages, "queue": side.names.get("FreeCachePageQueue")(members)}

        self.build(f"queue = FreeCachePageQueue({list(range(queued))})  # of {num_pages} pages", "POOL-3", act)
        self.watch(
            Field("pages", "POOL-5", _pages),
            Field("num_free_pages", "POOL-2", lambda side: int(side.queue.num_free_pages)),
            Field("queue", "POOL-3", lambda side: _page_ids(side.queue.get_all_free_pages())),
            Field("neighbours", "POOL-2", _neighbours),
        )

    @property
    def inside(self) -> list[int]:
        """The pages in the queue, first the first."""
        return _page_ids(self.spec.queue.get_all_free_pages())

    @property
    def outside(self) -> list[int]:
        """The pages that are in no queue."""
        return [page for page in self.spec.pages if page not in self.inside]

    @step("POOL-4", when=lambda self: self.inside)
    def take(self, data: Drawing) -> None:
        """Takes one page or several from the front."""
        if rarely(data) or one_of(data, [True, False]):
            self.call("queue.popleft()", lambda side: side.queue.popleft(), "POOL-3", _page_id)
            return
        count = whole(data, 0, min(len(self.inside), 3))
        self.call(f"queue.popleft_n({count})", lambda side: side.queue.popleft_n(count), "POOL-3", _page_ids)

    @step(when=lambda self: self.inside)
    def remove(self, data: Drawing) -> None:
        """Takes a page out of the middle."""
        page = one_of(data, self.inside)
        self.call(f"queue.remove({page})", lambda side: side.queue.remove(side.pages[page]), "POOL-2")

    @step(when=lambda self: self.outside)
    def append(self, data: Drawing) -> None:
        """Puts a page behind the last."""
        page = one_of(data, self.outside)
        self.call(f"queue.append({page})", lambda side: side.queue.append(side.pages[page]), "POOL-3")

    @step("POOL-13", when=lambda self: self.outside)
    def add_several(self, data: Drawing) -> None:
        """Puts pages behind the last, or before the first where the queue can; none is no error."""
        given = some(data, self.outside, most=4)
        spelling = self.spelling(data, OBJECTS)
        method = one_of(data, ["append_n", "prepend_n"] if self.offers("queue", "prepend_n") else ["append_n"])
        self.call(
            f"queue.{method}({spelling.source(given)})",
            lambda side: getattr(side.queue, method)(spelling.of(side.pages[page] for page in given)),
            "POOL-3",
            charge={"queue": "POOL-13" if method == "prepend_n" else "POOL-3"},
        )

    @step("POOL-2", "POOL-4")
    def misuse(self, data: Drawing) -> None:
        """Takes too many, removes what is not there, adds what is there or is no page; good pages stand before it."""
        good = some(data, self.outside, most=2)
        twice = [[*good, good[0]]] if good else []
        there = [[*good, page] for page in self.inside[:2]]
        acts: dict[str, Any] = {
            f"popleft_n({count!r})": lambda side, count=count: side.queue.popleft_n(count)
            for count in (len(self.inside) + 1, -1, *NO_INTS)
        }
        acts |= {"popleft()": lambda side: side.queue.popleft()} if not self.inside else {}
        acts |= {
            f"append_n({pages!r})": lambda side, pages=pages: side.queue.append_n(self.pages_of(side, pages))
            for pages in (*there, *twice, [*good, None], *NO_LISTS)
        }
        acts |= {
            f"append({page!r})": lambda side, page=page: side.queue.append(side.pages.get(page, page))
            for page in (*self.inside[:1], None)
        }
        acts |= {
            f"remove({page!r})": lambda side, page=page: side.queue.remove(side.pages.get(page, page))
            for page in (*self.outside[:2], None)
        }
        often = [line for line in acts if "None" not in line and "True" not in line]
        line = likely(data, often, list(acts))
        self.call(f"queue.{line}", acts[line], "POOL-2")

    def pages_of(self, side: Side, pages: Any) -> Any:
        """A side's pages for a list of ids; what is no list, or no id, is left as it is."""
        return [side.pages.get(page, page) for page in pages] if isinstance(pages, list) else pages

    @step("POOL-2")
    def own_another_queues_page(self, data: Drawing) -> None:
        """Adds a page that is in another queue, or removes it from this one."""
        method = one_of(data, ["append", "remove"])

        def act(side: Side) -> None:
            page = side.names.get("CachePage")(9)
            other = side.names.get("FreeCachePageQueue")([page])
            getattr(side.queue, method)(other.get_all_free_pages()[0])

        self.call(f"queue.{method}(<a page of another queue>)", act, "POOL-2")

    @step("POOL-8", when=lambda self: not self.lacks("views"))
    def set_on_page(self, data: Drawing) -> None:
        """Counts and hashes a page made by hand: a count below 0 and a second hash are refused."""
        page = one_of(data, list(self.spec.pages))
        act = one_of(data, ["incr_ref", "decr_ref", "reset_hash", "page_hash"])

        def set_hash(side: Side) -> None:
            offered = side.names.offers("PageHash") and side.names.offers("PageHashWithGroupId")
            names = side.names if offered else self.spec.names
            side.pages[page].page_hash = names.get("PageHashWithGroupId")(names.get("PageHash")(b"x", (0,), None), 0)

        if act == "page_hash":
            self.call(f"page({page}).page_hash = <a key>", set_hash, "POOL-8", charge="POOL-8")
        else:
            clause = "POOL-8" if act == "reset_hash" else "POOL-5"
            self.call(f"page({page}).{act}()", lambda side: getattr(side.pages[page], act)(), clause, charge=clause)
