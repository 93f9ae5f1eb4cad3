"""The model of a page pool at level safe: how often each page is held, and what it is cached for."""

from collections.abc import Callable
from typing import Any, ClassVar

from ...backends.capabilities import ESSENTIALS
from ...backends.loading import takes_parameter
from ...calls.readings import page_views
from ..ghost import Content
from ..sides import Side
from ..worlds import Group
from . import showing
from .alone import Alone
from .contents import Contents

__all__ = ["Key", "PoolModel"]

Key = tuple[Any, Any]
"""What a key is of: tokens and extra keys, from the first page on."""


class PoolModel(Alone):
    """One pool. The backend's side has ``pool`` and ``pages``, its views by id.

    Attributes:
        counts: how often each page but the null page is held.
        null_count: what the null page shows as its count; nothing changes it.
        ghost: what each cached page is cached for.
        keys: the backend's own key of each content that was ever cached, the group left out.
    """

    needs: ClassVar[tuple[str, ...]] = ESSENTIALS["PagePool"]
    always = frozenset({"R1", "POOL-1", "POOL-2", "POOL-3", "POOL-5", "POOL-7", "POOL-10"})

    def build_pool(self, num_pages: int, caching: bool, page_size: int) -> None:
        """Builds a pool, with those options that the backend's constructor knows; all of its pages are free."""
        takes_seed = takes_parameter(self.backend.names.get("PagePool"), "hash_seed")
        options = {"hash_seed": b"kvproof"} if takes_seed else {}
        self.num_pages, self.caching = num_pages, caching
        self.counts = dict.fromkeys(range(1, num_pages), 0)
        self.page_size = page_size
        self.ghost = Contents([Group("full", page_size)] * 2)
        self.keys: dict[Key, Any] = {}
        shown = "".join(f", {name}={value!r}" for name, value in options.items())

        def act(side: Side) -> dict[str, Any]:
            pool = side.names.get("PagePool")(num_pages, caching, **options)
            return {"pool": pool, "pages": page_views(pool, not self.lacks("queue"))}

        self.make(f"pool = PagePool({num_pages}, {caching}{shown})", "POOL-3", act)
        ids = sorted(self.backend.pages)
        self.compared("POOL-1")
        if ids != list(range(num_pages)):
            self.differ("POOL-1", f"pages {list(range(num_pages))}, the null page among them", f"{ids}")
        readers: dict[str, Callable[[Any], object]] = {
            "number of free pages": lambda side: showing.num_free(side.pool),
            "free pages": lambda side: showing.free_in_queue(side.pool),
            "counts": lambda side: showing.counts(side.pages),
            "usage": lambda side: round(float(side.pool.get_usage()), 9) if hasattr(side.pool, "get_usage") else None,
            "count of the null page": lambda side: getattr(side.pages[0], "ref_cnt", None),
            "null page": lambda side: int(side.pool.null_page.page_id) if hasattr(side.pool, "null_page") else None,
            "pages with a hash": lambda side: showing.with_hash(side.pages),
            "cached pages": lambda side: showing.resident(side.pool, side.pool, side.pages),
        }
        self.show_fields({name: read for name, read in readers.items() if read(self.backend) is not None})
        self.null_count = getattr(self.backend.pages[0], "ref_cnt", None)
        self.settle("POOL-3")

    # -- What the model knows -------------------------------------------------------------------------

    @property
    def free(self) -> list[int]:
        """The pages that nobody holds."""
        return [page for page, count in self.counts.items() if not count]

    @property
    def held(self) -> list[int]:
        """The pages that are held."""
        return [page for page, count in self.counts.items() if count]

    @property
    def cached(self) -> list[int] | None:
        """The pages that were shown as cached after the last call; None where nothing shows that."""
        if "cached pages" not in self.known:
            self.session.lacks.add("what shows which pages are cached")
            return None
        shown: Any = self.known["cached pages"]
        return list(shown)

    def cacheable(self) -> list[int]:
        """The pages that can be cached: held ones that are not."""
        return [page for page in self.held if page not in (self.cached or self.ghost.contents)]

    def touchable(self) -> list[int]:
        """The pages that can be touched: held ones, and those that are shown as cached."""
        return sorted({*self.held, *(self.cached or [])})

    def resident_with(self, content: Content) -> list[int] | None:
        """The pages that are shown as cached with some content; None where nothing shows that."""
        cached = self.cached
        return None if cached is None else [page for page in cached if self.ghost.contents.get(page) == content]

    def views(self, ids: list[int]) -> list[Any]:
        """The backend's views of some pages."""
        return [self.backend.pages[page] for page in ids]

    # -- After a call -----------------------------------------------------------------------------------

    def settle(self, clause: str) -> None:
        """Judges what the backend shows after a call that was answered.

        Args:
            clause: the label that a wrong count is charged to.
        """
        in_use = len(self.held)
        right = {
            "counts": (clause, dict(self.counts)),
            "number of free pages": (clause, len(self.free)),
            "free pages": ("POOL-2", self.free),
            "usage": ("POOL-10", round(in_use / (self.num_pages - 1), 9)),
            "null page": ("POOL-1", 0),
            "count of the null page": ("POOL-1", self.null_count),
        }
        shows = {shows.name for shows in self.fields}
        for name, (label, expected) in right.items():
            if name in shows:
                self.known[name] = expected
                seen = self.see(name, label)
                self.hold(label, seen == expected, f"{name} = {expected}", f"{seen}")
                self.known[name] = seen
        if "cached pages" in shows:
            self.judge_cached(clause)

    def judge_cached(self, clause: str) -> None:
        """What is cached was cached by a call and not evicted since; all that shows it agrees (POOL-3, POOL-7)."""
        seen = self.see("cached pages", "POOL-7")
        self.known["cached pages"] = seen
        hashed = self.known["pages with a hash"] = self.see("pages with a hash", "POOL-7")
        stale = sorted(page for page in {*seen, *hashed} if page not in self.ghost.contents)
        label = clause if clause in ("POOL-3", "POOL-9", "POOL-11") else "POOL-7"
        self.hold(label, not stale, f"no hash of {stale}", f"cached pages {seen}, pages with a hash {hashed}")
        self.hold("POOL-7", hashed == seen, f"the cached pages {seen} have hashes, no others", f"{hashed}")
