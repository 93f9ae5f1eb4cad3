"""The machines of page pools: one pool, its free queue, its cached map, the views of its pages; pins and priorities."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st

from kvproof.spec.declarations import CacheSalt, ExtraKey, HashFunction, MultimodalItem, Request
from kvproof.spec.pool.hashing import PageHash, hash_request_tokens

from ..backends.capabilities import ESSENTIALS
from ..calls.datum import Call, GoneError, Hashed, Key, Prompt, Ref, resolve
from ..calls.method import Table
from ..calls.pool import POOL, Views
from ..calls.queue import PAGE, QUEUE
from ..calls.source import Source
from ..calls.values import EXTRA_KEYS
from .base import Both, Field, Side
from .calling import Calling, Calls
from .draws import Drawing
from .pins import PINNED
from .pool_state import SELDOM_EVERY, order_clause, pin_fields, pool_fields
from .properties import start, step

__all__ = ["Pool", "PoolMachine", "PoolPins"]


_WRONG_DIGEST = b"no key"
"""The digest of a key that is no page's."""


@functools.lru_cache(maxsize=1024)
def _chain(
    hash_function: HashFunction, root: bytes, tokens: tuple[int, ...], extra_keys: tuple[ExtraKey, ...], page_size: int
) -> tuple[PageHash, ...]:
    """The keys of a request's pages."""
    request = Request("r", tokens, extra_keys)
    return tuple(hash_request_tokens(hash_function, page_size, request, none_hash=root))


class PoolMachine(Calling):
    """Two pools side by side.

    A side has ``pool``, its ``pages`` by id, ``other``: a page of another pool, and ``keys``: its own for each of the
    spec's.

    Attributes:
        named: of each page that a call gave, the call, and its place in the result.
        lists: the page lists that calls gave, by the calls' numbers.
        sequences: tokens that were cached.
        key_of: where each key that was seen comes from.
    """

    tables: ClassVar[tuple[Table, ...]] = (POOL, PAGE, QUEUE)
    strangers: ClassVar[Mapping[int | str, str]] = {"other": "a page of another pool"}
    needs: ClassVar[tuple[str, ...]] = ESSENTIALS["PagePool"][:1]  # its methods may stand in each pool itself
    always = frozenset(
        {
            "R1",
            "POOL-1",
            "POOL-2",
            "POOL-3",
            "POOL-5",
            "POOL-7",
            "POOL-8",
            "POOL-10",
            "HASH-1",
            "HASH-2",
            "HASH-3",
            "MAN-12",
            "EVICT-1",
        }
    )

    extra_keys: ClassVar[tuple[tuple[ExtraKey, ...], ...]] = ((),) * (7 * len(EXTRA_KEYS)) + EXTRA_KEYS
    hash_seed = b"kvproof"
    pooled = True
    seeded = False
    unhashed_first = False
    tells = False
    caching = True
    order = "POOL-3"

    def build_pool(self, num_pages: int, caching: bool, **wanted: Any) -> None:
        """Builds both pools, with those options that the backend's constructor knows."""
        options = self.options_taken("PagePool", {"hash_seed": self.hash_seed, **wanted})
        self.named: dict[int, Ref] = {}
        self.lists: dict[int, list[int]] = {}
        self.sequences: list[tuple[int, ...]] = []
        self.key_of: dict[PageHash, Key] = {}
        self.seeded, self.caching = "hash_seed" in options and not self.lacks("keys"), caching
        self.unhashed_first = bool(options.get("unhashed_first"))
        self.tells = self.seeded and bool(options.get("enable_events"))
        shown = "".join(f", {name}={value!r}" for name, value in options.items())
        things = {
            "pool": Call(None, "PagePool", {"num_pages": num_pages, "enable_caching": caching, **options}),
            "pages": Views(Ref("pool"), not self.lacks("queue")),
            "other_pool": Call(None, "PagePool", {"num_pages": 3, "enable_caching": True}),
            "others": Call(Ref("other_pool"), "get_new_pages", {"num_pages": 1}),
            "other": Ref("others", (0,)),
            "keys": {},
        }
        self.build_things(f"pool = PagePool({num_pages}, {caching}{shown})", "POOL-3", things)
        for side in (self.spec, self.backend):
            side.find_key = lambda key, side=side: self._own_key(side, key)
        null = set() if hasattr(self.backend.pool, "null_page") else {0}
        self.check(
            "POOL-3", "pages of a fresh pool", list(range(num_pages)), lambda: sorted({*null, *self.backend.pages})
        )
        self.order = order_clause(options)
        self.watch(*self.state_fields(options))

    def state_fields(self, options: Mapping[str, Any]) -> list[Field]:
        """What pools made with some options show."""
        lacks = frozenset(filter(self.lacks, ("queue", "keys")))
        linked = "queue" not in lacks and hasattr(
            getattr(self.backend.pool, "free_page_queue", None), "fake_free_list_head"
        )
        counted = "counter_sampling" in options and self.offers("pool", "counters")
        return [
            *pool_fields(self.seeded, weak=False, lacks=lacks, order=self.order),
            *((Field.of("neighbours of free pages", aside=True, every=SELDOM_EVERY),) if linked else ()),
            *(pin_fields() if "max_pinned_pages" in options else ()),
            *((Field.of("counters of the pool", aside=True),) if counted else ()),
        ]

    def target_of(self, table: Table, source: Source) -> Ref:
        """See `Calling.target_of`."""
        if table is PAGE:
            return self.ref(source.one_of([*self.owned, 0]))
        return Ref("pool") if table is POOL else Ref("pool", (".free_page_queue",))

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
        return self.order

    def mentions(self) -> list[int]:
        """The held pages, each as often as it is held."""
        return [page for page in self.owned for _ in range(self.count(page))]

    def touchable(self) -> list[int]:
        """The pages that are held or cached."""
        return [page for page in self.owned if self.count(page) or self.hashed(page)]

    def bare(self) -> list[int]:
        """The pages that are neither."""
        return [page for page in self.owned if not self.count(page) and not self.hashed(page)]

    def cached(self) -> list[int]:
        """The pages that have a hash."""
        return [page for page in self.owned if self.hashed(page)]

    def unhashed(self) -> list[int]:
        """The pages that have none."""
        return [page for page in self.owned if not self.hashed(page)]

    def cacheable(self) -> list[int]:
        """The pages that can be cached: held ones without a hash."""
        return [page for page in self.owned if self.count(page) and not self.hashed(page)]

    def shared_keys(self) -> list[Key]:
        """The keys that several pages are cached under."""
        shared = [key.page_hash for key, pages in self.spec.pool.cached_page_hash_to_page.items() if len(pages) > 1]
        return [self.key_of[key] for key in shared if key in self.key_of]

    def known_keys(self) -> list[Key]:
        """Every key that was seen so far."""
        return list(self.key_of.values())

    # -- Names for pages and keys --------------------------------------------------------------------------

    def ref(self, page_id: int) -> Ref:
        """A page, by the call that gave it last; by its id if none did."""
        return self.named.get(page_id, Ref("pages", (page_id,)))

    def named_now(self, ref: Ref) -> Ref:
        """See `Calling.named_now`: a page has an id."""
        page_id = getattr(self.spec.thing(ref), "page_id", None)
        return ref if page_id is None else replace(ref, otherwise=Ref("pages", (page_id,)))

    def ids(self, pages: Any) -> list[int]:
        """The ids of the pages in an argument."""
        given = resolve(pages, self.spec)
        return [int(page.page_id) for page in given if hasattr(page, "page_id")] if hasattr(given, "__iter__") else []

    def whole_lists(self) -> list[Ref]:
        """The page lists that calls gave, whose pages are all still held."""
        return [Ref(number) for number, pages in self.lists.items() if pages and all(map(self.count, pages))]

    def keys_of(self, prompt: Prompt, page_size: int) -> list[Key]:
        """The keys of a request's pages; none, if the backend's own are not known."""
        keys = [Key(prompt, page_size, place) for place in range(len(prompt.tokens) // page_size)]
        known = self.seeded or all(self._spec_key(key) in self.backend.keys for key in keys)
        return keys if known else []

    def keys_at_once(self, prompt: Prompt, page_size: int) -> Hashed | None:
        """All keys of a request as the function that makes keys gives them; None if the pool's may be others."""
        asked = ("hash_request_tokens", "init_none_hash", "sha256")
        names = self.backend.names
        gives = all(map(names.offers, asked)) and names.accepts("hash_request_tokens", "none_hash")
        return Hashed(prompt, page_size, self.hash_seed) if self.seeded and gives else None

    def keys_of_others(self, prompt: Prompt, page_size: int, num_pages: int) -> list[Hashed]:
        """The same of requests that are unlike this one in the first or the last of some pages.

        With other tokens there, with an item more that lies there, or with other extra keys.
        """
        ends = sorted({0, (max(num_pages, 1) - 1) * page_size})
        items = [MultimodalItem(b"another", place, 1) for place in ends]
        tokens = [(*prompt.tokens[:place], 1 - prompt.tokens[place], *prompt.tokens[place + 1 :]) for place in ends]
        others = [replace(prompt, extra_keys=(*prompt.extra_keys, item)) for item in items]
        others += [replace(prompt, extra_keys=keys) for keys in EXTRA_KEYS]
        others += [replace(prompt, tokens=other) for other in tokens] * 2
        own = self._chain_of(prompt, page_size)[:num_pages]
        found = [other for other in others if self._chain_of(other, page_size)[:num_pages] != own]
        return [Hashed(other, page_size, self.hash_seed) for other in found]

    def _chain_of(self, prompt: Prompt, page_size: int) -> tuple[PageHash, ...]:
        pool = self.spec.pool
        return _chain(pool.hash_function, pool.none_hash, prompt.tokens, prompt.extra_keys, page_size)

    def _spec_key(self, key: Key) -> PageHash:
        keys = self._chain_of(key.prompt, key.page_size)
        if not key.place < len(keys):
            raise GoneError(str(key))
        found = keys[key.place]
        return PageHash(_WRONG_DIGEST, found.token_ids, found.extra_keys) if key.made_by_hand else found

    def _own_key(self, side: Side, key: Key) -> Any:
        """A side's own key for one of the specification's."""
        found = self._spec_key(key)
        offered = side.names.offers("PageHash") and side.names.offers("PageHashWithGroupId")
        names = side.names if offered else self.spec.names
        if side is self.spec or found in side.keys:
            own = side.keys.get(found, found)
        elif self.seeded or key.made_by_hand:
            own = names.get("PageHash")(*found) if names is side.names else found
        else:
            raise GoneError(str(key))
        return own if key.group is None else names.get("PageHashWithGroupId")(own, key.group)

    def learn(self, call: Call, both: Both) -> None:
        """See `Calling.learn`: where pages and keys come from."""
        if call.method == "get_new_pages":
            self.lists[call.number] = [int(page.page_id) for page in both.spec]
            for place, page in enumerate(self.lists[call.number]):
                self.named[page] = Ref(call.number, (place,), Ref("pages", (page,)))
        if call.method == "cache_full_pages":
            self._learn_keys(call.arguments)

    def _learn_keys(self, given: Mapping[str, Any]) -> None:
        """Notes the keys that a call gave to pages; a view that shows none tells none."""
        for page_id in self.cached():
            found = self.spec.pages[page_id].page_hash.page_hash
            own = getattr(self.backend.pages[page_id], "page_hash", None)
            if own is not None:
                self.spec.keys.setdefault(found, found)
                self.backend.keys.setdefault(found, getattr(own, "page_hash", own))
        for place in range(given["num_cached_pages"], given["num_full_pages"]):
            key = Key(given["request"], given["page_size"], place)
            found = self._spec_key(key)
            if found in self.spec.keys:  # the null page shows no key
                self.key_of.setdefault(found, key)


class Pool(PoolMachine):
    """Takes, touches, frees, caches, evicts, looks up and resets; sets what the views of pages let one set."""

    name = "pool"
    examples = 110

    @start(
        num_pages=st.integers(3, 9),
        caching=st.sampled_from([True, True, True, True, True, False]),
        unhashed_first=st.booleans(),
        eviction=st.sampled_from([None, None, None, "reuse", "adaptive"]),
        tells=st.booleans(),
    )
    def construct(self, num_pages: int, caching: bool, unhashed_first: bool, eviction: str | None, tells: bool) -> None:
        """A fresh pool of one policy or another: its free pages stand in the order of their ids."""
        wanted: dict[str, Any] = {"unhashed_first": True} if unhashed_first else {}
        wanted |= {"enable_events": True, "counter_sampling": 1} if tells else {}
        self.build_pool(num_pages, caching, **wanted, **({"eviction": eviction} if eviction else {}))

    @step("POOL-5", "POOL-9", "POOL-11", "POOL-13")
    def forget(self, source: Drawing) -> Calls:
        """Drops the hashes of some pages, held or free, hashed or not; or every hash, if no page is in use."""
        if source.integer(0, 2) < 2 and self.offers("pool", "evict_pages"):
            yield self.drawn(POOL["evict_pages"], source)
            return
        held = self.mentions()
        if held and source.integer(0, 1) == 0:
            yield self.call_of("free_pages", Ref("pool"), ordered_pages=[self.ref(page) for page in held])
        yield self.drawn(POOL["reset_prefix_cache"], source)

    @step("POOL-7", "POOL-11", when=lambda self: self.caching and self.spec.pool.get_num_free_pages() > 2, weight=2)
    def evict_where_two_part(self, source: Drawing) -> Calls:
        """Two requests begin alike; from where they part on, and before that as well, their pages are evicted."""
        most = self.spec.pool.get_num_free_pages() - 2
        alike = source.integer(1, min(most, 3))
        lengths = source.integer(1, min(most - alike + 1, 3)), source.integer(1, 3)
        taken: list[Ref] = []
        for token, own in enumerate(lengths):
            own = min(own, self.spec.pool.get_num_free_pages())
            call = self.call_of("get_new_pages", Ref("pool"), num_pages=own if taken else alike + own)
            if (yield call).refused:
                return
            new = [self.ref(page) for page in self.lists[call.number]]
            yield self.call_of(
                *("cache_full_pages", Ref("pool")),
                request=Prompt((0,) * alike + (token,) * own),
                pages=[*taken[:alike], *new],
                page_hashes=[],
                num_cached_pages=len(taken[:alike]),
                num_full_pages=alike + own,
                page_size=1,
                kv_cache_group_id=0,
            )
            taken += new
        if self.offers("pool", "evict_pages"):
            behind = taken[source.one_of([alike, alike, source.integer(0, alike)]) :]
            gone = source.some(behind, len(behind), max(len(behind) - source.integer(0, 1), 1))
            yield self.call_of("evict_pages", Ref("pool"), page_ids=[page.to(".page_id") for page in gone])

    @step("POOL-11", when=lambda self: not self.lacks("views"))
    def set_on_view(self, source: Drawing) -> Calls:
        """Sets what a page view lets one set; what would break the pool's order is refused."""
        yield self.drawn(source.one_of(PAGE.rows), source)

    @step("POOL-4", "POOL-6", "POOL-11", "R2", weight=2)
    def misuse(self, source: Drawing) -> Calls:
        """Makes a call with one fault."""
        yield self.spoilt(source.one_of(self.spoilable()), source)

    @step("POOL-2", when=lambda self: not self.lacks("views"))
    def misuse_views(self, source: Drawing) -> Calls:
        """Sets a count that is none; moves pages in the queue, which can be looked at, and only the pool moves them."""
        if self.lacks("queue") or source.integer(0, 1) == 0:
            yield self.spoilt(PAGE["ref_cnt"], source)
            return
        page = self.ref(source.one_of(self.owned))
        given: dict[str, dict[str, Any]] = {
            "popleft": {},
            "popleft_n": {"n": 1},
            "remove": {"page": page},
            "append": {"page": page},
            "append_n": {"pages": [page]},
        }
        name = source.one_of(list(given))
        yield self.call_of(name, Ref("pool", (".free_page_queue",)), **given[name])


class PoolPins(Pool):
    """Pages are held, pinned, both or neither; cached for two tenants or for nobody in particular."""

    name = "pool_pins"
    capability = "pins"
    examples = 50
    needs: ClassVar[tuple[str, ...]] = (
        *("PagePool", "PagePool.pin", "PagePool.unpin", "PagePool.set_priority", "PagePool.advance_time"),
        "PagePool(max_pinned_pages)",
    )
    always = Pool.always | {"PIN-1", "PIN-2"}
    extra_keys: ClassVar[tuple[tuple[ExtraKey, ...], ...]] = ((), (), (CacheSalt("a"),), (CacheSalt("b"),))

    @start(num_pages=st.integers(4, 9), options=st.sampled_from((*PINNED[1:4], *PINNED)))
    def construct(self, num_pages: int, options: dict[str, Any]) -> None:
        """A fresh pool with bounds of what may be pinned."""
        self.build_pool(num_pages, True, **options)
        self.now = 0.0

    def count(self, page_id: int) -> int:
        """See `PoolMachine.count`: nobody frees what is held by a pin."""
        return super().count(page_id) - int(self.spec.pool.pins_of(page_id))

    def in_order(self) -> str:
        """See `PoolMachine.in_order`."""
        return "PIN-2" if self.ranks_any() else super().in_order()

    @property
    def pinned(self) -> list[int]:
        """The pinned pages, each as often as it is pinned."""
        return [page for page in self.owned for _ in range(self.spec.pool.pins_of(page))]

    def learn(self, call: Call, both: Both) -> None:
        """See `Calling.learn`: how late it is."""
        super().learn(call, both)
        if call.method == "advance_time":
            self.now = call.arguments["now"]

    def ranks_any(self) -> bool:
        """Whether any page has a priority."""
        return any(self.spec.pool.get_priority(page) for page in self.owned)

    @step("PIN-1", when=lambda self: self.cached(), weight=5)
    def pin_within_bounds(self, source: Drawing) -> Calls:
        """Pins cached pages; where several are pinned, some are unpinned first."""
        if len(self.pinned) > 2:
            yield self.drawn(POOL["unpin"], source)
        if self.cached():
            yield self.drawn(POOL["pin"], source)

    def idle(self) -> list[int]:
        """The cached pages that nobody holds."""
        return [page for page in self.cached() if not self.spec.pages[page].ref_cnt]

    @step("PIN-2", when=lambda self: len(self.idle()) > 1, weight=2)
    def rank_again(self, source: Drawing) -> Calls:
        """Free pages get one priority, then one of them the same again, perhaps with an end: it keeps its place."""
        priority, idle = source.one_of([1, -1]), [self.ref(page) for page in self.idle()]
        pool, end = Ref("pool"), self.now + 1
        yield self.call_of("set_priority", pool, pages=idle, priority=priority)
        ends = {"expires_at": end} if source.one_of([False, True]) else {}
        yield self.call_of("set_priority", pool, pages=[source.one_of(idle)], priority=priority, **ends)

    @step("PIN-1", when=lambda self: self.pinned)
    def free_what_is_pinned(self, source: Drawing) -> Calls:
        """Frees a pinned page more often than it is held: `free_pages` does not remove a pin."""
        page = source.one_of(self.pinned)
        mentions = [self.ref(page)] * (self.count(page) + 1)
        yield self.call_of("free_pages", self.target_of(POOL, source), ordered_pages=mentions)
