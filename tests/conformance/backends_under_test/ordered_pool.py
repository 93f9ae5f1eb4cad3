"""The page pool of the ordered backend: page objects in an `OrderedDict`, whose order is the order of eviction."""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from .ordered_keys import Hasher, PageHash, PageHashWithGroupId, init_none_hash, keys_of_pages, sha256
from .ordered_reading import items, number, token_ids, truth

__all__ = ["Content", "Page", "PagePool", "Pages"]

Content = tuple[tuple[tuple[int, ...], Any], ...]
"""What a page holds: the tokens and the extra keys of it and of all pages before it."""


class Page:
    """A page of a pool."""

    def __init__(self, pool: "PagePool", page_id: int) -> None:
        self.pool, self.page_id = pool, page_id
        self.holders = 0
        self.filed: PageHashWithGroupId | None = None
        self.content: Content = ()

    @property
    def is_null(self) -> bool:
        """Whether it is the placeholder."""
        return self.page_id == 0

    @property
    def page_hash(self) -> PageHashWithGroupId | None:
        """The key that it is cached under."""
        return self.filed

    @page_hash.setter
    def page_hash(self, key: Any) -> None:
        raise ValueError(f"page {self.page_id} gets no {type(key).__name__} but by its pool")

    @property
    def ref_cnt(self) -> int:
        """How often it is held."""
        return self.holders

    @ref_cnt.setter
    def ref_cnt(self, count: Any) -> None:
        wanted = number(count)
        if wanted >= 2**31:
            raise ValueError(f"{wanted} fits no int32")
        if self.is_null:
            return
        if bool(wanted) != bool(self.holders):
            raise ValueError(f"page {self.page_id} is held {self.holders} times, not {wanted}")
        self.holders = wanted

    def incr_ref(self) -> None:
        """One holder more."""
        self.ref_cnt = self.holders + 1

    def decr_ref(self) -> None:
        """One holder less."""
        if not self.is_null:
            self.ref_cnt = self.holders - 1

    def reset_hash(self) -> None:
        """Forgets the key."""
        self.pool.evict_pages([self.page_id])

    def __repr__(self) -> str:
        return f"Page({self.page_id})"


class Pages(Sequence[Page]):
    """A list of pages that cannot be changed."""

    def __init__(self, pages: Iterable[Page]) -> None:
        self._all = tuple(pages)

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, place: Any) -> Any:
        return Pages(self._all[place]) if isinstance(place, slice) else self._all[place]

    def __iter__(self) -> Iterator[Page]:
        return iter(self._all)

    def __eq__(self, other: object) -> bool:
        return self._all == tuple(other) if isinstance(other, Pages | list) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._all)

    def __add__(self, other: Any) -> "Pages":
        return Pages((*self._all, *other))

    def __radd__(self, other: list[Page]) -> list[Page]:
        return [*other, *self._all]


class _Queue:
    """The free pages of a pool, to look at."""

    def __init__(self, free: "OrderedDict[int, Page]") -> None:
        self._free = free

    @property
    def num_free_pages(self) -> int:
        """How many there are."""
        return len(self._free)

    def get_all_free_pages(self) -> Pages:
        """All of them, the one to be taken next first."""
        return Pages(self._free.values())

    def _refuse(self, *_: Any) -> None:
        raise ValueError("the pool moves its pages")

    popleft = popleft_n = remove = append = append_n = _refuse


class PagePool:
    """See the contract."""

    def __init__(
        self,
        num_pages: int,
        enable_caching: bool,
        *,
        hash_seed: bytes | None = None,
        hash_function: Hasher = sha256,
        unhashed_first: bool = False,
    ) -> None:
        self.num_pages = number(num_pages, least=2)
        if self.num_pages >= 2**31:  # page ids are int32, and the memory would be full before
            raise ValueError(f"num_pages={num_pages} is too many")
        self.enable_caching, self.unhashed_first = truth(enable_caching), truth(unhashed_first)
        self.hasher, self.root = hash_function, init_none_hash(hash_seed, hash_function)
        self.all = OrderedDict((page_id, Page(self, page_id)) for page_id in range(self.num_pages))
        self.null_page = self.all[0]
        self.free = OrderedDict((page_id, page) for page_id, page in self.all.items() if page_id)
        self.free_page_queue = _Queue(self.free)
        self.files: dict[PageHashWithGroupId, OrderedDict[int, Page]] = {}

    @property
    def cached_page_hash_to_page(self) -> Mapping[PageHashWithGroupId, Pages]:
        """The cached pages by their keys, in the order in which they were cached."""
        return {key: Pages(pages.values()) for key, pages in self.files.items()}

    def get_num_free_pages(self) -> int:
        """How many pages can be taken."""
        return len(self.free)

    def get_usage(self) -> float:
        """The share of pages that are held."""
        return 1 - len(self.free) / (self.num_pages - 1)

    # -- Taking and giving back ---------------------------------------------------------------------

    def own(self, pages: Any) -> list[Page]:
        """Reads pages of this pool, the null page left out."""
        given = items(pages)
        if not all(isinstance(page, Page) for page in given):
            raise TypeError("a list of pages with what is none")
        if any(page.pool is not self for page in given):
            raise ValueError(f"{given!r} are not all of this pool")
        return [page for page in given if not page.is_null]

    def get_new_pages(self, num_pages: int) -> Pages:
        """Takes the first free pages."""
        if number(num_pages) > len(self.free):
            raise ValueError(f"{num_pages} pages of {len(self.free)}")
        taken = [self.free.popitem(last=False)[1] for _ in range(num_pages)]
        for page in taken:
            self.forget(page)
            page.holders = 1
        return Pages(taken)

    def touch(self, pages: Any) -> None:
        """Holds pages once more."""
        mentioned = [page for group in items(pages) for page in self.own(group)]
        if any(page.page_id in self.free and page.filed is None for page in mentioned):
            raise ValueError("a free page that holds nothing")
        for page in mentioned:
            self.free.pop(page.page_id, None)
            page.holders += 1

    def free_pages(self, ordered_pages: Any) -> None:
        """Gives pages back."""
        mentioned = self.own(ordered_pages)
        if any(count > page.holders for page, count in Counter(mentioned).items()):
            raise ValueError(f"{mentioned!r} are not held so often")
        given_up = []
        for page in mentioned:
            page.holders -= 1
            if not page.holders:
                given_up.append(page)
        for page in given_up:
            self.free[page.page_id] = page
        for page in reversed(given_up):
            if self.unhashed_first and page.filed is None:
                self.free.move_to_end(page.page_id, last=False)

    # -- Caching ------------------------------------------------------------------------------------

    def contents(self, request: Any, page_size: int) -> list[tuple[PageHash, Content]]:
        """The key and the content of each full page of a request."""
        found: list[tuple[PageHash, Content]] = []
        for key in keys_of_pages(self.hasher, page_size, request, self.root):
            before = found[-1][1] if found else ()
            found.append((key, (*before, key[1:])))
        return found

    def cache_full_pages(
        self,
        request: Any,
        pages: Any,
        page_hashes: Any,
        num_cached_pages: int,
        num_full_pages: int,
        page_size: int,
        kv_cache_group_id: int,
    ) -> None:
        """Caches pages of a request."""
        self.own(pages)
        first, end, size = number(num_cached_pages), number(num_full_pages), number(page_size, least=1)
        group, given = number(kv_cache_group_id), list(pages)
        if not self.enable_caching or not first <= end <= len(given):
            raise ValueError(f"pages {first} to {end} of {len(given)} cannot be cached")
        if end * size > len(token_ids(request.all_token_ids)):
            raise ValueError(f"{end} pages are not full")
        found = self.contents(request, size)[:end]
        for known, (key, _) in zip(items(page_hashes), found, strict=False):
            if not isinstance(known, tuple) or len(known) != 3:
                raise TypeError(f"a {type(known).__name__} is no key")
            if tuple(known) != tuple(key):
                raise ValueError("a key that is not the request's")
        new = [page for page in given[first:end] if not page.is_null]
        if len(set(new)) < len(new) or any(page.filed or page.page_id in self.free for page in new):
            raise ValueError(f"{new!r} cannot be cached")
        for page, (key, content) in zip(given[first:end], found[first:end], strict=True):
            self.file(page, key, content, group)

    def file(self, page: Page, key: PageHash, content: Content, group: int) -> None:
        """Caches a page; the null page is passed over."""
        if not page.is_null:
            page.filed, page.content = PageHashWithGroupId(key, group), content
            self.files.setdefault(page.filed, OrderedDict())[page.page_id] = page

    def forget(self, page: Page) -> None:
        """Makes a page be found no more."""
        if page.filed is not None:
            del self.files[page.filed][page.page_id]
            if not self.files[page.filed]:
                del self.files[page.filed]
            page.filed = None

    def get_cached_page(self, page_hash: Any, kv_cache_group_ids: Any) -> Pages | None:
        """The page first cached under a key, in each group."""
        if not isinstance(page_hash, tuple) or len(page_hash) != 3:
            raise TypeError(f"a {type(page_hash).__name__} is no key")
        wanted = [PageHashWithGroupId(PageHash(*page_hash), number(group)) for group in items(kv_cache_group_ids)]
        if any(key not in self.files for key in wanted):
            return None
        return Pages(next(iter(self.files[key].values())) for key in wanted)

    def evict_pages(self, page_ids: Any) -> None:
        """Makes pages be found no more, wherever they are."""
        for page in [self.all[number(page_id, least=None, below=self.num_pages)] for page_id in items(page_ids)]:
            self.forget(page)

    def reset_prefix_cache(self) -> bool:
        """Makes all pages be found no more, if none is held."""
        if len(self.free) < self.num_pages - 1:
            return False
        for page in self.all.values():
            self.forget(page)
        return True

    def check(self) -> None:
        """Verifies that free pages are held by nobody, and that the files and the pages agree."""
        assert all((page.page_id in self.free) == (not page.holders) for page in self.all.values() if not page.is_null)
        assert sum(map(len, self.files.values())) == sum(page.filed is not None for page in self.all.values())
