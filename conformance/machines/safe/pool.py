"""The pool machine of level safe: one page pool, in whatever order it hands out pages, and the model of it."""

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import Request

from ...backends.capabilities import ESSENTIALS
from ...backends.loading import takes_parameter
from ...calls.readings import page_views
from ...calls.spelling import OBJECTS, request_as, request_source
from ..base import Nothing
from ..draws import EXTRA_KEYS, NO_INTS, NO_LISTS, Drawing, some
from ..ghost import Content, Ghost
from ..properties import start, step
from ..sides import Side
from ..worlds import Group
from . import showing
from .alone import Alone

__all__ = ["SafePool"]


Key = tuple[Any, Any]
"""What a key is of: tokens and extra keys, from the first page on."""


_EXTRA_KEYS = ((),) * (2 * len(EXTRA_KEYS)) + EXTRA_KEYS


def _ids(pages: Any) -> list[int]:
    return [int(page.page_id) for page in pages]


def _found(pages: Any) -> list[int] | None:
    return None if pages is None else _ids(pages)


class SafePool(Alone):
    """Takes, touches, frees, caches, evicts, looks up and resets.

    The backend's side has ``pool`` and ``pages``, its views by id.

    Attributes:
        counts: how often each page but the null page is held.
        null_count: what the null page shows as its count; nothing changes it.
        ghost: what each cached page is cached for.
        keys: the backend's own key of each content that was ever cached, the group left out.
    """

    name = "safe-pool"
    examples = 80
    needs: ClassVar[tuple[str, ...]] = ESSENTIALS["PagePool"]
    always = frozenset({"R1", "POOL-1", "POOL-2", "POOL-3", "POOL-5", "POOL-7", "POOL-10"})

    def build_pool(self, num_pages: int, caching: bool, page_size: int) -> None:
        """Builds a pool, with those options that the backend's constructor knows; all of its pages are free."""
        takes_seed = takes_parameter(self.backend.names.get("PagePool"), "hash_seed")
        options = {"hash_seed": b"kvproof"} if takes_seed else {}
        self.num_pages, self.caching = num_pages, caching
        self.counts = dict.fromkeys(range(1, num_pages), 0)
        self.page_size = page_size
        self.ghost = Ghost([Group("full", page_size)] * 2)
        self.keys: dict[Key, Any] = {}
        shown = "".join(f", {name}={value!r}" for name, value in options.items())

        def act(side: Side) -> dict[str, Any]:
            pool = side.names.get("PagePool")(num_pages, caching, **options)
            return {"pool": pool, "pages": page_views(pool, not self.lacks("queue"))}

        self.build_backend(f"pool = PagePool({num_pages}, {caching}{shown})", self.noticed("POOL-3"), act)
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
        self.show_fields(readers)
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

    def cacheable(self) -> list[int]:
        """The pages that can be cached: held ones that are not."""
        return [page for page in self.held if page not in (self.resident or self.ghost.contents)]

    def touchable(self) -> list[int]:
        """The pages that can be touched: held ones, and those that are shown as cached."""
        return sorted({*self.held, *(self.resident or [])})

    def resident_with(self, content: Content) -> list[int] | None:
        """The pages that are shown as cached with some content; None where nothing shows that."""
        cached = self.resident
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
        self.hold_shown(right)
        if "cached pages" in self.shows:
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

    @start(num_pages=st.integers(3, 9), caching=st.sampled_from([True] * 5 + [False]), page_size=st.integers(1, 2))
    def construct(self, num_pages: int, caching: bool, page_size: int) -> None:
        """A fresh pool: all of its pages are free."""
        self.build_pool(num_pages, caching, page_size)

    # -- Taking and giving back -----------------------------------------------------------------------

    @step("POOL-4", when=lambda self: self.free, weight=3)
    def get_new_pages(self, data: Drawing) -> None:
        """Takes pages that nobody holds, whichever, their hashes evicted; 0 gives none."""
        count = 0 if data.rarely() and data.rarely() else data.whole(1, min(len(self.free), 4))
        if count > len(self.free):  # taken again, where fewer are
            raise Nothing
        clause = self.noticed("POOL-3") if count else "POOL-4"
        pages = self.ask(f"pool.get_new_pages({count})", clause, lambda side: side.pool.get_new_pages(count), _ids)
        if len(pages) != count or len(set(pages)) != count:
            self.differ(clause, f"{count} different pages", f"{pages}")
        wrong = [page for page in pages if page not in self.counts]
        if wrong:
            self.differ("POOL-1", f"pages of 1 to {self.num_pages - 1}", f"{pages}")
        if not set(pages) <= set(self.free):
            self.differ("POOL-2", f"pages that nobody holds: of {self.free}", f"{pages}")
        for page in pages:
            self.counts[page] = 1
            self.ghost.contents.pop(page, None)
        self.settle("POOL-3")

    @step("POOL-6", when=lambda self: self.touchable() and self.offers("pool", "touch"))
    def touch(self, data: Drawing) -> None:
        """Touches held pages, cached free pages and the null page, several groups at once, pages repeatedly."""
        options = [*self.touchable(), 0]
        groups = data.draw(st.lists(st.lists(st.sampled_from(options), max_size=3), max_size=3))
        if not {page for group in groups for page in group} <= set(options):
            raise Nothing
        spelling = self.spelling(data, OBJECTS)
        self.ask(
            f"pool.touch({spelling.source(groups, spelling.source)})",
            "POOL-6",
            lambda side: side.pool.touch(spelling.of(spelling.of(self.views(group)) for group in groups)),
        )
        for page in (page for group in groups for page in group if page):
            self.counts[page] += 1
        self.settle("POOL-6")

    @step(when=lambda self: self.held, weight=2)
    def free_pages(self, data: Drawing) -> None:
        """Frees pages, each at most as often as it is held, null pages among them."""
        mentions = [page for page, count in self.counts.items() for _ in range(count)]
        freed = some(data, [*mentions, 0], most=5, least=1)
        spelling = self.spelling(data, OBJECTS)
        line = f"pool.free_pages({spelling.source(freed)})"
        self.ask(line, "POOL-5", lambda side: side.pool.free_pages(spelling.of(self.views(freed))))
        for page in freed:
            if page:
                self.counts[page] -= 1
        self.settle("POOL-5")

    # -- Caching --------------------------------------------------------------------------------------

    def can_cache(self) -> object:
        """Whether a page can be cached."""
        return self.caching and self.cacheable() and self.offers("pool", "cache_full_pages")

    @step("HASH-2", "R2", when=can_cache, weight=4)
    def cache_full_pages(self, data: Drawing) -> None:
        """Caches full pages of a request behind those that are cached already; they can be found from then on."""
        fresh = some(data, self.cacheable(), most=3, least=1)
        group = data.one_of([0] if self.lacks("groups") else [0, 0, 0, 1])
        known = [list(tokens) for tokens, _ in self.keys]
        tokens = [*data.one_of([[], *known]), *(data.one_of([0, 1]) for _ in range(3 * self.page_size))]
        extra_keys = data.one_of(_EXTRA_KEYS)
        before: list[int] = []
        while len(before) < len(tokens) // self.page_size - len(fresh) and data.one_of([True, True, False]):
            there = self.resident_with(self.ghost.full(group, len(before), tokens, extra_keys))
            if not there:
                break
            before.append(there[0])
        end = len(before) + len(fresh)
        tokens = tokens[: end * self.page_size + data.draw(st.integers(0, 1))]
        contents = [self.ghost.full(group, place, tokens, extra_keys) for place in range(end)]
        made = self.token_spelling(data), "r", tokens, extra_keys
        request = request_as(*made)
        self.ask(
            f"pool.cache_full_pages({request_source(*made)}, {before + fresh}, [], {len(before)}, {end}, "
            f"page_size={self.page_size}, kv_cache_group_id={group})",
            "POOL-7",
            lambda side: side.pool.cache_full_pages(
                request, self.views(before + fresh), [], len(before), end, self.page_size, group
            ),
        )
        for page, content in zip(fresh, contents[len(before) :], strict=True):
            self.ghost.contents[page] = content
        self.settle("POOL-7")
        for page, content in zip(fresh, contents[len(before) :], strict=True):
            there = self.resident_with(content)
            if there == []:
                self.differ("POOL-7", f"page {page} cached, or another of its content", f"cached pages {self.resident}")
            key = getattr(self.backend.pages[page], "page_hash", None)
            if key is not None:
                self.keys[content.tokens, content.extra_keys] = getattr(key, "page_hash", key)
        if not self.keys:
            self.session.lacks.add("page.page_hash")

    @step("HASH-2", "R2", when=lambda self: self.keys and self.offers("pool", "get_cached_page"), weight=3)
    def get_cached_page(self, data: Drawing) -> None:
        """Looks up keys that are cached or were, in one group or several."""
        what: Key = data.one_of(list(self.keys))
        groups = data.one_of([[0]] if self.lacks("groups") else [[0], [0], [1], [0, 1]])
        name = f"<the key of {list(what[0])} with {what[1][-1]}>"
        pages = self.ask(
            f"pool.get_cached_page({name}, {groups})",
            "POOL-7",
            lambda side: side.pool.get_cached_page(self.keys[what], groups),
            _found,
        )
        contents = [Content(group, *what) for group in groups]
        there = [self.resident_with(content) for content in contents]
        self.compared("R2")
        if pages is None:
            self.hold("POOL-7", [] in there or None in there, f"a page of each of {there}", "None")
        else:
            held = [self.ghost.contents.get(page) for page in pages]
            if held != contents:
                alike = [content and content.tokens for content in held] == [content.tokens for content in contents]
                said = f"pages that hold {list(what[0])} with these extra keys, or None"
                self.differ("HASH-2" if alike else "R2", said, f"{pages}, which hold {held}")
            self.hold("POOL-7", [] not in there, "None: a group has no such page", f"{pages}")
        self.unchanged("POOL-7", "a look-up changes nothing")

    @step("POOL-9", "POOL-11")
    def forget(self, data: Drawing) -> None:
        """Drops the hashes of some pages, held or free; or every hash, if no page is held."""
        acts: list[Callable[[Drawing], None]] = [self.reset] if self.offers("pool", "reset_prefix_cache") else []
        acts += [self.evict] if self.offers("pool", "evict_pages") else []
        if not acts:
            raise Nothing
        data.one_of(acts)(data)

    def reset(self, data: Drawing) -> None:
        """Forgets everything, if nothing is held; now and then all pages are given back first."""
        if bool(self.held) and data.one_of([True, False]):
            mentions = [page for page, count in self.counts.items() for _ in range(count)]
            line = f"pool.free_pages({mentions})"
            self.ask(line, "POOL-5", lambda side: side.pool.free_pages(self.views(mentions)))
            self.counts = dict.fromkeys(self.counts, 0)
            self.settle("POOL-5")
        idle = not self.held
        done = self.ask("pool.reset_prefix_cache()", "POOL-9", lambda side: side.pool.reset_prefix_cache(), bool)
        self.hold("POOL-9", done == idle, f"{idle}, as {self.held} are held", f"{done}")
        if done:
            self.ghost.contents.clear()
            self.settle("POOL-9")
        else:
            self.unchanged("POOL-9", "a reset that did nothing")

    def evict(self, data: Drawing) -> None:
        """Drops the hashes of some pages; nothing else changes."""
        evicted = some(data, [*(self.resident or []), *self.counts, 0], most=3, least=1)
        before = self.resident
        self.ask(f"pool.evict_pages({evicted})", "POOL-11", lambda side: side.pool.evict_pages(evicted))
        for page in evicted:
            self.ghost.contents.pop(page, None)
        self.settle("POOL-11")
        if before is not None:
            right = [page for page in before if page not in evicted]
            self.hold("POOL-11", self.resident == right, f"cached pages {right}", f"{self.resident}")

    # -- What must be refused -------------------------------------------------------------------------

    @step("POOL-4", "POOL-6", "POOL-8", "POOL-11", weight=3)
    def misuse(self, data: Drawing) -> None:
        """Takes, touches, frees, caches or evicts with one fault; constructs a pool badly."""
        acts = [self.get_badly, self.free_badly, self.free_badly, self.construct_badly]
        acts += [self.touch_badly] if self.offers("pool", "touch") else []
        acts += [self.cache_badly] * 3 if self.caching and self.held and self.offers("pool", "cache_full_pages") else []
        acts += [self.evict_badly] if self.offers("pool", "evict_pages") else []
        data.one_of(acts)(data)

    def construct_badly(self, data: Drawing) -> None:
        """A pool needs 2 pages and a bool."""
        arguments: tuple[Any, ...] = data.one_of([(1, True), (True, True), (4.0, True), (-3, True), (4, 1)])
        line = f"PagePool{arguments}"
        self.refuse(line, "R1", "one of them is wrong", lambda side: side.names.get("PagePool")(*arguments))

    def get_badly(self, data: Drawing) -> None:
        """No int, a negative number, or more than are free."""
        count = data.likely([len(self.free) + 1, -1], NO_INTS)
        line = f"pool.get_new_pages({count!r})"
        self.refuse(line, "POOL-4", f"{len(self.free)} are free", lambda side: side.pool.get_new_pages(count))

    def strange_page(self) -> Any:
        """A page of another pool."""
        return self.backend.names.get("PagePool")(3, True).get_new_pages(1)[0]

    def touch_badly(self, data: Drawing) -> None:
        """A free page without a hash, another pool's page, no page, no list; good pages stand before it."""
        good = some(data, self.touchable(), most=2)
        bare = [page for page in self.free if self.resident is not None and page not in self.resident]
        fault = data.one_of([*bare[:2], "a page of another pool", "no page", *NO_LISTS[:2]])
        views: list[Any] = self.views(good)
        groups: Any = [views, fault]
        if fault not in NO_LISTS:
            last = self.strange_page() if fault == "a page of another pool" else fault
            groups = [[*views, self.backend.pages[fault] if isinstance(fault, int) else last]]
        line = f"pool.touch([{good}, {fault!r}])"
        why = f"{fault!r} is no list of pages, no page of this pool, or free and without a hash"
        self.refuse(line, "POOL-6", why, lambda side: side.pool.touch(groups))

    def free_badly(self, data: Drawing) -> None:
        """A mention too many, a free page, another pool's page, no page, no list; good pages stand before it."""
        good = some(data, self.held, most=2)
        page = data.one_of([*self.held, *self.counts])
        left = self.counts[page] - Counter(good)[page]
        fault: Any = data.one_of(["too often", "too often", "a page of another pool", "no page", *NO_LISTS])
        views: Any = self.views(good)
        if fault == "too often":
            shown = f"{[*good, *[page] * (left + 1)]}"
            views += self.views([page] * (left + 1))
        elif fault in NO_LISTS:
            shown, views = repr(fault), fault
        else:
            shown = f"[{', '.join(map(str, [*good, fault]))}]"
            views.append(self.strange_page() if fault == "a page of another pool" else fault)
        why = f"held are {[page for page in self.held for _ in range(self.counts[page])]}"
        self.refuse(f"pool.free_pages({shown})", "POOL-5", why, lambda side: side.pool.free_pages(views))

    def cache_badly(self, data: Drawing) -> None:
        """Counts that don't fit, too few tokens; a page that is free or cached already, another pool's page."""
        page = data.one_of(self.held)
        size = self.page_size
        cached = [page for page in self.held if page in (self.resident or [])]
        pages: list[Any] = [*self.free[:1], *cached[:1] * 2, "a page of another pool"]
        kind = data.one_of(["counts", "tokens", "page", "page"])
        fault: Any = page if kind != "page" else data.one_of(pages)
        if kind != "page" and page in cached:
            raise Nothing
        counts = data.one_of([(2, 1), (0, 2), (0, -1)]) if kind == "counts" else (0, 1)
        tokens = [0] * (size - 1 if kind == "tokens" else 4 * size)
        view = self.backend.pages[fault] if isinstance(fault, int) else self.strange_page()
        clause = "POOL-8" if kind == "page" and isinstance(fault, int) else "R1"
        self.refuse(
            f"pool.cache_full_pages(Request('r', {tokens}), [{fault}], [], {counts[0]}, {counts[1]}, "
            f"page_size={size}, kv_cache_group_id=0)",
            clause,
            f"wrong {kind}",
            lambda side: side.pool.cache_full_pages(Request("r", tokens), [view], [], *counts, size, 0),
        )

    def evict_badly(self, data: Drawing) -> None:
        """Ids of no page, after ids of pages; no list."""
        wrong = data.likely([-1, self.num_pages], NO_INTS)
        evicted: Any = data.one_of([[*some(data, self.resident or [], most=2), wrong]] * 3 + [1])
        line = f"pool.evict_pages({evicted!r})"
        self.refuse(line, "POOL-11", f"{wrong!r} is no page", lambda side: side.pool.evict_pages(evicted))
