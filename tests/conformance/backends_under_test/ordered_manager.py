"""The cache manager of the ordered backend: one group of full attention, or none."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from kvproof.spec.declarations import CacheGroupSpec, EngineRequest, FullAttentionSpec

from .ordered_keys import Hasher, PageHash, sha256
from .ordered_pool import Content, Page, PagePool, Pages
from .ordered_reading import items, number, token_ids, truth

__all__ = ["CacheManager", "CachePages"]

_FIELDS = (
    "request_id",
    "all_token_ids",
    "num_tokens",
    "num_computed_tokens",
    "status",
    "extra_keys",
    "sampling_params",
)


class CachePages:
    """Pages, group by group."""

    def __init__(self, pages: Iterable[Iterable[Page]]) -> None:
        self.pages = tuple(Pages(group) for group in pages)

    def __add__(self, other: "CachePages") -> "CachePages":
        return CachePages(one + two for one, two in zip(self.pages, other.pages, strict=True))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CachePages) and self.pages == other.pages

    def __hash__(self) -> int:
        return hash(self.pages)

    def __repr__(self) -> str:
        return f"CachePages({self.get_page_ids()})"

    def get_page_ids(self) -> tuple[list[int], ...]:
        """Their ids."""
        return tuple([page.page_id for page in group] for group in self.pages)

    def get_unhashed_page_ids(self) -> list[int]:
        """The ids of those that are not cached, of one group."""
        if len(self.pages) != 1:
            raise ValueError(f"{len(self.pages)} groups")
        return [page.page_id for page in self.pages[0] if page.filed is None and not page.is_null]

    def new_empty(self) -> "CachePages":
        """No pages, in as many groups."""
        return CachePages(() for _ in self.pages)


class _Life:
    """A live request: its pages by place, and how far it has come."""

    def __init__(self, request: Any, hits: list[Page]) -> None:
        self.request = request
        self.pages = OrderedDict(enumerate(hits))
        self.hits = self.published = len(hits)
        self.computed = self.promised = self.slots = 0


class CacheManager:
    """See the contract."""

    def __init__(
        self,
        num_pages: int,
        kv_cache_groups: Sequence[CacheGroupSpec],
        max_model_len: int,
        enable_caching: bool = True,
        *,
        hash_seed: bytes | None = None,
        hash_function: Hasher = sha256,
        unhashed_first: bool = False,
    ) -> None:
        groups = items(kv_cache_groups)
        if not all(isinstance(group, CacheGroupSpec) for group in groups):
            raise TypeError(f"a {type(groups).__name__} is no list of groups")
        if len(groups) > 1 or any(type(group.kv_cache_spec) is not FullAttentionSpec for group in groups):
            raise ValueError("this manager serves one group of full attention")
        self.size = number(groups[0].kv_cache_spec.page_size, least=1) if groups else 0
        self.max_model_len = number(max_model_len, least=1)
        self.enable_caching = truth(enable_caching) and bool(groups)
        self.page_pool = PagePool(
            num_pages,
            self.enable_caching,
            hash_seed=hash_seed,
            hash_function=hash_function,
            unhashed_first=unhashed_first,
        )
        self.live: OrderedDict[str, _Life] = OrderedDict()

    @property
    def usage(self) -> float:
        """The share of pages that are held."""
        return self.page_pool.get_usage()

    # -- Reading ------------------------------------------------------------------------------------

    def name(self, request: Any) -> str:
        """Reads a request's id."""
        if not all(hasattr(request, field) for field in _FIELDS) or not isinstance(request.request_id, str):
            raise TypeError(f"{type(request).__name__} is no request")
        return str(request.request_id)

    def life(self, request: Any) -> _Life | None:
        """The state of a request, None if it is not live; another object under its id is refused."""
        known = self.live.get(self.name(request))
        if known is not None and known.request is not request:
            raise ValueError(f"{request.request_id!r} is live, as another object")
        if len(token_ids(request.all_token_ids)) != request.num_tokens:
            raise ValueError(f"num_tokens={request.num_tokens}")
        return known

    def wrapped(self, pages: Iterable[Page]) -> CachePages:
        """Pages of the one group; of none where there is none."""
        return CachePages([pages] if self.size else [])

    def chain(self, request: Any) -> list[tuple[PageHash, Content]]:
        """The key and the content of each full page of a request."""
        return self.page_pool.contents(request, self.size) if self.enable_caching else []

    # -- Calls --------------------------------------------------------------------------------------

    def get_computed_pages(self, request: EngineRequest) -> tuple[CachePages, int]:
        """The longest cached prefix."""
        self.life(request)
        chain = self.chain(request)[: (request.num_tokens - 1) // self.size if self.size else 0]
        if request.sampling_params is not None and request.sampling_params.prompt_logprobs is not None:
            chain = []
        found: list[Page] = []
        for key, content in chain:
            filed = self.page_pool.files.get((key, 0), {})  # type: ignore[call-overload]
            page = next((page for page in filed.values() if page.content == content), None)
            if page is None:
                break
            found.append(page)
        return self.wrapped(found), len(found) * self.size

    def allocate_slots(
        self,
        request: EngineRequest,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_pages: CachePages | None = None,
        num_lookahead_tokens: int = 0,
        delay_cache_pages: bool = False,
    ) -> CachePages | None:
        """Slots for new tokens; None if there is no room."""
        life = self.life(request)
        new, found = number(num_new_tokens, least=1), number(num_new_computed_tokens)
        ahead, late = number(num_lookahead_tokens), truth(delay_cache_pages)
        computed = number(request.num_computed_tokens)
        if not (life.computed if life else 0) <= computed <= (life.slots if life else 0):
            raise ValueError(f"num_computed_tokens={computed}")
        hits = self.hits(request, life, found, new_computed_pages)
        promised = computed + found + new
        if promised > self.max_model_len:
            raise ValueError(f"{promised} tokens")
        slots = min(promised + ahead, self.max_model_len)
        held = len(life.pages) if life else len(hits)
        lacking = max((slots + self.size - 1) // self.size - held, 0) if self.size else 0
        if life is not None:
            life.computed = computed
        if lacking + sum(not page.holders for page in hits) > len(self.page_pool.free):
            return None
        if life is None:
            self.page_pool.touch([hits])
            life = self.live[request.request_id] = _Life(request, hits)
            life.computed = found
        pages = self.page_pool.get_new_pages(lacking)
        for page in pages:
            life.pages[len(life.pages)] = page
        life.promised, life.slots = max(life.promised, promised), max(life.slots, slots)
        if not late:
            self.publish(life, promised)
        return self.wrapped(pages)

    def hits(self, request: Any, life: _Life | None, found: int, given: CachePages | None) -> list[Page]:
        """Reads pages that are said to hold a request's prefix."""
        if given is None:
            given = self.wrapped(())
        if not isinstance(given, CachePages):
            raise TypeError(f"a {type(given).__name__} is no CachePages")
        if len(given.pages) != (1 if self.size else 0):
            raise ValueError(f"{len(given.pages)} groups")
        hits = [page for group in given.pages for page in group]
        if any(page.pool is not self.page_pool for page in hits) or found != len(hits) * self.size:
            raise ValueError(f"{found} tokens in {hits!r}")
        if hits and (life is not None or not self.enable_caching or found > request.num_tokens):
            raise ValueError(f"hits for {request.request_id!r}")
        for page, (_, content) in zip(hits, self.chain(request), strict=False):
            if page.filed is None or page.content != content:
                raise ValueError(f"{page!r} does not hold the prefix")
        return hits

    def publish(self, life: _Life, num_tokens: int) -> None:
        """Caches the full pages up to some tokens."""
        chain = self.chain(life.request)
        end = min(num_tokens, life.request.num_tokens) // self.size if self.enable_caching else 0
        for place in range(life.published, end):
            self.page_pool.file(life.pages[place], *chain[place], 0)
        life.published = max(life.published, end)

    def cache_pages(self, request: EngineRequest, num_computed_tokens: int) -> None:
        """Caches the full pages up to some tokens of a live request."""
        count, life = number(num_computed_tokens), self.life(request)
        if life is None or count > life.promised:
            raise ValueError(f"{count} tokens of {request.request_id!r}")
        self.publish(life, count)

    def free(self, request: EngineRequest, num_written: int | None = None) -> list[str]:
        """Gives a request's pages back."""
        written = None if num_written is None else number(num_written)
        life = self.live.get(self.name(request))
        if life is None or life.request is not request:
            return []
        lost: set[Page] = set()
        if written is not None and self.size:
            lost = {life.pages[place] for place in range(max(life.hits, written // self.size), life.published)}
        for page in lost:
            self.page_pool.forget(page)
        del self.live[request.request_id]
        self.page_pool.free_pages(reversed(life.pages.values()))
        return [name for name, other in self.live.items() if not lost.isdisjoint(other.pages.values())]

    def free_page_hashes(self, request: EngineRequest) -> None:
        """Keys are not kept: nothing is to be dropped."""
        self.name(request)

    def get_page_ids(self, request_id: str) -> tuple[list[int], ...]:
        """The ids of a request's pages."""
        if not isinstance(request_id, str):
            raise TypeError(f"a {type(request_id).__name__} is no str")
        life = self.live.get(request_id)
        return self.wrapped(life.pages.values() if life else ()).get_page_ids()

    def get_num_common_prefix_pages(self, request: EngineRequest, num_scheduled_requests: int) -> list[int]:
        """How many leading pages all running requests have in common."""
        count = number(num_scheduled_requests)
        running = [life for life in self.live.values() if life.request.status.name == "RUNNING"]
        if self.life(request) not in running:
            raise ValueError(f"{request.request_id!r} does not run")
        if not self.size:
            return []
        columns = list(zip(*(life.pages.values() for life in running), strict=False))
        same = [len(set(column)) == 1 for column in columns] if count == len(running) else []
        return [[*same, False].index(False)]

    def reset_prefix_cache(self) -> bool:
        """Makes all pages be found no more, if none is held."""
        return self.page_pool.reset_prefix_cache()

    def check(self) -> None:
        """Verifies the pool, and that each page is held as often as requests have it."""
        self.page_pool.check()
        for page in self.page_pool.all.values():
            held = sum(page in life.pages.values() for life in self.live.values())
            assert page.is_null or page.holders == held, f"page {page.page_id} is held {page.holders} times, by {held}"
