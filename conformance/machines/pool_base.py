"""What the steps of the pool machine share: the two pools, their pages by id, and a draw of a caching call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import ExtraKey, Request
from kvproof.spec.pool.hashing import PageHash, hash_request_tokens

from ..spelling import Spelling, request_as, request_source
from .base import Machine, Side
from .draws import EXTRA_KEYS, Drawing, one_of, rarely, some
from .manager_fields import pin_fields
from .pool_state import page_views, pool_fields, pool_options

__all__ = ["OTHER", "STRANGER", "WRONG_DIGEST", "Caching", "PoolMachine", "names"]

OTHER = "a page of another pool"
"""Stands for such a page in a drawn list."""

WRONG_DIGEST = b"no key"
"""The digest of a key that is no page's."""

STRANGER = "no page"
"""Stands for itself in a drawn list."""


def names(value: object) -> str:
    """A drawn list of pages as a report shows it."""
    return str(value).replace(repr(OTHER), f"<{OTHER}>")


@dataclass(frozen=True)
class Caching:
    """The arguments of one ``cache_full_pages``, pages by id."""

    spelling: Spelling
    tokens: tuple[int, ...]
    extra_keys: tuple[ExtraKey, ...]
    pages: list[Any]
    page_hashes: list[Any]
    num_cached_pages: Any
    num_full_pages: Any
    page_size: Any
    kv_cache_group_id: Any

    @property
    def line(self) -> str:
        """The call as a report shows it."""
        hashes = ", ".join(f"<{_key_name(place, key)}>" for place, key in enumerate(self.page_hashes))
        request = request_source(self.spelling, "r", self.tokens, self.extra_keys)
        return (
            f"pool.cache_full_pages({request}, {names(self.pages)}, [{hashes}], {self.num_cached_pages!r}, "
            f"{self.num_full_pages!r}, page_size={self.page_size!r}, kv_cache_group_id={self.kv_cache_group_id!r})"
        )

    def but(self, **changes: Any) -> "Caching":
        """The same arguments but for some."""
        return replace(self, **changes)


def _key_name(place: int, key: Any) -> str:
    if key == STRANGER:
        return "no key"
    return "a key of no page" if key.hash_value == WRONG_DIGEST else f"key of page {place}"


class PoolMachine(Machine):
    """Two pools side by side. A side has ``pool``, ``pages`` by id, and ``keys``: its own for each of the spec's."""

    needs: ClassVar[tuple[str, ...]] = ("PagePool",)
    always = frozenset(
        {"R1", "POOL-1", "POOL-2", "POOL-3", "POOL-5", "POOL-7", "POOL-8", "POOL-10", "HASH-1", "HASH-2", "HASH-3"}
    )

    extra_keys: ClassVar[tuple[tuple[ExtraKey, ...], ...]] = ((),) * (7 * len(EXTRA_KEYS)) + EXTRA_KEYS
    seeded = False
    unhashed_first = False
    caching = True

    def build_pool(self, num_pages: int, caching: bool, **wanted: Any) -> None:
        """Builds both pools, with those options that the backend's constructor knows."""
        options = pool_options((self.spec.names, self.backend.names), "PagePool", {"hash_seed": b"kvproof", **wanted})
        self.sequences: list[tuple[int, ...]] = []
        self.seeded, self.caching = "hash_seed" in options and not self.lacks("keys"), caching
        self.unhashed_first = bool(options.get("unhashed_first"))
        shown = "".join(f", {name}={value!r}" for name, value in options.items())

        def act(side: Side) -> dict[str, Any]:
            pool = side.names.get("PagePool")(num_pages, caching, **options)
            other = side.names.get("PagePool")(3, True)
            pages = page_views(pool, "queue" not in side.names.lacks)
            return {"pool": pool, "pages": pages, "other": other.get_new_pages(1)[0], "keys": {}}

        self.build(f"pool = PagePool({num_pages}, {caching}{shown})", "POOL-3", act)
        self.check("POOL-3", "pages of a fresh pool", list(range(num_pages)), lambda: sorted(self.backend.pages))
        lacks = frozenset(filter(self.lacks, ("queue", "keys")))
        fields = pool_fields(self.seeded, weak=False, lacks=lacks)
        self.watch(*fields, *(pin_fields() if "max_pinned_pages" in options else ()))

    # -- What the specification's pool shows -----------------------------------------------------------

    @property
    def owned(self) -> list[int]:
        """The ids of all pages but the null page."""
        return sorted(self.spec.pages)[1:]

    def count(self, page_id: int) -> int:
        """How often a page is held."""
        return int(self.spec.pages[page_id].ref_cnt)

    def hashed(self, page_id: int) -> bool:
        """Whether a page has a hash."""
        return self.spec.pages[page_id].page_hash is not None

    def in_order(self) -> str:
        """The clause that says in which order free pages are taken."""
        return "POOL-3"

    def holds_any(self) -> bool:
        """Whether any page is held."""
        return any(self.count(page_id) for page_id in self.owned)

    def cacheable(self) -> list[int]:
        """The pages that can be cached: held ones without a hash."""
        return [page_id for page_id in self.owned if self.count(page_id) and not self.hashed(page_id)]

    def known_keys(self) -> list[PageHash]:
        """Every key that was seen so far."""
        return list(self.spec.keys)

    def key_name(self, key: PageHash) -> str:
        """A key as a report shows it."""
        return f"<key {self.known_keys().index(key)}, of tokens {list(key.token_ids)}>"

    # -- Arguments --------------------------------------------------------------------------------------

    def page(self, side: Side, reference: Any) -> Any:
        """The page of a side that an entry of a drawn list stands for."""
        if reference == OTHER:
            return side.other
        return side.pages[reference] if isinstance(reference, int) else reference

    def pages_of(self, side: Side, references: Sequence[Any]) -> list[Any]:
        """The pages of a side that a drawn list stands for."""
        return [self.page(side, reference) for reference in references]

    def draw_caching(self, data: Drawing) -> Caching:
        """Draws the arguments of a ``cache_full_pages`` that is possible and caches at least one page."""
        size = one_of(data, [1, 1, 2])
        full = data.draw(st.integers(1, 3))
        known = [sequence for sequence in self.sequences if len(sequence) >= full * size]
        again: bool = one_of(data, [True, True, False])
        if known and again:
            tokens = one_of(data, known)  # so that there are duplicates
        else:
            tokens = tuple(data.draw(st.lists(st.sampled_from([0, 1]), min_size=full * size, max_size=full * size + 1)))
        self.sequences.append(tokens)
        extra_keys = one_of(data, self.extra_keys)
        first = data.draw(st.integers(0, full - 1))
        fresh = some(data, self.cacheable(), most=full - first, least=1)
        behind: list[int] = list(fresh)
        while len(behind) < full - first:
            behind.insert(data.draw(st.integers(0, len(behind))), 0)  # a null page: a released window page
        before = [one_of(data, [0, *self.owned]) for _ in range(first)]
        after = [one_of(data, self.owned)] if rarely(data) else []
        keys = self.keys_of(tokens, extra_keys, size)
        return Caching(
            self.token_spelling(data),
            tokens, extra_keys, before + behind + after, keys[: data.draw(st.integers(0, len(keys)))], first, full,
            size, one_of(data, [0] if self.lacks("groups") else [0, 0, 0, 1]),
        )  # fmt: skip

    def keys_of(self, tokens: tuple[int, ...], extra_keys: tuple[ExtraKey, ...], size: int) -> list[Any]:
        """The keys of a request's pages, as far as the backend's own are known."""
        pool = self.spec.pool
        request = Request("r", tokens, extra_keys)
        keys = list(hash_request_tokens(pool.hash_function, size, request, none_hash=pool.none_hash))
        known = [key for key in keys if self.seeded or key in self.backend.keys]
        return known if known == keys else []

    def key_of(self, side: Side, key: Any) -> Any:
        """A side's own key for one of the specification's."""
        if side is self.spec or not isinstance(key, PageHash):
            return key
        if key in side.keys:
            return side.keys[key]
        return side.names.get("PageHash")(*key) if side.names.offers("PageHash") else key

    def cache(self, call: Caching) -> None:
        """Makes the call, and keeps the keys that it gave."""
        self.call(
            call.line,
            lambda side: side.pool.cache_full_pages(
                request_as(call.spelling, "r", call.tokens, call.extra_keys),
                self.pages_of(side, call.pages),
                [self.key_of(side, key) for key in call.page_hashes],
                call.num_cached_pages,
                call.num_full_pages,
                call.page_size,
                call.kv_cache_group_id,
            ),
            "POOL-7",
        )
        for page_id in self.owned:
            if self.hashed(page_id):
                key = self.spec.pages[page_id].page_hash.page_hash
                self.spec.keys.setdefault(key, key)
                own = self.backend.pages[page_id].page_hash
                self.backend.keys.setdefault(key, getattr(own, "page_hash", own))
