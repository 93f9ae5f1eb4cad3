"""What the steps of the manager machine share: the two managers, the requests, and who is to blame for a hit."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvproof.spec.declarations import ExtraKey, Request
from kvproof.spec.hashing import request_extra_keys

from .base import Both, Field, Machine, Side
from .hash import weak
from .pool_state import page_list, page_views, pool_fields, pool_options

__all__ = ["Case", "ManagerMachine", "found_pages", "page_lists"]


@dataclass
class Case:
    """A request as the machine plays it.

    Attributes:
        request: the engine's object; both managers get the same one.
        live: whether it was given slots and not yet freed.
        given: tokens up to which it was given slots, look-ahead left out.
        slots: tokens up to which it was given slots, look-ahead included.
        found: the last look-up's result.
        earlier: what the id stood for before: tokens and extra keys.
    """

    request: Request
    live: bool = False
    given: int = 0
    slots: int = 0
    found: Both | None = None
    earlier: list[tuple[list[int], tuple[ExtraKey, ...]]] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """The request's tokens."""
        return [int(token) for token in self.request.all_token_ids]


def page_lists(pages: Any, side: Any) -> Any:
    """What a manager returned: the ids of each group's pages, or None."""
    return None if pages is None else [page_list(group, side) for group in pages.pages]


def found_pages(found: Any, side: Any) -> Any:
    """What a look-up returned: the ids of each group's pages, and how many tokens they hold."""
    return page_lists(found[0], side), int(found[1])


class ManagerMachine(Machine):
    """Two managers side by side. A side has ``manager``, its ``pool``, and ``pages`` by id."""

    needs = ("CacheManager", "CachePages")
    always = frozenset(
        {"R1", "R2", "POOL-1", "POOL-2", "POOL-3", "POOL-5", "POOL-7", "POOL-8", "POOL-10", "HASH-1", "HASH-2"}
        | {"HASH-3", "MAN-1", "MAN-2", "MAN-6"}
    )

    def build_managers(
        self, num_pages: int, page_size: int, max_model_len: int, caching: bool, grouped: bool, wanted: dict[str, Any]
    ) -> None:
        """Builds both managers, with those options that the backend's constructor knows."""
        options = pool_options((self.spec.names, self.backend.names), "CacheManager", wanted)
        self.cases: dict[str, Case] = {}
        self.page_size, self.max_model_len, self.grouped = page_size, max_model_len, grouped
        self.caching = caching and grouped
        self.unhashed_first = bool(options.get("unhashed_first"))
        shown = "".join(f", {name}={getattr(value, '__name__', repr(value))}" for name, value in options.items())

        def act(side: Side) -> dict[str, Any]:
            offered = side.names.offers("CacheGroupSpec") and side.names.offers("FullAttentionSpec")
            names = side.names if offered else self.spec.names
            group = names.get("CacheGroupSpec")(names.get("FullAttentionSpec")(page_size, 1, 8, "float32"), ("layer",))
            manager = side.names.get("CacheManager")(
                num_pages, [group] if grouped else [], max_model_len, caching, **options
            )
            return {"manager": manager, "pool": manager.page_pool, "pages": page_views(manager.page_pool)}

        groups = f"[full attention, {page_size=}]" if grouped else "[]"
        self.build(f"manager = CacheManager({num_pages}, {groups}, {max_model_len=}, {caching=}{shown})", "MAN-2", act)
        self.watch(
            Field("pages of requests", "MAN-2", self.read_page_ids),
            *pool_fields("hash_seed" in options, options.get("hash_function") is weak),
            Field("usage of the manager", "POOL-10", lambda side: round(float(side.manager.usage), 9)),
        )

    def read_page_ids(self, side: Any) -> dict[str, list[list[int]]]:
        """The pages of every request ever seen."""
        return {name: [list(map(int, group)) for group in side.manager.get_page_ids(name)] for name in self.cases}

    # -- Requests ---------------------------------------------------------------------------------------

    def names_of(self, live: bool) -> list[str]:
        """The ids that are live, or that are not."""
        return [name for name, case in self.cases.items() if case.live == live]

    def look_up(self, name: str, line: str | None = None) -> Both:
        """Looks a request up on both sides; nothing changes in the pool."""
        case = self.cases[name]
        found = self.call(
            line or f"manager.get_computed_pages({name})",
            lambda side: side.manager.get_computed_pages(case.request),
            "MAN-1",
            found_pages,
            "MAN-1",
            lambda _, observed: self.blame_hit(case, observed),
            also=("R2", "MAN-6", "HASH-2"),
        )
        case.found = found
        return found

    def blame_hit(self, case: Case, observed: Any) -> str:
        """The clause of a wrong look-up: whose content do the pages hold that the backend found beyond?"""
        if not isinstance(observed[0], list) or not observed[0] or not isinstance(observed[0][0], list):
            return "MAN-1"
        right = self.contents(case.tokens, case.request.extra_keys)
        for place, page_id in enumerate(observed[0][0]):
            page = self.spec.pages.get(page_id)
            content = None if page is None else self.spec.pool.content_of(page)
            if place < len(right) and content == right[place]:
                continue
            if any(self.contents(*earlier)[place : place + 1] == [content] for earlier in case.earlier):
                return "MAN-6"
            others = {other.request.extra_keys for other in self.cases.values()} - {case.request.extra_keys}
            if any(self.contents(case.tokens, keys)[place : place + 1] == [content] for keys in others):
                return "HASH-2"
            return "R2"
        return "MAN-1"

    def contents(self, tokens: list[int], extra_keys: Iterable[ExtraKey]) -> list[int]:
        """The ids of the contents of a sequence's full pages."""
        pool = self.spec.pool
        full = len(tokens) // self.page_size
        keys = request_extra_keys(Request("r", [], extra_keys))
        return [content for _, content in pool.extend_chain([], tokens, keys, self.page_size, full)]

    # -- Calls that several steps make -------------------------------------------------------------------

    def allocate(self, name: str, new: Any, found: Both | None = None, **options: Any) -> Both:
        """Allocates slots on both sides.

        Args:
            name: the request's id.
            new: tokens to be computed.
            found: a look-up's result that is handed back.
            options: the other arguments.
        """
        case = self.cases[name]
        tokens = found.spec[1] if found is not None else 0
        shown = "".join(f", {option}={value!r}" for option, value in options.items())
        with_hits = f", {tokens}, {found.spec[0]!r}" if found is not None else ""
        at = f"  [num_computed_tokens={case.request.num_computed_tokens}]" if case.request.num_computed_tokens else ""
        allocated = self.call(
            f"manager.allocate_slots({name}, {new!r}{with_hits}{shown}){at}",
            lambda side: side.manager.allocate_slots(
                case.request, new, *([tokens, found.of(self, side)[0]] if found is not None else []), **options
            ),
            "MAN-2",
            page_lists,
            dict.fromkeys(("ref_cnt", "free pages", "numbers of free pages", "null page"), "MAN-2")
            | dict.fromkeys(("hashed pages", "cached map"), "MAN-3"),
        )
        if not allocated.refused and allocated.spec is not None:
            if not case.live:
                case.given = case.slots = 0
            case.live = True
            promised = int(case.request.num_computed_tokens + tokens + new)
            case.given = max(case.given, promised)
            ahead = promised + options.get("num_lookahead_tokens", 0)
            case.slots = max(case.slots, min(ahead, self.max_model_len))
        return allocated
